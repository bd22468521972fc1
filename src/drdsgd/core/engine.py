"""Engines: the only thing that crosses devices.

An engine knows which devices (rows of theta) live in this process, and mixes. Nothing else in the package knows
where a device lives. `Ranks` are the processes that share the devices, and what they tell each other besides gossip,
for evaluations and checkpoints.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from drdsgd.core.compression import Compressor
from drdsgd.core.parallel import Each
from drdsgd.errors import Diverged
from drdsgd.topology.mixing import Mixing

__all__ = ["Engine", "Mix", "Ranks"]


class Mix(Protocol):
    """One round's gossip: `mix(x [n, ...]) -> W_t x`, for this process's rows.

    With `donate` the caller has no more use for x, and its memory may be used again.
    """

    t: int
    floats_sent: int
    """Numbers, as large as those of a model, sent over all links of the whole network so far in this round."""

    @property
    def bytes_sent(self) -> int:
        """What this process has sent to others so far in this round."""
        ...

    exchange_seconds: float
    """How long this process was busy with that."""

    repeats: int
    """How often a round gossips, with the same W_t."""

    isolated: Tensor
    """Which of this process's devices hear nobody in this round, [n]."""

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor: ...

    def log_mean(self, x: Tensor, /) -> Tensor:
        """`log(W_t exp(x))` for x [n]: means of numbers that are beyond the floats themselves."""
        ...

    def compressed(self, x: Tensor, compressor: Compressor, number: int, /) -> tuple[Tensor, Tensor]:
        """`Q(x)` and `W_t Q(x)` for x [n, d], of which only Q(x) travels, as the compressor encodes it.

        W_t once, however often a round gossips: what comes of it is to be compressed again by who asks, with another
        `number`, from which the compressor draws what it draws.
        """
        ...


class Engine(Protocol):
    """Which of the K devices live here (`rows` [n]), and their gossip: `mix(t)` for round t."""

    K: int

    @property
    def rows(self) -> Tensor: ...

    def mix(self, t: int) -> Mix: ...


class Ranks(Protocol):
    """The processes that share the K devices; this one is number `rank` of `size`, and hosts `rows` [n]."""

    rank: int
    size: int
    K: int

    @property
    def rows(self) -> Tensor: ...

    def engine(self, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each) -> Engine: ...

    def gather(self, x: Tensor) -> Tensor:
        """What all processes have of their devices, x [n, ...], as [K, ...]."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes of x, of any shape."""
        ...

    def texts(self, text: str) -> list[str]:
        """What every process says."""
        ...

    def earliest(self, found: Diverged | None) -> Diverged | None:
        """What any of the processes has found, the earliest round and then the lowest device."""
        ...
