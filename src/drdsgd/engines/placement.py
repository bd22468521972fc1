"""Which process hosts which device: a cut of the graph into parts of equal size with few links between them.

Devices are sorted by reverse Cuthill-McKee, which orders the graph from one end to the other so that neighbours are
close together. The order is then cut into equal pieces. On a grid of s by s devices the border of a piece has about s
links, however the devices are numbered. On a complete graph all cuts are equally good. E. Cuthill and J. McKee,
"Reducing the Bandwidth of Sparse Symmetric Matrices", 1969.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from drdsgd.errors import InputError

__all__ = ["crossing", "place"]

Devices = NDArray[np.int64]


def place(graph: nx.Graph, parts: int) -> list[Devices]:
    """The devices of each part, in increasing order; sizes differ by at most one.

    >>> [devices.tolist() for devices in place(nx.path_graph(5), 2)]
    [[2, 3, 4], [0, 1]]
    """
    K = graph.number_of_nodes()
    if parts > K:
        raise InputError(f"{parts} processes for {K} devices: start at most {K} processes")
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    line = reverse_cuthill_mckee(csr_array((np.ones(len(i)), (i, j)), shape=(K, K)), symmetric_mode=True)
    return [np.sort(piece).astype(np.int64) for piece in np.array_split(line, parts)]


def crossing(graph: nx.Graph, placement: list[Devices]) -> int:
    """How many models cross between parts when every device sends its model to its neighbours, once to each part.

    >>> crossing(nx.complete_graph(4), [np.array([0, 1]), np.array([2, 3])])
    4
    """
    part = np.empty(graph.number_of_nodes(), dtype=np.int64)
    for number, devices in enumerate(placement):
        part[devices] = number
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    both = edges if graph.is_directed() else np.concatenate([edges, edges[:, ::-1]])
    pairs = np.stack([both[:, 0], part[both[:, 1]]], axis=1)
    return len(np.unique(pairs[part[both[:, 0]] != pairs[:, 1]], axis=0))
