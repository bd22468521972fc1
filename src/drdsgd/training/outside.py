"""User-defined functions, `package.module:function`, that make models, objectives and optimizers."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from drdsgd.core.parts import Part
from drdsgd.errors import InputError, a, named, one_line

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
    except Exception as error:  # the user's own code may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            hint = "the folder that holds it must be the current one, or in PYTHONPATH"
            raise InputError(f"{named(field, spelled)}: {error}; {hint}") from error
        raise InputError(f"{named(field, spelled)}: {type(error).__name__}: {one_line(error)}") from error
    if not callable(found):
        raise InputError(f"{named(field, spelled)}: it is {a(type(found))}, not a function")
    return found  # type: ignore[no-any-return]  # whatever the user wrote


def kind_of(spelled: str) -> str:
    """Whether a function makes an optimizer or an objective: its annotation says so, or else its parameter `eta`."""
    function = load("objective", spelled)
    returns = getattr(function, "__annotations__", {}).get("return")  # a type, or its name
    if returns is None:
        with suppress(ValueError, TypeError):  # some functions have no signature
            return "optimizer" if "eta" in inspect.signature(function).parameters else "objective"
    return "optimizer" if getattr(returns, "__name__", str(returns)).endswith("GossipOptimizer") else "objective"


def part(field: str, spelled: str) -> Part:
    """The objective or optimizer that a user-defined function makes; its parameters are options."""
    function = load(field, spelled)

    @functools.wraps(function)
    def make(**options: Any) -> Any:
        try:
            return function(**options)
        except InputError:
            raise
        except Exception as error:  # the user's own code may raise anything
            raise InputError(f"{named(field, spelled)}: {type(error).__name__}: {one_line(error)}") from error

    about = (function.__doc__ or spelled).strip().partition("\n")[0]
    found = Part(spelled, make, about, "?", "your own", foreign=True)
    try:
        options = found.parameters
    except InputError as error:
        raise InputError(named(field, spelled) + error.marked.removeprefix(spelled)) from None
    except Exception as error:  # some functions have no signature, and types may be any text
        why = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{named(field, spelled)}: its parameters cannot be read: {why}") from error
    if field == "optimizer" and ("eta" not in options or options["eta"].default is None):
        raise InputError(f"{named(field, spelled)}: an optimizer needs a parameter eta; write eta: float = 0.1")
    return found
