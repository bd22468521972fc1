"""fig5: worst test accuracy against rounds on geometric, ring and grid graphs; Fashion-MNIST, K = 25, mu = 6.

T is not given; it is 300 here, as in Table 1. The radius of the geometric graph is not given either; see
`graphs.geometric` for ours.
"""

from __future__ import annotations

from drdsgd.report.statistics import KINDS, Kind
from drdsgd_studies.paper import pairs
from drdsgd_studies.shared.claims import Claim, Finding, Verdict, more, paired, together
from drdsgd_studies.shared.plan import Comparison, Settings, base
from drdsgd_studies.shared.store import Done

__all__ = ["GRAPHS", "TITLE", "cases", "claims", "comparisons", "faster"]

TITLE = "Fig. 5: geometric, ring and grid graphs, Fashion-MNIST, K = 25, mu = 6"

GRAPHS = ("geometric", "ring", "grid")


def cases(s: Settings) -> dict[str, Comparison]:
    """DSGD against DR-DSGD on every graph."""
    return {
        graph: Comparison(
            "fig5", f"{graph} graph", "Fashion-MNIST", 6.0, base(s, "Fashion-MNIST", K=25, T=300, graph=graph)
        )
        for graph in GRAPHS
    }


def comparisons(s: Settings) -> list[Comparison]:
    """All comparisons."""
    return list(cases(s).values())


def claims(s: Settings, done: Done) -> list[Claim]:
    """DR-DSGD is above DSGD on each graph, and both learn faster on the geometric one than on the ring."""
    by_graph = cases(s)
    return [
        Claim(
            "DR-DSGD's worst accuracy is above DSGD's on each graph", "above on each",
            pairs.EACH,
            {kind: pairs.above_each(by_graph, s, done, kind) for kind in KINDS},
        ),
        Claim(
            "Both algorithms learn faster on the geometric graph than on the ring", "fewer rounds",
            "of the mean over rounds of the worst accuracy, geometric minus ring, for each algorithm by the 95 % "
            "t-interval of the paired difference: holds if it is above zero, does not if it is below, else it cannot "
            "be told; for both, in part if it holds for one only, not if for none",
            {kind: faster(by_graph["geometric"], by_graph["ring"], s, done, kind) for kind in KINDS},
        ),
    ]  # fmt: skip


def faster(one: Comparison, other: Comparison, s: Settings, done: Done, kind: Kind) -> Finding:
    """Whether both algorithms' curves of the worst accuracy lie higher in one setting than in the other."""
    words: list[str] = []
    verdicts: list[Verdict] = []
    for label in ("DSGD", "DR-DSGD"):
        d = paired(*(pairs.area(c.pair(s)[label].runs(done), kind) for c in (one, other)))
        words.append(f"{label}: {pairs.points(d, s)}")
        verdicts.append(more(d))
    return pairs.found([one, other], s, done, Finding("; ".join(words), together(verdicts)))
