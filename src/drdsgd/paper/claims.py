"""A claim of the paper, and what came of it: verdicts by stated rules, never by hand.

A rule is a function of measured numbers. Differences between two algorithms are paired by seed, and "clear" means
that the 95 % interval of their mean (Student's t, n - 1 degrees of freedom) does not hold zero.

    holds           the paper's sentence, with at least half of its number where it gives one
    holds in part   the direction is right by more than one standard error, but not clear; or the number is below half
                    of the paper's; or some parts of a claim come out and others do not
    does not hold   anything else that could be measured
    cannot be told  too few runs finished to measure it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from drdsgd.summary import Estimate

__all__ = ["Claim", "Finding", "Verdict", "clear", "less", "more", "no_price", "paired", "together", "trend"]

Verdict = Literal["holds", "holds in part", "does not hold", "cannot be told"]


@dataclass(frozen=True)
class Finding:
    """What was measured, in words, and the verdict on it."""

    ours: str
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its number, the rule it is judged by, and a finding for each thing measured.

    The findings of experiments are of the consensus model, which is the headline, and of the local models.
    """

    text: str
    paper: str
    rule: str
    findings: Mapping[str, Finding]


def clear(difference: Estimate) -> bool:
    """Whether the 95 % interval of a mean over seeds leaves out zero; one seed never tells.

    >>> clear(Estimate(3.0, 1.0, 5)), clear(Estimate(2.7, 1.0, 5))
    (True, False)
    """
    from scipy.stats import t

    return difference.n > 1 and abs(difference.mean) > float(t.ppf(0.975, difference.n - 1)) * difference.error


def more(difference: Estimate, number: float = 0.0) -> Verdict:
    """For "A is above B (by `number`)": clear and at least half the number, or above by a standard error, or not.

    >>> more(Estimate(8.0, 1.0, 5), 7.0), more(Estimate(3.0, 1.0, 5), 7.0), more(Estimate(-3.0, 1.0, 5))
    ('holds', 'holds in part', 'does not hold')
    """
    if difference.n < 2:
        return "cannot be told"
    if clear(difference) and difference.mean > 0 and difference.mean >= number / 2:
        return "holds"
    return "holds in part" if difference.mean > difference.error else "does not hold"


def less(difference: Estimate, number: float = 0.0) -> Verdict:
    """For "A is below B (by `number`)": `more` of the difference with its sign turned.

    >>> less(Estimate(-3.0, 1.0, 5)), less(Estimate(-2.0, 1.0, 5)), less(Estimate(-0.9, 1.0, 5))
    ('holds', 'holds in part', 'does not hold')
    """
    return more(_times(difference, -1), number)


def no_price(difference: Estimate, within: float = 2.0) -> Verdict:
    """For "almost the same average": lower by at most `within` points, by at most twice that, or by more.

    >>> [no_price(Estimate(d, 0.5, 5)) for d in (1.0, -1.9, -3.0, -5.0)]
    ['holds', 'holds', 'holds in part', 'does not hold']
    """
    if difference.n < 2:
        return "cannot be told"
    if difference.mean >= -within:
        return "holds"
    return "holds in part" if difference.mean >= -2 * within else "does not hold"


def trend(steps: Sequence[Mapping[int, float]], direction: Literal[1, -1]) -> Verdict:
    """For "goes up" (1) or "goes down" (-1) over a sequence, each step one value per seed.

    It holds if the means are in order and the paired difference of last and first is clear; in part, if that
    difference has the right sign by more than a standard error; else not.

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
    """For a claim of several parts: holds if all do, does not if none does even in part, else in part.

    >>> together(["holds", "holds"]), together(["holds", "does not hold"]), together(["does not hold"] * 2)
    ('holds', 'holds in part', 'does not hold')
    """
    told = [verdict for verdict in verdicts if verdict != "cannot be told"]
    if len(told) < len(verdicts):
        return "cannot be told"
    if all(verdict == told[0] for verdict in told):
        return told[0]
    return "holds in part"


def _times(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(factor * estimate.mean, abs(factor) * estimate.error, estimate.n)
