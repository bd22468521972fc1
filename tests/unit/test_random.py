"""Draws are pure functions of (seed, device, round), and threads share torch's generator one after the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drdsgd import data
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import check_numbers, choose_features
from drdsgd.errors import InputError
from drdsgd.experiments.build import make_model
from drdsgd.experiments.config import Experiment
from drdsgd.random import Stream, one_generator, philox, torch_seed, uniform, words

SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # the known answers published with the generator (Random123, philox4x32-10)
        ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: list[int], key: tuple[int, int], answer: list[int]) -> None:
    assert philox(counter, key).tolist() == answer


def test_words_are_philox_of_both_halves_of_the_seed() -> None:
    drawn = words(0x299F31D0_A4093822, Stream.MATCHA, 7, 3, 5)
    assert np.array_equal(drawn, philox((3, 5, 7, 4), (0xA4093822, 0x299F31D0)))


def test_the_numbers_of_the_streams_never_change() -> None:
    """A saved run draws from them when it is resumed."""
    assert [int(stream) for stream in Stream] == [0, 1, 2, 3, 4, *range(0x5E000001, 0x5E000005)]


@given(SEEDS, st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_seed_stream_round_and_both_numbers_all_matter(seed: int, t: int, i: int, j: int) -> None:
    drawn = [words(seed, stream, t, i, j) for stream in Stream]
    drawn += [words(seed ^ 1, Stream.BATCHES, t, i, j), words(seed ^ 2**63, Stream.BATCHES, t, i, j)]
    drawn += [words(seed, Stream.BATCHES, t ^ 1, i, j), words(seed, Stream.BATCHES, t, i ^ 1, j)]
    drawn += [words(seed, Stream.BATCHES, t, i, j ^ 1)]
    assert len({tuple(draw.tolist()) for draw in drawn}) == len(Stream) + 5


@given(SEEDS, st.integers(1, 50), st.integers(1, 50))
def test_a_draw_does_not_depend_on_how_many_are_asked_for(seed: int, few: int, more: int) -> None:
    devices = np.arange(few + more)
    together = uniform(seed, Stream.MATCHINGS, 3, devices, devices[::-1])
    assert ((together >= 0) & (together < 1)).all()
    assert np.array_equal(uniform(seed, Stream.MATCHINGS, 3, devices[:few], devices[::-1][:few]), together[:few])
    assert uniform(seed, Stream.MATCHINGS, 3, few, more - 1) == together[few]


@given(SEEDS)
def test_every_round_has_another_torch_seed(seed: int) -> None:
    seeds = [torch_seed(seed, t) for t in range(100)]
    assert len(set(seeds)) == 100 and all(0 <= s < 2**63 for s in seeds)
    torch.Generator().manual_seed(max(seeds))


def test_a_seeded_block_draws_the_same_and_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    with one_generator(5):
        outer = torch.rand(3)
        with one_generator(5):  # a thread may ask again
            assert torch.equal(torch.rand(3), outer)
        after = torch.rand(3)
    with one_generator(5):
        assert torch.equal(torch.rand(6), torch.cat([outer, after]))
    with pytest.raises(KeyError), one_generator(5):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(nn.Linear):
    """Draws often, so that threads have many chances to meet."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(torch.rand(50).mean() for _ in range(50))


def _refused(flat: Flat, x: Tensor) -> None:
    with pytest.raises(InputError, match="is random"):
        flat.check(x)


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Python changes threads a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient_threads")
@pytest.mark.parametrize("use", [_refused, choose_features, check_numbers])
def test_threads_that_run_random_models_do_not_disturb_each_other(use: Callable[[Flat, Tensor], object]) -> None:
    """Each device of a network may be a thread: all must start from the same model."""
    devices, e = data.synthetic(K=4), Experiment(dataset="synthetic", devices=4, model="mlp:16,16,16,16")
    flat, x = Flat(Noisy(2, 2)), torch.zeros(4, 2)
    before, start = torch.get_rng_state(), threading.Barrier(6)

    def work(number: int) -> list[Tensor]:
        start.wait()
        if number % 2:
            for _ in range(60):
                use(flat, x)
            return []
        return [Flat(make_model(e, devices)).row() for _ in range(100)]

    with ThreadPoolExecutor(6) as threads:
        rows = [row for made in threads.map(work, range(6)) for row in made]
    assert all(torch.equal(row, rows[0]) for row in rows)
    assert torch.equal(torch.get_rng_state(), before)
