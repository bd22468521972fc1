"""JSON that may be cut short or edited: what is wrong with it, in a few words.

The caller adds the file's name and what to do about it.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from drdsgd.errors import InputError

__all__ = ["validated"]

T = TypeVar("T")


def validated(adapter: TypeAdapter[T], text: bytes) -> T:
    """The value in a JSON text; an error names the first thing that is wrong.

    >>> validated(TypeAdapter(dict[str, list[int]]), b'{"rounds": [0, "ten"]}')
    Traceback (most recent call last):
    drdsgd.errors.InputError: its rounds.1: input should be a valid integer, unable to parse string as an integer
    >>> validated(TypeAdapter(dict[str, list[int]]), b'{"rounds": [0, 1')
    Traceback (most recent call last):
    drdsgd.errors.InputError: it is not JSON
    """
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where, what = ".".join(map(str, first["loc"])), first["msg"][0].lower() + first["msg"][1:]
        said = {"json_invalid": "it is not JSON", "missing": f"it lacks {where}"}.get(first["type"])
        raise InputError(said or (f"its {where}: {what}" if where else what)) from None
