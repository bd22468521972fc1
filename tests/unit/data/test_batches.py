"""A batch is a pure function of (seed, device, round)."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from drdsgd import data
from drdsgd.data.batches import Batches, draw

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 30), st.data())
def test_a_device_draws_the_same_whoever_hosts_it(seed: int, t: int, B: int, data: st.DataObject) -> None:
    sizes = np.array(data.draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=8)))
    devices = np.arange(len(sizes))
    together = draw(seed, devices, t, sizes, B)
    assert (together >= 0).all() and (together < sizes[:, None]).all()
    mine = np.array(data.draw(st.lists(st.sampled_from(devices.tolist()), min_size=1, unique=True)))
    assert np.array_equal(draw(seed, mine, t, sizes[mine], B), together[mine])
    assert np.array_equal(draw(seed, devices, t, sizes, B), together)  # no state


@given(SEEDS, st.integers(0, 1000))
def test_seed_round_and_device_all_matter(seed: int, t: int) -> None:
    sizes, devices = np.full(2, 10**9), np.arange(2)
    here = draw(seed, devices, t, sizes, 8)
    assert not np.array_equal(here[0], here[1])
    assert not np.array_equal(here, draw(seed, devices, t + 1, sizes, 8))
    assert not np.array_equal(here, draw(seed ^ 1, devices, t, sizes, 8))
    assert not np.array_equal(here, draw(seed ^ (1 << 40), devices, t, sizes, 8))


def test_rounds_drawn_together_are_those_drawn_alone() -> None:
    sizes, devices = np.array([5, 10**6, 77]), np.arange(3)
    together = draw(9, devices, np.arange(40, 47), sizes, 6)
    assert all(np.array_equal(together[t - 40], draw(9, devices, t, sizes, 6)) for t in range(40, 47))


def test_batches_may_be_asked_for_in_any_order() -> None:
    """Whatever window of rounds was drawn before."""
    devices = data.synthetic(3)
    forward, backward = Batches(devices, B=4000, seed=2), Batches(devices, B=4000, seed=2)
    rounds = [0, 1, 2, 9, 10, 40]
    expected = {t: forward(t)[1] for t in rounds}
    assert all(torch.equal(backward(t)[1], expected[t]) for t in reversed(rounds))


def test_samples_are_uniform() -> None:
    """Chi-square over 50 cells and 100,000 draws: within five deviations of its mean."""
    drawn = np.concatenate([draw(3, np.arange(20), t, np.full(20, 50), 50).ravel() for t in range(100)])
    expected = len(drawn) / 50
    chi2 = float(((np.bincount(drawn, minlength=50) - expected) ** 2 / expected).sum())
    assert abs(chi2 - 49) < 5 * np.sqrt(2 * 49)


def test_a_batch_holds_the_devices_own_samples_as_floats() -> None:
    sizes = torch.tensor([3, 1, 4])
    x = torch.arange(8, dtype=torch.uint8)[:, None]
    samples = data.Samples(x, torch.arange(8), sizes)
    devices = data.Devices(samples, samples, 8, scale=torch.tensor([0.5]), shift=torch.tensor([1.0]))
    features, labels = Batches(devices, B=64, seed=1, dtype=torch.float64)(9)
    assert features.shape == (3, 64, 1) and features.dtype == torch.float64
    assert torch.equal(features[..., 0], labels * 0.5 + 1)  # sample, scale and label belong together
    assert [sorted(set(row.tolist())) for row in labels] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    assert torch.equal(Batches(devices.of([2]), B=64, seed=1, rows=torch.tensor([2]))(9)[1][0], labels[2])
