"""The round equals the paper's algorithm boxes in plain loops (tests/reference.py), on every graph.

And every objective works with every optimizer: in blocks, on threads, and through a checkpoint.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

from drdsgd import data, models
from drdsgd.core import algorithms
from drdsgd.core.algorithms import Algorithm
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Execution, Forward, make_forward
from drdsgd.core.objectives import LocalDevices, Objective, ObjectiveState, kl_dro, smoothed
from drdsgd.core.optimizers import GossipOptimizer, OptimizerState, dsgd, quasi_global_momentum
from drdsgd.core.parallel import Each, each_of
from drdsgd.core.round import Info, State, init, make_round
from drdsgd.core.schedules import linear
from drdsgd.data.batches import Batches
from drdsgd.engines.local import LocalEngine, SingleProcess
from drdsgd.topology import graphs
from drdsgd.topology.mixing import metropolis
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress
from tests import reference
from tests.laws.objectives import WITH_EVERY_OPTIMIZER
from tests.laws.optimizers import OPTIMIZERS
from tests.support.networks import of_every_kind

K, T, B = 9, 50, 4
GRAPHS = {**of_every_kind(K, seed=2), "random regular": graphs.random_regular(K, 4, seed=2)}
WHOLE = [slice(None)]
BLOCKS = [slice(0, 4), slice(4, 5), slice(5, K)]
WAYS: list[tuple[Execution, Sequence[slice]]] = [("batched", WHOLE), ("batched", BLOCKS), ("loop", BLOCKS)]
SHAPE = (1, 8, 8)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp(SHAPE, 3, hidden=(6, 5)),
    "cnn": lambda: models.cnn(SHAPE, 3, channels=(2, 2, 2), hidden=(5, 4)),
}


def problem(kind: str, equal: bool) -> tuple[nn.Module, data.Devices]:
    """A model, and noise to learn: both sides must do the same, whatever they learn."""
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
    state = init(algorithm, flat.row().repeat(K, 1), LocalDevices.all_of(share))
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
@pytest.mark.parametrize("kind", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
def test_the_engine_equals_the_paper_in_plain_loops(graph: nx.Graph, kind: str, equal: bool, mu: float | None) -> None:
    """In float64, 50 rounds, relative error 1e-10: batched and looped devices, with a schedule and a loss clip."""
    model, devices = problem(kind, equal)
    eta = linear(0.3, T)
    algorithm = algorithms.dsgd(eta) if mu is None else algorithms.dr_dsgd(eta, mu, loss_clip=1.2)
    expected = reference_models(model, devices, graph, mu)
    assert float((expected - Flat(model).row()).norm()) > 0.1  # something was learned
    for execution, blocks in WAYS:
        assert_close(engine_models(model, devices, graph, algorithm, execution, blocks), expected)


@pytest.mark.parametrize("kind", ["erdos-renyi", "ring", "complete", "star"])
def test_normalized_weights_equal_plain_loops(kind: str) -> None:
    """As above. One more number per link travels with the model: the logarithm of the loops' mean."""
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
    """All devices agree and follow the mean gradient of all batches: SGD on the pooled batch."""
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
    after, info = round(init(algorithm, theta, LocalDevices.all_of(torch.ones(K, dtype=torch.float64))))
    assert torch.allclose(info.loss, loss, rtol=1e-12)
    assert torch.allclose(after.theta.mean(dim=0), expected, rtol=1e-12, atol=1e-14)


@functools.cache
def small() -> tuple[Tensor, LocalDevices, Forward, Batches]:
    model, devices = problem("mlp", equal=False)
    flat = Flat(model)
    share = (devices.train.sizes / devices.train.sizes.double().mean()).double()
    batches = Batches(devices, B, seed=5, dtype=torch.float64)
    return flat.row(), LocalDevices.all_of(share), make_forward(flat, nn.functional.cross_entropy), batches


def test_schedules_get_the_round_and_weight_decay_is_added() -> None:
    """mean theta^{t+1} = mean theta^t - eta_t / K * sum_i (weight_i g_i + decay theta_i), weights with mu_t."""
    theta, hosted, forward, batches = small()
    theta = theta + torch.randn(K, len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eta, mu, decay = linear(0.4, 10), linear(3.0, 10), 0.3
    algorithm = Algorithm(kl_dro(mu), dsgd(eta), weight_decay=decay)
    round = make_round(algorithm, forward, batches, LocalEngine(metropolis(GRAPHS["ring"]), torch.float64), BLOCKS)
    state = init(algorithm, theta.clone(), hosted)
    for t in range(4):
        before = state.theta.clone()
        loss, backward = forward(before, *batches(t))
        weight = hosted.share * torch.exp(loss / mu(t)) / mu(t)
        backward(weight, step := decay * before)
        state, info = round(state)
        assert state.t == t + 1 and torch.allclose(info.weight, weight, rtol=1e-12)
        expected = before.mean(dim=0) - eta(t) * step.mean(dim=0)
        assert torch.allclose(state.theta.mean(dim=0), expected, rtol=1e-11, atol=1e-13)


# ------------------------------------------------------------- any objective with any optimizer


def tensors(state: State) -> dict[str, Tensor]:
    return {"theta": state.theta} | state.objective | {f"optimizer {name}": x for name, x in state.optimizer.items()}


@pytest.mark.parametrize("optimizer", [row.make(0.1) for row in OPTIMIZERS.values()], ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("objective", WITH_EVERY_OPTIMIZER.values(), ids=WITH_EVERY_OPTIMIZER.keys())
def test_blocks_threads_and_a_stop_on_the_way_change_nothing(
    objective: Objective, optimizer: GossipOptimizer, tmp_path: Path
) -> None:
    """Three rounds with all devices at once equal those in blocks on threads; a resumed run is equal bit for bit."""
    row, hosted, forward, batches = small()
    algorithm = Algorithm(objective, optimizer, weight_decay=0.01)
    engine = LocalEngine(metropolis(GRAPHS["erdos-renyi"]), torch.float64)

    def rounds(state: State, n: int, blocks: Sequence[slice] = WHOLE, each: Each = map) -> tuple[State, list[Info]]:
        round, infos = make_round(algorithm, forward, batches, engine, blocks, each), []
        for _ in range(n):
            state, info = round(state)
            infos.append(info)
        return state, infos

    def start() -> State:
        return copy.deepcopy(init(algorithm, row.repeat(K, 1), hosted))

    expected, infos = rounds(start(), 3)
    assert expected.t == 3 and float((expected.theta - row).norm()) > 0.01
    found, others = rounds(start(), 3, BLOCKS, each_of(2))
    assert tensors(found).keys() == tensors(expected).keys()
    for name, value in tensors(expected).items():
        assert torch.allclose(tensors(found)[name], value, rtol=1e-10, atol=1e-13), name
    for info, other in zip(infos, others, strict=True):
        assert info.floats_sent == other.floats_sent > 0
        assert torch.allclose(info.loss, other.loss, rtol=1e-12)
        assert torch.allclose(info.weight, other.weight, rtol=1e-10, atol=1e-13)

    here = SingleProcess(len(found.theta))
    for stop in (0, 2):
        begun, _ = rounds(start(), stop)
        checkpoint.save(tmp_path, Progress(begun, 0, 0.0, None), here)
        saved = checkpoint.load(tmp_path, here)
        assert saved is not None
        found, _ = rounds(saved.state, 3 - stop)
        assert found.t == 3 and tensors(found).keys() == tensors(expected).keys()
        for name, value in tensors(expected).items():
            assert torch.equal(tensors(found)[name], value), name


def test_the_parts_of_a_state_matter(tmp_path: Path) -> None:
    """Rounds depend on all parts of the state, so the test above would notice if a checkpoint left one out."""
    row, hosted, forward, batches = small()
    algorithm = Algorithm(smoothed(kl_dro(0.5, weights="normalized"), 0.3), quasi_global_momentum(0.1))
    engine = LocalEngine(metropolis(GRAPHS["ring"]), torch.float64)
    round = make_round(algorithm, forward, batches, engine)
    state, _ = round(init(algorithm, row.repeat(K, 1), hosted))
    fresh = init(algorithm, row.repeat(K, 1), hosted)

    def after(objective: ObjectiveState, optimizer: OptimizerState, n: int = 2) -> Tensor:
        at = copy.deepcopy(State(1, state.theta, objective, optimizer))
        for _ in range(n):
            at, _ = round(at)
        return at.theta

    expected = after(state.objective, state.optimizer)
    for name in ("log_mean", "weight", "smoothed_loss"):
        assert not torch.allclose(after({**state.objective, name: fresh.objective[name]}, state.optimizer), expected)
    momentum = {**state.optimizer, "momentum": fresh.optimizer["momentum"]}
    assert not torch.allclose(after(state.objective, momentum), expected)
