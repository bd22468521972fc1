"""The claims of the paper's theory, and the verdicts on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from drdsgd.report.statistics import Estimate
from drdsgd_studies.shared.claims import Claim, Finding, Verdict, less
from drdsgd_studies.theory.measurements import Measurement, Results, ratio

__all__ = [
    "ROUNDING", "claims", "judge_bound", "judge_rate", "rounds_of", "slopes", "speed_up", "three",
]  # fmt: skip

# a ratio above 1 by less than this is rounding
ROUNDING = 1e-9


def slopes(results: Results) -> dict[int, Estimate]:
    """For each K the fitted slope of log(mean squared gradient norm) against log T, over seeds.

    >>> slopes(Results(()))
    {}
    """
    rate = results.of("rate")
    found: dict[int, Estimate] = {}
    for K in sorted({m.K for m in rate}):
        per_seed = [[m for m in rate if (m.K, m.seed) == (K, seed)] for seed in sorted({m.seed for m in rate})]
        found[K] = Estimate.over([_slope([(rounds_of(m), m.measured) for m in one]) for one in per_seed])
    return found


def speed_up(results: Results) -> tuple[Estimate, list[int]]:
    """The fitted exponent of K at the largest T, over seeds, and its K: those with K^3 <= T.

    There the corollary's first term, 1 / sqrt(K T), is the larger one, and more devices should help.

    >>> speed_up(Results(()))[1]
    []
    """
    rate = results.of("rate")
    T = max((rounds_of(m) for m in rate), default=0)
    some = [m for m in rate if rounds_of(m) == T and m.K**3 <= T]
    return _exponent([(m.K, m) for m in some]), sorted({m.K for m in some})


def only_the_step(results: Results) -> Estimate:
    """The same exponent for five devices with the eta and B of K devices; the rest is due to more devices."""
    return _exponent([(m.of_K, m) for m in results.of("control") if m.of_K is not None])


def _exponent(points: Sequence[tuple[int, Measurement]]) -> Estimate:
    if len({K for K, _ in points}) < 2:
        return Estimate.over([])
    seeds = sorted({m.seed for _, m in points})
    return Estimate.over([_slope([(K, m.measured) for K, m in points if m.seed == seed]) for seed in seeds])


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x, y = np.log(points).T
    return float(np.polyfit(x, y, 1)[0])


def rounds_of(m: Measurement) -> int:
    """T of a measurement that has rounds."""
    assert m.T is not None
    return m.T


def judge_rate(slopes: Mapping[int, Estimate], number: float = -0.5) -> Verdict:
    """The verdict on slopes in T, by the worst K: not clearly above -1/2, or clearly below zero, or neither.

    >>> judge_rate({5: Estimate(-0.6, 0.02, 5)}), judge_rate({5: Estimate(-0.6, 0.02, 5), 10: Estimate(-0.3, 0.02, 5)})
    ('holds', 'holds in part')
    >>> judge_rate({5: Estimate(0.1, 0.02, 5)}), judge_rate({5: Estimate(-0.6, math.nan, 1)})
    ('does not hold', 'cannot be told')
    """
    if not slopes or any(slope.n < 2 for slope in slopes.values()):
        return "cannot be told"
    if not all(slope.mean < 0 and slope.clear for slope in slopes.values()):
        return "does not hold"
    above = [Estimate(slope.mean - number, slope.error, slope.n) for slope in slopes.values()]
    return "holds in part" if any(one.mean > 0 and one.clear for one in above) else "holds"


def judge_bound(ratios: Mapping[str, Sequence[float]]) -> Verdict:
    """The verdict on measured / bound over seeds for each setting: holds if no setting's mean is above 1.

    >>> judge_bound({"ring": [0.5, 1.1], "grid": [0.1]}), judge_bound({"ring": [0.5], "grid": [1.1]}), judge_bound({})
    ('holds', 'does not hold', 'cannot be told')
    """
    if not ratios:
        return "cannot be told"
    return "holds" if all(math.fsum(r) / len(r) <= 1 + ROUNDING for r in ratios.values()) else "does not hold"


def claims(results: Results) -> list[Claim]:
    """The claims of the paper's theory, with their verdicts.

    >>> [claim.findings["measured"].verdict for claim in claims(Results(()))][:2]
    ['cannot be told', 'cannot be told']
    """
    slope, (exponent, Ks) = slopes(results), speed_up(results)
    theorem = [m for m in results.of("rate", "theorem 1") if m.bound is not None]
    bound_rule = (
        "measured / bound, its mean over seeds in every setting: holds if none is above 1, does not hold if one is "
        f"(by more than {ROUNDING:.0e}, which is rounding). "
        "The constants in the bound are those that the module derives for the problem."
    )
    return [
        Claim(
            "Corollary 1: the mean squared gradient norm of F at the average model falls as 1/sqrt(KT) + K/T.",
            "slope in T between -1/2 and -1",
            "slope of log(1/T sum ||grad F||^2) against log T for each K, over seeds: holds if for every K it is "
            "clearly below zero and not clearly above -1/2 (95 % intervals), in part if it is clearly below zero for "
            "every K, else not.",
            {"measured": Finding(_list(f"{three(e)} (K = {K})" for K, e in slope.items()), judge_rate(slope))},
        ),
        Claim(
            "Corollary 1: with its eta and B, more devices are faster, as 1/sqrt(K), where T is large.",
            "exponent of K: -1/2",
            "slope of the same against log K at the largest T, over the K with K^3 <= T, where 1/sqrt(KT) is the "
            "larger term: holds if its 95 % interval is below zero and it is at most -1/4, in part if it is not, does "
            "not hold if the interval is above -1/4, else it cannot be told.",
            {"measured": Finding(_speed_words(exponent, Ks, only_the_step(results)), less(exponent, 0.25))},
        ),
        _bound_claim(
            "Lemma 1: ||A (W^n - J)||_F^2 is at most rho^n ||A||_F^2.", bound_rule, results.of("lemma 1"), False
        ),
        _bound_claim("Lemma 3: a bound on the distance between the models.", bound_rule, results.of("lemma 3"), False),
        _bound_claim("Theorem 1, with the constants as printed.", bound_rule, theorem, False),
        _bound_claim("Theorem 1, with the constants that its proof gives.", bound_rule, theorem, True),
    ]


def _bound_claim(text: str, rule: str, some: Sequence[Measurement], as_proved: bool) -> Claim:
    ratios: dict[str, list[float]] = {}
    for m in some:
        bound = m.as_proved if as_proved else m.bound
        assert bound is not None
        ratios.setdefault(_setting(m), []).append(ratio(m.measured, bound))
    means = {name: math.fsum(r) / len(r) for name, r in ratios.items()}
    above = {name: mean for name, mean in means.items() if mean > 1 + ROUNDING}
    shown = above or dict(sorted(means.items(), key=lambda item: -item[1])[:1])
    ours = f"{len(means) - len(above)} of {len(means)} settings within the bound; {'above it' if above else 'highest'} "
    ours = ours + _list(f"{mean:.3g} ({name})" for name, mean in shown.items()) if means else "nothing measured"
    return Claim(text, "measured / bound at most 1", rule, {"measured": Finding(ours, judge_bound(ratios))})


def _setting(m: Measurement) -> str:
    """A setting in words, without the seed, and without eta, which follows from the others."""
    named = {"K": m.K, "p": m.p, "T": m.T, "B": m.B, "mu": m.mu}
    values = (f"{name} = {value:g}" for name, value in named.items() if value is not None)
    return ", ".join([*([m.problem] if m.problem else []), m.graph, *values])


def three(estimate: Estimate) -> str:
    """An estimate with three decimals: slopes of a smooth problem have small errors."""
    error = f" ± {estimate.error:.3f}" if estimate.n > 1 else ""
    return f"{estimate.mean:.3f}{error}"


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "nothing measured"


def _speed_words(exponent: Estimate, Ks: Sequence[int], step: Estimate) -> str:
    if not exponent.n:
        return "too few K"
    alone = f"; five devices at the same eta and B: {three(step)}" if step.n else ""
    return f"{three(exponent)} over K = {_list(map(str, Ks))}{alone}"
