"""The fair comparison: how much of a gain at the same eta is robustness, and how much is only another step size.

At the same eta DR-DSGD takes steps of eta h / mu, which at the paper's mu are a fifth or less of DSGD's. So beside
each comparison of the paper stand

    DSGD, matched step   at eta times the mean weight (over rounds, devices, seeds) that DR-DSGD's gradients had
    best eta             each algorithm at the eta of one grid that serves the worst-off device best, with a constant
                         step, and with one that falls linearly to zero

The best eta is chosen on validation data cut from the training set, with seeds that are not reported, by the
consensus model's worst accuracy (the average decides between equals). Test data choose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from drdsgd.paper.claims import paired
from drdsgd.paper.plan import Comparison, DataName, Group, Settings, waiting
from drdsgd.paper.store import Done, ends
from drdsgd.summary import Estimate, Kind, Measure

__all__ = ["ALGORITHMS", "SCHEDULES", "Gain", "best", "gain", "matched", "multiples", "trials", "variants"]

Algorithm = Literal["dsgd", "dr-dsgd"]
Schedule = Literal["constant", "linear"]

ALGORITHMS: dict[Algorithm, str] = {"dsgd": "DSGD", "dr-dsgd": "DR-DSGD"}
SCHEDULES: dict[Schedule, str] = {"constant": "best eta", "linear": "best eta, falling"}
MATCHED = "DSGD, matched step"
VALIDATION = 0.1
# multiples of sqrt(K / T) that are tried, and with which seeds: a run on CIFAR-10 takes thirty times as long
_MULTIPLES: dict[DataName, tuple[float, ...]] = {
    "Fashion-MNIST": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    "CIFAR-10": (0.5, 1.0, 2.0, 4.0, 8.0),
}
_SEEDS: dict[DataName, tuple[int, ...]] = {"Fashion-MNIST": (100, 101), "CIFAR-10": (100,)}


def multiples(s: Settings, data: DataName) -> tuple[float, ...]:
    """The grid of steps, the same for both algorithms, in units of sqrt(K / T)."""
    return (1.0, 2.0) if s.quick else _MULTIPLES[data]


def trials(c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule) -> dict[float, Group]:
    """The runs on validation data, by multiple of the paper's eta."""
    at, seeds = c.tuned_at or c, (100,) if s.quick else _SEEDS[c.data]
    alone = Settings(seeds, s.rounds, s.quick)
    eta = at.pair(s)["DSGD"].example.eta
    return {
        multiple: at.group(
            alone, algorithm, eta=_rounded(multiple * eta), eta_schedule=schedule, validation=VALIDATION,
            eval_every=at.fields["rounds"],
        )
        for multiple in multiples(s, c.data)
    }  # fmt: skip


def best(c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule, done: Done) -> float | None:
    """The multiple that serves the worst-off device best on validation data; None if every step diverged."""
    scores = {}
    for multiple, group in trials(c, s, algorithm, schedule).items():
        runs = group.runs(done)
        if all(run.status == "finished" for run in runs):
            scores[multiple] = tuple(
                Estimate.over(list(ends(runs, "consensus", measure).values())).mean for measure in ("worst", "average")
            )
    return max(scores, key=lambda multiple: scores[multiple]) if scores else None


def matched(c: Comparison, s: Settings, done: Done) -> float:
    """The eta of DSGD whose steps are as long as DR-DSGD's on average; DR-DSGD's eta where none of its runs is done."""
    group = c.pair(s)["DR-DSGD"]
    weights = [sum(run.weight) / len(run.weight) for run in group.runs(done) if run.status == "finished"]
    return _rounded(group.example.eta * sum(weights) / len(weights)) if weights else group.example.eta


def variants(c: Comparison, s: Settings, done: Done) -> dict[str, Group]:
    """What stands beside a comparison at the same eta."""
    rounds, eta = c.fields["rounds"], c.pair(s)["DSGD"].example.eta

    def ready(groups: Sequence[Group]) -> bool:
        return all(e in done for group in groups for e in group.experiments)

    step = c.group(s, "dsgd", eta=matched(c, s, done), eval_every=rounds)
    found = {MATCHED: step if ready([c.pair(s)["DR-DSGD"]]) else waiting(step)}
    for schedule, name in SCHEDULES.items() if c.tuned else ():
        for algorithm, label in ALGORITHMS.items():
            tried = ready(list(trials(c, s, algorithm, schedule).values()))
            multiple = best(c, s, algorithm, schedule, done) if tried else None
            group = c.group(
                s, algorithm, eta=_rounded((multiple or 1.0) * eta), eta_schedule=schedule, eval_every=rounds
            )
            found[f"{label}, {name}"] = group if multiple is not None else waiting(group)
    return found


@dataclass(frozen=True)
class Gain:
    """DR-DSGD's gain over DSGD in one setting, in percentage points: `same_eta = step + robustness`."""

    same_eta: Estimate
    step: Estimate  # DSGD with the matched step, over DSGD
    robustness: Estimate  # DR-DSGD over DSGD with the matched step
    best: Estimate  # both at their best constant eta
    falling: Estimate  # both at their best eta that falls to zero


def gain(c: Comparison, s: Settings, done: Done, kind: Kind, measure: Measure) -> Gain:
    """How much of the gain at the same eta is left when steps are matched, or tuned; all paired by seed."""
    groups = {**c.pair(s), **variants(c, s, done)}
    at_end = {label: ends(group.runs(done) if group.ready else [], kind, measure) for label, group in groups.items()}
    none: dict[int, float] = {}
    return Gain(
        paired(at_end["DR-DSGD"], at_end["DSGD"]),
        paired(at_end[MATCHED], at_end["DSGD"]),
        paired(at_end["DR-DSGD"], at_end[MATCHED]),
        *(
            paired(at_end.get(f"DR-DSGD, {name}", none), at_end.get(f"DSGD, {name}", none))
            for name in SCHEDULES.values()
        ),
    )


def _rounded(eta: float) -> float:
    """Three digits: an eta that can be typed."""
    return float(f"{eta:.3g}")
