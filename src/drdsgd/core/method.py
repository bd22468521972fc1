"""The interface between a run and an algorithm: the same for gossip and for methods with a server.

A run checks a `Method` and starts it at a `Site`, which gives a `Play`. The training loop, the model card and the
network know an algorithm only through this protocol. `core.algorithms.Algorithm` and `baselines.ServerAlgorithm` fulfil
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.core.composition import Setting
from drdsgd.core.engine import Engine, Ranks
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Execution, Forward, Loss
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.parallel import Each
from drdsgd.core.round import Round, State
from drdsgd.topology.mixing import Mixing

__all__ = ["Batches", "Method", "Play", "Site"]


class Batches(Protocol):
    """The devices' mini-batches: `batches(t, some)` is features [n, B, *shape] and targets [n, B, ...] of round t."""

    seed: int
    dtype: torch.dtype
    """The features' type: integers if the model takes integers."""
    shape: tuple[int, ...]
    """The shape of one sample."""

    def __call__(self, t: int, some: slice | NDArray[np.int64], /) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Site:
    """What a process has for an algorithm: its n devices, their batches, the model as a function, and the engine."""

    hosted: LocalDevices
    batches: Batches
    flat: Flat
    forward: Forward
    loss: Loss
    execution: Execution
    engine: Engine
    parts_of: Callable[[int], Sequence[slice]]
    """Splits a number of devices into blocks that fit into the cache."""
    each: Each
    """Runs the blocks."""


class Play(NamedTuple):
    """An algorithm at a site, ready to run.

    `begin(theta [n, d])` is the state before the first round, `round(state)` is the next state and its `Info`, and
    `first_weights(state, loss [n])` are the weights [n] that the first round gives to these losses.
    """

    begin: Callable[[Tensor], State]
    round: Round
    first_weights: Callable[[State, Tensor], Tensor]


@runtime_checkable
class Method(Protocol):
    """An algorithm, as a run sees it.

    >>> from drdsgd.core.algorithms import dsgd
    >>> isinstance(dsgd(eta=0.1), Method), isinstance("dsgd", Method)
    (True, False)
    """

    @property
    def name(self) -> str:
        """For messages and the model card."""
        ...

    @property
    def eta(self) -> str:
        """The step size in words, for the model card; empty if it is not known."""
        ...

    @property
    def has_server(self) -> bool:
        """Whether devices communicate with a server. Then the graph is not used, and there is one process."""
        ...

    @property
    def cures(self) -> str:
        """What to try if a run diverges."""
        ...

    @property
    def keeps(self) -> str:
        """What a lost message would destroy, in words; empty if the algorithm tolerates lost messages."""
        ...

    @property
    def resolve(self) -> Callable[[Setting], Method] | None:
        """Makes the same algorithm with all defaults resolved, if any depend on the run (see `composition`)."""
        ...

    def over(self, mixing: Mixing) -> Mixing:
        """The mixing with the algorithm's own steps of gossip, several in a round or one in several rounds."""
        ...

    def check(self, mixing: Mixing, processes: int = 1) -> None:
        """Refuse a mixing, or a number of processes, that the algorithm cannot use."""
        ...

    def start(self, site: Site) -> Play:
        """The algorithm for the devices of this process."""
        ...

    def consensus(self, state: State, ranks: Ranks, each: Each = map) -> Tensor:
        """The common model [d]: the server's, or the mean of all devices' models, in all processes."""
        ...
