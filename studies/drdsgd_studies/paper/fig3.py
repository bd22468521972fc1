"""fig3: how the final test accuracies are spread over the devices, K = 25, mu = 9, both data sets.

T and p are not given. T is 300 on Fashion-MNIST, as in Table 1, and 100 on CIFAR-10, where a run takes minutes. p is
the last value that the text names for each data set, 0.3 and 0.5. On CIFAR-10 no best eta is searched.
"""

from __future__ import annotations

import math

from drdsgd.report.statistics import Estimate, Kind
from drdsgd_studies.paper import pairs
from drdsgd_studies.shared.claims import Claim, Finding, both, more, no_price
from drdsgd_studies.shared.plan import Comparison, DataName, Settings, base
from drdsgd_studies.shared.store import Done, ends

__all__ = ["ROUNDS", "TITLE", "P", "claims", "comparisons", "log_fall", "percent"]

TITLE = "Fig. 3: spread over devices, K = 25, mu = 9"

# T where K = 25 and the paper does not name it, as it does only in Table 1
ROUNDS: dict[DataName, int] = {"Fashion-MNIST": 300, "CIFAR-10": 100}
P: dict[DataName, float] = {"Fashion-MNIST": 0.3, "CIFAR-10": 0.5}


def comparisons(s: Settings) -> list[Comparison]:
    """DSGD against DR-DSGD, on both data sets."""
    return [
        Comparison(
            "fig3", data, data, 9.0, base(s, data, K=25, T=ROUNDS[data], p=P[data]), tuned=data == "Fashion-MNIST"
        )
        for data in ("Fashion-MNIST", "CIFAR-10")
    ]


def claims(s: Settings, done: Done) -> list[Claim]:
    """The variance over devices is lower; on Fashion-MNIST by 60 %, at almost the same average."""
    fashion, cifar = comparisons(s)

    def reduced(c: Comparison, kind: Kind) -> Finding:
        fall, average = log_fall(c, s, done, kind), pairs.difference(c, s, done, kind, "average")
        verdict = both(more(fall, math.log(1 / 0.7)), no_price(average))
        words = f"variance {percent(fall)}, average {pairs.points(average, s)}"
        return pairs.found([c], s, done, Finding(words, pairs.judged(c, s, done, verdict)))

    def lower(c: Comparison, kind: Kind) -> Finding:
        fall = log_fall(c, s, done, kind)
        return pairs.found([c], s, done, Finding(f"variance {percent(fall)}", pairs.judged(c, s, done, more(fall))))

    ratio = "of log(DSGD's variance / DR-DSGD's), "
    return [
        Claim(
            "Fashion-MNIST: the variance over devices falls by 60 % at almost the same average", "−60 %",
            f"{ratio}{pairs.rule('above zero', 'below a fall by 30 %', 'the variance falls by less than 30 %')}; and "
            f"for the average: {pairs.NO_PRICE}; of the two, the worse",
            pairs.findings([fashion], reduced),
        ),
        Claim(
            "CIFAR-10: the variance over devices is lower", "lower", ratio + pairs.rule(),
            pairs.findings([cifar], lower),
        ),
    ]  # fmt: skip


def log_fall(c: Comparison, s: Settings, done: Done, kind: Kind) -> Estimate:
    """log(DSGD's variance over devices / DR-DSGD's), seed by seed; the log treats both directions alike."""
    pair = c.pair(s)
    dsgd, dr_dsgd = (ends(pair[label].runs(done), kind, "stdev") for label in ("DSGD", "DR-DSGD"))
    return Estimate.over(
        [
            2 * math.log(dsgd[seed] / dr_dsgd[seed])
            for seed in sorted(dsgd.keys() & dr_dsgd.keys())
            if dsgd[seed] and dr_dsgd[seed]
        ]
    )


def percent(fall: Estimate) -> str:
    """A fall of the logarithm as a change in percent, with its 95 % interval.

    >>> percent(Estimate(math.log(2), 0.0, 5))
    '−50 % (95 %: −50 to −50)'
    """
    if not fall.n:
        return "—"
    low, high = (f"{100 * math.expm1(-end):+.0f}" for end in reversed(fall.interval)) if fall.n > 1 else ("", "")
    within = f" (95 %: {low} to {high})" if fall.n > 1 else ""
    return f"{100 * math.expm1(-fall.mean):+.0f} %{within}".replace("-", "−")
