"""Schedules: numbers that change over rounds, `t -> value`. A step size is a number or a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from drdsgd.errors import InputError, named, positive, unknown, whole
from drdsgd.options import Rule

__all__ = [
    "SCHEDULES",
    "Schedule",
    "cosine",
    "exponential",
    "highest",
    "linear",
    "said",
    "schedule_of",
    "spelled",
    "warmup",
]

Schedule = Callable[[int], float]
SCHEDULES = ("constant", "linear", "cosine", "exponential", "warmup")


@dataclass(frozen=True)
class _Named:
    """A schedule with a description, for the model card, and its largest value."""

    at: Schedule
    words: str
    top: float

    def __call__(self, t: int) -> float:
        return self.at(t)


def said(value: float | Schedule) -> str:
    """A number or a schedule as a text.

    >>> said(0.25), said(linear(0.4, T=60)), said(lambda t: 0.5 / (t + 1))
    ('0.25', '0.4, linear to 0 in 60 rounds', '0.5 at first, then your own schedule')
    """
    if isinstance(value, _Named | Rule):
        return value.words
    return f"{value(0):.4g} at first, then your own schedule" if callable(value) else f"{value:.4g}"


def highest(value: float | Schedule) -> float | None:
    """The largest value of a number or a schedule; the first of a schedule of your own; None of a rule.

    >>> highest(0.25), highest(warmup(0.4, T=60)), highest(lambda t: 0.5 / (t + 1))
    (0.25, 0.4, 0.5)
    """
    if isinstance(value, _Named | Rule):
        return value.top if isinstance(value, _Named) else None
    return value(0) if callable(value) else value


def linear(start: float, T: int, end: float = 0.0) -> Schedule:
    """A straight line from `start` at round 0 to `end * start` at round T.

    >>> [linear(0.4, T=4)(t) for t in range(5)]
    [0.4, 0.3..., 0.2, 0.1, 0.0]
    """
    start, T, end = positive("start", start), whole("T", T), _part(end)
    words = f"{start:.4g}, linear to {end * start:.4g} in {T} rounds"
    return _Named(lambda t: start * (1 - (1 - end) * min(t / T, 1.0)), words, start)


def cosine(start: float, T: int, end: float = 0.0) -> Schedule:
    """Half a cosine from `start` at round 0 to `end * start` at round T.

    >>> [round(cosine(0.4, T=4)(t), 3) for t in range(5)]
    [0.4, 0.341, 0.2, 0.059, 0.0]
    """
    start, T, end = positive("start", start), whole("T", T), _part(end)
    words = f"{start:.4g}, cosine to {end * start:.4g} in {T} rounds"
    return _Named(lambda t: start * (end + (1 - end) * (1 + math.cos(math.pi * min(t / T, 1.0))) / 2), words, start)


def exponential(start: float, decay: float) -> Schedule:
    """`start * decay^t`.

    >>> [exponential(0.8, 0.5)(t) for t in range(3)]
    [0.8, 0.4, 0.2]
    """
    start = positive("start", start)
    if not 0 < decay <= 1:
        raise InputError(f"decay must be in (0, 1]: {decay:g}; 0.99 halves in 69 rounds")
    return _Named(lambda t: start * decay**t, f"{start:.4g}, multiplied by {decay:g} in every round", start)


def warmup(top: float, T: int, part: float = 0.1) -> Schedule:
    """A straight line up to `top` in the first `part` of the rounds, then a straight line down to zero at round T.

    >>> [round(warmup(0.9, T=10, part=0.1)(t), 3) for t in (0, 1, 5, 10)]
    [0.9, 0.9, 0.5, 0.0]
    """
    top, T = positive("top", top), whole("T", T)
    if not 0 < part < 1:
        raise InputError(
            f"part must be in (0, 1): {part:g}; it is the share of the rounds in which the value rises, 0.1 is usual"
        )
    words = f"linear up to {top:.4g} in the first {100 * part:g} % of {T} rounds, then linear to 0"
    return _Named(lambda t: top * min((t + 1) / (part * T), max(0.0, (1 - t / T) / (1 - part)), 1.0), words, top)


def schedule_of(name: str, value: float | Schedule) -> Schedule:
    """A schedule as it is, or a positive number as a constant schedule.

    >>> schedule_of("eta", 0.5)(7)
    0.5
    """
    if callable(value):
        return value
    constant = positive(name, value)
    return lambda t: constant


def spelled(name: str, start: float, schedule: str, rounds: int) -> float | Schedule:
    """The value in every round, or a function of the round, from a text: `linear:0.1` ends at a tenth of `start`.

    >>> spelled("eta", 0.5, "linear", rounds=100)(50)
    0.25
    """
    said = named(f"{name}_schedule", schedule)
    kind, _, number = schedule.partition(":")
    if kind not in SCHEDULES:
        raise InputError(f"{said}: {unknown(kind, SCHEDULES)}")
    try:
        value = float(number) if number else None
    except ValueError:
        raise InputError(f"{said}: '{number}' is not a number; write {kind}:0.1") from None
    if kind == "constant":
        if value is not None:
            raise InputError(f"{said}: constant takes no number; set {named(name)}")
        return start
    if kind == "exponential" and value is None:
        raise InputError(f"{said}: give the decay per round, for example exponential:0.99")
    if name == "mu" and kind == "warmup":
        raise InputError(f"{said}: mu must stay above zero; write linear:0.1 to end at a tenth of mu")
    if name == "mu" and kind in ("linear", "cosine") and not value:
        raise InputError(f"{said}: mu must stay above zero; write {kind}:0.1 to end at a tenth of mu")
    own = () if value is None else (value,)
    try:
        if kind == "exponential":
            return exponential(start, *own)
        return {"linear": linear, "cosine": cosine, "warmup": warmup}[kind](start, rounds, *own)
    except InputError as error:
        raise InputError(f"{said}: {error.marked}") from None


def _part(end: float) -> float:
    if not 0 <= end <= 1:
        raise InputError(f"end must be in [0, 1]: {end:g}; it is a share of the start")
    return end
