"""fig4: worst test accuracy against rounds for denser and denser graphs, p = 0.3, 0.45, 0.6; K = 25, mu = 6."""

from __future__ import annotations

from drdsgd.report.statistics import KINDS, Estimate, Kind
from drdsgd_studies.paper import pairs
from drdsgd_studies.paper.fig3 import ROUNDS
from drdsgd_studies.shared.claims import Claim, Finding, Verdict, together, trend
from drdsgd_studies.shared.plan import Comparison, DataName, Settings, base
from drdsgd_studies.shared.store import Done, ends

__all__ = ["DATA", "PS", "TITLE", "cases", "claims", "comparisons", "denser"]

TITLE = "Fig. 4: denser graphs, K = 25, mu = 6"

DATA: tuple[DataName, ...] = ("Fashion-MNIST", "CIFAR-10")
PS = (0.3, 0.45, 0.6)


def cases(s: Settings, data: DataName) -> dict[str, Comparison]:
    """DSGD against DR-DSGD for every p. The best eta is that of the first p; on CIFAR-10 none is searched."""

    def case(p: float, tuned_at: Comparison | None = None) -> Comparison:
        fields, tuned = base(s, data, K=25, T=ROUNDS[data], p=p), data == "Fashion-MNIST"
        return Comparison("fig4", f"{data}, p = {p:g}", data, 6.0, fields, tuned_at, tuned)

    first = case(PS[0])
    return {f"p = {p:g}": first if p == PS[0] else case(p, first) for p in PS}


def comparisons(s: Settings) -> list[Comparison]:
    """All comparisons, on both data sets."""
    return [c for data in DATA for c in cases(s, data).values()]


def claims(s: Settings, done: Done) -> list[Claim]:
    """Denser is better for both algorithms, and DR-DSGD is above DSGD for each p."""
    return [claim for data in DATA for claim in _claims(data, s, done)]


def _claims(data: DataName, s: Settings, done: Done) -> list[Claim]:
    by_p = cases(s, data)
    return [
        Claim(
            f"{data}: DR-DSGD's worst accuracy is above DSGD's for each p", "above for each p",
            pairs.EACH,
            {kind: pairs.above_each(by_p, s, done, kind) for kind in KINDS},
        ),
        Claim(
            f"{data}: a denser graph serves the worst-off device better", "better for both algorithms",
            "for each algorithm by the 95 % t-interval of the worst accuracy at the last p minus that at the first, "
            "paired by seed: holds if it is above zero and the means between are in order, in part if they are not, "
            "does not if it is below, else it cannot be told; for both, in part if it holds for one, else not",
            {kind: denser(list(by_p.values()), s, done, kind) for kind in KINDS},
        ),
    ]  # fmt: skip


def denser(by_p: list[Comparison], s: Settings, done: Done, kind: Kind) -> Finding:
    """Whether the worst accuracy of both algorithms rises along the comparisons."""
    words: list[str] = []
    verdicts: list[Verdict] = []
    for label in ("DSGD", "DR-DSGD"):
        steps = [ends(c.pair(s)[label].runs(done), kind, "worst") for c in by_p]
        verdicts.append(trend(steps, 1))
        words.append(f"{label}: " + ", ".join(str(Estimate.over(list(step.values()))) for step in steps))
    return pairs.found(by_p, s, done, Finding("; ".join(words), together(verdicts)))
