"""All K devices in this process: gossip is one product, `W_t @ x`."""

from __future__ import annotations

import torch
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.core.compression import Compressor
from drdsgd.core.engine import Combine, Engine
from drdsgd.core.parallel import Each, blocks
from drdsgd.engines.products import CACHE_BYTES, COMBINED_BYTES, Prepared, column_blocks, prepare
from drdsgd.errors import Diverged
from drdsgd.topology.mixing import Mixing

__all__ = ["LocalEngine", "LocalMix", "SingleProcess"]


class LocalMix:
    """Round t's gossip among all devices: `mix(x [K, ...])` is W_t x.

    >>> import networkx as nx
    >>> from drdsgd.topology.mixing import metropolis
    >>> mix = LocalEngine(metropolis(nx.complete_graph(4)), torch.float32).mix(t=0)
    >>> mix(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    tensor([1.5000, 1.5000, 1.5000, 1.5000])
    >>> mix.floats_sent
    12
    >>> mix.log_mean(torch.tensor([1000.0, 1000.0, 0.0, 0.0]))  # 1000 - log 2; exp(1000) would overflow
    tensor([999.3069, 999.3069, 999.3069, 999.3069])
    """

    bytes_sent, exchange_seconds = 0, 0.0

    def __init__(self, W: Prepared, t: int, each: Each = map) -> None:
        self.t = t
        self.floats_sent = 0
        self.repeats, self.isolated = W.repeats, W.isolated
        self._W, self._each = W, each

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor:
        rows = x.reshape(len(x), -1)
        if not self._W.links:  # no messages in this round
            return x if donate else x.clone()
        self._count(rows.shape[1])
        return self._multiplied(rows, self.repeats, rows if donate else torch.empty_like(rows)).view_as(x)

    def log_mean(self, x: Tensor, /) -> Tensor:
        self._count(1)
        for _ in range(self.repeats):
            x = self._W.log_mean(x)
        return x

    def by_columns(
        self, combine: Combine, theta: Tensor, state: dict[str, Tensor], together: int | None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if together is None or theta.device.type != "cpu":
            return combine(theta, state, self)

        def on_block(some: slice) -> int:
            """Combine some columns in place, on one thread; the numbers that their messages have."""
            mix = _ColumnsMix(self._W, self.t)
            before = {name: value[:, some] for name, value in state.items()}
            part = theta[:, some]
            mixed, after = combine(part, before, mix)
            for old, new in ((part, mixed), *((before[name], after[name]) for name in before)):
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)
            return mix.floats_sent

        self.floats_sent += sum(self._each(on_block, column_blocks(theta, size=COMBINED_BYTES)))
        return theta, state

    def compressed(self, x: Tensor, hat: Tensor, mixed: Tensor, compressor: Compressor, number: int, /) -> None:
        sent = torch.empty_like(x)

        def on_rows(some: slice) -> int:
            """Compress what some devices send; the bytes of one message."""
            size = compressor.apply_to(torch.sub(x[some], hat[some], out=sent[some]), number)
            hat[some].add_(sent[some])
            return size

        # a few at a time, so that they stay in the cache
        few = max(1, CACHE_BYTES // 2 // x[0].nbytes)
        *_, size = self._each(on_rows, blocks(len(x), few))
        self.floats_sent += self._W.links * -(-size // x.element_size())

        def on_columns(some: slice) -> None:
            mixed[:, some].add_(self._W.product(sent[:, some]))

        for _ in self._each(on_columns, column_blocks(sent)):
            pass

    def _multiplied(self, rows: Tensor, times: int, target: Tensor) -> Tensor:
        """Apply W `times` times and write the result into target, which may be rows."""

        def columns(some: slice) -> None:
            part = rows[:, some]
            for _ in range(times):
                part = self._W.product(part)
            target[:, some] = part

        for _ in self._each(columns, column_blocks(rows)):
            pass
        return target

    def _count(self, numbers: int) -> None:
        self.floats_sent += self._W.links * self.repeats * numbers


class _ColumnsMix(LocalMix):
    """The same for so few columns that they are not split once more."""

    def compressed(self, x: Tensor, hat: Tensor, mixed: Tensor, compressor: Compressor, number: int, /) -> None:
        sent = x - hat
        size = compressor.apply_to(sent, number)
        self.floats_sent += self._W.links * -(-size // x.element_size())
        hat.add_(sent)
        mixed.add_(self._W.product(sent))

    def _multiplied(self, rows: Tensor, times: int, target: Tensor) -> Tensor:
        for _ in range(times):
            rows = self._W.product(rows)
        return target.copy_(rows)


class LocalEngine:
    """Hosts every device of the network.

    >>> import networkx as nx
    >>> from drdsgd.topology.mixing import metropolis
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
        return prepare(W, W, slice(None), self._mixing.repeats, self._dtype, self._device)


class SingleProcess:
    """The only process: it hosts all K devices, so there is nothing to gather.

    >>> SingleProcess(3).gather(torch.ones(3))
    tensor([1., 1., 1.])
    """

    rank, size = 0, 1

    def __init__(self, K: int) -> None:
        self.K, self.rows = K, torch.arange(K)

    def engine(self, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each) -> Engine:
        return LocalEngine(mixing, dtype, device, each)

    def gather(self, x: Tensor) -> Tensor:
        return x

    def total(self, x: Tensor) -> Tensor:
        return x

    def texts(self, text: str) -> list[str]:
        return [text]

    def earliest(self, found: Diverged | None) -> Diverged | None:
        return found
