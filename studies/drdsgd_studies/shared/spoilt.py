"""JSON that somebody may have cut short or edited: what is wrong with it, in a few words.

Who reads the file adds its name and what to do about it.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from drdsgd.errors import InputError

__all__ = ["lacking", "parsed", "validated"]

T = TypeVar("T")


def parsed(text: bytes) -> dict[str, Any]:
    """The object in a JSON file.

    >>> parsed(b'{"name": "ha')
    Traceback (most recent call last):
    drdsgd.errors.InputError: it is not JSON
    """
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError("it is not JSON") from None
    if not isinstance(values, dict):
        raise InputError("it is not a JSON object with named values")
    return values


def lacking(values: dict[str, Any], *names: str) -> None:
    """Refuse an object without these names.

    >>> lacking({"seeds": [0]}, "seeds", "rounds", "quick")
    Traceback (most recent call last):
    drdsgd.errors.InputError: it lacks rounds, quick
    """
    missing = [name for name in names if name not in values]
    if missing:
        raise InputError(f"it lacks {', '.join(missing)}")


def validated(adapter: TypeAdapter[T], values: object) -> T:
    """The values as what they are to be; else the first thing that is wrong with them.

    >>> validated(TypeAdapter(dict[str, list[int]]), {"rounds": [0, "ten"]})
    Traceback (most recent call last):
    drdsgd.errors.InputError: its rounds.1: input should be a valid integer, unable to parse string as an integer
    """
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where, what = ".".join(map(str, first["loc"])), first["msg"][0].lower() + first["msg"][1:]
        missing = first["type"] == "missing"
        raise InputError(f"it lacks {where}" if missing else f"its {where}: {what}" if where else what) from None
