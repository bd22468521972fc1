"""Signatures as the running program has them: mkdocstrings reads source files, and does not run them.

A constructor such as `drdsgd.dr_dsgd` is made from declarations, so no source file holds its signature. A default such
as `Settings.rounds` or `paper_step` is a name there, and a value on the page.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import griffe

from drdsgd.baselines import SERVERS
from drdsgd.core.algorithms import ALGORITHMS
from drdsgd.core.schedules import Schedule
from drdsgd.options import Rule

__all__ = ["Signatures", "shown"]

# modules of the reference page whose functions have names as defaults
WITH_NAMES = ("training.loop", "training.algorithms", "core.objectives", "core.optimizers")


class Signatures(griffe.Extension):
    """Adds the constructors, and puts values for names into other functions' defaults."""

    def on_package(self, *, pkg: griffe.Module, **others: Any) -> None:
        if pkg.path != "drdsgd":
            return
        for home, name, constructor, result in _constructors():
            members = pkg[home].members
            members.pop(name, None)
            pkg[home].set_member(name, _as_function(name, constructor, result))
        for home in WITH_NAMES:
            for name, value in vars(import_module(f"drdsgd.{home}")).items():
                one = pkg[home].members.get(name)
                if isinstance(one, griffe.Function):
                    _with_values(one, value)


def _constructors() -> Iterator[tuple[str, str, Callable[..., Any], str]]:
    """The page's module, the name and the function of every constructor, and the class of its result."""
    for home, table, result in (
        ("core.algorithms", ALGORITHMS, "Algorithm"),
        ("baselines", SERVERS, "ServerAlgorithm"),
    ):
        for dashed in table:
            name = dashed.replace("-", "_")
            yield home, name, getattr(import_module(f"drdsgd.{home}"), name), result


def _as_function(name: str, constructor: Callable[..., Any], result: str) -> griffe.Function:
    known = [
        griffe.Parameter(
            key,
            annotation=inspect.formatannotation(one.annotation).replace(str(Schedule), "Schedule"),
            kind=griffe.ParameterKind[one.kind.name.lower()],
            default=shown(one.default),
        )
        for key, one in inspect.signature(constructor).parameters.items()
    ]
    about = griffe.Docstring(inspect.getdoc(constructor) or "")
    return griffe.Function(name, parameters=griffe.Parameters(*known), returns=result, docstring=about)


def _with_values(one: griffe.Function, function: Callable[..., Any]) -> None:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty and (text := shown(parameter.default)) is not None:
            one.parameters[name].default = text


def shown(default: object) -> str | None:
    """A default as a signature shows it; None of a value without such a text.

    >>> from drdsgd.options import paper_step
    >>> shown(paper_step), shown("auto"), shown(0.1), shown(map)
    ('Rule("sqrt(K / T)")', "'auto'", '0.1', None)
    """
    if isinstance(default, Rule):
        return f'Rule("{default.words}")'
    return repr(default) if default is None or isinstance(default, int | float | str) else None
