"""Runs for tests: a small real study, and invented records with chosen numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Network, Record, Status
from drdsgd.experiments.run import run
from drdsgd.report.groups import groups
from drdsgd.report.statistics import Row, table
from drdsgd.training.metrics import Metrics, Spread
from drdsgd.versions import versions
from drdsgd_studies.shared import store
from drdsgd_studies.shared.store import RunRecord

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'%{x}[red]"


def experiment(**fields: Any) -> Experiment:
    """A tiny experiment."""
    tiny = {"dataset": "synthetic", "devices": 5, "rounds": 6, "eval_every": 2, "graph": "ring", "threads": 1}
    return Experiment(**{**tiny, **fields})


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms over two seeds, as `compare` leaves them."""
    out = tmp_path_factory.mktemp("study")
    for algorithm in ("dr-dsgd", "dsgd"):
        for seed in (0, 1):
            run(experiment(algorithm=algorithm, seed=seed), out / algorithm / f"seed-{seed}")
    return out


def metrics(t: int, per_device: Sequence[float]) -> Metrics:
    """An evaluation in which local models are one point better than the consensus model."""
    local = Spread.over([v + 1 for v in per_device])
    loss = 0.5 if t else 2.0
    return Metrics(t, Spread.over(per_device), local, [None, 50.0], 0.1, loss, [1.0] * len(per_device), 10 * t, 0.1)


def record(
    ends: Sequence[float],
    *,
    status: Status = "finished",
    rounds: Sequence[int] = (0, 6),
    message: str = "",
    **fields: Any,
) -> Record:
    """A run whose devices are at 50 % before its last evaluation, and at `ends` in it."""
    K = len(ends)
    e = experiment(**{"devices": K, **fields})
    lines = [metrics(t, [50.0] * K) for t in rounds[:-1]] + [metrics(rounds[-1], ends)]
    path = Path("runs") / e.algorithm / f"seed-{e.seed}"
    return Record(path, e, network(K), lines, status, message, {"drdsgd": "0.1.0"})


def lively(K: int, evaluations: int = 11, every: int = 10, *, gain: float = 0.0, **fields: Any) -> Record:
    """A finished run on K devices of ten classes in which all devices, rounds and kinds of number differ.

    Accuracies rise, device K // 2 is the worst off, and weights follow losses. `gain` raises all accuracies.
    """
    e = experiment(**{"devices": K, "rounds": every * (evaluations - 1), "eval_every": every, **fields})
    rng = np.random.default_rng([e.seed, K])
    level = np.sort(rng.uniform(55, 85, K))
    level[[0, K // 2]] = level[[K // 2, 0]]
    lines = []
    for k in range(evaluations):
        rise = 1 - 0.8 ** (k + 1)
        accuracy = np.clip((level + gain) * rise + rng.uniform(0, 0.4, K), 0, 100)
        losses = 2.3 - accuracy / 50 + rng.uniform(0, 0.1, K)
        lines.append(
            Metrics(
                round=k * every,
                consensus=Spread.over(accuracy.tolist()),
                local=Spread.over((accuracy + 5 * rng.uniform(0.5, 1, K)).tolist()),
                per_class=[*(accuracy.mean() + np.arange(9.0) - 4).tolist(), None],
                consensus_distance=float(0.5 / (k + 1)) if k else 0.0,
                train_loss=float(losses.mean()),
                weights=np.exp(losses / (e.mu or 1e9)).tolist(),
                losses=losses.tolist(),
                floats_sent=k * every * 1234,
                seconds=0.1,
            )
        )
    angle = 2 * np.pi * np.arange(K) / K
    held = np.zeros((K, 10), dtype=int)
    held[np.arange(K), np.arange(K) % 10] = 60
    held[np.arange(K), np.arange(K) % 7] += 20 + np.arange(K) % 5
    graph = Network(
        edges=[(i, (i + step) % K) for i in range(K) for step in (1, 2, 7) if i % step == 0],
        positions=[(float(np.cos(a)) * (1 + i % 2), float(np.sin(a)) * (1 + i % 2)) for i, a in enumerate(angle)],
        label_counts=held.tolist(),
        data_sha256="",
        rho=0.5 + e.seed / 100,
    )
    return Record(Path("runs") / e.algorithm / f"seed-{e.seed}", e, graph, lines, "finished", "", versions())


def seldom(one: Record, every: int) -> Record:
    """The run with local models in every n-th evaluation only."""
    lines = [m if k % every == 0 else replace(m, local=None) for k, m in enumerate(one.metrics)]
    return replace(one, metrics=lines)


def network(K: int) -> Network:
    """A ring."""
    return Network(
        edges=[(i, (i + 1) % K) for i in range(K)],
        positions=[(math.cos(i), math.sin(i)) for i in range(K)],
        label_counts=[[3, i] for i in range(K)],
        data_sha256="",
        rho=0.5,
    )


def run_record(e: Experiment, ends: Sequence[float], status: Status = "finished") -> RunRecord:
    """A run whose devices rise from 10 % to `ends`; an unfinished run has only the first half of the rounds."""
    rounds = sorted({*range(0, e.rounds + 1, e.eval_every), e.rounds})
    if status != "finished":
        rounds = [t for t in rounds if 2 * t <= e.rounds]
    lines = [metrics(t, [10 + (end - 10) * (t / e.rounds) ** 0.5 for end in ends]) for t in rounds]
    return store.run_record(Record(Path("run"), e, network(len(ends)), lines, status, "", versions()))


def pair(worst: Sequence[float], average: Sequence[float]) -> list[Row]:
    """DSGD with worst 40 and average 60 in every seed, and DR-DSGD above it by these differences."""
    runs = []
    for seed, (w, a) in enumerate(zip(worst, average, strict=True)):
        # devices at 40 + w, and two that bring the average to 60 + a
        rest = (3 * (60 + a) - (40 + w)) / 2
        runs += [record([40, 70, 70], algorithm="dsgd", seed=seed), record([40 + w, rest, rest], seed=seed)]
    return table(groups(runs))


# ------------------------------------------------------------------------ runs
