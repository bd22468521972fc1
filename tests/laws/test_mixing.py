"""W_t satisfies the theory's assumptions, on every graph and in every round; any other matrix is refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.topology import graphs
from drdsgd.topology.mixing import (
    Mixing,
    check_matrix,
    constant,
    dropouts,
    link_failures,
    local_steps,
    matcha,
    matcha_plan,
    matchings,
    metropolis,
    metropolis_matrix,
    one_peer_exponential,
    push_sum,
    repeated,
    rho,
    rho_over_time,
)
from tests import reference
from tests.support.refusing import message

Dense = NDArray[np.float64]


@st.composite
def any_graph(draw: st.DrawFn) -> nx.Graph:
    """A simple graph, connected or not."""
    K = draw(st.integers(2, 12))
    pairs = [(i, j) for i in range(K) for j in range(i)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True))
    graph = nx.Graph()
    graph.add_nodes_from(range(K))
    graph.add_edges_from(edges)
    return graph


@given(any_graph())
def test_metropolis_is_symmetric_doubly_stochastic_and_on_the_graph(graph: nx.Graph) -> None:
    W = metropolis_matrix(graph).toarray()
    assert np.array_equal(W, W.T)
    assert np.allclose(W.sum(axis=0), 1, rtol=0, atol=1e-12) and np.allclose(W.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert (W >= 0).all() and (np.diag(W) > 0).all()
    for i in graph:
        for j in graph:
            assert i == j or (W[i, j] > 0) == graph.has_edge(i, j)


@given(any_graph())
def test_metropolis_is_the_papers_formula(graph: nx.Graph) -> None:
    assert np.allclose(metropolis_matrix(graph).toarray(), reference.metropolis(graph), rtol=0, atol=1e-15)


@given(any_graph())
def test_rho_is_below_one_exactly_when_connected(graph: nx.Graph) -> None:
    assert (rho(metropolis_matrix(graph)) < 1 - 1e-9) == nx.is_connected(graph)


@given(any_graph(), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_lemma_1(graph: nx.Graph, n: int, seed: int) -> None:
    """|| A (W^n - J) ||_F^2 <= rho^n || A ||_F^2 for any A [d, K]."""
    W = metropolis_matrix(graph).toarray()
    K = len(W)
    A = np.random.default_rng(seed).standard_normal((3, K))
    left = np.linalg.norm(A @ (np.linalg.matrix_power(W, n) - np.full((K, K), 1 / K))) ** 2
    assert left <= rho(W) ** n * np.linalg.norm(A) ** 2 + 1e-9


def test_rho_is_the_definition() -> None:
    W = metropolis_matrix(graphs.erdos_renyi(20, 0.3, seed=3)).toarray()
    assert rho(W) == pytest.approx(np.linalg.norm(W.T @ W - np.full((20, 20), 1 / 20), ord=2), abs=1e-12)


def test_rho_of_large_graphs() -> None:
    W = metropolis_matrix(graphs.random_regular(600, 6, seed=0))
    eigenvalues = np.linalg.eigvalsh(W.toarray())
    assert rho(W) == pytest.approx(max(eigenvalues[-2] ** 2, eigenvalues[0] ** 2), abs=1e-9)
    # a ring's eigenvalues are known, (1 + 2 cos(2 pi k / K)) / 3, and too close to each other for Lanczos
    for K in (600, 20_000):
        assert rho(metropolis_matrix(graphs.ring(K))) == pytest.approx(
            ((1 + 2 * np.cos(2 * np.pi / K)) / 3) ** 2, abs=1e-11
        )


def test_a_complete_graph_averages_at_once() -> None:
    assert rho(metropolis_matrix(graphs.complete(7))) < 1e-15
    assert metropolis(graphs.complete(7)).at(3).toarray() == pytest.approx(np.full((7, 7), 1 / 7))


GOOD = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])


@pytest.mark.parametrize(
    ("W", "says"),
    [
        (np.ones((2, 3)), "square"),
        (np.array([[0.5, 0.5], [0.4, 0.6]]), "column 0 sums to 0.9"),
        (np.array([[0.9, 0.5], [0.5, 0.9]]), "row 0 sums to 1.4"),
        (np.array([[1.5, -0.5], [-0.5, 1.5]]), r"W\[0, 0\] is 1.5"),
        (np.array([[np.nan, 1], [1, 0]]), r"W\[0, 0\] is nan"),
        (np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]), r"symmetric: W\[0, 1\] is 1 but W\[1, 0\] is 0"),
    ],
)
def test_a_bad_matrix_is_refused(W: np.ndarray, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        constant(W)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (nx.Graph([(0, 1), (2, 3)]), "not connected"),
        (nx.Graph([(0, 1), (1, 1)]), "self-loop"),
        (nx.DiGraph([(0, 1)]), "directed"),
        (nx.MultiGraph([(0, 1), (0, 1)]), "multigraph"),
        (nx.Graph([("a", "b")]), "nodes 0..1"),
    ],
)
def test_metropolis_refuses_other_graphs(graph: nx.Graph, says: str) -> None:
    with pytest.raises(InputError, match=says):
        metropolis(graph)


def test_a_matrix_must_fit_its_graph() -> None:
    assert constant(GOOD, nx.path_graph(3)).at(0).toarray() == pytest.approx(GOOD)
    with pytest.raises(InputError, match=r"off the graph: W\[0, 1\] is 0.5"):
        constant(GOOD, nx.Graph([(0, 2), (1, 2)]))
    with pytest.raises(InputError, match="3 devices but the graph has 4"):
        constant(GOOD, nx.path_graph(4))
    assert check_matrix(metropolis_matrix(nx.path_graph(3))).nnz == 7


# ----------------------------------------------------------------- changing W_t

GRAPH = graphs.erdos_renyi(12, 0.4, seed=1)
DIRECTED = graphs.directed_erdos_renyi(12, 0.3, seed=2)

# a new mixing is a new row: the laws below hold for all
SYMMETRIC: dict[str, Callable[[int], Mixing]] = {
    "link_failures": lambda seed: link_failures(metropolis(GRAPH), 0.3, seed),
    "dropouts": lambda seed: dropouts(metropolis(GRAPH), 0.3, seed),
    "both": lambda seed: dropouts(link_failures(metropolis(GRAPH), 0.3, seed), 0.2, seed),
    "matchings": lambda seed: matchings(GRAPH, seed),
    "matcha": lambda seed: matcha(GRAPH, 0.4, seed),
    "failing matcha": lambda seed: link_failures(matcha(GRAPH, 0.7, seed), 0.2, seed),
    "failing matchings": lambda seed: dropouts(matchings(GRAPH, seed), 0.2, seed),
    "failures between local steps": lambda seed: local_steps(link_failures(metropolis(GRAPH), 0.3, seed), 2),
}
DIRECTIONAL: dict[str, Callable[[int], Mixing]] = {
    "failing push_sum": lambda seed: link_failures(push_sum(DIRECTED), 0.3, seed),
    "push_sum without some": lambda seed: dropouts(push_sum(DIRECTED), 0.3, seed),
    "failing one_peer": lambda seed: link_failures(one_peer_exponential(12), 0.3, seed),
}
RANDOM = SYMMETRIC | DIRECTIONAL
FIXED: dict[str, Mixing] = {
    "local_steps": local_steps(metropolis(GRAPH), 3),
    "one_peer": one_peer_exponential(12),
    "matcha": matcha(GRAPH, 1.0),
    "repeated": repeated(metropolis(GRAPH), 2),
}
# the edges along which messages may travel, if they are not GRAPH's
ALLOWED = {"one_peer": None, "failing one_peer": None, "failing push_sum": DIRECTED, "push_sum without some": DIRECTED}


@functools.cache
def made(name: str, seed: int) -> Mixing:
    return RANDOM[name](seed)


def dense(mixing: Mixing, t: int) -> Dense:
    return np.asarray(mixing.at(t).toarray())


def lives_on(W: Dense, graph: nx.Graph | None) -> bool:
    """Whether every message of W (column -> row) travels along an edge."""
    return graph is None or all(i == j or graph.has_edge(j, i) for i, j in np.argwhere(W).tolist())


def assert_proper(W: Dense, mixing: Mixing, graph: nx.Graph | None) -> None:
    assert W.shape == (mixing.K, mixing.K)
    assert (W >= 0).all() and (W <= 1 + 1e-12).all()
    assert np.allclose(W.sum(axis=0), 1, rtol=0, atol=1e-12)
    if mixing.balanced:
        assert np.allclose(W.sum(axis=1), 1, rtol=0, atol=1e-12)
    if mixing.symmetric:
        assert np.array_equal(W, W.T)
    assert lives_on(W, graph)


@pytest.mark.parametrize("name", RANDOM)
@given(seed=st.sampled_from([0, 7, 2**40]), t=st.integers(0, 2**40))
def test_every_random_w(name: str, seed: int, t: int) -> None:
    """In [0, 1], stochastic, zero off the graph, symmetric if it says so; and a pure function of (seed, t)."""
    mixing = made(name, seed)
    W = dense(mixing, t)
    assert_proper(W, mixing, ALLOWED.get(name, GRAPH))
    mixing.at(t + 1)
    assert np.array_equal(dense(mixing, t), W)  # there is no state
    assert mixing.symmetric == mixing.balanced == (name in SYMMETRIC)
    assert not mixing.static and mixing.repeats == 1


@pytest.mark.parametrize("name", FIXED)
@given(t=st.integers(0, 2**40))
def test_every_other_w(name: str, t: int) -> None:
    assert_proper(dense(FIXED[name], t), FIXED[name], ALLOWED.get(name, GRAPH))


@pytest.mark.parametrize("name", RANDOM)
def test_other_rounds_and_seeds_have_another_w(name: str) -> None:
    gossips = range(1, 20, 2)  # some mixings have local steps in between
    for seeds, rounds in (((0,), gossips), ((0, 7, 2**40), gossips[:1])):
        different = {dense(made(name, seed), t).tobytes() for seed in seeds for t in rounds}
        assert len(different) >= 0.8 * len(seeds) * len(rounds)
    assert all(np.array_equal(dense(made(name, 0), t), dense(RANDOM[name](0), t)) for t in gossips[:1])


@pytest.mark.parametrize("name", [*SYMMETRIC, "one_peer"])
def test_gossip_keeps_the_mean_and_ends_in_it(name: str) -> None:
    engine = LocalEngine(made(name, 0) if name in SYMMETRIC else FIXED[name], torch.float64)
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = x.mean(dim=0)
    for t in range(400):
        x = engine.mix(t)(x, donate=True)
    assert torch.allclose(x, mean.expand_as(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", DIRECTIONAL)
def test_directed_gossip_keeps_the_sum_and_its_quotient_ends_in_the_mean(name: str) -> None:
    engine = LocalEngine(made(name, 0), torch.float64)
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, w = x.mean(dim=0), torch.ones(12, 1, dtype=torch.float64)
    for t in range(400):
        x, w = engine.mix(t)(x), engine.mix(t)(w)
    assert torch.allclose(x.mean(dim=0), mean, rtol=0, atol=1e-12)
    assert torch.allclose(x / w, mean.expand_as(x), rtol=0, atol=1e-9)


# ------------------------------------------------------------------- lost links


@st.composite
def connected(draw: st.DrawFn) -> nx.Graph:
    graph = draw(any_graph())
    graph.add_edges_from(pairwise([min(part) for part in nx.connected_components(graph)]))
    return graph


@given(connected(), st.floats(0, 0.99), st.integers(0, 2**32), st.integers(0, 1000))
def test_the_weight_of_a_lost_link_moves_to_the_diagonal(graph: nx.Graph, rate: float, seed: int, t: int) -> None:
    for lossy in (link_failures(metropolis(graph), rate, seed), dropouts(metropolis(graph), rate, seed)):
        W, full = dense(lossy, t), dense(metropolis(graph), t)
        lost = (W == 0) & (full > 0)
        assert not lost.diagonal().any()
        there = ~lost & ~np.eye(len(W), dtype=bool)
        assert np.array_equal(W[there], full[there])
        assert np.allclose(W.diagonal(), full.diagonal() + (full * lost).sum(axis=1), rtol=0, atol=1e-14)
        assert lossy.at(t).nnz == np.count_nonzero(W)  # an engine counts stored entries as sent


@given(connected(), st.integers(0, 2**32), st.integers(0, 1000))
def test_links_that_fail_at_a_rate_fail_at_every_higher_one(graph: nx.Graph, seed: int, t: int) -> None:
    there = [dense(link_failures(metropolis(graph), rate, seed), t) > 0 for rate in (0.0, 0.1, 0.4, 0.9)]
    assert all((more <= less).all() for less, more in pairwise(there))


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_links_and_devices_fail_at_the_given_rate(rate: float) -> None:
    graph, rounds = graphs.random_regular(40, 6, seed=0), 300
    links, devices = link_failures(metropolis(graph), rate, 3), dropouts(metropolis(graph), rate, 3)
    u, v = np.array(graph.edges)[:30].T
    alive = np.stack([dense(links, t)[u, v] > 0 for t in range(rounds)])
    assert 1 - alive.mean() == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / alive.size))
    # rounds and links are independent
    assert np.abs(np.corrcoef(alive.T) - np.eye(30)).max() < 0.3
    assert abs(np.corrcoef(alive[1:].ravel(), alive[:-1].ravel())[0, 1]) < 0.05
    kept = np.mean([(devices.at(t).nnz - 40) / 2 for t in range(rounds)]) / graph.number_of_edges()
    assert kept == pytest.approx((1 - rate) ** 2, abs=0.03)


def test_an_offline_device_has_no_links() -> None:
    mixing, full = dropouts(metropolis(graphs.complete(9)), 0.4, seed=1), np.full((9, 9), 1 / 9)
    for t in range(50):
        W = dense(mixing, t)
        away = np.isclose(W.diagonal(), 1)
        assert np.array_equal(W[away][:, ~away], np.zeros((away.sum(), (~away).sum())))
        here = W[~away][:, ~away]
        assert np.allclose(here - np.diag(here.diagonal()), (full - np.diag(full.diagonal()))[~away][:, ~away])


def test_the_weight_of_a_lost_directed_link_stays_with_the_sender() -> None:
    full = dense(push_sum(DIRECTED), 0)
    for t in range(20):
        W = dense(link_failures(push_sum(DIRECTED), 0.4, 0), t)
        lost = (W == 0) & (full > 0)
        assert np.allclose(W.diagonal(), full.diagonal() + (full * lost).sum(axis=0))
        both = (full > 0) & (full.T > 0)
        assert np.array_equal(lost[both], lost.T[both])  # a link fails both ways


def test_streams_are_independent() -> None:
    """All draws of a run use the same seed, and are still independent."""
    graph = graphs.complete(12)
    links, devices = link_failures(metropolis(graph), 0.5, 0), dropouts(metropolis(graph), 0.5, 0)
    pairs = matchings(graph, 0)
    alive = np.array([[dense(m, t)[0, 1] > 0 for m in (links, devices, pairs)] for t in range(600)])
    assert np.abs(np.corrcoef(alive.T) - np.eye(3)).max() < 0.15


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, math.nan])
def test_bad_rate(rate: float) -> None:
    for lose in (link_failures, dropouts):
        message(partial(lose, metropolis(GRAPH), rate), "rate", "[0, 1)", repr(rate))


def test_rate_zero_is_the_same_mixing() -> None:
    mixing = metropolis(GRAPH)
    assert link_failures(mixing, 0) is mixing and dropouts(mixing, 0.0) is mixing and local_steps(mixing, 1) is mixing


# ----------------------------------------------------- local steps, more gossip


@given(st.integers(1, 7), st.integers(0, 60))
def test_local_steps_gossip_in_every_tau_th_round(tau: int, t: int) -> None:
    W = dense(local_steps(metropolis(GRAPH), tau), t)
    assert np.array_equal(W, dense(metropolis(GRAPH), 0) if t % tau == tau - 1 else np.eye(12))


def test_local_steps_take_every_w_of_a_changing_mixing_in_turn() -> None:
    """If the one-peer graph lost every other round, 4 devices would never agree."""
    mixing, peers = local_steps(one_peer_exponential(4), 2), one_peer_exponential(4)
    for t in range(12):
        assert np.array_equal(dense(mixing, t), dense(peers, t // 2) if t % 2 else np.eye(4))
    assert np.allclose(dense(mixing, 3) @ dense(mixing, 1), np.full((4, 4), 0.25))


def test_repeated_gossip_is_a_power_and_is_counted() -> None:
    x = torch.randn(12, 5, dtype=torch.float64)
    mixing = repeated(link_failures(metropolis(GRAPH), 0.3, 1), 3)
    mix = LocalEngine(mixing, torch.float64).mix(4)
    W = torch.as_tensor(dense(mixing, 4))
    assert torch.allclose(mix(x), W @ W @ W @ x)
    assert mix.floats_sent == 3 * 5 * (np.count_nonzero(dense(mixing, 4)) - 12)
    idle = LocalEngine(repeated(local_steps(metropolis(GRAPH), 2), 3), torch.float64).mix(0)
    assert torch.equal(idle(x), x) and idle.floats_sent == 0


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_bad_counts(n: int) -> None:
    message(lambda: local_steps(metropolis(GRAPH), n), "tau", repr(n))
    message(lambda: repeated(metropolis(GRAPH), n), "n must", repr(n))


@pytest.mark.parametrize("seed", [-1, 0.5])
def test_bad_seed(seed: int) -> None:
    mixing = metropolis(GRAPH)
    for call in (
        lambda: link_failures(mixing, 0.1, seed),
        lambda: dropouts(mixing, 0.1, seed),
        lambda: matchings(GRAPH, seed),
        lambda: matcha(GRAPH, 0.5, seed),
    ):
        message(call, "seed", repr(seed))


def test_compositions_keep_what_they_are_made_of() -> None:
    over_push = repeated(local_steps(link_failures(push_sum(DIRECTED), 0.1), 2), 2)
    assert not over_push.balanced and not over_push.symmetric and over_push.repeats == 2 and not over_push.static
    assert not local_steps(one_peer_exponential(8), 3).symmetric and local_steps(one_peer_exponential(8), 3).balanced
    outside = dropouts(link_failures(local_steps(repeated(metropolis(GRAPH), 2), 2), 0.2, 1), 0.2, 1)
    assert outside.balanced and outside.symmetric and outside.repeats == 2 and not outside.static
    assert repeated(metropolis(GRAPH), 4).static
    assert np.array_equal(dense(outside, 0), np.eye(12)) and not np.array_equal(dense(outside, 1), np.eye(12))
    # which links fail in a round does not depend on the other changes
    a = link_failures(dropouts(metropolis(GRAPH), 0.3, 1), 0.3, 2)
    b = dropouts(link_failures(metropolis(GRAPH), 0.3, 2), 0.3, 1)
    assert all(np.allclose(dense(a, t), dense(b, t), rtol=0, atol=1e-14) for t in range(10))


# -------------------------------------------------------------------- matchings


@given(connected(), st.integers(0, 2**32), st.integers(0, 1000))
def test_matchings_are_maximal_matchings(graph: nx.Graph, seed: int, t: int) -> None:
    W = dense(matchings(graph, seed), t)
    assert set(np.unique(W)) <= {0.0, 0.5, 1.0}
    pairs = {(i, j) for i, j in np.argwhere(np.triu(W, 1)).tolist()}
    assert nx.is_maximal_matching(graph, pairs)


def test_every_link_has_its_turn() -> None:
    mixing, rounds = matchings(graphs.ring(6), 0), 600
    often = sum((dense(mixing, t) == 0.5) & ~np.eye(6, dtype=bool) for t in range(rounds)) / rounds
    link = often[np.arange(6), (np.arange(6) + 1) % 6]
    assert link.min() > 0 and np.ptp(link) < 0.1  # a ring has no special link


def test_matchings_of_many_devices() -> None:
    graph = graphs.random_regular(2000, 8, seed=0)
    W = matchings(graph, 0).at(1)
    assert np.unique(W.data).tolist() == [0.5, 1.0]
    assert W.nnz - 2000 > 2000 * 0.8  # a maximal matching has at least half as many pairs as the largest one


# ----------------------------------------------------------------------- MATCHA


def laplacian(edges: NDArray[np.int64], weight: Dense, K: int) -> Dense:
    L = np.zeros((K, K))
    for (u, v), w in zip(edges.tolist(), weight.tolist(), strict=True):
        L[u, u] += w
        L[v, v] += w
        L[u, v] -= w
        L[v, u] -= w
    return L


@given(connected())
def test_matcha_splits_the_edges_into_few_matchings(graph: nx.Graph) -> None:
    plan = matcha_plan(graph, 1.0)
    found = [tuple(edge) for edge in plan.edges.tolist()]
    assert len(found) == len(set(found)) and set(found) == {(min(e), max(e)) for e in graph.edges}
    assert set(plan.matching) == set(range(len(plan.p)))
    assert all(
        nx.is_matching(graph, {e for e, c in zip(found, plan.matching, strict=True) if c == m})
        for m in range(len(plan.p))
    )
    assert len(plan.p) <= max(d for _, d in graph.degree) + 1
    assert (plan.p == 1).all()


@pytest.mark.parametrize(
    "graph", [graphs.complete(9), graphs.complete(10), graphs.torus(25), graphs.erdos_renyi(60, 0.5)]
)
def test_few_matchings_of_graphs_that_need_repainting(graph: nx.Graph) -> None:
    plan = matcha_plan(graph, 1.0)
    for m in range(len(plan.p)):
        ends = plan.edges[plan.matching == m].ravel()
        assert len(ends) == len(set(ends.tolist()))
    assert len(plan.p) <= max(d for _, d in graph.degree) + 1


MATCHA_GRAPHS = {
    "er": graphs.erdos_renyi(25, 0.3, seed=0),
    "geometric": graphs.geometric(20, seed=3),
    "grid": graphs.grid(16),
    "star": graphs.star(8),
    "two": graphs.ring(2),
}


@pytest.mark.parametrize("name", MATCHA_GRAPHS)
@pytest.mark.parametrize("budget", [0.1, 0.5, 0.9])
def test_matcha_plan(name: str, budget: float) -> None:
    graph, plan = MATCHA_GRAPHS[name], matcha_plan(MATCHA_GRAPHS[name], budget)
    K, M = len(graph), len(plan.p)
    assert (plan.p >= 0).all() and (plan.p <= 1).all() and plan.p.sum() == pytest.approx(budget * M)

    def second(p: Dense) -> float:
        return float(np.linalg.eigvalsh(laplacian(plan.edges, p[plan.matching], K))[1])

    # no other p with the same budget connects better
    best, rng = second(plan.p), np.random.default_rng(0)
    assert best > 0 and best >= second(np.full(M, budget)) * (1 - 1e-9)
    for _ in range(300):
        other = plan.p + rng.normal(size=M) * 10 ** rng.uniform(-3, 0)
        other = np.clip(other - (other.sum() - budget * M) / M, 0, 1)
        other *= min(1.0, budget * M / other.sum())
        assert second(other) <= best * (1 + 2e-3)

    # E[W'W] by the definition: over all subsets of the matchings
    if M <= 8:
        parts = [laplacian(plan.edges, (plan.matching == m).astype(float), K) for m in range(M)]

        def norm(alpha: float) -> float:
            mean = np.zeros((K, K))
            for subset in range(2**M):
                on = [subset >> m & 1 for m in range(M)]
                chance = math.prod(p if b else 1 - p for p, b in zip(plan.p.tolist(), on, strict=True))
                W = np.eye(K) - alpha * sum(b * L for b, L in zip(on, parts, strict=True))
                mean += chance * W.T @ W
            return float(np.linalg.norm(mean - 1 / K, ord=2))

        assert plan.rho == pytest.approx(norm(plan.alpha), abs=1e-9)
        assert plan.rho <= min(norm(alpha) for alpha in np.linspace(0, 1, 26)) + 1e-6
    assert plan.rho < 1


@pytest.mark.parametrize("name", ["er", "grid", "star"])
@pytest.mark.parametrize("budget", [0.3, 0.7])
def test_matcha_spends_its_budget_and_averages(name: str, budget: float) -> None:
    graph, rounds = MATCHA_GRAPHS[name], 300
    plan, mixing = matcha_plan(graph, budget), matcha(graph, budget, seed=1)
    size = np.bincount(plan.matching)
    links = np.array([np.count_nonzero(np.triu(dense(mixing, t), 1)) for t in range(rounds)])
    spread = math.sqrt((size**2 * plan.p * (1 - plan.p)).sum() / rounds)
    assert links.mean() == pytest.approx((size * plan.p).sum(), abs=4 * spread + 1e-9)
    for t in range(20):  # I - alpha L_t, unless a device has too many active links for alpha
        W = dense(mixing, t)
        degree = (np.triu(W, 1) + np.triu(W, 1).T > 0).sum(axis=1)
        for i, j in np.argwhere(np.triu(W, 1)).tolist():
            assert W[i, j] == min(plan.alpha, 1 / max(degree[i], degree[j]))
        assert np.isclose(W.sum(axis=1), 1).all() and (W >= 0).all()
        assert mixing.at(t).nnz == np.count_nonzero(W)  # also if a W_ii is 0
    # this costs little, and gossip reaches the whole network
    assert rho_over_time(mixing, rounds) < min(plan.rho + 0.12, 1 - 1e-3)


@pytest.mark.parametrize("graph", [*MATCHA_GRAPHS.values(), graphs.complete(8), graphs.ring(15)])
def test_matcha_with_all_of_the_budget_averages_about_as_metropolis(graph: nx.Graph) -> None:
    mixing = matcha(graph, 1)
    assert mixing.static and np.array_equal(dense(mixing, 0), dense(mixing, 9))
    assert rho(mixing.at(0)) <= rho(metropolis_matrix(graph)) + 0.02


def test_matcha_prefers_what_connects() -> None:
    """Two cliques and a bridge: the bridge is used more often than any other link."""
    graph = nx.disjoint_union(nx.complete_graph(5), nx.complete_graph(5))
    graph.add_edge(0, 5)
    plan = matcha_plan(graph, 0.4)
    bridge = plan.matching[(plan.edges == [0, 5]).all(axis=1)].item()
    assert plan.p[bridge] == plan.p.max() > 0.9


@pytest.mark.parametrize("budget", [0, -0.5, 1.1, math.nan])
def test_bad_budget(budget: float) -> None:
    message(lambda: matcha(GRAPH, budget), "budget", "(0, 1]", repr(budget))


def test_changing_mixings_refuse_other_graphs() -> None:
    for make in (matchings, partial(matcha, budget=0.5)):
        message(partial(make, nx.Graph([(0, 1), (2, 3)])), "not connected")
        message(partial(make, DIRECTED), "directed")


# ------------------------------------------------------ one-peer, directed, rho


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@given(start=st.integers(0, 100))
def test_one_peer_exponential_averages_exactly(n: int, start: int) -> None:
    mixing = one_peer_exponential(2**n)
    product = np.eye(2**n)
    for t in range(start, start + n):
        product = dense(mixing, t) @ product
    assert np.array_equal(product, np.full((2**n, 2**n), 2.0**-n))


@given(st.integers(2, 40), st.integers(0, 100))
def test_one_peer_exponential_has_one_peer(K: int, t: int) -> None:
    W = dense(one_peer_exponential(K), t)
    hop = 2 ** (t % math.ceil(math.log2(K)))
    assert np.array_equal(W, (np.eye(K) + np.eye(K)[(np.arange(K) + hop) % K]) / 2)
    mix = LocalEngine(one_peer_exponential(K), torch.float64).mix(t)
    mix(torch.zeros(K, 3, dtype=torch.float64))
    assert mix.floats_sent == 3 * K


def test_one_peer_exponential_of_one() -> None:
    message(lambda: one_peer_exponential(1), "K must", "at least 2", "1")
    assert one_peer_exponential(2).static and one_peer_exponential(2).symmetric


@given(st.integers(2, 15), st.integers(0, 2**32))
def test_push_sum_hands_out_everything_and_reaches_everyone(K: int, seed: int) -> None:
    graph = graphs.directed_erdos_renyi(K, 0.5, seed)
    mixing = push_sum(graph)
    P = dense(mixing, 0)
    assert np.allclose(P.sum(axis=0), 1, rtol=0, atol=1e-12)
    for sender, receiver in np.ndindex(K, K):
        sends = sender == receiver or graph.has_edge(sender, receiver)
        assert P[receiver, sender] == (1 / (1 + graph.out_degree(sender)) if sends else 0)
    assert mixing.static and not mixing.balanced and not mixing.symmetric
    # powers tend to v 1^T with v > 0: all devices hold the same mixture, and x / w is the mean
    limit = np.linalg.matrix_power(P, 2000)
    assert np.linalg.svd(limit, compute_uv=False)[1] < 1e-9 and limit.min() > 0
    x = np.random.default_rng(seed).standard_normal(K)
    assert np.allclose(limit @ x / (limit @ np.ones(K)), x.mean())


def test_push_sum_of_an_undirected_graph_sends_both_ways() -> None:
    assert np.array_equal(dense(push_sum(GRAPH), 0) > 0, dense(metropolis(GRAPH), 0) > 0)
    assert np.allclose(dense(push_sum(graphs.ring(5)), 0), dense(metropolis(graphs.ring(5)), 0), rtol=0, atol=1e-15)


def test_push_sum_needs_a_strongly_connected_graph() -> None:
    message(lambda: push_sum(nx.DiGraph([(0, 1), (1, 2), (2, 1)])), "not strongly connected", "2 parts", "node 0")


def test_rho_over_time() -> None:
    mixing = metropolis(GRAPH)
    assert rho_over_time(mixing, 7) == pytest.approx(rho(mixing.at(0)))
    assert rho_over_time(repeated(mixing, 3)) == pytest.approx(rho(mixing.at(0)) ** 3)
    assert rho_over_time(local_steps(mixing, 4), 40) == pytest.approx(1 - (1 - rho(mixing.at(0))) / 4)
    # more failures make it slower, but not stuck
    rates = [rho_over_time(link_failures(mixing, rate, 0), 200) for rate in (0.0, 0.2, 0.5, 0.8)]
    assert all(a < b for a, b in pairwise([*rates, 1.0]))
    # for one link that works half of the time, E[W'W] - J = (1 - 1/2) (I - J)
    assert rho_over_time(link_failures(metropolis(graphs.ring(2)), 0.5, 0), 1000) == pytest.approx(0.5, abs=0.06)
    # for a directed graph: how fast the columns of P^t become equal
    second = np.sort(np.abs(np.linalg.eigvals(dense(push_sum(DIRECTED), 0))))[-2]
    assert 0 < second < 1 and rho_over_time(push_sum(DIRECTED)) == pytest.approx(second**2)
    message(lambda: rho_over_time(link_failures(mixing, 0.1), 0), "rounds", "0")


def test_rho_over_time_of_many_devices() -> None:
    mixing = repeated(matchings(graphs.random_regular(600, 8, seed=0), 0), 2)
    exact = np.mean([dense(mixing, t).T @ dense(mixing, t) for t in range(3)], axis=0)  # W^2 = W here
    assert rho_over_time(mixing, 3) == pytest.approx(np.linalg.eigvalsh(exact - 1 / 600)[-1], abs=1e-9)
