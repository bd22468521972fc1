"""Tuning: the same budget of trials for every method, spent one setting after another.

A search begins at a point, which has a value for every tuned setting. It tries step sizes first, and extends their
range as long as the best one lies at an end. Then it tries all values of every other setting in turn, each with the
best of the rest so far, and then step sizes between those tried. It repeats this until the budget is spent or nothing
new is left to try. What it tries next depends on scores alone, so the same scores give the same search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drdsgd_studies.shared.plan import rounded

__all__ = ["Point", "Search", "search"]

# the value of every tuned setting, by name
Point = Mapping[str, Any]

# multiples of the first step size, tried first
FIRST = (1.0, 0.5, 2.0, 4.0)


@dataclass
class Search:
    """The tried points with their scores, in order; and the points whose scores are wanted next, if any."""

    tried: list[tuple[Point, float]] = field(default_factory=list)
    wanted: list[Point] = field(default_factory=list)

    @property
    def best(self) -> Point | None:
        """The point with the largest score; the first of equals. None if every score is minus infinity."""
        if not self.tried:
            return None
        point, score = max(self.tried, key=lambda one: one[1])
        return None if score == -math.inf else point


def search(
    start: Point, axes: Mapping[str, Sequence[Any]], budget: int, score: Callable[[Point], float | None]
) -> Search:
    """Spend the budget from `start` on; `score` returns None for a point whose score is not known yet.

    `axes` are the values of each setting except "eta", in the order of tuning.

    >>> found = search({"eta": 1.0, "mu": 1.0}, {"mu": (1.0, 3.0)}, 6, lambda p: -abs(p["eta"] - 2) - abs(p["mu"] - 3))
    >>> len(found.tried), found.best == {"eta": 2.0, "mu": 3.0}
    (6, True)
    """
    found = Search()
    for candidates in _stages(start, axes, found):
        known = {_key(point) for point, _ in found.tried}
        new = [point for point in candidates if _key(point) not in known][: budget - len(found.tried)]
        scores = [score(point) for point in new]
        found.wanted = [point for point, value in zip(new, scores, strict=True) if value is None]
        found.tried += [(point, value) for point, value in zip(new, scores, strict=True) if value is not None]
        if found.wanted or len(found.tried) >= budget:
            break
    return found


def _stages(start: Point, axes: Mapping[str, Sequence[Any]], found: Search) -> Iterator[list[Point]]:
    """The stages of points to try; `found` grows between two stages."""
    yield [{**start, "eta": rounded(m * start["eta"])} for m in FIRST]
    before = 0
    for finer in itertools.count():
        if len(found.tried) == before:  # a whole turn with nothing new
            return
        before = len(found.tried)
        while at_end := _beyond(found, start):
            yield [at_end]
        for name, values in axes.items():
            yield [{**(found.best or start), name: value} for value in values]
        best = found.best or start
        between = 2 ** (0.5 ** (1 + finer))
        yield [{**best, "eta": rounded(best["eta"] * m)} for m in (between, 1 / between)]


def _beyond(found: Search, start: Point) -> Point | None:
    """A step size beyond all tried ones, if the best is the largest or the smallest."""
    best = found.best
    if best is None:  # all failed: shorter steps
        return {**start, "eta": rounded(min(point["eta"] for point, _ in found.tried) / 2)}
    alike = [point["eta"] for point, _ in found.tried if {**point, "eta": 0} == {**best, "eta": 0}]
    if len(alike) < 3:  # too few step sizes were tried with this setting
        return None
    if best["eta"] == max(alike):
        return {**best, "eta": rounded(2 * best["eta"])}
    return {**best, "eta": rounded(best["eta"] / 2)} if best["eta"] == min(alike) else None


def _key(point: Point) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(point.items()))
