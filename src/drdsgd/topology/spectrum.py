"""How fast gossip averages: rho, the smallest eigenvalue, and the factor of the graph in Theorem 1.

The spectral norm of Assumption 5, `rho = || E[W^T W] - J ||` with `J = 11^T / K`, bounds how much disagreement is left
after one round (Lemma 1): 0 for the complete graph, 1 for a network that is not connected.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, sparray

from drdsgd.errors import whole

if TYPE_CHECKING:
    from drdsgd.topology.mixing import Mixing

__all__ = ["graph_factor", "least_eigenvalue", "norm_without_mean", "rho", "rho_over_time"]


def rho(W: np.ndarray | sparray) -> float:
    """`rho = || W^T W - J ||` (spectral norm) of a doubly stochastic W.

    For a symmetric W it is the square of the second largest absolute eigenvalue.

    >>> round(rho(np.full((4, 4), 0.25)), 12), rho(np.eye(4))
    (0.0, 1.0)
    """
    W = _spectral_form(W)
    return norm_without_mean(W.T @ W)


def rho_over_time(mixing: Mixing, rounds: int = 100) -> float:
    """`|| mean_t V_t^T V_t - J ||` over the first rounds, V_t = W_t^repeats: an estimate of Assumption 5's rho.

    >>> import networkx as nx
    >>> from drdsgd.topology.mixing import local_steps, metropolis
    >>> mixing = metropolis(nx.path_graph(3))
    >>> round(rho_over_time(mixing), 4), round(rho_over_time(local_steps(mixing, 2)), 4)
    (0.4444, 0.7222)
    """
    if not mixing.balanced:  # push-sum averages as fast as the columns of P^t become equal
        return float(np.sort(np.abs(np.linalg.eigvals(mixing.at(0).toarray())))[-2] ** (2 * mixing.repeats))
    rounds = 1 if mixing.static else whole("rounds", rounds)
    total: Any = 0
    for t in range(rounds):
        once = V = _spectral_form(mixing.at(t))
        for _ in range(mixing.repeats - 1):
            V = once @ V
        total = total + V.T @ V
    return norm_without_mean(total / rounds)


def _spectral_form(W: np.ndarray | sparray) -> Any:
    """Dense for up to 500 devices, which is exact and still fast; else sparse."""
    if W.shape[0] > 500:
        return csr_array(W)
    return np.asarray(W.todense() if isinstance(W, sparray) else W)


def norm_without_mean(square: Any) -> float:
    """`|| square - J ||`, where square [K, K] is a mean of W^T W."""
    K = square.shape[0]
    if isinstance(square, np.ndarray):
        return float(np.abs(np.linalg.eigvalsh(square - 1.0 / K)).max())
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # slow to load

    square = square.tocsc()
    deflated = LinearOperator((K, K), lambda v: square @ v - v.mean(), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(K)
    try:
        return float(eigsh(deflated, k=1, which="LA", v0=start, maxiter=300, return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        # many eigenvalues lie just below one, as on a long ring; there W^T W is cheap to factor, so invert close to one
        return float(min(eigsh(square, k=2, sigma=1.0 + 1e-7, v0=start, return_eigenvectors=False)))


def least_eigenvalue(mixing: Mixing) -> float:
    """The smallest eigenvalue of W^repeats, one round of a constant, symmetric mixing.

    >>> import networkx as nx
    >>> from drdsgd.topology.mixing import metropolis
    >>> round(least_eigenvalue(metropolis(nx.cycle_graph(4))), 6)
    -0.333333
    """
    W = mixing.at(0)
    if mixing.K <= 500:
        small = np.linalg.eigvalsh(W.toarray())[0]
    else:
        from scipy.sparse.linalg import eigsh  # slow to load

        small = eigsh(W, k=1, which="SA")[0][0]
    return float(small) ** mixing.repeats if mixing.repeats % 2 else 0.0  # an even power has no negative eigenvalue


def graph_factor(mu: float, rho: float) -> float:
    """The graph's factor in the step size of Theorem 1, `mu (1 - sqrt(rho)) / (8 sqrt(rho))`: eta < factor / (L G).

    >>> round(graph_factor(mu=6.0, rho=0.64), 6), graph_factor(mu=6.0, rho=0.0)
    (0.1875, inf)
    """
    root = math.sqrt(max(rho, 0.0))
    return mu * (1 - root) / (8 * root) if root > 0 else math.inf
