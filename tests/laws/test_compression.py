"""Laws of every compressor: the error is bounded, and messages have the stated size. A new compressor is a new row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drdsgd.core.compression import BLOCK, Compressor, no_compression, quantized, random_k, top_k
from drdsgd.errors import InputError
from tests import reference


class Row(NamedTuple):
    """A compressor, and the bytes that it sends for a row of d entries of `size` bytes each."""

    Q: Compressor
    bytes: Callable[[int, int], int]
    random: bool = False


def count(part: float, d: int) -> int:
    return max(1, round(part * d))


def quantized_row(bits: int) -> Row:
    return Row(quantized(bits), lambda d, size: math.ceil(d * bits / 8) + size * math.ceil(d / 32))


COMPRESSORS = {
    "none": Row(no_compression(), lambda d, size: size * d),
    "top tenth": Row(top_k(0.1), lambda d, size: (size + 4) * count(0.1, d)),
    "top half": Row(top_k(0.5), lambda d, size: (size + 4) * count(0.5, d)),
    "random tenth": Row(random_k(0.1), lambda d, size: size * count(0.1, d), random=True),
    "random half": Row(random_k(0.5, seed=7), lambda d, size: size * count(0.5, d), random=True),
    "2 bits": quantized_row(2),
    "4 bits": quantized_row(4),
    "8 bits": quantized_row(8),
}
every = pytest.mark.parametrize("row", COMPRESSORS.values(), ids=COMPRESSORS.keys())
# also around blocks of 32, and with a last byte that is not full
SIZES = st.sampled_from([1, 2, 3, 5, 7, 31, 32, 33, 64, 97, 300])
DTYPES = st.sampled_from([torch.float32, torch.float64])


def sent(Q: Compressor, x: Tensor, t: int = 0) -> Tensor:
    return Q.decode(Q.encode(x, t), x.shape[1], t)


@st.composite
def messages(draw: st.DrawFn) -> Tensor:
    """Rows with entries of all magnitudes, with ties, with zeros, and with zeros only."""
    d, seed, spread = draw(SIZES), draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.0, 1.0, 8.0]))
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(4, d, generator=rng, dtype=torch.float64) * 10 ** (spread * torch.rand(4, d, generator=rng) - 4)
    x[1] = x[1].sign()
    x[2] = 0
    x[3, ::2] = 0
    return x.to(draw(DTYPES))


@every
@given(messages(), st.integers(0, 1000))
def test_the_error_is_bounded(row: Row, x: Tensor, t: int) -> None:
    """||x - Q(x)||^2 <= (1 - delta) ||x||^2: for every x, or on average over the draws."""
    found = sent(row.Q, x, t)
    assert found.shape == x.shape and found.dtype == x.dtype and found.is_contiguous()
    lost, norm = (x - found).double().square().sum(dim=1), x.double().square().sum(dim=1)
    assert (lost <= norm * (1 + 1e-6)).all()
    delta = row.Q.delta(x.shape[1])
    assert 0 < delta <= 1
    if not row.random:
        assert (lost <= (1 - delta) * norm + 1e-6 * norm).all()
    assert (found[2] == 0).all()
    # each row is compressed by itself: a device has only its own
    assert torch.equal(sent(row.Q, x[1:2], t), found[1:2])


@pytest.mark.parametrize("row", [row for row in COMPRESSORS.values() if row.random])
def test_the_bound_of_a_random_compressor_holds_on_average(row: Row) -> None:
    """All entries are drawn equally often: for every x the mean error over rounds is (1 - k / d) ||x||^2."""
    d, rounds = 20, 2000
    share = row.Q.delta(d)
    often = torch.stack([sent(row.Q, torch.ones(1, d), t)[0] for t in range(rounds)]).mean(dim=0)
    assert often.sum() == pytest.approx(share * d)
    assert often.tolist() == pytest.approx([share] * d, abs=5 * math.sqrt(share * (1 - share) / rounds))
    x = torch.arange(float(d))[None] ** 2
    lost = torch.stack([(x - sent(row.Q, x, t)).square().sum() for t in range(rounds)]).mean() / x.square().sum()
    assert float(lost) == pytest.approx(1 - share, abs=0.04)


def test_the_bound_is_tight() -> None:
    """The bound is reached: by equal entries for top k, and by one large entry and 31 that round down for few bits."""
    x = torch.ones(1, 50)
    assert float((x - sent(top_k(0.1), x)).square().sum() / 50) == pytest.approx(1 - top_k(0.1).delta(50))
    x = torch.full((1, 32), 0.4999)
    x[0, 3] = 1
    lost = float((x - sent(quantized(2), x)).square().sum() / x.square().sum())
    assert 0.85 < lost < 1 - quantized(2).delta(32)


@every
@given(messages())
def test_messages_have_the_stated_size(row: Row, x: Tensor) -> None:
    """One row per device in every part, and nothing else."""
    parts = row.Q.encode(x, 0)
    assert all(len(part) == len(x) for part in parts)
    assert [sum(part[i].nbytes for part in parts) for i in range(len(x))] == [
        row.bytes(x.shape[1], x.element_size())
    ] * len(x)


@pytest.mark.parametrize("d", [256, 1024, 25_600])
def test_the_sizes_of_the_docstring(d: int) -> None:
    """In numbers of 4 bytes, for a d at which nothing is rounded up."""
    x = torch.randn(1, d)
    numbers = {name: sum(part[0].nbytes for part in row.Q.encode(x, 0)) / 4 for name, row in COMPRESSORS.items()}
    k = count(0.1, d)
    assert numbers == {
        "none": d, "top tenth": 2 * k, "top half": d, "random tenth": k, "random half": d / 2,
        "2 bits": 3 / 32 * d, "4 bits": 5 / 32 * d, "8 bits": 9 / 32 * d,
    }  # fmt: skip


@given(messages(), st.sampled_from([2, 4, 8]))
def test_rounding_is_never_further_away_than_zero(x: Tensor, bits: int) -> None:
    """For every entry; and the largest of each block of 32 is exact."""
    found = sent(quantized(bits), x)
    assert ((x - found).abs() <= x.abs() * (1 + 1e-6)).all()
    step = 2 / (2**bits - 2)
    for start in range(0, x.shape[1], BLOCK):
        block, rounded = x[:, start : start + BLOCK], found[:, start : start + BLOCK]
        largest = block.abs().max(dim=1, keepdim=True)
        assert torch.equal(rounded.gather(1, largest.indices), block.gather(1, largest.indices))
        assert ((block - rounded).abs() <= largest.values * step / 2 * (1 + 1e-5)).all()


@given(messages(), st.sampled_from([2, 4, 8]), st.sampled_from([0.1, 0.5, 1.0]))
def test_compressors_equal_the_plain_loops(x: Tensor, bits: int, part: float) -> None:
    x = x.double()
    rounded = torch.stack([reference.quantized(bits)(row, 0) for row in x])
    assert torch.allclose(sent(quantized(bits), x), rounded, rtol=1e-12, atol=0)
    k = count(part, x.shape[1])
    kept = torch.stack([reference.top_k(k)(row, 0) for row in x[:1]])
    assert torch.equal(sent(top_k(part), x[:1]), kept)


def test_what_is_drawn_depends_on_seed_and_round_alone() -> None:
    def drawn(seed: int, t: int, d: int = 100) -> list[int]:
        return sent(random_k(0.1, seed), torch.ones(1, d, dtype=torch.float64), t)[0].nonzero().flatten().tolist()

    torch.manual_seed(1)
    first = [drawn(seed, t) for seed in range(5) for t in range(20)]
    torch.manual_seed(2)
    assert [drawn(seed, t) for seed in range(5) for t in range(20)] == first
    assert len({tuple(each) for each in first}) == 100  # and all differ
    assert all(len(each) == 10 for each in first)
    # the same entries for all devices, in single and in double precision
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(3, 100, dtype=dtype)
        assert (sent(random_k(0.1, 2), x, 7) != 0).nonzero()[:, 1].unique().tolist() == drawn(2, 7)


@every
@pytest.mark.parametrize("d", [300, 320])
def test_encoding_leaves_x_as_it_is(row: Row, d: int) -> None:
    x = torch.randn(3, d)
    before = x.clone()
    found = sent(row.Q, x)
    assert torch.equal(x, before)
    # and later changes of x do not change what was decoded
    sent(row.Q, torch.randn(3, d))
    assert torch.equal(found, sent(row.Q, before))


@every
@given(messages(), st.integers(0, 1000))
def test_where_nothing_is_sent_the_result_has_the_same_bits(row: Row, x: Tensor, t: int) -> None:
    """Also the signs of zeros; and its size is that of the message that would travel."""
    expected = sent(row.Q, x, t)
    size = row.Q.apply_to(x, t)
    bits = torch.int32 if x.dtype == torch.float32 else torch.int64
    assert torch.equal(x.view(bits), expected.view(bits))
    assert size == row.bytes(x.shape[1], x.element_size())


@every
@given(messages(), st.integers(0, 1000))
def test_entries_are_compressed_apart_where_it_says_so(row: Row, x: Tensor, t: int) -> None:
    if (unit := row.Q.together) is not None:
        parts = [sent(row.Q, part, t) for part in x.split(unit, dim=1)]
        assert torch.equal(torch.cat(parts, dim=1), sent(row.Q, x, t))


def test_bad_arguments_are_refused() -> None:
    for part in (0.0, -0.5, 1.5, math.nan):
        for make in (top_k, random_k):
            with pytest.raises(InputError, match=r"part of the entries to send must be in \(0, 1\]"):
                make(part)
    for bits in (0, 1, 3, 16, 32):
        with pytest.raises(InputError, match="bits per number must be 2, 4 or 8: "):
            quantized(bits)
