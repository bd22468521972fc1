"""DR-DSGD minus DSGD, paired by seed, and the claims about it that several figures share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from drdsgd.report.statistics import KINDS, Estimate, Kind, Measure
from drdsgd_studies.shared.claims import (
    NOT_RUN,
    Claim,
    Finding,
    Verdict,
    despite,
    less,
    more,
    no_price,
    paired,
    together,
)
from drdsgd_studies.shared.plan import Comparison, Settings
from drdsgd_studies.shared.store import Done, RunRecord, diverged, ends

__all__ = [
    "EACH", "NO_PRICE", "above_each", "area", "average", "difference", "fewer_rounds", "findings", "first_rounds",
    "found", "judge_rounds", "judged", "points", "rule", "stdev", "worst",
]  # fmt: skip

# percent: if the worst accuracies of both algorithms are below it, their difference means little
FLOOR = 5.0
LOST = "with diverged runs of DR-DSGD in part at most, and not at all if most diverge"
NO_PRICE = (
    "holds if the 95 % interval of the paired difference is above -2 points, in part if its mean is, does not if the "
    f"interval is below; {LOST}"
)


def rule(holds: str = "above zero", fails: str = "below zero", in_part: str = "") -> str:
    """The rule of `claims.more` in words: where the interval is, and when a clear difference is not enough.

    >>> rule().split(";")[0]
    'by the 95 % t-interval of the paired difference: holds if it is above zero, else does not if it is below zero, ...'
    """
    return (
        f"by the 95 % t-interval of the paired difference: holds if it is {holds}"
        + (f" (in part if {in_part})" if in_part else "")
        + f", else does not if it is {fails}, else it cannot be told; {LOST}"
    )


def difference(c: Comparison, s: Settings, done: Done, kind: Kind, measure: Measure) -> Estimate:
    """DR-DSGD minus DSGD at the end, over the seeds that both finished."""
    pair = c.pair(s)
    dr_dsgd, dsgd = (ends(pair[label].runs(done), kind, measure) for label in ("DR-DSGD", "DSGD"))
    return paired(dr_dsgd, dsgd)


def judged(c: Comparison, s: Settings, done: Done, verdict: Verdict) -> Verdict:
    """A verdict on DR-DSGD's finished runs, lowered if some diverged."""
    runs = c.pair(s)["DR-DSGD"].runs(done)
    return despite(diverged(runs), len(runs), verdict)


def found(comparisons: Iterable[Comparison], s: Settings, done: Done, finding: Finding) -> Finding:
    """A finding on comparisons, or `NOT_RUN` if none of their runs is done."""
    begun = any(group.runs(done) for c in comparisons for group in c.pair(s).values())
    return finding if begun else NOT_RUN


def findings(comparisons: Sequence[Comparison], find: Callable[[Comparison, Kind], Finding]) -> dict[str, Finding]:
    """A finding for every comparison and kind of model."""
    return {
        (f"{c.name}, {kind}" if len(comparisons) > 1 else kind): find(c, kind) for kind in KINDS for c in comparisons
    }


def points(d: Estimate, s: Settings, note: str = "") -> str:
    """A difference in words.

    >>> points(Estimate(1.5, 0.5, 4), Settings())
    '+1.5 ± 0.5 points (95 %: −0.1 to +3.1; 4 of 5 pairs finished)'
    """
    if not d.n:
        return f"no pair of {len(s.seeds)} finished"
    low, high = d.interval
    notes = [f"95 %: {low:+.1f} to {high:+.1f}".replace("-", "−")] if d.n > 1 else []
    notes += [f"{d.n} of {len(s.seeds)} pairs finished"] if d.n < len(s.seeds) else []
    notes += [note] if note else []
    return f"{d.format('+')} points" + (f" ({'; '.join(notes)})" if notes else "")


def _floor(c: Comparison, s: Settings, done: Done, kind: Kind) -> str:
    """A note if both worst accuracies are close to zero; else empty."""
    worst = {label: ends(group.runs(done), kind, "worst").values() for label, group in c.pair(s).items()}
    if not all(values and statistics.fmean(values) < FLOOR for values in worst.values()):
        return ""
    there = ", ".join(f"{label} {statistics.fmean(values):.1f} %" for label, values in worst.items())
    return f"both near the floor, {there}"


def _claim(
    text: str, paper: str, rule: str, measure: Measure, verdict: Callable[[Estimate], Verdict],
    comparisons: Sequence[Comparison], s: Settings, done: Done,
) -> Claim:  # fmt: skip
    def find(c: Comparison, kind: Kind) -> Finding:
        d = difference(c, s, done, kind, measure)
        note = _floor(c, s, done, kind) if measure == "worst" else ""
        return found([c], s, done, Finding(points(d, s, note), judged(c, s, done, verdict(d))))

    return Claim(text, paper, rule, findings(comparisons, find))


def worst(comparisons: Sequence[Comparison], s: Settings, done: Done, number: float) -> Claim:
    """The worst accuracy is `number` points above DSGD's."""
    return _claim(
        "The worst-off device is served better than by DSGD", f"about +{number:g} points",
        rule("above zero", f"below {number / 2:g} points", f"its mean is less than {number / 2:g} points"),
        "worst", lambda d: more(d, number / 2), comparisons, s, done,
    )  # fmt: skip


def average(comparisons: Sequence[Comparison], s: Settings, done: Done) -> Claim:
    """The average accuracy is almost DSGD's."""
    return _claim(
        "The average accuracy is almost the same", "almost the same", NO_PRICE,
        "average", no_price, comparisons, s, done,
    )  # fmt: skip


def stdev(comparisons: Sequence[Comparison], s: Settings, done: Done) -> Claim:
    """The standard deviation over devices is below DSGD's."""
    return _claim(
        "The STDEV over devices is smaller", "smaller", rule("below zero", "above zero"),
        "stdev", less, comparisons, s, done,
    )  # fmt: skip


def above_each(cases: Mapping[str, Comparison], s: Settings, done: Done, kind: Kind) -> Finding:
    """Whether the worst accuracy is above DSGD's in each of several settings."""
    gains = {name: difference(c, s, done, kind, "worst") for name, c in cases.items()}
    words = "; ".join(f"{name}: {points(gains[name], s, _floor(c, s, done, kind))}" for name, c in cases.items())
    verdict = together([judged(c, s, done, more(gains[name])) for name, c in cases.items()])
    return found(cases.values(), s, done, Finding(words, verdict))


EACH = f"for each {rule()}; for all, in part if it holds for some only, not if for none"


def fewer_rounds(comparisons: Sequence[Comparison], s: Settings, done: Done, goal: float, times: float) -> Claim:
    """DR-DSGD's worst accuracy reaches `goal` with `times` fewer rounds than DSGD's."""

    def find(c: Comparison, kind: Kind) -> Finding:
        pair = c.pair(s)
        dsgd, dr_dsgd = (first_rounds(pair[label].runs(done), kind, goal) for label in ("DSGD", "DR-DSGD"))
        return found([c], s, done, judge_rounds(dsgd, dr_dsgd, c.fields["rounds"], times))

    return Claim(
        f"{goal:g} % worst accuracy takes {times:g} times fewer rounds than with DSGD",
        f"{times:g} times fewer (the abstract: up to 20)",
        "of DSGD's rounds / DR-DSGD's, seed by seed (a run that never gets there, or diverges, counts with all "
        "rounds), by the 95 % t-interval of the geometric mean: holds if it is above 1 (in part if the mean is below "
        f"{times / 2:g}), else does not if it is below {times / 2:g}, else it cannot be told",
        findings(comparisons, find),
    )


def first_rounds(runs: Sequence[RunRecord], kind: Kind, goal: float) -> dict[int, int | None]:
    """The first evaluated round with a worst accuracy of at least `goal`, by seed; a run that diverges has none."""

    def first(run: RunRecord) -> int | None:
        worst = zip(run.rounds, run.curves[kind]["worst"], strict=True)
        return next((t for t, value in worst if value >= goal and t > 0 and run.status == "finished"), None)

    return {run.experiment.seed: first(run) for run in runs}


def judge_rounds(dsgd: Mapping[int, int | None], dr_dsgd: Mapping[int, int | None], T: int, times: float) -> Finding:
    """The finding on rounds that both algorithms took, by seed (None: not within T).

    >>> judge_rounds({0: None, 1: 90, 2: 100}, {0: 10, 1: 9, 2: 11}, T=100, times=10)
    Finding(ours='9.7 times fewer (95 %: 8.4 to 11.1; DR-DSGD gets there in 3 of 3 seeds, DSGD in 2)', verdict='holds')
    >>> judge_rounds({0: None, 1: 90}, {0: None, 1: None}, T=100, times=10).verdict
    'does not hold'
    >>> judge_rounds({0: None}, {0: None}, T=100, times=10)
    Finding(ours='neither gets there in any of 1 seeds', verdict='does not hold')
    """
    seeds = sorted(dsgd.keys() & dr_dsgd.keys())
    ratios = [(dsgd[seed] or T) / (dr_dsgd[seed] or T) for seed in seeds]
    if not ratios:
        return Finding("no pair is done", "cannot be told")
    if not _count(dsgd, seeds) + _count(dr_dsgd, seeds):  # all numbers are cut off at T: an interval would mean nothing
        return Finding(f"neither gets there in any of {len(seeds)} seeds", "does not hold")
    logs = Estimate.over([math.log(ratio) for ratio in ratios])
    low, high = (f"{math.exp(end):.1f}" for end in logs.interval) if logs.n > 1 else ("", "")
    within = f"95 %: {low} to {high}; " if logs.n > 1 else ""
    there = f"DR-DSGD gets there in {_count(dr_dsgd, seeds)} of {len(seeds)} seeds, DSGD in {_count(dsgd, seeds)}"
    return Finding(f"{math.exp(logs.mean):.1f} times fewer ({within}{there})", more(logs, math.log(times / 2)))


def _count(rounds: Mapping[int, int | None], seeds: Sequence[int]) -> int:
    return sum(rounds[seed] is not None for seed in seeds)


def area(runs: Sequence[RunRecord], kind: Kind) -> dict[int, float]:
    """The mean over rounds of the worst accuracy, by seed; the faster, the larger."""
    return {
        run.experiment.seed: statistics.fmean(run.curves[kind]["worst"]) for run in runs if run.status == "finished"
    }
