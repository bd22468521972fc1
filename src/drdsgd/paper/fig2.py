"""Fig. 2: average, worst and STDEV of test accuracy against rounds on CIFAR-10, K = 10, mu = 6, p = 0.5.

T is not given; it is 300 here, as in Table 1.
"""

from __future__ import annotations

from drdsgd.paper import pairs
from drdsgd.paper.claims import Claim
from drdsgd.paper.plan import Comparison, Settings, base
from drdsgd.paper.store import Done

TITLE = "Fig. 2: CIFAR-10, K = 10, mu = 6, p = 0.5"


def comparisons(s: Settings) -> list[Comparison]:
    """DSGD against DR-DSGD."""
    fields = base(s, "CIFAR-10", K=10, T=300, p=0.5)
    return [Comparison("fig2", f"T = {fields['rounds']}", "CIFAR-10", 6.0, fields)]


def claims(s: Settings, done: Done) -> list[Claim]:
    """Worst accuracy up by 10 points at almost the same average, STDEV down."""
    both = comparisons(s)
    return [pairs.worst(both, s, done, 10.0), pairs.average(both, s, done), pairs.stdev(both, s, done)]
