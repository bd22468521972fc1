"""The fair comparison: how much of a gain at the same eta is only another step size.

At the same eta DR-DSGD takes steps of eta h / mu, which at the paper's larger mu are a fraction of DSGD's. So beside
each comparison of the paper stand

    DSGD, matched step   at eta times the mean weight of DR-DSGD's gradients, over devices, seeds and evaluated rounds
    best eta             each algorithm at the eta of one grid that serves the worst-off device best, with a constant
                         step, and with one that falls linearly to zero

The best eta is chosen on validation data cut from the training set, with seeds that are not reported, by the
consensus model's worst accuracy (the average decides between equals). Test data choose nothing. The grid grows at
either end as long as the best of either algorithm lies there, and is the same for both.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from drdsgd.paper.claims import paired
from drdsgd.paper.plan import Comparison, DataName, Group, Settings, waiting
from drdsgd.paper.store import Done, ends
from drdsgd.summary import Estimate, Kind, Measure

__all__ = ["ALGORITHMS", "SCHEDULES", "Gain", "best", "gain", "grid", "matched", "sides", "trial", "trials", "variants"]

Algorithm = Literal["dsgd", "dr-dsgd"]
Schedule = Literal["constant", "linear"]

ALGORITHMS: dict[Algorithm, str] = {"dsgd": "DSGD", "dr-dsgd": "DR-DSGD"}
SCHEDULES: dict[Schedule, str] = {"constant": "best eta", "linear": "best eta, falling"}
MATCHED = "DSGD, matched step"
_SAME = ("DSGD", "DR-DSGD", MATCHED)
VALIDATION = 0.1
# multiples of sqrt(K / T) that are tried at first and at last, and with how many seeds: a run on CIFAR-10 takes thirty
# times as long
_AT_FIRST = (0.5, 1.0, 2.0, 4.0)
_AT_LAST = (1 / 16, 64.0)
_SEEDS: dict[DataName, int] = {"Fashion-MNIST": 2, "CIFAR-10": 1}


def trial(c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule, multiple: float) -> Group:
    """The runs on validation data at a multiple of the paper's eta."""
    at, wanted = c.tuned_at or c, 1 if s.quick else _SEEDS[c.data]
    seeds = itertools.islice((seed for seed in itertools.count(100) if seed not in s.seeds), wanted)
    return at.group(
        Settings(tuple(seeds), s.rounds, s.quick), algorithm,
        eta=_rounded(multiple * at.pair(s)["DSGD"].example.eta), eta_schedule=schedule, validation=VALIDATION,
        eval_every=at.fields["rounds"],
    )  # fmt: skip


def grid(c: Comparison, s: Settings, schedule: Schedule, done: Done) -> list[float]:
    """The multiples that are tried with both algorithms, as far as one can say by now."""
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
    """All runs on validation data, as far as one can say by now."""
    return [
        trial(c, s, algorithm, schedule, multiple)
        for schedule in SCHEDULES
        for algorithm in ALGORITHMS
        for multiple in grid(c, s, schedule, done)
    ]


def best(c: Comparison, s: Settings, algorithm: Algorithm, schedule: Schedule, done: Done) -> float | None:
    """The multiple that serves the worst-off device best on validation data; None if every step diverged."""
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
    """The eta of DSGD whose gradients are weighed as DR-DSGD's on average; None where no run of DR-DSGD finished."""
    group = c.pair(s)["DR-DSGD"]
    weights = [statistics.fmean(run.weight) for run in group.runs(done) if run.status == "finished"]
    return _rounded(group.example.eta * statistics.fmean(weights)) if weights else None


def variants(c: Comparison, s: Settings, done: Done) -> dict[str, Group]:
    """What stands beside a comparison at the same eta; a side for which every step diverged is left out."""
    rounds, eta = c.fields["rounds"], c.pair(s)["DSGD"].example.eta
    found: dict[str, Group] = {}

    def add(label: str, algorithm: Algorithm, step: float | None, known: bool, schedule: Schedule = "constant") -> None:
        if step is None and known:
            return
        group = c.group(s, algorithm, eta=_rounded(step or eta), eta_schedule=schedule, eval_every=rounds)
        found[label] = group if known else waiting(group)

    add(MATCHED, "dsgd", matched(c, s, done), _done([c.pair(s)["DR-DSGD"]], done))
    for schedule, name in SCHEDULES.items() if c.tuned else ():
        multiples = grid(c, s, schedule, done)
        for algorithm, label in ALGORITHMS.items():
            tried = [trial(c, s, one, schedule, multiple) for one in ALGORITHMS for multiple in multiples]
            multiple = best(c, s, algorithm, schedule, done)
            step = None if multiple is None else multiple * eta
            add(f"{label}, {name}", algorithm, step, _done(tried, done), schedule)
    return found


def _done(groups: Sequence[Group], done: Done) -> bool:
    return all(e in done for group in groups for e in group.experiments)


@dataclass(frozen=True)
class Gain:
    """DR-DSGD's gain over DSGD in one setting, in percentage points.

    `same_eta = step + rest`, all three over the same seeds. The rest is robustness, and what it makes that DR-DSGD's
    weights change over rounds while the matched step does not.
    """

    same_eta: Estimate
    step: Estimate  # DSGD with the matched step, over DSGD
    rest: Estimate  # DR-DSGD over DSGD with the matched step
    best: Estimate  # both at their best constant eta
    falling: Estimate  # both at their best eta that falls to zero


def sides(c: Comparison, s: Settings, done: Done) -> dict[str, Group]:
    """Both algorithms at the paper's eta, and what stands beside them."""
    return {**c.pair(s), **variants(c, s, done)}


def gain(sides: Mapping[str, Group], done: Done, kind: Kind, measure: Measure) -> Gain:
    """How much of the gain at the same eta is left when steps are matched, or tuned; all paired by seed."""
    at_end = {label: ends(group.runs(done), kind, measure) for label, group in sides.items() if group.ready}

    def of(label: str) -> dict[int, float]:
        return at_end.get(label, {})

    # without a matched step there is still a gain at the same eta
    seeds = of("DSGD").keys() & of("DR-DSGD").keys() & (of(MATCHED) or of("DSGD")).keys()
    dsgd, dr_dsgd, step = ({seed: value for seed, value in of(label).items() if seed in seeds} for label in _SAME)
    return Gain(
        paired(dr_dsgd, dsgd),
        paired(step, dsgd),
        paired(dr_dsgd, step),
        *(paired(of(f"DR-DSGD, {name}"), of(f"DSGD, {name}")) for name in SCHEDULES.values()),
    )


def _rounded(eta: float) -> float:
    """Three digits: an eta that can be typed."""
    return float(f"{eta:.3g}")
