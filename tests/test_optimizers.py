"""Every gossip optimizer: it keeps the mean, and finds the minimiser of quadratics on every graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drdsgd import graphs
from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.gradients import Gradient
from drdsgd.mixing import metropolis
from drdsgd.optimizers import GossipOptimizer, Schedule, cosine, dsgd, exponential, linear

Make = Callable[[float | Schedule], GossipOptimizer]
# the table of laws: a new optimizer gets a row, and whether a constant step takes it to the exact minimiser
OPTIMIZERS: dict[str, tuple[Make, bool]] = {"dsgd": (dsgd, False)}
GRAPHS = {
    "erdos-renyi": graphs.erdos_renyi(12, 0.3, seed=1),
    "geometric": graphs.geometric(12, seed=1),
    "ring": graphs.ring(12),
    "grid": graphs.grid(12),
    "torus": graphs.torus(12),
    "complete": graphs.complete(12),
    "star": graphs.star(12),
}


def known(gradient: torch.Tensor) -> Gradient:
    """A gradient that needs no backward pass, with weights one."""

    def backward(scale: torch.Tensor, into: torch.Tensor) -> None:
        into += scale[:, None] * gradient

    return Gradient(gradient.new_ones(len(gradient)), backward)


def minimise(optimizer: GossipOptimizer, graph: nx.Graph, rounds: int) -> float:
    """Devices with f_i(theta) = ||A_i theta - b_i||^2 / 2: how far the worst of them ends from the minimiser."""
    torch.manual_seed(0)
    K, d = graph.number_of_nodes(), 3
    A, b = torch.randn(K, 5, d, dtype=torch.float64), torch.randn(K, 5, dtype=torch.float64)
    best = torch.linalg.solve((A.mT @ A).sum(dim=0), (A.mT @ b[..., None]).sum(dim=0)).squeeze()
    engine = LocalEngine(metropolis(graph), torch.float64)
    theta = torch.zeros(K, d, dtype=torch.float64)
    state = optimizer.init(theta)
    for t in range(rounds):
        gradient = (A.mT @ (A @ theta[..., None] - b[..., None])).squeeze(-1)
        optimizer.local(theta, known(gradient), state, t)
        theta, state = optimizer.combine(theta, state, engine.mix(t))
    return float((theta - best).norm(dim=1).max())


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize(("make", "exact"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_reaches_the_minimiser(make: Make, exact: bool, graph: nx.Graph) -> None:
    """Exactly, or up to a bias that shrinks with the step and goes to zero with a decaying one."""
    coarse, fine = minimise(make(0.02), graph, 1500), minimise(make(0.002), graph, 6000)
    if exact or graph.number_of_edges() == 66:  # the complete graph has no disagreement to be biased by
        assert coarse < 1e-9
        return
    assert 1e-3 < coarse < 1
    assert fine < coarse / 3
    assert minimise(make(lambda t: 0.05 / (1 + 0.05 * t)), graph, 6000) < fine / 3


@given(st.sampled_from(sorted(GRAPHS)), st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_gossip_keeps_the_mean(kind: str, seed: int, t: int) -> None:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mixed = LocalEngine(metropolis(GRAPHS[kind]), torch.float64).mix(t)(x)
    assert torch.allclose(mixed.mean(dim=0), x.mean(dim=0), rtol=0, atol=1e-14)


def test_schedules_start_at_eta_and_end_where_they_say() -> None:
    assert [linear(0.4, T=10)(t) for t in (0, 5, 10, 11)] == pytest.approx([0.4, 0.2, 0.0, 0.0])
    assert [linear(0.4, T=10, end=0.5)(t) for t in (0, 5, 10)] == pytest.approx([0.4, 0.3, 0.2])
    assert [cosine(0.4, T=10, end=0.5)(t) for t in (0, 5, 10, 11)] == pytest.approx([0.4, 0.3, 0.2, 0.2])
    assert [exponential(0.4, 0.5)(t) for t in (0, 1, 3)] == pytest.approx([0.4, 0.2, 0.05])


def test_the_schedule_gets_the_round() -> None:
    for t, moved in ((0, 0.0), (1, -0.1), (5, -0.5)):
        theta = torch.zeros(3, 1)
        dsgd(lambda t: 0.1 * t).local(theta, known(torch.ones(3, 1)), {}, t)
        assert theta.flatten().tolist() == pytest.approx([moved] * 3)


@pytest.mark.parametrize("eta", [0.0, -0.1, math.nan, math.inf])
def test_eta_must_be_positive(eta: float) -> None:
    with pytest.raises(InputError, match="T must be"):
        linear(0.1, 0)
    with pytest.raises(InputError, match="end must be"):
        cosine(0.1, 5, end=-1)
    for use in (dsgd, lambda e: linear(e, 10), lambda e: cosine(e, 10), lambda e: exponential(e, 0.9)):
        with pytest.raises(InputError, match="eta must be a positive number"):
            use(eta)
    with pytest.raises(InputError, match="decay must be in"):
        exponential(0.1, 1.5)
