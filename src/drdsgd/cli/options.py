"""Options that several commands share, and the options of an experiment."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.errors import InputError, option
from drdsgd.experiments import registry
from drdsgd.experiments.registry import OPTIONS, parse

__all__ = ["Log", "Out", "Resume", "count", "declare", "experiment_options", "seeds_of"]

Out = Annotated[Path | None, typer.Option("--out", help="output folder; default a new one below runs/")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the run in --out exactly")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="also log metrics to tensorboard or mlflow; repeat for both"),
]

_METAVAR = {int: "INTEGER", float: "NUMBER", bool: "true|false"}
# all options of an experiment, and the commands that have them; user-defined functions add options
_KNOWN = dict(OPTIONS)
_SIGN: list[Callable[[], None]] = []


def experiment_options(without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every option of an experiment; the command gets those that are set as the dictionary `given`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(*arguments: Any, **values: Any) -> Any:
            texts = {name: values.pop(name) for name in _KNOWN if name in values and name not in without}
            given = {name: parse(name, text, _KNOWN) for name, text in texts.items() if text is not None}
            return command(*arguments, **values, given=given)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]

        def sign() -> None:
            options = [_parameter(name) for name in _KNOWN if name not in without]
            with_options.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]  # inspect and typer read it; functions do not declare it
            with_options.__annotations__ = {p.name: p.annotation for p in [*own, *options]}

        sign()
        _SIGN.append(sign)
        return with_options

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    """An option as typer reads it: as text, because `parse` explains a wrong number better than typer does."""
    about, kind, *_ = _KNOWN[name]
    metavar = "TEXT" if isinstance(kind, tuple) else _METAVAR.get(kind, "TEXT")
    spelled = typer.Option(option(name), metavar=metavar, help=about.help, rich_help_panel=about.group)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, spelled]
    )


def declare(arguments: Sequence[str]) -> None:
    """Add the options of the user-defined objectives and optimizers that a command line names."""
    found = dict(OPTIONS)
    for kind, name in _from_outside(arguments):
        found |= registry.known(**{kind: name})
    if found != _KNOWN:
        _KNOWN.clear()
        _KNOWN.update(found)
        for sign in _SIGN:
            sign()


def _from_outside(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The objectives and optimizers in options, in settings of algorithms, in a TOML file and in a run to resume."""
    given: list[tuple[str, object]] = []
    specs: list[str] = []
    for i, word in enumerate(arguments):
        name, equal, value = word.partition("=")
        value = value if equal else "".join(arguments[i + 1 : i + 2])
        if name in ("--objective", "--optimizer"):
            given.append((name[2:], value))
        elif name == "--algorithm":
            specs.append(value)
        paths = [Path(word)] if word.endswith(".toml") else []
        if name == "--out" and "--resume" in arguments:
            paths = [Path(value) / "config.toml", Path(value) / "study.toml"]
        for path in paths:
            with suppress(OSError, ValueError, TypeError):  # the command itself says what is wrong with a file
                content = tomllib.loads(path.read_text(encoding="utf-8"))
                given += [*content.items(), *dict(content.get("options", {})).items()]
                specs += map(str, content.get("algorithms", ()))
    for spec in specs:
        for own in spec.partition(":")[2].split(","):
            key, _, value = own.partition("=")
            given.append((key.strip(), value))
    for key, spelled in given:
        if key in ("objective", "optimizer") and ":" in str(spelled):
            yield key, str(spelled)


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
    """The value of an option that is a whole number, within its bounds; None if it is not given."""
    if text is None:
        return None
    number = int(parse(name, text))
    OPTIONS[name].check(name, number)
    return number
