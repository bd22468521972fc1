"""The versions of all packages that can change a result."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import version

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """The versions of Python, of this package, and of the packages that compute.

    >>> sorted(versions())
    ['drdsgd', 'networkx', 'numpy', 'python', 'scikit-learn', 'torch']
    """
    return {"python": platform.python_version()} | {
        name: _version(name) for name in ("drdsgd", "torch", "numpy", "networkx", "scikit-learn")
    }


_version = functools.cache(version)  # `version` reads and parses a file
