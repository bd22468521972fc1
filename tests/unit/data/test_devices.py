"""Synthetic and dealt data: every sample once; errors are one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drdsgd import data
from drdsgd.data import sources
from drdsgd.options import Scaling
from tests.support.refusing import says


def linear_accuracy(d: data.Devices) -> float:
    """Test accuracy of one linear model (a few Newton-like steps of softmax regression) for all devices."""
    x, y = (torch.cat([s.x, torch.ones(len(s.x), 1)], 1) for s in (d.train, d.test)), (d.train.y, d.test.y)
    x_train, x_test = x
    w = torch.zeros(x_train.shape[1], d.classes, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS([w], max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(x_train @ w, y[0])
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(((x_test @ w).argmax(1) == y[1]).double().mean())


def test_heterogeneity_is_what_one_linear_model_loses() -> None:
    iid, some = (linear_accuracy(data.synthetic(60, heterogeneity=h)) for h in (0.0, 0.5))
    assert iid > 0.95
    chance = float(torch.bincount(data.synthetic(60, heterogeneity=0.5).test.y).max()) / 2400
    assert chance < 0.3
    assert 2 * chance < some < iid - 0.1


def test_heterogeneity_gives_devices_labels_of_their_own() -> None:
    def labels_per_device(h: float) -> float:
        y = data.synthetic(50, heterogeneity=h).train.y.view(50, -1)
        return sum(len(row.unique()) for row in y) / 50

    a, b, c = map(labels_per_device, (0.0, 0.5, 2.0))
    assert a > b > c


def test_synthetic_features_have_the_stated_moments() -> None:
    d = data.synthetic(400, heterogeneity=0.7, features=5, samples=200)
    x = d.train.x.view(400, 200, 5).double()
    within = (x - x.mean(1, keepdim=True)).square().sum((0, 1)) / (400 * 199)
    assert torch.allclose(within, torch.arange(1.0, 6.0).double() ** -1.2, rtol=0.05)
    between = x.mean(1).var(0)  # variance of the devices' means: heterogeneity squared, plus a little noise
    assert torch.allclose(between, torch.full((5,), 0.49).double(), rtol=0.25)


@given(
    K=st.integers(1, 5),
    seed=st.integers(0, 2**40),
    n=st.integers(1, 6),
    m=st.integers(1, 6),
    c=st.integers(2, 5),
)
@settings(deadline=None, max_examples=30)
def test_synthetic_is_a_pure_function(K: int, seed: int, n: int, m: int, c: int) -> None:
    def make(seed: int) -> data.Devices:
        return data.synthetic(K, seed=seed, samples=n, test_samples=m, classes=c)

    legacy, torch_state = np.random.get_state(legacy=False), torch.get_rng_state()
    a, b, other = make(seed), make(seed), make(seed + 1)
    assert str(legacy) == str(np.random.get_state(legacy=False))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y)
    assert not torch.equal(a.train.x, other.train.x)
    assert a.train.x.dtype == torch.float32 and a.train.y.dtype == torch.int64
    assert a.train.sizes.tolist() == [n] * K and a.test.sizes.tolist() == [m] * K
    assert int(a.train.y.min()) >= 0 and int(a.train.y.max()) < c == a.classes


def test_synthetic_makes_ten_thousand_devices() -> None:
    assert data.synthetic(10_000, samples=20, test_samples=5).K == 10_000


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("K", 0),
        ("seed", -1),
        ("samples", 0),
        ("test_samples", 0),
        ("features", 0),
        ("classes", 1),
        ("heterogeneity", -0.5),
        ("heterogeneity", float("nan")),
        ("heterogeneity", float("inf")),
    ],
)
def test_synthetic_names_the_wrong_argument(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"K": 3} | {argument: value}
    with says(argument, str(value)):
        data.synthetic(**arguments)


# -------------------------------------------------------------------------------------------------- dealing


@given(
    cuts=st.lists(st.integers(1, 199), min_size=0, max_size=9, unique=True),
    scaling=st.sampled_from(["unit", "standard"]),
)
@settings(deadline=None, max_examples=25)
def test_deal_gives_each_device_its_samples(cuts: list[int], scaling: Scaling) -> None:
    dataset = sources.digits()
    order = np.random.default_rng(0).permutation(len(dataset.y_train))[:200]
    parts = np.split(order, sorted(cuts))
    d = data.deal(dataset, parts, [np.array([i]) for i in range(len(parts))], scaling)
    assert d.train.sizes.tolist() == [len(part) for part in parts]
    assert d.train.x.dtype == torch.uint8
    for i, part in enumerate(parts):
        mine = slice(int(d.train.starts[i]), int(d.train.starts[i]) + len(part))
        assert torch.equal(d.train.x[mine], dataset.x_train[part]) and torch.equal(
            d.train.y[mine], dataset.y_train[part]
        )
        assert torch.equal(d.test.x[i], dataset.x_test[i])


@pytest.mark.parametrize("shape", [(3, 4, 4), (3,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_standard_scaling_is_standard(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    raw = torch.rand(500, *shape, generator=torch.Generator().manual_seed(0)) * 200
    raw[:, 1] *= 0.25
    x = raw.to(dtype)
    y = torch.zeros(500, dtype=torch.int64)
    dataset = sources.Dataset("own", x, y, x, y, classes=2, unit=200.0)
    d = data.deal(dataset, [np.arange(500)], [np.arange(500)], "standard")
    fed = (d.train.x * d.scale + d.shift).transpose(0, 1).flatten(1).double()
    assert fed.shape[0] == 3 and d.scale.dtype == torch.float32
    assert torch.allclose(fed.mean(1), torch.zeros(3).double(), atol=1e-5)
    assert torch.allclose(fed.std(1, correction=0), torch.ones(3).double(), atol=1e-5)
    unit = data.deal(dataset, [np.arange(500)], [np.arange(500)])
    assert torch.allclose(unit.train.x * unit.scale + unit.shift, x / 200)


def test_a_channel_that_never_changes_is_scaled_to_zero() -> None:
    x = torch.full((4, 2), 7.0)
    y = torch.zeros(4, dtype=torch.int64)
    d = data.deal(sources.Dataset("flat", x, y, x, y, 1), [np.arange(4)], [np.arange(4)], "standard")
    assert torch.equal(d.train.x * d.scale + d.shift, torch.zeros(4, 2))


def test_wrong_deals_are_told() -> None:
    d, one = sources.digits(), [np.arange(3)]
    with says("2 training parts", "1 test"):
        data.deal(d, one * 2, one)
    with says("0 training parts"):
        data.deal(d, [], [])
    with says("device 1", "no training"):
        data.deal(d, [np.arange(3), np.array([], dtype=int)], one * 2)
    with says("device 0", "no test"):
        data.deal(d, one, [np.array([], dtype=int)])
    with says("device 0", "1352", "0..1351"):
        data.deal(d, [np.array([5, 1352])], one)
    with says("device 0", "-1"):
        data.deal(d, one, [np.array([-1])])
    with says("scaling", "'minmax'", "'standard'"):
        data.deal(d, one, one, cast(Any, "minmax"))
    with says("digits", "training label", "outside 0..4"):
        data.deal(replace(d, classes=5), one, one)


def test_samples_and_devices_check_themselves() -> None:
    def samples(*sizes: int, features: int = 2) -> data.Samples:
        n = sum(sizes)
        return data.Samples(torch.zeros(n, features), torch.zeros(n, dtype=torch.int64), torch.tensor(sizes))

    with says("device 1", "no samples"):
        samples(2, 0, 3)
    with says("sum to 4"):
        data.Samples(torch.zeros(3, 2), torch.zeros(3), torch.tensor([4]))
    with says("sizes"):
        data.Samples(torch.zeros(0, 2), torch.zeros(0), torch.tensor([], dtype=torch.int64))
    one = torch.tensor(1.0)
    with says("2 devices", "1 have test"):
        data.Devices(samples(1, 1), samples(2), 2, one, one)
    with says("[2]", "[3]"):
        data.Devices(samples(1), samples(1, features=3), 2, one, one)
