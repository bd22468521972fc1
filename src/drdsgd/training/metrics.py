"""What an evaluation measures: how well each device is served, how far models differ, and the cost.

A `Metric` gives one number per sample: by default accuracy (in percent) for classes and the absolute error for floats.
A device's value is the mean over its own test samples. Two kinds of model are evaluated: the **consensus** model, which
is the mean of all devices' models and the headline, and each device's **local** model after mixing. A local model that
is evaluated on its own few classes rewards bad consensus, so both are recorded: local models at every n-th
evaluation (`local_every`) and at the last, the consensus model at every one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from drdsgd.errors import InputError, one_line

__all__ = ["Metric", "Metrics", "Spread", "absolute_error", "accuracy", "squared_error", "standard_error"]


@dataclass(frozen=True)
class Metric:
    """A measure of a model's outputs: `score(outputs [m, ...], y [m, ...])` is one number per sample, [m].

    A metric of your own, the share of predictions within 10 of the target:

    >>> close = Metric("within 10", lambda outputs, y: 100.0 * ((outputs - y).abs() <= 10), "%")
    >>> close.score(torch.tensor([1.0, 20.0]), torch.tensor([3.0, 3.0]))
    tensor([100.,   0.])
    """

    name: str
    score: Callable[[Tensor, Tensor], Tensor]
    unit: str = ""
    higher_is_better: bool = True

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Raise `InputError` unless `score` gives one number per sample."""
        if self == accuracy() and y.is_floating_point():
            raise InputError(
                "accuracy needs class numbers, but targets are floats: use another metric, or give integers"
            )
        try:
            with torch.no_grad():
                scores = self.score(outputs, y)
        except InputError:
            raise
        except Exception as error:  # a user's own code may raise anything
            raise InputError(
                f"the metric {self.name} fails for outputs {list(outputs.shape)} with targets {list(y.shape)}: "
                f"{one_line(error)}"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != (len(y),):
            got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(
                f"the metric {self.name} must give one number per sample, a tensor [{len(y)}]: it gave {got}; do not "
                "average over samples"
            )


def _right(outputs: Tensor, y: Tensor) -> Tensor:
    return 100.0 * (outputs.argmax(dim=-1) == y)  # `evaluate` computes the same


def _difference(outputs: Tensor, y: Tensor) -> Tensor:
    """[m, numbers per sample]."""
    if outputs.shape != y.shape:  # [m, 1] and [m] would be broadcast to [m, m]
        raise InputError(
            f"outputs {list(outputs.shape)} and targets {list(y.shape)} must have one shape to be subtracted: change "
            "the model or y, or give a metric of your own, drdsgd.metrics.Metric(name, score)"
        )
    return (outputs - y).reshape(len(y), -1)


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return _difference(outputs, y).abs().mean(dim=1)


def _squared(outputs: Tensor, y: Tensor) -> Tensor:
    return _difference(outputs, y).square().mean(dim=1)


def accuracy() -> Metric:
    """The share of samples whose class has the highest output, in percent: the default if targets are classes.

    >>> accuracy().score(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([100.,   0.])
    """
    return Metric("accuracy", _right, "%")


def absolute_error(unit: str = "") -> Metric:
    """`|output - y|`, averaged over a sample's numbers: the default if targets are floats. Lower is better.

    >>> absolute_error("mm").score(torch.tensor([3.0]), torch.tensor([5.0]))
    tensor([2.])
    """
    return Metric("absolute error", _absolute, unit, higher_is_better=False)


def squared_error(unit: str = "") -> Metric:
    """`(output - y)^2`, averaged over a sample's numbers. Lower is better.

    >>> squared_error().score(torch.tensor([3.0]), torch.tensor([5.0]))
    tensor([4.])
    """
    return Metric("squared error", _squared, unit, higher_is_better=False)


@dataclass(frozen=True)
class Spread:
    """A metric over K devices, in the metric's unit (accuracy: percent).

    `worst` is the worst device's value and `worst10` the mean of the ceil(K / 10) worst values. `stdev` is the
    population standard deviation over devices.

    >>> Spread.over([90.0, 70.0, 80.0])
    Spread(average=80.0, worst=70.0, worst10=70.0, stdev=8.16496580927726, per_device=[90.0, 70.0, 80.0])
    >>> Spread.over([1.0, 2.0], higher_is_better=False).worst  # for an error
    2.0
    """

    average: float
    worst: float
    worst10: float
    stdev: float
    per_device: list[float]

    @staticmethod
    def over(per_device: Sequence[float], higher_is_better: bool = True) -> Spread:
        """The summary of one value per device."""
        values = np.sort(np.asarray(per_device, dtype=np.float64))
        few = math.ceil(len(values) / 10)
        worst = values[:few] if higher_is_better else values[-few:]
        return Spread(
            average=float(values.mean()),
            worst=float(worst[0] if higher_is_better else worst[-1]),
            worst10=float(worst.mean()),
            stdev=float(values.std()),
            per_device=[float(v) for v in per_device],
        )


@dataclass(frozen=True)
class Metrics:
    """One evaluation, after `round` rounds.

    `per_class` is the consensus model's metric per class (None for a class without test samples; empty if there are no
    classes). `consensus_distance` is `1/K sum_i ||theta_i - mean theta||^2`. `losses` are the devices' mini-batch
    losses in the last round (for round 0: in the first round, before its step; None in records of older versions), and
    `train_loss` is their mean. `weights` are the weights of the devices' gradients in that round. `floats_sent` counts
    all numbers sent over all links since the start. `seconds` is the time spent in rounds, without evaluations. If
    several processes share the devices, `bytes_between_ranks` counts what they sent to each other, and
    `exchange_seconds` is the time that this took, averaged over processes. `local` is None if only the consensus model
    was evaluated.
    """

    round: int
    consensus: Spread
    local: Spread | None
    per_class: list[float | None]
    consensus_distance: float
    train_loss: float
    weights: list[float]
    floats_sent: int
    seconds: float
    losses: list[float] | None = None
    bytes_between_ranks: int | None = None
    exchange_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values for a record, without optional ones that are None; `Metrics.from_json` reads them."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or name == "local"}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Metrics:
        """Metrics from a record; raises `ValueError` if a key is missing or a value has the wrong type."""
        return _adapter().validate_python(values)


@functools.cache  # slow to construct
def _adapter() -> TypeAdapter[Metrics]:
    return TypeAdapter(Metrics)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean over seeds, `s / sqrt(n)` with the sample deviation s; nan if there is only one value.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
