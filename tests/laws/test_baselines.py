"""Every method with a server equals its paper's rule in plain loops, sends what the rule says, and can be resumed."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import drdsgd
from drdsgd import baselines, data, models
from drdsgd.baselines import Clients, ServerAlgorithm, make_server_round
from drdsgd.core import objectives, optimizers
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Execution, make_forward
from drdsgd.core.method import Site
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.parallel import blocks, each_of
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import linear
from drdsgd.data.batches import Batches
from drdsgd.engines.local import LocalEngine, SingleProcess
from drdsgd.errors import Diverged, InputError
from drdsgd.options import Shift
from drdsgd.random import Stream
from drdsgd.topology import graphs
from drdsgd.topology.mixing import metropolis
from drdsgd.training import checkpoint
from drdsgd.training.evaluation import distances

K, T, B, M, TAU = 7, 6, 4, 4, 3  # devices, rounds, batch, clients that take part, local steps
SHAPE, CLASSES = (1, 3, 3), 3
ETA = linear(0.4, 2 * T)
WAYS: list[tuple[Execution, int, int]] = [("batched", K, 1), ("batched", 2, 2), ("loop", 1, 1)]


def problem(equal: bool = False) -> tuple[nn.Module, data.Devices]:
    """A model, and noise to learn: both sides must do the same, whatever they learn."""
    torch.manual_seed(1)
    sizes = [6] * K if equal else [2 + 3 * i for i in range(K)]
    pairs = [(torch.rand(n, *SHAPE), torch.randint(0, CLASSES, (n,))) for n in sizes]
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    return model, data.from_pairs(pairs, pairs, classes=CLASSES)


MODEL, DEVICES = problem()
D = Flat(MODEL).d
SIZES = DEVICES.train.sizes.tolist()


def clients_of(
    model: nn.Module, devices: data.Devices, execution: Execution = "batched", most: int = K, threads: int = 1
) -> Clients:
    flat, sizes, loss = Flat(model), devices.train.sizes.double(), nn.functional.cross_entropy
    return Clients(
        Site(
            LocalDevices.all_of(sizes / sizes.mean()),
            Batches(devices, B, seed=5, dtype=torch.float64),
            flat,
            make_forward(flat, loss, execution),
            loss,
            execution,
            LocalEngine(metropolis(graphs.ring(devices.K)), torch.float64),
            parts_of=lambda n: blocks(n, most),
            each=each_of(threads),
        )
    )


def start_of(algorithm: ServerAlgorithm, clients: Clients) -> State:
    return algorithm.init(clients.site.flat.row().repeat(clients.K, 1), clients)


def rounds(algorithm: ServerAlgorithm, clients: Clients, T: int = T) -> tuple[State, list[Info]]:
    state, infos = start_of(algorithm, clients), []
    round = make_server_round(algorithm, clients)
    for _ in range(T):
        state, info = round(state)
        infos.append(info)
    assert state.t == T
    return state, infos


# ---- the rules in plain loops; they share only the batches and the choice of clients with the package

Batch = Callable[[int, int], tuple[Tensor, Tensor]]


def batch_of(devices: data.Devices) -> Batch:
    at = functools.cache(Batches(devices, B, seed=5, dtype=torch.float64))
    return lambda i, step: (at(step)[0][i], at(step)[1][i])


def sgd(
    model: nn.Module, start: Tensor, samples: list[tuple[Tensor, Tensor]], eta: float, lam: float = 0.0
) -> tuple[Tensor, float]:
    """Plain SGD from `start`, pulled back to it by lam: the last model and the first loss."""
    return personal_sgd(model, start, start, samples, eta, lam)


def personal_sgd(
    model: nn.Module, v: Tensor, centre: Tensor, samples: list[tuple[Tensor, Tensor]], eta: float, lam: float
) -> tuple[Tensor, float]:
    own, losses = copy.deepcopy(model), []
    for x, y in samples:
        vector_to_parameters(v.clone(), own.parameters())
        own.zero_grad()
        loss = nn.functional.cross_entropy(own(x), y)
        loss.backward()
        g = torch.cat([p.grad.flatten() for p in own.parameters() if p.grad is not None])
        v = v - eta * (g + lam * (v - centre))
        losses.append(float(loss.detach()))
    return v, losses[0]


def loss_at(model: nn.Module, theta: Tensor, x: Tensor, y: Tensor) -> float:
    own = copy.deepcopy(model)
    vector_to_parameters(theta.clone(), own.parameters())
    return float(nn.functional.cross_entropy(own(x), y).detach())


def plain_simplex(v: list[float]) -> list[float]:
    """The projection by bisection: max(v - fall, 0) sums to 1."""
    low, high = min(v) - 1, max(v)
    for _ in range(200):
        fall = (low + high) / 2
        low, high = (fall, high) if sum(max(a - fall, 0) for a in v) > 1 else (low, fall)
    return [max(a - fall, 0) for a in v]


Combine = Callable[[Tensor, list[Tensor], list[float], list[float], float], Tensor]


def plain(combine: Combine, tau: int, m: int | None) -> tuple[Tensor, Tensor]:
    batch, theta, clients = batch_of(DEVICES), parameters_to_vector(MODEL.parameters()).detach(), draws()
    for t in range(T):
        taking_part = clients(t).draw(m).tolist()
        after, losses = [], []
        for i in taking_part:
            theta_i, loss = sgd(MODEL, theta, [batch(i, t * tau + s) for s in range(tau)], ETA(t))
            after.append(theta_i)
            losses.append(loss)
        theta = combine(theta, after, losses, [SIZES[i] for i in taking_part], ETA(t))
    return theta, theta.expand(K, -1)


def draws() -> Callable[[int], Clients]:
    clients = clients_of(MODEL, DEVICES)
    return lambda t: replace(clients, t=t)


def mean(vectors: list[Tensor], weights: list[float]) -> Tensor:
    total = torch.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        total = total + weight / sum(weights) * vector
    return total


def by_samples(theta: Tensor, after: list[Tensor], losses: list[float], n: list[float], eta: float) -> Tensor:
    return mean(after, n)


def tilted(theta: Tensor, after: list[Tensor], losses: list[float], n: list[float], eta: float) -> Tensor:
    return mean(after, [n_i * math.exp(2.0 * f) for n_i, f in zip(n, losses, strict=True)])


def q_fair(theta: Tensor, after: list[Tensor], losses: list[float], n: list[float], eta: float) -> Tensor:
    """Algorithm 2 of q-FFL, with L = 1 / eta."""
    q, L, deltas, h = 1.5, 1 / eta, torch.zeros_like(theta), 0.0
    for theta_i, f, n_i in zip(after, losses, n, strict=True):
        u = L * (theta - theta_i)
        deltas = deltas + n_i * f**q * u
        h += n_i * (q * f ** (q - 1) * float(u.square().sum()) + L * f**q)
    return theta - deltas / h


def median(theta: Tensor, after: list[Tensor], losses: list[float], n: list[float], eta: float) -> Tensor:
    z = mean(after, n)
    for _ in range(4):
        z = mean(after, [n_i / max(1e-6, float((z - a).norm())) for a, n_i in zip(after, n, strict=True)])
    return z


def plain_afl(tau: int, m: int | None) -> tuple[Tensor, Tensor]:
    """As in the paper: theta - eta sum lambda_i g_i, for one model that sees all batches."""
    batch, model, seen = batch_of(DEVICES), copy.deepcopy(MODEL), []
    dual = [n / sum(SIZES) for n in SIZES]
    for t in range(T):
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in (batch(i, t) for i in range(K))]
        model.zero_grad()
        sum((w * loss for w, loss in zip(dual, losses, strict=True)), torch.zeros(())).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=ETA(t))
        dual = plain_simplex([w + 0.3 * float(loss.detach()) for w, loss in zip(dual, losses, strict=True)])
        seen.append(parameters_to_vector(model.parameters()).detach().clone())
    assert min(dual) == 0.0 < 0.3 < max(dual)  # the projection had something to do
    return mean(seen, [1.0] * T), seen[-1].expand(K, -1)


def plain_drfa(tau: int, m: int | None) -> tuple[Tensor, Tensor]:
    batch, theta, clients = batch_of(DEVICES), parameters_to_vector(MODEL.parameters()).detach(), draws()
    dual, snapshots, steps = [n / sum(SIZES) for n in SIZES], [], set()
    for t in range(T):
        devices, times = clients(t).draw_by(torch.tensor(dual, dtype=torch.float64), m)
        at = clients(t).draw_step(tau)
        steps.add(at)
        drawn = [i for i, often in zip(devices.tolist(), times.int().tolist(), strict=True) for _ in range(often)]
        ends, middles = [], []
        for i in drawn:
            samples = [batch(i, t * (tau + 1) + s) for s in range(tau)]
            middles.append(sgd(MODEL, theta, samples[:at], ETA(t))[0])
            ends.append(sgd(MODEL, theta, samples, ETA(t))[0])
        assert len(drawn) == (m or K)
        theta, snapshot = mean(ends, [1.0] * len(ends)), mean(middles, [1.0] * len(middles))
        asked = clients(t).draw(m, Stream.ASKED_CLIENTS).tolist()
        for i in asked:
            f = loss_at(MODEL, snapshot, *batch(i, t * (tau + 1) + tau))
            dual[i] += tau * 0.02 * K / len(asked) * f
        dual = plain_simplex(dual)
        snapshots.append(snapshot)
    assert tau in steps and min(steps) < tau
    return mean(snapshots, [1.0] * T), theta.expand(K, -1)


def plain_ditto(tau: int, m: int | None) -> tuple[Tensor, Tensor]:
    batch, theta, clients = batch_of(DEVICES), parameters_to_vector(MODEL.parameters()).detach(), draws()
    v = [theta] * K
    for t in range(T):
        after, taking_part = [], clients(t).draw(m).tolist()
        for i in taking_part:
            samples = [batch(i, t * tau + s) for s in range(tau)]
            v[i] = personal_sgd(MODEL, v[i], theta, samples, ETA(t), 0.7)[0]
            after.append(sgd(MODEL, theta, samples, ETA(t))[0])
        theta = mean(after, [SIZES[i] for i in taking_part])
    return theta, torch.stack(v)


def plain_fed_robust(tau: int, m: int | None, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Both gradients by autograd on the penalised loss, with Lambda and delta as in the formula."""
    batch, theta, clients = batch_of(DEVICES), parameters_to_vector(MODEL.parameters()).detach(), draws()
    identity = torch.eye(9, dtype=torch.float64)
    Lambda, delta = [identity] * K, [torch.zeros(9, dtype=torch.float64)] * K
    for t in range(T):
        after, taking_part = [], clients(t).draw(m).tolist()
        for i in taking_part:
            own = copy.deepcopy(MODEL)
            vector_to_parameters(theta.clone(), own.parameters())
            for s in range(tau):
                x, y = batch(i, t * tau + s)
                matrix, offset = Lambda[i].clone().requires_grad_(), delta[i].clone().requires_grad_()
                shifted = (x.flatten(1) @ matrix.T + offset).view_as(x)
                penalty = (matrix - identity).square().sum() + offset.square().sum()
                value = nn.functional.cross_entropy(own(shifted), y) - 0.5 * penalty
                *g, g_matrix, g_offset = torch.autograd.grad(value, [*own.parameters(), matrix, offset])
                with torch.no_grad():
                    for p, g_p in zip(own.parameters(), g, strict=True):
                        p.sub_(g_p, alpha=ETA(t))
                Lambda[i] = Lambda[i] + 0.4 * (g_matrix * identity if diagonal else g_matrix)
                delta[i] = delta[i] + 0.4 * g_offset
            after.append(parameters_to_vector(own.parameters()).detach())
        theta = mean(after, [SIZES[i] for i in taking_part])
    assert float((Lambda[-1] - identity).norm()) > 0.01
    return theta, theta.expand(K, -1)


Plain = Callable[[int, int | None], tuple[Tensor, Tensor]]
METHODS: dict[str, tuple[Callable[..., ServerAlgorithm], Plain]] = {
    "FedAvg": (functools.partial(baselines.fedavg, ETA), functools.partial(plain, by_samples)),
    "FedTERM": (functools.partial(baselines.fed_term, ETA, 2.0), functools.partial(plain, tilted)),
    "q-FedAvg": (functools.partial(baselines.q_fedavg, ETA, 1.5), functools.partial(plain, q_fair)),
    "RFA": (functools.partial(baselines.rfa, ETA), functools.partial(plain, median)),
    "AFL": (lambda local_steps, clients: baselines.afl(ETA, dual_eta=0.3), plain_afl),
    "DRFA": (functools.partial(baselines.drfa, ETA, 0.02), plain_drfa),
    "Ditto": (functools.partial(baselines.ditto, ETA, 0.7), plain_ditto),
    "FedRobust": (
        functools.partial(baselines.fedrobust, ETA, 0.5, 0.4),
        functools.partial(plain_fed_robust, diagonal=False),
    ),
    "FedRobust, diagonal": (
        functools.partial(baselines.fedrobust, ETA, 0.5, 0.4, shift="diagonal"),
        functools.partial(plain_fed_robust, diagonal=True),
    ),
}


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert float((got - expected).norm() / expected.norm()) < 1e-10


@pytest.mark.parametrize("m", [None, M], ids=["all take part", "some take part"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_its_rule_in_plain_loops(method: str, m: int | None) -> None:
    """In float64, with unequal n_i, a schedule and local steps; batched and looped, in blocks, and on threads."""
    make, rule = METHODS[method]
    common, theta = rule(TAU, m)
    assert float((common - Flat(MODEL).row()).norm()) > 0.05  # something was learned
    algorithm = make(local_steps=TAU, clients=m)
    for execution, most, threads in WAYS:
        state, infos = rounds(algorithm, clients_of(MODEL, DEVICES, execution, most, threads))
        assert_close(algorithm.common(state), common)
        assert_close(state.theta, theta)
        for info in infos:
            assert info.loss.shape == info.weight.shape == (K,)
            assert info.loss.isfinite().all() and (info.weight >= 0).all()
            if method not in ("q-FedAvg", "AFL"):
                assert (info.weight > 0).sum() <= (m or K)
            if method != "q-FedAvg":
                assert float(info.weight.mean()) == pytest.approx(1.0)


# ---- closed forms and special cases


@pytest.mark.parametrize("equal", [True, False], ids=["equal n_i", "unequal n_i"])
def test_fed_avg_with_one_step_is_dsgd_on_the_complete_graph(equal: bool) -> None:
    model, devices = problem(equal)
    run = functools.partial(drdsgd.train, model, devices, rounds=20, batch_size=B, seed=3)
    with_server = run(graph=graphs.ring(K), algorithm=baselines.fedavg(0.3))
    without = run(graph=graphs.complete(K), algorithm=drdsgd.dsgd(0.3))
    assert_close(with_server.theta, without.theta)
    assert with_server.final.consensus == without.final.consensus
    assert with_server.final.weights == pytest.approx(without.final.weights)


def test_afl_is_dual_ascent_on_the_complete_graph() -> None:
    """It is AD-GDA without a penalty: each of its K devices raises one entry, so the mean moves by 1 / K of AFL's step.

    The two are equal as long as the projection cuts nothing off.
    """
    model, devices = problem(equal=True)
    run = functools.partial(drdsgd.train, model, devices, rounds=20, batch_size=B, seed=3)
    with_server = run(graph=graphs.ring(K), algorithm=baselines.afl(0.3, dual_eta=0.05 / K))
    ascent = drdsgd.Algorithm(objectives.ad_gda(dual_eta=0.05, dual_penalty=0.0), optimizers.dsgd(0.3))
    without = run(graph=graphs.complete(K), algorithm=ascent)
    assert_close(with_server.theta, without.theta)
    assert with_server.final.local == without.final.local
    assert with_server.final.weights == pytest.approx(without.final.weights)
    assert max(without.final.weights) > 1.02  # weights did rise


def test_fed_term_is_gradient_descent_on_the_tilted_risk() -> None:
    """theta - eta grad (1/t) log sum p_i exp(t f_i) by autograd; the weights are those of exactly normalised kl_dro."""
    tilt, batch, theta = 3.0, batch_of(DEVICES), Flat(MODEL).row()
    clients = clients_of(MODEL, DEVICES)
    algorithm = baselines.fed_term(0.2, tilt=tilt)
    state, (info,) = rounds(algorithm, clients, T=1)
    model = copy.deepcopy(MODEL)
    f = torch.stack([nn.functional.cross_entropy(model(x), y) for x, y in (batch(i, 0) for i in range(K))])
    p = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    ((p * torch.exp(tilt * f)).sum().log() / tilt).backward()
    g = torch.cat([q.grad.flatten() for q in model.parameters() if q.grad is not None])
    assert_close(algorithm.common(state), theta - 0.2 * g)
    objective = drdsgd.kl_dro(1 / tilt)
    weight = objective.weigh(f.detach(), {"share": clients.share}, 0)
    assert_close(info.weight, weight / weight.mean())


def test_a_large_tilt_does_not_overflow() -> None:
    state, (info,) = rounds(baselines.fed_term(0.2, tilt=1e4), clients_of(MODEL, DEVICES), T=1)
    assert state.theta.isfinite().all() and float(info.weight.max()) == pytest.approx(K)


@pytest.mark.parametrize("m", [None, M])
def test_q_fed_avg_at_q_0_is_fed_avg(m: int | None) -> None:
    a, b = (
        rounds(algorithm, clients_of(MODEL, DEVICES))[0].theta
        for algorithm in (
            baselines.q_fedavg(ETA, q=0.0, local_steps=TAU, clients=m),
            baselines.fedavg(ETA, TAU, m),
        )
    )
    assert_close(a, b)


def test_q_fed_avg_with_one_step_of_a_large_q_shortens_the_step() -> None:
    """Also if f^q overflows, and if a schedule has reached 0."""
    clients = clients_of(MODEL, DEVICES)
    start = Flat(MODEL).row()
    lengths = [
        float((rounds(baselines.q_fedavg(0.3, q=q), clients, T=1)[0].theta[0] - start).norm()) for q in (0.0, 5.0, 5e4)
    ]
    assert lengths[0] > lengths[1] > lengths[2] > 0
    assert_close(rounds(baselines.q_fedavg(lambda t: 0.0), clients, T=1)[0].theta[0], start)


def test_drfa_with_one_step_and_lambda_fixed_on_one_device_trains_that_one() -> None:
    clients = clients_of(MODEL, DEVICES)
    algorithm = baselines.drfa(0.3, dual_eta=1e-12)
    state = start_of(algorithm, clients)
    state.objective["dual"].zero_()[2] = 1.0
    batch, theta = batch_of(DEVICES), Flat(MODEL).row()
    for t in range(3):
        state, info = make_server_round(algorithm, clients)(state)
        theta, _ = sgd(MODEL, theta, [batch(2, 2 * t)], 0.3)
        assert info.weight.tolist() == [0, 0, K, 0, 0, 0, 0]
    assert_close(state.theta[0], theta)


def test_rfa_of_equal_updates_is_fed_avg() -> None:
    """All devices have the same single sample, so there is one update for all weights."""
    x, y = torch.rand(1, *SHAPE), torch.tensor([1])
    same = data.from_pairs(
        [(x.repeat(i + 1, 1, 1, 1), y.repeat(i + 1)) for i in range(K)], [(x, y)] * K, classes=CLASSES
    )
    a, b = (
        rounds(algorithm, clients_of(MODEL, same))[0].theta for algorithm in (baselines.rfa(0.3), baselines.fedavg(0.3))
    )
    assert_close(a, b)


def test_rfa_withstands_a_corrupted_device_and_fed_avg_does_not() -> None:
    """One of seven sends an update a thousand times too large: the median stays with the other six."""
    torch.manual_seed(1)
    pairs = [(torch.rand(6, *SHAPE), torch.randint(0, CLASSES, (6,))) for _ in range(K)]
    bad = [*pairs[:-1], (1e4 * pairs[-1][0], pairs[-1][1])]
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, CLASSES)).double()
    devices = data.from_pairs(bad, pairs, classes=CLASSES)
    theta, batch = Flat(model).row(), batch_of(devices)
    updates = torch.stack([sgd(model, theta, [batch(i, 0)], 0.1)[0] - theta for i in range(K)])
    others, spread = updates[:-1].mean(dim=0), float(updates[:-1].norm(dim=1).max())
    assert float(updates[-1].norm()) > 1000 * spread

    def far(algorithm: ServerAlgorithm) -> float:
        return float((rounds(algorithm, clients_of(model, devices), T=1)[0].theta[0] - theta - others).norm())

    assert far(baselines.fedavg(0.1)) > 100 * spread
    assert far(baselines.rfa(0.1, iterations=10)) < 0.5 * spread
    # how much closer an iteration brings it, while it is far away
    assert far(baselines.rfa(0.1, iterations=2)) == pytest.approx(
        far(baselines.rfa(0.1, iterations=1)) / (K - 1), rel=0.2
    )


@pytest.mark.parametrize("m", [None, M])
def test_ditto_without_a_pull_trains_every_device_alone_and_its_server_is_fed_avg(m: int | None) -> None:
    clients, batch, who = clients_of(MODEL, DEVICES), batch_of(DEVICES), draws()
    algorithm = baselines.ditto(ETA, pull=0.0, local_steps=TAU, clients=m)
    state, _ = rounds(algorithm, clients)
    for i in range(K):
        v = Flat(MODEL).row()
        for t in range(T):
            if i in who(t).draw(m).tolist():
                v, _ = sgd(MODEL, v, [batch(i, t * TAU + s) for s in range(TAU)], ETA(t))
        assert_close(state.theta[i], v)
    assert_close(algorithm.common(state), rounds(baselines.fedavg(ETA, TAU, m), clients)[0].theta[0])


def test_ditto_with_a_strong_pull_stays_at_the_server() -> None:
    apart = []
    for lam in (0.0, 1.0, 8.0):
        algorithm = baselines.ditto(0.1, pull=lam)
        state, _ = rounds(algorithm, clients_of(MODEL, DEVICES), T=30)
        apart.append(float(distances(state.theta, algorithm.common(state)).mean()))
    assert apart[0] > 2 * apart[1] > 8 * apart[2] > 0


@pytest.mark.parametrize("shift", ["matrix", "diagonal"])
def test_fed_robust_with_a_huge_penalty_is_fed_avg(shift: Shift) -> None:
    robust = baselines.fedrobust(ETA, shift_penalty=1e12, shift_eta=5e-13, local_steps=TAU, clients=M, shift=shift)
    a, b = (
        rounds(algorithm, clients_of(MODEL, DEVICES))[0].theta for algorithm in (robust, baselines.fedavg(ETA, TAU, M))
    )
    assert_close(a, b)


@pytest.mark.parametrize("shift", ["matrix", "diagonal"])
def test_the_ascent_of_fed_robust_raises_the_loss(shift: Shift) -> None:
    """If the model hardly moves, shifted inputs raise every device's loss, and more so with a smaller penalty."""

    def rise(penalty: float) -> Tensor:
        clients = clients_of(MODEL, DEVICES)
        state, _ = rounds(baselines.fedrobust(1e-9, penalty, shift_eta=0.1, shift=shift), clients, T=60)
        drawn = [clients.batch(step, clients.draw(None)) for step in range(60)]  # almost all of the devices' samples
        x, y = (torch.cat(parts, dim=1) for parts in zip(*drawn, strict=True))
        bend, offset, inputs = state.objective["bend"], state.objective["offset"], x.flatten(2)
        bent = inputs @ bend.mT if shift == "matrix" else inputs * bend[:, None]
        before, after = (
            clients.site.forward(state.theta, z, y)[0] for z in (x, x + (bent + offset[:, None]).view_as(x))
        )
        return after - before

    weak, strong = rise(0.05), rise(0.5)
    assert (weak > strong).all() and (strong > 0).all() and float(weak.mean()) > 0.05


# ---- the choice of clients


def test_every_device_takes_part_as_often_as_any_other() -> None:
    at = draws()
    seen = torch.zeros(K)
    for t in range(1000):
        devices = at(t).draw(3)
        assert devices.tolist() == sorted(set(devices.tolist())) and len(devices) == 3
        assert torch.equal(devices, at(t).draw(3))
        seen[devices] += 1
    assert (seen / 1000 - 3 / K).abs().max() < 4 * math.sqrt(3 / K * (1 - 3 / K) / 1000)
    assert any(not torch.equal(at(t).draw(3), at(t).draw(3, Stream.ASKED_CLIENTS)) for t in range(3))
    assert at(0).draw(None).tolist() == at(0).draw(K).tolist() == list(range(K))


def test_divergence_of_drfa_is_reported() -> None:
    with pytest.raises(Diverged, match=r"^diverged in round \d+: the (weight|loss|model) of device \d is not finite"):
        drdsgd.train(**options(algorithm=baselines.drfa(lambda t: 1e12), model=models.mlp((6,), 3, [8]), rounds=30))


def test_drfa_draws_devices_with_probability_lambda() -> None:
    at, dual = draws(), torch.tensor([0.0, 0.1, 0.4, 0.0, 0.3, 0.2, 0.0], dtype=torch.float64)
    often = torch.zeros(K, dtype=torch.float64)
    for t in range(1000):
        devices, times = at(t).draw_by(dual, 5)
        assert devices.tolist() == sorted(set(devices.tolist())) and times.sum() == 5
        often[devices] += times
    often /= 5000
    assert (often[dual == 0] == 0).all()
    assert ((often - dual).abs() <= 4 * (dual * (1 - dual) / 5000).sqrt()).all()


def test_drfa_takes_its_snapshot_after_any_step() -> None:
    at = draws()
    steps = torch.bincount(torch.tensor([at(t).draw_step(4) for t in range(1000)]), minlength=5)
    assert steps[0] == 0 and (steps[1:] - 250).abs().max() < 60
    assert {at(t).draw_step(1) for t in range(20)} == {1}


def test_draws_depend_on_the_seed() -> None:
    sets = set()
    for seed in (0, 1, 2**40):
        clients = clients_of(MODEL, DEVICES)
        clients.site.batches.seed = seed
        sets.add(tuple(tuple(replace(clients, t=t).draw(3).tolist()) for t in range(9)))
    assert len(sets) == 3


# ---- what is sent

SENT: dict[str, Callable[[int], int]] = {  # by m clients in a round
    "FedAvg": lambda m: m * 2 * D,
    "FedTERM": lambda m: m * (2 * D + 1),
    "q-FedAvg": lambda m: m * (2 * D + 1),
    "RFA": lambda m: m * (2 * D + 4 * (2 * D + 1)),
    "AFL": lambda m: K * (2 * D + 1),
    "Ditto": lambda m: m * 2 * D,
    "FedRobust": lambda m: m * 2 * D,
    "FedRobust, diagonal": lambda m: m * 2 * D,
}


@pytest.mark.parametrize("m", [None, M])
@pytest.mark.parametrize("tau", [1, TAU])
@pytest.mark.parametrize("method", METHODS)
def test_floats_sent_are_those_of_the_rule(method: str, tau: int, m: int | None) -> None:
    _, infos = rounds(METHODS[method][0](local_steps=tau, clients=m), clients_of(MODEL, DEVICES), T=6)
    last = [draws()(t).draw_step(tau) == tau for t in range(6)]
    assert all(last) == (tau == 1) and any(last)
    for info, at_the_end in zip(infos, last, strict=True):
        if method == "DRFA":  # a device drawn twice gets one model; a snapshot of the last step is not another model
            drawn = int((info.weight > 0).sum())
            assert info.floats_sent == drawn * (D + 1 + (D if at_the_end else 2 * D)) + (m or K) * (D + 1)
        else:
            assert info.floats_sent == SENT[method](m or K)


# ---- in a run


def options(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    defaults = {
        "model": models.logistic((6,), 3),
        "devices": data.synthetic(K, features=6, classes=3, samples=20, test_samples=9),
        "graph": graphs.ring(K),
        "algorithm": baselines.fedavg(0.2),
        "rounds": 6,
        "batch_size": B,
        "eval_every": 3,
    }
    return {**defaults, **changes}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumes_from_a_checkpoint_exactly(method: str, tmp_path: Path) -> None:
    algorithm = METHODS[method][0](local_steps=2, clients=M)
    whole, here = [], SingleProcess(K)
    for progress in drdsgd.trajectory(**options(algorithm=algorithm)):
        checkpoint.save(tmp_path / f"{progress.state.t}", progress, here)
        whole.append(progress)
    for t in (0, 2, 5):
        *_, last = drdsgd.trajectory(**options(algorithm=algorithm, start=checkpoint.load(tmp_path / f"{t}", here)))
        assert last.metrics is not None and whole[-1].metrics is not None
        before, after = whole[-1].state, last.state
        assert torch.equal(after.theta, before.theta) and after.t == before.t
        for a, b in ((after.objective, before.objective), (after.optimizer, before.optimizer)):
            assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
            assert all(len(value) in (1, K) for value in a.values())
        assert last.floats_sent == whole[-1].floats_sent > 0
        assert last.metrics.consensus == whole[-1].metrics.consensus


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str) -> None:
    result = drdsgd.train(**options(algorithm=METHODS[method][0](local_steps=2, clients=5), rounds=60, eval_every=20))
    assert result.final.train_loss < result.metrics[0].train_loss
    assert result.final.consensus.average > result.metrics[0].consensus.average + 5
    assert [m.round for m in result.metrics] == [0, 20, 40, 60]


def test_the_common_model_is_the_servers() -> None:
    """AFL returns the averaged iterate, Ditto its server's model: neither is the mean of the devices' models."""
    for algorithm in (baselines.afl(0.2), baselines.ditto(0.2)):
        last = list(drdsgd.trajectory(**options(algorithm=algorithm)))[-1]
        result = drdsgd.train(**options(algorithm=algorithm))
        common = algorithm.common(last.state)
        assert torch.equal(parameters_to_vector(result.model.parameters()), common)
        assert not torch.allclose(common, last.state.theta.mean(dim=0))
        x = options()["devices"].test.x
        right = 100 * (result.model(x).argmax(dim=1) == options()["devices"].test.y).double().mean()
        assert float(right) == pytest.approx(result.final.consensus.average)
        apart = (last.state.theta - common).double().square().sum(dim=1).mean()
        assert result.final.consensus_distance == pytest.approx(float(apart), rel=1e-5) and apart > 0


def test_the_start_is_evaluated_like_everything_else() -> None:
    """At round 0: one model, every device's loss on the first batch, and the weights of the first round."""
    seen = list(drdsgd.trajectory(**options(algorithm=baselines.fed_term(0.2, tilt=5.0))))
    assert seen[0].metrics is not None and seen[0].metrics.consensus_distance == 0.0 and seen[0].floats_sent == 0
    gossip = next(iter(drdsgd.trajectory(**options(algorithm=drdsgd.dsgd(0.2)))))
    assert gossip.metrics is not None and seen[0].metrics.train_loss == gossip.metrics.train_loss
    *_, first = drdsgd.trajectory(**options(algorithm=baselines.fed_term(0.2, tilt=5.0), rounds=1))
    assert first.metrics is not None and seen[0].metrics.weights == first.metrics.weights != [1.0] * K


def test_the_graph_only_counts_devices() -> None:
    a, b = (drdsgd.train(**options(graph=graph)) for graph in (graphs.ring(K), graphs.complete(K)))
    assert torch.equal(a.theta, b.theta) and a.final.floats_sent == b.final.floats_sent == 6 * K * 2 * 21


@pytest.mark.parametrize("method", ["FedAvg", "DRFA", "Ditto", "FedRobust"])
def test_threads_and_convolutions(method: str) -> None:
    """With looped devices, which do not use vmap, two threads give the same result as one."""
    torch.manual_seed(0)
    pairs = [(torch.rand(5, 1, 8, 8), torch.randint(0, 3, (5,))) for _ in range(K)]
    model = models.cnn((1, 8, 8), 3, channels=(2, 2, 2), hidden=(5, 4)).double()
    devices = data.from_pairs(pairs, pairs, classes=3)
    algorithm = METHODS[method][0](local_steps=2, clients=M)
    ways: list[tuple[int, Literal["auto", "batched"]]] = [(1, "auto"), (2, "auto"), (2, "batched")]
    runs = [
        drdsgd.train(model, devices, graphs.ring(K), algorithm, rounds=3, batch_size=B, threads=n, execution=way)
        for n, way in ways
    ]
    for run in runs[1:]:
        assert_close(run.theta, runs[0].theta)


def test_divergence_names_the_device_that_diverged() -> None:
    """Also if only some devices take part."""
    devices = data.synthetic(K, features=6, classes=3, samples=20, test_samples=9)
    with pytest.raises(Diverged, match=r"loss of device \d .*FedAvg.*smaller eta") as caught:
        drdsgd.train(
            **options(
                devices=devices, algorithm=baselines.fedavg(lambda t: 1e38, clients=2), model=models.mlp((6,), 3, [8])
            )
        )
    assert "\n" not in str(caught.value)
    clients = clients_of(MODEL, DEVICES)
    info = clients.info(torch.tensor([2, 4]), torch.tensor([1.0, math.nan]), torch.tensor([0.5, 0.5]).double())
    assert info.loss.isnan().tolist() == [False] * 4 + [True] + [False] * 2
    assert info.weight.tolist() == [0, 0, K / 2, 0, K / 2, 0, 0]


# arguments of undeclared types
WRONG: dict[str, dict[str, Any]] = {"local_steps": {"local_steps": 2.5}, "shift": {"shift": "affine"}}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: baselines.fedavg(0.0), "eta=0.0: input should be greater than 0"),
        (lambda: baselines.fedavg(0.1, local_steps=0), "local_steps=0: input should be greater than or equal to 1"),
        (lambda: baselines.fedavg(0.1, clients=0), "clients=0: input should be greater than or equal to 1"),
        (lambda: baselines.fed_term(0.1, tilt=-1.0), "tilt=-1.0: input should be greater than 0"),
        (lambda: baselines.q_fedavg(0.1, q=-1.0), "q=-1.0: input should be greater than or equal to 0"),
        (lambda: baselines.q_fedavg(0.1, q=math.nan), "q=nan: input should be a finite number"),
        (lambda: baselines.rfa(0.1, iterations=0), "iterations=0: input should be greater than or equal to 1"),
        (lambda: baselines.rfa(0.1, nu=0.0), "nu=0.0: input should be greater than 0"),
        (lambda: baselines.afl(0.1, dual_eta=0.0), "dual_eta=0.0: input should be greater than 0"),
        (lambda: baselines.drfa(0.1, **WRONG["local_steps"]), "local_steps=2.5: input should be a valid integer"),
        (lambda: baselines.ditto(0.1, pull=-0.1), "pull=-0.1: input should be greater than or equal to 0"),
        (lambda: baselines.fedrobust(0.1, shift_penalty=0.0), "shift_penalty=0.0: input should be greater than 0"),
        (
            lambda: baselines.fedrobust(0.1, shift_penalty=100.0),
            "shift_eta=0.01: times shift_penalty=100.0 it must be below 1",
        ),
        (lambda: baselines.fedrobust(0.1, **WRONG["shift"]), "shift='affine': input should be 'matrix' or 'diagonal'"),
        (
            lambda: drdsgd.train(**options(algorithm=baselines.fedavg(0.1, clients=8))),
            "clients is 8, but .* 7 devices",
        ),
        (lambda: drdsgd.train(**options(algorithm=baselines.drfa(0.1, clients=8))), "clients is 8, but .* 7 devices"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)
