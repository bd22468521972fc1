"""All K devices in this process: gossip is one product, `W_t @ x`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from drdsgd.compression import Compressor
from drdsgd.flat import LINE_BYTES
from drdsgd.mixing import Mixing
from drdsgd.parallel import Each, blocks

__all__ = ["LocalEngine", "LocalMix"]

# What is mixed at once: columns of theta, few enough that those of all devices stay in the cache, but some whole
# lines of it, as memory comes in these.
CACHE_BYTES, LEAST_LINES = 2**20, 4

Product = Callable[[Tensor], Tensor]


class Prepared(NamedTuple):
    """A matrix W as it is used: `x -> W x`, `x -> log(W exp(x))`, messages, how often, and who hears nobody."""

    product: Product
    log_mean: Product
    links: int
    repeats: int
    alone: Tensor


class LocalMix:
    """Round t's gossip among all devices: `mix(x [K, ...])` is W_t x.

    >>> import networkx as nx
    >>> from drdsgd.mixing import metropolis
    >>> mix = LocalEngine(metropolis(nx.complete_graph(4)), torch.float32).mix(t=0)
    >>> mix(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    tensor([1.5000, 1.5000, 1.5000, 1.5000])
    >>> mix.floats_sent
    12
    >>> mix.log_mean(torch.tensor([1000.0, 1000.0, 0.0, 0.0]))  # 1000 - log 2, where exp(1000) is beyond the floats
    tensor([999.3069, 999.3069, 999.3069, 999.3069])
    """

    def __init__(self, W: Prepared, t: int, each: Each = map) -> None:
        self.t = t
        self.floats_sent = 0
        self.alone = W.alone
        self._W, self._each = W, each

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor:
        rows = x.reshape(len(x), -1)
        if not self._W.links:  # nobody talks in this round
            return x if donate else x.clone()
        self._count(rows.shape[1])
        mixed = rows if donate else torch.empty_like(rows)

        def columns(some: slice) -> None:
            part = rows[:, some]
            for _ in range(self._W.repeats):
                part = self._W.product(part)
            mixed[:, some] = part

        for _ in self._each(columns, _columns(rows)):
            pass
        return mixed.view_as(x)

    def log_mean(self, x: Tensor, /) -> Tensor:
        self._count(1)
        for _ in range(self._W.repeats):
            x = self._W.log_mean(x)
        return x

    def compressed(self, x: Tensor, compressor: Compressor, /) -> tuple[Tensor, Tensor]:
        parts = compressor.encode(x, self.t)
        own = compressor.decode(parts, x.shape[1], self.t)
        # what one device sends; only what is compressed at the start of a round can be, so there is one gossip in it
        before, size = self.floats_sent, -(-sum(part[0].nbytes for part in parts) // x.element_size())
        mixed = self(own)
        self.floats_sent = before + self._W.links * size
        return own, mixed

    def _count(self, numbers: int) -> None:
        self.floats_sent += self._W.links * self._W.repeats * numbers


def _columns(rows: Tensor) -> list[slice]:
    """The columns of rows [K, d] in blocks that are mixed one at a time: on a CPU, whole lines of the cache."""
    if rows.device.type != "cpu":
        return [slice(None)]
    line = LINE_BYTES // rows.element_size()
    most = max(CACHE_BYTES // (LINE_BYTES * len(rows)), LEAST_LINES)
    return [slice(some.start * line, some.stop * line) for some in blocks(-(-rows.shape[1] // line), most)]


class LocalEngine:
    """Hosts every device of the network.

    >>> import networkx as nx
    >>> from drdsgd.mixing import metropolis
    >>> LocalEngine(metropolis(nx.cycle_graph(5)), torch.float32).rows
    tensor([0, 1, 2, 3, 4])
    """

    def __init__(
        self, mixing: Mixing, dtype: torch.dtype, device: torch.device | str = "cpu", each: Each = map
    ) -> None:
        self.K = mixing.K
        self._mixing, self._dtype, self._device, self._each = mixing, dtype, torch.device(device), each
        self._static = self._prepare(mixing.at(0)) if mixing.static else None

    @property
    def rows(self) -> Tensor:
        return torch.arange(self.K, device=self._device)

    def mix(self, t: int) -> LocalMix:
        return LocalMix(self._static or self._prepare(self._mixing.at(t)), t, self._each)

    def _prepare(self, W: csr_array) -> Prepared:
        links = W.nnz - int((W.diagonal() != 0).sum())  # each end of a link sends
        alone = torch.as_tensor(np.diff(W.indptr) == (W.diagonal() != 0), device=self._device)
        values = torch.as_tensor(W.data, dtype=self._dtype, device=self._device)
        columns = torch.as_tensor(W.indices, dtype=torch.int32, device=self._device)
        ends = torch.as_tensor(W.indptr, dtype=torch.int32, device=self._device)

        def log_mean(x: Tensor) -> Tensor:
            terms = values.log() + x[columns]  # one per entry of W, row after row
            # the largest of each row is taken out, not of all: devices may be too far apart for one scale
            top = torch.segment_reduce(terms, "max", offsets=ends)
            top = torch.where(top.isfinite(), top, 0)  # inf - inf is no number
            rest = (terms - top.repeat_interleave(ends.diff())).exp()
            return top + torch.segment_reduce(rest, "sum", offsets=ends).log()

        if 3 * W.nnz > self.K**2:  # measured on a CPU: above a density of about a third the dense product wins
            dense = torch.as_tensor(W.toarray(), dtype=self._dtype, device=self._device)
            return Prepared(dense.mm, log_mean, links, self._mixing.repeats, alone)

        def weighted_sums(x: Tensor) -> Tensor:
            # Torch's fastest product with a sparse matrix: a row of W is a "bag" of neighbours. A CSR tensor was
            # measured to take 1.3 times as long (benchmarks/where_time_goes.py).
            return nn.functional.embedding_bag(
                columns, x, ends, mode="sum", per_sample_weights=values, include_last_offset=True
            )

        return Prepared(weighted_sums, log_mean, links, self._mixing.repeats, alone)
