"""Engines: the only thing that crosses devices.

An engine knows which devices (rows of theta) live in this process, and mixes. Nothing else in the package knows
where a device lives.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from drdsgd.compression import Compressor

__all__ = ["Engine", "Mix"]


class Mix(Protocol):
    """One round's gossip: `mix(x [n, ...]) -> W_t x`, for this process's rows.

    With `donate` the caller has no more use for x, and its memory may be used again.
    """

    t: int
    floats_sent: int
    """Numbers, as large as those of a model, sent over all links of the whole network so far in this round."""

    alone: Tensor
    """Which of this process's devices hear nobody in this round, [n]."""

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor: ...

    def log_mean(self, x: Tensor, /) -> Tensor:
        """`log(W_t exp(x))` for x [n]: means of numbers that are beyond the floats themselves."""
        ...

    def compressed(self, x: Tensor, compressor: Compressor, /) -> tuple[Tensor, Tensor]:
        """`Q(x)` and `W_t Q(x)` for x [n, d], of which only Q(x) travels, as the compressor encodes it."""
        ...


class Engine(Protocol):
    """Which of the K devices live here (`rows` [n]), and their gossip: `mix(t)` for round t."""

    K: int

    @property
    def rows(self) -> Tensor: ...

    def mix(self, t: int) -> Mix: ...
