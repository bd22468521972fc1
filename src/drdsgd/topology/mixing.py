"""Mixing matrices: a graph -> W_t, how fast W_t averages (rho), and the checks on W.

A device replaces its model by a weighted mean of its neighbours' models, `theta_i <- sum_j W_ij theta_j`. W is
symmetric and doubly stochastic, so the network's mean never changes. It is zero where the graph has no edge, so every
message travels along an edge. `Mixing` is a function of the round t; a constant W is the simplest one.

    metropolis              W_ij = 1 / (1 + max(d_i, d_j)), as in the paper
    matchings               random pairs of neighbours average
    matcha                  W_t = I - alpha_t L_t, where L_t holds some of the graph's matchings
    one_peer_exponential    device i averages with i + 2^(t mod log2 K); not symmetric
    push_sum                P_ij = 1 / (1 + outdegree_j), for directed graphs; only its columns sum to one

`link_failures`, `dropouts`, `local_steps` and `repeated` change any of them, in any order. Every draw is a pure
function of (seed, t), made by a counter (`drdsgd.random`): there is no state, engines agree, and a resumed run
continues exactly.

`spectrum` computes how fast they average (rho, Assumption 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, sparray

from drdsgd.errors import InputError, named, unknown, whole
from drdsgd.options import Dropouts, LinkFailures, MixingKind
from drdsgd.random import Stream, uniform
from drdsgd.topology import graphs
from drdsgd.topology.matchings import MatchaPlan, edges_of, greedy_matching, matcha_plan, pairwise_average
from drdsgd.topology.spectrum import least_eigenvalue, rho, rho_over_time

__all__ = [
    "MatchaPlan", "Mixing", "check_matrix", "constant", "dropouts", "least_eigenvalue", "link_failures",
    "local_steps", "matcha", "matcha_plan", "matchings", "metropolis", "metropolis_matrix", "mixing_of",
    "one_peer_exponential", "push_sum", "repeated", "rho", "rho_over_time", "with_steps",
]  # fmt: skip

# W is built in float64: a row sum further from one than this is an error, not rounding
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Mixing:
    """`t -> W_t` for K devices: `at(t)` is W_t [K, K] with sparse rows.

    `static`: W_t is the same for every t, so an engine may prepare it once. `balanced`: rows and columns sum to one, so
    gossip keeps the mean. `symmetric`: every W_t is symmetric; if not, it stays balanced only while no link is lost. A
    round gossips `repeats` times with the same W_t.

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
    """For error messages: what an unbalanced W is, and what to use instead."""


# ------------------------------------------------------------------- constant W


def metropolis(graph: nx.Graph) -> Mixing:
    """The constant Metropolis W of a graph, as in the paper's experiments; see `metropolis_matrix`.

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
    """Your own W for every round; `check_matrix` checks it, against the graph too if one is given.

    >>> constant(np.array([[0.5, 0.5], [0.5, 0.5]])).static
    True
    """
    rows = check_matrix(W, graph)
    return Mixing(rows.shape[0], lambda t: rows, static=True)


def check_matrix(W: np.ndarray | sparray, graph: nx.Graph | None = None) -> csr_array:
    """W as sparse rows, or an `InputError` that names what is wrong.

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
                raise InputError(
                    f"W must be zero off the graph: W[{i}, {j}] is {rows[i, j]:g}, but the graph has no such edge"
                )
    return rows


# ----------------------------------------------------------------- changing W_t


def matchings(graph: nx.Graph, seed: int = 0) -> Mixing:
    """A new random maximal matching of the graph in every round: its pairs average (W_ij = 1/2), all others wait.

    Links are tried in random order, and a link is taken if both its ends are still free. S. Boyd, A. Ghosh,
    B. Prabhakar and D. Shah, "Randomized Gossip Algorithms", 2006, use one pair at a time.

    >>> matchings(graphs.complete(4)).at(0).sum(axis=1).tolist(), (matchings(graphs.star(9)).at(0).nnz - 9) / 2
    ([1.0, 1.0, 1.0, 1.0], 1.0)
    """
    seed, edges, K = whole("seed", seed, 0), edges_of(graphs.check(graph)), len(graph)

    def at(t: int) -> csr_array:
        order = np.argsort(uniform(seed, Stream.MATCHINGS, t, edges[:, 0], edges[:, 1]), kind="stable")
        pairs = greedy_matching(edges[order], K)
        return pairwise_average(pairs, np.full(len(pairs), 0.5), K)

    return Mixing(K, at)


def one_peer_exponential(K: int) -> Mixing:
    """Every device hears one other: `theta_i <- (theta_i + theta_j) / 2` with j = i + 2^(t mod n) modulo K.

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
    """`P_ij = 1 / (1 + outdegree_j)` on the diagonal and where j sends to i: device j splits what it has equally.

    The columns sum to one, but the rows need not. It is for `optimizers.push`, which divides by the mass that gathers
    at a device. An undirected graph counts as one with both directions. D. Kempe, A. Dobra and J. Gehrke,
    "Gossip-Based Computation of Aggregate Information", 2003; A. Nedic and A. Olshevsky, 2016.

    >>> push_sum(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])).at(0).toarray().round(2).tolist()
    [[0.33, 0.0, 0.5], [0.33, 0.5, 0.0], [0.33, 0.5, 0.5]]
    """
    graph = graphs.check(graph, directed=True).to_directed()
    K, nodes = len(graph), np.arange(len(graph))
    sender, receiver = np.concatenate([edges_of(graph), np.stack([nodes, nodes], axis=1)]).T
    P = csr_array((1.0 / np.bincount(sender)[sender], (receiver, sender)), shape=(K, K))
    return Mixing(K, lambda t: P, static=True, balanced=False, symmetric=False)


# --------------------------------------------------- changes to any of them


def link_failures(mixing: Mixing, rate: float, seed: int = 0) -> Mixing:
    """Every link fails in every round with probability `rate`, both ways and independently of all others.

    The lost weight stays with the sender: W_jj gains W_ij. So a symmetric W_t stays symmetric and doubly stochastic.
    Otherwise only the columns still sum to one, and the result is not `balanced`. With the same seed, links that fail
    at one rate also fail at every higher rate.

    >>> link_failures(metropolis(nx.path_graph(3)), 0.5, seed=1).at(0).toarray().round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.67, 0.0], [0.0, 0.0, 1.0]]
    """
    seed = whole("seed", seed, 0)

    def lost(i: NDArray[np.int64], j: NDArray[np.int64], t: int) -> NDArray[np.bool_]:
        return uniform(seed, Stream.FAILING_LINKS, t, np.minimum(i, j), np.maximum(i, j)) < rate

    return _losing(mixing, rate, lost)


def dropouts(mixing: Mixing, rate: float, seed: int = 0) -> Mixing:
    """Every device is offline in every round with probability `rate`: it loses all links, as in `link_failures`.

    Only its network fails: it still takes its local step.

    >>> dropouts(metropolis(nx.complete_graph(3)), 0.5, seed=9).at(0).toarray().round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.67, 0.0], [0.0, 0.0, 1.0]]
    """
    seed, nodes = whole("seed", seed, 0), np.arange(mixing.K)

    def lost(i: NDArray[np.int64], j: NDArray[np.int64], t: int) -> NDArray[np.bool_]:
        away = uniform(seed, Stream.ABSENT_DEVICES, t, nodes) < rate
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
        # duplicates add up: the weight moves to the diagonal, and leaves no stored zero that would count as a link
        return csr_array((W.data, (np.where(lost(i, j, t), j, i), j)), shape=W.shape)

    if mixing.balanced and not mixing.symmetric:
        why = (
            "a W that is not symmetric (one-peer-exponential) and loses links",
            f"a symmetric one: {named('mixing', 'matchings')}",
        )
        mixing = replace(mixing, balanced=False, unbalanced=why)
    return replace(mixing, at=at, static=False)


def local_steps(mixing: Mixing, tau: int) -> Mixing:
    """Gossip only in rounds t = tau - 1, 2 tau - 1, ...; W_t = I in all others.

    The n-th gossip uses the mixing's round n, so a periodic mixing goes through its whole period.

    >>> [local_steps(metropolis(nx.path_graph(2)), 3).at(t)[0, 1].item() for t in range(6)]
    [0.0, 0.0, 0.5, 0.0, 0.0, 0.5]
    """
    if (tau := whole("tau", tau)) == 1:
        return mixing
    identity = csr_array((np.ones(mixing.K), np.arange(mixing.K), np.arange(mixing.K + 1)))
    return replace(mixing, at=lambda t: mixing.at(t // tau) if t % tau == tau - 1 else identity, static=False)


def repeated(mixing: Mixing, n: int) -> Mixing:
    """A round gossips n times and sends n times the messages: theta <- W_t^n theta.

    >>> repeated(repeated(metropolis(nx.path_graph(2)), 2), 3).repeats
    6
    """
    return replace(mixing, repeats=mixing.repeats * whole("n", n))


# ----------------------------------------------------------------------- MATCHA


def matcha(graph: nx.Graph, budget: float, seed: int = 0) -> Mixing:
    """MATCHA: a round uses the share `budget` of the graph's matchings, and more often those that connect the network.

        W_t = I - alpha sum_m b_m L_m,   b_m = 1 with probability p_m,   sum_m p_m = budget M

    L_m is the Laplacian of matching m; p and alpha come from `matcha_plan`. If a device has n > 1 / alpha active links,
    its W_ii would be negative, so each of these links gets 1 / n instead of alpha. J. Wang, A. K. Sahu, Z. Yang,
    G. Joshi and S. Kar, "MATCHA: Speeding Up Decentralized SGD via Matching Decomposition Sampling", 2019.

    >>> mixing = matcha(graphs.star(9), budget=0.5)
    >>> [mixing.at(t)[[0], 1:].nnz for t in range(8)]  # active links, of 8
    [4, 4, 6, 3, 5, 4, 5, 4]
    """
    seed, plan = whole("seed", seed, 0), matcha_plan(graph, budget)
    numbers, K = np.arange(len(plan.p)), len(graph)

    def at(t: int) -> csr_array:
        active = uniform(seed, Stream.MATCHA, t, numbers) < plan.p
        edges = plan.edges[active[plan.matching]]
        # alpha = 1 / degree, with which no W_ii is ever negative, was measured to lose most of the gain: on 100 devices
        # with 30 links each, a tenth of them active, rho would be 0.90 instead of 0.45.
        busier = np.bincount(edges.ravel(), minlength=K)[edges].max(axis=1)
        return pairwise_average(edges, np.minimum(plan.alpha, 1.0 / busier), K)

    return Mixing(K, at, static=budget == 1)


def with_steps(mixing: Mixing, gossip_steps: int | None, local_steps: int | None) -> Mixing:
    """The mixing, several times in a round (`repeated`), and only in every few rounds (`local_steps`)."""
    if gossip_steps is not None:
        mixing = repeated(mixing, gossip_steps)
    return mixing if local_steps is None else _local_steps(mixing, local_steps)


_local_steps = local_steps  # a parameter above has the same name

MIXINGS = ("metropolis", "matcha", "matchings", "one-peer-exponential")


def mixing_of(
    graph: nx.Graph,
    mixing: MixingKind | None = None,
    link_failures: LinkFailures | None = None,
    dropouts: Dropouts | None = None,
    seed: int = 0,
) -> Mixing:
    """A mixing by name, with links and devices that fail; a directed graph gets `push_sum`.

    >>> mixing_of(graphs.ring(4), "matcha:0.5", link_failures=0.2).static
    False
    """
    made = _by_name(graph, mixing, seed)
    if link_failures is not None:
        made = _link_failures(made, link_failures, seed)
    return made if dropouts is None else _dropouts(made, dropouts, seed)


_link_failures, _dropouts = link_failures, dropouts  # parameters above have the same names


def _by_name(graph: nx.Graph, spelled: str | None, seed: int) -> Mixing:
    kind, _, number = (spelled or "metropolis").partition(":")
    said = named("mixing", spelled)
    if kind not in MIXINGS:
        raise InputError(f"{said}: {unknown(kind, MIXINGS)}")
    if number and kind != "matcha":
        raise InputError(f"{said}: {kind} takes no number")
    if graph.is_directed():
        if kind != "metropolis":
            raise InputError(f"{said}: does not work on a directed graph; leave it out")
        return push_sum(graph)
    if kind == "matcha":
        try:
            budget = float(number or "0.5")
        except ValueError:
            raise InputError(f"{said}: '{number}' is not a number; write matcha:0.5") from None
        if not 0 < budget <= 1:
            raise InputError(f"{said}: the budget is a fraction of the matchings, in (0, 1]; write matcha:0.5")
        return matcha(graph, budget, seed)
    if kind == "matchings":
        return matchings(graph, seed)
    if kind == "one-peer-exponential":
        if nx.density(graph) < 1:
            raise InputError(f"{said}: needs links that this graph may lack; write {named('graph', 'complete')}")
        return one_peer_exponential(graph.number_of_nodes())
    return metropolis(graph)
