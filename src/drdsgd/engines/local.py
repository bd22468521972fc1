"""All K devices in this process: gossip is one product, `W_t @ x`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from drdsgd.flat import LINE_BYTES
from drdsgd.mixing import Mixing
from drdsgd.parallel import Each, blocks

__all__ = ["LocalEngine", "LocalMix"]

# What is mixed at once: columns of theta, few enough that those of all devices stay in the cache, but some whole
# lines of it, as memory comes in these.
CACHE_BYTES, LEAST_LINES = 2**20, 4

Product = Callable[[Tensor], Tensor]


class LocalMix:
    """Round t's gossip among all devices: `mix(x [K, ...])` is W_t x.

    >>> import networkx as nx
    >>> from drdsgd.mixing import metropolis
    >>> mix = LocalEngine(metropolis(nx.complete_graph(4)), torch.float32).mix(t=0)
    >>> mix(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    tensor([1.5000, 1.5000, 1.5000, 1.5000])
    >>> mix.floats_sent
    12
    """

    def __init__(self, product: Product, links: int, t: int, each: Each = map) -> None:
        self.t = t
        self.floats_sent = 0
        self._product, self._links, self._each = product, links, each

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor:
        rows = x.reshape(len(x), -1)
        self.floats_sent += self._links * rows.shape[1]
        mixed = rows if donate else torch.empty_like(rows)

        def columns(some: slice) -> None:
            mixed[:, some] = self._product(rows[:, some])

        for _ in self._each(columns, _columns(rows)):
            pass
        return mixed.view_as(x)


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
        product, links = self._static or self._prepare(self._mixing.at(t))
        return LocalMix(product, links, t, self._each)

    def _prepare(self, W: csr_array) -> tuple[Product, int]:
        """`x -> W x` in the way that is faster, and how many messages it sends (each end of a link sends)."""
        links = W.nnz - int((W.diagonal() != 0).sum())
        values = torch.as_tensor(W.data, dtype=self._dtype, device=self._device)
        if 3 * W.nnz > self.K**2:  # measured on a CPU: above a density of about a third the dense product wins
            dense = torch.as_tensor(W.toarray(), dtype=self._dtype, device=self._device)
            return dense.mm, links
        columns = torch.as_tensor(W.indices, dtype=torch.int32, device=self._device)
        ends = torch.as_tensor(W.indptr, dtype=torch.int32, device=self._device)

        def weighted_sums(x: Tensor) -> Tensor:
            # Torch's fastest product with a sparse matrix: a row of W is a "bag" of neighbours. A CSR tensor was
            # measured to take 1.3 times as long (benchmarks/where_time_goes.py).
            return nn.functional.embedding_bag(
                columns, x, ends, mode="sum", per_sample_weights=values, include_last_offset=True
            )

        return weighted_sums, links
