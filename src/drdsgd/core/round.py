"""One round of decentralized learning, for every algorithm and every engine.

`make_round` is both algorithm boxes of the paper: with `erm` it is DSGD (Algorithm 1), with `kl_dro(mu)` it is DR-DSGD
(Algorithm 2). The update is eq. 9, theta_i <- sum_j W_ij (theta_j - eta weight_j g_j).

    theta [n, d]   the models of the n devices in this process: all K in a single process, fewer under torchrun, one on
                   a real device; no line below depends on which
    weight [n]     how much each device's gradient counts
    mix            x -> W_t x, the only exchange between devices
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from drdsgd.core.engine import Engine
from drdsgd.core.flat import aligned
from drdsgd.core.gradients import Forward, Gradient
from drdsgd.core.objectives import LocalDevices, ObjectiveState
from drdsgd.core.optimizers import OptimizerState
from drdsgd.core.parallel import Each

if TYPE_CHECKING:
    from drdsgd.core.algorithms import Algorithm

__all__ = ["Info", "Round", "State", "init", "make_round"]


class State(NamedTuple):
    """The models and states after t rounds: all that the next round needs, and all that a checkpoint saves.

    Every tensor has one row per device. The names in the two dictionaries never change.
    """

    t: int
    theta: Tensor
    objective: ObjectiveState
    optimizer: OptimizerState

    def copy(self) -> State:
        """A separate state: rounds work in the tensors of the one that they get."""
        return State(self.t, aligned(self.theta), *copy.deepcopy((self.objective, self.optimizer)))


class Info(NamedTuple):
    """What a round reports: the mini-batch losses [n], the weights [n], and what was sent."""

    loss: Tensor
    weight: Tensor
    floats_sent: int  # numbers, by all devices of the network
    bytes_sent: int = 0  # by this process, to other processes
    exchange_seconds: float = 0.0  # in which this process sent and received


Round = Callable[[State], tuple[State, Info]]


def init(algorithm: Algorithm, theta: Tensor, hosted: LocalDevices) -> State:
    """The state before the first round, from the models theta [n, d] of the devices in this process."""
    return State(0, theta, algorithm.objective.init(hosted), algorithm.optimizer.init(theta))


def make_round(
    algorithm: Algorithm,
    forward: Forward,
    batches: Callable[[int, slice], tuple[Tensor, Tensor]],
    engine: Engine,
    blocks: Sequence[slice] = (slice(None),),
    each: Each = map,
) -> Round:
    """The function `state -> (state, info)` that runs one round for all devices of this process.

    It overwrites the tensors of the given state: clone those that you want to keep. Devices are computed in `blocks`,
    small enough for the cache, and `each` runs the blocks.
    """
    objective, optimizer, decay = algorithm.objective, algorithm.optimizer, algorithm.weight_decay

    def round(state: State) -> tuple[State, Info]:
        t = state.t

        def on_block(some: slice) -> tuple[Tensor, Tensor]:
            theta = state.theta[some]
            loss, backward = forward(theta, *batches(t, some))  # each device on its own batch
            weight = objective.weigh(loss, _rows(state.objective, some), t)  # robustness enters only here
            gradient = Gradient(weight, backward, theta, decay)
            optimizer.local(theta, gradient, _rows(state.optimizer, some), t)  # changes theta in place
            return loss, weight

        losses, weights = zip(*each(on_block, blocks), strict=True)
        mix = engine.mix(t)  # gossip enters only here
        objective_state = objective.combine(state.objective, mix)
        theta, optimizer_state = mix.by_columns(optimizer.combine, state.theta, state.optimizer, optimizer.together)
        info = Info(torch.cat(losses), torch.cat(weights), mix.floats_sent, mix.bytes_sent, mix.exchange_seconds)
        return State(t + 1, theta, objective_state, optimizer_state), info

    return round


def _rows(state: dict[str, Tensor], some: slice) -> dict[str, Tensor]:
    """The rows of some devices, as views."""
    return {name: value[some] for name, value in state.items()}
