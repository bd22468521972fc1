"""Compressors: a smaller message instead of every row of x [n, d].

A compressor Q is a pair of functions, `encode(x, t) -> parts` and `decode(parts, d, t) -> Q(x)`. The parts travel, one
row per device: an engine sends them and counts their bytes. An engine whose devices all live in one process sends
nothing, and uses `apply_to`. Compressed gossip needs a contraction, and all have one:

    E ||x - Q(x)||^2 <= (1 - delta) ||x||^2

    no_compression   all of x                                             d numbers          delta = 1
    top_k            the k largest entries, and their positions           k + k numbers      delta = k / d
    random_k         k random entries, the same for all devices in a      k numbers          delta = k / d
                     round; every device draws them from the seed
    quantized        b bits per entry, and a scale per block of 32        (b + 1) / 32 d     delta >= 1 / 32
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drdsgd.errors import InputError, named, unknown
from drdsgd.random import torch_seed

__all__ = ["COMPRESSIONS", "Compressor", "Parts", "compressor", "no_compression", "quantized", "random_k", "top_k"]

COMPRESSIONS = ("none", "top", "random", "quantize")

Parts = tuple[Tensor, ...]

# Entries that share a scale. The entries of x - hat differ widely in size: with blocks of 256 and 4 bits most round to
# zero beside the largest, and CHOCO-SGD diverges at step sizes at which DSGD works. With 32 it follows DSGD.
BLOCK = 32


@dataclass(frozen=True)
class Compressor:
    """`encode(x [n, d], t) -> parts`, `decode(parts, d, t) -> Q(x)`, its delta for rows of d entries, its spelling.

    `together` is the number of neighbouring entries that are encoded together: Q may be applied to any multiple of
    them. With None it is all entries of a row. `in_place(x)` replaces x by Q(x), if there is a shorter way than to
    encode and decode, and returns the bytes of a row's message.
    """

    encode: Callable[[Tensor, int], Parts]
    decode: Callable[[Parts, int, int], Tensor]
    delta: Callable[[int], float]
    spelled: str = "your own"
    together: int | None = None
    in_place: Callable[[Tensor], int] | None = None

    def apply_to(self, x: Tensor, t: int) -> int:
        """Replace x [n, d] by Q(x); returns the bytes of a row's message.

        >>> x = torch.tensor([[0.7, -0.31, 0.02]])
        >>> quantized(4).apply_to(x, 0), x
        (6, tensor([[ 0.7000, -0.3000,  0.0000]]))
        """
        if self.in_place is not None:
            return self.in_place(x)
        parts = self.encode(x, t)
        x.copy_(self.decode(parts, x.shape[1], t))
        return sum(part[0].nbytes for part in parts)


def compressor(spelled: str, seed: int = 0) -> Compressor:
    """A compressor from a text: none, top:PART, random:PART or quantize:BITS.

    >>> compressor("quantize:4").spelled
    'quantize:4'
    """
    kind, _, number = spelled.partition(":")
    said = named("compression", spelled)
    if kind not in COMPRESSIONS:
        raise InputError(f"{said}: {unknown(kind, COMPRESSIONS)}")
    if kind == "none":
        if spelled != kind:
            raise InputError(f"{said}: none takes no number")
        return no_compression()
    try:
        value = float(number)
        if kind == "quantize":
            return quantized(int(value) if value == int(value) else -1)
        return top_k(value) if kind == "top" else random_k(value, seed)
    except (ValueError, OverflowError) as error:
        why = error.marked if isinstance(error, InputError) else "write top:0.1, random:0.1 or quantize:4"
        raise InputError(f"{said}: {why}") from None


def no_compression() -> Compressor:
    """All of x.

    >>> no_compression().encode(torch.ones(1, 3), 0)
    (tensor([[1., 1., 1.]]),)
    """
    return Compressor(lambda x, t: (x,), lambda parts, d, t: parts[0], lambda d: 1.0, "none", together=1)


def top_k(part: float) -> Compressor:
    """The largest entries in absolute value, a fraction `part` of all, as values and positions.

    >>> Q = top_k(0.5)
    >>> parts = Q.encode(torch.tensor([[0.1, -3.0, 2.0, 0.0]]), 0)
    >>> Q.decode(parts, 4, 0)
    tensor([[ 0., -3.,  2.,  0.]])
    """
    _check_part(part)

    def encode(x: Tensor, t: int) -> Parts:
        where = x.abs().topk(_count(part, x.shape[1]), dim=1, sorted=False).indices
        return x.gather(1, where), where.to(torch.int32)

    def decode(parts: Parts, d: int, t: int) -> Tensor:
        values, where = parts
        return values.new_zeros(len(values), d).scatter_(1, where.long(), values)

    return Compressor(encode, decode, lambda d: _count(part, d) / d, f"top:{part:g}")


def random_k(part: float, seed: int = 0) -> Compressor:
    """Random entries, a fraction `part` of all: the same for all devices, drawn anew in every round.

    >>> Q = random_k(0.5)
    >>> [p.shape for p in Q.encode(torch.ones(1, 4), 0)], Q.decode(Q.encode(torch.ones(1, 4), 0), 4, 0).sum()
    ([torch.Size([1, 2])], tensor(2.))
    """
    _check_part(part)

    @functools.lru_cache(maxsize=1)  # many devices ask for it in turn
    def which(d: int, t: int) -> Tensor:
        # on the CPU, wherever x is: all devices must draw the same
        generator = torch.Generator().manual_seed(torch_seed(seed, t))
        return torch.randperm(d, generator=generator)[: _count(part, d)]

    def encode(x: Tensor, t: int) -> Parts:
        return (x[:, which(x.shape[1], t).to(x.device)],)

    def decode(parts: Parts, d: int, t: int) -> Tensor:
        values = parts[0].new_zeros(len(parts[0]), d)
        values[:, which(d, t).to(values.device)] = parts[0]
        return values

    return Compressor(encode, decode, lambda d: _count(part, d) / d, f"random:{part:g}")


def quantized(bits: int) -> Compressor:
    """Every entry rounded to one of 2^bits - 1 levels, from minus to plus the largest of its block of 32.

    An entry moves by rounding at most as far as it is from zero, and the largest one is exact.

    >>> Q = quantized(4)
    >>> parts = Q.encode(torch.tensor([[0.7, -0.31, 0.02]]), 0)
    >>> Q.decode(parts, 3, 0), [p.dtype for p in parts]
    (tensor([[ 0.7000, -0.3000,  0.0000]]), [torch.uint8, torch.float32])
    """
    if bits not in (2, 4, 8):
        raise InputError(f"bits per number must be 2, 4 or 8: {bits}; for 32, use no compression")
    levels, per_byte = 2 ** (bits - 1) - 1, 8 // bits

    def rounded(blocks: Tensor) -> Tensor:
        """Replace blocks [n, blocks, 32] by whole numbers from 0 to 2 levels; returns their scales, [n, blocks, 1]."""
        scale = blocks.abs().amax(dim=2, keepdim=True)
        blocks.div_(torch.where(scale > 0, scale, 1)).mul_(levels).round_().add_(levels)
        return scale

    def encode(x: Tensor, t: int) -> Parts:
        blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))  # a copy
        scale = rounded(blocks)
        codes = blocks.flatten(1)
        codes = codes[:, : -(-x.shape[1] // per_byte) * per_byte].unflatten(1, (-1, per_byte))
        # the codes in a byte are its digits, small enough for an exact sum in floats
        packed = codes @ codes.new_tensor([2.0 ** (bits * place) for place in range(per_byte)])
        return packed.to(torch.uint8), scale[..., 0]

    def decode(parts: Parts, d: int, t: int) -> Tensor:
        packed, scale = parts
        codes = torch.empty(*packed.shape, per_byte, dtype=scale.dtype, device=scale.device)
        for place in range(per_byte):
            codes[..., place] = (packed >> (bits * place)) & (2**bits - 1)
        codes = codes.flatten(1)[:, :d].sub_(levels)
        blocks = torch.nn.functional.pad(codes, (0, -d % BLOCK)).unflatten(1, (-1, BLOCK))
        values: Tensor = (blocks / levels).mul_(scale[..., None])
        return values.flatten(1)[:, :d].contiguous()

    def in_place(x: Tensor) -> int:
        d = x.shape[1]
        whole = x if d % BLOCK == 0 else torch.nn.functional.pad(x, (0, -d % BLOCK))
        blocks = whole.unflatten(1, (-1, BLOCK))
        scale = rounded(blocks)
        blocks.sub_(levels).div_(levels).mul_(scale)
        if whole is not x:
            x.copy_(whole[:, :d])
        return -(-d // per_byte) + -(-d // BLOCK) * x.element_size()

    return Compressor(encode, decode, lambda d: 1 / min(d, BLOCK), f"quantize:{bits}", BLOCK, in_place)


def _count(part: float, d: int) -> int:
    """How many of d entries are kept: at least one."""
    return max(1, round(part * d))


def _check_part(part: float) -> None:
    if not 0 < part <= 1:
        raise InputError(f"the part of the entries to send must be in (0, 1]: {part:g}; 0.1 is a tenth of them")
