"""Laws of every gossip optimizer: the algorithm that its authors wrote, its mean path, and the known minimiser.

A new optimizer is a new row of OPTIMIZERS.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import block_diag, csr_array
from torch import Tensor

from drdsgd.core.compression import no_compression, quantized, random_k, top_k
from drdsgd.core.gradients import Gradient
from drdsgd.core.optimizers import (
    GossipOptimizer,
    choco,
    compressed,
    d2,
    dsgd,
    exact_diffusion,
    gradient_tracking,
    gt_adam,
    momentum,
    push,
    quasi_global_momentum,
)
from drdsgd.core.schedules import Schedule, linear
from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.options import gamma_of
from drdsgd.topology import graphs
from drdsgd.topology.mixing import Mixing, link_failures, metropolis, metropolis_matrix, repeated
from tests import reference
from tests.laws.optimizers import GRAPHS, OPTIMIZERS, D, Make, N, changing, directed, drawn
from tests.reference import Plain

rows = pytest.mark.parametrize("name", OPTIMIZERS)


def side_by_side(kinds: list[str]) -> Mixing:
    """Several networks without links between them, in one matrix: one run is a run on each of these graphs."""
    W = csr_array(block_diag([metropolis_matrix(GRAPHS[kind]) for kind in kinds]))
    return Mixing(N * len(kinds), lambda t: W, static=True)


def known(gradient: Tensor, theta: Tensor, decay: float = 0.0) -> Gradient:
    """A gradient that needs no backward pass; all weights are one."""

    def backward(scale: Tensor, into: Tensor) -> None:
        into += scale[:, None] * gradient

    return Gradient(gradient.new_ones(len(gradient)), backward, theta, decay)


def walk(
    optimizer: GossipOptimizer,
    mixing: Mixing,
    gradient: Callable[[Tensor, int], Tensor],
    T: int,
    decay: float = 0.0,
    see: Callable[[Tensor, dict[str, Tensor]], None] = lambda theta, state: None,
) -> Tensor:
    """The models [K, D] after T rounds from zero, with gradient(theta, t) [K, D]."""
    engine = LocalEngine(mixing, torch.float64)
    theta = torch.zeros(mixing.K, D, dtype=torch.float64)
    state = optimizer.init(theta)
    shapes = {name: value.shape for name, value in state.items()}
    for t in range(T):
        optimizer.local(theta, known(gradient(theta, t), theta, decay), state, t)
        theta, state = optimizer.combine(theta, state, engine.mix(t))
        assert {name: value.shape for name, value in state.items()} == shapes
        see(theta, state)
    return theta


class Quadratics:
    """f_i(theta) = (theta - c_i)^T H_i (theta - c_i) / 2 for N devices with different minimisers."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        A = torch.randn(N, D, D, dtype=torch.float64, generator=rng)
        self.H = torch.eye(D, dtype=torch.float64) / 2 + A.mT @ A / (2 * D)
        self.c = torch.randn(N, D, dtype=torch.float64, generator=rng)

    def gradient(self, theta: Tensor, t: int = 0) -> Tensor:
        """The gradients at theta [n N, D], for n copies of the same devices."""
        return torch.einsum("ijk,nik->nij", self.H, theta.view(-1, N, D) - self.c).reshape(-1, D)

    def minimiser(self, decay: float = 0.0) -> Tensor:
        """The minimiser of the mean of all f_i plus decay / 2 ||theta||^2: the ridge solution."""
        H = self.H.mean(dim=0) + decay * torch.eye(D, dtype=torch.float64)
        best: Tensor = torch.linalg.solve(H, (self.H @ self.c[..., None]).mean(dim=0)).squeeze(1)
        return best

    def errors(self, theta: Tensor, decay: float = 0.0) -> list[float]:
        """How far the worst device of each network is from the minimiser."""
        distance = (theta.view(-1, N, D) - self.minimiser(decay)).norm(dim=2)
        return [float(worst) for worst in distance.max(dim=1).values]


def allowed(name: str) -> list[str]:
    """The graphs on which an optimizer works."""

    def works(kind: str) -> bool:
        try:
            OPTIMIZERS[name].make(0.1).check(metropolis(GRAPHS[kind]))
        except InputError:
            return False
        return True

    return [kind for kind in GRAPHS if works(kind)]


def decaying(t: int) -> float:
    return 0.2 / (1 + 0.1 * t)


@rows
def test_reaches_the_minimiser(name: str) -> None:
    """On every graph: exactly, or up to a bias that shrinks with the step size, and to zero if that decays."""
    row, kinds, problem = OPTIMIZERS[name], allowed(name), Quadratics()
    assert len(kinds) >= 3 and (not row.any_graph or kinds == list(GRAPHS))

    def errors(eta: float | Schedule, rounds: int) -> dict[str, float]:
        theta = walk(row.make(eta), side_by_side(kinds), problem.gradient, rounds)
        return dict(zip(kinds, problem.errors(theta), strict=True))

    coarse = errors(0.03, 900)
    if row.exact:
        assert max(coarse.values()) < 1e-9, coarse
        return
    fine, falling = errors(0.006, 900), errors(decaying if row.linear else linear(0.03, 900), 900)
    for kind in kinds:
        if not row.linear:  # steps do not become shorter by themselves
            assert max(fine[kind], falling[kind]) < coarse[kind] / 2 < 1, (kind, coarse, fine, falling)
            assert falling[kind] < 0.1, (kind, falling)  # from 0.47 at the start
        elif kind == "complete" and row.agrees:
            assert coarse[kind] < 1e-9
        else:
            assert 0.01 < coarse[kind] < 1.5, (kind, coarse)
            assert fine[kind] < coarse[kind] / 2.2, (kind, coarse, fine)
            assert falling[kind] < fine[kind] / 2, (kind, fine, falling)


@rows
def test_with_weight_decay_that_is_the_ridge_solution(name: str) -> None:
    """The minimiser of the mean of all f_i plus decay / 2 ||theta||^2; on dense graphs, where the bias is small."""
    row, problem = OPTIMIZERS[name], Quadratics()
    kinds = [kind for kind in allowed(name) if kind in ("complete", "torus")]
    theta = walk(row.make(0.1 if row.exact else decaying), side_by_side(kinds), problem.gradient, 300, decay=1.0)
    assert max(problem.errors(theta, decay=1.0)) < (1e-9 if row.exact else 0.05)
    assert float((problem.minimiser(1.0) - problem.minimiser()).norm()) > 0.2  # so it is not the one without decay


def noisy(K: int, seed: int = 0) -> tuple[Callable[[Tensor, int], Tensor], reference.GradientAt]:
    """Gradients of quadratics that change in every round: for all devices, and for one."""
    rng = torch.Generator().manual_seed(seed)
    H = torch.rand(K, D, dtype=torch.float64, generator=rng) + 0.5
    c = torch.randn(40, K, D, dtype=torch.float64, generator=rng)
    return (lambda theta, t: H * (theta - c[t])), (lambda i, x, t: H[i] * (x - c[t, i]))


def mixings(name: str) -> dict[str, Mixing]:
    """The mixings that an optimizer must work with."""
    every = {kind: metropolis(GRAPHS[kind]) for kind in ("erdos-renyi", "ring", "complete", "star")}
    if OPTIMIZERS[name].any_time:
        every["changing"] = changing(N)
    if name == "push":
        every["directed"] = directed(N)
    return every


@pytest.mark.parametrize(("name", "network"), [(name, network) for name in OPTIMIZERS for network in mixings(name)])
def test_it_is_what_its_authors_wrote(name: str, network: str) -> None:
    """Equal to plain loops, device by device: 30 rounds with a schedule, up to rounding."""
    row, mixing, eta, T = OPTIMIZERS[name], mixings(name)[network], linear(0.3, 40), 30
    together, alone = noisy(N)
    found = walk(row.make(eta), mixing, together, T)
    W = [mixing.at(t).toarray().tolist() for t in range(T)]
    start = [torch.zeros(D, dtype=torch.float64) for _ in range(N)]
    expected = torch.stack(row.plain(start, alone, lambda t: W[t], eta, T))
    assert float((found - expected).norm() / expected.norm()) < 1e-10
    assert float((found - found.mean(dim=0)).norm()) > 1e-3 or (network == "complete" and row.agrees)


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.linear or row.agrees])
def test_the_mean_moves_as_one_device_would(name: str) -> None:
    """Gossip keeps the mean: the mean model moves as one device would with the mean of all gradients.

    Also if W changes, where that is allowed. For an optimizer that is not linear, only if all devices agree.
    """
    row, eta = OPTIMIZERS[name], linear(0.3, 40)
    g = torch.randn(30, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = Mixing(1, lambda t: csr_array(np.ones((1, 1))), static=True)
    expected = walk(row.make(eta), alone, lambda theta, t: g[t].mean(dim=0, keepdim=True), 30)
    for network, mixing in mixings(name).items():
        if not mixing.balanced or not (row.linear or network == "complete"):
            continue  # on a directed graph, the mean of x is kept but not that of x / w
        theta = walk(row.make(eta), mixing, lambda theta, t: g[t], 30)
        assert torch.allclose(theta.mean(dim=0), expected[0], rtol=1e-11, atol=1e-12)
    assert float(expected.norm()) > 0.1


def failing(rate: float) -> Mixing:
    """The mixing of `--link-failures`, on a graph that two failed links disconnect."""
    return link_failures(metropolis(GRAPHS["ring"]), rate, seed=2)


TRACKED = {
    "ring": metropolis(GRAPHS["ring"]),
    "changing": changing(N),
    "0.2 fail": failing(0.2),
    "0.6 fail": failing(0.6),
}


TRACKING: dict[str, GossipOptimizer] = {
    "gradient tracking": gradient_tracking(0.1),
    "gt-adam": gt_adam(0.1),
    "gt-adam, 4 bits": gt_adam(0.1, compression=quantized(4), gamma=1.0),
}


@pytest.mark.parametrize(
    ("name", "network"),
    [(name, network) for name in TRACKING for network in TRACKED if "bits" not in name or TRACKED[network].static],
)
def test_tracked_gradients_sum_to_the_last_ones(name: str, network: str) -> None:
    """For every doubly stochastic W_t: nothing is lost when links fail or change."""
    last = torch.zeros(0)

    def gradient(theta: Tensor, t: int) -> Tensor:
        nonlocal last
        last = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        return last

    def see(theta: Tensor, state: dict[str, Tensor]) -> None:
        y = state["tracked"]
        assert torch.equal(state["gradient"], last)
        assert torch.allclose(y.sum(dim=0), last.sum(dim=0), rtol=0, atol=1e-12)
        assert float((y - last).norm()) > 1e-3  # though no y_i is g_i

    walk(TRACKING[name], TRACKED[network], gradient, 200, see=see)


@pytest.mark.parametrize("name", [name for name, mixing in TRACKED.items() if not mixing.static])
def test_tracking_is_exact_when_links_fail(name: str) -> None:
    problem = Quadratics()
    assert problem.errors(walk(gradient_tracking(0.03), TRACKED[name], problem.gradient, 1800))[0] < 1e-9
    assert problem.errors(walk(dsgd(0.03), TRACKED[name], problem.gradient, 300))[0] > 0.1


@pytest.mark.parametrize("name", ["d2", "exact diffusion", "gradient tracking"])
def test_on_a_ring_of_unlike_devices_it_reaches_the_minimiser_and_dsgd_does_not(name: str) -> None:
    """With 11 devices: the W of a ring of 12 has the eigenvalue -1/3, for which D2 does not work."""
    K, mixing, rng = 11, metropolis(graphs.ring(11)), torch.Generator().manual_seed(5)
    H = torch.rand(K, D, dtype=torch.float64, generator=rng) + 0.5
    c = torch.randn(K, D, dtype=torch.float64, generator=rng)
    best = (H * c).sum(dim=0) / H.sum(dim=0)

    def error(make: Make, eta: float) -> float:
        optimizer = make(eta)
        optimizer.check(mixing)
        theta = walk(optimizer, mixing, lambda theta, t: H * (theta - c), 2000)
        return float((theta - best).norm(dim=1).max())

    assert error(OPTIMIZERS[name].make, 0.1) < 1e-9
    plain = [error(dsgd, eta) for eta in (0.1, 0.05)]
    assert plain[0] > 0.3 and 1.4 < plain[0] / plain[1] < 2.6  # a bias of the order of eta


@pytest.mark.parametrize("network", GRAPHS)
def test_choco_without_compression_and_push_without_direction_are_dsgd(network: str) -> None:
    mixing, (gradient, _) = metropolis(GRAPHS[network]), noisy(N)
    expected = walk(dsgd(linear(0.3, 40)), mixing, gradient, 30)
    for other in (choco(linear(0.3, 40), no_compression(), gamma=1.0), push(linear(0.3, 40))):
        assert torch.allclose(walk(other, mixing, gradient, 30), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("spelled", ["quantize:4", "quantize:2", "top:0.1", "top:0.3", "random:0.1", "random:0.5"])
@pytest.mark.parametrize("graph", [graphs.ring(25), graphs.erdos_renyi(25, 0.3)], ids=["ring", "random"])
def test_gossip_alone_agrees_with_the_gamma_that_compressed_messages_have_by_default(
    graph: nx.Graph, spelled: str
) -> None:
    """And diverges with four times that gamma, if it is at most 1."""
    kind, _, number = spelled.partition(":")
    compressor = {"quantize": lambda: quantized(int(number)), "top": lambda: top_k(float(number))}.get(
        kind, lambda: random_k(float(number))
    )()
    first = torch.randn(25, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def apart(gamma: float) -> float:
        exchange, engine = compressed(compressor, gamma), LocalEngine(metropolis(graph), torch.float64)
        state, theta = exchange.init(torch.zeros_like(first)), first.clone()
        for t in range(300):
            theta = exchange.average(theta, state, engine.mix(t))
        assert torch.allclose(theta.mean(dim=0), first.mean(dim=0), atol=1e-6) or gamma > gamma_of(spelled)
        return float((theta - theta.mean(dim=0)).norm() / (first - first.mean(dim=0)).norm())

    assert apart(gamma_of(spelled)) < 0.3
    if 4 * gamma_of(spelled) <= 1:
        assert not apart(4 * gamma_of(spelled)) < 10


def test_push_reaches_the_minimiser_on_a_directed_graph_and_dsgd_does_not() -> None:
    problem, mixing = Quadratics(), directed(N)
    P = mixing.at(0).toarray()
    assert np.allclose(P.sum(axis=0), 1) and np.abs(P.sum(axis=1) - 1).max() > 0.1
    for T in (150, 700):  # the error goes to zero with the step size, as 1 / T
        (pushed,) = problem.errors(walk(push(decaying), mixing, problem.gradient, T))
        (plain,) = problem.errors(walk(dsgd(decaying), mixing, problem.gradient, T))
        assert 30 / T < pushed < 63 / T and plain > 0.7
    # the total mass is right, but not evenly spread
    masses: list[Tensor] = []
    walk(push(0.1), mixing, problem.gradient, 50, see=lambda theta, state: masses.append(state["mass"]))
    assert all(float(mass.sum()) == pytest.approx(N) for mass in masses)
    assert float(masses[-1].max() / masses[-1].min()) > 1.2


# --------------------------------------------------------------------- refusals


def test_d2_is_refused_where_an_eigenvalue_is_too_small() -> None:
    """Exactly if W has an eigenvalue of -1/3 or less; exact diffusion works there."""
    least = {kind: float(np.linalg.eigvalsh(metropolis_matrix(graph).toarray())[0]) for kind, graph in GRAPHS.items()}
    assert allowed("d2") == [kind for kind in GRAPHS if least[kind] > -1 / 3 + 1e-9]
    assert 0 < len(allowed("d2")) < len(GRAPHS)
    with pytest.raises(InputError, match=r"smallest eigenvalue is above -1/3, and this graph's is -0.333: use exact-d"):
        d2(0.1).check(metropolis(graphs.ring(12)))
    two = np.array([[0.0, 1.0], [1.0, 0.0]])  # least eigenvalue -1
    swap = Mixing(2, lambda t: csr_array(two), static=True)
    with pytest.raises(InputError, match="this graph's is -1"):
        d2(0.1).check(swap)
    # a round that gossips twice uses W^2, which has no negative eigenvalue
    d2(0.1).check(Mixing(2, swap.at, static=True, repeats=2))


def test_d2_really_fails_there() -> None:
    """With a least eigenvalue of -1/2, D2 diverges and exact diffusion does not."""
    problem = Quadratics()
    W = np.kron(np.eye(N // 2), [[0.25, 0.75], [0.75, 0.25]])  # pairs, and weak links between all
    mixing = Mixing(N, lambda t: csr_array(0.9 * W + 0.1 / N), static=True)
    assert problem.errors(walk(d2(0.1), mixing, problem.gradient, 700))[0] > 100
    assert problem.errors(walk(exact_diffusion(0.1), mixing, problem.gradient, 700))[0] < 1e-9


@rows
def test_a_changing_w_is_refused_by_optimizers_that_need_a_constant_one(name: str) -> None:
    row = OPTIMIZERS[name]
    optimizer = row.make(0.1)
    if row.any_time:
        optimizer.check(changing(N))
        return
    method = name.replace(" ", "-") if row.exact else "compression"
    with pytest.raises(InputError, match=rf"^{method} needs the same W in every round, because its state"):
        optimizer.check(changing(N))


@rows
def test_a_directed_graph_is_for_push_alone(name: str) -> None:
    optimizer = OPTIMIZERS[name].make(0.1)
    if name == "push":
        optimizer.check(directed(N))
        return
    with pytest.raises(InputError, match=r"not doubly stochastic.*use optimizer='push', or an undirected graph"):
        optimizer.check(directed(N))


# without 4 bits: the remainder of a message is often exactly between two levels, so the last bit of a float decides
THRICE: dict[str, Plain] = {
    "dsgd": reference.sgd(reference.repeated(reference.as_they_are, 3)),
    "choco": reference.sgd(reference.repeated(reference.as_they_are, 3)),
    "choco, top k": reference.sgd(reference.repeated(reference.compressed(reference.top_k(2), 0.6), 3)),
    "choco, random k": reference.sgd(reference.repeated(reference.compressed(drawn, 0.5), 3)),
    "quasi-global momentum, top k": reference.quasi_global_momentum(
        0.6, reference.repeated(reference.compressed(reference.top_k(2), 0.6), 3)
    ),
}


@pytest.mark.parametrize("network", ["erdos-renyi", "ring", "star"])
@pytest.mark.parametrize("name", THRICE)
def test_what_is_averaged_again_in_a_round_is_compressed_again(name: str, network: str) -> None:
    """Equal to plain loops; and repeated gossip brings models closer together."""
    once, eta, T = metropolis(GRAPHS[network]), linear(0.3, 40), 30
    mixing, optimizer = repeated(once, 3), OPTIMIZERS[name].make(eta)
    optimizer.check(mixing)
    together, alone = noisy(N)
    found = walk(optimizer, mixing, together, T)
    W = once.at(0).toarray().tolist()
    start = [torch.zeros(D, dtype=torch.float64) for _ in range(N)]
    expected = torch.stack(THRICE[name](start, alone, lambda t: W, eta, T))
    assert float((found - expected).norm() / expected.norm()) < 1e-10
    apart, further = (float((x - x.mean(dim=0)).norm()) for x in (found, walk(optimizer, once, together, T)))
    assert apart < 0.8 * further


@pytest.mark.parametrize("eta", [0.0, -0.1, math.nan, math.inf])
@rows
def test_eta_must_be_positive(name: str, eta: float) -> None:
    with pytest.raises(InputError, match=r"^eta=.*: input should be (greater than 0|a finite number) "):
        OPTIMIZERS[name].make(eta)


def test_what_else_must_be_in_range() -> None:
    for beta in (-0.1, 1.0, math.nan):
        for make in (momentum, quasi_global_momentum):
            with pytest.raises(InputError, match=r"^momentum=.*: input should be "):
                make(0.1, beta)
    for gamma in (0.0, 1.1, math.nan):
        with pytest.raises(InputError, match=r"^gamma=.*: input should be "):
            choco(0.1, top_k(0.5), gamma)


# ----------------------------------------------------------------------- gossip


@given(st.sampled_from(sorted(GRAPHS)), st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_gossip_keeps_the_mean(kind: str, seed: int, t: int) -> None:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mixed = LocalEngine(metropolis(GRAPHS[kind]), torch.float64).mix(t)(x)
    assert torch.allclose(mixed.mean(dim=0), x.mean(dim=0), rtol=0, atol=1e-14)


@rows
def test_the_schedule_gets_the_round(name: str) -> None:
    """With step size zero in all rounds but the third, nothing moves before it."""
    moved = [
        float(walk(OPTIMIZERS[name].make(lambda t: 0.1 * (t == 2)), metropolis(GRAPHS["ring"]), noisy(N)[0], T).norm())
        for T in (2, 3)
    ]
    assert moved[0] == 0 and moved[1] > 0.1


def test_where_no_step_is_taken_momentum_learns_nothing() -> None:
    """Quasi-global momentum divides by the step size, and a schedule may end at zero."""
    theta = walk(quasi_global_momentum(linear(0.1, 5)), metropolis(GRAPHS["ring"]), noisy(N)[0], 10)
    assert theta.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_below_the_normal_floats_is_none(dtype: torch.dtype) -> None:
    """There (1 - beta) / eta overflows; a schedule that keeps falling gets there in the end."""
    engine, theta = LocalEngine(metropolis(GRAPHS["ring"]), dtype), torch.randn(N, D, dtype=dtype)
    tiny = torch.finfo(dtype).tiny
    for eta, learns in ((2 * tiny, True), (tiny / 8, False), (5e-324, False)):
        optimizer = quasi_global_momentum(eta, momentum=0.5)
        state = optimizer.init(theta)
        optimizer.local(theta, known(torch.ones_like(theta), theta), state, 0)
        theta, state = optimizer.combine(theta, state, engine.mix(0))
        assert theta.isfinite().all() and bool(state["momentum"].any()) == learns
