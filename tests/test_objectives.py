"""Weights are the paper's: limits in mu, eq. 4 = eq. 5, safe in the log domain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.graphs import ring
from drdsgd.mixing import metropolis
from drdsgd.objectives import Objective, erm, kl_dro

LOSSES = st.lists(st.floats(0, 20), min_size=3, max_size=8).map(lambda v: torch.tensor(v, dtype=torch.float64))


def weights(objective: Objective, loss: Tensor, share: Tensor | None = None) -> Tensor:
    mix = LocalEngine(metropolis(ring(len(loss))), loss.dtype).mix(0)
    state = objective.init(torch.ones_like(loss) if share is None else share)
    weight, after = objective.weigh(loss, state, mix)
    assert set(after) == set(state)
    return weight


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


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf])
def test_mu_must_be_positive(mu: float) -> None:
    with pytest.raises(InputError, match="mu must be a positive number"):
        kl_dro(mu)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_loss_clip_must_be_positive(clip: float) -> None:
    with pytest.raises(InputError, match="loss_clip must be a positive number"):
        kl_dro(1.0, clip)
