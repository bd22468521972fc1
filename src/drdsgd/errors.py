"""Errors that are not bugs, and helpers to write their messages."""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Sequence
from numbers import Integral

__all__ = [
    "Died", "Diverged", "InUse", "InputError", "Interrupted",
    "a", "flag", "named", "one_line", "option", "out_of_memory", "positive", "unknown", "whole",
]  # fmt: skip

# how `named` marks an argument in a message: start, name, separator, value (in quotes if it is a text), end; a flag has
# an empty value
_NAMED = re.compile("\x02(\\w+)(?:\x1f([^\x03]*))?\x03")


def named(argument: str, value: object = None) -> str:
    """An argument in the message of an error, with its value: `mu=3` in Python, `--mu 3` on the command line.

    A path, a date and the like are shown as texts.

    >>> print(InputError(f"{named('weight_cap', 0)}: must be positive; leave out {named('mu')}"))
    weight_cap=0: must be positive; leave out mu
    """
    if value is None:
        return f"\x02{argument}\x03"
    value = value.item() if hasattr(value, "item") else value  # numpy's numbers as Python's
    plain = value if isinstance(value, str | int | float | list | tuple | dict) else str(value)
    return f"\x02{argument}\x1f{plain!r}\x03"


def flag(argument: str) -> str:
    """A flag in the message of an error: `resume=True` in Python, `--resume` on the command line.

    >>> error = InputError(f"continue it with {flag('resume')}")
    >>> str(error), error.on_command_line
    ('continue it with resume=True', 'continue it with --resume')
    """
    return f"\x02{argument}\x1f\x03"


def option(argument: str) -> str:
    """An argument's option on the command line.

    >>> option("batch_size")
    '--batch-size'
    """
    return "--" + argument.replace("_", "-")


class _Message:
    """One line in which arguments are marked; the library and the command line spell them differently."""

    args: tuple[object, ...]

    @property
    def marked(self) -> str:
        """The message with its marks, to be quoted in the message of another error."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return _NAMED.sub(lambda found: found[1] if found[2] is None else f"{found[1]}={found[2] or True}", self.marked)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @property
    def on_command_line(self) -> str:
        """The message with options instead of arguments.

        >>> InputError(f"{named('graph', 'rign')}: unknown; give {named('loss_clip')}").on_command_line
        '--graph rign: unknown; give --loss-clip'
        """
        return _NAMED.sub(lambda found: option(found[1]) + _bare(found[2]), self.marked)


def _bare(value: str | None) -> str:
    """A value as it is typed in a shell: a text without its quotes, and nothing for a flag."""
    if not value:
        return ""
    is_text = value[0] in ("'", '"')
    return f" {ast.literal_eval(value) if is_text else value}"


class InputError(_Message, ValueError):
    """A user's mistake: one line that names the argument (`named`), the value and the fix.

    The command line prints the line with its options and exits with status 2. In Python it is a `ValueError`.
    """


class InUse(InputError):
    """Another process is using the run folder."""


class Diverged(_Message, ArithmeticError):
    """A loss or a model is no longer finite: one line that names the round, the device, the loss and the fixes."""

    def __init__(self, message: str, *, round: int, device: int) -> None:
        super().__init__(message)
        self.round = round
        self.device = device


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and saved a checkpoint after its last complete round."""


class Died(_Message, RuntimeError):
    """The process of a run was killed or crashed; the run can be resumed."""


def out_of_memory(error: Exception) -> bool:
    """Whether an exception means that memory ran out; on the CPU torch has no class for it.

    >>> out_of_memory(RuntimeError("can't allocate memory: you tried 72 GB")), out_of_memory(RuntimeError("a bug"))
    (True, False)
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error))


def one_line(error: BaseException) -> str:
    """An exception's message on one line, to be quoted in another message.

    >>> one_line(ValueError("first\\n second"))
    'first second'
    """
    return " ".join(str(error).split()) or type(error).__name__


def whole(argument: str, value: object, least: int = 1) -> int:
    """A whole number that is at least `least`, or an `InputError` that names the argument.

    >>> whole("K", 2.5)
    Traceback (most recent call last):
    drdsgd.errors.InputError: K must be a whole number, at least 1, got 2.5: change K
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{argument} must be a whole number, at least {least}, got {value!r}: change {argument}")
    return int(value)


def positive(argument: str, value: float) -> float:
    """A positive number, or an `InputError` that names the argument.

    >>> positive("mu", -1.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: mu must be a positive number: -1
    """
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{argument} must be a positive number: {value:g}")
    return value


def a(kind: type) -> str:
    """The name of a type with its article.

    >>> a(int), a(str)
    ('an int', 'a str')
    """
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def unknown(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or all of them.

    >>> unknown("digit", ["digits", "synthetic"])
    'unknown, did you mean digits?'
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown, did you mean {near[0]}?" if near else f"unknown; known are {', '.join(known)}"
