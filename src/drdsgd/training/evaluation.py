"""One evaluation: the metric of the common model and of every device's own model, and the distances between them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Execution, predict
from drdsgd.core.parallel import Each, blocks
from drdsgd.data.devices import Devices
from drdsgd.training.metrics import Metric, accuracy

__all__ = ["Scores", "distances", "evaluate"]

# Samples per forward pass: enough to keep a core busy, few enough for its cache. Models that run device by device have
# convolutions, whose outputs are large.
TOGETHER = {"batched": 1024, "loop": 128}
# bytes of the models that are compared with the mean in one step
COMPARED_BYTES = 4 * 2**20
# bytes of the models that are evaluated together: they are copied when some devices run out of samples
ASKED_BYTES = 32 * 2**20


def distances(theta: Tensor, common: Tensor, each: Each = map) -> Tensor:
    """The squared distances of the models theta [n, d] from a common one [d]: `||theta_i - common||^2`, float64 [n].

    A distance is not finite if its model or the common one is not finite.

    >>> distances(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1.0, 0.0]))
    tensor([1., 1.], dtype=torch.float64)
    """

    def squares(some: slice) -> Tensor:
        # in float64: before a run diverges, squared distances may overflow float32
        distance: Tensor = torch.linalg.vector_norm(theta[some] - common, dim=1, dtype=torch.float64)
        return distance.square()

    return torch.cat(list(each(squares, blocks(len(theta), COMPARED_BYTES // theta[0].nbytes))))


class Scores(NamedTuple):
    """The metric of the common and of the local models, [n] each; the common model's sum and samples per class, [C]."""

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
    """The metric of a common model `mean` [d] and of the devices' models theta [n, d] on the devices' test samples.

    `features` are the test samples as model input (`Devices.test_features`).
    """
    metric = metric or accuracy()
    test, samples = data.test, TOGETHER[execution]
    sizes, starts = test.sizes.tolist(), test.starts.tolist()
    # for accuracy an answer is a class, and all are compared with y at the end; other metrics are scored at once
    classes = metric == accuracy()
    common, local = (test.y if classes else theta).new_empty(2, len(test.y))  # answers to every sample

    def answers(models: Tensor, x: Tensor, here: slice | Tensor) -> Tensor:
        """The answers [n, m] of models [n, d] to their devices' samples x [n, m, ...], which are those at `here`."""
        outputs = predict(flat, models, x, execution)
        if classes:
            return outputs.argmax(dim=-1)
        return metric.score(outputs.flatten(0, 1), test.y[here].view(-1, *test.y.shape[1:])).view(x.shape[:2])

    @torch.no_grad()  # here, because it applies to the current thread only
    def ask(some: slice) -> None:
        n, first, last = some.stop - some.start, starts[some.start], starts[some.stop - 1] + sizes[some.stop - 1]
        most, least = max(sizes[some]), min(sizes[some])
        # samples in columns; devices without further samples drop out
        for columns in blocks(most, max(1, samples // n)):
            if n == 1 or columns.stop - columns.start == least == most:  # they are contiguous
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
        for part in blocks(last - first, samples):  # now, while the samples are in the cache
            here = slice(first + part.start, first + part.stop)
            common[here] = answers(mean[None], features[here][None], here)[0]

    together = min(samples * data.K // len(test.y), ASKED_BYTES // theta[0].nbytes)
    for _ in each(ask, blocks(data.K, together)):
        pass
    device = torch.repeat_interleave(test.sizes)  # of each sample
    scores = [100.0 * (all_ == test.y) if classes else all_ for all_ in (common, local)]
    means = [torch.bincount(device, one.double(), data.K) / test.sizes for one in scores]
    # without classes both are empty
    y, score = (test.y, scores[0].double()) if data.classes else (device[:0], means[0][:0])
    per_class, there = torch.bincount(y, score, data.classes), torch.bincount(y, minlength=data.classes)
    return Scores(means[0], means[1], per_class, there)
