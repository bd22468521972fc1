"""The ways a run ends early that are not bugs."""

from __future__ import annotations

__all__ = ["Diverged", "InputError", "Interrupted", "one_line"]


class InputError(ValueError):
    """What a user got wrong: one line that says what, where, which value, and how to fix it.

    The command line prints the line and exits with status 2; from Python it is a `ValueError`.
    """


class Diverged(ArithmeticError):
    """Training left the range of floats: one line that names round, device, loss and the cures."""

    def __init__(self, message: str, *, round: int, device: int) -> None:
        super().__init__(message)
        self.round = round
        self.device = device


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and left a checkpoint after its last whole round."""


def one_line(error: BaseException) -> str:
    """An exception's message on one line, for use within another.

    >>> one_line(ValueError("first\\n second"))
    'first second'
    """
    return " ".join(str(error).split()) or type(error).__name__
