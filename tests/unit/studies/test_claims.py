"""Rules of verdicts: what they say, that they can say no, and that no number escapes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from drdsgd.report.statistics import Estimate
from drdsgd_studies.shared.claims import Verdict, both, despite, less, more, no_price, paired, together, trend

VERDICTS = get_args(Verdict)
numbers = st.floats(-100, 100, allow_nan=False)
values = st.lists(numbers, min_size=2, max_size=8)


@given(values)
def test_clear_is_the_two_sided_t_test_at_five_percent(sample: list[float]) -> None:
    estimate = Estimate.over(sample)
    if estimate.error > 1e-9 * max(1.0, abs(estimate.mean)):
        p = float(ttest_1samp(sample, 0.0).pvalue)
        if abs(p - 0.05) > 1e-6:
            assert estimate.clear == (p < 0.05)


@given(values, st.floats(0, 50))
def test_more_is_decided_by_the_interval(sample: list[float], enough: float) -> None:
    estimate = Estimate.over(sample)
    low, high = estimate.interval
    verdict = more(estimate, enough)
    if verdict == "holds":
        assert low > 0 and estimate.mean >= enough
    elif verdict == "holds in part":
        assert low > 0 and estimate.mean < enough
    elif verdict == "does not hold":
        assert low <= 0 and (high < enough or high <= 0)
    else:
        assert low <= 0 < high and high >= enough  # both are possible
    assert less(Estimate(-estimate.mean, estimate.error, estimate.n), enough) == verdict


def test_noise_tells_nothing() -> None:
    assert more(Estimate(2.1, 9.9, 5), 3.5) == "cannot be told"
    assert more(Estimate(-2.1, 9.9, 5), 3.5) == "cannot be told"
    assert no_price(Estimate(-1.9, 6.0, 5)) == "holds in part"
    assert no_price(Estimate(-2.1, 6.0, 5)) == "cannot be told"


@pytest.mark.parametrize("rule", [more, less, no_price])
@pytest.mark.parametrize("n", [0, 1])
def test_one_seed_tells_nothing(rule: Callable[[Estimate], Verdict], n: int) -> None:
    assert rule(Estimate.over([5.0] * n)) == "cannot be told"


def test_a_price_of_more_than_two_points_is_not_almost_the_same() -> None:
    assert [no_price(Estimate(d, 0.1, 5)) for d in (-1.7, -1.8, -2.2, -2.3)] == [
        "holds", "holds in part", "cannot be told", "does not hold",
    ]  # fmt: skip


@given(st.lists(st.dictionaries(st.integers(0, 4), numbers, min_size=2, max_size=5), min_size=2, max_size=4))
def test_a_trend_cannot_go_both_ways(steps: list[dict[int, float]]) -> None:
    up, down = trend(steps, 1), trend(steps, -1)
    assert {up, down} <= set(VERDICTS)
    assert not (up in ("holds", "holds in part") and down in ("holds", "holds in part"))


def test_a_trend_needs_the_steps_between_in_order() -> None:
    low, high, middle = {0: 1.0, 1: 1.1}, {0: 3.0, 1: 3.1}, {0: 2.0, 1: 2.1}
    assert trend([low, middle, high], 1) == "holds"
    assert trend([low, high, middle], 1) == "holds in part"
    assert trend([high, middle, low], 1) == "does not hold"
    assert trend([low, middle, {}], 1) == "cannot be told"
    assert trend([low, {}, high], 1) == "holds in part"  # the middle is not known


@given(st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=5))
def test_cases_together(verdicts: list[Verdict]) -> None:
    whole = together(verdicts)
    assert whole in VERDICTS
    assert (whole == "holds") == (set(verdicts) == {"holds"})
    assert (whole == "cannot be told") == (set(verdicts) == {"cannot be told"})
    if whole == "does not hold":
        assert not {"holds", "holds in part"} & set(verdicts)


@given(st.sampled_from(VERDICTS), st.sampled_from(VERDICTS))
def test_both_is_never_better_than_either(one: Verdict, other: Verdict) -> None:
    assert both(one, other) == both(other, one)
    assert (both(one, other) == "holds") == (one == other == "holds")
    assert ("does not hold" in (one, other)) == (both(one, other) == "does not hold")


@given(st.integers(0, 5), st.sampled_from(VERDICTS))
def test_a_side_that_diverges_does_not_win(lost: int, verdict: Verdict) -> None:
    found = despite(lost, 5, verdict)
    assert found == (verdict if lost == 0 else found)
    if lost:
        assert found != "holds"
    if lost > 2:
        assert found == "does not hold"


def test_pairs_are_of_the_same_seed() -> None:
    assert paired({0: 1.0, 1: 2.0}, {1: 5.0, 2: 0.0}) == pytest.approx(Estimate(-3.0, math.nan, 1), nan_ok=True)
