"""The table of final accuracies for a terminal, its legend, and notes on what it does not count."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from drdsgd.report.statistics import KINDS, Row, signed

__all__ = ["count_runs", "legend", "not_counted", "not_tested", "rich_table"]


def rich_table(rows: Sequence[Row]) -> Table:
    """The rows as a table for a terminal; with short labels it fits into 80 columns."""
    made = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    notes = [*legend(rows), *not_tested(rows), *not_counted(rows)]
    made.caption, made.caption_justify = Text("\n".join(notes)), "left"
    compared = any(row.worst_difference is not None for row in rows)
    made.add_column("accuracy in %", overflow="fold")
    for name in ("seeds", "average", "worst", "worst 10%", "STDEV"):
        made.add_column(name, justify="right", no_wrap=True)
    for name in ("Δ worst", "Δ average") if compared else ():
        made.add_column(name, justify="right", no_wrap=True)
    for kind in KINDS:
        made.add_row(Text(f"{kind} model" + "s" * (kind == "local"), style="italic"))
        for row in rows:
            if row.kind == kind:
                made.add_row(*_cells(row, compared))
        made.add_section()
    return made


def _cells(row: Row, compared: bool) -> list[Text]:
    seeds = str(row.seeds) if row.seeds == row.runs else f"{row.seeds}/{row.runs}"
    means = [each.format(separator="±") for each in (row.average, row.worst, row.worst10, row.stdev)]
    differences = [signed(each, "±") for each in (row.worst_difference, row.average_difference)]
    # Text, not str: rich would read [brackets] in a label as markup
    return [Text(f" {row.label}"), *map(Text, [seeds, *means, *(differences if compared else [])])]


def legend(rows: Sequence[Row]) -> list[str]:
    """What the signs in a table mean."""
    lines = []
    if any(row.seeds > 1 for row in rows):
        lines.append("± one standard error over seeds")
    if any(row.worst_difference is not None for row in rows):
        lines.append(f"Δ difference to {rows[0].label}, in pairs of the same seed")
    if averaged := [row.label for row in rows if row.averaged and row.kind == "consensus"]:
        lines.append(
            f"{', '.join(averaged)}: consensus is the mean of the server's models over rounds; local is its last model"
        )
    return lines


def not_tested(rows: Sequence[Row]) -> list[str]:
    """A note on rows with validation accuracies, which must not be taken for test accuracies."""
    validated = [row.label for row in rows if row.validation and row.kind == "consensus"]
    if not validated:
        return []
    whose = "" if all(row.validation for row in rows) else f" of {', '.join(validated)}"
    return [f"Accuracies{whose} are on validation samples, not on the test set"]


def not_counted(rows: Sequence[Row]) -> list[str]:
    """A note for every group with runs that diverged or did not finish."""
    lines = []
    for row in rows:
        if row.kind == "consensus":
            what = {"diverged": row.diverged, "did not finish": row.unfinished}
            lines += [
                f"{row.label}: {n} of {count_runs(row.runs)} {verb}, not counted in the means"
                for verb, n in what.items()
                if n
            ]
    return lines


def count_runs(n: int) -> str:
    """A number of runs in words.

    >>> count_runs(1), count_runs(2)
    ('1 run', '2 runs')
    """
    return f"{n} run" + "s" * (n != 1)
