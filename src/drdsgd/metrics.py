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

__all__ = ["Accuracy", "Metrics", "consensus_distance", "correct", "evaluate", "standard_error"]

# An evaluation's forward pass takes so many devices, and so many samples of them: enough to keep a core busy, few
# enough for its cache. Where devices go one by one, they have convolutions, whose outputs are large.
TOGETHER = {"batched": (8, 1024), "loop": (1, 128)}


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


def consensus_distance(theta: Tensor, each: Each = map) -> float:
    """Mean squared distance of the devices' models from their mean, `1/K ||theta (I - J)||_F^2`; theta [K, d].

    Not finite exactly if theta is not.

    >>> consensus_distance(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    1.0
    """
    mean = theta.mean(dim=0)

    def squares(some: slice) -> Tensor:
        # in double: a run about to diverge has distances whose square is beyond float32
        distance: Tensor = torch.linalg.vector_norm(theta[some] - mean, dim=1, dtype=torch.float64)
        return distance.square()

    return float(torch.cat(list(each(squares, blocks(len(theta), 8)))).mean())


def correct(output: Tensor, y: Tensor) -> Tensor:
    """Which samples are classified rightly: scores [..., C], labels [...] -> bool [...].

    >>> correct(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([ True, False])
    """
    return output.argmax(dim=-1) == y


def evaluate(
    flat: Flat, theta: Tensor, data: Devices, features: Tensor, execution: Execution, each: Each = map
) -> tuple[Accuracy, Accuracy, list[float | None]]:
    """Accuracy of the consensus and of the local models of theta [K, d], and the consensus model's per class.

    `features` are those of the test samples, as the model takes them (`Devices.test_features`).
    """
    together, samples = TOGETHER[execution]
    test, consensus = data.test, flat.views(theta.mean(dim=0))

    @torch.no_grad()  # here, because it holds for one thread only
    def hits(some: slice) -> tuple[Tensor, Tensor]:
        """Right answers on some devices' test samples: of both kinds of model [2, n]; of the consensus by class [C]."""
        sizes, starts, own = test.sizes[some], test.starts[some], theta[some]
        per_device = sizes.new_zeros(2, len(sizes))
        per_class = sizes.new_zeros(data.classes)
        # samples in columns; devices that have no more drop out
        for columns in blocks(int(sizes.max()), samples // len(sizes)):
            rows = (sizes > columns.start).nonzero().flatten()
            column = torch.arange(columns.start, columns.stop, device=sizes.device)
            there = column < sizes[rows, None]  # [r, w]
            where = (starts[rows, None] + column).clamp(max=len(test.y) - 1)
            x, y = features.index_select(0, where.flatten()), test.y[where]
            common = correct(flat.apply(consensus, x), y.flatten()).view_as(y) & there
            models = own if len(rows) == len(own) else own[rows]  # without a copy where all take part
            local = correct(predict(flat, models, x.unflatten(0, where.shape), execution), y) & there
            per_device[:, rows] += torch.stack([common.sum(dim=1), local.sum(dim=1)])
            per_class += torch.bincount(y[common], minlength=data.classes)
        return per_device, per_class

    of_devices, of_classes = zip(*each(hits, blocks(data.K, together)), strict=True)
    per_device, per_class = torch.cat(of_devices, dim=1), torch.stack(of_classes).sum(dim=0)
    common, local = (Accuracy.over((100.0 * hit / test.sizes).tolist()) for hit in per_device.double())
    return common, local, _percent(per_class, torch.bincount(test.y, minlength=data.classes))


def _percent(hits: Tensor, sizes: Tensor) -> list[float | None]:
    return [100.0 * h / n if n else None for h, n in zip(hits.tolist(), sizes.tolist(), strict=True)]
