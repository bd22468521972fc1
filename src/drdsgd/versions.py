"""The versions that a number may depend on."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import version

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Python, this package, and the packages that compute.

    >>> sorted(versions())
    ['drdsgd', 'networkx', 'numpy', 'python', 'scikit-learn', 'torch']
    """
    return {"python": platform.python_version()} | {
        name: _version(name) for name in ("drdsgd", "torch", "numpy", "networkx", "scikit-learn")
    }


_version = functools.cache(version)  # it reads and parses a file
