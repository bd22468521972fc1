"""Graphs of devices: K -> an undirected, simple, connected networkx graph on the nodes 0 .. K-1.

An edge is a link over which two devices exchange models. There is no server, so only a connected graph lets what one
device learns reach all others. Random graphs are sampled again until they are connected.

Directed graphs are for gradient push: an edge u -> v lets u send to v only, and the graph is strongly connected.

Erdos and Renyi, "On random graphs I", 1959 (connected with high probability above p = ln K / K).
Gupta and Kumar, "Critical power for asymptotic connectivity in wireless networks", 1998 (geometric graphs
connect at the radius where pi r^2 = ln K / K).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path

import networkx as nx
import numpy as np

from drdsgd.errors import InputError, whole
from drdsgd.options import EdgeProbability, checked
from drdsgd.topology import files

__all__ = [
    "GRAPHS", "check", "complete", "directed_erdos_renyi", "directed_ring", "erdos_renyi", "from_file", "geometric",
    "grid", "layout", "random_regular", "ring", "star", "torus",
]  # fmt: skip

Positions = dict[int, tuple[float, float]]

_TRIES = 1000


# ---------------------------------------------------------------- random kinds


@checked
def erdos_renyi(K: int, p: EdgeProbability = 0.3, seed: int = 0) -> nx.Graph:
    """Every pair of devices is linked with probability p, given that the graph is connected.

    >>> graph = erdos_renyi(10, 0.3, seed=1)
    >>> graph.number_of_nodes(), nx.is_connected(graph)
    (10, True)
    """
    K = _devices(K)
    graph = _until_connected(
        # the same distribution as nx.erdos_renyi_graph, in time proportional to the edges instead of the pairs
        lambda s: nx.fast_gnp_random_graph(K, p, seed=s),
        seed,
        f"connected Erdos-Renyi graph found with K={K}, p={p}",
        f"raise p above ln K / K = {math.log(K) / K:.3g}",
        hopeless=_hopeless(K, p),
    )
    return _of_kind("erdos_renyi", graph)


def geometric(K: int, radius: float | None = None, seed: int = 0) -> nx.Graph:
    """Devices at random places of the unit square, linked when at most `radius` apart; node attribute `pos`.

    The default radius, r = sqrt(2 ln K / (pi K)) but at most sqrt(2), has twice the area of the connectivity
    threshold. Such a graph is sparse, and at least 30 % of the draws are connected for any K.

    >>> graph = geometric(25, seed=1)
    >>> x, y = graph.nodes[0]["pos"]
    >>> nx.is_connected(graph), 0 <= x <= 1
    (True, True)
    """
    K = _devices(K)
    if radius is None:
        radius = min(math.sqrt(2 * math.log(K) / (math.pi * K)), math.sqrt(2))
    if not 0 < radius < math.inf:
        raise InputError(f"radius must be a positive number, got {radius!r}: the unit square has diagonal 1.414")
    graph = _until_connected(
        lambda s: nx.random_geometric_graph(K, radius, seed=s),
        seed,
        f"connected geometric graph found with K={K}, radius={radius}",
        f"raise radius above sqrt(ln K / (pi K)) = {math.sqrt(math.log(K) / (math.pi * K)):.3g}",
        hopeless=_hopeless(K, math.pi * radius**2),
    )
    for _, data in graph.nodes(data=True):
        data["pos"] = (float(data["pos"][0]), float(data["pos"][1]))
    return _of_kind("geometric", graph)


def random_regular(K: int, degree: int, seed: int = 0) -> nx.Graph:
    """Every device has the same number of links, to random others.

    >>> graph = random_regular(10, 3, seed=1)
    >>> {d for _, d in graph.degree()}
    {3}
    """
    K = _devices(K)
    degree = whole("degree", degree, 1)
    if degree >= K:
        raise InputError(f"degree must be below K={K}, got {degree}: a device has at most K-1 neighbours")
    if K * degree % 2:
        raise InputError(f"K * degree must be even, got K={K}, degree={degree}: change one of them by one")
    if degree == 1 and K > 2:
        raise InputError(f"degree 1 connects two devices only, got K={K}: use degree 2 or more")

    def sample(s: int) -> nx.Graph:
        # networkx is slow on nearly complete graphs; their complements are sparse and just as uniform
        if 2 * degree >= K:
            return nx.complement(nx.random_regular_graph(K - 1 - degree, K, seed=s))
        return nx.random_regular_graph(degree, K, seed=s)

    what = f"connected {degree}-regular graph found with K={K}"
    return _of_kind("random_regular", _until_connected(sample, seed, what, "use degree 3 or more"))


@checked
def directed_erdos_renyi(K: int, p: EdgeProbability = 0.3, seed: int = 0) -> nx.DiGraph:
    """Every device sends to every other with probability p, given that the graph is strongly connected.

    >>> graph = directed_erdos_renyi(10, 0.4, seed=1)
    >>> graph.is_directed(), nx.is_strongly_connected(graph)
    (True, True)
    """
    K = _devices(K)
    graph = _until_connected(
        lambda s: nx.fast_gnp_random_graph(K, p, seed=s, directed=True),
        seed,
        f"strongly connected Erdos-Renyi graph found with K={K}, p={p}",
        f"raise p above ln K / K = {math.log(K) / K:.3g}",
        hopeless=_hopeless(K, p),
    )
    return _of_kind("directed_erdos_renyi", graph)


# ----------------------------------------------------------------- fixed kinds


def ring(K: int) -> nx.Graph:
    """Device i is linked to i-1 and i+1 modulo K (two devices: one link).

    >>> sorted(ring(4).edges)
    [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    return _of_kind("ring", nx.cycle_graph(_devices(K)))


def grid(K: int) -> nx.Graph:
    """A rows x columns lattice, rows * columns = K, as square as K allows; device = row * columns + column.

    >>> graph = grid(6)  # 2 x 3
    >>> sorted(graph[0]), sorted(graph[4])
    ([1, 3], [1, 3, 5])
    """
    K = _devices(K)
    rows = 1 if K <= 3 else _rows(K, least=2)
    if rows is None:
        raise InputError(f"a grid needs K = rows * columns, but K={K} is prime: use K={_nearest(K, least=2)}")
    return _lattice_graph("grid", rows, K // rows, periodic=False)


def torus(K: int) -> nx.Graph:
    """A grid whose rows and columns both close to rings: every device has exactly four neighbours.

    >>> graph = torus(12)  # 3 x 4
    >>> sorted(graph[0])
    [1, 3, 4, 8]
    """
    K = _devices(K)
    rows = _rows(K, least=3)
    if rows is None:
        raise InputError(
            f"a torus needs K = rows * columns with both at least 3, got K={K}: use K={_nearest(K, least=3)}"
        )
    return _lattice_graph("torus", rows, K // rows, periodic=True)


def complete(K: int) -> nx.Graph:
    """All pairs of devices are linked; with Metropolis weights, gossip then averages exactly.

    >>> complete(5).number_of_edges()
    10
    """
    return _of_kind("complete", nx.complete_graph(_devices(K)))


def star(K: int) -> nx.Graph:
    """Device 0 is linked to all others, and there is no other link.

    >>> sorted(star(4).edges)
    [(0, 1), (0, 2), (0, 3)]
    """
    return _of_kind("star", nx.star_graph(_devices(K) - 1))


def directed_ring(K: int) -> nx.DiGraph:
    """Device i sends to i+1 modulo K only.

    >>> sorted(directed_ring(4).edges)
    [(0, 1), (1, 2), (2, 3), (3, 0)]
    """
    return _of_kind("directed_ring", nx.cycle_graph(_devices(K), create_using=nx.DiGraph))


# the kinds of graphs by name; the function of a random one takes a seed
GRAPHS: dict[str, Callable[..., nx.Graph]] = {
    "erdos-renyi": erdos_renyi, "geometric": geometric, "ring": ring, "grid": grid, "torus": torus,
    "complete": complete, "star": star, "directed-ring": directed_ring, "directed-erdos-renyi": directed_erdos_renyi,
}  # fmt: skip


# ----------------------------------------------------------------------- files


def from_file(path: str | os.PathLike[str]) -> nx.Graph:
    """A graph from a file: `.graphml`, `.npy` (0/1 adjacency matrix), or else an edge list.

    An edge list has two node names per line, separated by a comma or blanks; # starts a comment. Nodes become
    0 .. K-1, in numerical order if all names are integers, else in order of their names; the attribute `name` keeps
    the file's name. Only the links are read: `mixing` makes the weights, so a third column is ignored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "three.csv")
    ...     _ = path.write_text("oslo, rome  # the backbone\\nrome, bern")
    ...     graph = from_file(path)
    >>> dict(graph.nodes(data="name")), sorted(graph.edges)
    ({0: 'bern', 1: 'oslo', 2: 'rome'}, [(0, 2), (1, 2)])
    """
    try:
        return check(_of_kind("file", files.read(Path(path))))
    except InputError as error:
        raise InputError(f"graph file {path}: {error.marked}") from error


# ---------------------------------------------------------------------- checks


def check(graph: nx.Graph, K: int | None = None, *, directed: bool = False) -> nx.Graph:
    """The graph, if it is undirected, simple, connected and on the nodes 0 .. K-1; else an `InputError`.

    With `directed` it may also be directed, and must then be strongly connected. If the graph lists its nodes in
    another order, the result is a copy in order, because matrices follow that order.

    >>> list(check(nx.Graph([(2, 1), (1, 0)])))
    [0, 1, 2]
    >>> check(nx.Graph([(0, 1), (2, 3), (3, 4)]))
    Traceback (most recent call last):
    drdsgd.errors.InputError: graph is not connected: it has 2 parts, and node 0 is in one of size 2; ...
    """
    if not isinstance(graph, nx.Graph):
        raise InputError(f"graph must be a networkx.Graph, got {type(graph).__name__}: make one with drdsgd.graphs")
    if graph.is_directed() and not directed:
        raise InputError("graph is directed, but devices exchange models both ways: use graph.to_undirected()")
    if graph.is_multigraph():
        raise InputError(f"graph is a multigraph{_parallel(graph)}: use networkx.Graph(graph)")
    _check_nodes(graph, K)
    for node, _ in nx.selfloop_edges(graph):
        raise InputError(f"graph has a self-loop at {_label(graph, node)}: remove it; mixing adds the diagonal of W")
    if not _connected(graph):
        components = nx.strongly_connected_components if graph.is_directed() else nx.connected_components
        parts = sorted(components(graph), key=lambda part: (len(part), min(part)))
        raise InputError(
            f"graph is not {'strongly ' if graph.is_directed() else ''}connected: it has {len(parts)} parts, and "
            f"{_label(graph, min(parts[0]))} is in one of size {len(parts[0])}; "
            f"add links between the parts{', both ways' if graph.is_directed() else ''}"
        )
    return _in_order(graph)


def _check_nodes(graph: nx.Graph, K: int | None) -> None:
    n = graph.number_of_nodes()
    if n < 2:
        raise InputError(f"graph needs at least 2 devices, got {n}: add nodes and links")
    if K is not None and n != K:
        raise InputError(f"graph has {n} nodes, but K={K}: make both the same")
    strays = [node for node in graph if node not in range(n)]
    if strays:
        raise InputError(
            f"graph must have the nodes 0..{n - 1}, got {strays[0]!r}: "
            "use networkx.convert_node_labels_to_integers(graph)"
        )


def _parallel(graph: nx.MultiGraph) -> str:
    """The first pair of nodes with more than one link, as part of a message."""
    for u, v in graph.edges():
        if graph.number_of_edges(u, v) > 1:
            return f" (nodes {u!r} and {v!r} have {graph.number_of_edges(u, v)} links)"
    return ""


def _in_order(graph: nx.Graph) -> nx.Graph:
    if list(graph) == list(range(len(graph))):
        return graph
    ordered = graph.__class__()
    ordered.graph.update(graph.graph)
    ordered.add_nodes_from((i, graph.nodes[i]) for i in range(len(graph)))
    ordered.add_edges_from(graph.edges(data=True))
    return ordered


# --------------------------------------------------------------------- drawing


def layout(graph: nx.Graph) -> Positions:
    """Where to draw each node: at its `pos`, in the natural shape of its kind, or in a seeded spring layout.

    >>> layout(grid(4))
    {0: (0.0, 0.0), 1: (1.0, 0.0), 2: (0.0, -1.0), 3: (1.0, -1.0)}
    """
    places = dict(graph.nodes(data="pos"))
    if all(place is not None for place in places.values()):
        return {node: (float(place[0]), float(place[1])) for node, place in places.items()}
    natural = _NATURAL.get(graph.graph.get("kind", ""), _spring)
    return natural(graph)


def _circle(nodes: Collection[int]) -> Positions:
    """On a circle, clockwise from the top."""
    turn = 2 * math.pi / max(len(nodes), 1)
    return {node: (math.sin(i * turn), math.cos(i * turn)) for i, node in enumerate(nodes)}


def _wheel(graph: nx.Graph) -> Positions:
    """Device 0 in the middle, the others on a circle."""
    return {0: (0.0, 0.0)} | _circle([node for node in graph if node != 0])


def _lattice(graph: nx.Graph) -> Positions:
    columns = graph.graph["columns"]
    return {node: (float(node % columns), float(-(node // columns))) for node in graph}


def _doughnut(graph: nx.Graph) -> Positions:
    """Rows are loops side by side around an annulus; a plain lattice would hide the wrapping links."""
    columns = graph.graph["columns"]
    rows = max(len(graph) // columns, 1)
    places = {}
    for node in graph:
        inner = 2 * math.pi * (node % columns) / columns
        outer = 2 * math.pi * (node // columns) / rows + 0.7 * math.pi / rows * math.sin(inner)
        r = 2 + math.cos(inner)
        places[node] = (r * math.sin(outer), r * math.cos(outer))
    return places


def _spring(graph: nx.Graph) -> Positions:
    # a spring layout costs O(K^2) per iteration: 1000 nodes take one second for 10 iterations, four for 50
    if len(graph) > 2000:
        return _circle(graph)
    places = nx.spring_layout(graph, seed=0, iterations=50 if len(graph) <= 500 else 10)
    return {node: (float(x), float(y)) for node, (x, y) in places.items()}


_NATURAL: dict[str, Callable[[nx.Graph], Positions]] = {
    "ring": _circle,
    "directed_ring": _circle,
    "complete": _circle,
    "star": _wheel,
    "grid": _lattice,
    "torus": _doughnut,
}


# ----------------------------------------------------------------- small parts


def _of_kind(kind: str, graph: nx.Graph) -> nx.Graph:
    """The graph with a note of its kind, for `layout` and for people; no algorithm reads it."""
    graph.graph["kind"] = kind
    return _in_order(graph)


def _until_connected(
    sample: Callable[[int], nx.Graph], seed: int, what: str, fix: str, *, hopeless: bool = False
) -> nx.Graph:
    """The first connected one of a bounded number of samples with independent seeds; else an error."""
    seeds = np.random.SeedSequence(whole("seed", seed, 0)).generate_state(_TRIES)
    for s in [] if hopeless else seeds.tolist():
        graph = sample(s)
        if _connected(graph):
            return graph
    raise InputError(f"no {what} in {_TRIES} tries: {fix}")


def _connected(graph: nx.Graph) -> bool:
    """Whether a message from any device can reach every other."""
    return bool(nx.is_strongly_connected(graph) if graph.is_directed() else nx.is_connected(graph))


def _hopeless(K: int, p: float) -> bool:
    """Whether P(connected) <= P(edges >= K-1) <= E[edges] / (K-1) = p K / 2 (Markov) is too small to try."""
    return p * K / 2 < 1e-6


def _lattice_graph(kind: str, rows: int, columns: int, *, periodic: bool) -> nx.Graph:
    lattice = nx.grid_2d_graph(rows, columns, periodic=periodic)
    graph = nx.relabel_nodes(lattice, {(i, j): i * columns + j for i, j in lattice})
    graph.graph["columns"] = columns
    return _of_kind(kind, graph)


def _rows(K: int, least: int) -> int | None:
    """The largest divisor of K up to sqrt(K), if it is at least `least`."""
    return max((r for r in range(least, math.isqrt(K) + 1) if K % r == 0), default=None)


def _nearest(K: int, least: int) -> str:
    """The nearest K that `_rows` can factor, or two if they are equally near."""
    for d in count(1):
        found = [str(k) for k in (K - d, K + d) if k > 0 and _rows(k, least) is not None]
        if found:
            return " or ".join(found)
    raise AssertionError("every multiple of a square has rows")


def _devices(K: int) -> int:
    K = whole("K", K, 1)
    if K < 2:
        raise InputError(f"a graph needs at least 2 devices, got K={K}: use K=2 or more")
    return K


def _label(graph: nx.Graph, node: int) -> str:
    name = graph.nodes[node].get("name", str(node))
    return f"node {node}" if name == str(node) else f"node {node} (named {name!r})"
