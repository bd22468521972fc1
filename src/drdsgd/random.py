"""Everything random, in one place: draws are pure functions of (seed, device, round).

There is no generator state. A draw comes from Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011): the key is the seed, and the counter is (i, j, round, stream),
where i and j number devices, links or samples. So engines agree whatever devices they host, and a resumed run
continues exactly.

`Stream` lists what is drawn; two streams never share a counter. `one_generator` is for the one random thing that is
not ours: torch's own generator, which all threads of a process share.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stream", "one_generator", "philox", "torch_seed", "uniform", "words"]

_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Stream(IntEnum):
    """What a draw is for: the fourth word of its counter."""

    BATCHES = 0
    FAILING_LINKS = 1
    ABSENT_DEVICES = 2
    MATCHINGS = 3
    MATCHA = 4
    TRAINING_CLIENTS = 0x5E000001
    ASKED_CLIENTS = 0x5E000002
    CLIENTS_BY_WEIGHT = 0x5E000003
    SNAPSHOT_STEP = 0x5E000004


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


def words(
    seed: int,
    stream: Stream,
    t: int | NDArray[np.int64],
    i: NDArray[np.int64] | int,
    j: NDArray[np.int64] | int = 0,
) -> NDArray[np.uint64]:
    """Four random 32-bit words [..., 4] for every (i, j, t), which broadcast.

    >>> words(0, Stream.BATCHES, 5, np.arange(3)).shape
    (3, 4)
    """
    low = int(_MASK)
    return philox((i, j, t & low, int(stream)), (seed & low, (seed >> 32) & low))


def uniform(
    seed: int, stream: Stream, t: int, i: NDArray[np.int64] | int, j: NDArray[np.int64] | int = 0
) -> NDArray[np.float64]:
    """A number in [0, 1) for every (i, j): the first of `words`.

    >>> float(uniform(0, Stream.FAILING_LINKS, 7, 1, 2)) < 1
    True
    """
    return words(seed, stream, t, i, j)[..., 0] / 2**32


def torch_seed(seed: int, number: int) -> int:
    """The seed of a `torch.Generator` for one of many draws from the same seed.

    >>> torch_seed(0, 1) != torch_seed(1, 0)
    True
    """
    return (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) % 2**63


_TORCH = threading.RLock()


@contextmanager
def one_generator(seed: int | None = None) -> Iterator[None]:
    """Hold torch's generator, which all threads share: within the block nobody else draws from it.

    Afterwards its state is what it was. With a seed, the block starts from that seed.

    >>> import torch
    >>> with one_generator(seed=0):
    ...     first = torch.rand(1)
    >>> with one_generator(seed=0):
    ...     print(bool(torch.rand(1) == first))
    True
    """
    import torch

    with _TORCH, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
