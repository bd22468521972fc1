"""Metrics, and their summaries over devices and seeds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drdsgd.errors import InputError
from drdsgd.training.metrics import (
    Metric,
    Metrics,
    Spread,
    absolute_error,
    accuracy,
    standard_error,
)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_of_an_error_the_highest_is_the_worst(values: list[float]) -> None:
    error, score = Spread.over(values, higher_is_better=False), Spread.over([-v for v in values])
    assert error.worst == -score.worst == max(values)
    assert error.worst10 == pytest.approx(-score.worst10) and error.stdev == pytest.approx(score.stdev)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_the_summary_over_devices(values: list[float]) -> None:
    a, lowest = Spread.over(values), sorted(values)
    assert a.average == pytest.approx(sum(values) / len(values))
    assert a.worst == lowest[0]
    assert a.worst10 == pytest.approx(np.mean(lowest[: math.ceil(len(values) / 10)]))
    assert a.stdev == pytest.approx(math.sqrt(sum((v - a.average) ** 2 for v in values) / len(values)), abs=1e-6)
    assert a.per_device == values


@pytest.mark.parametrize(
    ("metric", "outputs", "y", "says"),
    [
        (absolute_error(), torch.zeros(4, 1), torch.zeros(4), r"outputs \[4, 1\] and targets \[4\].*Metric"),
        (accuracy(), torch.zeros(4, 3), torch.zeros(4), "targets are floats"),
        (Metric("mine", lambda o, y: (o - y).mean()), torch.zeros(4), torch.zeros(4), r"mine must give.*\[4\].* \[\]"),
        (Metric("mine", lambda o, y: o @ y), torch.zeros(4, 3), torch.zeros(4), "mine fails for outputs.*"),
    ],
)
def test_a_metric_that_does_not_fit_is_told(metric: Metric, outputs: torch.Tensor, y: torch.Tensor, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        metric.check(outputs, y)
    assert "\n" not in str(caught.value)


def test_standard_error() -> None:
    assert standard_error([2.0, 4.0, 9.0]) == pytest.approx(np.std([2, 4, 9], ddof=1) / math.sqrt(3))
    assert math.isnan(standard_error([1.0]))


def test_metrics_survive_json() -> None:
    a = Spread.over([50.0, 75.0])
    metrics = Metrics(3, a, a, [60.0, None], 0.5, 1.5, [1.0, 2.0], 10, 0.1)
    assert Metrics.from_json(json.loads(json.dumps(metrics.to_json()))) == metrics
