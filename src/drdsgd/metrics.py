"""How well the devices are served: accuracy of two kinds of model, agreement, and what it cost.

Accuracies are in percent, each device's on its own test samples. Two models are scored: the **consensus** model,
the mean of all devices' models, which is the headline; and each device's **local** model after mixing. A local
model scored on its own few classes rewards bad consensus, so both are always recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drdsgd.data import Devices
from drdsgd.flat import Flat
from drdsgd.gradients import Execution
from drdsgd.parallel import Each, blocks

__all__ = ["Accuracy", "Metrics", "consensus_distance", "correct", "evaluate", "standard_error"]

# samples in one forward pass of an evaluation: enough to keep the cores busy, few enough for the memory of a CNN
CHUNK = 1024


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
    loss on this round's batch. `floats_sent` counts all numbers sent over all links since the start, `seconds`
    the time spent in rounds (not in evaluations).
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
        """Metrics from a record; missing or unknown keys are a TypeError or KeyError."""
        kinds = {kind: Accuracy(**values[kind]) for kind in ("consensus", "local")}
        return Metrics(**{**values, **kinds})


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean over seeds, `s / sqrt(n)` with the sample deviation s; nan for one value.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def consensus_distance(theta: Tensor) -> float:
    """Mean squared distance of the devices' models from their mean, `1/K ||theta (I - J)||_F^2`; theta [K, d].

    >>> consensus_distance(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    1.0
    """
    # in double: a run about to diverge has distances whose square is beyond float32
    distance = torch.linalg.vector_norm(theta - theta.mean(dim=0), dim=1, dtype=torch.float64)
    return float(distance.square().mean())


def correct(output: Tensor, y: Tensor) -> Tensor:
    """Which samples are classified rightly: scores [..., C], labels [...] -> bool [...].

    >>> correct(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([ True, False])
    """
    return output.argmax(dim=-1) == y


@torch.no_grad()
def evaluate(
    flat: Flat, theta: Tensor, data: Devices, execution: Execution, each: Each = map
) -> tuple[Accuracy, Accuracy, list[float | None]]:
    """Accuracy of the consensus and of the local models of theta [K, d], and the consensus model's per class."""
    test = data.test
    scale, shift = data.scale.to(theta.dtype), data.shift.to(theta.dtype)

    def features(x: Tensor) -> Tensor:
        return x.to(theta.dtype, copy=True).mul_(scale).add_(shift)

    parameters = flat.views(theta.mean(dim=0))

    @torch.no_grad()  # holds for a thread, not for those it starts
    def consensus_hits(some: slice) -> Tensor:
        return correct(flat.apply(parameters, features(test.x[some])), test.y[some])

    hits = torch.cat(list(each(consensus_hits, blocks(len(test.y), CHUNK))))
    device = torch.repeat_interleave(torch.arange(data.K, device=hits.device), test.sizes)
    consensus = _percent(_count(device, hits, data.K), test.sizes)
    per_class = _percent(_count(test.y, hits, data.classes), torch.bincount(test.y, minlength=data.classes))

    # every device's own model on its own samples: devices in blocks, samples in columns, devices with fewer drop out
    @torch.no_grad()
    def local_hits(some: slice) -> Tensor:
        sizes, starts, own = test.sizes[some], test.starts[some], theta[some]
        hits, width = torch.zeros_like(sizes), max(1, CHUNK // len(sizes))
        for first in range(0, int(sizes.max()), width):
            rows = (sizes > first).nonzero().flatten()
            column = torch.arange(first, first + width, device=sizes.device)
            where = (starts[rows, None] + column).clamp(max=len(test.y) - 1)
            x = features(test.x.index_select(0, where.flatten()).unflatten(0, where.shape))
            models = own if len(rows) == len(own) else own[rows]  # without a copy where all take part
            right = correct(flat.forward(models, x, execution), test.y[where])
            hits[rows] += (right & (column < sizes[rows, None])).sum(dim=1)
        return hits

    local = torch.cat(list(each(local_hits, blocks(data.K, 16))))
    return (
        Accuracy.over([v for v in consensus if v is not None]),
        Accuracy.over([v for v in _percent(local, test.sizes) if v is not None]),
        per_class,
    )


def _count(group: Tensor, hits: Tensor, groups: int) -> Tensor:
    return torch.bincount(group[hits], minlength=groups)


def _percent(hits: Tensor, sizes: Tensor) -> list[float | None]:
    return [100.0 * h / n if n else None for h, n in zip(hits.tolist(), sizes.tolist(), strict=True)]
