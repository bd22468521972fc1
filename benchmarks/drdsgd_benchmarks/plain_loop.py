"""How fast is `drdsgd train` next to the loop that one would write by hand, and do both give the same numbers?

`drdsgd bench` times single rounds; this times whole runs and compares their results. The hand-written loop
(`drdsgd_benchmarks.plain`) shares only the problem with the package: graph, data of every device, initial model. With
`--batches same` its loaders yield the very samples that drdsgd draws, so models and accuracies must agree up to
rounding; with `--batches shuffled` they shuffle, as most people would write it.

    python -m drdsgd_benchmarks.plain_loop                          Fashion-MNIST, K=25, T=300, mu=5
    python -m drdsgd_benchmarks.plain_loop --batches shuffled --json OUT.json

The time is the wall time of all rounds, with an evaluation every 10 rounds and at the end. The clock starts after the
evaluation of round 0, so it does not include reading the data. The plain loop trains and scores; drdsgd does all that
`drdsgd train` does (also losses, per-class accuracy, records on disk, checkpoints). "whole" adds what comes before:
reading and dealing the data, graph, initial model, round 0.

The plain loop is not slowed down on purpose: features are scaled to floats and batches are drawn beforehand, each test
set is one forward pass, and no losses, records or checkpoints are kept.
"""

from __future__ import annotations

import copy
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drdsgd.data import batches
from drdsgd.errors import Diverged, InputError
from drdsgd.experiments import run
from drdsgd.experiments.build import make_data, make_graph, make_model
from drdsgd.experiments.config import Experiment
from drdsgd.files import write_text
from drdsgd.training.loop import Progress
from drdsgd.training.metrics import Spread
from drdsgd_benchmarks.plain import PlainLoop, average, datasets, shuffling

Draws = Literal["same", "shuffled"]


@dataclass(frozen=True)
class Scores:
    """One evaluation: every device's test accuracy in percent, with the consensus and with its own model."""

    round: int
    consensus: list[float]
    local: list[float]


@dataclass(frozen=True)
class Outcome:
    """A run of either side: models [K, d] at the end, all evaluations, and wall times in seconds."""

    theta: Tensor
    scores: list[Scores]
    seconds: float
    whole: float


# ---------------------------------------------------------------------------------------------- the plain loop


def plain_loop(e: Experiment, draws: Draws = "same") -> Outcome:
    """The experiment in plain PyTorch."""
    begun = time.perf_counter()
    torch.set_num_threads(e.threads)
    graph, devices = make_graph(e), make_data(e)
    initial = make_model(e, devices)
    dtype = next(initial.parameters()).dtype
    train, test = (datasets(devices, samples, dtype) for samples in (devices.train, devices.test))
    n = [len(dataset) for dataset in train]
    share = [e.devices * size / sum(n) for size in n] if e.reference == "samples" else [1.0] * e.devices
    loop = PlainLoop(initial, graph, make_loaders(e, train, draws), e.eta, e.mu, share)

    scores = [evaluate(0, loop.models, test)]
    started = time.perf_counter()
    for t in range(1, e.rounds + 1):
        loop.round()
        if t % e.eval_every == 0 or t == e.rounds:
            scores.append(evaluate(t, loop.models, test))
    ended = time.perf_counter()
    theta = torch.stack([nn.utils.parameters_to_vector(model.parameters()).detach() for model in loop.models])
    return Outcome(theta, scores, ended - started, ended - begun)


def make_loaders(e: Experiment, train: Sequence[TensorDataset], draws: Draws) -> list[DataLoader[tuple[Tensor, ...]]]:
    """One loader per device: shuffling, or with a batch sampler that yields drdsgd's own draw, round after round."""
    if draws == "shuffled":
        return shuffling(train, e.batch_size, e.seed)
    K, T, n = len(train), e.rounds, np.array([len(dataset) for dataset in train])
    drawn = [batches.draw(e.seed, np.arange(K), t, n, e.batch_size).tolist() for t in range(T)]
    return [DataLoader(train[i], batch_sampler=[drawn[t][i] for t in range(T)]) for i in range(K)]


@torch.no_grad()
def evaluate(t: int, models: Sequence[nn.Module], test: Sequence[TensorDataset]) -> Scores:
    """Score the consensus model, and each device's own, on the device's test set."""
    K = len(models)
    consensus = copy.deepcopy(models[0])
    consensus.load_state_dict(average([model.state_dict() for model in models], [1 / K] * K))

    def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
        x, y = dataset.tensors
        return 100 * int((model(x).argmax(dim=1) == y).sum()) / len(y)

    return Scores(
        t,
        [accuracy(consensus, dataset) for dataset in test],
        [accuracy(model, dataset) for model, dataset in zip(models, test, strict=True)],
    )


# ------------------------------------------------------------------------------------------------ the package


def package(e: Experiment) -> Outcome:
    """The experiment as `drdsgd train` runs it, into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        started, last = math.nan, None

        def watch(progress: Progress) -> None:
            nonlocal started, last
            if progress.state.t == 0:
                started = time.perf_counter()
            last = progress

        begun = time.perf_counter()
        record = run.run(e, Path(folder) / "run", watch=watch)
        ended = time.perf_counter()
    assert last is not None
    scores = [Scores(m.round, m.consensus.per_device, m.local.per_device) for m in record.metrics]
    return Outcome(last.state.theta, scores, ended - started, ended - begun)


# -------------------------------------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Agreement:
    """How far two runs of one problem are apart.

    `final` and `ever` are the largest difference of a device's accuracy (points), consensus or local, at the end
    and over all evaluations; `models` is `||theta - theta'|| / ||theta'||`.
    """

    final: float
    ever: float
    models: float

    @staticmethod
    def of(a: Outcome, b: Outcome) -> Agreement:
        """Compare two runs that were evaluated at the same rounds."""
        gaps = []
        for one, other in zip(a.scores, b.scores, strict=True):
            assert one.round == other.round
            pairs = zip(one.consensus + one.local, other.consensus + other.local, strict=True)
            gaps.append(max(abs(p - q) for p, q in pairs))
        models = torch.linalg.vector_norm(a.theta - b.theta) / torch.linalg.vector_norm(b.theta)
        return Agreement(gaps[-1], max(gaps), float(models))


@dataclass
class Times:
    """Seconds of one side at one number of threads, one entry per repeat."""

    seconds: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Note another run."""
        self.seconds.append(outcome.seconds)
        self.whole.append(outcome.whole)

    @property
    def median(self) -> float:
        """The median over repeats."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        spread = f"{min(self.seconds):.2f} to {max(self.seconds):.2f}"
        return f"{self.median:7.2f} s  ({spread}; whole {statistics.median(self.whole):.2f})"


def describe(outcome: Outcome) -> str:
    """Average and worst accuracy at the end."""
    last = outcome.scores[-1]
    kinds = {"consensus": Spread.over(last.consensus), "local": Spread.over(last.local)}
    return ", ".join(f"{kind} average {a.average:.2f} worst {a.worst:.2f}" for kind, a in kinds.items())


def main(
    rounds: Annotated[int, typer.Option(help="communication rounds T")] = 300,
    devices: Annotated[int, typer.Option(help="number of devices K")] = 25,
    mu: Annotated[float, typer.Option(help="robustness of dr-dsgd")] = 5.0,
    algorithm: Annotated[str, typer.Option(help="dsgd or dr-dsgd")] = "dr-dsgd",
    dataset: Annotated[str, typer.Option(help="fashion-mnist, digits or cifar10")] = "fashion-mnist",
    dtype: Annotated[str, typer.Option(help="float32 or float64")] = "float32",
    threads: Annotated[list[int] | None, typer.Option(help="threads; may be given again; default 1 and 2")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="runs of each side per number of threads")] = 3,
    draws: Annotated[Draws, typer.Option("--batches", help="drdsgd's own, or an ordinary shuffle")] = "same",
    out: Annotated[Path | None, typer.Option("--json", help="write all numbers to this file")] = None,
) -> None:
    """Time `drdsgd train` against the same training in plain PyTorch, in turns, and compare the results."""
    experiments = [
        Experiment(
            algorithm=algorithm, dataset=dataset, devices=devices, rounds=rounds, dtype=dtype, threads=count,
            mu=None if algorithm == "dsgd" else mu, graph="erdos-renyi", p=0.3, shards=2, seed=0,
        )
        for count in threads or (1, 2)
    ]  # fmt: skip
    e = experiments[0]
    print(f"{algorithm} on {dataset}, K={devices}, T={rounds}, mu={e.mu}, eta={e.eta:.4f}, B={e.batch_size}, {dtype}")
    print(f"{draws} batches; torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")

    for experiment in experiments:  # what is imported or compiled on first use is not timed
        warm_up = experiment.replace(rounds=2)
        plain_loop(warm_up, draws)
        package(warm_up)

    plain = {experiment.threads: Times() for experiment in experiments}
    ours = {experiment.threads: Times() for experiment in experiments}
    agreements: list[Agreement] = []
    for repeat in range(repeats):
        for experiment in experiments:
            a, b = plain_loop(experiment, draws), package(experiment)
            plain[experiment.threads].add(a)
            ours[experiment.threads].add(b)
            agreements.append(Agreement.of(a, b))
            times = f"plain {a.seconds:.2f} s, drdsgd {b.seconds:.2f} s"
            print(f"repeat {repeat + 1} of {repeats}, {experiment.threads} threads: {times}", flush=True)

    results: list[dict[str, Any]] = []
    print("\nmedian seconds of all rounds and evaluations (spread; with set-up and reading the data)")
    for count in plain:
        p, o = plain[count], ours[count]
        ratio, fastest = p.median / o.median, min(p.seconds) / min(o.seconds)
        print(f"{count} threads  plain  {p}\n           drdsgd {o}")
        print(
            f"           ratio  {ratio:7.2f}    (of the fastest runs, which other work disturbed least: {fastest:.2f})"
        )
        sides = {"plain": asdict(p), "drdsgd": asdict(o)}
        results.append({"threads": count, **sides, "ratio": ratio, "ratio_of_fastest": fastest})
    best = min(p.median for p in plain.values()) / min(o.median for o in ours.values())
    print(f"each side at its best number of threads: ratio {best:.2f}")

    print(f"\nat the end: plain   {describe(a)}\n            drdsgd  {describe(b)}")
    apart = Agreement(*(max(getattr(x, name) for x in agreements) for name in ("final", "ever", "models")))
    print(
        f"largest difference of a device's accuracy: {apart.final:.3g} points at the end, {apart.ever:.3g} over all "
        f"evaluations\nrelative distance of the models: {apart.models:.2g}"
    )
    if draws == "shuffled":
        print("(other batches, so these only resemble each other; --batches same checks the numbers)")
    if out is not None:
        report = {
            "experiment": e.model_dump(exclude={"threads"}, exclude_none=True),
            "batches": draws,
            "machine": {"cores": os.cpu_count(), "torch": torch.__version__},
            "results": results,
            "best_ratio": best,
            "final": {"plain": asdict(a.scores[-1]), "drdsgd": asdict(b.scores[-1])},
            "agreement": asdict(apart),
        }
        write_text(out, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except (InputError, Diverged) as error:
        print(f"plain_loop: {error}", file=sys.stderr)
        sys.exit(2)
