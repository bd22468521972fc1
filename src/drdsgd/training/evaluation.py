"""One evaluation: the metric of the common model and of every device's own model, and the distances between them.

An `Evaluator` measures a run, and refuses a run whose numbers are not finite.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from drdsgd.core.flat import Flat, aligned
from drdsgd.core.gradients import Execution, predict
from drdsgd.core.parallel import Each, blocks
from drdsgd.data.devices import Devices
from drdsgd.errors import Diverged, InputError
from drdsgd.training.metrics import Metric, Metrics, Spread, accuracy
from drdsgd.training.preparation import Prepared
from drdsgd.training.progress import Progress

__all__ = ["Evaluator", "Scores", "distances", "evaluate"]

# Samples per forward pass: enough to keep a core busy, few enough for its cache. Models that run device by device have
# convolutions, whose outputs are large; with the CNN 16 to 128 samples were measured to cost the same.
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
    """The metric of the common and of the local models, [n] each; the common model's sum and samples per class, [C].

    `local` is None if only the common model was evaluated.
    """

    common: Tensor
    local: Tensor | None
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
    *,
    local: bool = True,
) -> Scores:
    """The metric of a common model `mean` [d] and of the devices' models theta [n, d] on the devices' test samples.

    `features` are the test samples as model input (`Devices.test_features`). Without `local`, only the common model is
    evaluated.
    """
    metric = metric or accuracy()
    test, samples = data.test, TOGETHER[execution]
    sizes, starts = test.sizes.tolist(), test.starts.tolist()
    # for accuracy an answer is a class, and all are compared with y at the end; other metrics are scored at once
    classes = metric == accuracy()
    # answers to every sample, of the common and of the local models
    common, own = (test.y if classes else theta).new_empty(2, len(test.y))

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
        for columns in blocks(most if local else 0, max(1, samples // n)):
            if n == 1 or columns.stop - columns.start == least == most:  # they are contiguous
                here = slice(first + columns.start, starts[some.stop - 1] + columns.stop)
                own[here] = answers(theta[some], features[here].unflatten(0, (n, -1)), here).flatten()
                continue
            column = torch.arange(columns.start, columns.stop, device=theta.device)
            rows = (test.sizes[some] > columns.start).nonzero().flatten()
            there = column < test.sizes[some][rows, None]
            where = (test.starts[some][rows, None] + column).clamp(max=len(test.y) - 1)  # [r, w]
            x = features.index_select(0, where.flatten()).unflatten(0, where.shape)
            models = theta[some] if len(rows) == n else theta[some][rows]  # a copy only where some have dropped out
            own[where[there]] = answers(models, x, where)[there].to(own.dtype)
        for part in blocks(last - first, samples):  # now, while the samples are in the cache
            here = slice(first + part.start, first + part.stop)
            common[here] = answers(mean[None], features[here][None], here)[0]

    together = min(samples * data.K // len(test.y), ASKED_BYTES // theta[0].nbytes)
    for _ in each(ask, blocks(data.K, together)):
        pass
    device = torch.repeat_interleave(test.sizes)  # of each sample
    scores = [100.0 * (all_ == test.y) if classes else all_ for all_ in ((common, own) if local else (common,))]
    means = [torch.bincount(device, one.double(), data.K) / test.sizes for one in scores]
    # without classes both are empty
    y, score = (test.y, scores[0].double()) if data.classes else (device[:0], means[0][:0])
    per_class, there = torch.bincount(y, score, data.classes), torch.bincount(y, minlength=data.classes)
    return Scores(means[0], means[1] if local else None, per_class, there)


class Evaluator:
    """Measures a run, and refuses numbers that are not finite.

    If one of several processes refuses, all must, or the others would wait for it.
    """

    def __init__(self, run: Prepared) -> None:
        self.run = run
        self._features = run.data.test_features(run.site.batches.dtype)  # computed once for all evaluations
        self._found: Diverged | None = None  # until all processes compare what they found

    def beginning(self) -> Progress:
        """The run before its first round, evaluated."""
        with self.run.computing():
            return self._beginning()

    def _beginning(self) -> Progress:
        play, site, n = self.run.play, self.run.site, self.run.data.K
        state = play.begin(aligned(site.flat.row().expand(n, -1)))
        loss = torch.cat([site.forward(state.theta[some], *site.batches(0, some))[0] for some in site.parts_of(n)])
        if some := self._failing(loss.isfinite()):
            raise InputError(
                f"the initial model's loss on device {some[0]} is not finite: "
                "check the model's initialisation and the scale of the data"
            )
        weight = play.first_weights(state, loss)
        # an infinite weight is left for the first round to report: by then the run's folder exists to record it
        return self.measure(Progress(state, 0, 0.0, None), loss, weight.clamp(max=torch.finfo(weight.dtype).max))

    def check(self, t: int, loss: Tensor, *, now: bool = True, **more: Tensor) -> None:
        """Refuse a loss [n], weight [n], model [n, d], ... that is not finite in round t.

        A single process refuses at once, several when `now`. Models are checked only at evaluations: one that is not
        finite shows in its next loss anyway.
        """
        self._refuse(self._not_finite(t, slice(None), loss, **more), now)

    def measure(self, progress: Progress, loss: Tensor, weight: Tensor, *, local: bool = True) -> Progress:
        """The progress with metrics, given the round's losses [n] and weights [n]; of local models if `local`."""
        run, site, state = self.run, self.run.site, progress.state
        common = run.algorithm.consensus(state, run.ranks, site.each)
        distance = run.ranks.gather(distances(state.theta, common, site.each))
        if not distance.isfinite().all():
            # times K: a sum of models may overflow although the models do not
            self.check(state.t, loss, model=state.theta * site.hosted.K)
        # as all methods begin; row by row, because a tensor of answers would need much memory
        equal = state.t == 0 and all(torch.equal(row, state.theta[0]) for row in state.theta)
        scores = evaluate(
            site.flat, state.theta, common, run.data, self._features, site.execution, site.each, run.metric,
            local=local and not equal,
        )  # fmt: skip
        if equal:
            scores = scores._replace(local=scores.common)
        finite = scores.common.isfinite()
        if scores.local is not None:
            finite &= scores.local.isfinite()
        if some := self._failing(finite):
            self._refuse(None if finite.all() else self._output_not_finite(progress, common, loss, finite))
            raise InputError(
                f"the metric {run.metric.name} of device {some[0]} is not finite after round {state.t}, though the "
                "models' outputs are: give a metric that is finite for every sample"
            )
        return progress._replace(metrics=self._metrics(progress, scores, distance, loss, weight))

    def _failing(self, fine: Tensor) -> list[int]:
        """All devices, in any process, that are not fine [n]."""
        devices, is_fine = self.run.ranks.gather(torch.stack([self.run.site.hosted.rows, fine.long()], dim=1)).T
        return [int(device) for device in devices[is_fine == 0]]

    def _refuse(self, found: Diverged | None, now: bool = True) -> None:
        """Raise the earliest failure of all processes; a single process does so at once, several when `now`."""
        self._found = self._found or found
        if (now or self.run.ranks.size == 1) and (earliest := self.run.ranks.earliest(self._found)) is not None:
            raise earliest

    def _not_finite(self, t: int, some: slice, loss: Tensor, **more: Tensor) -> Diverged | None:
        """The error if a loss, weight, ... of some of this process's devices is not finite."""
        algorithm, rows = self.run.algorithm, self.run.site.hosted.rows[some]
        for what, values in {"loss": loss, **more}.items():
            if values.isfinite().all():
                continue
            i = int((~values.isfinite().view(len(values), -1).all(dim=1)).nonzero()[0])
            device = int(rows[i])
            return Diverged(
                f"diverged in round {t}: the {what} of device {device} is not finite (loss "
                f"{float(loss[i]):g}, {algorithm.name}); {algorithm.cures}",
                round=t,
                device=device,
            )
        return None

    def _output_not_finite(self, progress: Progress, common: Tensor, loss: Tensor, finite: Tensor) -> Diverged | None:
        """The error if an output is not finite on the first device whose scores are not finite."""
        site, test, state = self.run.site, self.run.data.test, progress.state
        i = int((~finite).nonzero()[0])
        one, first, n = slice(i, i + 1), int(test.starts[i]), int(test.sizes[i])
        x = self._features[None, first : first + n]
        both = [predict(site.flat, models, x, site.execution) for models in (state.theta[one], common[None])]
        return self._not_finite(state.t, one, loss[one], output=torch.stack(both, 1).detach())

    def _metrics(self, progress: Progress, scores: Scores, distance: Tensor, loss: Tensor, weight: Tensor) -> Metrics:
        """The `Metrics` of all devices, gathered from all processes; `distance` [K] is gathered already."""
        ranks, better = self.run.ranks, self.run.metric.higher_is_better
        mine = (scores.common, loss, weight) if scores.local is None else (scores.common, loss, weight, scores.local)
        common, losses, weights, *local = ranks.gather(torch.stack([x.double() for x in mine], dim=1)).T.cpu().unbind()
        own = [*scores.per_class.tolist(), *scores.samples.tolist(), progress.bytes_sent, progress.exchange_seconds]
        *counts, sent, busy = ranks.total(torch.tensor(own, dtype=torch.float64, device=distance.device)).tolist()
        sums, there = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        metrics = Metrics(
            round=progress.state.t,
            consensus=Spread.over(common.tolist(), better),
            local=Spread.over(local[0].tolist(), better) if local else None,
            per_class=[total / n if n else None for total, n in zip(sums, there, strict=True)],
            consensus_distance=float(distance.mean()),
            train_loss=float(losses.to(loss.dtype).mean()),
            weights=weights.tolist(),
            floats_sent=progress.floats_sent,
            seconds=progress.seconds,
            losses=losses.tolist(),
        )
        if ranks.size == 1:
            return metrics
        return dataclasses.replace(metrics, bytes_between_ranks=int(sent), exchange_seconds=busy / ranks.size)
