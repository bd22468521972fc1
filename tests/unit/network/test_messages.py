"""A message is read as it was sent, or it is refused; nothing else happens, whatever comes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from drdsgd.network.messages import DIGEST_BYTES, HEADER_BYTES, START_BYTES, Header, Kind, Refused, pack, unpack, values

# the format in the docstring of the module, written out independently
LAYOUT = struct.Struct("!4s B B B B I Q I Q")
MAGIC, VERSION, KIND, TYPE, ZERO, SENDER, ROUND, CALL, NUMBERS = range(9)
ENDS = [0, 4, 5, 6, 7, 8, 12, 20, 24, 32]
MOST = 1000

dtypes = st.sampled_from([torch.float32, torch.float64])


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Any header that a device may send."""
    kind = draw(st.sampled_from(Kind))
    return Header(
        kind,
        sender=draw(st.integers(0, 2**32 - 1)),
        round=draw(st.integers(0, 2**64 - 1)),
        call=draw(st.integers(0, 2**32 - 1)),
        numbers=draw(st.integers(1, MOST)) if kind is Kind.DATA else 0,
    )


def payload_bytes(header: Header, dtype: torch.dtype) -> int:
    """The length of the payload of such a message."""
    return {Kind.HELLO: DIGEST_BYTES + START_BYTES, Kind.DATA: header.numbers * dtype.itemsize}.get(header.kind, 0)


def why(data: bytes, length: int, sender: int, dtype: torch.dtype, most: int = MOST) -> str:
    """The reason why a message is refused, which it must be."""
    with pytest.raises(Refused) as caught:
        unpack(data, length, sender, dtype, most)
    return str(caught.value)


def with_field(data: bytes, field: int, value: Any) -> bytes:
    """The header with one of its fields changed."""
    fields = list(LAYOUT.unpack(data))
    fields[field] = value
    return LAYOUT.pack(*fields)


# ----------------------------------------------------------------------- whole


@given(headers(), dtypes)
def test_a_header_comes_back_as_it_was(header: Header, dtype: torch.dtype) -> None:
    data = pack(header, dtype)
    assert len(data) == HEADER_BYTES == 32
    found = unpack(data, payload_bytes(header, dtype), header.sender, dtype, MOST)
    assert found == header and isinstance(found.kind, Kind)


def test_the_bytes_are_those_of_the_description() -> None:
    """Devices with other versions of this package read it, too."""
    data = pack(Header(Kind.DATA, sender=3, round=7, call=2, numbers=10), torch.float64)
    assert data == b"drds" + bytes([1, 2, 2, 0]) + bytes([0, 0, 0, 3]) + bytes([0] * 7 + [7]) + bytes(
        [0, 0, 0, 2]
    ) + bytes([0] * 7 + [10])


@given(st.lists(st.floats(-(2.0**59), 2.0**59, width=32), min_size=1, max_size=20), dtypes)
def test_numbers_come_back_as_they_were(numbers: list[float], dtype: torch.dtype) -> None:
    sent = torch.tensor(numbers, dtype=dtype)
    found = values(sent.numpy().tobytes(), dtype)
    assert found.dtype == dtype and found.tolist() == numbers


@given(dtypes, st.booleans())
def test_numbers_whose_squares_are_beyond_the_floats_are_refused(dtype: torch.dtype, negative: bool) -> None:
    large = torch.finfo(dtype).max ** 0.5 * 1.1
    with pytest.raises(Refused, match="too large"):
        values(torch.tensor([0.0, -large if negative else large], dtype=dtype).numpy().tobytes(), dtype)


# --------------------------------------------------------------------- spoilt


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "field, value, said",
    [
        (MAGIC, b"drdt", "no header"),
        (VERSION, 0, "another version"),
        (VERSION, 2, "another version"),
        (KIND, 0, "no header"),
        (KIND, 5, "no header"),
        (KIND, 255, "no header"),
        (TYPE, 0, "another type of numbers"),
        (TYPE, 2, "another type of numbers"),
        (TYPE, 3, "another type of numbers"),
        (ZERO, 1, "no header"),
        (SENDER, 4, "another sender"),
        (SENDER, 2**32 - 1, "another sender"),
        (NUMBERS, MOST + 1, "another number of numbers"),
        (NUMBERS, 2**64 - 1, "another number of numbers"),
    ],
)
def test_one_wrong_field_and_it_is_refused_for_that(kind: Kind, field: int, value: Any, said: str) -> None:
    header = Header(kind, sender=3, round=7, call=1, numbers=5 if kind is Kind.DATA else 0)
    data = pack(header, torch.float32)
    assert unpack(data, payload_bytes(header, torch.float32), 3, torch.float32, MOST) == header
    assert why(with_field(data, field, value), payload_bytes(header, torch.float32), 3, torch.float32) == said


@given(headers(), dtypes, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_any_other_byte_is_refused_unless_it_says_another_round_or_answer(
    header: Header, dtype: torch.dtype, k: int, flip: int
) -> None:
    sent = bytearray(pack(header, dtype))
    sent[k] ^= flip
    length = payload_bytes(header, dtype)
    if ENDS[ROUND] <= k < ENDS[CALL + 1]:  # any number may be a round or an exchange
        found = unpack(bytes(sent), length, header.sender, dtype, MOST)
        assert (found.round, found.call) != (header.round, header.call)
        assert found._replace(round=header.round, call=header.call) == header
        return
    assume(not (k == ENDS[KIND] and {header.kind, sent[k]} == {Kind.YES, Kind.NO}))  # either may be the answer
    assert why(bytes(sent), length, header.sender, dtype)


@given(headers(), dtypes, st.integers(0, MOST * 8 + 8))
def test_a_payload_of_another_length_is_refused(header: Header, dtype: torch.dtype, length: int) -> None:
    assume(length != payload_bytes(header, dtype))
    assert why(pack(header, dtype), length, header.sender, dtype) == "wrong length"


@given(headers(), dtypes, st.integers(0, HEADER_BYTES - 1), st.binary(min_size=1, max_size=8))
def test_a_header_that_is_cut_or_goes_on_is_refused(header: Header, dtype: torch.dtype, size: int, more: bytes) -> None:
    data, length = pack(header, dtype), payload_bytes(header, dtype)
    assert why(data[:size], length, header.sender, dtype) == "no header"
    assert why(data + more, length, header.sender, dtype) == "no header"


@given(headers(), dtypes)
def test_numbers_of_the_other_type_are_refused(header: Header, dtype: torch.dtype) -> None:
    other = {torch.float32: torch.float64, torch.float64: torch.float32}[dtype]
    said = why(pack(header, dtype), payload_bytes(header, dtype), header.sender, other)
    assert said == "another type of numbers"


@given(st.integers(1, MOST), dtypes)
def test_as_many_numbers_as_may_be_come_and_not_one_more(most: int, dtype: torch.dtype) -> None:
    for numbers in (most, most + 1):
        header = Header(Kind.DATA, sender=0, round=0, numbers=numbers)
        data, length = pack(header, dtype), numbers * dtype.itemsize
        if numbers == most:
            assert unpack(data, length, 0, dtype, most) == header
        else:
            assert why(data, length, 0, dtype, most) == "another number of numbers"


def test_only_data_has_numbers_and_it_has_some() -> None:
    for kind in (Kind.HELLO, Kind.YES, Kind.NO):
        header = Header(kind, sender=0, round=0, numbers=1)
        assert why(pack(header, torch.float32), payload_bytes(header, torch.float32), 0, torch.float32)
    none = pack(Header(Kind.DATA, sender=0, round=0, numbers=0), torch.float32)
    assert why(none, 0, 0, torch.float32) == "another number of numbers"


@given(
    st.binary(max_size=64) | st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES),
    st.integers(0, 2**40), st.integers(0, 2**32 - 1), dtypes,
)  # fmt: skip
def test_random_bytes_are_refused(data: bytes, length: int, sender: int, dtype: torch.dtype) -> None:
    assert why(data, length, sender, dtype)


@given(
    st.integers(0, 255), st.integers(0, 255), st.integers(0, 3), st.integers(0, 1), st.integers(0, 3),
    st.integers(0, 2**64 - 1), st.integers(0, 10) | st.integers(0, 2**64 - 1), st.integers(0, 100), dtypes,
)  # fmt: skip
def test_bytes_that_begin_as_a_header_are_one_or_are_refused(
    version: int, kind: int, type_: int, zero: int, sender: int, t: int, numbers: int, length: int, dtype: torch.dtype
) -> None:
    data = LAYOUT.pack(b"drds", version % 3, kind % 7, type_, zero, sender, t, 0, numbers)
    try:
        found = unpack(data, length, 1, dtype, 10)
    except Refused:
        return
    assert (found.sender, found.round, found.numbers) == (1, t, numbers) and pack(found, dtype) == data
    assert payload_bytes(found, dtype) == length


# --------------------------------------------------------------------- numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("k", [0, 3, 6])
def test_one_number_that_is_not_finite_and_all_are_refused(dtype: torch.dtype, wrong: float, k: int) -> None:
    sent = torch.ones(7, dtype=dtype)
    assert len(values(sent.numpy().tobytes(), dtype)) == 7
    sent[k] = wrong
    with pytest.raises(Refused, match=r"^not finite$"):
        values(sent.numpy().tobytes(), dtype)


@given(st.binary(min_size=8, max_size=64), dtypes)
def test_any_payload_is_finite_numbers_or_refused(payload: bytes, dtype: torch.dtype) -> None:
    payload = payload[: len(payload) // 8 * 8]
    try:
        found = values(payload, dtype)
    except Refused:
        return
    assert found.isfinite().all() and found.numpy().tobytes() == payload


@pytest.mark.parametrize("length", [0, 1, 7, 9])
def test_a_payload_that_is_no_whole_number_of_numbers_is_refused(length: int) -> None:
    with pytest.raises(Refused):
        values(bytes(length), torch.float64)
