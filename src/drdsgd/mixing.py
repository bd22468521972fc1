"""Mixing matrices: a graph -> W_t, how fast W_t averages (rho), and the checks on W.

A device replaces its model by a weighted mean of its neighbours' models, `theta_i <- sum_j W_ij theta_j`.
W is symmetric and doubly stochastic, and zero where the graph has no edge, so that the network's mean
never changes and every message travels along an edge. `Mixing` is a function of the round t: a constant W
is the simplest one.

    metropolis              W_ij = 1 / (1 + max(d_i, d_j)), as in the paper
    matchings               random pairs of neighbours average
    matcha                  W_t = I - alpha_t L_t, where L_t holds some of the matchings that the graph falls into
    one_peer_exponential    device i averages with i + 2^(t mod log2 K); not symmetric
    push_sum                P_ij = 1 / (1 + outdegree_j), for directed graphs; only its columns sum to one

and what happens to any of them: `link_failures`, `dropouts`, `local_steps`, `repeated`, in any order. Whatever is
random is a pure function of (seed, t), drawn by a counter as mini-batches are (`batches.philox`): there is no state,
engines agree, and a resumed run goes on exactly.

The spectral norm of Assumption 5, `rho = || E[W^T W] - J ||` with `J = 11^T / K`, says how much of a
disagreement survives one round (Lemma 1): 0 for the complete graph, 1 for a network that falls apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import linprog, minimize_scalar
from scipy.sparse import csr_array, sparray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from drdsgd import graphs
from drdsgd.errors import InputError, whole

__all__ = [
    "MatchaPlan",
    "Mixing",
    "check_matrix",
    "constant",
    "dropouts",
    "least_eigenvalue",
    "link_failures",
    "local_steps",
    "matcha",
    "matcha_plan",
    "matchings",
    "metropolis",
    "metropolis_matrix",
    "one_peer_exponential",
    "push_sum",
    "repeated",
    "rho",
    "rho_over_time",
]

# W is built in float64; a row sum further from one than this is a mistake, not rounding
TOLERANCE = 1e-9

# the last word of the random numbers' counter, so that none is drawn twice; mini-batches have 0
LINKS, DEVICES, MATCHINGS, MATCHA = 1, 2, 3, 4


@dataclass(frozen=True)
class Mixing:
    """`t -> W_t` for K devices: `at(t)` is W_t [K, K] with sparse rows.

    `static` says that W_t is the same for every t, so an engine may prepare it once; `balanced` that its rows sum to
    one as its columns do, so that gossip keeps the mean. A round gossips `repeats` times, with the same W_t.
    `symmetric` says that every W_t is; one that is not stays balanced only as long as no link is lost.

    >>> mixing = constant(np.full((3, 3), 1 / 3))
    >>> mixing.at(7).toarray().sum(axis=1).tolist()
    [1.0, 1.0, 1.0]
    """

    K: int
    at: Callable[[int], csr_array]
    static: bool = False
    balanced: bool = True
    repeats: int = 1
    symmetric: bool = True
    unbalanced: tuple[str, str] = ("a directed graph's W", "an undirected graph")
    """What a W is that is not balanced, and what to take instead: for whoever refuses it."""


# ------------------------------------------------------------------- constant W


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


# ----------------------------------------------------------------- changing W_t


def matchings(graph: nx.Graph, seed: int = 0) -> Mixing:
    """In every round another random maximal matching of the graph: its pairs average, W_ij = 1/2, the rest waits.

    Links are taken in random order, each if both of its ends are still free. S. Boyd, A. Ghosh, B. Prabhakar and
    D. Shah, "Randomized Gossip Algorithms", 2006, has one pair at a time.

    >>> matchings(graphs.complete(4)).at(0).sum(axis=1).tolist(), (matchings(graphs.star(9)).at(0).nnz - 9) / 2
    ([1.0, 1.0, 1.0, 1.0], 1.0)
    """
    seed, edges, K = whole("seed", seed, 0), _edges(graphs.check(graph)), len(graph)

    def at(t: int) -> csr_array:
        order = np.argsort(_uniform(seed, t, MATCHINGS, edges[:, 0], edges[:, 1]), kind="stable")
        pairs = _greedy_matching(edges[order], K)
        return _pairwise(pairs, np.full(len(pairs), 0.5), K)

    return Mixing(K, at)


def one_peer_exponential(K: int) -> Mixing:
    """Everyone hears of one other: `theta_i <- (theta_i + theta_j) / 2` with j = i + 2^(t mod n) modulo K.

    n = ceil(log2 K). Doubly stochastic, not symmetric. If K is a power of two, any n rounds in a row average exactly.
    B. Ying, K. Yuan, Y. Chen, H. Hu, P. Pan and W. Yin, "Exponential Graph is Provably Efficient for Decentralized
    Deep Training", 2021.

    >>> mixing = one_peer_exponential(4)
    >>> (mixing.at(1) @ mixing.at(0)).toarray()[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    K, nodes, half = whole("K", K, 2), np.arange(K), np.full(2 * K, 0.5)
    every = [
        csr_array((half, (np.tile(nodes, 2), np.concatenate([nodes, (nodes + 2**n) % K]))), shape=(K, K))
        for n in range((K - 1).bit_length())
    ]
    return Mixing(K, lambda t: every[t % len(every)], static=K == 2, symmetric=K == 2)


def push_sum(graph: nx.DiGraph) -> Mixing:
    """`P_ij = 1 / (1 + outdegree_j)` where j sends to i and on the diagonal: what j has, it hands out in equal parts.

    The columns sum to one, the rows need not: for `optimizers.push`, which divides by the weight that gathers at a
    device. An undirected graph is one with both directions. D. Kempe, A. Dobra and J. Gehrke, "Gossip-Based
    Computation of Aggregate Information", 2003; A. Nedic and A. Olshevsky, 2016.

    >>> push_sum(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])).at(0).toarray().round(2).tolist()
    [[0.33, 0.0, 0.5], [0.33, 0.5, 0.0], [0.33, 0.5, 0.5]]
    """
    graph = graphs.check(graph, directed=True).to_directed()
    K, nodes = len(graph), np.arange(len(graph))
    sender, receiver = np.concatenate([_edges(graph), np.stack([nodes, nodes], axis=1)]).T
    P = csr_array((1.0 / np.bincount(sender)[sender], (receiver, sender)), shape=(K, K))
    return Mixing(K, lambda t: P, static=True, balanced=False, symmetric=False)


# -------------------------------------------------- what happens to any of them


def link_failures(mixing: Mixing, rate: float, seed: int = 0) -> Mixing:
    """Every link fails in every round with probability `rate`, both ways, and independently of all others.

    What it would have carried stays with its sender: W_jj gains W_ij. A symmetric W_t so stays symmetric and doubly
    stochastic; of another only the columns still sum to one, and it is not `balanced`. With the same seed, links that
    fail at one rate also fail at every higher one.

    >>> link_failures(metropolis(nx.path_graph(3)), 0.5, seed=1).at(0).toarray().round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.67, 0.0], [0.0, 0.0, 1.0]]
    """
    seed = whole("seed", seed, 0)
    return _losing(mixing, rate, lambda i, j, t: _uniform(seed, t, LINKS, np.minimum(i, j), np.maximum(i, j)) < rate)


def dropouts(mixing: Mixing, rate: float, seed: int = 0) -> Mixing:
    """Every device is away in every round with probability `rate`: all of its links are lost, as in `link_failures`.

    It is its network that fails, not the device: it still does its local step.

    >>> dropouts(metropolis(nx.complete_graph(3)), 0.5, seed=9).at(0).toarray().round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.67, 0.0], [0.0, 0.0, 1.0]]
    """
    seed, nodes = whole("seed", seed, 0), np.arange(mixing.K)

    def lost(i: NDArray[np.int64], j: NDArray[np.int64], t: int) -> NDArray[np.bool_]:
        away = _uniform(seed, t, DEVICES, nodes, 0) < rate
        return away[i] | away[j]

    return _losing(mixing, rate, lost)


def _losing(
    mixing: Mixing, rate: float, lost: Callable[[NDArray[np.int64], NDArray[np.int64], int], NDArray[np.bool_]]
) -> Mixing:
    if not 0 <= rate < 1:
        raise InputError(f"rate must lie in [0, 1), got {rate!r}: it is a probability per round, such as 0.1")
    if rate == 0:
        return mixing

    def at(t: int) -> csr_array:
        W = mixing.at(t).tocoo()
        i, j = W.row, W.col
        # duplicates are added up: the weight moves to the diagonal, and leaves no zero behind that counts as a link
        return csr_array((W.data, (np.where(lost(i, j, t), j, i), j)), shape=W.shape)

    if mixing.balanced and not mixing.symmetric:
        why = (
            "a W that is not symmetric (one-peer-exponential) and loses links",
            "a symmetric one: --mixing matchings",
        )
        mixing = replace(mixing, balanced=False, unbalanced=why)
    return replace(mixing, at=at, static=False)


def local_steps(mixing: Mixing, tau: int) -> Mixing:
    """Gossip in every tau-th round only, t = tau - 1, 2 tau - 1, ...; W_t = I in the others.

    The n-th gossip is round n of the mixing, so that one with a period keeps all of it.

    >>> [local_steps(metropolis(nx.path_graph(2)), 3).at(t)[0, 1].item() for t in range(6)]
    [0.0, 0.0, 0.5, 0.0, 0.0, 0.5]
    """
    if (tau := whole("tau", tau)) == 1:
        return mixing
    identity = csr_array((np.ones(mixing.K), np.arange(mixing.K), np.arange(mixing.K + 1)))
    return replace(mixing, at=lambda t: mixing.at(t // tau) if t % tau == tau - 1 else identity, static=False)


def repeated(mixing: Mixing, n: int) -> Mixing:
    """A round gossips n times in a row, at n times the messages: theta <- W_t^n theta.

    >>> repeated(repeated(metropolis(nx.path_graph(2)), 2), 3).repeats
    6
    """
    return replace(mixing, repeats=mixing.repeats * whole("n", n))


# ----------------------------------------------------------------------- MATCHA


class MatchaPlan(NamedTuple):
    """What MATCHA settles before training: the matching of each edge, and how often and how strongly to use them."""

    edges: NDArray[np.int64]
    """[E, 2]"""
    matching: NDArray[np.int64]
    """[E], numbers in 0 .. M-1"""
    p: NDArray[np.float64]
    """[M], the probability that a matching is active in a round"""
    alpha: float
    rho: float
    """|| E[W^T W] - J ||, if alpha is never too large for a W_ii"""


def matcha(graph: nx.Graph, budget: float, seed: int = 0) -> Mixing:
    """MATCHA: a part `budget` of the graph's matchings per round, and more often those that connect the network.

        W_t = I - alpha sum_m b_m L_m,   b_m = 1 with probability p_m,   sum_m p_m = budget M

    L_m is the Laplacian of matching m, p and alpha come from `matcha_plan`. Where a device has more than 1 / alpha
    active links, and its W_ii would be negative, each of them gets 1 / their number instead of alpha. J. Wang,
    A. K. Sahu, Z. Yang, G. Joshi and S. Kar, "MATCHA: Speeding Up Decentralized SGD via Matching Decomposition
    Sampling", 2019.

    >>> mixing = matcha(graphs.star(9), budget=0.5)
    >>> [mixing.at(t)[[0], 1:].nnz for t in range(8)]  # active links, of 8
    [4, 4, 6, 3, 5, 4, 5, 4]
    """
    seed, plan = whole("seed", seed, 0), matcha_plan(graph, budget)
    numbers, K = np.arange(len(plan.p)), len(graph)

    def at(t: int) -> csr_array:
        active = _uniform(seed, t, MATCHA, numbers, 0) < plan.p
        edges = plan.edges[active[plan.matching]]
        # An alpha for which no W_ii is ever negative, 1 / degree, was measured to lose most of what a budget buys:
        # on 100 devices with 30 links each and a tenth of them active, rho would be 0.90 in place of 0.45.
        busier = np.bincount(edges.ravel(), minlength=K)[edges].max(axis=1)
        return _pairwise(edges, np.minimum(plan.alpha, 1.0 / busier), K)

    return Mixing(K, at, static=budget == 1)


def matcha_plan(graph: nx.Graph, budget: float) -> MatchaPlan:
    """The matchings of a graph, at most its largest degree + 1 of them, their p, and alpha.

    p maximises lambda_2(sum_m p_m L_m) under sum_m p_m = budget M, 0 <= p_m <= 1, to a thousandth; alpha minimises
    || E[W^T W] - J ||, where E[W^T W] = I - 2 alpha L + alpha^2 (L^2 + 2 sum_m p_m (1 - p_m) L_m), L = sum_m p_m L_m.

    >>> plan = matcha_plan(graphs.star(4), 0.5)
    >>> plan.matching.tolist(), plan.p.round(3).tolist(), round(plan.alpha, 2)
    ([0, 1, 2], [0.5, 0.5, 0.5], 0.57)
    """
    graph = graphs.check(graph)
    if not 0 < budget <= 1:
        raise InputError(f"budget must lie in (0, 1], got {budget!r}: it is a part of the matchings, such as 0.5")
    edges, K = _edges(graph), len(graph)
    matching = _edge_colouring(edges, K)
    p = _activation(edges, matching, budget, K)
    mean = _laplacian(edges, p[matching], K)
    # that of L_t, with L_m^2 = 2 L_m
    square = mean @ mean + 2 * _laplacian(edges, (p * (1 - p))[matching], K)

    def norm(alpha: float) -> float:
        return _norm(np.eye(K) - 2 * alpha * mean + alpha**2 * square)

    found = minimize_scalar(norm, bounds=(0, 1), method="bounded")  # convex
    return MatchaPlan(edges, matching, p, float(found.x), float(found.fun))


def _activation(edges: NDArray[np.int64], matching: NDArray[np.int64], budget: float, K: int) -> NDArray[np.float64]:
    """The p [M] of the largest lambda_2(L(p)), with L(p) = sum_m p_m L_m and sum_m p_m = budget M.

    lambda_2(L(p)) is the smallest v^T L(p) v of all unit v that sum to 0, each of which is linear in p. So every v is a
    bound from above (a cut), and with some of them the problem is a linear program. Its solution gives new v, those
    that are smallest there, until the bound meets what was found (J. E. Kelley, 1960).
    """
    M = int(matching.max()) + 1
    best, most, cuts = np.full(M, budget), 0.0, np.empty((0, M))
    if budget == 1:
        return best
    p, limits = best, [(0.0, 1.0)] * M + [(0.0, None)]
    for _ in range(500):
        L = _laplacian(edges, p[matching], K)
        # the constant v is lifted above all others, so that v sums to 0 also where L(p) falls apart
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
        assert found.x is not None, f"p = budget solves it, but: {found.message}"
        if most >= (1 - 1e-3) * found.x[-1]:
            break
        # all the way would jump between corners; measured to take a third of the steps
        p = 0.6 * best + 0.4 * found.x[:-1]
    return np.asarray(np.clip(best, 0.0, 1.0))


def _edge_colouring(edges: NDArray[np.int64], K: int) -> NDArray[np.int64]:
    """Colours [E] in 0 .. M-1, none twice at a node, M <= the largest degree + 1.

    J. Misra and D. Gries, "A constructive proof of Vizing's theorem", 1992.
    """
    colours = range(int(np.bincount(edges.ravel()).max()) + 1)
    behind: list[dict[int, int]] = [{} for _ in range(K)]  # of each node: colour -> the neighbour behind that edge
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
        # A fan: neighbours of u, of which each but the last could give the colour of its edge to the one before.
        fan = [v]
        while (d := free(u, fan[-1])) is None:
            more = (w for c, w in behind[u].items() if c not in behind[fan[-1]] and w not in fan)
            if (w := next(more, None)) is None:
                break
            fan.append(w)
        if d is None:
            c, d = free(u), free(fan[-1])
            assert c is not None and d is not None, "a node has fewer edges than there are colours"
            path, following = [u], d
            while (node := behind[path[-1]].get(following)) is not None:
                path.append(node)
                following = c + d - following
            paint([(a, b, c + d - colour[a, b]) for a, b in pairwise(path)])  # now d is free at u
            fan = fan[: next(n for n, w in enumerate(fan) if d not in behind[w]) + 1]
        paint([(u, w, colour[u, after]) for w, after in pairwise(fan)] + [(u, fan[-1], d)])
    _, matching = np.unique([colour[u, v] for u, v in edges.tolist()], return_inverse=True)
    return np.asarray(matching)


# -------------------------------------------------------------------------- rho


def rho(W: np.ndarray | sparray) -> float:
    """`rho = || W^T W - J ||` (spectral norm) of a doubly stochastic W; symmetric W: its second eigenvalue squared.

    >>> round(rho(np.full((4, 4), 0.25)), 12), rho(np.eye(4))
    (0.0, 1.0)
    """
    W = _spectral_form(W)
    return _norm(W.T @ W)


def rho_over_time(mixing: Mixing, rounds: int = 100) -> float:
    """`|| mean_t V_t^T V_t - J ||` over the first rounds, V_t = W_t^repeats: an estimate of Assumption 5's rho.

    >>> mixing = metropolis(nx.path_graph(3))
    >>> round(rho_over_time(mixing), 4), round(rho_over_time(local_steps(mixing, 2)), 4)
    (0.4444, 0.7222)
    """
    if not mixing.balanced:  # push-sum forgets a disagreement as fast as the powers of P become alike
        return float(np.sort(np.abs(np.linalg.eigvals(mixing.at(0).toarray())))[-2] ** (2 * mixing.repeats))
    rounds = 1 if mixing.static else whole("rounds", rounds)
    total: Any = 0
    for t in range(rounds):
        once = V = _spectral_form(mixing.at(t))
        for _ in range(mixing.repeats - 1):
            V = once @ V
        total = total + V.T @ V
    return _norm(total / rounds)


def _spectral_form(W: np.ndarray | sparray) -> Any:
    """Dense, which is exact and still fast, or for many devices sparse."""
    if W.shape[0] > 500:
        return csr_array(W)
    return np.asarray(W.todense() if isinstance(W, sparray) else W)


def _norm(square: Any) -> float:
    """`|| square - J ||` of a mean of W^T W, [K, K]."""
    K = square.shape[0]
    if isinstance(square, np.ndarray):
        return float(np.abs(np.linalg.eigvalsh(square - 1.0 / K)).max())
    square = square.tocsc()
    deflated = LinearOperator((K, K), lambda v: square @ v - v.mean(), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(K)
    try:
        return float(eigsh(deflated, k=1, which="LA", v0=start, maxiter=300, return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        # eigenvalues crowd below one, as on a long ring; there W^T W is cheap to factor, so invert next to one
        return float(min(eigsh(square, k=2, sigma=1.0 + 1e-7, v0=start, return_eigenvectors=False)))


def least_eigenvalue(mixing: Mixing) -> float:
    """The smallest eigenvalue of what a round of a constant, symmetric mixing does, W^repeats.

    >>> round(least_eigenvalue(metropolis(nx.cycle_graph(4))), 6)
    -0.333333
    """
    W = mixing.at(0)
    small = np.linalg.eigvalsh(W.toarray())[0] if mixing.K <= 500 else eigsh(W, k=1, which="SA")[0][0]
    return float(small) ** mixing.repeats if mixing.repeats % 2 else 0.0  # an even power has none below


# ------------------------------------------------------------------ small parts


def _uniform(seed: int, t: int, stream: int, i: NDArray[np.int64], j: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """A number in [0, 1) for each (i, j): a pure function of all arguments."""
    from drdsgd.batches import philox  # it comes with torch, which a constant W does not need

    low = 2**32 - 1
    return philox((i, j, t & low, stream), (seed & low, (seed >> 32) & low))[..., 0] / 2**32


def _edges(graph: nx.Graph) -> NDArray[np.int64]:
    """[E, 2], in an order and a direction that does not depend on how the graph was made."""
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    if not graph.is_directed():
        edges = np.sort(edges, axis=1)
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))]


def _pairwise(edges: NDArray[np.int64], weight: NDArray[np.float64], K: int) -> csr_array:
    """I - L: both ends of an edge get its weight of the other's model, [K, K]."""
    (i, j), nodes = edges.T, np.arange(K)
    diagonal = np.maximum(1.0 - np.bincount(edges.ravel(), np.repeat(weight, 2), K), 0.0)
    rows, columns = np.concatenate([i, j, nodes]), np.concatenate([j, i, nodes])
    W = csr_array((np.concatenate([weight, weight, diagonal]), (rows, columns)), shape=(K, K))
    W.eliminate_zeros()  # on the diagonal, where one would count as a link
    return W


def _laplacian(edges: NDArray[np.int64], weight: NDArray[np.float64], K: int) -> NDArray[np.float64]:
    """`sum_e weight_e L_e`, [K, K]: v^T L v = sum over edges of weight_ij (v_i - v_j)^2."""
    L = np.zeros((K, K))
    L[edges[:, 0], edges[:, 1]] = L[edges[:, 1], edges[:, 0]] = -weight
    np.fill_diagonal(L, -L.sum(axis=1))
    return L


def _greedy_matching(edges: NDArray[np.int64], K: int) -> NDArray[np.int64]:
    """Those of the edges [E, 2] that are taken if each is, in order, whose two ends are still free.

    Every pass takes all edges that come first at both ends. In random order about log E passes do.
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
