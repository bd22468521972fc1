"""Training: the loop, evaluations, checkpoints and the model card."""

__all__: list[str] = []
