"""The terminal's table fits, and says what it counts and on which samples."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from drdsgd.experiments.records import Record
from drdsgd.report.groups import groups
from drdsgd.report.headline import caveats
from drdsgd.report.statistics import Row, table
from drdsgd.report.tables import legend, rich_table
from tests.support.made import pair, record


def text_of(rows: list[Row], width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(rich_table(rows))
    return capture.get()


def test_the_terminal_table_fits_and_says_all() -> None:
    rows = pair([10, 11, 12], [-1, 1, 0])
    text = text_of(rows)
    assert "+11.0±0.6" in text
    assert "dr-dsgd" in text
    assert max(map(len, text.splitlines())) <= 80
    runs = [record([40, 80], algorithm="dsgd"), record([40, 80], seed=1, algorithm="dsgd", status="diverged")]
    alone = text_of(table(groups(runs)))
    assert "1/2" in alone
    assert "dsgd: 1 of 2 runs diverged" in alone
    assert "±" not in alone
    assert "Δ" not in alone


def test_what_was_scored_on_validation_samples_is_not_called_tested() -> None:
    runs = [record([40, 80], algorithm=name, dataset="digits", validation=0.2) for name in ("dsgd", "dr-dsgd")]
    tested = record([40, 80], dataset="digits")

    def notes(*records: Record) -> list[str]:
        rows = table(groups(records))
        said = [note for note in caveats(rows) if "validation samples" in note]
        shown = " ".join(text_of(rows).split())
        assert all(note in shown for note in said)
        return said

    assert notes(tested) == []
    assert notes(*runs) == ["Accuracies are on validation samples, not on the test set"]
    assert notes(*runs, tested) == [
        "Accuracies of dsgd validation=0.2, dr-dsgd validation=0.2 are on validation samples, not on the test set"
    ]
    # the same seed, but not the same problem: never compared in a pair
    row = table(groups([runs[0], tested]))[1]
    assert row.worst_difference is not None and row.worst_difference.n == 0


def test_a_label_in_brackets_is_no_markup() -> None:
    rows = [dataclasses.replace(row, label="[red]x[/blue]") for row in pair([1, 2], [0, 1])]
    assert "[red]x[/blue]" in text_of(rows, width=120)


def test_of_a_server_whose_models_are_averaged_over_rounds_the_table_says_which_is_which() -> None:
    rows = table(groups(record([40, 80], algorithm=name) for name in ("dsgd", "fedavg", "afl", "drfa")))
    (line,) = (line for line in legend(rows) if "server" in line)
    assert line.startswith("afl, drfa: consensus is the mean")
