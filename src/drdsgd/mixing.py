"""Mixing matrices: a graph -> W_t, how fast W_t averages (rho), and the checks on W.

A device replaces its model by a weighted mean of its neighbours' models, `theta_i <- sum_j W_ij theta_j`.
W is symmetric and doubly stochastic, and zero where the graph has no edge, so that the network's mean
never changes and every message travels along an edge. `Mixing` is a function of the round t: a constant W
is the simplest one.

The spectral norm of Assumption 5, `rho = || E[W^T W] - J ||` with `J = 11^T / K`, says how much of a
disagreement survives one round (Lemma 1): 0 for the complete graph, 1 for a network that falls apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy.sparse import csr_array, sparray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from drdsgd import graphs
from drdsgd.errors import InputError

__all__ = ["Mixing", "check_matrix", "constant", "metropolis", "metropolis_matrix", "rho"]

# W is built in float64; a row sum further from one than this is a mistake, not rounding
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Mixing:
    """`t -> W_t` for K devices: `at(t)` is W_t [K, K] with sparse rows.

    `static` says that W_t is the same for every t, so an engine may prepare it once.

    >>> mixing = constant(np.full((3, 3), 1 / 3))
    >>> mixing.at(7).toarray().sum(axis=1).tolist()
    [1.0, 1.0, 1.0]
    """

    K: int
    at: Callable[[int], csr_array]
    static: bool = False


def metropolis(graph: nx.Graph) -> Mixing:
    """The constant Metropolis W of a graph, as in the paper's experiments (`metropolis_matrix`).

    >>> metropolis(nx.path_graph(3)).K
    3
    """
    return constant(metropolis_matrix(graphs.check(graph)))


def metropolis_matrix(graph: nx.Graph) -> csr_array:
    """Metropolis weights `W_ij = 1 / (1 + max(d_i, d_j))` on edges, `W_ii = 1 - sum of the rest`, [K, K].

    >>> metropolis_matrix(nx.path_graph(3)).toarray().round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    K = graph.number_of_nodes()
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    degree = np.bincount(edges.ravel(), minlength=K)
    weight = 1.0 / (1.0 + np.maximum(degree[edges[:, 0]], degree[edges[:, 1]]))
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    off_diagonal = np.concatenate([weight, weight])
    diagonal = 1.0 - np.bincount(i, weights=off_diagonal, minlength=K)
    nodes = np.arange(K)
    entries = np.concatenate([off_diagonal, diagonal])
    W = csr_array((entries, (np.concatenate([i, nodes]), np.concatenate([j, nodes]))), shape=(K, K))
    W.sort_indices()
    return W


def constant(W: np.ndarray | sparray, graph: nx.Graph | None = None) -> Mixing:
    """A W of your own for every round, checked (`check_matrix`), also against the graph if one is given.

    >>> constant(np.array([[0.5, 0.5], [0.5, 0.5]])).static
    True
    """
    rows = check_matrix(W, graph)
    return Mixing(rows.shape[0], lambda t: rows, static=True)


def check_matrix(W: np.ndarray | sparray, graph: nx.Graph | None = None) -> csr_array:
    """W as sparse rows, or an `InputError` that says what is wrong with it.

    W must be square, finite, in [0, 1], symmetric, doubly stochastic, and zero off the graph.

    >>> check_matrix(np.array([[1.0, 0.5], [0.5, 0.5]]))
    Traceback (most recent call last):
    drdsgd.errors.InputError: W must be doubly stochastic: row 0 sums to 1.5; build it with metropolis(graph)
    """
    if len(W.shape) != 2 or W.shape[0] != W.shape[1]:
        raise InputError(f"W must be square: its shape is {tuple(W.shape)}; build it with metropolis(graph)")
    rows = csr_array(W, dtype=np.float64)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    K = rows.shape[0]
    owner = np.repeat(np.arange(K), np.diff(rows.indptr))
    if (bad := np.flatnonzero(~np.isfinite(rows.data) | (rows.data < 0) | (rows.data > 1 + TOLERANCE))).size:
        i, j, w = owner[bad[0]], rows.indices[bad[0]], rows.data[bad[0]]
        raise InputError(f"W must have entries in [0, 1]: W[{i}, {j}] is {w:g}")
    for axis, what in ((1, "row"), (0, "column")):
        sums = rows.sum(axis=axis)
        if (bad := np.flatnonzero(np.abs(sums - 1.0) > TOLERANCE)).size:
            raise InputError(
                f"W must be doubly stochastic: {what} {bad[0]} sums to {sums[bad[0]]:g}; "
                "build it with metropolis(graph)"
            )
    skew = (rows - rows.T).tocoo()
    if (bad := np.flatnonzero(np.abs(skew.data) > TOLERANCE)).size:
        i, j = skew.row[bad[0]], skew.col[bad[0]]
        raise InputError(
            f"W must be symmetric: W[{i}, {j}] is {rows[i, j]:g} but W[{j}, {i}] is {rows[j, i]:g}; "
            "build it with metropolis(graph)"
        )
    if graph is not None:
        if graph.number_of_nodes() != K:
            raise InputError(f"W is for {K} devices but the graph has {graph.number_of_nodes()} nodes")
        for i, j in zip(owner, rows.indices, strict=True):
            if i != j and not graph.has_edge(i, j):
                raise InputError(f"W must be zero off the graph: W[{i}, {j}] is {rows[i, j]:g}, no such edge")
    return rows


def rho(W: np.ndarray | sparray) -> float:
    """`rho = || W^T W - J ||` (spectral norm) of a doubly stochastic W; symmetric W: its second eigenvalue squared.

    >>> round(rho(np.full((4, 4), 0.25)), 12), rho(np.eye(4))
    (0.0, 1.0)
    """
    K = W.shape[0]
    if K <= 500:  # dense: exact, and still fast
        dense = np.asarray(W.todense() if isinstance(W, sparray) else W)
        return float(np.abs(np.linalg.eigvalsh(dense.T @ dense - 1.0 / K)).max())
    rows = csr_array(W)
    square = (rows.T @ rows).tocsc()
    deflated = LinearOperator((K, K), lambda v: square @ v - v.mean(), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(K)
    try:
        return float(eigsh(deflated, k=1, which="LA", v0=start, maxiter=300, return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        # eigenvalues crowd below one, as on a long ring; there W^T W is cheap to factor, so invert next to one
        return float(min(eigsh(square, k=2, sigma=1.0 + 1e-7, v0=start, return_eigenvectors=False)))
