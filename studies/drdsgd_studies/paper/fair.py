"""The fair comparison: how much of a gain at the same eta is due to the step size alone.

At the same eta DR-DSGD takes steps of eta h / mu, which at the paper's larger mu are a fraction of DSGD's. So each
comparison of the paper is extended by

    DSGD, matched step   at eta times the mean weight of DR-DSGD's gradients, over devices, seeds and evaluated rounds
    best eta             each algorithm at the eta of one grid that serves the worst-off device best, with a constant
                         step size, and with one that decays linearly to zero

The best eta is chosen on validation data cut from the training set, with seeds that are not reported, by the consensus
model's worst accuracy (the average decides between equals). Test data choose nothing. The grid is the same for both
algorithms, and grows at either end as long as the best eta of one of them lies there. Multiple 1 is exactly the paper's
eta.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from drdsgd.report.statistics import Estimate, Kind, Measure
from drdsgd_studies.shared.plan import Comparison, DataName, Group, Settings, rounded, waiting
from drdsgd_studies.shared.store import Done, RunRecord, ends

__all__ = [
    "ALGORITHMS", "SCHEDULES", "Gain", "best", "chosen_by", "gain", "grid", "matched", "paired_runs", "sides", "swing",
    "trial", "trials", "variants",
]  # fmt: skip

Algorithm = Literal["dsgd", "dr-dsgd"]
Schedule = Literal["constant", "linear"]

ALGORITHMS: dict[Algorithm, str] = {"dsgd": "DSGD", "dr-dsgd": "DR-DSGD"}
SCHEDULES: dict[Schedule, str] = {"constant": "best eta", "linear": "best eta, falling"}
MATCHED = "DSGD, matched step"
VALIDATION = 0.1
# multiples of sqrt(K / T) tried first, and the smallest and largest ones; and the number of seeds: a run on CIFAR-10
# takes thirty times as long
_AT_FIRST = (0.5, 1.0, 2.0, 4.0)
_AT_LAST = (1 / 16, 64.0)
_SEEDS: dict[DataName, int] = {"Fashion-MNIST": 2, "CIFAR-10": 1}


def trial(c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule, multiple: float) -> Group:
    """The runs on validation data at a multiple of the paper's eta."""
    at = c.tuned_at or c
    return at.group(
        replace(s, seeds=s.tuning_seeds(chosen_by(s, c.data))), algorithm,
        eta=_times(multiple, at.pair(s)["DSGD"].example.eta), eta_schedule=schedule, validation=VALIDATION,
        eval_every=at.fields["rounds"],
    )  # fmt: skip


def chosen_by(s: Settings, data: DataName) -> int:
    """The number of seeds that choose the best eta."""
    return 1 if s.quick else _SEEDS[data]


def grid(c: Comparison, s: Settings, schedule: Schedule, done: Done) -> list[float]:
    """The multiples to try with both algorithms, as far as the finished runs determine them."""
    if not c.tuned:
        return []
    if s.quick:
        return [1.0, 2.0]
    multiples = list(_AT_FIRST)
    while True:
        tried = [trial(c, s, algorithm, schedule, m) for algorithm in ALGORITHMS for m in multiples]
        if not all(e in done for group in tried for e in group.experiments):
            return multiples
        chosen = {_best(c, s, algorithm, schedule, multiples, done) for algorithm in ALGORITHMS}
        if multiples[-1] in chosen and multiples[-1] < _AT_LAST[1]:
            multiples.append(2 * multiples[-1])
        elif multiples[0] in chosen and multiples[0] > _AT_LAST[0]:
            multiples.insert(0, multiples[0] / 2)
        else:
            return multiples


def trials(c: Comparison, s: Settings, done: Done) -> list[Group]:
    """All runs on validation data, as far as the finished runs determine them."""
    return [
        trial(c, s, algorithm, schedule, multiple)
        for schedule in SCHEDULES
        for algorithm in ALGORITHMS
        for multiple in grid(c, s, schedule, done)
    ]


def best(c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule, done: Done) -> float | None:
    """The multiple that serves the worst-off device best on validation data; None if all diverged."""
    return _best(c, s, algorithm, schedule, grid(c, s, schedule, done), done)


def _best(
    c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule, multiples: Sequence[float], done: Done
) -> float | None:
    scores = {}
    for multiple in multiples:
        group = trial(c, s, algorithm, schedule, multiple)
        worst, average = (ends(group.runs(done), "consensus", measure) for measure in ("worst", "average"))
        if len(worst) == len(group.experiments):  # all done, and none diverged
            scores[multiple] = (statistics.fmean(worst.values()), statistics.fmean(average.values()))
    return max(scores, key=lambda multiple: scores[multiple]) if scores else None


def matched(c: Comparison, s: Settings, done: Done) -> float | None:
    """The eta at which DSGD's mean step equals DR-DSGD's; None where no run of DR-DSGD finished."""
    group = c.pair(s)["DR-DSGD"]
    weights = [statistics.fmean(run.weight) for run in group.runs(done) if run.status == "finished"]
    return rounded(group.example.eta * statistics.fmean(weights)) if weights else None


def variants(c: Comparison, s: Settings, done: Done) -> dict[str, Group]:
    """The sides that extend a comparison; a side for which every step size diverged is left out."""
    rounds, eta = c.fields["rounds"], c.pair(s)["DSGD"].example.eta
    found: dict[str, Group] = {}

    def add(label: str, algorithm: Algorithm, step: float | None, known: bool, schedule: Schedule = "constant") -> None:
        if step is None and known:
            return
        group = c.group(s, algorithm, eta=step or eta, eta_schedule=schedule, eval_every=rounds)
        if known and (step, schedule) == (eta, "constant"):
            group = c.group(s, algorithm)  # the paper's own runs
        found[label] = group if known else waiting(group)

    add(MATCHED, "dsgd", matched(c, s, done), _done([c.pair(s)["DR-DSGD"]], done))
    for schedule, name in SCHEDULES.items() if c.tuned else ():
        multiples = grid(c, s, schedule, done)
        for algorithm, label in ALGORITHMS.items():
            tried = [trial(c, s, one, schedule, multiple) for one in ALGORITHMS for multiple in multiples]
            multiple = best(c, s, algorithm, schedule, done)
            step = None if multiple is None else _times(multiple, eta)
            add(f"{label}, {name}", algorithm, step, _done(tried, done), schedule)
    return found


def _done(groups: Sequence[Group], done: Done) -> bool:
    return all(e in done for group in groups for e in group.experiments)


@dataclass(frozen=True)
class Gain:
    """DR-DSGD's gain over DSGD in one setting, in percentage points.

    `same_eta = step + rest`, all three over the same seeds. The rest is robustness, and the effect of weights that
    change over rounds while the matched step does not.
    """

    same_eta: Estimate
    step: Estimate  # DSGD with the matched step, over DSGD
    rest: Estimate  # DR-DSGD over DSGD with the matched step
    best: Estimate  # both at their best constant eta
    falling: Estimate  # both at their best eta that decays to zero


def sides(c: Comparison, s: Settings, done: Done) -> dict[str, Group]:
    """Both algorithms at the paper's eta, and the sides that extend the comparison."""
    return {**c.pair(s), **variants(c, s, done)}


# a gain is the difference of two sides
_OF = {
    "same_eta": ("DR-DSGD", "DSGD"),
    "step": (MATCHED, "DSGD"),
    "rest": ("DR-DSGD", MATCHED),
    "best": tuple(f"{label}, {SCHEDULES['constant']}" for label in ("DR-DSGD", "DSGD")),
    "falling": tuple(f"{label}, {SCHEDULES['linear']}" for label in ("DR-DSGD", "DSGD")),
}


def paired_runs(sides: Mapping[str, Group], done: Done) -> dict[str, list[tuple[RunRecord, RunRecord]]]:
    """The finished runs behind every gain, in pairs of the same seed."""
    ended = {
        label: {run.experiment.seed: run for run in group.runs(done) if run.status == "finished"}
        for label, group in sides.items()
        if group.ready
    }
    alike = ["DSGD", "DR-DSGD", *([MATCHED] if ended.get(MATCHED) else [])]
    found = {}
    for gain, (one, other) in _OF.items():
        # gains at the same eta use the same seeds, so that they add up
        needed = {one, other, *(alike if {one, other} & {*alike} else [])}
        seeds = set.intersection(*(set(ended.get(label, {})) for label in needed))
        found[gain] = [(ended[one][seed], ended[other][seed]) for seed in sorted(seeds)]
    return found


def gain(sides: Mapping[str, Group], done: Done, kind: Kind, measure: Measure) -> Gain:
    """The gain at the same eta, with matched steps, and with tuned ones; all paired by seed."""
    return Gain(**{
        name: Estimate.over([a.final(kind, measure) - b.final(kind, measure) for a, b in pairs])
        for name, pairs in paired_runs(sides, done).items()
    })  # fmt: skip


def swing(comparisons: Sequence[Comparison], s: Settings, done: Done) -> tuple[float, float] | None:
    """The lowest and highest worst accuracy over seeds at the paper's eta, where they differ most.

    They are the consensus model's; None where no setting has two finished seeds.
    """
    found = [
        (min(worst), max(worst))
        for c in comparisons
        for group in c.pair(s).values()
        if len(worst := ends(group.runs(done), "consensus", "worst").values()) > 1
    ]
    return max(found, key=lambda ends: ends[1] - ends[0], default=None)


def _times(multiple: float, eta: float) -> float:
    """A multiple of the paper's eta: exact for 1, else with three digits.

    >>> _times(1.0, 0.18257418), _times(2.0, 0.18257418)
    (0.18257418, 0.365)
    """
    return eta if multiple == 1 else rounded(multiple * eta)
