"""The paper's lemmas and rates, measured on a problem with known constants."""

__all__: list[str] = []
