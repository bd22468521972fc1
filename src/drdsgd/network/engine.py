"""One device in this process, its neighbours elsewhere: gossip is an exchange of messages over `network.links`.

If a neighbour's numbers do not come, the device adds that neighbour's weight to its own for this exchange, so it always
takes a weighted mean. Nobody sees all devices: a device knows of others only what they sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.core.compression import Compressor
from drdsgd.core.engine import Combine
from drdsgd.core.parallel import Each
from drdsgd.engines.local import SingleProcess
from drdsgd.errors import InputError, named
from drdsgd.network.links import Links
from drdsgd.topology.mixing import Mixing

__all__ = ["NetworkEngine", "NetworkMix", "OneDevice"]


class Row(NamedTuple):
    """A device's row of W: its own weight, its neighbours', and how often W is applied in a round."""

    own: float
    others: dict[int, float]
    repeats: int


class NetworkMix:
    """One device's part in round t's gossip: `mix(x [1, ...])` is its row of W_t x."""

    def __init__(self, row: Row, t: int, links: Links, device: torch.device) -> None:
        self.t, self.repeats = t, row.repeats
        self.floats_sent, self.exchange_seconds = 0, 0.0
        # changed in place, so that a reference taken before an exchange shows its result
        self.isolated = torch.tensor([not row.others], device=device)
        self.disagreement = 0.0
        """`sum_j W_ij |x_i - x_j|^2` in the last exchange of models with at least one neighbour"""
        self._row, self._links, self._call = row, links, 0
        self._before = links.bytes_sent

    @property
    def bytes_sent(self) -> int:
        return self._links.bytes_sent - self._before

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor:
        mixed = x if donate else x.clone()
        for _ in range(self.repeats):
            others = self._exchange(mixed)
            if x.dim() > 1 and others:
                self.disagreement = sum(
                    self._row.others[j] * float(torch.linalg.vector_norm(mixed - other, dtype=torch.float64)) ** 2
                    for j, other in others.items()
                )
            mixed.mul_(self._own_weight(others))
            for j, other in others.items():  # added one by one, without a copy of all
                mixed.add_(other, alpha=self._row.others[j])
        return mixed

    def log_mean(self, x: Tensor, /) -> Tensor:
        for _ in range(self.repeats):
            others = self._exchange(x)
            weights = [self._own_weight(others), *(self._row.others[j] for j in others)]
            terms = torch.stack([x, *others.values()])
            x = torch.logsumexp(terms + terms.new_tensor(weights).log()[:, None], dim=0)
        return x

    def by_columns(
        self, combine: Combine, theta: Tensor, state: dict[str, Tensor], together: int | None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return combine(theta, state, self)

    def compressed(self, x: Tensor, hat: Tensor, mixed: Tensor, compressor: Compressor, number: int, /) -> None:
        raise InputError(
            "compressed messages over a network: a lost message would spoil the copies that neighbours keep of each "
            f"other's models for good; use {named('compression', 'none')}"
        )

    def _own_weight(self, heard: Mapping[int, Tensor]) -> float:
        """Its own weight, with those of the neighbours that were not heard."""
        return self._row.own + sum(weight for j, weight in self._row.others.items() if j not in heard)

    def _exchange(self, x: Tensor) -> Mapping[int, Tensor]:
        """Send x to the neighbours; the numbers of those that were heard."""
        if not self._row.others:
            return {}
        before, begun = self._links.bytes_sent, time.perf_counter()
        found = self._links.exchange(self.t, self._call, x, self._row.others)
        self.exchange_seconds += time.perf_counter() - begun
        self.floats_sent += (self._links.bytes_sent - before) // x.element_size()
        self._call += 1
        self.isolated.fill_(not found)
        return {j: numbers.to(x.device) for j, numbers in found.items()}


class NetworkEngine:
    """Hosts the device `number`."""

    def __init__(self, mixing: Mixing, number: int, links: Links, device: torch.device) -> None:
        self.K, self.rows = mixing.K, torch.tensor([number], device=device)
        self.last: NetworkMix | None = None
        self._mixing, self._number, self._links, self._device = mixing, number, links, device
        self._static = self._row(mixing.at(0)) if mixing.static else None

    def stride(self, rounds: int) -> int:
        """The longest way from one exchange with a neighbour to the next, within the first `rounds` rounds."""
        if self._static is not None:
            return 1
        met: dict[int, list[int]] = {}
        for t in range(rounds):
            for j in self._row(self._mixing.at(t)).others:
                met.setdefault(j, [0]).append(t)
        return max([1, *(later - sooner for some in met.values() for sooner, later in pairwise([*some, rounds]))])

    def mix(self, t: int) -> NetworkMix:
        mix = NetworkMix(self._static or self._row(self._mixing.at(t)), t, self._links, self._device)
        if self.last is not None:
            mix.disagreement = self.last.disagreement
        self.last = mix
        return mix

    def _row(self, W: csr_array) -> Row:
        row = W[[self._number]].tocoo()
        weights = {int(j): float(w) for j, w in zip(row.col, row.data, strict=True) if w != 0}
        own = weights.pop(self._number, 0.0)
        return Row(own, weights, self._mixing.repeats)


class OneDevice(SingleProcess):
    """The process of one device: what it can gather from all devices is its own part."""

    def __init__(self, number: int, links: Links) -> None:
        super().__init__(1)
        self.rows, self._number, self._links = torch.tensor([number]), number, links
        self.made: NetworkEngine | None = None

    @property
    def disagreement(self) -> float:
        """How far the neighbours' models were in the last exchange, see `NetworkMix`; 0 before the first."""
        return self.made.last.disagreement if self.made is not None and self.made.last is not None else 0.0

    def engine(self, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each) -> NetworkEngine:
        self.made = NetworkEngine(mixing, self._number, self._links, device)
        return self.made
