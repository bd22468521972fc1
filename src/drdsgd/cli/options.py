"""Options that several commands share, and the options of an experiment."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.errors import InputError
from drdsgd.experiments.options import OPTIONS, parse, spelling

__all__ = ["Log", "Out", "Resume", "count", "experiment_options", "seeds_of"]

Out = Annotated[Path | None, typer.Option("--out", help="output folder; default a new one below runs/")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the run in --out exactly")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="also log metrics to tensorboard or mlflow; repeat for both"),
]

_METAVAR = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def experiment_options(without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every option of an experiment; the command gets those that are set as the dictionary `given`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(*arguments: Any, **values: Any) -> Any:
            texts = {name: values.pop(name) for name in OPTIONS if name in values and name not in without}
            given = {name: parse(name, text) for name, text in texts.items() if text is not None}
            return command(*arguments, **values, given=given)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    # as text: `parse` explains a wrong number better than typer does
                    str | None,
                    typer.Option(
                        spelling(name), metavar=_METAVAR[option.type], help=option.help, rich_help_panel=option.group
                    ),
                ],
            )
            for name, option in OPTIONS.items()
            if name not in without
        ]
        with_options.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]  # inspect and typer read it; functions do not declare it
        with_options.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
        return with_options

    return decorate


def seeds_of(text: str) -> tuple[int, ...]:
    """Seeds from a text: `3` means 0, 1, 2; `4,7` means 4 and 7."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: give a number of seeds, such as 3, or the seeds, such as 0,3,7") from None
    if len(numbers) == 1 and numbers[0] > 10_000:
        raise InputError(f"--seeds {text}: too many; give a number of seeds, such as 3, or the seeds, such as 0,3,7")
    chosen = tuple(range(numbers[0])) if len(numbers) == 1 else tuple(numbers)
    if not chosen or min(chosen) < 0 or len(set(chosen)) != len(chosen):
        raise InputError(f"--seeds {text}: give at least one seed, each once, none below 0")
    return chosen


def count(name: str, text: str | None) -> int | None:
    """A whole number, at least 1; None if it is not given."""
    if text is None:
        return None
    number = int(parse(name, text))
    if number < 1:
        raise InputError(f"{spelling(name)} {number}: must be at least 1")
    return number
