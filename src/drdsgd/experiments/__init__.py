"""Experiments: a validated description of a run, and everything that happens to it in folders.

`config` is the description, `registry` names every method, `run` does one run, `compare` does many.
"""

__all__: list[str] = []
