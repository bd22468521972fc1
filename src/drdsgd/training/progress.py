"""How far a run has come."""

from __future__ import annotations

from typing import NamedTuple

from drdsgd.core.round import Info, State
from drdsgd.training.metrics import Metrics

__all__ = ["Progress"]


class Progress(NamedTuple):
    """A run after some round: its state, its cost so far, and the metrics if this round was evaluated.

    The next round works in the state's tensors: clone what you want to keep. There may be unused memory between theta's
    rows. `bytes_sent` and `exchange_seconds` belong to this process (see `Info`).
    """

    state: State
    floats_sent: int
    seconds: float
    metrics: Metrics | None
    bytes_sent: int = 0
    exchange_seconds: float = 0.0

    def after(self, state: State, info: Info, seconds: float) -> Progress:
        """The progress after one more round, which took `seconds`; it is not evaluated yet."""
        return Progress(
            state, self.floats_sent + info.floats_sent, self.seconds + seconds, None,
            self.bytes_sent + info.bytes_sent, self.exchange_seconds + info.exchange_seconds,
        )  # fmt: skip
