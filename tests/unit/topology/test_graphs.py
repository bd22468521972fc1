"""Every kind of graph is connected, simple and on 0 .. K-1; a user's mistake gets one clear line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drdsgd.topology import graphs
from tests.support.refusing import message

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32)

FIXED: dict[str, Callable[[int], nx.Graph]] = {
    "ring": graphs.ring,
    "grid": graphs.grid,
    "torus": graphs.torus,
    "complete": graphs.complete,
    "star": graphs.star,
}
RANDOM: dict[str, Callable[[int, int], nx.Graph]] = {
    "erdos_renyi": lambda K, seed: graphs.erdos_renyi(K, 0.3, seed),
    "geometric": lambda K, seed: graphs.geometric(K, seed=seed),
    "random_regular": lambda K, seed: graphs.random_regular(K, 4, seed),
}
EVERY: dict[str, Callable[[int], nx.Graph]] = FIXED | {
    name: (lambda K, make=make: make(K, 0)) for name, make in RANDOM.items()
}


def edges(graph: nx.Graph) -> set[tuple[int, int]]:
    return {(min(u, v), max(u, v)) for u, v in graph.edges}


def degrees(graph: nx.Graph) -> list[int]:
    return [graph.degree(node) for node in range(len(graph))]


def assert_proper(graph: nx.Graph, K: int) -> None:
    assert type(graph) is nx.Graph
    assert list(graph) == list(range(K))
    assert nx.number_of_selfloops(graph) == 0
    assert nx.is_connected(graph)
    assert graphs.check(graph, K) is graph


# ------------------------------------------------------------------------ kinds


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("K", [9, 12, 25, 36])
def test_every_kind_is_proper(kind: str, K: int) -> None:
    assert_proper(EVERY[kind](K), K)


@few
@given(st.integers(2, 40), st.floats(0.3, 1.0), seeds)
def test_erdos_renyi(K: int, p: float, seed: int) -> None:
    graph = graphs.erdos_renyi(K, p, seed)
    assert_proper(graph, K)
    assert edges(graph) == edges(graphs.erdos_renyi(K, p, seed))


def test_erdos_renyi_has_the_density_p() -> None:
    density = [nx.density(graphs.erdos_renyi(60, 0.3, seed)) for seed in range(20)]
    assert np.mean(density) == pytest.approx(0.3, abs=0.02)
    assert edges(graphs.erdos_renyi(7, 1)) == edges(graphs.complete(7))


@few
@given(st.integers(2, 40), seeds)
def test_geometric(K: int, seed: int) -> None:
    graph = graphs.geometric(K, seed=seed)
    assert_proper(graph, K)
    assert edges(graph) == edges(graphs.geometric(K, seed=seed))
    radius = min(math.sqrt(2 * math.log(K) / (math.pi * K)), math.sqrt(2))
    pos = graph.nodes(data="pos")
    for u in range(K):
        for v in range(u):
            assert graph.has_edge(u, v) == (math.dist(pos[u], pos[v]) <= radius)


@few
@given(st.integers(3, 30).flatmap(lambda K: st.tuples(st.just(K), st.integers(2, K - 1))), seeds)
def test_random_regular(K_degree: tuple[int, int], seed: int) -> None:
    K, degree = K_degree
    if K * degree % 2:
        message(lambda: graphs.random_regular(K, degree, seed), f"K={K}", f"degree={degree}", "even")
        return
    graph = graphs.random_regular(K, degree, seed)
    assert_proper(graph, K)
    assert set(degrees(graph)) == {degree}
    assert edges(graph) == edges(graphs.random_regular(K, degree, seed))


def test_dense_random_regular_is_fast() -> None:
    started = time.perf_counter()
    assert set(degrees(graphs.random_regular(50, 45))) == {45}
    assert time.perf_counter() - started < 2
    assert edges(graphs.random_regular(2, 1)) == {(0, 1)}


@pytest.mark.parametrize("kind", RANDOM)
def test_other_seed_other_graph(kind: str) -> None:
    assert len({frozenset(edges(RANDOM[kind](25, seed))) for seed in range(8)}) == 8


@few
@given(st.integers(2, 60))
def test_ring_complete_star(K: int) -> None:
    for make in (graphs.ring, graphs.complete, graphs.star):
        assert_proper(make(K), K)
    assert degrees(graphs.ring(K)) == [min(2, K - 1)] * K
    assert edges(graphs.ring(K)) == {(min(i, (i + 1) % K), max(i, (i + 1) % K)) for i in range(K)}
    assert degrees(graphs.complete(K)) == [K - 1] * K
    assert degrees(graphs.star(K)) == [K - 1] + [1] * (K - 1)


@few
@given(st.integers(2, 8), st.integers(2, 8))
def test_grid(rows: int, columns: int) -> None:
    K = rows * columns
    graph = graphs.grid(K)
    assert_proper(graph, K)
    assert set(degrees(graph)) <= {2, 3, 4}
    assert degrees(graph).count(2) == 4  # the corners
    columns = graph.graph["columns"]
    rows = K // columns
    assert rows <= columns
    assert not any(K % r == 0 for r in range(rows + 1, math.isqrt(K) + 1))  # as square as possible
    for u, v in edges(graph):  # row-major
        (i, j), (k, m) = divmod(u, columns), divmod(v, columns)
        assert abs(i - k) + abs(j - m) == 1
    assert graph.number_of_edges() == rows * (columns - 1) + columns * (rows - 1)


def test_smallest_graphs() -> None:
    assert edges(graphs.ring(2)) == edges(graphs.grid(2)) == edges(graphs.star(2)) == {(0, 1)}
    assert edges(graphs.erdos_renyi(2, 0.5)) == edges(graphs.geometric(2)) == {(0, 1)}
    assert edges(graphs.grid(3)) == {(0, 1), (1, 2)}


@few
@given(st.integers(3, 8), st.integers(3, 8))
def test_torus_wraps_both_ways(rows: int, columns: int) -> None:
    K = rows * columns
    graph = graphs.torus(K)
    assert_proper(graph, K)
    columns = graph.graph["columns"]
    rows = K // columns
    assert 3 <= rows <= columns
    for node in range(K):
        i, j = divmod(node, columns)
        around = {
            (i + 1) % rows * columns + j,
            (i - 1) % rows * columns + j,
            i * columns + (j + 1) % columns,
            i * columns + (j - 1) % columns,
        }
        assert set(graph[node]) == around
        assert len(around) == 4


# --------------------------------------------------------------------- directed


def assert_proper_directed(graph: nx.DiGraph, K: int) -> None:
    assert type(graph) is nx.DiGraph
    assert list(graph) == list(range(K))
    assert nx.number_of_selfloops(graph) == 0
    assert nx.is_strongly_connected(graph)
    assert graphs.check(graph, K, directed=True) is graph
    message(lambda: graphs.check(graph), "directed", "to_undirected")


@few
@given(st.integers(2, 40))
def test_directed_ring(K: int) -> None:
    graph = graphs.directed_ring(K)
    assert_proper_directed(graph, K)
    assert set(graph.edges) == {(i, (i + 1) % K) for i in range(K)}


@few
@given(st.integers(2, 30), st.floats(0.3, 1.0), seeds)
def test_directed_erdos_renyi(K: int, p: float, seed: int) -> None:
    graph = graphs.directed_erdos_renyi(K, p, seed)
    assert_proper_directed(graph, K)
    assert set(graph.edges) == set(graphs.directed_erdos_renyi(K, p, seed).edges)


def test_directed_erdos_renyi_has_the_density_p_in_both_directions() -> None:
    drawn = [graphs.directed_erdos_renyi(40, 0.3, seed) for seed in range(20)]
    assert np.mean([nx.density(graph) for graph in drawn]) == pytest.approx(0.3, abs=0.02)
    assert np.mean([nx.overall_reciprocity(graph) for graph in drawn]) == pytest.approx(0.3, abs=0.03)
    assert len({frozenset(graph.edges) for graph in drawn}) == 20
    assert graphs.directed_erdos_renyi(5, 1).number_of_edges() == 20


def test_bad_directed_graphs() -> None:
    wrong: list[Any] = [1, 0, 2.5]
    for K in wrong:
        message(partial(graphs.directed_ring, K), "K", "at least", repr(K))
        message(partial(graphs.directed_erdos_renyi, K, 0.5), "K", "at least", repr(K))
    message(lambda: graphs.directed_erdos_renyi(9, 1.5), "p=1.5: input should be less than or equal to 1")
    message(lambda: graphs.directed_erdos_renyi(9, 0.5, -1), "seed", "-1")
    for p in (0.01, 1e-18):
        message(
            partial(graphs.directed_erdos_renyi, 50, p),
            "strongly", "K=50", f"p={p}", "ln K / K = 0.0782",
        )  # fmt: skip


def test_check_of_directed_graphs_names_the_culprit() -> None:
    one_way = nx.DiGraph([(0, 1), (1, 2), (2, 1)])
    message(lambda: graphs.check(one_way, directed=True), "strongly", "2 parts", "node 0", "size 1", "both ways")
    message(lambda: graphs.check(nx.DiGraph([(0, 1), (1, 0), (1, 1)]), directed=True), "self-loop", "node 1")
    message(lambda: graphs.check(nx.MultiDiGraph([(0, 1), (0, 1), (1, 0)]), directed=True), "multigraph", "2 links")
    message(lambda: graphs.check(graphs.directed_ring(5), 6, directed=True), "5 nodes", "K=6")
    message(lambda: graphs.check(nx.Graph([(0, 1), (2, 3)]), directed=True), "graph is not connected", "2 parts")
    assert graphs.check(graphs.ring(5), directed=True).number_of_edges() == 5  # an undirected graph is allowed too
    turned = nx.DiGraph([(2, 0), (0, 1), (1, 2)])
    assert list(graphs.check(turned, directed=True)) == [0, 1, 2]
    assert set(graphs.check(turned, directed=True).edges) == set(turned.edges)


def test_layout_of_directed_graphs() -> None:
    assert all(math.hypot(*at) == pytest.approx(1) for at in graphs.layout(graphs.directed_ring(7)).values())
    assert len(set(graphs.layout(graphs.directed_erdos_renyi(9, 0.5)).values())) == 9


# ---------------------------------------------------------------- bad arguments


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("K", [1, 0, -3, 2.5, True, "9"])
def test_bad_K(kind: str, K: int) -> None:
    message(lambda: EVERY[kind](K), "K", "at least", repr(K))


def test_numpy_integers_are_welcome() -> None:
    K: Any = np.int64(5)
    seed: Any = np.int32(3)
    assert_proper(graphs.erdos_renyi(K, 0.9, seed), 5)


@pytest.mark.parametrize("p", [0, -0.1, 1.01, math.nan])
def test_bad_p(p: float) -> None:
    message(lambda: graphs.erdos_renyi(10, p), f"p={p!r}: input should be ", "(0, 1]")


@pytest.mark.parametrize("p", [0.01, 1e-18])
def test_p_too_small_to_connect(p: float) -> None:
    message(lambda: graphs.erdos_renyi(50, p), "K=50", f"p={p}", "ln K / K = 0.0782")


@pytest.mark.parametrize("radius", [0, -1, math.inf, math.nan])
def test_bad_radius(radius: float) -> None:
    message(lambda: graphs.geometric(10, radius), "radius must", repr(radius))


@pytest.mark.parametrize("radius", [0.05, 1e-12])
def test_radius_too_small_to_connect(radius: float) -> None:
    message(lambda: graphs.geometric(30, radius), "K=30", f"radius={radius}", "= 0.19")


@pytest.mark.parametrize("seed", [-1, 0.5])
@pytest.mark.parametrize("kind", RANDOM)
def test_bad_seed(kind: str, seed: int) -> None:
    message(lambda: RANDOM[kind](9, seed), "seed", repr(seed))


def test_bad_degree() -> None:
    message(lambda: graphs.random_regular(5, 0), "degree", "0")
    message(lambda: graphs.random_regular(5, 5), "degree", "K=5")
    message(lambda: graphs.random_regular(5, 3), "K=5", "degree=3", "even")
    message(lambda: graphs.random_regular(4, 1), "degree 1", "K=4")


def test_unlucky_regular_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_TRIES", 0)
    message(lambda: graphs.random_regular(10, 2), "2-regular", "K=10", "degree 3")


@pytest.mark.parametrize(("K", "fix"), [(5, "4 or 6"), (7, "6 or 8"), (23, "22 or 24")])
def test_prime_grid(K: int, fix: str) -> None:
    message(lambda: graphs.grid(K), f"K={K}", f"use K={fix}")


@pytest.mark.parametrize(("K", "fix"), [(2, "9"), (4, "9"), (10, "9"), (14, "15"), (17, "16 or 18"), (22, "21")])
def test_torus_too_thin(K: int, fix: str) -> None:
    assert message(lambda: graphs.torus(K), f"K={K}").endswith(f"use K={fix}")
    assert_proper(graphs.torus(int(fix.split()[0])), int(fix.split()[0]))


# ------------------------------------------------------------------------ check


def test_check_names_the_culprit() -> None:
    message(lambda: graphs.check(nx.DiGraph([(0, 1)])), "directed", "to_undirected")
    message(lambda: graphs.check(nx.MultiGraph([(0, 1), (1, 2), (1, 2)])), "multigraph", "1 and 2", "2 links")
    message(lambda: graphs.check(nx.MultiGraph([(0, 1)])), "multigraph")
    message(lambda: graphs.check(nx.Graph([(0, 1), (1, 1)])), "self-loop", "node 1")
    message(lambda: graphs.check(nx.Graph([(0, 1), (2, 3), (3, 4), (1, 0)])), "2 parts", "node 0", "size 2")
    message(lambda: graphs.check(graphs.ring(5), 6), "5 nodes", "K=6")
    message(lambda: graphs.check(nx.Graph([(1, 2)])), "0..1", "got 2")
    message(lambda: graphs.check(nx.Graph([("a", 0)])), "0..1", "'a'")
    message(lambda: graphs.check(nx.empty_graph(1)), "at least 2", "got 1")
    message(lambda: graphs.check(nx.Graph()), "at least 2", "got 0")
    message(lambda: graphs.check(np.eye(3)), "networkx.Graph", "ndarray")


def test_check_orders_the_nodes() -> None:
    graph = nx.Graph([(2, 0), (0, 1)], kind="mine")
    graph.nodes[2]["pos"] = (0.0, 1.0)
    graph.edges[0, 1]["km"] = 7
    ordered = graphs.check(graph, 3)
    assert list(ordered) == [0, 1, 2]
    assert list(graph) == [2, 0, 1]  # a copy
    assert nx.utils.graphs_equal(graph, ordered)


# ------------------------------------------------------------------------ files


def write(graph: nx.Graph, path: Path) -> Path:
    bare = nx.Graph(graph.edges)  # GraphML cannot hold pos
    if path.suffix == ".graphml":
        nx.write_graphml(bare, path)
    elif path.suffix == ".npy":
        np.save(path, nx.to_numpy_array(graph, nodelist=range(len(graph))))
    else:
        nx.write_edgelist(bare, path, delimiter="," if path.suffix == ".csv" else " ")
    return path


@pytest.mark.parametrize("suffix", [".graphml", ".npy", ".edgelist", ".edges", ".txt", ".csv", ".GRAPHML"])
@pytest.mark.parametrize("kind", EVERY)
def test_file_round_trip(kind: str, suffix: str, tmp_path: Path) -> None:
    graph = EVERY[kind](12)
    path = write(graph, tmp_path / f"graph{suffix.lower()}").rename(tmp_path / f"graph{suffix}")
    back = graphs.from_file(str(path))
    assert_proper(back, 12)
    assert edges(back) == edges(graph)
    assert dict(back.nodes(data="name")) == {i: str(i) for i in range(12)}


@few
@given(
    names=st.sets(st.text("abcxyz_é", min_size=1, max_size=5), min_size=2, max_size=9),
    comma=st.booleans(),
    blanks=st.sampled_from(["", "\n", "# x\n"]),
)
def test_names_are_sorted_and_kept(
    names: set[str], comma: bool, blanks: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    order = list(names)
    path = tmp_path_factory.mktemp("names") / "graph.txt"
    apart = " , " if comma else "\t"
    lines = [f"{a}{apart}{b} # why\n{blanks}" for a, b in pairwise(order)]
    path.write_text("".join(lines), encoding="utf-8")
    graph = graphs.from_file(path)
    assert [graph.nodes[i]["name"] for i in graph] == sorted(names)
    number = {name: i for i, name in enumerate(sorted(names))}
    steps = [sorted((number[a], number[b])) for a, b in pairwise(order)]
    assert edges(graph) == {(u, v) for u, v in steps}


def test_integer_names_sort_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "graph.edges"
    path.write_text("\ufeff10 9 0.5\n9 100 {'km': 3, 'x': 1}\n100 9\n", encoding="utf-8")
    graph = graphs.from_file(path)
    assert dict(graph.nodes(data="name")) == {0: "9", 1: "10", 2: "100"}
    assert edges(graph) == {(0, 1), (0, 2)}


def refused(path: Path, content: str | bytes, *words: str) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    message(lambda: graphs.from_file(path), str(path), *words)


def test_missing_file(tmp_path: Path) -> None:
    message(lambda: graphs.from_file(tmp_path / "none.npy"), "none.npy", "No such file")
    message(lambda: graphs.from_file(tmp_path), str(tmp_path), "directory")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1\n", ("line 2", "'1'", "two node names")),
        ("0 1 2 3\n", ("line 1", "'0 1 2 3'")),
        ("0,,1\n,2\n", ("line 1",)),
        ("# nothing\n", ("at least 2", "got 0")),
        ("a b\nb b\n", ("self-loop", "node 1 (named 'b')")),
        ("source,target\n0,1\n1,2\n", ("2 parts", "node 3 (named 'source')")),
        (b"\xff\xfe0 1", ("UTF-8",)),
    ],
)
def test_bad_edge_list(text: str | bytes, words: tuple[str, ...], tmp_path: Path) -> None:
    refused(tmp_path / "graph.csv", text, *words)


def graphml(body: str, default: str = "undirected") -> str:
    return (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        f'<graph edgedefault="{default}">{body}</graph></graphml>'
    )


LINK = '<edge source="a" target="b"/>'
LAUGHS = (
    '<?xml version="1.0"{encoding}?><!DOCTYPE lol [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    '<graphml><graph edgedefault="undirected"><node id="&b;"/></graph></graphml>'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no xml at all", ("XML",)),
        ("", ("XML",)),
        ("<html/>", ("GraphML",)),
        ('<?xml version="1.0" encoding="no-such"?><a/>', ("XML",)),
        ('<?xml version="1.0" encoding="shift_jis"?><a/>', ("XML",)),
        (graphml("<hyperedge/>"), ("GraphML", "hyperedge")),
        (graphml('<node id="a"><data key="none">1</data></node>'), ("GraphML", "key")),
        (graphml(LINK, "directed"), ("directed",)),
        (graphml(LINK + LINK), ("multigraph", "2 links")),
        (graphml('<node id="a"/>'), ("at least 2", "got 1")),
        (graphml(LINK + '<node id="c"/>'), ("2 parts", "node 2 (named 'c')")),
        (LAUGHS.format(encoding=""), ("DOCTYPE",)),
        (LAUGHS.format(encoding=' encoding="utf-16"').encode("utf-16"), ("DOCTYPE",)),
    ],
)
def test_bad_graphml(text: str | bytes, words: tuple[str, ...], tmp_path: Path) -> None:
    refused(tmp_path / "graph.graphml", text, *words)


def test_graphml_attributes_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "graph.graphml"
    path.write_text(graphml('<node id="a"><port name="p"/></node>' + LINK))  # networkx warns of ports
    assert graphs.from_file(path).nodes(data=True)[0] == {"name": "a"}


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((2, 3)), ("square", "(2, 3)")),
        (np.ones(4), ("square", "(4,)")),
        (np.array([[0, 1], [0, 0]]), ("symmetric", "[0, 1]", "[1, 0]")),
        (np.array([[0, 0.5], [0.5, 0]]), ("0 and 1", "0.5", "[0, 1]")),
        (np.array([[0, np.nan], [np.nan, 0]]), ("0 and 1", "nan")),
        (np.array([["0", "1"], ["1", "0"]]), ("numbers",)),
        (np.array([[1, 1], [1, 0]], dtype=bool), ("self-loop", "node 0")),
        (np.zeros((3, 3)), ("3 parts", "node 0", "size 1")),
        (np.zeros((0, 0)), ("at least 2", "got 0")),
    ],
)
def test_bad_matrix(
    matrix: np.ndarray[tuple[int, ...], np.dtype[np.generic]], words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "graph.npy"
    np.save(path, matrix)
    message(lambda: graphs.from_file(path), str(path), *words)


def test_unreadable_matrix(tmp_path: Path) -> None:
    path = tmp_path / "graph.npy"
    refused(path, "no array", "NumPy")
    refused(path, b"", "NumPy")
    np.save(path, np.array([{}, {}]), allow_pickle=True)
    refused(path, path.read_bytes(), "NumPy")
    np.save(path, np.eye(3))
    whole = path.read_bytes()
    refused(path, whole[:-1], "NumPy")
    refused(path, whole.replace(b"{'descr'", b"{('desc'"), "NumPy")
    np.savez(tmp_path / "many.npz", np.eye(3))
    refused(path, (tmp_path / "many.npz").read_bytes(), "one array")


# ----------------------------------------------------------------------- layout


@pytest.mark.parametrize("kind", EVERY)
def test_layout_is_deterministic_and_apart(kind: str) -> None:
    graph = EVERY[kind](36)
    places = graphs.layout(graph)
    assert set(places) == set(graph)
    assert all(type(x) is float and type(y) is float for x, y in places.values())
    assert len({(round(x, 6), round(y, 6)) for x, y in places.values()}) == 36
    assert places == graphs.layout(graph)


def test_layout_of_each_kind() -> None:
    graph = graphs.geometric(10)
    assert graphs.layout(graph) == dict(graph.nodes(data="pos"))
    assert graphs.layout(graphs.grid(6))[5] == (2.0, -1.0)
    assert all(math.hypot(*place) == pytest.approx(1) for place in graphs.layout(graphs.ring(7)).values())
    assert graphs.layout(graphs.star(5))[0] == (0.0, 0.0)


@pytest.mark.parametrize("K", [1000, 2500])
def test_layout_of_many_nodes_is_fast(K: int) -> None:
    graph = graphs.random_regular(K, 4)
    started = time.perf_counter()
    assert len(graphs.layout(graph)) == K
    assert time.perf_counter() - started < 10
