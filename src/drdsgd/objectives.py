"""Objectives: a device's loss -> the weight of its gradient. Robustness enters here and nowhere else.

An objective is a pair of functions. `init(share)` makes its state from the devices' reference weights,
`share [n]` = K p_i, which is 1 for every device when all count the same (`p_i = 1/K`) and n_i / mean n when they
count by samples (`p_i = n_i / n`, eq. 1). `weigh(loss, state, mix)` turns the mini-batch losses [n] into weights
[n]; whatever it must know of other devices it gets through `mix`, and says so by `gossips`.

    min_theta  sum_i p_i f_i(theta)                          erm          weight_i = K p_i
    min_theta  sum_i p_i exp(f_i(theta) / mu)    (eq. 6)     kl_dro       weight_i = K p_i h_i / mu
    min_theta  mu log sum_i p_i exp(f_i / mu)    (eq. 5)     kl_dro       weight_i = K p_i h_i / sum_j p_j h_j

The last two have the same minimisers, those of the worst case over mixtures of devices, held back by the KL
divergence from the reference (eq. 4); their steps differ in length only. See C. Ben Issaid, A. Elgabli and M. Bennis,
"DR-DSGD: A Distributionally Robust Decentralized Learning Algorithm over Graphs", TMLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from drdsgd.errors import InputError
from drdsgd.options import unknown

if TYPE_CHECKING:
    from drdsgd.engines import Mix

__all__ = ["NEWEST", "Objective", "ObjectiveState", "Weights", "erm", "kl_dro"]

ObjectiveState = dict[str, Tensor]
Weights = Literal["as-written", "without-mu", "normalized"]

# How much of the gossiped mean of h is this round's: less would average over more devices of a sparse graph, but lag
# further behind the losses. 0.3 had the smallest error of 0.03, 0.1, 0.3 and 0.5 on ER(25, 0.3), for mu from 0.1 to 6.
NEWEST = 0.3


@dataclass(frozen=True)
class Objective:
    """`init(share [n]) -> state` and `weigh(loss [n], state, mix) -> (weight [n], state)`.

    One that does not gossip works row by row: it may be called for some of the devices at a time.
    """

    init: Callable[[Tensor], ObjectiveState]
    weigh: Callable[[Tensor, ObjectiveState, Mix], tuple[Tensor, ObjectiveState]]
    gossips: bool = False


def erm() -> Objective:
    """Average risk, the objective of DSGD: `weight_i = K p_i` (eq. 1 and 2).

    >>> objective = erm()
    >>> state = objective.init(torch.ones(2))
    >>> objective.weigh(torch.tensor([0.1, 5.0]), state, None)[0]
    tensor([1., 1.])
    """
    return Objective(
        init=lambda share: {"share": share},
        weigh=lambda loss, state, mix: (state["share"], state),
    )


def kl_dro(mu: float, loss_clip: float | None = None, weights: Weights = "as-written") -> Objective:
    """The paper's robust objective (eq. 6): `weight_i = K p_i h_i / mu` with `h_i = exp(loss_i / mu)`.

    `mu -> inf` is average risk, `mu -> 0` the worst case. `loss_clip` bounds the loss inside h (Assumption 4),
    not the gradient: `h_i = exp(min(loss_i, loss_clip) / mu)`. The weight is one exponential of
    `loss / mu - log mu`, so it overflows only where the weight itself is beyond the floats.

    `weights` "without-mu" are K p_i h_i. Those that are "normalized" are K p_i h_i / sum_j p_j h_j, about 1 on average,
    so that steps are as long as those of average risk: the gradient of eq. 5 instead of eq. 6. Every device estimates
    the sum by gossip of one number (see `_normalized`).

    >>> objective = kl_dro(mu=2.0)
    >>> state = objective.init(torch.ones(2))
    >>> objective.weigh(torch.tensor([0.0, 2.0]), state, None)[0]
    tensor([0.5000, 1.3591])
    """
    if not (math.isfinite(mu) and mu > 0):
        raise InputError(f"mu must be a positive number: {mu:g}; the paper uses 2 to 9")
    if loss_clip is not None and not (math.isfinite(loss_clip) and loss_clip > 0):
        raise InputError(f"loss_clip must be a positive number: {loss_clip:g}; log(classes) or more is sensible")

    if weights not in (known := get_args(Weights)):
        raise InputError(f"weights is {weights!r}: {unknown(str(weights), known)}")

    def log_h(loss: Tensor) -> Tensor:
        return (loss if loss_clip is None else loss.clamp(max=loss_clip)) / mu

    if weights == "normalized":
        return _normalized(log_h)
    log_scale = math.log(mu) if weights == "as-written" else 0.0

    def weigh(loss: Tensor, state: ObjectiveState, mix: Mix) -> tuple[Tensor, ObjectiveState]:
        return state["share"] * torch.exp(log_h(loss) - log_scale), state

    return Objective(init=lambda share: {"share": share}, weigh=weigh)


def _normalized(log_h: Callable[[Tensor], Tensor]) -> Objective:
    """`weight_i = s_i h_i / m_i`, s_i = K p_i, where m_i is device i's estimate of sum_j p_j h_j = mean_j s_j h_j.

        m_i <- sum_j W_ij ((1 - b) m_j + b s_j h_j)

    a moving average over rounds and neighbours, b = `NEWEST`, kept and sent as its logarithm: it stays positive, and
    no h is too large for it. As m_i >= W_ii b s_i h_i, no weight exceeds 1 / (b W_ii). The estimate is exact where the
    losses do not change and the graph is complete. Else it lags behind, and it is that of a neighbourhood (some 1 / b
    links wide) rather than of all: with constant losses m tends to b (I - (1 - b) W)^-1 W s h, whose mean is right.
    """

    def init(share: Tensor) -> ObjectiveState:
        # the logarithm of nothing yet: whoever has seen no loss takes its first one whole, not b of it
        return {"share": share, "log_mean": torch.full_like(share, -math.inf)}

    def weigh(loss: Tensor, state: ObjectiveState, mix: Mix) -> tuple[Tensor, ObjectiveState]:
        share, before, now = state["share"], state["log_mean"], state["share"].log() + log_h(loss)
        moved = torch.logaddexp(before + math.log(1 - NEWEST), now + math.log(NEWEST))
        log_mean = mix.log_mean(torch.where(before == -math.inf, now, moved))
        return torch.exp(now - log_mean), {"share": share, "log_mean": log_mean}

    return Objective(init, weigh, gossips=True)
