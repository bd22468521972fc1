"""Blocks cover everything once and in order; threads keep the order, pass on errors, and use one core each."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drdsgd.core.parallel import blocks, each_of, one_thread


@given(st.integers(1, 500), st.integers(-1, 60))
def test_blocks_cover_everything_once_and_are_even(n: int, most: int) -> None:
    parts = blocks(n, most)
    assert [i for part in parts for i in range(n)[part]] == list(range(n))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1 and max(sizes) <= max(most, 1)
    assert len(parts) == -(-n // max(most, 1))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_are_in_order_and_errors_come_through(threads: int) -> None:
    each = each_of(threads)
    assert list(each(lambda i: i * i, range(20))) == [i * i for i in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(each(lambda i: 1 // i, [1, 0]))


def test_threads_really_work_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=10)
    assert sorted(each_of(2)(lambda _: meet.wait(), range(2))) == [0, 1]


def _in_a_child(answers: multiprocessing.SimpleQueue[int]) -> None:
    answers.put(sum(each_of(2)(abs, [-1, -2])))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    list(each_of(2)(abs, [-1, -2]))
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(answers,))
    child.start()
    child.join(timeout=20)
    alive = child.is_alive()
    child.kill()
    assert not alive and answers.get() == 3


def test_every_operation_stays_on_its_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            assert set(each_of(3)(lambda _: torch.get_num_threads(), range(6))) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_within_threads_do_not_wait_for_each_other() -> None:
    each = each_of(2)
    assert list(each(lambda i: sum(each(abs, range(-i, 0))), range(6))) == [0, 1, 3, 6, 10, 15]


def test_after_an_error_no_more_is_begun() -> None:
    done: list[int] = []

    def step(i: int) -> None:
        if i == 0:
            raise ZeroDivisionError
        done.append(i)
        threading.Event().wait(0.05)

    with pytest.raises(ZeroDivisionError):
        list(each_of(2)(step, range(100)))
    assert len(done) < 50
