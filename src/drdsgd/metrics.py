"""How well the devices are served: accuracy of two kinds of model, agreement, and what it cost.

Accuracies are in percent, each device's on its own test samples. Two models are scored: the **consensus** model,
the mean of all devices' models, which is the headline; and each device's **local** model after mixing. A local
model scored on its own few classes rewards bad consensus, so both are always recorded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from drdsgd.data import Devices
from drdsgd.flat import Flat
from drdsgd.gradients import Execution, predict
from drdsgd.parallel import Each, blocks

__all__ = ["Accuracy", "Metrics", "consensus_distance", "evaluate", "standard_error"]

# An evaluation's forward pass takes about so many samples: enough to keep a core busy, few enough for its cache.
# Where devices go one by one, they have convolutions, whose outputs are large.
TOGETHER = {"batched": 1024, "loop": 128}


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy over devices, in percent.

    `worst10` is the mean of the ceil(K / 10) lowest; `stdev` the population standard deviation over devices.

    >>> Accuracy.over([90.0, 70.0, 80.0])
    Accuracy(average=80.0, worst=70.0, worst10=70.0, stdev=8.16496580927726, per_device=[90.0, 70.0, 80.0])
    """

    average: float
    worst: float
    worst10: float
    stdev: float
    per_device: list[float]

    @staticmethod
    def over(per_device: Sequence[float]) -> Accuracy:
        """The summary of one accuracy per device."""
        values = np.sort(np.asarray(per_device, dtype=np.float64))
        lowest = values[: math.ceil(len(values) / 10)]
        return Accuracy(
            average=float(values.mean()),
            worst=float(values[0]),
            worst10=float(lowest.mean()),
            stdev=float(values.std()),
            per_device=[float(v) for v in per_device],
        )


@dataclass(frozen=True)
class Metrics:
    """One evaluation, after `round` rounds.

    `per_class` is the consensus model's accuracy per class (None for a class without test samples).
    `consensus_distance` is `1/K sum_i ||theta_i - mean theta||^2`. `train_loss` is the mean over devices of their
    mini-batch loss in the last round (at round 0: in the first, before its step). `floats_sent` counts all numbers
    sent over all links since the start, `seconds` the time spent in rounds (not in evaluations).
    """

    round: int
    consensus: Accuracy
    local: Accuracy
    per_class: list[float | None]
    consensus_distance: float
    train_loss: float
    floats_sent: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As plain values for a record; `Metrics.from_json` reads them back."""
        return asdict(self)

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


def consensus_distance(theta: Tensor, mean: Tensor, each: Each = map) -> float:
    """Mean squared distance of the devices' models from their mean, `1/K ||theta (I - J)||_F^2`; theta [K, d].

    Not finite exactly if theta is not.

    >>> consensus_distance(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1.0, 0.0]))
    1.0
    """

    def squares(some: slice) -> Tensor:
        # in double: a run about to diverge has distances whose square is beyond float32
        distance: Tensor = torch.linalg.vector_norm(theta[some] - mean, dim=1, dtype=torch.float64)
        return distance.square()

    return float(torch.cat(list(each(squares, blocks(len(theta), 4)))).mean())


def evaluate(
    flat: Flat, theta: Tensor, mean: Tensor, data: Devices, features: Tensor, execution: Execution, each: Each = map
) -> tuple[Accuracy, Accuracy, list[float | None]]:
    """Accuracy of the consensus and of the local models of theta [K, d], and the consensus model's per class.

    `mean` [d] is the consensus model, `features` are those of the test samples, as the model takes them
    (`Devices.test_features`).
    """
    test, samples = data.test, TOGETHER[execution]
    sizes, starts = test.sizes.tolist(), test.starts.tolist()
    answers = test.y.new_empty(2, len(test.y))  # of both kinds of model

    @torch.no_grad()  # here, because it holds for one thread only
    def ask(job: tuple[bool, slice]) -> None:
        of_devices, some = job
        if of_devices:
            local(some)
        else:
            answers[0, some] = predict(flat, mean[None], features[some][None], execution)[0].argmax(dim=-1)

    def local(some: slice) -> None:
        most, least = max(sizes[some]), min(sizes[some])
        # samples in columns; devices that have no more drop out
        for columns in blocks(most, max(1, samples // (some.stop - some.start))):
            begin, end = starts[some.start] + columns.start, starts[some.stop - 1] + columns.stop
            if some.stop == some.start + 1 or columns.stop - columns.start == least == most:  # one after the other
                x = features[begin:end].unflatten(0, (some.stop - some.start, -1))
                answers[1, begin:end] = predict(flat, theta[some], x, execution).argmax(dim=-1).flatten()
                continue
            column = torch.arange(columns.start, columns.stop, device=theta.device)
            rows = (test.sizes[some] > columns.start).nonzero().flatten()
            there = column < test.sizes[some][rows, None]
            where = (test.starts[some][rows, None] + column).clamp(max=len(test.y) - 1)  # [r, w]
            x = features.index_select(0, where.flatten()).unflatten(0, where.shape)
            models = theta[some] if len(rows) == some.stop - some.start else theta[some][rows]  # a copy if need be
            answers[1, where[there]] = predict(flat, models, x, execution).argmax(dim=-1)[there]

    together = max(1, samples * data.K // len(test.y))
    jobs = [(True, some) for some in blocks(data.K, together)] + [
        (False, some) for some in blocks(len(test.y), samples)
    ]
    for _ in each(ask, jobs):
        pass
    right = answers == test.y
    device = torch.repeat_interleave(test.sizes)  # of every sample
    common, own = (
        Accuracy.over((100.0 * torch.bincount(device[hit], minlength=data.K) / test.sizes.double()).tolist())
        for hit in right
    )
    hits, all_samples = (torch.bincount(y, minlength=data.classes) for y in (test.y[right[0]], test.y))
    return common, own, _percent(hits, all_samples)


def _percent(hits: Tensor, sizes: Tensor) -> list[float | None]:
    return [100.0 * h / n if n else None for h, n in zip(hits.tolist(), sizes.tolist(), strict=True)]
