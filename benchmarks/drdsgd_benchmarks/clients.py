"""Folders with one file per device, as `drdsgd train --dataset FOLDER` and other tools read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["write"]


def write(folder: Path, K: int, n: int, test: int, shape: Sequence[int] = (28, 28), classes: int = 10) -> str:
    """K files with n training samples and `test` test samples each: noisy pictures of `classes` things, in [0, 1].

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     write(Path(made), K=2, n=5, test=1)
    ...     sorted(path.name for path in Path(made).iterdir()), np.load(Path(made, "device-0.npz"))["x"].shape
    'made-up images of 28 x 28'
    (['device-0.npz', 'device-1.npz'], (5, 28, 28))
    """
    generator = np.random.default_rng(0)
    things = generator.random((classes, *shape), dtype=np.float32)
    for i in range(K):
        y = generator.integers(0, classes, n + test)
        x = 0.3 * things[y] + 0.7 * generator.random((n + test, *shape), dtype=np.float32)
        name = f"device-{i:0{len(str(K - 1))}}.npz"
        np.savez(folder / name, x=x[:n], y=y[:n], x_test=x[n:], y_test=y[n:])
    return f"made-up images of {' x '.join(map(str, shape))}"
