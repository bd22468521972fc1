"""A graph of every kind, for the laws of rounds and optimizers."""

from __future__ import annotations

import networkx as nx

from drdsgd.topology import graphs


def of_every_kind(K: int, seed: int) -> dict[str, nx.Graph]:
    """Graphs of K devices by the name of their kind."""
    return {
        "erdos-renyi": graphs.erdos_renyi(K, 0.3, seed=seed),
        "geometric": graphs.geometric(K, seed=seed),
        "ring": graphs.ring(K),
        "grid": graphs.grid(K),
        "torus": graphs.torus(K),
        "complete": graphs.complete(K),
        "star": graphs.star(K),
    }
