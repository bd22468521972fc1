"""The numbers are those of the records, with the errors that statistics gives them."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from drdsgd.experiments.records import find_runs
from drdsgd.report.groups import groups
from drdsgd.report.statistics import KINDS, MEASURES, Estimate, Kind, Measure, curve, final, table
from tests.support.made import record
from tests.support.made import study as study  # a fixture


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("measure", MEASURES)
def test_the_table_is_what_the_records_say(study: Path, kind: Kind, measure: Measure) -> None:
    rows = {(row.label, row.kind): row for row in table(groups(find_runs([study])))}
    ends = {}
    for label in ("dsgd", "dr-dsgd"):
        lines = [(study / label / f"seed-{k}" / "metrics.jsonl").read_text().splitlines()[-1] for k in (0, 1)]
        ends[label] = a, b = [json.loads(line)[kind][measure] for line in lines]
        row = rows[label, kind]
        assert (row.runs, row.seeds, row.diverged, row.unfinished) == (2, 2, 0, 0)
        assert getattr(row, measure).mean == pytest.approx((a + b) / 2)
        # for two values it is half their distance
        assert getattr(row, measure).error == pytest.approx(abs(a - b) / 2)
    if measure in ("worst", "average"):
        c, d = (y - x for x, y in zip(ends["dsgd"], ends["dr-dsgd"], strict=True))
        difference = getattr(rows["dr-dsgd", kind], f"{measure}_difference")
        assert (difference.mean, difference.error) == pytest.approx(((c + d) / 2, abs(c - d) / 2))
        assert getattr(rows["dsgd", kind], f"{measure}_difference") is None


def test_differences_are_over_common_finished_seeds() -> None:
    first = [record([40 + k, 80], algorithm="dsgd", seed=k) for k in range(4)]
    other = [record([50 + 3 * k, 80], seed=k) for k in range(1, 5)]
    other[0] = dataclasses.replace(other[0], status="diverged")
    row = table(groups(first + other))[1]
    assert (row.runs, row.seeds, row.diverged) == (4, 3, 1)
    assert row.worst.mean == pytest.approx((56 + 59 + 62) / 3)
    assert row.worst_difference == Estimate.over([56 - 42, 59 - 43])


@pytest.mark.parametrize(
    ("values", "text"),
    [([80.0], "80.0"), ([80.0, 80.0], "80.0 ± 0.0"), ([0.01, 0.11], "0.06 ± 0.05"), ([-3.0, -1.0], "−2.0 ± 1.0")],
)
def test_an_estimate_shows_digits_that_mean_something(values: list[float], text: str) -> None:
    assert str(Estimate.over(values)) == text


def test_curves_of_unequal_length() -> None:
    whole = [record([40, 80], seed=k, rounds=(0, 2, 4, 6)) for k in (0, 1)]
    lost = record([20, 30], seed=2, rounds=(0, 2), status="diverged")
    points = curve([*whole, lost], "consensus", "worst")
    assert points.rounds == [0, 2, 4, 6]
    assert [value.n for value in points.values] == [3, 3, 2, 2]
    assert [value.mean for value in points.values] == pytest.approx([50, 40, 50, 40])


def test_a_curve_has_only_rounds_that_all_who_got_there_have() -> None:
    runs = [record([40, 80], rounds=(0, 2, 3, 6)), record([40, 80], seed=1, rounds=(0, 2, 4, 6))]
    assert curve(runs, "local", "stdev").rounds == [0, 2, 6]


def test_without_local_models_a_curve_has_the_rounds_that_have_them() -> None:
    run = record([40, 80], rounds=(0, 2, 4, 6), status="diverged")
    seldom = replace(run, metrics=[replace(m, local=m.local if m.round == 2 else None) for m in run.metrics])
    assert curve([seldom], "local", "worst").rounds == [2] and curve([seldom], "consensus", "worst").rounds[-1] == 6
    assert math.isnan(final(seldom, "local", "worst")) and final(seldom, "consensus", "worst") == 40


def test_there_is_no_minus_zero() -> None:
    assert [Estimate(mean, 0.3, 5).format("+") for mean in (-0.04, 0.04, -0.06)] == [
        "0.0 ± 0.3", "+0.0 ± 0.3", "−0.1 ± 0.3",
    ]  # fmt: skip
    assert str(Estimate(-0.004, 0.05, 5)) == "0.00 ± 0.05"
