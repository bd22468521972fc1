"""The paper's lemmas, theorem and corollary as formulas."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from drdsgd.errors import InputError
from drdsgd.topology import mixing
from drdsgd.topology.spectrum import graph_factor
from drdsgd_studies.theory.problem import Constants

__all__ = ["corollary", "largest_eta", "lemma_1", "lemma_3", "theorem_1", "theorem_1_as_proved"]


def largest_eta(L: float, G: float, mu: float, rho: float) -> float:
    """The step below which Theorem 1 holds: `min{mu (1 - sqrt(rho)) / (8 G sqrt(rho)), 1} / L`.

    >>> round(largest_eta(L=2.0, G=1.5, mu=6.0, rho=0.64), 6), largest_eta(L=2.0, G=1.5, mu=6.0, rho=0.0)
    (0.0625, 0.5)
    """
    if not (0 <= rho < 1 and L > 0 and G > 0 and mu > 0):
        raise InputError(f"L, G and mu must be positive and rho in [0, 1): L={L:g}, G={G:g}, mu={mu:g}, rho={rho:g}")
    return min(graph_factor(mu, rho) / G, 1.0) / L


def corollary(L: float, K: int, T: int) -> tuple[float, int]:
    """Corollary 1's step and batch: `eta = 1 / (2 L + sqrt(T / K))`, `B = sqrt(K T)`, rounded.

    >>> corollary(L=2.0, K=4, T=144)
    (0.1, 24)
    """
    return 1 / (2 * L + math.sqrt(T / K)), round(math.sqrt(K * T))


def lemma_1(W: NDArray[np.float64], A: NDArray[np.float64], n: int) -> float:
    """`||A (W^n - J)||_F^2 / (rho^n ||A||_F^2)` for A [d, K], which is at most 1 by Lemma 1.

    >>> W = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> round(lemma_1(W, np.array([[1.0, -1.0]]), 3), 12), round(lemma_1(W, np.array([[1.0, 1.0]]), 3), 12)
    (1.0, 0.0)
    """
    left = np.linalg.norm(A @ (np.linalg.matrix_power(W, n) - 1 / len(W))) ** 2
    return float(left / (mixing.rho(W) ** n * np.linalg.norm(A) ** 2))


def lemma_3(k: Constants, mu: float, eta: float, rho: float) -> float:
    """Lemma 3's bound on `1/(K T) sum_t ||theta^t (I - J)||_F^2`; refuses an eta for which it does not hold.

    >>> from drdsgd_studies.theory.problem import constants, waves
    >>> k = constants(waves(5), mu=1.0)
    >>> round(lemma_3(k, 1.0, eta=0.01, rho=0.25), 6)
    0.000623
    """
    gamma = 16 * eta**2 * rho * k.L**2 * k.G**2 / (mu**2 * _gap(rho) ** 2)
    if not gamma < 1:
        raise InputError(f"Lemma 3 holds for eta below {2 * graph_factor(mu, rho) / (k.G * k.L):g}, got {eta:g}")
    return 2 * eta**2 * rho * k.G**2 * _spread(k) / (mu**2 * (1 - gamma) * _gap(rho) ** 2)


def theorem_1(k: Constants, mu: float, eta: float, B: int, T: int, rho: float, F_1: float) -> float:
    """The right side of Theorem 1 (eq. 27) as printed, with F_1 = F(theta_bar^1).

    >>> from drdsgd_studies.theory.problem import constants, waves
    >>> k = constants(waves(5), mu=1.0)
    >>> round(theorem_1(k, 1.0, eta=0.01, B=100, T=10_000, rho=0.25, F_1=k.F_inf + 0.1), 4)
    0.0106
    """
    third = 16 * rho * eta**2 * k.L**2 * k.G**2 * (k.G**2 + mu**2) * _spread(k) / (3 * mu**8 * _gap(rho) ** 2)
    return 2 * (F_1 - k.F_inf) / (eta * T) + 2 * _noise(k, mu, B) + third


def theorem_1_as_proved(k: Constants, mu: float, eta: float, B: int, T: int, rho: float, F_1: float) -> float:
    """The right side that the paper's own steps give: twice the printed second term, 2 G^2 mu^2 times the third.

    Eq. 76 times 2 / eta has 4 where eq. 77 prints 2. Lemma 3 put into it gives G^4 / mu^6; printed is G^2 / mu^8.

    >>> from drdsgd_studies.theory.problem import constants, waves
    >>> k = constants(waves(5), mu=1.0)
    >>> round(theorem_1_as_proved(k, 1.0, eta=0.01, B=100, T=10_000, rho=0.25, F_1=k.F_inf + 0.1), 4)
    0.0256
    """
    third = 32 * rho * eta**2 * k.L**2 * k.G**4 * (k.G**2 + mu**2) * _spread(k) / (3 * mu**6 * _gap(rho) ** 2)
    return 2 * (F_1 - k.F_inf) / (eta * T) + 4 * _noise(k, mu, B) + third


def _gap(rho: float) -> float:
    return 1 - math.sqrt(rho)


def _noise(k: Constants, mu: float, B: int) -> float:
    return k.G**2 * k.sigma**2 * (k.L**2 + mu**2) / (mu**4 * B)


def _spread(k: Constants) -> float:
    """`8 sigma^2 (L^2 + 1) + G^2`: how far apart devices can pull."""
    return 8 * k.sigma**2 * (k.L**2 + 1) + k.G**2
