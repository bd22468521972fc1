"""One round of decentralized learning, for every algorithm and every engine.

Whoever reads `make_round` has read the paper's two algorithm boxes: with `erm` it is DSGD (Algorithm 1), with
`kl_dro(mu)` it is DR-DSGD (Algorithm 2).

    theta [n, d]   models of the n devices that live in this process: K of them here, fewer under torchrun, 1 on
                   a real device; no line below knows which
    weight [n]     how much each device's gradient counts: the robust part
    mix            x -> W_t x, the only thing that crosses devices
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drdsgd.core.algorithms import Algorithm
from drdsgd.core.engine import Engine
from drdsgd.core.gradients import Forward, Gradient
from drdsgd.core.objectives import LocalDevices, ObjectiveState
from drdsgd.core.optimizers import OptimizerState
from drdsgd.core.parallel import Each

__all__ = ["Info", "Round", "State", "init", "make_round"]


class State(NamedTuple):
    """What the next round needs, and so what a checkpoint holds: models and states after t rounds.

    Every tensor has one row per device, and a state keeps the names that `init` gave it.
    """

    t: int
    theta: Tensor
    objective: ObjectiveState
    optimizer: OptimizerState


class Info(NamedTuple):
    """What a person wants to see of a round: mini-batch losses [n], weights [n], numbers sent by all devices.

    And what this process sent to others that host devices, and how long it was busy with that.
    """

    loss: Tensor
    weight: Tensor
    floats_sent: int
    bytes_sent: int = 0
    exchange_seconds: float = 0.0


Round = Callable[[State], tuple[State, Info]]


def init(algorithm: Algorithm, theta: Tensor, hosted: LocalDevices) -> State:
    """The state before the first round: models theta [n, d] of the devices that are hosted here."""
    return State(0, theta, algorithm.objective.init(hosted), algorithm.optimizer.init(theta))


def make_round(
    algorithm: Algorithm,
    forward: Forward,
    batches: Callable[[int, slice], tuple[Tensor, Tensor]],
    engine: Engine,
    blocks: Sequence[slice] = (slice(None),),
    each: Each = map,
) -> Round:
    """The function `state -> (state, info)` that takes all devices of this process through one round.

    It takes the given state over and works in its tensors: clone what you want to keep. `blocks` are devices that
    are worked on together, so that what they need stays in the cache; `each` runs the blocks.
    """
    objective, optimizer, decay = algorithm.objective, algorithm.optimizer, algorithm.weight_decay

    def round(state: State) -> tuple[State, Info]:
        def on_block(some: slice) -> tuple[Tensor, Tensor]:
            theta, ostate, gstate = state.theta[some], _rows(state.objective, some), _rows(state.optimizer, some)
            loss, backward = forward(theta, *batches(state.t, some))  # every device, its own batch
            weight = objective.weigh(loss, ostate, state.t)  # robustness enters only here
            optimizer.local(theta, Gradient(weight, backward, theta, decay), gstate, state.t)  # in place
            return loss, weight

        losses, weights = zip(*each(on_block, blocks), strict=True)
        mix = engine.mix(state.t)  # gossip enters only here
        ostate = objective.combine(state.objective, mix)
        theta, gstate = optimizer.combine(state.theta, state.optimizer, mix)
        after = State(state.t + 1, theta, ostate, gstate)
        return after, Info(torch.cat(losses), torch.cat(weights), mix.floats_sent, mix.bytes_sent, mix.exchange_seconds)

    return round


def _rows(state: dict[str, Tensor], some: slice) -> dict[str, Tensor]:
    """Some devices' rows of a state, as views."""
    return {name: value[some] for name, value in state.items()}
