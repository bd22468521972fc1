"""What the comparisons of the paper have in common: DR-DSGD minus DSGD, paired by seed, and the claims about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from drdsgd.paper.claims import Claim, Finding, Verdict, less, more, no_price, paired, together
from drdsgd.paper.plan import Comparison, Settings
from drdsgd.paper.store import Done, Kept, ends
from drdsgd.summary import KINDS, Estimate, Kind, Measure

__all__ = ["NO_PRICE", "area", "average", "difference", "fewer_rounds", "findings", "stdev", "worst"]

NO_PRICE = "holds if the mean paired difference is at least -2 points, in part if at least -4"
CLEAR = "clear (95 % t-interval of the paired difference)"


def difference(c: Comparison, s: Settings, done: Done, kind: Kind, measure: Measure) -> Estimate:
    """DR-DSGD minus DSGD at the end, over the seeds that both finished."""
    pair = c.pair(s)
    dr_dsgd, dsgd = (ends(pair[label].runs(done), kind, measure) for label in ("DR-DSGD", "DSGD"))
    return paired(dr_dsgd, dsgd)


def findings(comparisons: Sequence[Comparison], find: Callable[[Comparison, Kind], Finding]) -> dict[str, Finding]:
    """A finding for every comparison and kind of model."""
    return {
        (f"{c.name}, {kind}" if len(comparisons) > 1 else kind): find(c, kind) for kind in KINDS for c in comparisons
    }


def points(d: Estimate, s: Settings) -> str:
    """A difference in words.

    >>> points(Estimate(1.5, 0.5, 4), Settings())
    '+1.5 ± 0.5 points (4 of 5 pairs finished)'
    """
    missing = "" if d.n == len(s.seeds) else f" ({d.n} of {len(s.seeds)} pairs finished)"
    return f"{d.format('+')} points{missing}" if d.n else f"no pair of {len(s.seeds)} finished"


def _claim(
    text: str, paper: str, rule: str, measure: Measure, verdict: Callable[[Estimate], Verdict],
    comparisons: Sequence[Comparison], s: Settings, done: Done,
) -> Claim:  # fmt: skip
    def find(c: Comparison, kind: Kind) -> Finding:
        d = difference(c, s, done, kind, measure)
        return Finding(points(d, s), verdict(d))

    return Claim(text, paper, rule, findings(comparisons, find))


def worst(comparisons: Sequence[Comparison], s: Settings, done: Done, number: float) -> Claim:
    """The worst accuracy is `number` points above DSGD's."""
    return _claim(
        "The worst-off device is served better than by DSGD", f"about +{number:g} points",
        f"holds if {CLEAR} and at least {number / 2:g} points, in part if more than one standard error above zero",
        "worst", lambda d: more(d, number), comparisons, s, done,
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
        "The STDEV over devices is smaller", "smaller",
        f"holds if below zero and {CLEAR}, in part if more than one standard error below zero",
        "stdev", less, comparisons, s, done,
    )  # fmt: skip


def above_each(cases: Mapping[str, Comparison], s: Settings, done: Done, kind: Kind) -> Finding:
    """Whether the worst accuracy is above DSGD's in each of several settings."""
    found = {name: difference(c, s, done, kind, "worst") for name, c in cases.items()}
    words = "; ".join(f"{name}: {points(d, s)}" for name, d in found.items())
    return Finding(words, together([more(d) for d in found.values()]))


def fewer_rounds(comparisons: Sequence[Comparison], s: Settings, done: Done, goal: float, times: float) -> Claim:
    """DR-DSGD's worst accuracy reaches `goal` with `times` fewer rounds than DSGD's."""

    def find(c: Comparison, kind: Kind) -> Finding:
        pair = c.pair(s)
        reached = {label: [first_round(run, kind, goal) for run in pair[label].runs(done)] for label in pair}
        return judge_rounds(reached["DSGD"], reached["DR-DSGD"], c.fields["rounds"], times)

    return Claim(
        f"{goal:g} % worst accuracy takes {times:g} times fewer rounds than with DSGD",
        f"{times:g} times fewer",
        f"of the seeds in which DR-DSGD gets there, the median of DSGD's rounds / DR-DSGD's (a DSGD run that never "
        f"does counts with all its rounds): holds if at least {times / 2:g} and most seeds do, in part if over 1",
        findings(comparisons, find),
    )


def first_round(run: Kept, kind: Kind, goal: float) -> int | None:
    """The first evaluated round at which the worst accuracy is at least `goal`."""
    return next(
        (t for t, value in zip(run.rounds, run.curves[kind]["worst"], strict=True) if value >= goal and t > 0), None
    )


def judge_rounds(dsgd: Sequence[int | None], dr_dsgd: Sequence[int | None], T: int, times: float) -> Finding:
    """The finding on rounds that each seed of both algorithms took (None: not within T).

    >>> judge_rounds([None, 90], [10, 9], T=100, times=10)
    Finding(ours='10.0 times fewer (median; DR-DSGD gets there in 2 of 2 seeds, DSGD in 1)', verdict='holds')
    >>> judge_rounds([None, 90], [None, None], T=100, times=10).verdict
    'does not hold'
    """
    there = f"DR-DSGD gets there in {_count(dr_dsgd)} of {len(dr_dsgd)} seeds, DSGD in {_count(dsgd)}"
    ratios = [(a or T) / b for a, b in zip(dsgd, dr_dsgd, strict=True) if b is not None]
    if not ratios:
        return Finding(there, "does not hold" if dr_dsgd else "cannot be told")
    ratio = statistics.median(ratios)
    most = 2 * len(ratios) > len(dr_dsgd)
    verdict: Verdict = "holds" if ratio >= times / 2 and most else "holds in part" if ratio > 1 else "does not hold"
    return Finding(f"{ratio:.1f} times fewer (median; {there})", verdict)


def _count(rounds: Sequence[int | None]) -> int:
    return sum(t is not None for t in rounds)


def area(runs: Sequence[Kept], kind: Kind) -> dict[int, float]:
    """The mean over rounds of the worst accuracy, by seed: what is learned faster has more of it."""
    return {
        run.experiment.seed: statistics.fmean(run.curves[kind]["worst"]) for run in runs if run.status == "finished"
    }
