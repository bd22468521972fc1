"""The message of a refused call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from drdsgd.errors import InputError


def says(*words: str) -> Any:
    """A context that expects an InputError of one line that has all the words."""
    return pytest.raises(InputError, check=lambda e: "\n" not in str(e) and all(w in str(e) for w in words))


def message(call: Callable[[], object], *words: str) -> str:
    """The one line of the InputError that the call raises; it must contain the words."""
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} not in {text!r}"
    return text
