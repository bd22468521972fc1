"""How well the devices are served: accuracy of two kinds of model, agreement, and what it cost.

Accuracies are in percent, each device's on its own test samples. Two models are scored: the **consensus** model,
the mean of all devices' models, which is the headline; and each device's **local** model after mixing. A local
model scored on its own few classes rewards bad consensus, so both are always recorded.

What is scored is a value, `Metric`: accuracy where targets are classes, and the absolute error where they are numbers,
unless you give another. A device's number is the mean over its samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Execution, predict
from drdsgd.core.parallel import Each, blocks
from drdsgd.data.devices import Devices
from drdsgd.errors import InputError, one_line

__all__ = [
    "Metric",
    "Metrics",
    "Scores",
    "Spread",
    "absolute_error",
    "accuracy",
    "column_sums",
    "distances",
    "evaluate",
    "squared_error",
    "standard_error",
]

# An evaluation's forward pass takes about so many samples: enough to keep a core busy, few enough for its cache.
# Where devices go one by one, they have convolutions, whose outputs are large.
TOGETHER = {"batched": 1024, "loop": 128}
# columns of theta that are summed at once, and how much of the models is then compared with the mean at once
SUMMED_COLUMNS, COMPARED_BYTES = 2**14, 4 * 2**20
# models that are asked together: they are copied where some have no more samples than others
ASKED_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Metric:
    """What is measured of a model: `score(outputs [m, ...], y [m, ...])` is one number per sample, [m].

    Of your own, here the share of predictions that are off by no more than 10:

    >>> close = Metric("within 10", lambda outputs, y: 100.0 * ((outputs - y).abs() <= 10), "%")
    >>> close.score(torch.tensor([1.0, 20.0]), torch.tensor([3.0, 3.0]))
    tensor([100.,   0.])
    """

    name: str
    score: Callable[[Tensor, Tensor], Tensor]
    unit: str = ""
    higher_is_better: bool = True

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Refuse one that does not give one number for every sample."""
        if self == accuracy() and y.is_floating_point():
            raise InputError("accuracy is for class numbers, but targets are floats: leave it out, or give integers")
        try:
            with torch.no_grad():
                scores = self.score(outputs, y)
        except InputError:
            raise
        except Exception as error:  # whatever somebody's own code raises
            raise InputError(
                f"the metric {self.name} does not take outputs {list(outputs.shape)} with targets {list(y.shape)}: "
                f"{one_line(error)}"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != (len(y),):
            got = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(
                f"the metric {self.name} must give one number per sample, a tensor [{len(y)}]: it gave {got}; "
                "a device's mean over them is taken here"
            )


def _right(outputs: Tensor, y: Tensor) -> Tensor:
    return 100.0 * (outputs.argmax(dim=-1) == y)  # as `evaluate` does it


def _difference(outputs: Tensor, y: Tensor) -> Tensor:
    """[m, numbers per sample]."""
    if outputs.shape != y.shape:  # [m, 1] and [m] would be broadcast to [m, m]
        raise InputError(
            f"an error is the difference of outputs {list(outputs.shape)} and targets {list(y.shape)}, which must have "
            "one shape: change the model or y, or give a metric of your own, drdsgd.metrics.Metric(name, score)"
        )
    return (outputs - y).reshape(len(y), -1)


def _absolute(outputs: Tensor, y: Tensor) -> Tensor:
    return _difference(outputs, y).abs().mean(dim=1)


def _squared(outputs: Tensor, y: Tensor) -> Tensor:
    return _difference(outputs, y).square().mean(dim=1)


def accuracy() -> Metric:
    """The share of samples whose class has the highest score, in percent: the default where targets are classes.

    >>> accuracy().score(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([100.,   0.])
    """
    return Metric("accuracy", _right, "%")


def absolute_error(unit: str = "") -> Metric:
    """`|output - y|`, the mean over a sample's numbers: the default where targets are floats. Lower is better.

    >>> absolute_error("mm").score(torch.tensor([3.0]), torch.tensor([5.0]))
    tensor([2.])
    """
    return Metric("absolute error", _absolute, unit, higher_is_better=False)


def squared_error(unit: str = "") -> Metric:
    """`(output - y)^2`, the mean over a sample's numbers. Lower is better.

    >>> squared_error().score(torch.tensor([3.0]), torch.tensor([5.0]))
    tensor([4.])
    """
    return Metric("squared error", _squared, unit, higher_is_better=False)


@dataclass(frozen=True)
class Spread:
    """Test accuracy over devices, in percent; or another metric, in its unit.

    `worst10` is the mean of the ceil(K / 10) worst; `stdev` the population standard deviation over devices.

    >>> Spread.over([90.0, 70.0, 80.0])
    Spread(average=80.0, worst=70.0, worst10=70.0, stdev=8.16496580927726, per_device=[90.0, 70.0, 80.0])
    >>> Spread.over([1.0, 2.0], higher_is_better=False).worst  # of an error
    2.0
    """

    average: float
    worst: float
    worst10: float
    stdev: float
    per_device: list[float]

    @staticmethod
    def over(per_device: Sequence[float], higher_is_better: bool = True) -> Spread:
        """The summary of one accuracy per device."""
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

    `per_class` is the consensus model's accuracy per class (None for a class without test samples; empty where there
    are no classes).
    `consensus_distance` is `1/K sum_i ||theta_i - mean theta||^2`. `train_loss` is the mean over devices of their mini-
    batch loss in the last round (at round 0: in the first, before its step), which are `losses` (None in records of
    older versions), and `weights` are those that their gradients had in it. `floats_sent` counts all numbers sent over
    all links since the start, `seconds` the time spent in rounds (not in evaluations). Where several processes share
    the devices, `bytes_between_ranks` counts what they sent to each other for it, and `exchange_seconds` is how long
    one of them, on average, was busy with that.
    """

    round: int
    consensus: Spread
    local: Spread
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
        """As plain values for a record; `Metrics.from_json` reads them back."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None}

    @staticmethod
    def from_json(values: dict[str, Any]) -> Metrics:
        """Metrics from a record; a `ValueError` where a key is missing or a value is of another type."""
        return _adapter().validate_python(values)


@functools.cache  # slow to make
def _adapter() -> TypeAdapter[Metrics]:
    return TypeAdapter(Metrics)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean over seeds, `s / sqrt(n)` with the sample deviation s; nan for one value.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def column_sums(theta: Tensor, each: Each = map) -> Tensor:
    """The sum [d] of the models theta [n, d].

    >>> column_sums(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([2., 0.])
    """
    return torch.cat(list(each(lambda some: theta[:, some].sum(dim=0), blocks(theta.shape[1], SUMMED_COLUMNS))))


def distances(theta: Tensor, common: Tensor, each: Each = map) -> Tensor:
    """How far the models theta [n, d] are from a common one [d]: `||theta_i - common||^2`, [n] in float64.

    One is not finite where its model or the common one is not.

    >>> distances(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1.0, 0.0]))
    tensor([1., 1.], dtype=torch.float64)
    """

    def squares(some: slice) -> Tensor:
        # in double: a run about to diverge has distances whose square is beyond float32
        distance: Tensor = torch.linalg.vector_norm(theta[some] - common, dim=1, dtype=torch.float64)
        return distance.square()

    return torch.cat(list(each(squares, blocks(len(theta), COMPARED_BYTES // theta[0].nbytes))))


class Scores(NamedTuple):
    """The metric of the common and of the local models, [n] each; sum of the common's and samples per class, [C]."""

    common: Tensor
    local: Tensor
    per_class: Tensor
    samples: Tensor


def evaluate(
    flat: Flat,
    theta: Tensor,
    mean: Tensor,
    data: Devices,
    features: Tensor,
    execution: Execution,
    each: Each = map,
    metric: Metric | None = None,
) -> Scores:
    """How well a common model `mean` [d] and the devices' own, theta [n, d], do on the devices' test samples.

    `features` are those of the test samples, as the model takes them (`Devices.test_features`).
    """
    metric = metric or accuracy()
    test, samples = data.test, TOGETHER[execution]
    sizes, starts = test.sizes.tolist(), test.starts.tolist()
    # an answer is a class, and all are compared at once with what is right; any other metric is scored on the way
    classes = metric == accuracy()
    common, local = (test.y if classes else theta).new_empty(2, len(test.y))  # of the consensus model, the local ones

    def answers(models: Tensor, x: Tensor, here: slice | Tensor) -> Tensor:
        """Of every device's model [n, d] to its samples x [n, m, ...], which are those `here`: [n, m]."""
        outputs = predict(flat, models, x, execution)
        if classes:
            return outputs.argmax(dim=-1)
        return metric.score(outputs.flatten(0, 1), test.y[here].view(-1, *test.y.shape[1:])).view(x.shape[:2])

    @torch.no_grad()  # here, because it holds for one thread only
    def ask(some: slice) -> None:
        n, first, last = some.stop - some.start, starts[some.start], starts[some.stop - 1] + sizes[some.stop - 1]
        most, least = max(sizes[some]), min(sizes[some])
        # samples in columns; devices that have no more drop out
        for columns in blocks(most, max(1, samples // n)):
            if n == 1 or columns.stop - columns.start == least == most:  # they lie one after the other
                here = slice(first + columns.start, starts[some.stop - 1] + columns.stop)
                local[here] = answers(theta[some], features[here].unflatten(0, (n, -1)), here).flatten()
                continue
            column = torch.arange(columns.start, columns.stop, device=theta.device)
            rows = (test.sizes[some] > columns.start).nonzero().flatten()
            there = column < test.sizes[some][rows, None]
            where = (test.starts[some][rows, None] + column).clamp(max=len(test.y) - 1)  # [r, w]
            x = features.index_select(0, where.flatten()).unflatten(0, where.shape)
            models = theta[some] if len(rows) == n else theta[some][rows]  # a copy only where some have dropped out
            local[where[there]] = answers(models, x, where)[there].to(local.dtype)
        for part in blocks(last - first, samples):  # now, while they are in the cache
            here = slice(first + part.start, first + part.stop)
            common[here] = answers(mean[None], features[here][None], here)[0]

    together = min(samples * data.K // len(test.y), ASKED_BYTES // theta[0].nbytes)
    for _ in each(ask, blocks(data.K, together)):
        pass
    device = torch.repeat_interleave(test.sizes)  # of every sample
    scores = [100.0 * (all_ == test.y) if classes else all_ for all_ in (common, local)]
    means = [torch.bincount(device, one.double(), data.K) / test.sizes for one in scores]
    # of no classes, nothing
    y, score = (test.y, scores[0].double()) if data.classes else (device[:0], means[0][:0])
    per_class, there = torch.bincount(y, score, data.classes), torch.bincount(y, minlength=data.classes)
    return Scores(means[0], means[1], per_class, there)
