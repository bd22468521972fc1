"""The experiments behind figures and tables.

A `Comparison` is DSGD against DR-DSGD in one setting at the same eta, as in the paper; `fair` adds what the paper
leaves out. A `Group` is one setting over all seeds. Everything here is a pure function of `Settings` and of the runs
that are done. A setting that depends on results (an eta chosen on validation data) becomes `ready` with these results;
until then it stands in for the cost.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from drdsgd.experiments.config import BEFORE, Experiment
from drdsgd_studies.shared.store import Done, RunRecord

__all__ = ["Comparison", "DataName", "Group", "Settings", "base", "cost", "rounded", "waiting"]

DataName = Literal["Fashion-MNIST", "CIFAR-10"]

# The paper's data sets and models; a quick check uses the embedded data instead. The paper does not tell how pixels are
# scaled: bytes / 255 are good enough for the MLP, but with them the CNN learns next to nothing (fig2.readings).
_REAL: dict[DataName, dict[str, Any]] = {
    "Fashion-MNIST": {"dataset": "fashion-mnist", "model": "mlp"},
    "CIFAR-10": {"dataset": "cifar10", "model": "cnn", "scaling": "standard"},
}
_QUICK: dict[DataName, dict[str, Any]] = {
    "Fashion-MNIST": {"dataset": "digits", "model": "mlp:32"},
    "CIFAR-10": {"dataset": "digits", "model": "mlp:16"},
}
QUICK_ROUNDS = 30
# evaluations of a run whose curve is drawn
EVALUATIONS: dict[DataName, int] = {"Fashion-MNIST": 30, "CIFAR-10": 15}
# Seconds for a step on one sample, and for a prediction, with each model on one core of the machine that made
# docs/results. Only their ratio matters: it tells how much of a job is done.
_STEP, _GUESS = {"mlp": 1e-5, "cnn": 8e-4}, {"mlp": 4e-6, "cnn": 3.5e-4}
_TESTED = {"fashion-mnist": 10_000, "cifar10": 10_000, "digits": 360}


@dataclass(frozen=True)
class Settings:
    """The user's choices: seeds, a number of rounds in place of every T, and whether it is a quick check."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rounds: int | None = None
    quick: bool = False

    def T(self, paper: int) -> int:
        """The number of rounds, where `paper` is the paper's (or ours, where the paper names none)."""
        return self.rounds or (QUICK_ROUNDS if self.quick else paper)

    def tuning_seeds(self, n: int) -> tuple[int, ...]:
        """The first n seeds from 100 on that are not reported; tuning uses these."""
        return tuple(itertools.islice((seed for seed in itertools.count(100) if seed not in self.seeds), n))


def base(s: Settings, data: DataName, K: int, T: int, **fields: Any) -> dict[str, Any]:
    """The fields that all runs of a setting have in common: eta = sqrt(K / T) and B = sqrt(K T) follow from them."""
    rounds = s.T(T)
    return {
        **(_QUICK if s.quick else _REAL)[data],
        "devices": K,
        "rounds": rounds,
        "eval_every": max(1, rounds // EVALUATIONS[data]),
        "threads": 1,  # the last bits may depend on it; several runs share the cores
        **fields,
    }


@dataclass(frozen=True)
class Group:
    """One setting over all seeds, in the order of the seeds."""

    experiments: tuple[Experiment, ...]
    ready: bool = True

    @staticmethod
    def of(s: Settings, fields: Mapping[str, Any], *, ready: bool = True) -> Group:
        """The setting with these fields, for every seed."""
        return Group(_experiments(s.seeds, tuple(fields.items())), ready)

    @property
    def example(self) -> Experiment:
        """The first of them: they differ in the seed only."""
        return self.experiments[0]

    def runs(self, done: Done) -> list[RunRecord]:
        """Its runs that are done; none while it is not ready, as it only stands in for others then."""
        return [done[e] for e in self.experiments if e in done] if self.ready else []


# a study's runs are compared with each other, so new ones are evaluated and computed as the first were (`BEFORE`)
@functools.cache  # every table and figure asks again, and each experiment is validated when it is made
def _experiments(seeds: tuple[int, ...], fields: tuple[tuple[str, Any], ...]) -> tuple[Experiment, ...]:
    return tuple(Experiment(**{**BEFORE, **dict(fields)}, seed=seed) for seed in seeds)


@dataclass(frozen=True, eq=False)
class Comparison:
    """DSGD and DR-DSGD in one setting. Both have these `fields`.

    `tuned_at` is where their best step sizes are chosen, if not here; if `tuned` is false, none are chosen.
    """

    part: str  # fig1, …
    name: str
    data: DataName
    mu: float
    fields: dict[str, Any]
    tuned_at: Comparison | None = None
    tuned: bool = True

    def group(self, s: Settings, algorithm: Literal["dsgd", "dr-dsgd"], **fields: Any) -> Group:
        """One of the two at the paper's eta, or with other fields."""
        own = {"mu": self.mu} if algorithm == "dr-dsgd" else {}
        return Group.of(s, {**self.fields, "algorithm": algorithm, **own, **fields})

    def pair(self, s: Settings) -> dict[str, Group]:
        """Both at the paper's eta."""
        return {"DSGD": self.group(s, "dsgd"), "DR-DSGD": self.group(s, "dr-dsgd")}


def cost(e: Experiment) -> float:
    """The approximate seconds that a run takes on one core.

    >>> round(cost(Experiment(dataset="fashion-mnist", devices=25, rounds=300, eval_every=10)))
    9
    """
    model = "cnn" if e.model == "cnn" else "mlp"
    evaluations = 1 + -(-e.rounds // e.eval_every)
    steps, tested = int(e.rounds) * e.devices * int(e.batch_size), 2 * evaluations * _TESTED.get(e.dataset, 1000)
    return float(0.1 + _STEP[model] * steps + _GUESS[model] * tested)


def waiting(group: Group) -> Group:
    """The same group, not ready."""
    return replace(group, ready=False)


def rounded(eta: float) -> float:
    """A step size with three digits, which can be typed."""
    return float(f"{eta:.3g}")
