"""Laws of placements: every device is placed once, parts have equal sizes, few links cross."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drdsgd.engines.placement import crossing, place
from drdsgd.topology import graphs
from tests.support.networks import of_every_kind
from tests.support.refusing import message


@given(st.integers(3, 30), st.data(), st.integers(0, 2**20))
def test_every_device_is_somewhere_and_parts_are_equal(K: int, data: st.DataObject, seed: int) -> None:
    parts = data.draw(st.integers(1, K))
    some = [graphs.erdos_renyi(K, 0.3, seed=seed), graphs.star(K), graphs.directed_ring(K), nx.empty_graph(K)]
    for graph in [*some, *(of_every_kind(K, seed).values() if K % 12 == 0 else ())]:
        placement = place(graph, parts)
        assert sorted(device for part in placement for device in part.tolist()) == list(range(K))
        sizes = [len(part) for part in placement]
        assert max(sizes) - min(sizes) <= 1 and len(sizes) == parts
        assert all(np.array_equal(part, np.sort(part)) for part in placement)


def shuffled_grid(side: int, seed: int) -> nx.Graph:
    numbers = np.random.default_rng(seed).permutation(side * side).tolist()
    return nx.relabel_nodes(graphs.grid(side * side), dict(enumerate(numbers)))


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_a_shuffled_grid_is_cut_much_better_than_by_numbers(parts: int) -> None:
    """And not worse than a cut into strips, whose borders are as long as the grid is wide."""
    side = 20
    for seed in range(3):
        grid = shuffled_grid(side, seed)
        by_number = [np.array(part) for part in np.array_split(np.arange(side * side), parts)]
        found = crossing(grid, place(grid, parts))
        assert found < crossing(grid, by_number) / 3
        assert found <= 2 * side * (parts - 1)


@given(st.integers(0, 2**20), st.integers(2, 5))
def test_crossing_counts_every_row_once_for_each_part_that_wants_it(seed: int, parts: int) -> None:
    for graph in (graphs.erdos_renyi(12, 0.3, seed=seed), graphs.directed_erdos_renyi(12, 0.3, seed=seed)):
        placement = place(graph, parts)
        at = {device: number for number, part in enumerate(placement) for device in part.tolist()}
        wanted = {(i, at[j]) for i, j in nx.DiGraph(graph).edges if at[i] != at[j]}
        assert crossing(graph, placement) == len(wanted)


def test_more_parts_than_devices_are_refused() -> None:
    message(lambda: place(graphs.ring(4), 5), "5 processes for 4 devices")
