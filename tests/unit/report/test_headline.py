"""The sentence says what the numbers show, and no more."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from drdsgd import report
from drdsgd.experiments.records import Record
from drdsgd.report.groups import groups
from drdsgd.report.headline import caveats, headline, vanished
from drdsgd.report.statistics import table
from drdsgd.training.metrics import standard_error
from tests.support.made import pair, record


def test_headline_better_at_a_price() -> None:
    worst, average = [10.0, 12.0, 11.0, 13.0], [-2.0, -1.0, -2.0, -1.0]
    text = headline(pair(worst, average))
    assert "dr-dsgd serves the worst-off device better than dsgd" in text
    assert f"11.5 ± {standard_error(worst):.1f} points higher" in text
    assert f"at the price of 1.5 ± {standard_error(average):.1f} points of average accuracy" in text
    assert "4 paired seeds" in text


def test_headline_worse() -> None:
    text = headline(pair([-10.0, -12.0, -11.0], [-5.0, -5.5, -6.0]))
    assert "serves the worst-off device worse than dsgd: its accuracy is 11.0 ± 0.6 points lower" in text
    assert "average accuracy is 5.5 ± 0.3 points lower" in text
    assert "price" not in text


def test_headline_not_clear() -> None:
    text = headline(pair([10.0, -12.0, 5.0], [1.0, 1.1, 1.2]))
    assert "It is not clear whether dr-dsgd serves the worst-off device better than dsgd" in text
    assert "+1.0 ± 6.7 points" in text
    assert "average accuracy is 1.10 ± 0.06 points higher" in text
    assert "not clear" in headline(pair([0.0, 0.0], [0.0, 0.0]))


def test_headline_average_not_clear() -> None:
    assert "does not clearly change (−0.5 ± 0.5 points)" in headline(pair([9.0, 10.0], [-1.0, 0.0]))


def test_one_seed_tells_nothing_of_chance() -> None:
    text = headline(pair([10.0], [-1.0]))
    assert (
        "replacing dsgd by dr-dsgd changes the worst-off device's accuracy by +10.0 points and the average by −1.0"
        in text
    )
    assert "one seed cannot tell" in text
    assert "±" not in text


def test_of_many_the_best_is_in_the_headline_and_a_note_says_so() -> None:
    runs = [record([40 + k, 80], algorithm="dsgd", seed=k) for k in range(3)]
    runs += [record([gain + 40 + 2 * k, 80], mu=mu, seed=k) for mu, gain in ((3.0, 5), (6.0, 20)) for k in range(3)]
    rows = table(groups(runs))
    assert headline(rows).startswith("dr-dsgd mu=6 serves the worst-off device better")
    assert any("best of 2" in note for note in caveats(rows))
    assert any("3 seeds" in note for note in caveats(rows))


def test_one_group_has_a_headline_of_its_own() -> None:
    rows = table(groups([record([40, 80], seed=k) for k in (0, 1)]))
    assert (
        "dr-dsgd the worst-off device ends at 40.0 ± 0.0 % accuracy, 20.0 ± 0.0 points below the average over devices, "
        "60.0 ± 0.0 %"
    ) in headline(rows)
    assert caveats(rows) == []


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([80, 40, 60], "the worst-off device, device 1, ends at 40.0 % accuracy, 20.0 points below the average"),
        ([40, 80, 40], "the worst-off devices, 0 and 2, end at 40.0 %"),
        ([0, 0, 0, 0, 100], "the 4 worst-off devices end at 0.0 %"),
    ],
)
def test_of_one_run_the_headline_says_who_is_worst_off(ends: list[float], said: str) -> None:
    assert said in headline(table(groups([record(ends)])))


def test_groups_without_an_end_or_a_common_seed_do_not_crash() -> None:
    base = [record([40, 80], algorithm="dsgd", seed=k) for k in (0, 1)]
    lost = [record([40, 80], seed=k, status="diverged", rounds=(0, 2)) for k in (0, 1)]
    stranger = [record([40, 80], seed=7)]
    for other in (lost, stranger):
        found = groups(base + other)
        row = table(found)[1]
        assert row.worst_difference is not None
        assert row.worst_difference.n == 0
        assert "no pair to compare" in headline(table(found))
        assert "—" in report.page(found)
    assert "No run of dr-dsgd has finished" in headline(table(groups(lost)))
    assert "diverged; last evaluated after round 2 of 6" in report.page(groups(lost))


def weighing(*weights: float, **fields: Any) -> Record:
    """A finished run whose devices have these weights in the last round."""
    made = record([40, 80], **fields)
    return dataclasses.replace(made, metrics=[*made.metrics[:-1], dataclasses.replace(made.final, weights=[*weights])])


def test_runs_whose_weights_vanish_are_told_what_helps() -> None:
    """One line per group: the mean weight, the number of runs, the option and the remedy; also in the report."""

    def said(*runs: Record) -> list[str]:
        rows = table(groups(runs))
        assert all(note in caveats(rows) for note in vanished(rows))
        return vanished(rows)

    assert said(weighing(0.1, 0.11)) == said(weighing(0.0, 1.0, weights="normalized")) == []
    (line,) = said(weighing(0.004, 0.0, weights="normalized", mu=0.01))
    assert line == (
        "dr-dsgd: the devices' weights are 0.002 on average in the last round, which shortens its steps by that "
        "factor: with --weights normalized use --weight-cap 3 if some loss was an outlier, else a larger --mu than "
        "0.01, or one that decays (--mu 3 --mu-schedule linear:0.1 --loss-smoothing 0.03 --weight-cap 2)"
    )
    small = [weighing(w, w, weights="normalized", mu=0.01, seed=k) for k, w in enumerate((0.002, 0.5, 0.004))]
    (line,) = said(*small, weighing(1.0, 1.0, algorithm="dsgd"))
    assert "are 0.003 on average in the last round in 2 of 3 runs, which" in line
    for fields, remedy in (
        (
            {"mu": 50.0},
            "with --weights as-written use a smaller --mu than 50, a larger --eta, or --weights normalized",
        ),
        ({"objective": "term", "tilt": 99.0}, "use a smaller --tilt than 99"),
        ({"objective": "q-ffl", "q": 30.0}, "use a smaller --q than 30"),
        ({"objective": "kl-ball", "radius": 2.0}, "use a smaller --radius than 2"),
        ({"objective": "ad-gda"}, "use a larger --eta"),
    ):
        (line,) = said(weighing(0.01, 0.01, **fields))
        assert f"shortens its steps by that factor: {remedy}" in line
    # a server may scale its steps as it likes, and the records that `reproduce` keeps have no weights
    assert said(weighing(0.01, 0.01, algorithm="fedavg")) == said(weighing()) == []
