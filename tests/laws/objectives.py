"""The table of objectives for the laws: each with its limit weights, found by another method, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from drdsgd.core.objectives import (
    LocalDevices,
    Objective,
    ad_gda,
    capped,
    chi2_dro,
    clipped,
    erm,
    kl_ball,
    kl_dro,
    q_ffl,
    smoothed,
    term,
)
from drdsgd.core.schedules import linear

everyone = LocalDevices.all_of
Limit = Callable[[np.ndarray, np.ndarray], np.ndarray]  # losses f [K], reference p [K] -> weights [K]


# ------------------------------------------------- the problems, solved by another method


def softmax(mu: float) -> Limit:
    def limit(f: np.ndarray, p: np.ndarray) -> np.ndarray:
        h = p * np.exp((f - f.max()) / mu)
        return np.asarray(len(f) * h / h.sum())

    return limit


def kl(weight: np.ndarray, p: np.ndarray) -> float:
    """KL(lambda | p) of weights K lambda."""
    positive = weight > 0
    lam = weight[positive] / len(weight)
    return float((lam * np.log(lam / p[positive])).sum())


def with_cap(limit: Limit, cap: float = math.inf) -> Limit:
    """Weights scaled by one factor and limited to the cap, with mean 1: the others share what the cap takes away."""

    def capped(f: np.ndarray, p: np.ndarray) -> np.ndarray:
        plain, most = limit(f, p), cap * len(f) * p
        if (plain <= most).all():
            return plain
        factor: float = brentq(lambda x: np.minimum(x * plain, most).mean() - 1, 0, 1e9, xtol=1e-14)
        return np.asarray(np.minimum(factor * plain, most))

    return capped


def ball_limit(radius: float, least_mu: float, cap: float = math.inf) -> Limit:
    """The weights of the mu for which KL(lambda | p) = radius; those of the least mu if no mu reaches the radius."""

    def limit(f: np.ndarray, p: np.ndarray) -> np.ndarray:
        def at(log_mu: float) -> np.ndarray:
            return with_cap(softmax(math.exp(log_mu)), cap)(f, p)

        low = math.log(least_mu)
        if kl(at(low), p) <= radius:
            return at(low)
        log_mu: float = brentq(lambda log_mu: kl(at(log_mu), p) - radius, low, 8, xtol=1e-13)
        return at(log_mu)

    return limit


def chi2_limit(mu: float, cap: float = math.inf) -> Limit:
    def limit(f: np.ndarray, p: np.ndarray) -> np.ndarray:
        def lam(e: float) -> np.ndarray:
            return np.asarray(np.minimum(p * np.maximum(0, 1 + (f - e) / mu), cap * p))

        e = brentq(lambda e: lam(e).sum() - 1, f.min() - 1, f.max() + mu + 1, xtol=1e-13, rtol=1e-14)
        return np.asarray(len(f) * lam(e))

    return limit


def dual_maximiser(f: np.ndarray, p: np.ndarray, penalty: float) -> np.ndarray:
    """The mixture lambda that maximises sum_i lambda_i f_i - penalty / 2 ||lambda - p||^2."""
    x = p + f / penalty
    fall = brentq(lambda fall: np.maximum(0, x - fall).sum() - 1, x.min() - 1, x.max() + 1, xtol=1e-14, rtol=1e-14)
    return np.asarray(np.maximum(0, x - fall))


@dataclass(frozen=True)
class Row:
    """An objective, its limit weights, and what it promises before the limit."""

    objective: Objective
    limit: Limit
    most: Callable[[int], float] | None
    """A bound on the weights of K devices, for any losses; None if exact weights are unbounded."""
    mean_is_one: bool = True
    """The limit weights have mean 1, because they solve an inner problem."""
    with_cap: Limit | None = None
    """The limit weights when capped; None if the cap only cuts each weight off."""
    by_share: bool = True
    """Weights are shares times a function of the losses, so equal losses give a multiple of the shares."""


def power(q: float) -> Limit:
    return lambda f, p: len(f) * p * f**q


def normalised(limit: Limit) -> Limit:
    return lambda f, p: limit(f, p) / limit(f, p).mean()


def at_most_K(K: int) -> float:
    """The bound on weights that solve an inner problem."""
    return K


SCHEDULE_ENDS = 100
CLIP, CAP, BETA = 1.2, 1.5, 0.3
KL_SCHEDULE = linear(4.0, SCHEDULE_ENDS, end=0.2)
BASE: dict[str, Row] = {
    "erm": Row(erm(), lambda f, p: len(f) * p, at_most_K),
    "kl": Row(kl_dro(0.8), lambda f, p: len(f) * p * np.exp(f / 0.8) / 0.8, None, mean_is_one=False),
    "kl, mu falls": Row(kl_dro(KL_SCHEDULE), lambda f, p: len(f) * p * np.exp(f / 0.8) / 0.8, None, mean_is_one=False),
    "kl without mu": Row(
        kl_dro(0.8, weights="without-mu"), lambda f, p: len(f) * p * np.exp(f / 0.8), None, mean_is_one=False
    ),
    "kl normalised": Row(
        kl_dro(0.8, weights="normalized"), softmax(0.8), at_most_K, with_cap=with_cap(softmax(0.8), CAP)
    ),
    "kl normalised, mu falls": Row(
        kl_dro(KL_SCHEDULE, weights="normalized"), softmax(0.8), at_most_K, with_cap=with_cap(softmax(0.8), CAP)
    ),
    "term": Row(term(2.0), softmax(0.5), at_most_K, with_cap=with_cap(softmax(0.5), CAP)),
    "q-ffl": Row(q_ffl(2.0), normalised(power(2.0)), at_most_K, with_cap=with_cap(normalised(power(2.0)), CAP)),
    "q-ffl as written": Row(q_ffl(2.0, normalized=False), power(2.0), None, mean_is_one=False),
    "kl ball": Row(
        kl_ball(0.08, mu=0.5, least_mu=0.3),
        ball_limit(radius=0.08, least_mu=0.3),
        at_most_K,
        with_cap=ball_limit(radius=0.08, least_mu=0.3, cap=CAP),
    ),
    "chi2": Row(chi2_dro(0.8), chi2_limit(0.8), at_most_K, with_cap=chi2_limit(0.8, CAP)),
    "ad-gda": Row(
        ad_gda(dual_eta=0.05, dual_penalty=20.0),
        lambda f, p: len(f) * dual_maximiser(f, p, 20.0),
        at_most_K,
        by_share=False,
    ),
}
LARGEST_SHARE = 1.5


def wrapped(row: Row) -> dict[str, Row]:
    def clipped_limit(f: np.ndarray, p: np.ndarray) -> np.ndarray:
        return row.limit(np.minimum(f, CLIP), p)

    def capped_limit(f: np.ndarray, p: np.ndarray) -> np.ndarray:
        return np.minimum(row.limit(f, p), CAP * len(f) * p)

    def clipped_most(K: int) -> float:
        return row.most(K) if row.most else LARGEST_SHARE * math.exp(CLIP / 0.8) / 0.8  # the largest of those above

    return {
        "smoothed": replace(row, objective=smoothed(row.objective, BETA)),
        "clipped": replace(row, objective=clipped(row.objective, CLIP), limit=clipped_limit, most=clipped_most),
        "capped": replace(
            row,
            objective=capped(row.objective, CAP),
            limit=row.with_cap or capped_limit,
            most=lambda K: CAP * LARGEST_SHARE,
            mean_is_one=row.with_cap is not None,
        ),
    }


OBJECTIVES: dict[str, Row] = BASE | {
    f"{name}, {wrapper}": other for name, row in BASE.items() for wrapper, other in wrapped(row).items()
}

# the objectives tested with every optimizer and every engine
WITH_EVERY_OPTIMIZER = {
    name: row.objective
    for name, row in OBJECTIVES.items()
    if name in BASE or name in ("kl normalised, smoothed", "kl ball, clipped", "chi2, capped")
}
