"""The training loop: T rounds, with an evaluation every few rounds.

`train` runs to the end and returns the result. `trajectory` is the loop itself as an iterator: use it to inspect, save
or stop a run on its way. Everything that records, checkpoints or shows progress consumes it.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, Unpack

import networkx as nx
import torch
from torch import Tensor, nn

from drdsgd.baselines import Clients, ServerAlgorithm, make_server_round
from drdsgd.core.algorithms import Algorithm
from drdsgd.core.engine import Ranks
from drdsgd.core.flat import Flat, aligned
from drdsgd.core.gradients import (
    Loss,
    check_loss,
    check_numbers,
    choose_execution,
    choose_features,
    choose_memory_format,
    loss_name,
    make_forward,
    predict,
)
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.optimizers import COPIES
from drdsgd.core.parallel import Each, blocks, column_sums, each_of, one_thread
from drdsgd.core.round import Round, State, init, make_round
from drdsgd.data.batches import Batches
from drdsgd.data.devices import Devices
from drdsgd.data.pairs import OwnData, from_pairs
from drdsgd.engines.local import SingleProcess
from drdsgd.errors import Diverged, InputError, unknown, whole
from drdsgd.topology.mixing import Mixing, metropolis
from drdsgd.training.card import Training, save
from drdsgd.training.evaluation import Scores, distances, evaluate
from drdsgd.training.metrics import Metric, Metrics, Spread, absolute_error, accuracy

__all__ = ["Options", "Progress", "Reference", "Result", "consensus", "train", "trajectory"]

Reference = Literal["samples", "uniform"]

# models and batches of the devices that are processed together: a thread's part of a last-level cache
BLOCK_BYTES = 16 * 2**20


class Progress(NamedTuple):
    """A run after some round: its state, its cost so far, and the metrics if this round was evaluated.

    The next round works in the state's tensors: clone what you want to keep. There may be unused memory between theta's
    rows. `bytes_sent` and `exchange_seconds` belong to this process (see `Info`).
    """

    state: State
    floats_sent: int
    seconds: float
    metrics: Metrics | None
    bytes_sent: int = 0
    exchange_seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """A finished run: the consensus model, every device's model (rows of theta [K, d]) and all evaluations.

    `model` is a separate module in evaluation mode; the one that was given to `train` is unchanged. `training` is the
    description for the model card.
    """

    model: nn.Module
    theta: Tensor
    metrics: list[Metrics]
    training: Training

    @property
    def final(self) -> Metrics:
        """The last evaluation."""
        return self.metrics[-1]

    def local_model(self, device: int) -> nn.Module:
        """The model that a device has at the end, as a separate module."""
        if not 0 <= device < len(self.theta):
            raise InputError(f"device is {device}: give a number from 0 to {len(self.theta) - 1}")
        return Flat(self.model).to_module(self.theta[device])

    def save(self, path: Path | str) -> Path:
        """Write the consensus model and its card, `model.safetensors` and `README.md`, into a folder."""
        return save(Path(path), self.model, self.training, self.final)


class Options(TypedDict, total=False):
    """The keyword arguments that `train` shares with `trajectory`."""

    rounds: int
    batch_size: int
    seed: int
    eval_every: int
    reference: Reference | float
    loss: Loss | None
    metric: Metric | None
    execution: Literal["auto", "batched", "loop"]
    threads: int | None


# defaults of `trajectory`, which a model card needs as well
ROUNDS, BATCH_SIZE = 100, 32


def train(
    model: nn.Module,
    devices: Devices | Sequence[OwnData],
    graph: nx.Graph | Mixing,
    algorithm: Algorithm | ServerAlgorithm,
    **options: Unpack[Options],
) -> Result:
    """Train a model over a graph of devices; by default 100 rounds with 32 samples per device.

    `devices` has one entry per device: `(x, y)` or `((x, y), (x_test, y_test))` with tensors, arrays or data sets (see
    `drdsgd.data.from_pairs`). It may also be the result of a function in `drdsgd.data`. Options: see `trajectory`.

    >>> import drdsgd
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> devices = [(x[:20], y[:20]), (x[20:30], y[20:30]), (x[30:], y[30:])]
    >>> result = drdsgd.train(nn.Linear(4, 3), devices, nx.path_graph(3), drdsgd.dr_dsgd(eta=0.3, mu=6.0), rounds=20)
    >>> result.final.round, result.theta.shape, result.model
    (20, torch.Size([3, 15]), Linear(in_features=4, out_features=3, bias=True))
    """
    for name in options:
        if name not in Options.__annotations__:
            raise InputError(f"train(..., {name}=...): {unknown(name, tuple(Options.__annotations__))}")
    data = devices if isinstance(devices, Devices) else from_pairs(devices)
    mixing = _mixing(graph)
    metrics, state = [], None
    for progress in trajectory(model, data, mixing, algorithm, **options):
        state = progress.state
        if progress.metrics is not None:
            metrics.append(progress.metrics)
    assert state is not None
    training = Training(
        algorithm=algorithm.name,
        eta=algorithm.eta if isinstance(algorithm, Algorithm) else "",
        rounds=state.t,
        batch_size=options.get("batch_size", BATCH_SIZE),
        seed=options.get("seed", 0),
        loss=loss_name(options.get("loss") or _default_loss(data)),
        metric=options.get("metric") or _default_metric(data),
        train_sizes=data.train.sizes.tolist(),
        test_sizes=data.test.sizes.tolist(),
        names=data.names,
        shape=data.shape,
        scale=data.scale,
        shift=data.shift,
        mixing=None if isinstance(algorithm, ServerAlgorithm) else mixing,
    )
    return Result(
        consensus(model, algorithm, state, SingleProcess(data.K)), state.theta.contiguous(), metrics, training
    )


def _mixing(graph: nx.Graph | Mixing) -> Mixing:
    return graph if isinstance(graph, Mixing) else metropolis(graph)


def _default_loss(data: Devices) -> Loss:
    return nn.functional.cross_entropy if data.classes else nn.functional.mse_loss


def _default_metric(data: Devices) -> Metric:
    return accuracy() if data.classes else absolute_error()


def trajectory(
    model: nn.Module,
    devices: Devices | Sequence[OwnData],
    graph: nx.Graph | Mixing,
    algorithm: Algorithm | ServerAlgorithm,
    *,
    rounds: int = ROUNDS,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    eval_every: int = 10,
    reference: Reference | float = "samples",
    loss: Loss | None = None,
    metric: Metric | None = None,
    execution: Literal["auto", "batched", "loop"] = "auto",
    threads: int | None = None,
    start: Progress | None = None,
    ranks: Ranks | None = None,
    agree_every: int | None = None,
) -> Iterator[Progress]:
    """The run as an iterator: the start, then one `Progress` per round, with metrics for the evaluated rounds.

    All devices start from the parameters of `model`. A plain graph gets Metropolis weights; with a server it gives only
    the number of devices.

    - `reference`: whether devices count by their number of samples, "samples" (p_i = n_i / n, eq. 1), or equally,
      "uniform" (p_i = 1 / K). A process that can't know all devices gives the mean number of samples per device.
    - `loss(outputs [B, ...], y [B, ...])`: the mean over a batch (default: cross-entropy for classes, mean squared
      error for floats).
    - `metric`: what evaluations measure (default: accuracy for classes, absolute error for floats).
    - `threads`: number of threads that work on blocks of devices (default: as many as torch uses).
    - `start`: continue a run from this point.
    - `ranks`: the processes that share the devices, if there are several. `devices` and `start` are then those of this
      process, and all processes must call this function with the same settings.

    Arguments that do not fit together are refused at once, before the first step of the iterator. A run whose numbers
    overflow raises `Diverged`. Several processes all raise it, at the next evaluation or in every `agree_every`-th
    round.
    """
    if not isinstance(algorithm, Algorithm | ServerAlgorithm):
        raise InputError(
            f"algorithm is {algorithm!r}: give a value such as drdsgd.dr_dsgd(eta=0.1, mu=1.0) or drdsgd.dsgd(eta=0.1)"
        )
    data = devices if isinstance(devices, Devices) else from_pairs(devices)
    mixing = _mixing(graph)
    ranks = ranks or SingleProcess(mixing.K)
    if len(ranks.rows) != data.K:
        raise InputError(
            f"the graph has {len(ranks.rows)} nodes but there are data for {data.K} devices: give one entry per node"
        )
    algorithm.check(mixing)
    if isinstance(algorithm, ServerAlgorithm) and ranks.size > 1:
        raise InputError(f"{algorithm.name} has a server, which is simulated in one process: run it without torchrun")
    counts = {"rounds": rounds, "batch_size": batch_size, "eval_every": eval_every}
    for name, value in (counts if threads is None else counts | {"threads": threads}).items():
        whole(name, value)

    flat = Flat(model)
    data = data.to(flat.device, flat.dtype)
    loss, metric = loss or _default_loss(data), metric or _default_metric(data)
    workers = (threads if threads is not None else torch.get_num_threads()) if flat.device.type == "cpu" else 1
    each = each_of(workers)
    engine = ranks.engine(mixing, flat.dtype, flat.device, each)
    plain = data.train.x.dtype == torch.int64 and bool(data.scale == 1) and not data.shift.any()
    taken = choose_features(flat, data.train.x[:2]) if plain else flat.dtype
    if not taken.is_floating_point:
        for samples in (data.train, data.test):
            check_numbers(flat, samples.x)
    batches = Batches(data, batch_size, seed, engine.rows, taken)
    x, y = batches(0, slice(0, 2))
    scored = loss is nn.functional.cross_entropy or metric == accuracy()
    outputs = flat.check(x.flatten(0, 1), data.classes if scored else None)
    check_loss(loss, outputs, y.flatten(0, 1))
    metric.check(outputs, y.flatten(0, 1))
    if start is not None and start.state.theta.shape != (data.K, flat.d):
        raise InputError(
            f"the model has {flat.d} parameters on {data.K} devices, but the run to continue has "
            f"{list(start.state.theta.shape)}: the model's code changed; start a new run"
        )
    mode = choose_execution(flat, loss, x, y) if execution == "auto" else execution
    if mode == "loop":
        flat = Flat(model, choose_memory_format(flat, x.flatten(0, 1)))
    forward = make_forward(flat, loss, mode)
    most = 1 if mode == "loop" else BLOCK_BYTES // (x.element_size() * (flat.d + x[0].numel()))

    def parts_of(n: int) -> list[slice]:
        in_turn = -(-n // (workers * max(most, 1)))  # blocks per thread: equally many, so that none waits
        return blocks(n, -(-n // (workers * in_turn)))

    parts = parts_of(data.K)
    mean = ranks.gather(data.train.sizes).double().mean() if isinstance(reference, str) else reference
    share = data.train.sizes.double() / mean
    share = (torch.ones_like(share) if reference == "uniform" else share).to(flat.dtype)
    if isinstance(algorithm, ServerAlgorithm):
        play = _served(algorithm, Clients(share, batches, flat, forward, loss, mode, parts_of, each))
    else:
        round = make_round(algorithm, forward, batches, engine, parts, each)
        play = _gossiping(algorithm, LocalDevices(share, engine.rows, mixing.K), round)

    test_features = data.test_features(taken)  # computed once for all evaluations
    trouble: Diverged | None = None

    def refuse(found: Diverged | None, now: bool = True) -> None:
        """Raise the earliest failure of all processes; a single process does so at once, several when `now`."""
        nonlocal trouble
        trouble = trouble or found
        if (now or ranks.size == 1) and (trouble := ranks.earliest(trouble)) is not None:
            raise trouble

    def failing(fine: Tensor) -> list[int]:
        """All devices, in any process, that are not fine [n]: if one process refuses, all must, or the others wait."""
        devices, is_fine = ranks.gather(torch.stack([engine.rows, fine.long()], dim=1)).T
        return [int(device) for device in devices[is_fine == 0]]

    def measure(progress: Progress, loss: Tensor, weight: Tensor) -> Progress:
        state = progress.state
        common = _common(algorithm, state, ranks, each)
        distance = ranks.gather(distances(state.theta, common, each))
        if not distance.isfinite().all():
            # times K: a sum of models may overflow although the models do not
            refuse(_not_finite(algorithm, engine.rows, state.t, loss, model=state.theta * mixing.K))
        scores = evaluate(flat, state.theta, common, data, test_features, mode, each, metric)
        finite = scores.common.isfinite() & scores.local.isfinite()
        if some := failing(finite):
            found = None
            if not finite.all():
                i = int((~finite).nonzero()[0])
                one, first, n = slice(i, i + 1), int(data.test.starts[i]), int(data.test.sizes[i])
                x = test_features[None, first : first + n]
                both = [predict(flat, models, x, mode) for models in (state.theta[one], common[None])]
                outputs = torch.stack(both, 1).detach()
                found = _not_finite(algorithm, engine.rows[one], state.t, loss[one], output=outputs)
            refuse(found)
            raise InputError(
                f"the metric {metric.name} of device {some[0]} is not finite after round {state.t}, though the models' "
                "outputs are: give a metric that is finite for every sample"
            )
        return progress._replace(metrics=_metrics(progress, scores, distance, loss, weight, ranks, metric))

    @one_thread()
    def beginning() -> Progress:
        state = play.begin(aligned(flat.row().expand(data.K, -1)))
        loss = torch.cat([forward(state.theta[some], *batches(0, some))[0] for some in parts])
        if some := failing(loss.isfinite()):
            raise InputError(
                f"the initial model's loss on device {some[0]} is not finite: "
                "check the model's initialisation and the scale of the data"
            )
        weight = play.first_weights(state, loss)
        # an infinite weight is left for the first round to report: by then the run's folder exists to record it
        return measure(Progress(state, 0, 0.0, None), loss, weight.clamp(max=torch.finfo(weight.dtype).max))

    @one_thread()
    def advance(progress: Progress) -> Progress:
        begun = time.perf_counter()
        state, info = play.round(progress.state)
        seconds = progress.seconds + time.perf_counter() - begun
        due = state.t % eval_every == 0 or state.t == rounds
        agree = due or (agree_every is not None and state.t % agree_every == 0)
        refuse(_not_finite(algorithm, engine.rows, state.t, info.loss, weight=info.weight), now=agree)
        progress = Progress(
            state, progress.floats_sent + info.floats_sent, seconds, None,
            progress.bytes_sent + info.bytes_sent, progress.exchange_seconds + info.exchange_seconds,
        )  # fmt: skip
        return measure(progress, info.loss, info.weight) if due else progress

    if start is not None:
        fresh = play.begin(start.state.theta[:1])
        for kind, now, before in (
            ("objective", fresh.objective, start.state.objective),
            ("optimizer", fresh.optimizer, start.state.optimizer),
        ):
            if now.keys() != before.keys():
                raise InputError(
                    f"the run to continue has {', '.join(sorted(before)) or 'nothing'} as its {kind}'s state, which is "
                    f"now {', '.join(sorted(now)) or 'nothing'}: another version started it; start a new run"
                )
    # a copy: rounds work in place
    first = beginning() if start is None else start._replace(state=_copy(start.state))

    def steps() -> Iterator[Progress]:
        progress = first
        if start is None:
            yield progress
        while progress.state.t < rounds:
            progress = advance(progress)
            yield progress

    return steps()


class _Play(NamedTuple):
    """An algorithm with its devices, ready to run.

    `begin(theta)` is the state before the first round; `first_weights(state, loss)` are the gradients' weights in it.
    """

    begin: Callable[[Tensor], State]
    round: Round
    first_weights: Callable[[State, Tensor], Tensor]


def _gossiping(algorithm: Algorithm, hosted: LocalDevices, round: Round) -> _Play:
    return _Play(
        lambda theta: init(algorithm, theta, hosted),
        round,
        lambda state, loss: algorithm.objective.weigh(loss, copy.deepcopy(state.objective), 0),
    )


def _served(algorithm: ServerAlgorithm, clients: Clients) -> _Play:
    round = make_server_round(algorithm, clients)
    return _Play(lambda theta: algorithm.init(theta, clients), round, lambda state, loss: round(_copy(state))[1].weight)


def consensus(model: nn.Module, algorithm: Algorithm | ServerAlgorithm, state: State, ranks: Ranks) -> nn.Module:
    """The common model at the end, as a separate module; a collective operation if there are several processes."""
    return Flat(model).to_module(_common(algorithm, state, ranks, map)).eval()


def _common(algorithm: Algorithm | ServerAlgorithm, state: State, ranks: Ranks, each: Each) -> Tensor:
    """The common model [d]: the server's, or the mean of all devices' models."""
    if isinstance(algorithm, ServerAlgorithm):
        return algorithm.common(state)
    return ranks.total(column_sums(state.theta, each)) / ranks.K


def _metrics(
    progress: Progress,
    scores: Scores,
    distance: Tensor,
    loss: Tensor,
    weight: Tensor,
    ranks: Ranks,
    metric: Metric,
) -> Metrics:
    """The `Metrics` of all devices, gathered from all processes; `distance` [K] is gathered already."""
    common, local, losses, weights = (
        ranks.gather(torch.stack([x.double() for x in (scores.common, scores.local, loss, weight)], dim=1))
        .T.cpu()
        .unbind()
    )
    own = [*scores.per_class.tolist(), *scores.samples.tolist(), progress.bytes_sent, progress.exchange_seconds]
    *counts, sent, busy = ranks.total(torch.tensor(own, dtype=torch.float64, device=distance.device)).tolist()
    sums, there = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    metrics = Metrics(
        round=progress.state.t,
        consensus=Spread.over(common.tolist(), metric.higher_is_better),
        local=Spread.over(local.tolist(), metric.higher_is_better),
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


def _copy(state: State) -> State:
    return State(state.t, aligned(state.theta), *copy.deepcopy((state.objective, state.optimizer)))


def _not_finite(
    algorithm: Algorithm | ServerAlgorithm, rows: Tensor, t: int, loss: Tensor, **more: Tensor
) -> Diverged | None:
    """The error if a loss [n], weight [n], model [n, d], ... of the devices `rows` is not finite in round t.

    Models are checked only at evaluations: one that is not finite shows in its next loss anyway.
    """
    for what, values in {"loss": loss, **more}.items():
        if values.isfinite().all():
            continue
        i = int((~values.isfinite().view(len(values), -1).all(dim=1)).nonzero()[0])
        device = int(rows[i])
        return Diverged(
            f"diverged in round {t}: the {what} of device {device} is not finite (loss "
            f"{float(loss[i]):g}, {algorithm.name}); {_cures(algorithm)}",
            round=t,
            device=device,
        )
    return None


def _cures(algorithm: Algorithm | ServerAlgorithm) -> str:
    if isinstance(algorithm, ServerAlgorithm):
        return "try a smaller eta"
    smaller = "try a smaller eta or gamma" if COPIES in algorithm.optimizer.keeps else "try a smaller eta"
    if algorithm.objective.gossips:  # its weights are bounded, so the steps are too long
        return f"{smaller}, or --weight-cap 2, or a lower cap if there is one"
    return f"{smaller}, or for DR-DSGD a larger mu, --loss-clip or --weights normalized"
