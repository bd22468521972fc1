"""The round equals the paper's algorithm boxes in plain loops (tests/reference.py), on every graph."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

from drdsgd import algorithms, data, graphs, models
from drdsgd.algorithms import Algorithm
from drdsgd.batches import Batches
from drdsgd.engines import Mix
from drdsgd.engines.local import LocalEngine
from drdsgd.flat import Flat
from drdsgd.gradients import Execution, Gradient, make_forward
from drdsgd.mixing import metropolis
from drdsgd.objectives import Objective, ObjectiveState, kl_dro
from drdsgd.optimizers import GossipOptimizer, OptimizerState, linear
from drdsgd.parallel import each_of
from drdsgd.round import init, make_round
from tests import reference

K, T, B = 9, 50, 4
GRAPHS = {
    "erdos-renyi": graphs.erdos_renyi(K, 0.3, seed=2),
    "geometric": graphs.geometric(K, seed=2),
    "ring": graphs.ring(K),
    "grid": graphs.grid(K),
    "torus": graphs.torus(K),
    "complete": graphs.complete(K),
    "star": graphs.star(K),
    "random regular": graphs.random_regular(K, 4, seed=2),
}
WHOLE = [slice(None)]
BLOCKS = [slice(0, 4), slice(4, 5), slice(5, K)]
WAYS: list[tuple[Execution, Sequence[slice]]] = [("batched", WHOLE), ("batched", BLOCKS), ("loop", BLOCKS)]
SHAPE = (1, 8, 8)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp(SHAPE, 3, hidden=(6, 5)),
    "cnn": lambda: models.cnn(SHAPE, 3, channels=(2, 2, 2), hidden=(5, 4)),
}


def problem(kind: str, equal: bool) -> tuple[nn.Module, data.Devices]:
    """A model, and noise to learn: what is learned does not matter here, only that both sides do the same."""
    torch.manual_seed(1)
    sizes = [6] * K if equal else [1 + 3 * i for i in range(K)]
    pairs = [(torch.rand(n, *SHAPE), torch.randint(0, 3, (n,))) for n in sizes]
    return MODELS[kind]().double(), data.from_pairs(pairs, pairs, classes=3)


def engine_models(
    model: nn.Module,
    devices: data.Devices,
    graph: nx.Graph,
    algorithm: Algorithm,
    execution: Execution,
    blocks: Sequence[slice],
    extra_floats: int = 0,
) -> Tensor:
    flat = Flat(model)
    share = (devices.train.sizes / devices.train.sizes.double().mean()).double()
    state = init(algorithm, flat.row().repeat(K, 1), share)
    batches = Batches(devices, B, seed=5, dtype=torch.float64)
    round = make_round(
        algorithm,
        make_forward(flat, nn.functional.cross_entropy, execution),
        batches,
        LocalEngine(metropolis(graph), torch.float64),
        blocks,
        each_of(2) if len(blocks) > 1 else map,
    )
    for _ in range(T):
        state, info = round(state)
        assert info.floats_sent == 2 * graph.number_of_edges() * (flat.d + extra_floats)
    assert state.t == T
    return state.theta


def reference_models(
    model: nn.Module, devices: data.Devices, graph: nx.Graph, mu: float | None, *, normalized: bool = False
) -> Tensor:
    batches = Batches(devices, B, seed=5, dtype=torch.float64)
    sizes = devices.train.sizes.tolist()
    share = [n / (sum(sizes) / K) for n in sizes]

    at = functools.cache(batches)

    def batch(i: int, t: int) -> tuple[Tensor, Tensor]:
        x, y = at(t)
        return x[i], y[i]

    def eta(t: int) -> float:
        return 0.3 * (1 - t / T)

    W = reference.metropolis(graph)
    if mu is None:
        trained = reference.dsgd(copy.deepcopy(model), W, batch, eta, T, share)
    else:
        robust = reference.normalized_dr_dsgd if normalized else reference.dr_dsgd
        trained = robust(copy.deepcopy(model), W, batch, eta, T, share, mu, loss_clip=1.2)
    return torch.stack([Flat(module).row() for module in trained])


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert float((got - expected).norm() / expected.norm()) < 1e-10


@pytest.mark.parametrize("mu", [None, 0.7], ids=["dsgd", "dr-dsgd"])
@pytest.mark.parametrize("equal", [True, False], ids=["equal n_i", "unequal n_i"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
def test_the_engine_equals_the_paper_in_plain_loops(graph: nx.Graph, kind: str, equal: bool, mu: float | None) -> None:
    """float64, 50 rounds, relative 1e-10: both ways to run the devices, with a schedule and a loss clip."""
    model, devices = problem(kind, equal)
    eta = linear(0.3, T)
    algorithm = algorithms.dsgd(eta) if mu is None else algorithms.dr_dsgd(eta, mu, loss_clip=1.2)
    expected = reference_models(model, devices, graph, mu)
    assert float((expected - Flat(model).row()).norm()) > 0.1  # something was learned
    for execution, blocks in WAYS:
        assert_close(engine_models(model, devices, graph, algorithm, execution, blocks), expected)


@pytest.mark.parametrize("kind", ["erdos-renyi", "ring", "complete", "star"])
def test_normalized_weights_equal_plain_loops(kind: str) -> None:
    """As above, and one more number per link: the logarithms are those of the means that the loops keep."""
    graph = GRAPHS[kind]
    model, devices = problem("mlp", equal=False)
    algorithm = algorithms.dr_dsgd(linear(0.3, T), 0.7, loss_clip=1.2, weights="normalized")
    expected = reference_models(model, devices, graph, 0.7, normalized=True)
    for execution, blocks in WAYS:
        assert_close(engine_models(model, devices, graph, algorithm, execution, blocks, extra_floats=1), expected)
    as_written = algorithms.dr_dsgd(linear(0.3, T), 0.7, loss_clip=1.2)
    other = engine_models(model, devices, graph, as_written, "batched", WHOLE)
    assert float((expected - other).norm()) > 0.1  # so this test could fail


def test_the_complete_graph_with_average_risk_is_centralised_sgd() -> None:
    """All devices agree, and take the mean gradient of all batches: SGD on the pooled batch."""
    model, devices = problem("mlp", equal=True)
    theta = engine_models(model, devices, graphs.complete(K), algorithms.dsgd(linear(0.3, T)), "batched", WHOLE)
    central = copy.deepcopy(model)
    batches = Batches(devices, B, seed=5, dtype=torch.float64)
    for t in range(T):
        x, y = batches(t)
        optimizer = torch.optim.SGD(central.parameters(), lr=0.3 * (1 - t / T))
        optimizer.zero_grad()
        nn.functional.cross_entropy(central(x.flatten(0, 1)), y.flatten()).backward()
        optimizer.step()
    assert_close(theta, Flat(central).row().expand(K, -1))


def test_the_average_follows_the_papers_average_iterate() -> None:
    """mean theta^{t+1} = mean theta^t - eta / K * sum_i weight_i g_i, on any graph."""
    model, devices = problem("mlp", equal=False)
    flat, algorithm = Flat(model), algorithms.dr_dsgd(0.2, mu=2.0)
    forward = make_forward(flat, nn.functional.cross_entropy)
    batches = Batches(devices, B, seed=5, dtype=torch.float64)
    round = make_round(algorithm, forward, batches, LocalEngine(metropolis(graphs.ring(K)), torch.float64), BLOCKS)
    theta = torch.randn(K, flat.d, dtype=torch.float64)
    loss, backward = forward(theta, *batches(0))
    backward(torch.exp(loss / 2) / 2, step := torch.zeros_like(theta))
    expected = theta.mean(dim=0) - 0.2 * step.mean(dim=0)
    after, info = round(init(algorithm, theta, torch.ones(K, dtype=torch.float64)))
    assert torch.allclose(info.loss, loss, rtol=1e-12)
    assert torch.allclose(after.theta.mean(dim=0), expected, rtol=1e-12, atol=1e-14)


def test_states_and_weights_that_gossip_go_through_blocks_and_threads() -> None:
    """An optimizer with a state of its own, and an objective that mixes: blocks and threads change nothing."""

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        state["momentum"].mul_(0.5)
        gradient.add_to(state["momentum"], 1.0)
        theta.sub_(state["momentum"], alpha=0.1)

    momentum = GossipOptimizer(
        init=lambda theta: {"momentum": torch.zeros_like(theta)},
        local=local,
        combine=lambda theta, state, mix: (mix(theta), state),
    )

    def weigh(loss: Tensor, state: ObjectiveState, mix: Mix) -> tuple[Tensor, ObjectiveState]:
        return loss / mix(loss), {"share": state["share"], "seen": state["seen"] + loss}

    gossiping = Objective(lambda share: {"share": share, "seen": torch.zeros_like(share)}, weigh, gossips=True)
    model, devices = problem("mlp", equal=True)
    for objective in (kl_dro(2.0), gossiping):
        algorithm = Algorithm(objective, momentum)
        results = [
            engine_models(
                model, devices, graphs.ring(K), algorithm, execution, blocks, extra_floats=int(objective.gossips)
            )
            for execution, blocks in WAYS
        ]
        for other in results[1:]:
            assert_close(other, results[0])
