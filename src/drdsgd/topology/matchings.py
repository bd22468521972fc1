"""Matchings of a graph (sets of links in which no device occurs twice), and how MATCHA uses them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from drdsgd.errors import InputError
from drdsgd.topology import graphs
from drdsgd.topology.spectrum import norm_without_mean

__all__ = ["MatchaPlan", "edges_of", "greedy_matching", "matcha_plan", "pairwise_average"]


class MatchaPlan(NamedTuple):
    """What MATCHA computes before training: each edge's matching, each matching's probability, and the weight alpha."""

    edges: NDArray[np.int64]
    """[E, 2]"""
    matching: NDArray[np.int64]
    """[E], the number of each edge's matching, 0 .. M-1"""
    p: NDArray[np.float64]
    """[M], the probability that a matching is active in a round"""
    alpha: float
    rho: float
    """|| E[W^T W] - J ||, if alpha never makes a W_ii negative"""


def matcha_plan(graph: nx.Graph, budget: float) -> MatchaPlan:
    """Split a graph into M <= largest degree + 1 matchings, and choose p and alpha.

    p maximises lambda_2(sum_m p_m L_m) under sum_m p_m = budget M, 0 <= p_m <= 1, to 0.1 %. alpha minimises
    || E[W^T W] - J ||, where E[W^T W] = I - 2 alpha L + alpha^2 (L^2 + 2 sum_m p_m (1 - p_m) L_m), L = sum_m p_m L_m.

    >>> plan = matcha_plan(graphs.star(4), 0.5)
    >>> plan.matching.tolist(), plan.p.round(3).tolist(), round(plan.alpha, 2)
    ([0, 1, 2], [0.5, 0.5, 0.5], 0.57)
    """
    graph = graphs.check(graph)
    if not 0 < budget <= 1:
        raise InputError(f"budget must lie in (0, 1], got {budget!r}: it is the share of matchings used, such as 0.5")
    edges, K = edges_of(graph), len(graph)
    matching = _edge_colouring(edges, K)
    p = _activation(edges, matching, budget, K)
    mean = _laplacian(edges, p[matching], K)
    # E[L_t^2], by L_m^2 = 2 L_m
    square = mean @ mean + 2 * _laplacian(edges, (p * (1 - p))[matching], K)

    from scipy.optimize import minimize_scalar  # slow to load, and only MATCHA needs it

    def norm(alpha: float) -> float:
        return norm_without_mean(np.eye(K) - 2 * alpha * mean + alpha**2 * square)

    found = minimize_scalar(norm, bounds=(0, 1), method="bounded")  # convex
    return MatchaPlan(edges, matching, p, float(found.x), float(found.fun))


def _activation(edges: NDArray[np.int64], matching: NDArray[np.int64], budget: float, K: int) -> NDArray[np.float64]:
    """The p [M] that maximises lambda_2(L(p)), with L(p) = sum_m p_m L_m and sum_m p_m = budget M.

    lambda_2(L(p)) is the minimum of v^T L(p) v over unit vectors v that sum to 0. Each v^T L(p) v is linear in p, so
    every v gives an upper bound (a cut), and a finite set of cuts gives a linear program. The eigenvectors at its
    solution are new cuts, until the bound meets the best value found (J. E. Kelley, 1960).
    """
    from scipy.linalg import eigh  # as above
    from scipy.optimize import linprog

    M = int(matching.max()) + 1
    best, most, cuts = np.full(M, budget), 0.0, np.empty((0, M))
    if budget == 1:
        return best
    p, limits = best, [(0.0, 1.0)] * M + [(0.0, None)]
    for _ in range(500):
        L = _laplacian(edges, p[matching], K)
        # the constant v gets the largest eigenvalue, so that all others sum to 0 even where L(p) is not connected
        values, v = eigh(L + 2 * (L.diagonal().max() + 1) / K, subset_by_index=(0, min(8, K - 1) - 1))
        if values[0] > most:
            best, most = p, values[0]
        terms = (v[edges[:, 0]] - v[edges[:, 1]]) ** 2
        new = np.zeros((M, terms.shape[1]))
        np.add.at(new, matching, terms)
        cuts = np.concatenate([cuts, new.T])
        # variables: p and s <= every cut; maximise s
        found = linprog(
            np.append(np.zeros(M), -1.0),
            A_ub=np.column_stack([-cuts, np.ones(len(cuts))]),
            b_ub=np.zeros(len(cuts)),
            A_eq=np.append(np.ones(M), 0.0)[None],
            b_eq=[budget * M],
            bounds=limits,
        )
        assert found.x is not None, f"p = budget is feasible, but: {found.message}"
        if most >= (1 - 1e-3) * found.x[-1]:
            break
        # a full step would jump between corners; this one was measured to need a third of the steps
        p = 0.6 * best + 0.4 * found.x[:-1]
    return np.asarray(np.clip(best, 0.0, 1.0))


def _edge_colouring(edges: NDArray[np.int64], K: int) -> NDArray[np.int64]:
    """Colours [E] in 0 .. M-1, no two alike at a node, M <= the largest degree + 1.

    J. Misra and D. Gries, "A constructive proof of Vizing's theorem", 1992.
    """
    colours = range(int(np.bincount(edges.ravel()).max()) + 1)
    behind: list[dict[int, int]] = [{} for _ in range(K)]  # per node: colour -> the neighbour at the other end
    colour: dict[tuple[int, int], int] = {}

    def free(*nodes: int) -> int | None:
        return next((c for c in colours if not any(c in behind[node] for node in nodes)), None)

    def paint(changes: list[tuple[int, int, int]]) -> None:
        for u, v, _ in changes:
            if (u, v) in colour:
                del behind[u][colour[u, v]], behind[v][colour[u, v]]
        for u, v, c in changes:
            colour[u, v] = colour[v, u] = c
            behind[u][c], behind[v][c] = v, u

    for u, v in edges.tolist():
        # A fan: neighbours of u, each of which but the first could give its edge's colour to the one before it.
        fan = [v]
        while (d := free(u, fan[-1])) is None:
            more = (w for c, w in behind[u].items() if c not in behind[fan[-1]] and w not in fan)
            if (w := next(more, None)) is None:
                break
            fan.append(w)
        if d is None:
            c, d = free(u), free(fan[-1])
            assert c is not None and d is not None, "there are more colours than edges at a node"
            path, following = [u], d
            while (node := behind[path[-1]].get(following)) is not None:
                path.append(node)
                following = c + d - following
            paint([(a, b, c + d - colour[a, b]) for a, b in pairwise(path)])  # now d is free at u
            fan = fan[: next(n for n, w in enumerate(fan) if d not in behind[w]) + 1]
        paint([(u, w, colour[u, after]) for w, after in pairwise(fan)] + [(u, fan[-1], d)])
    _, matching = np.unique([colour[u, v] for u, v in edges.tolist()], return_inverse=True)
    return np.asarray(matching)


def edges_of(graph: nx.Graph) -> NDArray[np.int64]:
    """The edges [E, 2], in an order and direction that do not depend on how the graph was built."""
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    if not graph.is_directed():
        edges = np.sort(edges, axis=1)
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))]


def pairwise_average(edges: NDArray[np.int64], weight: NDArray[np.float64], K: int) -> csr_array:
    """I - L [K, K]: both ends of an edge take the edge's weight of the other's model."""
    (i, j), nodes = edges.T, np.arange(K)
    diagonal = np.maximum(1.0 - np.bincount(edges.ravel(), np.repeat(weight, 2), K), 0.0)
    rows, columns = np.concatenate([i, j, nodes]), np.concatenate([j, i, nodes])
    W = csr_array((np.concatenate([weight, weight, diagonal]), (rows, columns)), shape=(K, K))
    W.eliminate_zeros()  # a stored zero on the diagonal would count as a link
    return W


def _laplacian(edges: NDArray[np.int64], weight: NDArray[np.float64], K: int) -> NDArray[np.float64]:
    """`sum_e weight_e L_e`, [K, K]: v^T L v = sum over edges of weight_ij (v_i - v_j)^2."""
    L = np.zeros((K, K))
    L[edges[:, 0], edges[:, 1]] = L[edges[:, 1], edges[:, 0]] = -weight
    np.fill_diagonal(L, -L.sum(axis=1))
    return L


def greedy_matching(edges: NDArray[np.int64], K: int) -> NDArray[np.int64]:
    """The edges taken when we go through edges [E, 2] in order and take each whose two ends are still free.

    Every pass takes all edges that come first at both ends. In random order, about log E passes suffice.
    """
    taken = []
    while len(edges):
        place, first = np.arange(len(edges)), np.full(K, len(edges))
        np.minimum.at(first, edges, place[:, None])
        now = (first[edges] == place[:, None]).all(axis=1)
        taken.append(edges[now])
        free = np.ones(K, dtype=bool)
        free[edges[now]] = False
        edges = edges[free[edges].all(axis=1)]
    return np.concatenate(taken)
