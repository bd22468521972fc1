"""The local engine mixes as W says, dense or sparse, and counts what is sent."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from scipy.sparse import csr_array

from drdsgd import graphs
from drdsgd.engines.local import LocalEngine
from drdsgd.mixing import Mixing, metropolis, metropolis_matrix


@pytest.mark.parametrize(
    "graph",
    [graphs.complete(5), graphs.ring(40), graphs.random_regular(60, 4, seed=0)],
    ids=["dense", "ring", "sparse"],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_mix_is_the_product_with_w(graph: nx.Graph, shape: tuple[int, ...]) -> None:
    K = graph.number_of_nodes()
    x = torch.randn(K, *shape, dtype=torch.float64)
    mix = LocalEngine(metropolis(graph), torch.float64).mix(4)
    W = torch.as_tensor(metropolis_matrix(graph).toarray())
    assert torch.allclose(mix(x), torch.tensordot(W, x, dims=1), rtol=0, atol=1e-14)
    assert mix.t == 4
    # both ends of every edge send one row
    assert mix.floats_sent == 2 * graph.number_of_edges() * x[0].numel()
    mix(x)
    assert mix.floats_sent == 4 * graph.number_of_edges() * x[0].numel()


def test_donated_memory_is_used_again_and_nothing_else_is() -> None:
    engine, W = LocalEngine(metropolis(graphs.ring(5)), torch.float64), metropolis_matrix(graphs.ring(5)).toarray()
    x = torch.randn(5, 4, dtype=torch.float64)
    kept, expected = x.clone(), torch.as_tensor(W) @ x
    assert torch.allclose(engine.mix(0)(x), expected) and torch.equal(x, kept)
    first = engine.mix(0)(x, donate=True)
    second = engine.mix(1)(first, donate=True)
    assert second.data_ptr() == x.data_ptr()
    assert torch.allclose(second, torch.as_tensor(W) @ expected)
    assert engine.mix(2)(torch.ones(5, 3, dtype=torch.float64), donate=True).shape == (5, 3)


def test_w_may_change_every_round() -> None:
    W = metropolis_matrix(graphs.ring(4))
    mixing = Mixing(4, lambda t: W if t % 2 else csr_array(torch.eye(4).double().numpy()))
    engine, x = LocalEngine(mixing, torch.float64), torch.arange(4.0, dtype=torch.float64)
    silent, talking = engine.mix(0), engine.mix(1)
    assert torch.equal(silent(x), x) and silent.floats_sent == 0
    assert torch.allclose(talking(x), torch.as_tensor(W @ x.numpy())) and talking.floats_sent == 8
