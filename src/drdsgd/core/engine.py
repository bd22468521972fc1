"""Engines: the only part through which devices exchange anything.

An engine knows which devices (rows of theta) live in this process, and mixes. Nothing else in the package knows where a
device lives. `Ranks` are the processes that share the devices, and what they exchange besides gossip: evaluations and
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from drdsgd.core.compression import Compressor
from drdsgd.core.parallel import Each
from drdsgd.errors import Diverged
from drdsgd.topology.mixing import Mixing

__all__ = ["Combine", "Engine", "Mix", "Ranks"]

# theta [n, d], its optimizer's state, a round's gossip -> the next theta and state
Combine = Callable[[Tensor, dict[str, Tensor], "Mix"], tuple[Tensor, dict[str, Tensor]]]


class Mix(Protocol):
    """One round's gossip: `mix(x [n, ...]) -> W_t x`, for this process's rows.

    With `donate` the caller no longer needs x, and its memory may be reused.
    """

    t: int
    floats_sent: int
    """Numbers of a parameter's size sent over all links of the whole network, so far in this round."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent to others so far in this round."""
        ...

    exchange_seconds: float
    """How long this process was busy sending and receiving."""

    repeats: int
    """How many times a round gossips with the same W_t."""

    isolated: Tensor
    """Which of this process's devices have no neighbour in this round, [n]."""

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor: ...

    def by_columns(
        self, combine: Combine, theta: Tensor, state: dict[str, Tensor], together: int | None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`combine(theta, state, mix)`, perhaps for some columns of theta [n, d] and of the state's tensors at a time.

        The number of these columns is a multiple of `together`, except for the last ones; None means all of them.
        """
        ...

    def log_mean(self, x: Tensor, /) -> Tensor:
        """`log(W_t exp(x))` for x [n]: means of numbers that may themselves overflow."""
        ...

    def compressed(self, x: Tensor, hat: Tensor, mixed: Tensor, compressor: Compressor, number: int, /) -> None:
        """`hat <- hat + Q(x - hat)` and `mixed <- mixed + W_t Q(x - hat)`, in place, for tensors [n, d].

        Only Q(x - hat) travels, as the compressor encodes it. W_t is applied once, whatever `repeats` is: the caller
        compresses again for the next time. A random compressor draws from `number`, which the caller changes from call
        to call.
        """
        ...


class Engine(Protocol):
    """Which of the K devices live here (`rows` [n]), and their gossip: `mix(t)` for round t."""

    K: int

    @property
    def rows(self) -> Tensor: ...

    def mix(self, t: int) -> Mix: ...


class Ranks(Protocol):
    """The processes that share the K devices; this one is `rank` of `size`, and hosts the devices `rows` [n]."""

    rank: int
    size: int
    K: int

    @property
    def rows(self) -> Tensor: ...

    def engine(self, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each) -> Engine: ...

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all devices, [K, ...], from each process's x [n, ...]."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """The sum of x, of any shape, over all processes."""
        ...

    def texts(self, text: str) -> list[str]:
        """Every process's text, in order of rank."""
        ...

    def earliest(self, found: Diverged | None) -> Diverged | None:
        """The first divergence that any process found: the earliest round, then the lowest device."""
        ...
