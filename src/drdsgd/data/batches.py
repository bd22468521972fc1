"""Mini-batches as a pure function of (seed, device, round).

A counter-based generator (`drdsgd.random`) draws sample j of device i in round t, so there is no generator state.

Samples are drawn uniformly **with replacement**. This is the theory's assumption (independent xi_j from D_i), and it
works for devices with fewer than B samples.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd import random
from drdsgd.data.devices import Devices, Samples
from drdsgd.random import Stream

__all__ = ["Batches", "draw"]

# sample numbers that are drawn in one call
DRAWN = 2**16


def draw(
    seed: int, devices: NDArray[np.int64], t: int | NDArray[np.int64], sizes: NDArray[np.int64], B: int
) -> NDArray[np.int64]:
    """B sample numbers in `[0, n_i)` for each device in round t, [n, B]; for several rounds t [w], [w, n, B].

    `devices` [n] are device numbers in the whole network; `sizes` [n] are their n_i.

    >>> draw(0, np.array([0, 1]), 5, np.array([100, 3]), 4)[1].max() < 3
    np.True_
    """
    rounds = np.asarray(t)[..., None, None]
    # one call gives four words
    words = random.words(seed, Stream.BATCHES, rounds, np.arange((B + 3) // 4), devices[:, None])
    # word * n / 2^32 is uniform on [0, n) up to a bias of n / 2^32
    scaled = words.reshape(*words.shape[:-2], -1)[..., :B] * sizes[:, None].astype(np.uint64)
    return (scaled >> np.uint64(32)).astype(np.int64)


class Batches:
    """The mini-batches of n devices: `batches(t)` is features [n, B, ...] and targets [n, B, ...].

    `rows` [n] are the devices' numbers in the whole network (default 0, 1, ...); what a device draws depends on its
    number.

    Samples stay as they are stored (bytes, for images). One gather takes a round's samples of all devices, and only
    these become floats, `x * scale + shift`. With an integer `dtype` they stay integers, unscaled.
    """

    def __init__(
        self, data: Devices, B: int, seed: int, rows: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.samples: Samples = data.train
        self.rows = np.arange(data.K) if rows is None else rows.cpu().numpy()
        self.sizes, self.starts = data.train.sizes.cpu().numpy(), data.train.starts.cpu().numpy()
        self.scale = data.scale.to(dtype)
        self.shift = data.shift.to(dtype) if data.shift.any() else None
        self.B, self.seed, self.dtype, self.shape = B, seed, dtype, data.shape
        self._lock, self._drawn = threading.Lock(), dict[int, NDArray[np.int64]]()

    def __call__(self, t: int, some: slice | NDArray[np.int64] = slice(None)) -> tuple[Tensor, Tensor]:
        """The batches of round t for all devices, or for `some` of them."""
        numbers = self._numbers(t)[some]
        where = torch.from_numpy(numbers.reshape(-1)).to(self.samples.y.device)
        # index_select copies whole samples; x[where] was measured to be many times slower for bytes
        x = self.samples.x.index_select(0, where).to(self.dtype)
        if self.dtype.is_floating_point:
            x.mul_(self.scale)
            if self.shift is not None:
                x.add_(self.shift)
        return x.unflatten(0, numbers.shape), self.samples.y[where].unflatten(0, numbers.shape)

    def _numbers(self, t: int) -> NDArray[np.int64]:
        """The sample numbers of round t, [n, B]; drawn for several rounds at once, which takes no longer than one."""
        window = max(1, DRAWN // (len(self.rows) * self.B))
        with self._lock:
            if t // window not in self._drawn:
                rounds = np.arange(t - t % window, t - t % window + window)
                numbers = draw(self.seed, self.rows, rounds, self.sizes, self.B) + self.starts[:, None]
                self._drawn = {t // window: numbers}
            drawn = self._drawn[t // window]
        return np.asarray(drawn[t % window])
