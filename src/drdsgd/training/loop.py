"""The training loop: T rounds, with an evaluation every few rounds.

`train` runs to the end and returns the result. `trajectory` is the run as an iterator: use it to inspect, save or stop
a run on its way. Both prepare a run (`preparation`) and go through its `steps`, which is the loop itself. Everything
that records, checkpoints or shows progress consumes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
from torch import Tensor, nn

from drdsgd.core.engine import Ranks
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Loss
from drdsgd.core.method import Method
from drdsgd.data.devices import Devices
from drdsgd.data.pairs import OwnData
from drdsgd.errors import InputError
from drdsgd.options import (
    BatchSize,
    EvalEvery,
    Execution,
    LocalEvery,
    Matmul,
    Precision,
    Reference,
    Rounds,
    Seed,
    Threads,
)
from drdsgd.topology.mixing import Mixing
from drdsgd.training.card import Training, describe, save
from drdsgd.training.evaluation import Evaluator
from drdsgd.training.metrics import Metric, Metrics
from drdsgd.training.preparation import Prepared, Settings, prepare
from drdsgd.training.progress import Progress

__all__ = ["Progress", "Result", "steps", "train", "trajectory"]


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


def train(
    model: nn.Module,
    devices: Devices | Sequence[OwnData],
    graph: nx.Graph | Mixing,
    algorithm: Method | str,
    *,
    rounds: Rounds = Settings.rounds,
    batch_size: BatchSize = Settings.batch_size,
    seed: Seed = Settings.seed,
    eval_every: EvalEvery = Settings.eval_every,
    local_every: LocalEvery = Settings.local_every,
    reference: Reference | float = Settings.reference,
    loss: Loss | None = None,
    metric: Metric | None = None,
    execution: Execution = Settings.execution,
    matmul: Matmul = Settings.matmul,
    precision: Precision = Settings.precision,
    threads: Threads = Settings.threads,
) -> Result:
    """Train a model over a graph of devices.

    `devices` has one entry per device: `(x, y)` or `((x, y), (x_test, y_test))` with tensors, arrays or data sets (see
    `drdsgd.data.from_pairs`). It may also be the result of a function in `drdsgd.data`. `algorithm` is a value such as
    `drdsgd.dr_gt_adam(mu=1.0)`, or a name such as "dr-gt-adam". All devices start from the parameters of `model`. A
    plain graph gets Metropolis weights; with a server it gives only the number of devices.

    - `reference`: whether devices count by their number of samples, "samples" (p_i = n_i / n, eq. 1), or equally,
      "uniform" (p_i = 1 / K). A process that can't know all devices gives the mean number of samples per device.
    - `local_every`: local models are evaluated in every n-th evaluation and after the last round; `metrics.local` is
      None in between (default: every time, or every fifth time if the model has other layers than linear ones).
    - `loss(outputs [B, ...], y [B, ...])`: the mean over a batch (default: cross-entropy for classes, mean squared
      error for floats).
    - `metric`: what evaluations measure (default: accuracy for classes, absolute error for floats).
    - `execution`: "batched" computes devices together, "loop" one after the other; "auto" chooses the faster.
    - `matmul`: the library of float32 products on a CPU, "mkl" or "onednn" (default: the processor's faster one).
    - `precision`: "bfloat16" rounds the factors of products; models and steps stay float32.
    - `threads`: number of threads that work on blocks of devices (default: as many as torch uses).

    Arguments that do not fit together are refused at once. A run whose numbers overflow raises `Diverged`.

    >>> import drdsgd
    >>> import torch
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> devices = [(x[:20], y[:20]), (x[20:30], y[20:30]), (x[30:], y[30:])]
    >>> result = drdsgd.train(nn.Linear(4, 3), devices, nx.path_graph(3), drdsgd.dr_dsgd(eta=0.3, mu=6.0), rounds=20)
    >>> result.final.round, result.theta.shape, result.model
    (20, torch.Size([3, 15]), Linear(in_features=4, out_features=3, bias=True))
    """
    settings = Settings(
        rounds=rounds, batch_size=batch_size, seed=seed, eval_every=eval_every, local_every=local_every,
        reference=reference, loss=loss, metric=metric, execution=execution, matmul=matmul, precision=precision,
        threads=threads,
    )  # fmt: skip
    run = prepare(model, devices, graph, algorithm, settings)
    metrics = []
    for progress in steps(run):
        if progress.metrics is not None:
            metrics.append(progress.metrics)
    state = progress.state
    return Result(run.consensus(state), state.theta.contiguous(), metrics, describe(run))


def trajectory(
    model: nn.Module,
    devices: Devices | Sequence[OwnData],
    graph: nx.Graph | Mixing,
    algorithm: Method | str,
    *,
    start: Progress | None = None,
    ranks: Ranks | None = None,
    agree_every: int | None = None,
    **options: Any,
) -> Iterator[Progress]:
    """The run as an iterator: the start, then one `Progress` per round, with metrics for the evaluated rounds.

    `options` are those of `train`, with the same defaults; here are three more.

    - `start`: continue a run from this point.
    - `ranks`: the processes that share the devices, if there are several. `devices` and `start` are then those of this
      process, and all processes must call this function with the same settings.

    Arguments that do not fit together are refused at once, before the first step of the iterator. A run whose numbers
    overflow raises `Diverged`. Several processes all raise it, at the next evaluation or in every `agree_every`-th
    round.
    """
    return steps(prepare(model, devices, graph, algorithm, Settings(**options), ranks), start, agree_every)


def steps(run: Prepared, start: Progress | None = None, agree_every: int | None = None) -> Iterator[Progress]:
    """The loop: all rounds of a prepared run, as `trajectory` describes them."""
    rounds, eval_every = run.settings.rounds, run.settings.eval_every
    evaluator = Evaluator(run)
    first = evaluator.beginning() if start is None else run.resumed(start)

    def advance(progress: Progress) -> Progress:
        begun = time.perf_counter()
        state, info = run.play.round(progress.state)
        progress = progress.after(state, info, time.perf_counter() - begun)
        due = state.t % eval_every == 0 or state.t == rounds
        agree = due or (agree_every is not None and state.t % agree_every == 0)
        evaluator.check(state.t, info.loss, now=agree, weight=info.weight)
        local = state.t % (eval_every * run.settings.local_every) == 0 or state.t == rounds
        return evaluator.measure(progress, info.loss, info.weight, local=local) if due else progress

    def all_rounds() -> Iterator[Progress]:
        progress = first
        if start is None:
            yield progress
        while progress.state.t < rounds:
            with run.computing():
                progress = advance(progress)
            yield progress

    return all_rounds()  # a generator of its own: what is above happens at once
