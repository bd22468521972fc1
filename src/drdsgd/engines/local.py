"""All K devices in this process: gossip is one product, `W_t @ x`."""

from __future__ import annotations

import warnings

import torch
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.mixing import Mixing
from drdsgd.parallel import Each, blocks

__all__ = ["LocalEngine", "LocalMix"]

# what is mixed at once: columns of theta, few enough that those of all devices stay in the cache
CACHE_BYTES = 4 * 2**20


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

    def __init__(self, W: Tensor, links: int, t: int, each: Each = map, spare: list[Tensor] | None = None) -> None:
        self.t = t
        self.floats_sent = 0
        self._W, self._links, self._each, self._spare = W, links, each, [] if spare is None else spare

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor:
        rows = x.reshape(len(x), -1)
        self.floats_sent += self._links * rows.shape[1]
        fits = donate and self._spare and self._spare[0].shape == rows.shape and self._spare[0].dtype == rows.dtype
        mixed = self._spare.pop() if fits else torch.empty_like(rows)
        if donate:
            self._spare[:] = [rows]

        def columns(some: slice) -> None:
            if self._W.layout == torch.strided:
                torch.mm(self._W, rows[:, some], out=mixed[:, some])
            else:
                mixed[:, some] = self._W @ rows[:, some]

        on_cpu = rows.device.type == "cpu"
        for _ in self._each(
            columns, blocks(rows.shape[1], CACHE_BYTES // rows[:, 0].nbytes if on_cpu else rows.shape[1])
        ):
            pass
        return mixed.view_as(x)


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
        self._spare: list[Tensor] = []  # memory of the last donated tensor, for the next one: fresh memory costs time
        self._static = self._prepare(mixing.at(0)) if mixing.static else None

    @property
    def rows(self) -> Tensor:
        return torch.arange(self.K, device=self._device)

    def mix(self, t: int) -> LocalMix:
        W, links = self._static or self._prepare(self._mixing.at(t))
        return LocalMix(W, links, t, self._each, self._spare)

    def _prepare(self, W: csr_array) -> tuple[Tensor, int]:
        """W as the tensor whose product is faster, and how many messages it sends (each end of a link sends)."""
        links = W.nnz - int((W.diagonal() != 0).sum())
        if 10 * W.nnz > self.K**2:  # measured on a CPU: above a density of about a tenth the dense product wins
            return torch.as_tensor(W.toarray(), dtype=self._dtype, device=self._device), links
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            sparse = torch.sparse_csr_tensor(
                torch.as_tensor(W.indptr, dtype=torch.int64),
                torch.as_tensor(W.indices, dtype=torch.int64),
                torch.as_tensor(W.data, dtype=self._dtype),
                size=W.shape,
                device=self._device,
                check_invariants=False,  # scipy's rows have them
            )
        return sparse, links
