"""Products with the rows of W, or some columns of them, as engines use them: `x -> W x`, `x -> log(W exp(x))`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from drdsgd.core.flat import LINE_BYTES
from drdsgd.core.parallel import blocks

__all__ = ["CACHE_BYTES", "Product", "column_blocks", "log_mean", "product"]

# What is mixed at once: columns of theta, few enough that those of all devices stay in the cache, but some whole
# lines of it, as memory comes in these.
CACHE_BYTES, LEAST_LINES = 2**20, 4

Product = Callable[[Tensor], Tensor]


def product(W: csr_array, dtype: torch.dtype, device: torch.device) -> Product:
    """`x [m, ...] -> W x` for W [n, m].

    >>> import numpy as np
    >>> W = csr_array(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    >>> product(W, torch.float32, torch.device("cpu"))(torch.tensor([[2.0], [4.0], [6.0]])).T
    tensor([[3., 6.]])
    """
    n, m = W.shape
    if 3 * W.nnz > n * m:  # measured on a CPU: above a density of about a third the dense product wins
        dense = torch.as_tensor(W.toarray(), dtype=dtype, device=device)
        return dense.mm
    values, columns, ends = _rows(W, dtype, device)

    def weighted_sums(x: Tensor) -> Tensor:
        # Torch's fastest product with a sparse matrix: a row of W is a "bag" of neighbours. A CSR tensor was
        # measured to take 1.3 times as long (benchmarks/where_time_goes.py).
        return nn.functional.embedding_bag(
            columns, x, ends, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    return weighted_sums


def log_mean(W: csr_array, dtype: torch.dtype, device: torch.device) -> Product:
    """`x [m] -> log(W exp(x))` for W [n, m]: also where exp(x) is beyond the floats.

    >>> import numpy as np
    >>> log_mean(csr_array(np.full((1, 2), 0.5)), torch.float32, torch.device("cpu"))(torch.tensor([1000.0, 1000.0]))
    tensor([1000.])
    """
    values, columns, ends = _rows(W, dtype, device)

    def of(x: Tensor) -> Tensor:
        terms = values.log() + x[columns]  # one per entry of W, row after row
        # the largest of each row is taken out, not of all: devices may be too far apart for one scale
        top = torch.segment_reduce(terms, "max", offsets=ends)
        top = torch.where(top.isfinite(), top, 0)  # inf - inf is no number
        rest = (terms - top.repeat_interleave(ends.diff())).exp()
        return top + torch.segment_reduce(rest, "sum", offsets=ends).log()

    return of


def _rows(W: csr_array, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.as_tensor(W.data, dtype=dtype, device=device),
        torch.as_tensor(W.indices, dtype=torch.int32, device=device),
        torch.as_tensor(W.indptr, dtype=torch.int32, device=device),
    )


def column_blocks(rows: Tensor, others: int = 0) -> list[slice]:
    """The columns of rows [n, d] in blocks that are mixed one at a time: on a CPU, whole lines of the cache.

    `others` is the number of further rows that are needed together with them.

    >>> column_blocks(torch.zeros(1000, 40))
    [slice(0, 48, None)]
    """
    if rows.device.type != "cpu":
        return [slice(None)]
    line = LINE_BYTES // rows.element_size()
    most = max(CACHE_BYTES // (LINE_BYTES * (len(rows) + others)), LEAST_LINES)
    return [slice(some.start * line, some.stop * line) for some in blocks(-(-rows.shape[1] // line), most)]
