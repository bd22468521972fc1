"""Functions from outside, `package.module:function`: models, objectives and optimizers of your own."""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drdsgd.core.optimizers import GossipOptimizer
from drdsgd.core.parts import Part
from drdsgd.errors import InputError, named, one_line

__all__ = ["kind_of", "load", "part"]


def load(field: str, spelled: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; a module in the current folder is found, too.

    >>> load("objective", "math:sin")
    <built-in function sin>
    """
    module, _, function = spelled.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: it must not hide an installed package
    try:
        found: Any = importlib.import_module(module)
        for name in function.split("."):
            found = getattr(found, name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{named(field, spelled)}: {error}; the folder that holds it must be the current one, or in PYTHONPATH"
        ) from error
    except Exception as error:  # the user's own code may raise anything
        raise InputError(f"{named(field, spelled)}: {type(error).__name__}: {one_line(error)}") from error
    if not callable(found):
        raise InputError(f"{named(field, spelled)}: it is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]  # whatever the user wrote


def kind_of(spelled: str) -> str:
    """Whether a function makes an optimizer, as its annotation says, or an objective."""
    returns = typing.get_type_hints(load("objective", spelled)).get("return")
    return "optimizer" if returns is GossipOptimizer else "objective"


def part(field: str, spelled: str) -> Part:
    """The objective or optimizer that a function from outside makes; its parameters are options."""
    function = load(field, spelled)
    made = Part(
        spelled, function, (function.__doc__ or spelled).strip().partition("\n")[0], "?", "your own", foreign=True
    )
    try:
        assert made.parameters is not None
    except InputError as error:
        raise InputError(f"{named(field)} {error.marked}") from None
    return made
