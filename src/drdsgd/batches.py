"""Mini-batches as a pure function of (seed, device, round).

Sample j of device i in round t is drawn by a counter-based generator, Philox4x32-10 (Salmon, Moraes, Dror and
Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the counter is (j, i, t), the key is the seed.
There is no generator state: engines agree whatever devices they host, and a resumed run goes on exactly.

Samples are drawn uniformly **with replacement**, which is the theory's assumption (independent xi_j from D_i)
and works for devices with fewer than B samples.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.data import Devices, Samples

__all__ = ["Batches", "draw", "philox"]

# sample numbers drawn at once
DRAWN = 2**16

_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: Sequence[NDArray[np.int64] | int], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10: four 32-bit counter words (that broadcast) -> four random words [..., 4].

    >>> [hex(w) for w in philox((0, 0, 0, 0), (0, 0)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    # numpy, not torch: these are many small operations, and each costs torch several times as much
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _MASK, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & int(_MASK), (k1 + _WEYL[1]) & int(_MASK)
    return np.stack([c0, c1, c2, c3], axis=-1)


def draw(
    seed: int, devices: NDArray[np.int64], t: int | NDArray[np.int64], sizes: NDArray[np.int64], B: int
) -> NDArray[np.int64]:
    """B sample numbers in `[0, n_i)` for each device in round t, [n, B]; of several rounds t [w], [w, n, B].

    `devices` [n] are device numbers in the whole network, `sizes` [n] their n_i.

    >>> draw(0, np.array([0, 1]), 5, np.array([100, 3]), 4)[1].max() < 3
    np.True_
    """
    low, rounds = int(_MASK), np.asarray(t)[..., None, None]
    # one call gives four words
    words = philox((np.arange((B + 3) // 4), devices[:, None], rounds & low, 0), (seed & low, (seed >> 32) & low))
    # word * n / 2^32 is uniform on [0, n) up to a bias of n / 2^32
    scaled = words.reshape(*words.shape[:-2], -1)[..., :B] * sizes[:, None].astype(np.uint64)
    return (scaled >> _HALF).astype(np.int64)


class Batches:
    """The batches of the devices whose data these are: `batches(t)` is features [n, B, ...] and targets [n, B, ...].

    `rows` [n] are their numbers in the whole network, on which what they draw depends; by default 0, 1, ...

    Samples stay as they are stored (bytes, for images); one gather takes a round's samples of all devices, and
    only those become floats, `x * scale + shift`. With an integer `dtype` they stay the whole numbers that they are.
    """

    def __init__(
        self, data: Devices, B: int, seed: int, rows: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.samples: Samples = data.train
        self.rows = np.arange(data.K) if rows is None else rows.cpu().numpy()
        self.sizes, self.starts = data.train.sizes.cpu().numpy(), data.train.starts.cpu().numpy()
        self.scale = data.scale.to(dtype)
        self.shift = data.shift.to(dtype) if data.shift.any() else None
        self.B, self.seed, self.dtype = B, seed, dtype
        self._lock, self._drawn = threading.Lock(), dict[int, NDArray[np.int64]]()

    def __call__(self, t: int, some: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The batches of round t; `some` picks devices."""
        numbers = self._numbers(t)[some]
        where = torch.from_numpy(numbers.reshape(-1)).to(self.samples.y.device)
        # index_select copies whole samples; indexing by x[where] was measured to be many times slower on bytes
        x = self.samples.x.index_select(0, where).to(self.dtype)
        if self.dtype.is_floating_point:
            x.mul_(self.scale)
            if self.shift is not None:
                x.add_(self.shift)
        return x.unflatten(0, numbers.shape), self.samples.y[where].unflatten(0, numbers.shape)

    def _numbers(self, t: int) -> NDArray[np.int64]:
        """Which samples round t takes, [n, B]: drawn for some rounds at once, which takes no longer than for one."""
        window = max(1, DRAWN // (len(self.rows) * self.B))
        with self._lock:
            if t // window not in self._drawn:
                rounds = np.arange(t - t % window, t - t % window + window)
                numbers = draw(self.seed, self.rows, rounds, self.sizes, self.B) + self.starts[:, None]
                self._drawn = {t // window: numbers}
            drawn = self._drawn[t // window]
        return np.asarray(drawn[t % window])
