"""All randomness in one place: a draw is a pure function of (seed, device, round).

Draws come from Philox4x32-10, a counter-based generator without state (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011). The key is the seed. The counter is (i, j, round, stream), where i and j number
devices, links or samples. So all engines draw the same numbers, whichever devices they host, and a resumed run
continues exactly.

`Stream` lists what is drawn; two streams never share a counter. Torch initialises models from a generator of its own,
which all threads of a process share: `one_generator` holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stream", "one_generator", "philox", "torch_seed", "uniform", "words"]

Numbers = NDArray[np.int64] | int

_LOW = 0xFFFFFFFF
_MASK, _HALF = np.uint64(_LOW), np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


@unique
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


def philox(counter: Sequence[Numbers], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10: four 32-bit counter words, which broadcast -> four random 32-bit words [..., 4].

    >>> [hex(w) for w in philox((0, 0, 0, 0), (0, 0)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    # numpy, not torch: for many small operations torch takes several times as long
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _MASK, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1)


def words(seed: int, stream: Stream, t: Numbers, i: Numbers, j: Numbers = 0) -> NDArray[np.uint64]:
    """Four random 32-bit words [..., 4] for every (i, j, t), which broadcast.

    >>> words(0, Stream.BATCHES, 5, np.arange(3)).shape
    (3, 4)
    """
    return philox((i, j, t & _LOW, int(stream)), (seed & _LOW, (seed >> 32) & _LOW))


def uniform(seed: int, stream: Stream, t: Numbers, i: Numbers, j: Numbers = 0) -> NDArray[np.float64]:
    """A number in [0, 1) for every (i, j, t): the first of its `words`, divided by 2^32.

    >>> float(uniform(0, Stream.FAILING_LINKS, 7, 1, 2)) < 1
    True
    """
    return words(seed, stream, t, i, j)[..., 0] / 2**32


def torch_seed(seed: int, number: int) -> int:
    """A seed for a `torch.Generator`: another one for every number.

    >>> torch_seed(0, 1) != torch_seed(1, 0)
    True
    """
    return (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) % 2**63


_TORCH = threading.RLock()


@contextmanager
def one_generator(seed: int | None = None) -> Iterator[None]:
    """Hold torch's global generator: no other thread that asks for it draws until the block ends.

    With a seed, the block starts from that seed. Afterwards the generator's state is what it was before. Without the
    lock, threads would draw from each other's seeds and restore each other's states. Also a decorator.

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
