"""Gossip optimizers: weighted gradients -> the next models. Communication enters here, through `mix`.

An optimizer is three functions. `init(theta)` makes its state. `local(theta, gradient, state, t)` is what every
device does alone: it changes its rows of theta [n, d] and of the state in place. `combine(theta, state, mix)` is what
it does with its neighbours; `mix` is this round's gossip, x -> W_t x. A step is one after the other.

The step size is a number or a schedule, `t -> eta_t`, and never anything hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from drdsgd.errors import InputError, whole

if TYPE_CHECKING:
    from drdsgd.engines import Mix
    from drdsgd.gradients import Gradient

__all__ = ["GossipOptimizer", "OptimizerState", "Schedule", "cosine", "dsgd", "exponential", "linear"]

OptimizerState = dict[str, Tensor]
Schedule = Callable[[int], float]


@dataclass(frozen=True)
class GossipOptimizer:
    """`init(theta [n, d]) -> state`, `local(theta, gradient, state, t)`, `combine(theta, state, mix)` -> both anew.

    `local` works in place and row by row: it may be called for some of the devices at a time.
    """

    init: Callable[[Tensor], OptimizerState]
    local: Callable[[Tensor, Gradient, OptimizerState, int], None]
    combine: Callable[[Tensor, OptimizerState, Mix], tuple[Tensor, OptimizerState]]


def dsgd(eta: float | Schedule) -> GossipOptimizer:
    """The paper's step: `theta_i <- sum_j W_ij (theta_j - eta grad_j)`.

    >>> dsgd(eta=-1.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: eta must be a positive number: -1; the paper uses sqrt(K / T)
    """
    schedule = _schedule(eta)
    return GossipOptimizer(
        init=lambda theta: {},
        local=lambda theta, gradient, state, t: gradient.add_to(theta, -schedule(t)),
        combine=lambda theta, state, mix: (mix(theta, donate=True), state),
    )


def linear(eta: float, T: int, end: float = 0.0) -> Schedule:
    """`eta_t` on a straight line from eta at round 0 to `end * eta` at round T.

    >>> [linear(0.4, T=4)(t) for t in range(5)]
    [0.4, 0.3..., 0.2, 0.1, 0.0]
    """
    start, T, end = _positive("eta", eta), whole("T", T), _part(end)
    return lambda t: start * (1 - (1 - end) * min(t / T, 1.0))


def cosine(eta: float, T: int, end: float = 0.0) -> Schedule:
    """`eta_t` on half a cosine from eta at round 0 to `end * eta` at round T.

    >>> [round(cosine(0.4, T=4)(t), 3) for t in range(5)]
    [0.4, 0.341, 0.2, 0.059, 0.0]
    """
    start, T, end = _positive("eta", eta), whole("T", T), _part(end)
    return lambda t: start * (end + (1 - end) * (1 + math.cos(math.pi * min(t / T, 1.0))) / 2)


def exponential(eta: float, decay: float) -> Schedule:
    """`eta_t = eta * decay^t`.

    >>> [exponential(0.8, 0.5)(t) for t in range(3)]
    [0.8, 0.4, 0.2]
    """
    start = _positive("eta", eta)
    if not 0 < decay <= 1:
        raise InputError(f"decay must be in (0, 1]: {decay:g}; 0.99 halves eta in 69 rounds")
    return lambda t: start * decay**t


def _schedule(eta: float | Schedule) -> Schedule:
    if callable(eta):
        return eta
    constant = _positive("eta", eta)
    return lambda t: constant


def _part(end: float) -> float:
    if not 0 <= end <= 1:
        raise InputError(f"end must be a part of eta, in [0, 1]: {end:g}")
    return end


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number: {value:g}; the paper uses sqrt(K / T)")
    return value
