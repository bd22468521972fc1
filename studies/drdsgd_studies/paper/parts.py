"""The parts of the paper that consist of runs: which runs each needs, its claims, pictures and texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from drdsgd_studies.paper import draw, fair, fig1, fig2, fig3, fig4, fig5, table1
from drdsgd_studies.shared.claims import Claim
from drdsgd_studies.shared.plan import Comparison, Group, Settings
from drdsgd_studies.shared.reports import Compared
from drdsgd_studies.shared.store import Done

__all__ = ["PARTS", "Part", "Row"]

BANDS = "; mean over seeds and one standard error, in which a run that diverged counts as far as it got"
# a line of a CSV file
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A figure or table of the paper."""

    title: str
    groups: Callable[[Settings, Done], list[Group]]
    claims: Callable[[Settings, Done], list[Claim]]
    draw: Callable[[Settings, Done, Path], dict[Path, str]]
    """Draws into a folder; returns the pictures (without suffix) and what each shows."""
    comparisons: Callable[[Settings], list[Comparison]]
    readings: Callable[[Settings], dict[str, Group]]
    """Other readings of what the paper leaves open."""
    compared: Callable[[Settings], Compared]
    """The groups that its report compares."""


class _Figure(Protocol):
    TITLE: str

    def comparisons(self, s: Settings) -> list[Comparison]: ...

    def claims(self, s: Settings, done: Done) -> list[Claim]: ...


def _no_readings(s: Settings) -> dict[str, Group]:
    return {}


def _figure(
    module: _Figure,
    drawn: Callable[[Settings, Done, Path], dict[Path, str]],
    readings: Callable[[Settings], dict[str, Group]] = _no_readings,
) -> Part:
    """A figure that compares DSGD with DR-DSGD, together with the fair comparison."""

    def groups(s: Settings, done: Done) -> list[Group]:
        found: list[Group] = []
        for c in module.comparisons(s):
            found += c.pair(s).values()
        for c in module.comparisons(s):
            found += fair.trials(c, s, done)
            found += fair.variants(c, s, done).values()
        return found + list(readings(s).values())

    def compared(s: Settings) -> Compared:
        return {c.name: c.pair(s) for c in module.comparisons(s)}

    return Part(module.TITLE, groups, module.claims, drawn, module.comparisons, readings, compared)


def _draw_curves(module: _Figure) -> Callable[[Settings, Done, Path], dict[Path, str]]:
    def drawn(s: Settings, done: Done, folder: Path) -> dict[Path, str]:
        found = {}
        for c in module.comparisons(s):
            stem = folder / f"T{c.fields['rounds']}"
            draw.write(stem, draw.curves, c, s, done)
            place = f"{c.data}, {c.name}, p = {c.fields['p']:g}"
            found[stem] = f"Average, worst and STDEV of test accuracy against rounds, {place}{BANDS}"
        return found

    return drawn


def _draw_spread(s: Settings, done: Done, folder: Path) -> dict[Path, str]:
    draw.write(folder / "spread", draw.spread, fig3.comparisons(s), s, done)
    shows = "Distribution of the devices' final test accuracies, all seeds together; dashed lines: their means"
    return {folder / "spread": shows}


def _draw_denser(s: Settings, done: Done, folder: Path) -> dict[Path, str]:
    draw.write(folder / "worst", draw.denser, {data: fig4.cases(s, data) for data in fig4.DATA}, s, done)
    return {folder / "worst": f"Worst test accuracy against rounds for p = 0.3, 0.45 and 0.6{BANDS}"}


def _draw_topologies(s: Settings, done: Done, folder: Path) -> dict[Path, str]:
    draw.write(folder / "worst", draw.topologies, fig5.cases(s), s, done)
    drawn = f"Geometric (that of seed {s.seeds[0]}; every seed has another), ring and grid graph"
    return {folder / "worst": f"{drawn}, and worst test accuracy against rounds{BANDS}"}


def _draw_table(s: Settings, done: Done, folder: Path) -> dict[Path, str]:
    draw.write(folder / "table", draw.table, s, done)
    draw.write(folder / "readings", draw.readings, s, done)
    return {
        folder
        / "table": "Average, worst 10 % and STDEV against mu, ours (bars: one standard error) and the printed ones",
        folder / "readings": "Mean distance from the printed table, for every reading of what the paper leaves open; "
        "first those of which no run diverged",
    }


def _compared_table(s: Settings) -> Compared:
    # the largest mu comes first, as the one that others are compared with: it is closest to plain training
    return {
        data: {f"DR-DSGD, mu = {mu:g}": group for mu, group in reversed(table1.rows(s, data).items())}
        for data in table1.PRINTED
    }


PARTS: dict[str, Part] = {
    "fig1": _figure(fig1, _draw_curves(fig1)),
    "fig2": _figure(fig2, _draw_curves(fig2), fig2.readings),
    "fig3": _figure(fig3, _draw_spread),
    "fig4": _figure(fig4, _draw_denser),
    "fig5": _figure(fig5, _draw_topologies),
    "table1": Part(
        table1.TITLE, table1.groups, table1.claims, _draw_table, lambda s: [], table1.slow_readings, _compared_table
    ),
}
