"""Experiments: a validated description of a run, and the folders that runs are written into.

`config` is the description, `registry` names every method, `run` does one run, `compare` does many.
"""

__all__: list[str] = []
