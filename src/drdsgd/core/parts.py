"""The parts of an algorithm by name: what it solves, what it sends, where it is from.

A part is an objective, an optimizer, or the rule of a server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

from drdsgd.options import Parameter, checked, parameters

__all__ = ["Part", "declare"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Part:
    """A function that makes an objective, an optimizer or a server's algorithm, and what users read about it.

    `sends` is the message size in numbers per link and round (with a server: per client and round); an objective's is
    in addition to the model's d. `own` are its defaults for the options of functions that are applied to its result.
    """

    name: str
    make: Callable[..., Any]
    what: str
    sends: str = ""
    source: str = ""
    own: dict[str, Any] = field(default_factory=dict)
    foreign: bool = False
    """a user's function, whose parameters are all options"""
    averaged: bool = False
    """with a server: whether the common model is the mean of its models over rounds"""

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Its options as its function declares them."""
        return parameters(self.make, foreign=self.name if self.foreign else "")


def declare(
    table: dict[str, Part], what: str, sends: str = "", source: str = "", **own: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Enter a function into a table under its name with dashes, and check its options when it is called."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        made = checked(function)
        name = function.__name__.replace("_", "-")
        table[name] = Part(name, made, what, sends, source, own)
        return made

    return decorate
