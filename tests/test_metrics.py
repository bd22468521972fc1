"""Metrics are what they say, also for devices with unequal numbers of test samples."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drdsgd import data
from drdsgd.flat import Flat
from drdsgd.metrics import Accuracy, Metrics, column_sums, distances, evaluate, standard_error


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_the_summary_over_devices(values: list[float]) -> None:
    a, lowest = Accuracy.over(values), sorted(values)
    assert a.average == pytest.approx(sum(values) / len(values))
    assert a.worst == lowest[0]
    assert a.worst10 == pytest.approx(np.mean(lowest[: math.ceil(len(values) / 10)]))
    assert a.stdev == pytest.approx(math.sqrt(sum((v - a.average) ** 2 for v in values) / len(values)), abs=1e-6)
    assert a.per_device == values


# unequal numbers of samples, and the same number on all, of few devices and of many that are asked together
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
        assert scores.local.tolist() == pytest.approx([accuracy(theta[i], *part) for i, part in enumerate(parts)])
        for c in range(3):
            here = y == c
            assert scores.samples[c] == here.sum()
            if here.any():
                right = scores.per_class[c] / scores.samples[c]
                assert float(right) == pytest.approx(accuracy(theta.mean(dim=0), x[here], y[here]))


def test_many_devices_are_evaluated_in_blocks() -> None:
    K, flat = 200, Flat(nn.Linear(1, 2, bias=False))
    labels = torch.arange(K) % 2
    theta = torch.where(labels[:, None] == 1, torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    theta[7] = theta[6]  # this device answers with the other class
    samples = data.Samples(torch.ones(K, 1), labels, torch.ones(K, dtype=torch.int64))
    devices = data.Devices(samples, samples, 2, torch.tensor(1.0), torch.tensor(0.0))
    scores = evaluate(flat, theta, theta.mean(dim=0), devices, devices.test_features(theta.dtype), "batched")
    local = Accuracy.over(scores.local.tolist())
    assert local.worst == 0 and local.per_device.index(0.0) == 7 and local.average == pytest.approx(100 * 199 / 200)


def test_consensus_distance_is_lemma_2s() -> None:
    theta = torch.randn(5, 7, dtype=torch.float64)
    J = torch.full((5, 5), 0.2, dtype=torch.float64)
    mean = column_sums(theta) / 5
    assert torch.allclose(mean, theta.mean(dim=0), rtol=1e-14)
    assert float(distances(theta, mean).mean()) == pytest.approx(
        float((theta.T @ (torch.eye(5, dtype=torch.float64) - J)).norm() ** 2) / 5
    )
    assert distances(torch.tensor([[1e30], [-1e30]]), torch.zeros(1)).isfinite().all()


def test_standard_error() -> None:
    assert standard_error([2.0, 4.0, 9.0]) == pytest.approx(np.std([2, 4, 9], ddof=1) / math.sqrt(3))
    assert math.isnan(standard_error([1.0]))


def test_metrics_survive_json() -> None:
    a = Accuracy.over([50.0, 75.0])
    metrics = Metrics(3, a, a, [60.0, None], 0.5, 1.5, [1.0, 2.0], 10, 0.1)
    assert Metrics.from_json(json.loads(json.dumps(metrics.to_json()))) == metrics
