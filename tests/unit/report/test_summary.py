"""Groups, table, headline and curves say what the records say, and no more."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from drdsgd import report
from drdsgd.errors import InputError
from drdsgd.experiments.records import Record
from drdsgd.report import summary
from drdsgd.training.metrics import standard_error
from tests.support.made import pair, record
from tests.support.made import study as study  # a fixture


def test_runs_are_found_below_a_folder_each_once(study: Path) -> None:
    found = summary.find_runs([study, study / "dsgd" / "seed-0"])
    assert [r.path.relative_to(study).as_posix() for r in found] == [
        "dr-dsgd/seed-0", "dr-dsgd/seed-1", "dsgd/seed-0", "dsgd/seed-1",
    ]  # fmt: skip
    assert [r.path for r in summary.find_runs([study / "dsgd" / "seed-1"])] == [study / "dsgd" / "seed-1"]


def test_seeds_are_in_natural_order() -> None:
    paths = [Path(f"a/seed-{k}") for k in (10, 2, 1)]
    assert [p.name for p in sorted(paths, key=summary._natural)] == ["seed-1", "seed-2", "seed-10"]


def test_a_run_that_ended_without_metrics_is_no_run_to_leave_out(study: Path, tmp_path: Path) -> None:
    there = shutil.copytree(study, tmp_path / "there")
    (there / "dsgd" / "seed-0" / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"seed-0 is damaged: its run ended, but metrics.jsonl has nothing; remove it"):
        summary.find_runs([there])


def test_no_run_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = 3\n")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=re.escape(str(path))) as error:
            summary.find_runs([path])
        assert "\n" not in str(error.value)


# ---------------------------------------------------------------------- groups


def labels(*fields: dict[str, Any]) -> list[str]:
    return list(summary.groups([record([50, 60], **each) for each in fields]))


def test_labels_say_what_differs_and_no_more() -> None:
    assert labels({"algorithm": "dr-dsgd"}, {"algorithm": "dsgd"}) == ["dsgd", "dr-dsgd"]
    assert labels({"mu": 3.0}, {"mu": 6.0}, {"algorithm": "dsgd"}) == ["dsgd", "dr-dsgd mu=3", "dr-dsgd mu=6"]
    assert labels({"eta": 0.25}, {"eta": 0.5, "algorithm": "dsgd"}) == ["dsgd eta=0.5", "dr-dsgd eta=0.25"]
    # one has it and the other not
    assert labels({}, {"loss_clip": 5.0}) == ["dr-dsgd", "dr-dsgd loss_clip=5"]
    # with a part exchanged it is another method
    assert labels({"algorithm": "dsgd"}, {"objective": "q-ffl", "optimizer": "d2"}) == ["dsgd", "q-ffl + d2"]
    assert labels({"objective": "q-ffl", "q": 1.0}, {"objective": "q-ffl", "q": 2.0}) == [
        "q-ffl + dsgd q=1", "q-ffl + dsgd q=2"
    ]  # fmt: skip
    assert labels({"optimizer": "d2"}, {"algorithm": "dsgd", "objective": "kl-dro", "optimizer": "d2"}) == [
        "dsgd objective=kl-dro optimizer=d2", "dr-dsgd optimizer=d2"
    ]  # fmt: skip
    # a method's defaults go with its name: dr-qgm has another mu, step, momentum, smoothing
    assert labels({"algorithm": "dr-qgm"}, {"algorithm": "dr-gt-adam"}, {}) == ["dr-dsgd", "dr-qgm", "dr-gt-adam"]
    assert labels({"algorithm": "dr-qgm", "mu": 2.0}, {"algorithm": "dr-gt-adam"}) == ["dr-qgm mu=2", "dr-gt-adam"]
    assert labels({"algorithm": "gt-adam"}, {"algorithm": "gt-adam", "eta": 0.02}, {"algorithm": "dsgd"}) == [
        "dsgd", "gt-adam eta=0.01", "gt-adam eta=0.02",
    ]  # fmt: skip
    assert labels({"algorithm": "choco-sgd"}, {"algorithm": "dr-gt-adam"}) == ["choco-sgd", "dr-gt-adam"]
    # but not with a name that is made of exchanged parts
    plain, exchanged = labels({}, {"algorithm": "dr-qgm", "optimizer": "dsgd"})
    assert plain == "dr-dsgd" and exchanged.startswith("kl-dro + dsgd") and "weights=normalized" in exchanged
    # where they were run does not matter
    assert labels({"threads": 1}, {"threads": 2, "seed": 1}) == ["dr-dsgd"]
    assert labels({"eta": 0.123456}, {"eta": 0.123457}) == ["dr-dsgd eta=0.123456", "dr-dsgd eta=0.123457"]
    assert labels({"graph": "some/where/a.csv"}, {"graph": "b.csv"}) == ["dr-dsgd graph=a.csv", "dr-dsgd graph=b.csv"]
    assert labels({"graph": "x/a.csv"}, {"graph": "y/a.csv"}) == ["dr-dsgd graph=x/a.csv", "dr-dsgd graph=y/a.csv"]
    assert summary.groups([]) == {}


def test_a_group_is_sorted_by_seed_and_has_a_seed_once(study: Path) -> None:
    groups = summary.groups(reversed(summary.find_runs([study])))
    assert list(groups) == ["dsgd", "dr-dsgd"]
    assert [r.experiment.seed for r in groups["dsgd"]] == [0, 1]
    with pytest.raises(InputError, match="same experiment"):
        summary.groups([record([50, 60]), record([50, 70])])


# ----------------------------------------------------------------------- table


@pytest.mark.parametrize("kind", ["consensus", "local"])
@pytest.mark.parametrize("measure", ["average", "worst", "worst10", "stdev"])
def test_the_table_is_what_the_records_say(study: Path, kind: str, measure: str) -> None:
    rows = {(row.label, row.kind): row for row in summary.table(summary.groups(summary.find_runs([study])))}
    ends = {}
    for label in ("dsgd", "dr-dsgd"):
        lines = [(study / label / f"seed-{k}" / "metrics.jsonl").read_text().splitlines()[-1] for k in (0, 1)]
        ends[label] = a, b = [json.loads(line)[kind][measure] for line in lines]
        row = rows[label, kind]  # type: ignore[index]  # kinds are literals
        assert (row.runs, row.seeds, row.diverged, row.unfinished) == (2, 2, 0, 0)
        assert getattr(row, measure).mean == pytest.approx((a + b) / 2)
        # of two values: half their distance
        assert getattr(row, measure).error == pytest.approx(abs(a - b) / 2)
    if measure in ("worst", "average"):
        c, d = (y - x for x, y in zip(ends["dsgd"], ends["dr-dsgd"], strict=True))
        difference = getattr(rows["dr-dsgd", kind], f"{measure}_difference")  # type: ignore[index]  # kinds are literals
        assert (difference.mean, difference.error) == pytest.approx(((c + d) / 2, abs(c - d) / 2))
        assert getattr(rows["dsgd", kind], f"{measure}_difference") is None  # type: ignore[index]  # kinds are literals


def test_differences_are_over_common_finished_seeds() -> None:
    first = [record([40 + k, 80], algorithm="dsgd", seed=k) for k in range(4)]
    other = [record([50 + 3 * k, 80], seed=k) for k in range(1, 5)]
    other[0] = dataclasses.replace(other[0], status="diverged")
    row = summary.table(summary.groups(first + other))[1]
    assert (row.runs, row.seeds, row.diverged) == (4, 3, 1)
    assert row.worst.mean == pytest.approx((56 + 59 + 62) / 3)
    assert row.worst_difference == summary.Estimate.over([56 - 42, 59 - 43])


def test_of_a_server_whose_models_are_averaged_over_rounds_the_table_says_which_is_which() -> None:
    rows = summary.table(summary.groups(record([40, 80], algorithm=name) for name in ("dsgd", "fedavg", "afl", "drfa")))
    (line,) = (line for line in summary.legend(rows) if "server" in line)
    assert line.startswith("of afl, drfa: consensus, the mean")


def test_groups_without_an_end_or_a_common_seed_do_not_crash() -> None:
    base = [record([40, 80], algorithm="dsgd", seed=k) for k in (0, 1)]
    lost = [record([40, 80], seed=k, status="diverged", rounds=(0, 2)) for k in (0, 1)]
    stranger = [record([40, 80], seed=7)]
    for other in (lost, stranger):
        groups = summary.groups(base + other)
        row = summary.table(groups)[1]
        assert row.worst_difference is not None
        assert row.worst_difference.n == 0
        assert "no pair to compare" in summary.headline(summary.table(groups))
        assert "—" in report.page(groups)
    assert "No run of dr-dsgd has finished" in summary.headline(summary.table(summary.groups(lost)))
    assert "diverged; last evaluated after round 2 of 6" in report.page(summary.groups(lost))


def text_of(rows: list[summary.Row], width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(summary.rich_table(rows))
    return capture.get()


def test_the_terminal_table_fits_and_says_all() -> None:
    rows = pair([10, 11, 12], [-1, 1, 0])
    text = text_of(rows)
    assert "+11.0±0.6" in text
    assert "dr-dsgd" in text
    assert max(map(len, text.splitlines())) <= 80
    runs = [record([40, 80], algorithm="dsgd"), record([40, 80], seed=1, algorithm="dsgd", status="diverged")]
    alone = text_of(summary.table(summary.groups(runs)))
    assert "1/2" in alone
    assert "dsgd: 1 of 2 runs diverged" in alone
    assert "±" not in alone
    assert "Δ" not in alone


def test_what_was_scored_on_validation_samples_is_not_called_tested() -> None:
    runs = [record([40, 80], algorithm=name, dataset="digits", validation=0.2) for name in ("dsgd", "dr-dsgd")]
    tested = record([40, 80], dataset="digits")

    def notes(*records: Record) -> list[str]:
        rows = summary.table(summary.groups(records))
        said = [note for note in summary.caveats(rows) if "validation samples" in note]
        shown = " ".join(text_of(rows).split())
        assert all(note in shown for note in said)
        return said

    assert notes(tested) == []
    assert notes(*runs) == ["Accuracies are on validation samples, not on the test set"]
    assert notes(*runs, tested) == [
        "Accuracies of dsgd validation=0.2, dr-dsgd validation=0.2 are on validation samples, not on the test set"
    ]
    # the same seed, but not the same problem: never compared in a pair
    row = summary.table(summary.groups([runs[0], tested]))[1]
    assert row.worst_difference is not None and row.worst_difference.n == 0


def weighing(*weights: float, **fields: Any) -> Record:
    """A finished run whose devices have these weights in the end."""
    made = record([40, 80], **fields)
    return dataclasses.replace(made, metrics=[*made.metrics[:-1], dataclasses.replace(made.final, weights=[*weights])])


def test_runs_whose_weights_vanish_are_told_what_helps() -> None:
    """In one line for a group: how much is left, in how many runs, the option and the cure; in the report, too."""

    def said(*runs: Record) -> list[str]:
        rows = summary.table(summary.groups(runs))
        assert all(note in summary.caveats(rows) for note in summary.vanished(rows))
        return summary.vanished(rows)

    assert said(weighing(0.1, 0.11)) == said(weighing(0.0, 1.0, weights="normalized")) == []
    (line,) = said(weighing(0.004, 0.0, weights="normalized", mu=0.01))
    assert line == (
        "dr-dsgd: devices' weights are 0.002 on average in the last round, and so much shorter are its steps: with "
        "--weights normalized take --weight-cap 3 if some loss was far off, else a larger --mu than 0.01, or one from "
        "above (--mu 3 --mu-schedule linear:0.1 --loss-smoothing 0.03 --weight-cap 2)"
    )
    small = [weighing(w, w, weights="normalized", mu=0.01, seed=k) for k, w in enumerate((0.002, 0.5, 0.004))]
    (line,) = said(*small, weighing(1.0, 1.0, algorithm="dsgd"))
    assert "are 0.003 on average in the last round in 2 of 3 runs, and so" in line
    for fields, cure in (
        (
            {"mu": 50.0},
            "with --weights as-written take a smaller --mu than 50, a larger --eta, or --weights normalized",
        ),
        ({"objective": "term", "tilt": 99.0}, "take a smaller --tilt than 99"),
        ({"objective": "q-ffl", "q": 30.0}, "take a smaller --q than 30"),
        ({"objective": "kl-ball", "radius": 2.0}, "take a smaller --radius than 2"),
        ({"objective": "ad-gda"}, "take a larger --eta"),
    ):
        (line,) = said(weighing(0.01, 0.01, **fields))
        assert f"so much shorter are its steps: {cure}" in line
    # a server may take steps as it likes, and records that `reproduce` keeps say nothing of weights
    assert said(weighing(0.01, 0.01, algorithm="fedavg")) == said(weighing()) == []


def test_a_label_in_brackets_is_no_markup() -> None:
    rows = [dataclasses.replace(row, label="[red]x[/blue]") for row in pair([1, 2], [0, 1])]
    assert "[red]x[/blue]" in text_of(rows, width=120)


@pytest.mark.parametrize(
    ("values", "text"),
    [([80.0], "80.0"), ([80.0, 80.0], "80.0 ± 0.0"), ([0.01, 0.11], "0.06 ± 0.05"), ([-3.0, -1.0], "−2.0 ± 1.0")],
)
def test_an_estimate_shows_digits_that_mean_something(values: list[float], text: str) -> None:
    assert str(summary.Estimate.over(values)) == text


# -------------------------------------------------------------------- headline


def test_headline_better_at_a_price() -> None:
    worst, average = [10.0, 12.0, 11.0, 13.0], [-2.0, -1.0, -2.0, -1.0]
    text = summary.headline(pair(worst, average))
    assert "dr-dsgd serves the worst-off device better than dsgd" in text
    assert f"11.5 ± {standard_error(worst):.1f} points higher" in text
    assert f"at the price of 1.5 ± {standard_error(average):.1f} points of average accuracy" in text
    assert "4 paired seeds" in text


def test_headline_worse() -> None:
    text = summary.headline(pair([-10.0, -12.0, -11.0], [-5.0, -5.5, -6.0]))
    assert "serves the worst-off device worse than dsgd: its accuracy is 11.0 ± 0.6 points lower" in text
    assert "average accuracy is 5.5 ± 0.3 points lower" in text
    assert "price" not in text


def test_headline_not_clear() -> None:
    text = summary.headline(pair([10.0, -12.0, 5.0], [1.0, 1.1, 1.2]))
    assert "It is not clear whether dr-dsgd serves the worst-off device better than dsgd" in text
    assert "+1.0 ± 6.7 points" in text
    assert "average accuracy is 1.10 ± 0.06 points higher" in text
    assert "not clear" in summary.headline(pair([0.0, 0.0], [0.0, 0.0]))


def test_headline_average_not_clear() -> None:
    assert "does not clearly change (−0.5 ± 0.5 points)" in summary.headline(pair([9.0, 10.0], [-1.0, 0.0]))


def test_one_seed_tells_nothing_of_chance() -> None:
    text = summary.headline(pair([10.0], [-1.0]))
    assert (
        "from dsgd to dr-dsgd changes the worst-off device's accuracy by +10.0 points and the average by −1.0" in text
    )
    assert "one seed cannot tell" in text
    assert "±" not in text


def test_of_many_the_best_is_in_the_headline_and_a_note_says_so() -> None:
    runs = [record([40 + k, 80], algorithm="dsgd", seed=k) for k in range(3)]
    runs += [record([gain + 40 + 2 * k, 80], mu=mu, seed=k) for mu, gain in ((3.0, 5), (6.0, 20)) for k in range(3)]
    rows = summary.table(summary.groups(runs))
    assert summary.headline(rows).startswith("dr-dsgd mu=6 serves the worst-off device better")
    assert any("best of 2" in note for note in summary.caveats(rows))
    assert any("3 seeds" in note for note in summary.caveats(rows))


def test_one_group_has_a_headline_of_its_own() -> None:
    rows = summary.table(summary.groups([record([40, 80], seed=k) for k in (0, 1)]))
    assert (
        "dr-dsgd the worst-off device ends at 40.0 ± 0.0 % accuracy, 20.0 ± 0.0 points below the average over devices, "
        "60.0 ± 0.0 %"
    ) in summary.headline(rows)
    assert summary.caveats(rows) == []


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([80, 40, 60], "the worst-off device, device 1, ends at 40.0 % accuracy, 20.0 points below the average"),
        ([40, 80, 40], "the worst-off devices, 0 and 2, end at 40.0 %"),
        ([0, 0, 0, 0, 100], "the 4 worst-off devices end at 0.0 %"),
    ],
)
def test_of_one_run_the_headline_says_who_is_worst_off(ends: list[float], said: str) -> None:
    assert said in summary.headline(summary.table(summary.groups([record(ends)])))


# ---------------------------------------------------------------------- curves


def test_curves_of_unequal_length() -> None:
    whole = [record([40, 80], seed=k, rounds=(0, 2, 4, 6)) for k in (0, 1)]
    lost = record([20, 30], seed=2, rounds=(0, 2), status="diverged")
    points = summary.curve([*whole, lost], "consensus", "worst")
    assert points.rounds == [0, 2, 4, 6]
    assert [value.n for value in points.values] == [3, 3, 2, 2]
    assert [value.mean for value in points.values] == pytest.approx([50, 40, 50, 40])


def test_a_curve_has_only_rounds_that_all_who_got_there_have() -> None:
    runs = [record([40, 80], rounds=(0, 2, 3, 6)), record([40, 80], seed=1, rounds=(0, 2, 4, 6))]
    assert summary.curve(runs, "local", "stdev").rounds == [0, 2, 6]


def test_there_is_no_minus_zero() -> None:
    assert [summary.Estimate(mean, 0.3, 5).format("+") for mean in (-0.04, 0.04, -0.06)] == [
        "0.0 ± 0.3", "+0.0 ± 0.3", "−0.1 ± 0.3",
    ]  # fmt: skip
    assert str(summary.Estimate(-0.004, 0.05, 5)) == "0.00 ± 0.05"
