"""Schedules start and end at the given values, and never rise in between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drdsgd.core.schedules import Schedule, cosine, exponential, linear, schedule_of, warmup
from drdsgd.errors import InputError

# start, T and end -> a schedule
SCHEDULES: dict[str, Callable[[float, int, float], Schedule]] = {
    "linear": linear,
    "cosine": cosine,
    "exponential": lambda start, T, end: exponential(start, max(end, 1e-6) ** (1 / T)),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
@given(st.floats(1e-3, 1e3), st.integers(1, 60), st.floats(0, 1))
def test_from_start_to_end_and_never_up(
    make: Callable[[float, int, float], Schedule], start: float, T: int, end: float
) -> None:
    at = make(start, T, end)
    values = [at(t) for t in range(T + 1)]
    assert values[0] == pytest.approx(start) and values[-1] == pytest.approx(end * start, abs=2e-6 * start)
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values))
    assert all(value >= 0 for value in values)


def test_in_between_they_are_what_they_are_called() -> None:
    assert [linear(0.4, T=10)(t) for t in (0, 5, 10, 11)] == pytest.approx([0.4, 0.2, 0.0, 0.0])
    assert [linear(0.4, T=10, end=0.5)(t) for t in (0, 5, 10)] == pytest.approx([0.4, 0.3, 0.2])
    assert [cosine(0.4, T=10, end=0.5)(t) for t in (0, 5, 10, 11)] == pytest.approx([0.4, 0.3, 0.2, 0.2])
    assert cosine(0.4, T=4)(1) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert [exponential(0.4, 0.5)(t) for t in (0, 1, 3)] == pytest.approx([0.4, 0.2, 0.05])


@given(st.floats(1e-3, 1e3), st.integers(2, 80), st.floats(0.01, 0.99))
def test_warmup_goes_up_and_then_down(top: float, T: int, part: float) -> None:
    """Up to the top in the first part of the rounds, then down to zero at the end; no earlier round has step size 0."""
    values = [warmup(top, T, part)(t) / top for t in range(T + 3)]
    assert all(0 < value <= 1 for value in values[:T]) and values[T:] == pytest.approx([0.0] * 3, abs=1e-12)
    peak = values.index(max(values))
    assert abs(peak - part * T) <= 1 and values[peak] >= 1 - 1 / (T * min(part, 1 - part))
    assert all(before < after for before, after in itertools.pairwise(values[:peak]))
    assert all(before >= after for before, after in itertools.pairwise(values[peak:]))
    assert [warmup(2.0, 10, 0.4)(t) for t in (0, 1, 3, 4, 7, 10)] == pytest.approx([0.5, 1.0, 2.0, 2.0, 1.0, 0.0])


def test_a_number_is_a_schedule_and_a_schedule_stays() -> None:
    assert [schedule_of("eta", 0.5)(t) for t in (0, 9)] == [0.5, 0.5]
    at = linear(1.0, 3)
    assert schedule_of("eta", at) is at


@pytest.mark.parametrize("start", [0.0, -0.1, math.nan, math.inf])
def test_the_start_must_be_positive(start: float) -> None:
    for make in SCHEDULES.values():
        with pytest.raises(InputError, match="start must be a positive number"):
            make(start, 10, 0.1)
    with pytest.raises(InputError, match=r"mu must be a positive number: "):
        schedule_of("mu", start)


def test_what_else_is_refused() -> None:
    for make in (linear, cosine):
        with pytest.raises(InputError, match="T must be a whole number, at least 1"):
            make(0.1, 0)
        for end in (-1.0, 1.1, math.nan):
            with pytest.raises(InputError, match=r"end must be in \[0, 1\]"):
                make(0.1, 5, end)
    for part in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match=r"part must be in .* rounds in which the value rises"):
            warmup(0.1, 5, part)
    with pytest.raises(InputError, match="top must be a positive number"):
        warmup(0.0, 5)
    for decay in (0.0, 1.5, math.nan):
        with pytest.raises(InputError, match="decay must be in"):
            exponential(0.1, decay)
