"""Objectives: a device's loss -> the weight of its gradient. Robustness enters here and nowhere else.

An objective is a pair of functions. `init(share)` makes its state from the devices' reference weights,
`share [n]` = K p_i, which is 1 for every device when all count the same (`p_i = 1/K`) and n_i / mean n when they
count by samples (`p_i = n_i / n`, eq. 1). `weigh(loss, state, mix)` turns the mini-batch losses [n] into weights
[n]; whatever it must know of other devices it gets through `mix`, and says so by `gossips`.

    min_theta  sum_i p_i f_i(theta)                          erm          weight_i = K p_i
    min_theta  sum_i p_i exp(f_i(theta) / mu)    (eq. 6)     kl_dro       weight_i = K p_i h_i / mu

The second has the same minimisers as the worst case over mixtures of devices, held back by the KL divergence
from the reference (eq. 4 = eq. 5); see C. Ben Issaid, A. Elgabli and M. Bennis, "DR-DSGD: A Distributionally
Robust Decentralized Learning Algorithm over Graphs", TMLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drdsgd.errors import InputError

if TYPE_CHECKING:
    from drdsgd.engines import Mix

__all__ = ["Objective", "ObjectiveState", "erm", "kl_dro"]

ObjectiveState = dict[str, Tensor]


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


def kl_dro(mu: float, loss_clip: float | None = None) -> Objective:
    """The paper's robust objective (eq. 6): `weight_i = K p_i h_i / mu` with `h_i = exp(loss_i / mu)`.

    `mu -> inf` is average risk, `mu -> 0` the worst case. `loss_clip` bounds the loss inside h (Assumption 4),
    not the gradient: `h_i = exp(min(loss_i, loss_clip) / mu)`. The weight is one exponential of
    `loss / mu - log mu`, so it overflows only where the weight itself is beyond the floats.

    >>> objective = kl_dro(mu=2.0)
    >>> state = objective.init(torch.ones(2))
    >>> objective.weigh(torch.tensor([0.0, 2.0]), state, None)[0]
    tensor([0.5000, 1.3591])
    """
    if not (math.isfinite(mu) and mu > 0):
        raise InputError(f"mu must be a positive number: {mu:g}; the paper uses 2 to 9")
    if loss_clip is not None and not (math.isfinite(loss_clip) and loss_clip > 0):
        raise InputError(f"loss_clip must be a positive number: {loss_clip:g}; log(classes) or more is sensible")

    def weigh(loss: Tensor, state: ObjectiveState, mix: Mix) -> tuple[Tensor, ObjectiveState]:
        clipped = loss if loss_clip is None else loss.clamp(max=loss_clip)
        return state["share"] * torch.exp(clipped / mu - math.log(mu)), state

    return Objective(init=lambda share: {"share": share}, weigh=weigh)
