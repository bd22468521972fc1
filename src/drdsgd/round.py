"""One round of decentralized learning, for every algorithm and every engine.

Whoever reads `make_round` has read the paper's two algorithm boxes: with `erm` it is DSGD (Algorithm 1), with
`kl_dro(mu)` it is DR-DSGD (Algorithm 2).

    theta [n, d]   models of the n devices that live in this process: K of them here, fewer under torchrun, 1 on
                   a real device; no line below knows which
    weight [n]     how much each device's gradient counts: the robust part
    mix            x -> W_t x, the only thing that crosses devices
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from drdsgd.algorithms import Algorithm
from drdsgd.engines import Engine
from drdsgd.flat import LossAndGrad
from drdsgd.objectives import ObjectiveState
from drdsgd.optimizers import OptimizerState

__all__ = ["Info", "Round", "State", "init", "make_round"]


class State(NamedTuple):
    """What the next round needs, and so what a checkpoint holds: models and states after t rounds."""

    t: int
    theta: Tensor
    objective: ObjectiveState
    optimizer: OptimizerState


class Info(NamedTuple):
    """What a person wants to see of a round: mini-batch losses [n], weights [n], numbers sent by all devices."""

    loss: Tensor
    weight: Tensor
    floats_sent: int


Round = Callable[[State], tuple[State, Info]]


def init(algorithm: Algorithm, theta: Tensor, share: Tensor) -> State:
    """The state before the first round: models theta [n, d], reference weights share [n] (`objectives`)."""
    return State(0, theta, algorithm.objective.init(share), algorithm.optimizer.init(theta))


def make_round(
    algorithm: Algorithm,
    loss_and_grad: LossAndGrad,
    batches: Callable[[int], tuple[Tensor, Tensor]],
    engine: Engine,
) -> Round:
    """The function `state -> (state, info)` that takes all devices of this process through one round."""
    objective, optimizer = algorithm.objective, algorithm.optimizer

    def round(state: State) -> tuple[State, Info]:
        mix = engine.mix(state.t)
        g, loss = loss_and_grad(state.theta, *batches(state.t))  # every device, its own batch
        weight, ostate = objective.weigh(loss, state.objective, mix)  # robustness enters only here
        theta, gstate = optimizer.step(state.theta, weight[:, None] * g, state.optimizer, mix)  # gossip only here
        return State(state.t + 1, theta, ostate, gstate), Info(loss, weight, mix.floats_sent)

    return round
