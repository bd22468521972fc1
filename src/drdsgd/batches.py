"""Mini-batches as a pure function of (seed, device, round).

Sample j of device i in round t is drawn by a counter-based generator, Philox4x32-10 (Salmon, Moraes, Dror and
Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the counter is (j, i, t), the key is the seed.
There is no generator state: engines agree whatever devices they host, and a resumed run goes on exactly.

Samples are drawn uniformly **with replacement**, which is the theory's assumption (independent xi_j from D_i)
and works for devices with fewer than B samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drdsgd.data import Devices, Samples

__all__ = ["Batches", "draw", "philox"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> Tensor:
    """Philox4x32-10: four 32-bit counter words (int64 tensors that broadcast) -> four random words [..., 4].

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(w) for w in philox((zero, zero, zero, zero), (0, 0)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap around, so the high word is right after the mask
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)


def draw(seed: int, devices: Tensor, t: int, sizes: Tensor, B: int) -> Tensor:
    """B sample numbers in `[0, n_i)` for each device in round t, [n, B] int64.

    `devices` [n] are device numbers in the whole network, `sizes` [n] their n_i.

    >>> draw(0, torch.tensor([0, 1]), 5, torch.tensor([100, 3]), 4)[1].max() < 3
    tensor(True)
    """
    j = torch.arange((B + 3) // 4, device=devices.device)  # one call gives four words
    zero = torch.zeros_like(j)
    words = philox((j, devices[:, None], zero + (t & _MASK), zero), (seed & _MASK, (seed >> 32) & _MASK))
    # word * n / 2^32 is uniform on [0, n) up to a bias of n / 2^32
    return (words.flatten(1)[:, :B] * sizes[:, None]) >> 32


class Batches:
    """The batches of the devices in `rows`: `batches(t)` is features [n, B, ...] and labels [n, B] of all of them.

    Samples stay as they are stored (bytes, for images); one gather takes a round's samples of all devices, and
    only those become floats, `x * scale + shift`.
    """

    def __init__(
        self, data: Devices, B: int, seed: int, rows: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.samples: Samples = data.train
        self.rows = torch.arange(data.K, device=data.train.y.device) if rows is None else rows
        self.sizes, self.starts = self.samples.sizes[self.rows], self.samples.starts[self.rows]
        self.scale, self.shift = data.scale.to(dtype), data.shift.to(dtype)
        self.B, self.seed, self.dtype = B, seed, dtype

    def __call__(self, t: int, some: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The batches of round t; `some` picks devices from `rows`."""
        numbers = draw(self.seed, self.rows[some], t, self.sizes[some], self.B)
        where = (numbers + self.starts[some, None]).flatten()
        # index_select copies whole samples; indexing by x[where] was measured to be many times slower on bytes
        x = self.samples.x.index_select(0, where).unflatten(0, numbers.shape).to(self.dtype).mul_(self.scale)
        return x.add_(self.shift), self.samples.y[where].unflatten(0, numbers.shape)
