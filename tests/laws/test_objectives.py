"""Laws of every objective: its weights solve the problem that it names, and are safe on the way there.

A new objective is a new row of OBJECTIVES: the objective, and the limit of its weights for constant losses, computed
by another method. Every row is also tested within `smoothed`, `clipped` and `capped`. The error of a gossiped
normaliser is measured and bounded here, so a change that makes it larger fails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import block_diag, csr_array
from torch import Tensor

from drdsgd.core.objectives import (
    NEWEST,
    LocalDevices,
    Objective,
    ObjectiveState,
    Weights,
    ad_gda,
    capped,
    chi2_dro,
    clipped,
    erm,
    kl_ball,
    kl_dro,
    project_on_simplex,
    q_ffl,
    smoothed,
    term,
)
from drdsgd.core.schedules import linear
from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.topology.graphs import complete, erdos_renyi, ring
from drdsgd.topology.mixing import Mixing, local_steps, metropolis, metropolis_matrix
from tests.laws.objectives import (
    BASE,
    BETA,
    CAP,
    CLIP,
    LARGEST_SHARE,
    OBJECTIVES,
    SCHEDULE_ENDS,
    Row,
    at_most_K,
    chi2_limit,
    dual_maximiser,
    everyone,
    kl,
    softmax,
)

every = pytest.mark.parametrize("row", OBJECTIVES.values(), ids=OBJECTIVES.keys())
base = pytest.mark.parametrize("row", BASE.values(), ids=BASE.keys())


# -------------------------------------------------------------------- how they are run


def copied(state: ObjectiveState) -> ObjectiveState:
    return {name: value.clone() for name, value in state.items()}


def weights_over(
    objective: Objective, mixing: Mixing, losses: Iterable[Tensor], hosted: LocalDevices
) -> Iterator[tuple[Tensor, ObjectiveState]]:
    """The weights and the state after each round; the state's names, shapes and types stay the same."""
    engine = LocalEngine(mixing, hosted.share.dtype)
    state = copied(objective.init(hosted))
    like = {name: (value.shape, value.dtype) for name, value in state.items()}
    assert all(shape[0] == len(hosted.share) for shape, _ in like.values())
    for t, loss in enumerate(losses):
        weight = objective.weigh(loss.clone(), state, t).clone()
        state = objective.combine(state, engine.mix(t))
        assert {name: (value.shape, value.dtype) for name, value in state.items()} == like
        assert weight.shape == loss.shape and weight.dtype == loss.dtype
        yield weight, state


def last(steps: Iterable[tuple[Tensor, ObjectiveState]]) -> tuple[Tensor, ObjectiveState]:
    *_, end = steps
    return end


# every loss with every reference: spread out, with ties, with zeros and one maximum, all equal
FEW = 5
LOSSES_OF_A_NETWORK = np.array(
    [[0.3, 1.0, 1.4, 1.4, 2.0], [0.0, 0.2, 0.2, 0.1, 1.9], [0.7, 0.7, 0.7, 0.7, 0.7], [1.0, 1.05, 0.9, 0.8, 1.1]]
)
REFERENCES = np.array([[0.2, 0.2, 0.2, 0.2, 0.2], [0.1, 0.15, 0.2, 0.25, 0.3]])
CASES = list(itertools.product(LOSSES_OF_A_NETWORK, REFERENCES))


def in_the_end(row: Row) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(losses, reference, weights) of complete networks with constant losses, after convergence.

    All networks run at once, as one network without links between them.
    """
    W = csr_array(block_diag([np.full((FEW, FEW), 1 / FEW)] * len(CASES)))
    f = torch.as_tensor(np.concatenate([f for f, _ in CASES]))
    share = torch.as_tensor(np.concatenate([FEW * p for _, p in CASES]))
    hosted = LocalDevices(share, torch.arange(FEW).repeat(len(CASES)), FEW)
    before = torch.zeros_like(f)
    steps = weights_over(row.objective, Mixing(len(f), lambda t: W, static=True), itertools.repeat(f, 3000), hosted)
    for t, (weight, _) in enumerate(steps):
        if t > SCHEDULE_ENDS and float((weight - before).abs().max()) < 1e-10:
            break
        before = weight
    found = weight.view(-1, FEW).numpy()
    return [(f, p, w) for (f, p), w in zip(CASES, found, strict=True)]


# ---------------------------------------------------------------------------- the laws


@every
def test_constant_losses_get_the_weights_of_the_problem(row: Row) -> None:
    """On the complete graph the limit is the solution of the inner problem, computed by another method."""
    for f, p, found in in_the_end(row):
        assert found == pytest.approx(row.limit(f, p), rel=1e-6, abs=1e-7), (f, p)
        if row.by_share and (f == f[0]).all():  # equal losses: shares, or shares times one number
            assert np.ptp(found / p) < 1e-9 * found.max() / p.min()
            assert (found / p).mean() == pytest.approx(FEW) or not row.mean_is_one
        assert found.mean() == pytest.approx(1, abs=1e-6) or not row.mean_is_one
        # a larger loss has no smaller weight
        for i, j in itertools.permutations(range(FEW), 2):
            if f[i] >= f[j] and (row.by_share or p[i] == p[j]):
                assert found[i] / p[i] >= found[j] / p[j] - 1e-9


@base
def test_the_first_rounds_weights(row: Row) -> None:
    """If weights depend on the others' losses, which are not known yet, they are the shares or a uniform mixture."""
    share = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    weight = weights(row.objective, torch.linspace(0.1, 3.0, 6, dtype=torch.float64), share)
    if row.mean_is_one:
        assert torch.allclose(weight, share if row.by_share else torch.ones_like(share), rtol=1e-12)
    else:
        assert not torch.allclose(weight, share)


def any_losses(most: float) -> st.SearchStrategy[list[list[float]]]:
    sizes = st.sampled_from([0.0, 1e-30, 1e-3, 1.0, most]) | st.floats(0, 20) | st.floats(0, most)
    return st.lists(st.lists(sizes, min_size=6, max_size=6), min_size=2, max_size=5)


@every
@settings(max_examples=12)
@given(any_losses(1e30), st.sampled_from([torch.float32, torch.float64]))
@example([[1e30, 0, 0, 0, 0, 0], [0, 1e30, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1e30, 1, 1e30, 0, 0, 1e30]], torch.float32)
def test_weights_are_safe_for_any_losses(row: Row, losses: list[list[float]], dtype: torch.dtype) -> None:
    """Weights are never negative or nan, and are bounded unless the exact weights are not."""
    share = torch.linspace(0.5, LARGEST_SHARE, 6, dtype=dtype)
    rounds = [torch.tensor(loss, dtype=dtype) for loss in [*losses, losses[0]]]
    for weight, _ in weights_over(row.objective, metropolis(ring(6)), rounds, everyone(share)):
        assert (weight >= 0).all()
        if row.most is not None:
            assert (weight <= 1.000001 * row.most(6)).all()


@every
def test_a_loss_that_is_no_number_is_for_the_round_to_refuse(row: Row) -> None:
    """The run ends with a message that names the device; computing the weights raises nothing."""
    for loss in ([1.0, math.inf, 2.0], [1.0, math.nan, 2.0]):
        steps = weights_over(row.objective, metropolis(ring(3)), [torch.tensor(loss)] * 2, everyone(torch.ones(3)))
        assert len(list(steps)) == 2


def noise(K: int, T: int, seed: int = 0, scale: float = 2.0) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.as_tensor(rng.uniform(0, scale, size=K)) for _ in range(T)]


@every
def test_devices_weigh_alone(row: Row) -> None:
    """Row by row and in place: for some of the devices at a time, or if only some of them are in this process."""
    K, share = 9, torch.linspace(0.2, 1.8, 9, dtype=torch.float64)
    hosted, parts = everyone(share), [slice(0, 4), slice(4, 5), slice(5, 9)]
    engine, objective = LocalEngine(metropolis(erdos_renyi(K, 0.4, seed=1)), torch.float64), row.objective
    whole, blocks = copied(objective.init(hosted)), copied(objective.init(hosted))
    for some in parts:
        part = objective.init(LocalDevices(share[some], hosted.rows[some], K))
        assert part.keys() == whole.keys()
        assert all(torch.equal(part[n].nan_to_num(), whole[n][some].nan_to_num()) for n in part)
    for t, loss in enumerate(noise(K, 6)):
        expected = objective.weigh(loss, whole, t)
        rows = [{name: value[some] for name, value in blocks.items()} for some in parts]
        found = torch.cat([objective.weigh(loss[some], own, t) for some, own in zip(parts, rows, strict=True)])
        assert torch.allclose(found, expected, rtol=1e-14, atol=0)
        whole, blocks = objective.combine(whole, engine.mix(t)), objective.combine(blocks, engine.mix(t))
        assert all(torch.allclose(blocks[n], whole[n], rtol=1e-13, atol=1e-14) for n in whole)


@every
def test_losses_and_shares_are_left_as_they_are(row: Row) -> None:
    share, losses = torch.linspace(0.5, 1.5, 6, dtype=torch.float64), noise(6, 4)
    kept, state = share.clone(), row.objective.init(everyone(share))
    for t, loss in enumerate(losses):
        row.objective.weigh(loss, state, t)
        state = row.objective.combine(state, LocalEngine(metropolis(ring(6)), torch.float64).mix(t))
    assert torch.equal(share, kept) and torch.equal(state["share"], kept)
    assert all(torch.equal(loss, again) for loss, again in zip(losses, noise(6, 4), strict=True))


FLOATS = {"kl normalised": 1, "kl normalised, mu falls": 1, "term": 1, "q-ffl": 1, "kl ball": 3, "chi2": 1, "ad-gda": 8}


@every
def test_it_sends_the_stated_count_of_numbers(row: Row) -> None:
    """It sends the stated count of numbers over every link, and none if weights need only the own loss."""
    name = next(name for name, other in OBJECTIVES.items() if other is row).split(", smo")[0]
    name = name.removesuffix(", clipped").removesuffix(", capped")
    state, mix = (
        row.objective.init(everyone(torch.ones(8))),
        LocalEngine(metropolis(ring(8)), torch.float32).mix(0),
    )
    row.objective.weigh(torch.ones(8), state, 0)
    row.objective.combine(state, mix)
    assert mix.floats_sent == 2 * 8 * FLOATS.get(name, 0)


@base
def test_wrappers_are_what_they_say(row: Row) -> None:
    """In every round: the objective applied to another loss, or its weights with a bound."""
    share, losses = torch.linspace(0.5, 1.5, 6, dtype=torch.float64), noise(6, 12, scale=3.0)
    u = losses[:1]
    for loss in losses[1:]:
        u.append((1 - BETA) * u[-1] + BETA * loss)

    def found(objective: Objective, given: list[Tensor]) -> Tensor:
        return torch.stack([w for w, _ in weights_over(objective, metropolis(ring(6)), given, everyone(share))])

    plain = found(row.objective, losses)
    assert torch.allclose(found(smoothed(row.objective, BETA), losses), found(row.objective, u), rtol=1e-10)
    assert torch.equal(found(smoothed(row.objective, 1.0), losses), plain)
    clamped = [loss.clamp(max=CLIP) for loss in losses]
    assert torch.equal(found(clipped(row.objective, CLIP), losses), found(row.objective, clamped))
    bounded = found(capped(row.objective, CAP), losses)
    assert (bounded <= CAP * share).all()
    if row.with_cap is None:
        assert torch.equal(bounded, torch.minimum(plain, CAP * share))
    else:  # the others share what the cap takes away
        assert bounded.mean() > torch.minimum(plain, CAP * share).mean()
    # so this test could fail
    assert (plain > CAP * share).any() or (plain / share).max() < CAP
    assert row is BASE["erm"] or not torch.allclose(found(row.objective, clamped), plain)


JUMPY = {
    "kl normalised": kl_dro(0.01, weights="normalized"),
    "term": term(100.0),
    "kl ball": kl_ball(3.0, mu=0.02, least_mu=0.01),
    "chi2": chi2_dro(0.01),
    "q-ffl": q_ffl(100.0),
    "ad-gda": ad_gda(dual_eta=1.0, dual_penalty=0.01),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", JUMPY)
def test_weights_never_overflow(name: str, dtype: torch.dtype) -> None:
    """mu = 0.01 and losses that jump between 0 and 100, so h is up to exp(10000): weights are finite and bounded."""
    graph, rng = erdos_renyi(25, 0.3, seed=0), np.random.default_rng(0)
    losses = [torch.as_tensor(rng.choice([0.0, 1.0, 50.0, 100.0], size=25), dtype=dtype) for _ in range(60)]
    hosted = everyone(torch.ones(25, dtype=dtype))
    found = torch.stack([w for w, _ in weights_over(JUMPY[name], metropolis(graph), losses, hosted)])
    assert found.dtype == dtype and found.isfinite().all()
    assert (found >= 0).all() and 5 < float(found.max()) <= 25
    if "level" not in JUMPY[name].init(hosted) and "dual" not in JUMPY[name].init(hosted):
        # the normaliser is at least b W_ii times the device's own h
        assert (found <= 1.01 / (NEWEST * torch.as_tensor(metropolis_matrix(graph).diagonal(), dtype=dtype))).all()


def test_weights_as_written_overflow() -> None:
    assert weights(kl_dro(0.01), torch.tensor([0.0, 1.0, 100.0])).isinf().any()


# --------------------------------------------------------------------- the paper's: kl_dro

LOSSES = st.lists(st.floats(0, 20), min_size=3, max_size=8).map(lambda v: torch.tensor(v, dtype=torch.float64))


def weights(objective: Objective, loss: Tensor, share: Tensor | None = None) -> Tensor:
    """The weights of the first round."""
    state = objective.init(everyone(torch.ones_like(loss) if share is None else share))
    return objective.weigh(loss, state, 0)


@given(LOSSES, st.floats(0.5, 50))
def test_without_mu_is_mu_times_as_written(loss: Tensor, mu: float) -> None:
    both = [weights(clipped(kl_dro(mu, kind), 15.0), loss) for kind in ("without-mu", "as-written")]
    assert torch.allclose(both[0], mu * both[1], rtol=1e-12)


@given(LOSSES, st.floats(0.5, 50))
def test_kl_dro_is_h_over_mu(loss: Tensor, mu: float) -> None:
    expected = [math.exp(value / mu) / mu for value in loss.tolist()]
    assert weights(kl_dro(mu), loss).tolist() == pytest.approx(expected, rel=1e-12)


@given(LOSSES)
def test_mu_times_weight_goes_to_one(loss: Tensor) -> None:
    """mu -> infinity is average risk."""
    assert (1e9 * weights(kl_dro(1e9), loss)).tolist() == pytest.approx(weights(erm(), loss).tolist(), abs=1e-7)


@given(LOSSES, st.floats(0.5, 10), st.floats(0.1, 25))
def test_clip_bounds_the_loss_in_h_only(loss: Tensor, mu: float, clip: float) -> None:
    assert torch.equal(weights(clipped(kl_dro(mu), clip), loss), weights(kl_dro(mu), loss.clamp(max=clip)))


@given(LOSSES, st.floats(0.2, 10), st.integers(0, 2**32 - 1))
def test_eq_6_equals_eq_7_at_the_maximising_lambda(loss: Tensor, mu: float, seed: int) -> None:
    """max over lambda of sum lambda f - mu KL(lambda | p) is mu log sum p exp(f / mu), at lambda ~ p exp(f / mu).

    The maximising lambda is the normalised weight, so the weights solve the paper's inner problem, also for a
    non-uniform reference p.
    """
    rng = np.random.default_rng(seed)
    f, K = loss.numpy(), len(loss)
    p = rng.dirichlet(np.full(K, 5.0))

    def eq6(lam: np.ndarray) -> float:
        positive = lam > 0
        return float(lam @ f - mu * (lam[positive] * np.log(lam[positive] / p[positive])).sum())

    eq7 = mu * (np.log(p) + f / mu).max() + mu * np.log(np.exp(np.log(p) + f / mu - (np.log(p) + f / mu).max()).sum())
    weight = weights(kl_dro(mu), loss, share=torch.as_tensor(K * p))
    best = (weight / weight.sum()).numpy()
    assert eq6(best) == pytest.approx(eq7, rel=1e-9, abs=1e-9)
    for lam in rng.dirichlet(np.ones(K), size=20):
        assert eq6(lam) <= eq7 + 1e-9


def test_a_weight_overflows_only_where_it_is_itself_too_large() -> None:
    # h = exp(89) overflows float32, h / mu = exp(89) / 1e4 does not
    huge = weights(kl_dro(1e4), torch.full((3,), 89e4, dtype=torch.float32))
    assert huge.isfinite().all() and float(huge[0]) == pytest.approx(math.exp(89) / 1e4, rel=1e-3)
    assert weights(kl_dro(1.0), torch.full((3,), 90.0)).isinf().all()


@pytest.mark.parametrize("kind", get_args(get_args(Weights)[0]))
def test_mu_may_change_over_rounds(kind: Weights) -> None:
    """In round t it is kl_dro(mu_t)."""
    schedule = linear(3.0, 5, end=0.1)
    changing, engine = kl_dro(schedule, weights=kind), LocalEngine(metropolis(ring(6)), torch.float64)
    state = changing.init(everyone(torch.ones(6, dtype=torch.float64)))
    for t, loss in enumerate(noise(6, 8)):
        after = []
        for objective in (changing, kl_dro(schedule(t), weights=kind), kl_dro(3.0, weights=kind)):
            own = copied(state)
            weight = objective.weigh(loss, own, t)
            after.append({**objective.combine(own, engine.mix(t)), "weight of this round": weight})
        assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])
        assert t == 0 or not all(torch.allclose(after[0][name], after[2][name]) for name in after[0])
        state = {name: after[0][name] for name in state}


# ------------------------------------------------------------------------ normalised


def gossiped(graph: nx.Graph, losses: Iterable[Tensor], mu: float, share: Tensor | None = None) -> Iterator[Tensor]:
    """The normalised weights of each round."""
    losses, K = list(losses), graph.number_of_nodes()
    hosted = everyone(torch.ones(K, dtype=losses[0].dtype) if share is None else share)
    for weight, _ in weights_over(kl_dro(mu, weights="normalized"), metropolis(graph), losses, hosted):
        yield weight


def softmax_weights(loss: Tensor, mu: float, share: Tensor | None = None) -> Tensor:
    """K p_i h_i / sum_j p_j h_j."""
    log_share = 0 if share is None else share.log()
    return len(loss) * torch.softmax(loss / mu + log_share, dim=0)


@pytest.mark.parametrize(
    "make", [lambda: kl_dro(0.5, weights="normalized"), lambda: chi2_dro(1.0), lambda: kl_ball(0.1)]
)
def test_rounds_without_gossip_leave_estimates_as_they_are(make: Callable[[], Objective]) -> None:
    """Else a device would compare itself with itself, and all weights would become 1."""
    loss = torch.linspace(0, 2, 9, dtype=torch.float64)
    hosted, ring_of_9 = everyone(torch.ones(9, dtype=torch.float64)), metropolis(ring(9))
    *_, (always, _) = weights_over(make(), ring_of_9, [loss] * 21, hosted)
    *_, (now_and_then, _) = weights_over(make(), local_steps(ring_of_9, 5), [loss] * 101, hosted)
    assert torch.allclose(now_and_then, always, rtol=1e-9)
    assert float(always.max() - always.min()) > 0.2


@given(LOSSES, st.floats(0.01, 50), st.integers(0, 2**32 - 1))
def test_on_the_complete_graph_constant_losses_get_their_softmax_weights(loss: Tensor, mu: float, seed: int) -> None:
    """From the second round on, for any reference, so their mean is 1; in the first round no device knows others."""
    share = torch.as_tensor(len(loss) * np.random.default_rng(seed).dirichlet(np.full(len(loss), 5.0)))
    first, *rest = gossiped(complete(len(loss)), [loss] * 4, mu, share)
    assert torch.equal(first, share)
    for weight in rest:
        assert torch.allclose(weight, softmax_weights(loss, mu, share), rtol=1e-9, atol=1e-300)
        assert float(weight.mean()) == pytest.approx(1, rel=1e-9)


@given(LOSSES, st.floats(0.01, 50), st.integers(0, 2**32 - 1))
def test_on_the_complete_graph_the_error_is_the_lag(loss: Tensor, mu: float, seed: int) -> None:
    """The normaliser is the moving average of the true ones, so all weights of a round are off by a common factor.

    They use all devices' losses of the round before, and none is above K.
    """
    rng, K = np.random.default_rng(seed), len(loss)
    losses = [loss * float(factor) for factor in rng.uniform(0.5, 1.5, size=6)]
    log_true = [torch.logsumexp(each / mu, 0) - math.log(K) for each in losses]
    _, *found = gossiped(complete(K), losses, mu)
    average = log_true[0]
    for t, weight in enumerate(found):
        if t:
            average = torch.logaddexp(average + math.log(1 - NEWEST), log_true[t] + math.log(NEWEST))
        expected = torch.exp(losses[t] / mu - average)
        assert torch.allclose(weight, expected.clamp(max=K), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("graph", [ring(9), erdos_renyi(25, 0.3, seed=0)], ids=["ring", "erdos-renyi"])
def test_on_other_graphs_constant_losses_get_those_of_a_neighbourhood(graph: nx.Graph) -> None:
    """In the limit m = b (I - (1 - b) W)^-1 W h: each m_i is a weighted mean of all h, and their mean is right."""
    K = graph.number_of_nodes()
    loss = torch.linspace(0, 2, K, dtype=torch.float64)
    h, W = (loss / 0.7).exp(), torch.as_tensor(metropolis_matrix(graph).toarray())
    eye = torch.eye(K, dtype=torch.float64)
    m = NEWEST * torch.linalg.solve(eye - (1 - NEWEST) * W, W @ h)
    *_, weight = gossiped(graph, [loss] * 200, 0.7)
    assert torch.allclose(weight, h / m, rtol=1e-12)
    assert float((h / weight).mean()) == pytest.approx(float(h.mean()), rel=1e-12)
    assert float(weight.mean()) == pytest.approx(1, abs=0.15)
    assert float((weight - softmax_weights(loss, 0.7)).abs().max()) > 0.01  # so it is not exact


def training_losses(K: int, T: int, seed: int) -> list[Tensor]:
    """Losses as in training: different between devices, falling over rounds, with mini-batch noise."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(0.5, 2.5, size=K)
    means = [0.3 + first * math.exp(-t / 100) for t in range(T)]
    return [torch.as_tensor(mean * np.exp(0.1 * rng.standard_normal(K))) for mean in means]


@pytest.mark.parametrize(
    ("mu", "error", "of_this_round", "mean"),
    [
        (6.0, (0.0060, 0.0070), (0.0150, 0.0164), (0.9977, 0.9981)),
        (2.0, (0.0184, 0.0206), (0.0460, 0.0493), (0.9918, 0.9931)),
        (1.0, (0.037, 0.041), (0.093, 0.100), (0.980, 0.983)),
        (0.5, (0.077, 0.087), (0.190, 0.202), (0.947, 0.953)),
        (0.1, (0.37, 0.43), (0.70, 0.74), (0.62, 0.68)),
        # from here on weights are almost 0, so the error is as large as the exact weights
        (0.03, (0.88, 0.97), (0.99, 1.03), (0.04, 0.14)),
        (0.01, (0.99, 1.01), (0.99, 1.01), (0.003, 0.008)),
    ],
)
def test_the_error_of_the_gossiped_normaliser(
    mu: float, error: tuple[float, float], of_this_round: tuple[float, float], mean: tuple[float, float]
) -> None:
    """Mean distance from the exact weights, which have mean 1, over devices and 300 rounds on ER(25, 0.3).

    First against the exact weights for the losses that were used, those of the round before. Then against those for
    this round's losses, which differ mostly by mini-batch noise. Then the mean weight, which is below 1 because m lags
    behind falling losses.
    """
    for seed in (0, 1, 2):
        losses = training_losses(25, 300, seed)
        found = torch.stack(list(gossiped(erdos_renyi(25, 0.3, seed=seed), losses, mu)))[1:]
        exact = torch.stack([softmax_weights(loss, mu) for loss in losses])
        assert error[0] < float((found - exact[:-1]).abs().mean()) < error[1]
        assert of_this_round[0] < float((found - exact[1:]).abs().mean()) < of_this_round[1]
        assert mean[0] < float(found.mean()) < mean[1]
        # and they order the devices in the same way
        alike = [float(torch.corrcoef(torch.stack(both))[0, 1]) for both in zip(found, exact[:-1], strict=True)]
        assert sum(alike) / len(alike) > 0.95


@pytest.mark.parametrize("fall", [0.0, 0.1, 0.3, 0.36, 1.0])
def test_losses_may_fall_by_a_third_of_mu_in_a_round(fall: float) -> None:
    """m falls at most by the factor 1 - b = 0.7 = exp(-0.357): if losses fall faster, weights vanish.

    All losses are equal, so exact weights are 1. If they fall by fall mu, m / h <- 0.7 exp(fall) m / h + 0.3.
    """
    losses = [torch.full((4,), 100.0 - fall * 0.02 * t, dtype=torch.float64) for t in range(300)]
    *_, weight = gossiped(complete(4), losses, 0.02)
    left = (1 - (1 - NEWEST) * math.exp(fall)) / NEWEST  # the fixed point of h / m, if there is one
    assert weight.tolist() == pytest.approx([max(0.0, left)] * 4, abs=0.03)


@pytest.mark.parametrize(
    ("objective", "rounds"),
    [(kl_dro(6.0, weights="normalized"), 299 / 6), (kl_dro(3.0, weights="normalized"), 299 / 3), (term(1.0), 299.0)],
    ids=["mu = 6", "mu = 3", "mu = 1"],
)
def test_one_loss_that_is_far_off_holds_all_up_unless_weights_are_capped(objective: Objective, rounds: float) -> None:
    """One device has a loss of 300 in one round; all other losses are 1, so exact weights are 1 otherwise."""
    losses = [torch.ones(25, dtype=torch.float64) for _ in range(200)]
    losses[20][3] = 300.0
    mixing, hosted = metropolis(erdos_renyi(25, 0.3, seed=0)), everyone(torch.ones(25, dtype=torch.float64))
    free, held = (
        torch.stack([w for w, _ in weights_over(one, mixing, losses, hosted)]).mean(dim=1)
        for one in (objective, capped(objective, 3.0))
    )
    expected = min(rounds / -math.log(1 - NEWEST), 200 - 22)
    assert int((free < 0.1).sum()) == pytest.approx(expected, abs=30)
    assert float(held.min()) > 0.5 and (held[40:] - 1).abs().max() < 0.01


SMALL_MU: dict[str, tuple[Objective, float, float]] = {  # with bounds on the mean weight
    "alone": (kl_dro(0.01, weights="normalized"), 0.0, 0.01),
    "smoothed": (smoothed(kl_dro(0.01, weights="normalized"), 0.03), 0.0, 0.01),
    "capped": (capped(kl_dro(0.01, weights="normalized"), 2.0), 0.0, 0.01),
    "ten times as large": (kl_dro(0.1, weights="normalized"), 0.6, 0.7),
    "a hundred times as large": (kl_dro(1.0, weights="normalized"), 0.97, 1.0),
    "from 3 on": (kl_dro(linear(3.0, 300, end=0.01 / 3), weights="normalized"), 1.0, 1.06),
    "from 3 on, smoothed and capped": (
        capped(smoothed(kl_dro(linear(3.0, 300, end=0.01 / 3), weights="normalized"), 0.03), 2.0), 1.0, 1.06
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL_MU)
def test_what_helps_where_mu_is_small(name: str) -> None:
    """The guide's fixes for mu = 0.01 help: a larger mu, or a falling mu. Smoothing alone does not."""
    objective, least, most = SMALL_MU[name]
    for seed in (0, 1, 2):
        mixing, hosted = (
            metropolis(erdos_renyi(25, 0.3, seed=seed)),
            everyone(torch.ones(25, dtype=torch.float64)),
        )
        steps = weights_over(objective, mixing, training_losses(25, 300, seed), hosted)
        assert least < float(torch.stack([w for w, _ in steps])[1:].mean()) < most


@pytest.mark.parametrize(
    "objective", [kl_dro(0.1, weights="normalized"), q_ffl(8.0), chi2_dro(0.1)], ids=["kl", "q", "chi2"]
)
def test_a_device_that_is_capped_leaves_the_rest_to_the_others(objective: Objective) -> None:
    """The limit on a sparse graph, where one of 25 devices has six times the others' loss, as with random labels."""
    losses = [0.5 + 0.02 * loss for loss in noise(25, 200)]
    for loss in losses:
        loss[0] = 3.0
    mixing, hosted = metropolis(erdos_renyi(25, 0.3, seed=0)), everyone(torch.ones(25, dtype=torch.float64))
    *_, (free, _) = weights_over(objective, mixing, losses, hosted)
    *_, (bound, _) = weights_over(capped(objective, 3.0), mixing, losses, hosted)
    assert free[1:].mean() < 0.15 and free[0] > 3
    assert float(bound[0]) == 3 and 0.8 < bound[1:].mean() < 1


@pytest.mark.parametrize(
    "objective", [kl_dro(0.1), kl_dro(0.1, weights="normalized"), chi2_dro(0.1)], ids=["local", "kl", "chi2"]
)
@pytest.mark.parametrize("between", [lambda one: one, lambda one: smoothed(one, 0.5)], ids=["", "smoothed"])
def test_of_two_caps_the_lower_counts(objective: Objective, between: Callable[[Objective], Objective]) -> None:
    losses = [loss * torch.arange(25) / 5 for loss in noise(25, 60)]
    mixing, hosted = metropolis(erdos_renyi(25, 0.3, seed=0)), everyone(torch.ones(25, dtype=torch.float64))

    def last_weight(one: Objective) -> Tensor:
        return last(weights_over(one, mixing, losses, hosted))[0]

    alone = last_weight(between(capped(objective, 2.0)))
    assert float(alone.max()) == 2 < float(last_weight(between(capped(objective, 5.0))).max())
    for inner, outer in ((2.0, 5.0), (5.0, 2.0)):
        assert torch.equal(last_weight(capped(between(capped(objective, inner)), outer)), alone)


def unequal(K: int, seed: int) -> Tensor:
    """Shares of devices that count by samples: from a tenth of the average to about three times the average."""
    return torch.as_tensor(K * np.random.default_rng(seed).dirichlet(np.full(K, 2.0)))


@pytest.mark.parametrize(
    ("mu", "error"),
    [(6.0, (0.05, 0.11)), (2.0, (0.055, 0.12)), (1.0, (0.07, 0.135)), (0.5, (0.12, 0.17)), (0.1, (0.40, 0.48))],
)
def test_the_error_where_devices_count_by_unequal_numbers_of_samples(mu: float, error: tuple[float, float]) -> None:
    """As above, with shares: m is a neighbourhood's mean of s h, so for large mu most of the error comes from s."""
    for seed in (0, 1, 2):
        losses, share = training_losses(25, 300, seed), unequal(25, seed)
        found = torch.stack(list(gossiped(erdos_renyi(25, 0.3, seed=seed), losses, mu, share)))[1:]
        exact = torch.stack([softmax_weights(loss, mu, share) for loss in losses[:-1]])
        assert error[0] < float((found - exact).abs().mean()) < error[1]


def test_equal_losses_get_shares_only_where_shares_are_equal_or_the_graph_is_complete() -> None:
    """On a ring, devices with small neighbours get more: 0.79 to 1.29 of their share. Not if all shares are 1."""
    losses = [torch.full((10,), 0.7, dtype=torch.float64)] * 200
    share = unequal(10, seed=1)
    *_, on_a_ring = gossiped(ring(10), losses, 1.0, share)
    assert float((on_a_ring / share).min()) == pytest.approx(0.79, abs=0.01)
    assert float((on_a_ring / share).max()) == pytest.approx(1.29, abs=0.01)
    *_, complete_graph = gossiped(complete(10), losses, 1.0, share)
    assert torch.allclose(complete_graph, share, rtol=1e-12)
    *_, uniform = gossiped(ring(10), losses, 1.0)  # --reference uniform
    assert torch.allclose(uniform, torch.ones_like(share), rtol=1e-12)


@given(LOSSES)
def test_with_a_large_mu_normalized_weights_are_those_of_average_risk(loss: Tensor) -> None:
    share = torch.linspace(0.5, 1.5, len(loss), dtype=torch.float64)
    *_, weight = gossiped(complete(len(loss)), [loss] * 3, 1e9, share)
    assert weight.tolist() == pytest.approx(weights(erm(), loss, share).tolist(), rel=1e-6)


@given(st.floats(0.05, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_tilted_risk_is_the_papers_with_mu_inverted(t: float, seed: int) -> None:
    hosted, losses = everyone(torch.ones(7, dtype=torch.float64)), noise(7, 5, seed)
    both = [term(t), kl_dro(1 / t, weights="normalized")]
    one, other = ([w for w, _ in weights_over(o, metropolis(ring(7)), losses, hosted)] for o in both)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("graph", [complete(6), ring(6)], ids=["complete", "ring"])
def test_q_is_zero_for_average_risk(graph: nx.Graph, normalized: bool) -> None:
    """For all losses, also zero: the weights are the shares, divided by their gossiped mean if normalised."""
    share = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    losses = [torch.zeros(6, dtype=torch.float64), *noise(6, 80)]
    W, eye = torch.as_tensor(metropolis_matrix(graph).toarray()), torch.eye(6, dtype=torch.float64)
    neighbours = NEWEST * torch.linalg.solve(eye - (1 - NEWEST) * W, W @ share) if normalized else torch.ones(6)
    for given_share, expected in ((share, share / neighbours), (torch.ones_like(share), torch.ones_like(share))):
        first, *_, weight = weights_over(q_ffl(0.0, normalized), metropolis(graph), losses, everyone(given_share))
        assert torch.allclose(first[0], given_share, rtol=1e-12)
        assert torch.allclose(weight[0], expected, rtol=1e-9)
    alike = torch.allclose(share / neighbours, share, rtol=1e-3)
    assert alike == (not normalized or nx.density(graph) == 1)  # so shares alone would be wrong on the ring


# --------------------------------------------------------------------------- kl_ball


def ball(radius: float, f: np.ndarray, p: np.ndarray, least_mu: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """The limits of all devices' weights and mu."""
    objective = kl_ball(radius, mu=0.7, least_mu=least_mu)
    hosted = everyone(torch.as_tensor(len(f) * p))
    weight, state = last(weights_over(objective, metropolis(complete(len(f))), [torch.as_tensor(f)] * 700, hosted))
    return weight.numpy(), state["log_mu"].exp().numpy()


@pytest.mark.parametrize("p", REFERENCES, ids=["uniform", "by samples"])
@pytest.mark.parametrize("radius", [0.02, 0.1, 0.4])
def test_a_radius_that_can_be_reached_is_reached(radius: float, p: np.ndarray) -> None:
    """The weights' divergence is the radius, and mu minimises the dual, mu log sum_i p_i exp(f_i / mu) + mu radius."""
    f = LOSSES_OF_A_NETWORK[0]
    weight, mu = ball(radius, f, p)
    assert kl(weight, p) == pytest.approx(radius, rel=1e-5)
    dual = minimize_scalar(
        lambda mu: mu * np.log((p * np.exp(f / mu)).sum()) + mu * radius, bounds=(0.05, 50), method="bounded"
    )
    assert mu == pytest.approx(np.full(FEW, dual.x), rel=1e-4)
    assert weight == pytest.approx(softmax(float(mu[0]))(f, p), rel=1e-6)
    # no mixture within the radius has a larger loss
    rng, lam = np.random.default_rng(0), weight / FEW
    others = np.concatenate([rng.dirichlet(spread * p, size=100) for spread in (5.0, 20.0, 100.0)])
    others = np.stack([other for other in others if kl(FEW * other, p) <= radius])
    assert len(others) > 30 and (others @ f).max() <= lam @ f + 1e-6


@pytest.mark.parametrize("radius", [0.03, 0.1, 0.3])
def test_on_a_sparse_graph_a_radius_is_reached_about(radius: float) -> None:
    """Every device knows only its neighbourhood's mean, so the weights exceed the radius, and mu is smaller."""
    for seed in (0, 1, 2):
        mixing, hosted = (
            metropolis(erdos_renyi(25, 0.3, seed=seed)),
            everyone(torch.ones(25, dtype=torch.float64)),
        )
        first = torch.as_tensor(np.random.default_rng(seed).uniform(0, 2, size=25))
        constant, falling = ([first * math.exp(-t * rate) for t in range(300)] for rate in (0.0, 0.005))
        for losses in (constant, falling):
            *_, (weight, _) = weights_over(kl_ball(radius), mixing, losses, hosted)
            found = weight.numpy() * 25 / float(weight.sum())
            assert 0.8 * radius < kl(found, np.full(25, 1 / 25)) < 1.8 * radius


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("scale", [0.1, 10.0, 100.0, 1000.0])
def test_a_radius_means_the_same_whatever_the_scale_of_the_loss(scale: float, cap: float | None) -> None:
    """mu starts at 1, so for large losses one device has all the weight at first; then mu adapts to their scale."""
    f, hosted = (
        torch.linspace(0.2, 2.0, 10, dtype=torch.float64),
        everyone(torch.ones(10, dtype=torch.float64)),
    )
    objective = kl_ball(0.1) if cap is None else capped(kl_ball(0.1), cap)
    (_, first), (weight, state) = (
        last(weights_over(objective, metropolis(complete(10)), [f * by] * 300, hosted)) for by in (1.0, scale)
    )
    assert state["log_mu"] == pytest.approx(first["log_mu"] + math.log(scale), rel=1e-3, abs=1e-3)
    assert float(weight.mean()) == pytest.approx(1.0, rel=1e-3)
    assert kl(weight.numpy(), np.full(10, 0.1)) == pytest.approx(0.1, rel=1e-2)


def test_weights_that_vanish_are_no_reason_for_a_smaller_mu() -> None:
    """One huge loss in one round leaves the others almost no weight; this counts as far from the reference too."""
    losses = [torch.linspace(0.2, 2.0, 10, dtype=torch.float64) for _ in range(400)]
    losses[100] = losses[100].clone()
    losses[100][0] = 100.0
    hosted = everyone(torch.ones(10, dtype=torch.float64))
    found = [
        state["log_mu"].mean() for _, state in weights_over(kl_ball(0.1), metropolis(complete(10)), losses, hosted)
    ]
    assert min(found[101:]) > found[99] - 0.05
    assert found[-1] == pytest.approx(found[99], abs=0.01)


def test_where_the_radius_allows_everything_mu_is_the_least() -> None:
    f, p = LOSSES_OF_A_NETWORK[0], REFERENCES[0]
    weight, mu = ball(2.0, f, p, least_mu=0.1)  # log 5 is 1.6
    assert mu == pytest.approx(np.full(FEW, 0.1))
    assert weight == pytest.approx(softmax(0.1)(f, p), rel=1e-6)


# ---------------------------------------------------------------------- chi2 and ad_gda


@pytest.mark.parametrize("mu", [0.2, 1.0, 5.0])
def test_chi2_solves_the_inner_problem(mu: float) -> None:
    """The maximum over lambda of sum lambda f - mu / 2 sum (lambda - p)^2 / p, found by a general solver."""
    for f, p, weight in in_the_end(Row(chi2_dro(mu), chi2_limit(mu), at_most_K)):

        def value(lam: np.ndarray, f: np.ndarray = f, p: np.ndarray = p) -> float:
            return float(-(lam @ f) + mu / 2 * ((lam - p) ** 2 / p).sum())

        found = minimize(
            value, p, method="SLSQP", bounds=[(0, 1)] * FEW, options={"ftol": 1e-13, "maxiter": 300},
            constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1},
        )  # fmt: skip
        assert value(weight / FEW) <= value(found.x) + 1e-9
        assert weight / FEW == pytest.approx(found.x, abs=1e-4)


def test_chi2_knows_the_level_from_the_second_round_on() -> None:
    """On the complete graph, if no weight is 0, the level is the mean of the first losses."""
    hosted, p = everyone(torch.ones(FEW, dtype=torch.float64)), np.full(FEW, 1 / FEW)
    for f in LOSSES_OF_A_NETWORK:
        steps = weights_over(chi2_dro(5.0), metropolis(complete(FEW)), [torch.as_tensor(f)] * 2, hosted)
        assert last(steps)[0].numpy() == pytest.approx(chi2_limit(5.0)(f, p), rel=1e-12)


def test_chi2_comes_to_rest_though_one_device_has_most_of_the_samples() -> None:
    """The level moves by b times the share of the way, which is stable on any graph for shares up to 2 / b = 6.7."""
    graph = erdos_renyi(20, 0.2, seed=1)
    lonely = min(graph, key=graph.degree)
    share = torch.full((20,), (20 - 6.5) / 19, dtype=torch.float64)
    share[lonely] = 6.5
    f = torch.linspace(0.5, 2, 20, dtype=torch.float64)
    *_, before, after = weights_over(chi2_dro(1.0), metropolis(graph), [f] * 300, everyone(share))
    assert torch.allclose(before[0], after[0], rtol=1e-9)
    assert float(after[0].mean()) == pytest.approx(1, abs=1e-9)


def ad_gda_dual(f: np.ndarray, penalty: float, eta: float, graph: nx.Graph, T: int) -> np.ndarray:
    """The mean of all devices' mixtures after T rounds."""
    hosted = everyone(torch.ones(len(f), dtype=torch.float64))
    steps = weights_over(ad_gda(eta, penalty), metropolis(graph), [torch.as_tensor(f)] * T, hosted)
    dual = last(steps)[1]["dual"]
    assert torch.allclose(dual.sum(dim=1), torch.ones(len(f), dtype=torch.float64)) and (dual >= 0).all()
    return np.asarray(dual.mean(dim=0).numpy())


@pytest.mark.parametrize("graph", [complete(FEW), nx.path_graph(FEW)], ids=["complete", "path"])
@pytest.mark.parametrize("penalty", [20.0, 2.0], ids=["inside", "on the edge"])
def test_the_mean_dual_goes_to_the_maximiser(penalty: float, graph: nx.Graph) -> None:
    """It maximises sum lambda f - penalty / 2 ||lambda - p||^2: exactly on the complete graph if all lambda_i > 0.

    Otherwise there is a bias that shrinks with the dual step: devices disagree, and a device whose entry is 0 raises it
    before the others' projections push it back.
    """
    f = LOSSES_OF_A_NETWORK[0]
    best = dual_maximiser(f, np.full(FEW, 1 / FEW), penalty)
    assert (best.min() == 0) == (penalty == 2.0)
    errors = [np.abs(ad_gda_dual(f, penalty, eta, graph, T) - best).max() for eta, T in ((0.1, 300), (0.01, 1000))]
    if penalty == 20.0 and nx.density(graph) == 1:
        assert errors[0] < 1e-9
    else:
        assert 1e-2 < errors[0] < 0.2 and errors[1] < errors[0] / 2.5


def test_ad_gdas_penalty_is_chi_square_only_where_all_count_the_same() -> None:
    """penalty / 2 ||lambda - p||^2 is penalty / (2 K) chi2(lambda | p) for p = 1 / K only."""
    objective, penalty = ad_gda(dual_eta=0.05, dual_penalty=20.0), 20.0
    for f, p, found in in_the_end(Row(objective, lambda f, p: len(f) * dual_maximiser(f, p, penalty), at_most_K)):
        assert found == pytest.approx(FEW * dual_maximiser(f, p, penalty), rel=1e-6)
        by_chi2 = np.allclose(found, chi2_limit(penalty / FEW)(f, p), atol=1e-3)
        assert by_chi2 == bool((p == p[0]).all() or (f == f[0]).all())


def test_with_a_large_dual_step_ad_gdas_weights_are_above_1_on_average() -> None:
    """Every device raises its own entry before its neighbours know: 1.1 for a dual step of 0.01, 6 for 1."""
    mixing, hosted = metropolis(erdos_renyi(25, 0.3, seed=0)), everyone(torch.ones(25, dtype=torch.float64))
    for eta, mean in ((0.01, 1.11), (0.1, 2.05), (1.0, 5.92)):
        steps = weights_over(ad_gda(eta), mixing, training_losses(25, 300, 0), hosted)
        assert float(torch.stack([w for w, _ in steps]).mean()) == pytest.approx(mean, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.lists(st.floats(-5, 5) | st.floats(-1e30, 1e30), min_size=1, max_size=9))
@example([1e30, 1.0, 1.0])
@example([3e7, 0.3, 0.1])
@example([0.0, -2e38, -2e38, -2e38])
@example([0.2, 0.2, 0.6])
def test_projection_on_the_simplex(dtype: torch.dtype, values: list[float]) -> None:
    """max(x - fall, 0), where bisection finds the fall for which the sum is 1, entry by entry."""
    x = torch.tensor([values], dtype=dtype)
    found = project_on_simplex(x)[0]
    assert found.dtype == dtype and (found >= 0).all()
    assert float(found.sum()) == pytest.approx(1, abs=1e-6)
    assert torch.allclose(project_on_simplex(found[None])[0], found, atol=1e-6)
    exact = [value - max(x[0].tolist()) for value in x[0].tolist()]  # a shift changes only the rounding
    low, high = -1.0, 0.0
    for _ in range(80):
        fall = (low + high) / 2
        low, high = (fall, high) if sum(max(0.0, value - fall) for value in exact) > 1 else (low, fall)
    expected = [max(0.0, value - low) for value in exact]
    assert found.tolist() == pytest.approx(expected, abs=1e-6 if dtype == torch.float32 else 1e-12)


def test_projection_by_a_general_solver() -> None:
    rng = np.random.default_rng(0)
    for x in rng.standard_normal((10, 5)):
        found = minimize(
            lambda y, x=x: ((y - x) ** 2).sum(), np.full(5, 0.2), method="SLSQP", bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda y: y.sum() - 1}, options={"ftol": 1e-14},
        )  # fmt: skip
        assert project_on_simplex(torch.as_tensor(x)[None])[0].numpy() == pytest.approx(found.x, abs=1e-6)


# --------------------------------------------------------------------------- refusals


def test_unknown_weights_are_refused() -> None:
    misspelt: Any = "normalised"
    with pytest.raises(
        InputError, match=r"^weights='normalised': input should be 'as-written', 'without-mu' or 'normalized'"
    ):
        kl_dro(2.0, weights=misspelt)


REFUSED: dict[str, Callable[[float], Objective]] = {
    "mu": kl_dro,
    "loss_clip": lambda x: clipped(kl_dro(1.0), x),
    "tilt": term,
    "radius": kl_ball,
    "least_mu": lambda x: kl_ball(0.1, least_mu=x),
    "step": lambda x: kl_ball(0.1, step=x),
    "dual_eta": ad_gda,
    "weight_cap": lambda x: capped(erm(), x),
}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", REFUSED)
def test_what_must_be_positive(name: str, value: float) -> None:
    wrong = (
        "must be a positive number" if name in ("least_mu", "step") else ".*input should be (greater|a finite number)"
    )
    with pytest.raises(InputError, match=f"^{name}.*{wrong}"):
        REFUSED[name](value)


def test_what_else_must_be_in_range() -> None:
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"^q=.*input should be"):
            q_ffl(value)
        with pytest.raises(InputError, match=r"^dual_penalty=.*input should be"):
            ad_gda(0.1, value)
    for value in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(InputError, match=r"^loss_smoothing=.*input should be"):
            smoothed(erm(), value)
    for value in (1.0, 0.5):
        with pytest.raises(InputError, match=f"^weight_cap={value}: must be above 1; "):
            capped(chi2_dro(1.0), value)
    capped(erm(), 0.5)  # the cap may be below 1 if weights do not average to 1
    with pytest.raises(InputError, match=r"^mu=0.0: input should be greater than 0"):
        chi2_dro(0.0)
    with pytest.raises(InputError, match=r"^mu must be a positive number"):
        kl_ball(0.1, mu=-1.0)
