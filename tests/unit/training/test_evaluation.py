"""Evaluation equals a plain loop over devices, also with different numbers of test samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drdsgd import data
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Execution
from drdsgd.core.parallel import column_sums
from drdsgd.training.evaluation import distances, evaluate
from drdsgd.training.metrics import Metric, Spread, absolute_error, accuracy, squared_error


# different numbers of samples per device, and the same number on all devices, few or many
@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=12)
    | st.builds(lambda n, K: [n] * K, st.integers(1, 9), st.integers(1, 12)),
    st.integers(0, 2**32 - 1),
)
def test_evaluation_equals_a_plain_loop(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    K, N, flat = len(sizes), sum(sizes), Flat(nn.Linear(2, 3).double())
    theta = torch.randn(K, flat.d, generator=generator, dtype=torch.float64)
    x, y = torch.randn(N, 2, generator=generator, dtype=torch.float64), torch.randint(3, (N,), generator=generator)
    samples = data.Samples(x, y, torch.tensor(sizes))
    devices = data.Devices(samples, samples, 3, torch.tensor(2.0), torch.tensor(-1.0))

    def accuracy(row: torch.Tensor, features: torch.Tensor, labels: torch.Tensor) -> float:
        right = (flat.to_module(row)(2 * features - 1).argmax(dim=1) == labels).double()
        return 100 * float(right.mean())

    parts = list(zip(x.split(sizes), y.split(sizes), strict=True))
    for execution in ("batched", "loop"):
        features = devices.test_features(theta.dtype)
        scores = evaluate(flat, theta, theta.mean(dim=0), devices, features, execution)
        assert scores.common.tolist() == pytest.approx([accuracy(theta.mean(dim=0), *part) for part in parts])
        assert scores.local is not None and scores.local.tolist() == pytest.approx(
            [accuracy(theta[i], *part) for i, part in enumerate(parts)]
        )
        for c in range(3):
            here = y == c
            assert scores.samples[c] == here.sum()
            if here.any():
                right = scores.per_class[c] / scores.samples[c]
                assert float(right) == pytest.approx(accuracy(theta.mean(dim=0), x[here], y[here]))


@given(
    st.lists(st.integers(1, 150), min_size=1, max_size=12) | st.builds(lambda n: [n] * 5, st.integers(1, 9)),
    st.sampled_from([(), (1,), (2, 3)]),
)
def test_any_metric_of_any_targets_is_a_mean_over_the_devices_samples(sizes: list[int], shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    N, flat = sum(sizes), Flat(nn.Sequential(nn.Linear(2, math.prod(shape)), nn.Unflatten(1, shape or (1,))).double())
    if not shape:
        flat = Flat(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double())
    theta = torch.randn(len(sizes), flat.d, generator=generator, dtype=torch.float64)
    x, y = (torch.randn(N, *more, generator=generator, dtype=torch.float64) for more in ((2,), shape))
    samples = data.Samples(x, y, torch.tensor(sizes))
    devices = data.Devices(samples, samples, 0, torch.tensor(1.0), torch.tensor(0.0))
    for metric, power in ((absolute_error(), 1), (squared_error(), 2)):
        for execution in ("batched", "loop"):
            scores = evaluate(flat, theta, theta.mean(dim=0), devices, x, execution, metric=metric)
            assert scores.local is not None
            for i, (features, targets) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
                for row, found in ((theta[i], scores.local), (theta.mean(dim=0), scores.common)):
                    expected = (flat.to_module(row)(features) - targets).abs().pow(power).mean().detach()
                    assert float(found[i]) == pytest.approx(float(expected))
            assert len(scores.per_class) == len(scores.samples) == 0


def test_accuracy_of_its_own_score_is_the_same() -> None:
    """`evaluate` compares classes in a faster way."""
    devices, flat = data.synthetic(5, features=4, classes=3), Flat(nn.Linear(4, 3))
    theta, features = torch.randn(5, flat.d), devices.test_features(torch.float32)
    slow = Metric("the same", accuracy().score, "%")
    a, b = (evaluate(flat, theta, theta[0], devices, features, "batched", metric=m) for m in (None, slow))
    for one, other in zip(a, b, strict=True):
        assert one is not None and other is not None and torch.equal(one.double(), other.double())


@pytest.mark.parametrize("execution", ["batched", "loop"])
def test_without_local_models_the_common_model_has_the_same_scores(execution: Execution) -> None:
    devices, flat = data.synthetic(5, features=4, classes=3), Flat(nn.Linear(4, 3))
    theta, features = torch.randn(5, flat.d), devices.test_features(torch.float32)
    both, common = (
        evaluate(flat, theta, theta[0], devices, features, execution, local=local) for local in (True, False)
    )
    assert both.local is not None and common.local is None
    assert torch.equal(both.common, common.common) and torch.equal(both.per_class, common.per_class)


def test_many_devices_are_evaluated_in_blocks() -> None:
    K, flat = 200, Flat(nn.Linear(1, 2, bias=False))
    labels = torch.arange(K) % 2
    theta = torch.where(labels[:, None] == 1, torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    theta[7] = theta[6]  # this device answers with the other class
    samples = data.Samples(torch.ones(K, 1), labels, torch.ones(K, dtype=torch.int64))
    devices = data.Devices(samples, samples, 2, torch.tensor(1.0), torch.tensor(0.0))
    scores = evaluate(flat, theta, theta.mean(dim=0), devices, devices.test_features(theta.dtype), "batched")
    assert scores.local is not None
    local = Spread.over(scores.local.tolist())
    assert local.worst == 0 and local.per_device.index(0.0) == 7 and local.average == pytest.approx(100 * 199 / 200)


def test_consensus_distance_is_lemma_3s() -> None:
    theta = torch.randn(5, 7, dtype=torch.float64)
    J = torch.full((5, 5), 0.2, dtype=torch.float64)
    mean = column_sums(theta) / 5
    assert torch.allclose(mean, theta.mean(dim=0), rtol=1e-14)
    assert float(distances(theta, mean).mean()) == pytest.approx(
        float((theta.T @ (torch.eye(5, dtype=torch.float64) - J)).norm() ** 2) / 5
    )
    assert distances(torch.tensor([[1e30], [-1e30]]), torch.zeros(1)).isfinite().all()
