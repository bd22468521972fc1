"""Training: preparation, the loop, evaluation, metrics, checkpoints and the model card."""

__all__: list[str] = []
