"""Claims and the verdicts on them, which follow stated rules and are never made by hand.

A rule is a function of measured numbers. Differences between two algorithms are paired by seed, and judged by the 95 %
interval of their mean (Student's t, n - 1 degrees of freedom).

    holds           the whole interval is on the claimed side, and the mean is at least half of the paper's number, if
                    there is one
    holds in part   the whole interval is on the claimed side, but the mean is less; or only some parts of a claim hold
    does not hold   the whole interval is below half of the paper's number, or below zero without a number
    cannot be told  the interval allows both, or there are fewer than two seeds
    not run yet     none of the runs is done
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from drdsgd.report.statistics import Estimate

__all__ = [
    "NOT_RUN", "Claim", "Finding", "Verdict", "both", "despite", "less", "more", "no_price", "paired", "together",
    "trend",
]  # fmt: skip

Verdict = Literal["holds", "holds in part", "does not hold", "cannot be told"]


@dataclass(frozen=True)
class Finding:
    """A measurement in words, and the verdict on it."""

    ours: str
    verdict: Verdict | Literal["not run yet"]


NOT_RUN = Finding("no run is done", "not run yet")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its number, the rule for the verdict, and a finding for each thing measured.

    Experiments have findings for the consensus model, which is the headline, and for the local models.
    """

    text: str
    paper: str
    rule: str
    findings: Mapping[str, Finding]


def more(difference: Estimate, enough: float = 0.0) -> Verdict:
    """For "A is above B": clearly, and by `enough` (half of the paper's number); clearly; clearly not; or not clearly.

    >>> more(Estimate(8.0, 1.0, 5), 3.5), more(Estimate(3.0, 1.0, 5), 3.5), more(Estimate(0.5, 1.0, 5), 3.5)
    ('holds', 'holds in part', 'does not hold')
    >>> more(Estimate(3.0, 9.0, 5), 3.5), more(Estimate(8.0, math.nan, 1))
    ('cannot be told', 'cannot be told')
    """
    low, high = difference.interval
    if low > 0:
        return "holds" if difference.mean >= enough else "holds in part"
    return "does not hold" if high < enough or high <= 0 else "cannot be told"


def less(difference: Estimate, enough: float = 0.0) -> Verdict:
    """For "A is below B": `more` with the opposite sign.

    >>> less(Estimate(-3.0, 1.0, 5)), less(Estimate(3.0, 1.0, 5)), less(Estimate(-2.0, 1.0, 5))
    ('holds', 'does not hold', 'cannot be told')
    """
    return more(_times(difference, -1), enough)


def no_price(difference: Estimate, within: float = 2.0) -> Verdict:
    """For "almost the same average": clearly not lower by more than `within` points; its mean is not; clearly lower.

    >>> [no_price(Estimate(d, 0.5, 5)) for d in (1.0, -1.9, -3.0, -5.0)]
    ['holds', 'holds in part', 'cannot be told', 'does not hold']
    """
    low, high = difference.interval
    if low >= -within:
        return "holds"
    if high < -within:
        return "does not hold"
    return "holds in part" if difference.n > 1 and difference.mean >= -within else "cannot be told"


def trend(steps: Sequence[Mapping[int, float]], direction: Literal[1, -1]) -> Verdict:
    """For "goes up" (1) or "goes down" (-1) over a sequence, each step one value per seed.

    Judged by the paired difference of last and first; it holds only if all means are in order, too.

    >>> trend([{0: 1.0, 1: 1.1}, {0: 2.0, 1: 2.2}, {0: 3.0, 1: 3.1}], 1)
    'holds'
    >>> trend([{0: 1.0, 1: 1.1}, {0: 2.0, 1: 2.2}, {0: 3.0, 1: 3.1}], -1)
    'does not hold'
    """
    verdict = more(_times(paired(steps[-1], steps[0]), direction))
    means = [direction * math.fsum(step.values()) / len(step) for step in steps if step]
    ordered = len(means) == len(steps) and all(a < b for a, b in itertools.pairwise(means))
    return "holds in part" if verdict == "holds" and not ordered else verdict


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate:
    """The mean difference a - b over the seeds that both have.

    >>> paired({0: 2.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 1.0})
    Estimate(mean=2.0, error=1.0, n=2)
    """
    return Estimate.over([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """For a claim about several cases: their verdict if they agree; in part if some hold at least in part; else not.

    >>> together(["holds", "holds"]), together(["holds", "does not hold"])
    ('holds', 'holds in part')
    >>> together(["cannot be told", "cannot be told"]), together(["does not hold", "cannot be told"])
    ('cannot be told', 'does not hold')
    """
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "holds in part" if {"holds", "holds in part"} & set(verdicts) else "does not hold"


def both(one: Verdict, other: Verdict) -> Verdict:
    """For "A and B": the worse of the two.

    >>> both("holds", "holds in part"), both("holds", "does not hold"), both("holds", "cannot be told")
    ('holds in part', 'does not hold', 'cannot be told')
    """
    order: tuple[Verdict, ...] = ("does not hold", "cannot be told", "holds in part", "holds")
    return min(one, other, key=order.index)


def despite(lost: int, runs: int, verdict: Verdict) -> Verdict:
    """A verdict on finished runs where some diverged: it holds in part at most, and not at all if most diverged.

    >>> despite(0, 5, "holds"), despite(1, 5, "holds"), despite(3, 5, "holds"), despite(1, 5, "cannot be told")
    ('holds', 'holds in part', 'does not hold', 'cannot be told')
    """
    if 2 * lost > runs:
        return "does not hold"
    return "holds in part" if lost and verdict == "holds" else verdict


def _times(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(factor * estimate.mean, abs(factor) * estimate.error, estimate.n)
