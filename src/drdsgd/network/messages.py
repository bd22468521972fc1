"""The messages on a link, and the checks on those that come in: no part of a message is trusted.

A message is a header of 32 bytes and a payload. The header has the version of the format, the kind of message, the
sender, the round and the exchange (`call`) within it, and the type and count of the numbers in the payload:

    HELLO   I am at this round. The payload is the digest of the run (32 bytes, equal on all devices) and the identity
            of my process (8 random bytes). call 1: I know you.
    DATA    my numbers
    YES     I have your numbers, and use them if you have mine
    NO      I do not have your numbers, and no longer wait for them

    magic 4 | version 1 | kind 1 | type 1 | zero 1 | sender 4 | round 8 | call 4 | numbers 8      in network byte order
"""

from __future__ import annotations

import math
import struct
import warnings
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["HEADER_BYTES", "KIND_AT", "START_BYTES", "Header", "Kind", "Refused", "Unlike", "pack", "unpack", "values"]

MAGIC, VERSION = b"drds", 1
_FORMAT = struct.Struct("!4sBBBBIQIQ")
HEADER_BYTES, KIND_AT = _FORMAT.size, 5
DIGEST_BYTES, START_BYTES = 32, 8
_TYPES = {torch.float32: 1, torch.float64: 2}
with warnings.catch_warnings():
    # torch warns once about read-only memory
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class Kind(IntEnum):
    """What a message is for."""

    HELLO = 1
    DATA = 2
    YES = 3
    NO = 4


class Refused(ValueError):
    """A message that is not as it should be; its text is the reason, in a few words."""


class Unlike(Refused):
    """A message in another version, or with another type of numbers: perhaps an honest mistake."""


class Header(NamedTuple):
    """The header of a message."""

    kind: Kind
    sender: int
    round: int
    call: int = 0
    numbers: int = 0


def pack(header: Header, dtype: torch.dtype) -> bytes:
    """The header as bytes.

    >>> len(pack(Header(Kind.DATA, sender=3, round=7, numbers=10), torch.float32))
    32
    """
    kind, sender, round, call, numbers = header
    return _FORMAT.pack(MAGIC, VERSION, kind, _TYPES[dtype], 0, sender, round, call, numbers)


def unpack(data: bytes, length: int, sender: int, dtype: torch.dtype, most: int) -> Header:
    """The header in `data`, of a message with `length` bytes of payload and at most `most` numbers from `sender`.

    Raises `Refused` if anything is wrong with it.

    >>> sent = pack(Header(Kind.DATA, sender=3, round=7, numbers=2), torch.float32)
    >>> unpack(sent, 8, sender=3, dtype=torch.float32, most=10).round
    7
    >>> unpack(sent, 9, sender=3, dtype=torch.float32, most=10)
    Traceback (most recent call last):
    drdsgd.network.messages.Refused: wrong length
    """
    if len(data) != HEADER_BYTES:
        raise Refused("no header")
    magic, version, kind, kind_of_number, zero, who, round, call, numbers = _FORMAT.unpack(data)
    if magic != MAGIC or zero != 0 or kind not in Kind.__members__.values():
        raise Refused("no header")
    if version != VERSION:
        raise Unlike("another version")
    if who != sender:
        raise Refused("another sender")
    if kind_of_number != _TYPES[dtype]:
        raise Unlike("another type of numbers")
    if numbers > most or (numbers > 0) != (kind == Kind.DATA):
        raise Refused("another number of numbers")
    if length != {Kind.HELLO: DIGEST_BYTES + START_BYTES, Kind.DATA: numbers * dtype.itemsize}.get(kind, 0):
        raise Refused("wrong length")
    return Header(Kind(kind), who, round, call, numbers)


def values(payload: bytes, dtype: torch.dtype) -> Tensor:
    """The numbers in a payload; raises `Refused` if a number or its square is not finite.

    >>> values(torch.tensor([1.0, 2.0]).numpy().tobytes(), torch.float32)
    tensor([1., 2.])
    """
    if not payload or len(payload) % dtype.itemsize:
        raise Refused("wrong length")
    found = torch.frombuffer(payload, dtype=dtype)  # read-only: nobody writes to it
    least, most = map(float, found.aminmax())  # both are NaN if any number is; allocates nothing
    if not (math.isfinite(least) and math.isfinite(most)):
        raise Refused("not finite")
    if max(-least, most) > math.sqrt(torch.finfo(dtype).max):
        raise Refused("too large")
    return found
