"""The local engine multiplies by W, dense or sparse, and counts the numbers sent."""

from __future__ import annotations

import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.core.compression import Compressor, no_compression, quantized, random_k, top_k
from drdsgd.core.engine import Mix
from drdsgd.core.optimizers import OPTIMIZERS
from drdsgd.engines import local
from drdsgd.engines.local import LocalEngine, LocalMix
from drdsgd.topology import graphs
from drdsgd.topology.mixing import Mixing, metropolis, metropolis_matrix, repeated


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


GRAPHS = {"dense": graphs.complete(5), "ring": graphs.ring(40), "sparse": graphs.random_regular(60, 4, seed=0)}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 1.0, 100.0, 1e4]))
@settings(max_examples=25, deadline=None)
def test_log_mean_is_the_logarithm_of_the_product(graph: nx.Graph, seed: int, spread: float) -> None:
    """Also for numbers whose exponentials overflow or underflow."""
    K = graph.number_of_nodes()
    x = spread * torch.randn(K, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mix, W = LocalEngine(metropolis(graph), torch.float64).mix(0), metropolis_matrix(graph).toarray()
    log_W = torch.as_tensor(W).log()  # log 0 = -inf off the graph
    assert torch.allclose(mix.log_mean(x), torch.logsumexp(log_W + x, dim=1), rtol=1e-14, atol=1e-14)
    assert mix.floats_sent == 2 * graph.number_of_edges()
    if spread == 1:
        assert torch.allclose(mix.log_mean(x).exp(), mix(x.exp()), rtol=1e-13)


def test_log_mean_of_single_precision_and_of_nothing() -> None:
    mix = LocalEngine(metropolis(graphs.ring(6)), torch.float32).mix(0)
    x = torch.tensor([1e4, -1e4, -1e4, -1e4, -1e4, 0.0])
    mean = mix.log_mean(x)
    assert mean.dtype == torch.float32
    third = math.log(3)
    assert mean.tolist() == pytest.approx([1e4 - third, 1e4 - third, -1e4, -1e4, -third, 1e4 - third], rel=1e-6)
    nothing = torch.tensor([-math.inf, -math.inf, -math.inf, 0.0, 0.0, math.inf])
    assert mix.log_mean(nothing).tolist() == pytest.approx(
        [math.inf, -math.inf, -third, math.log(2 / 3), math.inf, math.inf]
    )


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


@pytest.mark.parametrize("repeats", [1, 2, 5])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
def test_gossip_may_be_repeated(graph: nx.Graph, repeats: int) -> None:
    """W^n instead of W, also for log_mean, and n messages instead of one."""
    K, links = graph.number_of_nodes(), 2 * graph.number_of_edges()
    mixing = Mixing(K, metropolis(graph).at, static=True, repeats=repeats)
    W = torch.linalg.matrix_power(torch.as_tensor(metropolis_matrix(graph).toarray()), repeats)
    x = torch.randn(K, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mix = LocalEngine(mixing, torch.float64).mix(3)
    assert torch.allclose(mix(x), W @ x, rtol=0, atol=1e-13)
    assert mix.floats_sent == links * 40 * repeats
    assert torch.allclose(mix.log_mean(x[:, 0]), (W @ x[:, 0].exp()).log(), rtol=1e-12, atol=1e-13)
    assert mix.floats_sent == links * 41 * repeats
    assert torch.allclose(mix(x.clone(), donate=True), W @ x, rtol=0, atol=1e-13)


# the size of a message of 300 single-precision numbers, in units of 4 bytes
MESSAGES: dict[str, tuple[Compressor, int]] = {
    "none": (no_compression(), 300),
    "top tenth": (top_k(0.1), 60),
    "random tenth": (random_k(0.1), 30),
    "8 bits": (quantized(8), 75 + 10),
    "4 bits": (quantized(4), 38 + 10),  # 37.5 rounded up
    "2 bits": (quantized(2), 19 + 10),  # 18.75
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize(("compressor", "size"), MESSAGES.values(), ids=MESSAGES.keys())
def test_compressed_messages(compressor: Compressor, size: int, graph: nx.Graph) -> None:
    """hat grows by Q(x - hat), and mixed by W Q(x - hat); only the compressed size of a row is counted."""
    K, links, t = graph.number_of_nodes(), 2 * graph.number_of_edges(), 5
    x, hat, mixed = torch.randn(3, K, 300, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    engine = LocalEngine(metropolis(graph), torch.float32)
    mix = engine.mix(t)
    mix(x[:, 0])

    def exchange(mix: LocalMix, number: int) -> None:
        sent = compressor.decode(compressor.encode(x - hat, number), 300, number)
        own, others = hat + sent, mixed + engine.mix(t)(sent)
        mix.compressed(x, hat, mixed, compressor, number)
        assert torch.equal(x, before)
        assert torch.equal(hat, own)
        assert torch.allclose(mixed, others, rtol=0, atol=1e-6)

    exchange(mix, t)
    assert mix.floats_sent == links * (1 + size)
    twice = LocalEngine(repeated(metropolis(graph), 2), torch.float32).mix(t)
    for number in (3, 4):  # each applies W once, with its own draw
        exchange(twice, number)
    assert twice.floats_sent == 2 * links * size


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 2])
def test_combining_by_columns_is_combining(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with the same number of floats sent, whatever the number of columns in a block."""
    graph, d = GRAPHS["sparse"], 300
    engine = LocalEngine(repeated(metropolis(graph), steps), torch.float32)
    made = OPTIMIZERS[name].make(eta=0.1)
    theta = torch.randn(graph.number_of_nodes(), d, generator=torch.Generator().manual_seed(0))
    state = made.init(theta)
    for value in state.values():
        value.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(1))
    whole = engine.mix(2)
    expected, after = made.combine(theta.clone(), {key: value.clone() for key, value in state.items()}, whole)

    monkeypatch.setattr(local, "COMBINED_BYTES", 1)  # as few columns as there may be
    blocks: list[int] = []

    def combine(theta: Tensor, state: dict[str, Tensor], mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        blocks.append(theta.shape[1])
        after: tuple[Tensor, dict[str, Tensor]] = made.combine(theta, state, mix)
        return after

    mix = engine.mix(2)
    found, now = mix.by_columns(combine, theta, state, made.together)
    assert len(blocks) == (1 if made.together is None else 3)
    assert torch.equal(found, expected)
    assert now.keys() == after.keys()
    assert all(torch.equal(now[key], after[key]) for key in now)
    assert mix.floats_sent == whole.floats_sent
