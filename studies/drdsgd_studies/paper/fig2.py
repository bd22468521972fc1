"""fig2: average, worst and STDEV of test accuracy against rounds on CIFAR-10, K = 10, mu = 6, p = 0.5.

T is not given; it is 300 here, as in Table 1. The scaling of the pixels is not given either: here every channel has
mean 0 and deviation 1, and `readings` shows why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drdsgd_studies.paper import fair, pairs
from drdsgd_studies.shared.claims import Claim
from drdsgd_studies.shared.plan import Comparison, Group, Settings, base
from drdsgd_studies.shared.store import Done

__all__ = ["TITLE", "claims", "comparisons", "readings"]

TITLE = "Fig. 2: CIFAR-10, K = 10, mu = 6, p = 0.5"


def comparisons(s: Settings) -> list[Comparison]:
    """DSGD against DR-DSGD."""
    fields = base(s, "CIFAR-10", K=10, T=300, p=0.5)
    return [Comparison("fig2", f"T = {fields['rounds']}", "CIFAR-10", 6.0, fields)]


def readings(s: Settings) -> dict[str, Group]:
    """The same with pixels in [0, 1], for two seeds, and with more classes on each device, for one."""
    (c,), first, two = comparisons(s), replace(s, seeds=s.seeds[:1]), replace(s, seeds=s.seeds[:2])
    choices: tuple[tuple[str, Settings, dict[str, Any]], ...] = (
        ("pixels in [0, 1]", two, {"scaling": "unit"}),
        ("4 shards", first, {"shards": 4}),
    )
    return {
        f"{label}, {name}": c.group(some, algorithm, **fields)
        for name, some, fields in choices
        for algorithm, label in fair.ALGORITHMS.items()
    }


def claims(s: Settings, done: Done) -> list[Claim]:
    """Worst accuracy up by 10 points at almost the same average, STDEV down."""
    both = comparisons(s)
    return [pairs.worst(both, s, done, 10.0), pairs.average(both, s, done), pairs.stdev(both, s, done)]
