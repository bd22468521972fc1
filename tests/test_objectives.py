"""Weights are the paper's: limits in mu, eq. 4 = eq. 5, safe in the log domain; also when they are gossiped.

The error of a gossiped normaliser is measured and bounded here: a change that makes it larger is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import get_args

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.graphs import complete, erdos_renyi, ring
from drdsgd.mixing import metropolis, metropolis_matrix
from drdsgd.objectives import NEWEST, Objective, Weights, erm, kl_dro

LOSSES = st.lists(st.floats(0, 20), min_size=3, max_size=8).map(lambda v: torch.tensor(v, dtype=torch.float64))


def weights(objective: Objective, loss: Tensor, share: Tensor | None = None) -> Tensor:
    mix = LocalEngine(metropolis(ring(len(loss))), loss.dtype).mix(0)
    state = objective.init(torch.ones_like(loss) if share is None else share)
    weight, after = objective.weigh(loss, state, mix)
    assert set(after) == set(state)
    return weight


@given(LOSSES, st.floats(0.5, 50))
def test_without_mu_is_mu_times_as_written(loss: Tensor, mu: float) -> None:
    both = [weights(kl_dro(mu, 15.0, kind), loss) for kind in ("without-mu", "as-written")]
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
    assert torch.equal(weights(kl_dro(mu, clip), loss), weights(kl_dro(mu), loss.clamp(max=clip)))


@given(LOSSES, st.floats(0.2, 10), st.integers(0, 2**32 - 1))
def test_eq_4_equals_eq_5_at_the_maximising_lambda(loss: Tensor, mu: float, seed: int) -> None:
    """max over lambda of sum lambda f - mu KL(lambda | p) is mu log sum p exp(f / mu), at lambda ~ p exp(f / mu).

    The maximising lambda is the normalised weight, so the weights solve the paper's inner problem; also for a
    reference p that is not uniform.
    """
    rng = np.random.default_rng(seed)
    f, K = loss.numpy(), len(loss)
    p = rng.dirichlet(np.full(K, 5.0))

    def eq4(lam: np.ndarray) -> float:
        positive = lam > 0
        return float(lam @ f - mu * (lam[positive] * np.log(lam[positive] / p[positive])).sum())

    eq5 = mu * (np.log(p) + f / mu).max() + mu * np.log(np.exp(np.log(p) + f / mu - (np.log(p) + f / mu).max()).sum())
    weight = weights(kl_dro(mu), loss, share=torch.as_tensor(K * p))
    best = (weight / weight.sum()).numpy()
    assert eq4(best) == pytest.approx(eq5, rel=1e-9, abs=1e-9)
    for lam in rng.dirichlet(np.ones(K), size=20):
        assert eq4(lam) <= eq5 + 1e-9


def test_a_weight_overflows_only_where_it_is_itself_too_large() -> None:
    # h = exp(89) is beyond float32, h / mu = exp(89) / 1e4 is not
    huge = weights(kl_dro(1e4), torch.full((3,), 89e4, dtype=torch.float32))
    assert huge.isfinite().all() and float(huge[0]) == pytest.approx(math.exp(89) / 1e4, rel=1e-3)
    assert weights(kl_dro(1.0), torch.full((3,), 90.0)).isinf().all()


# ------------------------------------------------------------------ normalised


def gossiped(graph: nx.Graph, losses: Iterable[Tensor], mu: float, share: Tensor | None = None) -> Iterator[Tensor]:
    """The normalised weights of one round after another."""
    engine, state = None, {}
    objective = kl_dro(mu, weights="normalized")
    for t, loss in enumerate(losses):
        if engine is None:
            engine = LocalEngine(metropolis(graph), loss.dtype)
            state = objective.init(torch.ones_like(loss) if share is None else share)
        weight, after = objective.weigh(loss, state, engine.mix(t))
        assert after.keys() == state.keys() and all(value.shape == loss.shape for value in after.values())
        state = after
        yield weight


def softmax_weights(loss: Tensor, mu: float, share: Tensor | None = None) -> Tensor:
    """K p_i h_i / sum_j p_j h_j."""
    log_share = 0 if share is None else share.log()
    return len(loss) * torch.softmax(loss / mu + log_share, dim=0)


@given(LOSSES, st.floats(0.01, 50), st.integers(0, 2**32 - 1))
def test_on_the_complete_graph_constant_losses_get_their_softmax_weights(loss: Tensor, mu: float, seed: int) -> None:
    """From the first round on, for any reference; so their mean is 1."""
    share = torch.as_tensor(len(loss) * np.random.default_rng(seed).dirichlet(np.full(len(loss), 5.0)))
    for weight in gossiped(complete(len(loss)), [loss] * 4, mu, share):
        assert torch.allclose(weight, softmax_weights(loss, mu, share), rtol=1e-9, atol=1e-300)
        assert float(weight.mean()) == pytest.approx(1, rel=1e-9)


@given(LOSSES, st.floats(0.01, 50), st.integers(0, 2**32 - 1))
def test_on_the_complete_graph_the_error_is_the_lag(loss: Tensor, mu: float, seed: int) -> None:
    """The normaliser is the moving average of the true ones: all weights of a round are off by one common factor."""
    rng = np.random.default_rng(seed)
    losses = [loss * float(factor) for factor in rng.uniform(0.5, 1.5, size=6)]
    log_true = [torch.logsumexp(each / mu, 0) - math.log(len(loss)) for each in losses]
    average = log_true[0]
    for t, weight in enumerate(gossiped(complete(len(loss)), losses, mu)):
        if t:
            average = torch.logaddexp(average + math.log(1 - NEWEST), log_true[t] + math.log(NEWEST))
        expected = softmax_weights(losses[t], mu) * torch.exp(log_true[t] - average)
        assert torch.allclose(weight, expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("graph", [ring(9), erdos_renyi(25, 0.3, seed=0)], ids=["ring", "erdos-renyi"])
def test_on_other_graphs_constant_losses_get_those_of_a_neighbourhood(graph: nx.Graph) -> None:
    """In the limit m = b (I - (1 - b) W)^-1 W h: every device's a weighted mean of all h, and right on average."""
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
    """Losses as in training: unlike over devices, falling over rounds, noisy as those of mini-batches."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(0.5, 2.5, size=K)
    means = [0.3 + first * math.exp(-t / 100) for t in range(T)]
    return [torch.as_tensor(mean * np.exp(0.1 * rng.standard_normal(K))) for mean in means]


@pytest.mark.parametrize(("mu", "error"), [(6.0, 0.01), (2.0, 0.03), (1.0, 0.05), (0.5, 0.1)])
def test_the_error_of_the_gossiped_normaliser(mu: float, error: float) -> None:
    """Mean distance from the exact weights, which are 1 on average, over devices and 300 rounds on ER(25, 0.3)."""
    for seed in (0, 1, 2):
        losses = training_losses(25, 300, seed)
        found = list(gossiped(erdos_renyi(25, 0.3, seed=seed), losses, mu))
        exact = [softmax_weights(loss, mu) for loss in losses]
        off = float(torch.stack([(w - x).abs().mean() for w, x in zip(found, exact, strict=True)]).mean())
        assert 0.1 * error < off < error
        assert float(torch.stack(found).mean()) == pytest.approx(1, abs=error)
        # and they tell the same devices apart
        alike = [float(torch.corrcoef(torch.stack(both))[0, 1]) for both in zip(found, exact, strict=True)]
        assert sum(alike) / len(alike) > 0.95


@given(LOSSES)
def test_with_a_large_mu_normalized_weights_are_those_of_average_risk(loss: Tensor) -> None:
    share = torch.linspace(0.5, 1.5, len(loss), dtype=torch.float64)
    *_, weight = gossiped(complete(len(loss)), [loss] * 3, 1e9, share)
    assert weight.tolist() == pytest.approx(weights(erm(), loss, share).tolist(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalized_weights_never_overflow(dtype: torch.dtype) -> None:
    """mu = 0.01 and losses that jump between 0 and 100, so h is up to exp(10000): every w_i <= 1 / (b W_ii)."""
    graph, rng = erdos_renyi(25, 0.3, seed=0), np.random.default_rng(0)
    losses = [torch.as_tensor(rng.choice([0.0, 1.0, 50.0, 100.0], size=25), dtype=dtype) for _ in range(60)]
    bound = 1 / (NEWEST * torch.as_tensor(metropolis_matrix(graph).diagonal(), dtype=dtype))
    for weight in gossiped(graph, losses, 0.01):
        assert weight.dtype == dtype and weight.isfinite().all()
        assert (weight <= 1.01 * bound).all()
    assert weights(kl_dro(0.01), losses[0]).isinf().any()  # as written they do


def test_only_normalized_weights_gossip() -> None:
    gossips = {kind: kl_dro(2.0, weights=kind).gossips for kind in get_args(Weights)}
    assert gossips == {"as-written": False, "without-mu": False, "normalized": True}


def test_weights_that_are_none() -> None:
    with pytest.raises(InputError, match=r"weights is 'normalised': unknown, did you mean normalized\?"):
        kl_dro(2.0, weights="normalised")  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf])
def test_mu_must_be_positive(mu: float) -> None:
    with pytest.raises(InputError, match="mu must be a positive number"):
        kl_dro(mu)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_loss_clip_must_be_positive(clip: float) -> None:
    with pytest.raises(InputError, match="loss_clip must be a positive number"):
        kl_dro(1.0, clip)
