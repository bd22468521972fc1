"""W is what the theory asks for, on every graph; and what is not is refused with the reason."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drdsgd import graphs
from drdsgd.errors import InputError
from drdsgd.mixing import check_matrix, constant, metropolis, metropolis_matrix, rho
from tests import reference


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
    # a ring's are known, (1 + 2 cos(2 pi k / K)) / 3, and too close to each other for Lanczos
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
def test_metropolis_refuses_what_is_no_network(graph: nx.Graph, says: str) -> None:
    with pytest.raises(InputError, match=says):
        metropolis(graph)


def test_a_matrix_must_fit_its_graph() -> None:
    assert constant(GOOD, nx.path_graph(3)).at(0).toarray() == pytest.approx(GOOD)
    with pytest.raises(InputError, match=r"off the graph: W\[0, 1\] is 0.5"):
        constant(GOOD, nx.Graph([(0, 2), (1, 2)]))
    with pytest.raises(InputError, match="3 devices but the graph has 4"):
        constant(GOOD, nx.path_graph(4))
    assert check_matrix(metropolis_matrix(nx.path_graph(3))).nnz == 7
