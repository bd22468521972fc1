"""What engines compute with their rows of W: `x -> W x` and `x -> log(W exp(x))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.core.compression import BLOCK
from drdsgd.core.flat import LINE_BYTES
from drdsgd.core.parallel import blocks

__all__ = [
    "CACHE_BYTES",
    "COMBINED_BYTES",
    "Prepared",
    "Product",
    "column_blocks",
    "links",
    "log_mean",
    "prepare",
    "product",
]

# Columns of theta are mixed in blocks: few enough columns that those of all devices stay in the cache, but several
# whole cache lines.
CACHE_BYTES, LEAST_LINES = 2**20, 4
# Columns that an optimizer combines at a time: each of its operations is a call, and with fewer columns calls cost more
COMBINED_BYTES = 2**21

Product = Callable[[Tensor], Tensor]


class Prepared(NamedTuple):
    """The rows of W of the n devices in this process, ready for use."""

    product: Product  # x -> W x
    log_mean: Product  # x -> log(W exp(x))
    links: int  # in the whole network
    isolated: Tensor  # [n], which devices receive nothing
    repeats: int  # gossip steps per round
    send: Sequence[tuple[int, Tensor]] = ()  # (rank, which rows of x go there)
    receive: Sequence[tuple[int, int]] = ()  # (rank, how many rows come from there)


def prepare(
    W: csr_array,
    rows: csr_array,
    mine: slice | NDArray[np.int64],
    repeats: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Prepared:
    """Prepare `rows`: those of the devices `mine` in W, with only the columns that they need, in any order."""
    isolated = torch.as_tensor(np.diff(rows.indptr) == (W.diagonal() != 0)[mine], device=device)
    return Prepared(product(rows, dtype, device), log_mean(rows, dtype, device), links(W), isolated, repeats)


def links(W: csr_array) -> int:
    """The number of directed links: both ends of an undirected link send.

    >>> links(csr_array([[0.5, 0.5], [0.5, 0.5]]))
    2
    """
    return int(W.nnz - (W.diagonal() != 0).sum())


def product(W: csr_array, dtype: torch.dtype, device: torch.device) -> Product:
    """`x [m, ...] -> W x` for W [n, m].

    >>> import numpy as np
    >>> W = csr_array(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    >>> product(W, torch.float32, torch.device("cpu"))(torch.tensor([[2.0], [4.0], [6.0]])).T
    tensor([[3., 6.]])
    """
    n, m = W.shape
    if 3 * W.nnz > n * m:  # measured on a CPU: above a density of about 1/3 the dense product is faster
        dense = torch.as_tensor(W.toarray(), dtype=dtype, device=device)
        return dense.mm
    values, columns, ends = _rows(W, dtype, device)

    def weighted_sums(x: Tensor) -> Tensor:
        # Torch's fastest sparse product: a row of W is a "bag" of neighbours. A CSR tensor was measured to take
        # 1.3 times as long (drdsgd_benchmarks.where_time_goes).
        found: Tensor = torch.embedding_bag(x, columns, ends, False, 0, False, values, True)[0]
        return found

    return weighted_sums


def log_mean(W: csr_array, dtype: torch.dtype, device: torch.device) -> Product:
    """`x [m] -> log(W exp(x))` for W [n, m], also where exp(x) overflows.

    >>> import numpy as np
    >>> log_mean(csr_array(np.full((1, 2), 0.5)), torch.float32, torch.device("cpu"))(torch.tensor([1000.0, 1000.0]))
    tensor([1000.])
    """
    values, columns, ends = _rows(W, dtype, device)

    def log_means(x: Tensor) -> Tensor:
        terms = values.log() + x[columns]  # one per entry of W, row after row
        # subtract each row's own maximum, not the global one: devices may be too far apart for one scale
        top = torch.segment_reduce(terms, "max", offsets=ends)
        top = torch.where(top.isfinite(), top, 0)  # inf - inf is nan
        rest = (terms - top.repeat_interleave(ends.diff())).exp()
        return top + torch.segment_reduce(rest, "sum", offsets=ends).log()

    return log_means


def _rows(W: csr_array, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.as_tensor(W.data, dtype=dtype, device=device),
        torch.as_tensor(W.indices, dtype=torch.int32, device=device),
        torch.as_tensor(W.indptr, dtype=torch.int32, device=device),
    )


def column_blocks(rows: Tensor, others: int = 0, size: int = CACHE_BYTES) -> list[slice]:
    """The columns of rows [n, d] in blocks of about `size` bytes; on a CPU, whole cache lines and whole blocks of
    compressed entries.

    `others` is the number of further rows that are mixed with these.

    >>> column_blocks(torch.zeros(1000, 40))
    [slice(0, 64, None)]
    """
    if rows.device.type != "cpu":
        return [slice(None)]
    line = max(LINE_BYTES // rows.element_size(), BLOCK)
    most = max(size // (line * rows.element_size() * (len(rows) + others)), LEAST_LINES)
    return [slice(some.start * line, some.stop * line) for some in blocks(-(-rows.shape[1] // line), most)]
