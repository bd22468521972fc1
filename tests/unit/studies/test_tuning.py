"""A search spends its budget, finds what is there to find, and goes the same way whenever it is asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drdsgd_studies.league.tuning import Point, search

AXES: dict[str, Sequence[Any]] = {"schedule": ("linear", "warmup"), "mu": (1.0, 0.3, 3.0)}
START: dict[str, Any] = {"eta": 1.0, "schedule": "linear", "mu": 1.0}


def hill(eta: float, mu: float, schedule: str) -> Any:
    """A score with one top."""
    return lambda p: -abs(math.log2(p["eta"] / eta)) - abs(math.log(p["mu"] / mu)) - (p["schedule"] != schedule)


@given(st.floats(-5, 6), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from(["linear", "warmup"]), st.integers(1, 18))
def test_the_budget_is_spent_on_points_that_differ(top: float, mu: float, schedule: str, budget: int) -> None:
    found = search(START, AXES, budget, hill(2**top, mu, schedule))
    assert len(found.tried) == budget and not found.wanted
    assert len({tuple(sorted(point.items())) for point, _ in found.tried}) == budget
    assert all(point.keys() == START.keys() for point, _ in found.tried)


@given(st.floats(-2, 4), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from(["linear", "warmup"]))
def test_a_single_top_is_found(top: float, mu: float, schedule: str) -> None:
    best = search(START, AXES, 14, hill(2**top, mu, schedule)).best
    assert best is not None
    assert (best["mu"], best["schedule"]) == (mu, schedule)
    assert abs(math.log2(best["eta"]) - top) <= 0.5


def test_step_sizes_come_first_and_go_on_where_the_best_lies_at_the_end() -> None:
    found = search(START, AXES, 7, hill(30.0, 1.0, "linear"))
    assert [point["eta"] for point, _ in found.tried] == [1.0, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0]
    found = search(START, AXES, 6, hill(0.1, 1.0, "linear"))
    assert [point["eta"] for point, _ in found.tried] == [1.0, 0.5, 2.0, 4.0, 0.25, 0.125]


def test_what_diverges_is_tried_with_shorter_steps() -> None:
    found = search(START, AXES, 8, lambda p: -math.inf)
    assert found.best is None and found.tried[-1][0]["eta"] == pytest.approx(1 / 32, rel=1e-2)
    found = search(START, AXES, 8, lambda p: 1.0 if p["eta"] < 0.3 else -math.inf)
    assert found.best is not None and found.best["eta"] <= 0.25


@given(st.floats(-3, 3), st.integers(1, 20), st.integers(1, 4))
def test_asked_step_by_step_it_goes_the_same_way(top: float, budget: int, at_once: int) -> None:
    """As runs finish, and as a job that was stopped goes on: a search wants what it would have tried, and has tried
    what is known, also where a stage of it is not over.
    """
    true, known = hill(2**top, 0.3, "warmup"), dict[tuple[Any, ...], float]()

    def key(point: Point) -> tuple[Any, ...]:
        return tuple(sorted(point.items()))

    while (found := search(START, AXES, budget, lambda p: known.get(key(p)))).wanted:
        assert len(found.tried) + len(found.wanted) <= budget
        assert {key(point) for point, _ in found.tried} == known.keys()
        for point in found.wanted[:at_once]:
            assert key(point) not in known
            known[key(point)] = true(point)
    assert found.tried == search(START, AXES, budget, true).tried


def test_a_search_ends_where_there_is_nothing_new() -> None:
    found = search(START, AXES, 1000, hill(2.0, 0.3, "warmup"))
    assert 15 < len(found.tried) < 100 and not found.wanted


def test_nothing_else_is_tuned_where_there_is_nothing_else() -> None:
    found = search({"eta": 1.0}, {}, 12, lambda p: -abs(math.log2(p["eta"] / 1.3)))
    assert len(found.tried) == 12 and found.best is not None
    assert abs(math.log2(found.best["eta"] / 1.3)) < 0.1  # finer and finer
