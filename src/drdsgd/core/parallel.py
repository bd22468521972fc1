"""Devices in parallel on one machine: a few threads, each of which computes whole blocks of devices on one core.

Torch's own threads split every operation, wait for each other after it, and spin while they wait. So another busy
process makes a round many times slower, and small operations gain nothing. A thread that takes whole blocks of devices
waits once per round. Torch releases Python's lock within an operation, so plain threads suffice.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

__all__ = ["Each", "blocks", "column_sums", "each_of", "one_thread"]

# columns of theta that are summed in one step
SUMMED_COLUMNS = 2**14

A = TypeVar("A")
R = TypeVar("R")


class Each(Protocol):
    """Applies a function to every item, in any order or in parallel; results are in the order of the items."""

    def __call__(self, function: Callable[[A], R], items: Iterable[A], /) -> Iterable[R]: ...


def each_of(threads: int) -> Each:
    """`Each` on this number of threads, including the caller's; use it within `one_thread`.

    >>> with one_thread():
    ...     list(each_of(2)(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    return map if threads == 1 else functools.partial(_shared_out, threads)


def _shared_out(threads: int, function: Callable[[A], R], items: Iterable[A]) -> list[R]:
    """Free threads take the next item. Waking a thread takes time, so each is woken once and not for every item."""
    todo = list(items)
    results: dict[int, R] = {}
    turn, failed = itertools.count(), threading.Event()

    def work() -> None:
        try:
            while (i := next(turn)) < len(todo) and not failed.is_set():
                results[i] = function(todo[i])
        except BaseException:
            failed.set()
            raise

    helpers: list[Future[None]] = []
    try:
        helpers += [_pool(threads - 1).submit(work) for _ in range(min(threads, len(todo)) - 1)]
        work()
    finally:
        # a helper that has not begun is no longer needed, and might never begin: all threads may be busy elsewhere
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[i] for i in range(len(todo))]


def blocks(n: int, most: int) -> list[slice]:
    """Split n items into contiguous blocks of at most `most`, as equal as possible.

    >>> blocks(25, 10)
    [slice(0, 9, None), slice(9, 17, None), slice(17, 25, None)]
    """
    parts = -(-n // max(most, 1))
    ends = [-(-n * (i + 1) // parts) for i in range(parts)]
    return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def column_sums(theta: Tensor, each: Each = map) -> Tensor:
    """The sum [d] of the models theta [n, d].

    >>> column_sums(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([2., 0.])
    """
    return torch.cat(list(each(lambda some: theta[:, some].sum(dim=0), blocks(theta.shape[1], SUMMED_COLUMNS))))


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block torch computes every operation on the calling thread."""
    _keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # torch must not start threads of its own in these threads
    return ThreadPoolExecutor(threads, "drdsgd", initializer=torch.set_num_threads, initargs=(1,))


# a forked child process has none of its parent's threads
os.register_at_fork(after_in_child=_pool.cache_clear)


@functools.cache
def _keep_memory() -> None:
    """Ask the C library to keep freed memory for the next round instead of returning it to the system.

    Every round needs the same large blocks; mapping them anew was measured to cost 20 to 25 % of a round. Without
    glibc, nothing happens.
    """
    trim_threshold, mmap_threshold, largest_mmap_threshold = -1, -3, 32 * 2**20
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(mmap_threshold, largest_mmap_threshold)
    mallopt(trim_threshold, 2**30)
