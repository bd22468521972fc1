"""The paper's figures, drawn from the runs that are done.

Lines are means over seeds; bands and bars are one standard error. Missing runs are left out, and a run that diverged
counts in curves as far as it got; the legend names both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, ParamSpec

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drdsgd.experiments.build import make_graph
from drdsgd.report import plots
from drdsgd.report.palette import COLOURS
from drdsgd.report.plots import PANELS
from drdsgd.report.statistics import KINDS, MEASURES, Estimate, Kind, Measure, over_rounds
from drdsgd_studies.paper import fair, table1
from drdsgd_studies.paper.fair import ALGORITHMS
from drdsgd_studies.shared.plan import Comparison, DataName, Group, Settings
from drdsgd_studies.shared.store import Done, diverged, estimate

__all__ = ["curves", "denser", "gains", "readings", "spread", "table", "topologies", "write"]

Cases = Mapping[str, Comparison]
Dash = Literal["-", ""]
P = ParamSpec("P")

MODELS: dict[Kind, str] = {"consensus": "Consensus model", "local": "Local models"}
# the first two colours are DSGD's and DR-DSGD's; everything else has other colours
OTHERS = COLOURS[2:]
INK = "#333333"
BIN = 5  # percentage points
BELOW_LEGEND = 0.7  # of the height of a histogram's axes
GAINS = {
    "same_eta": "same η, as in the paper",
    "step": "of it: step size",
    "rest": "the rest: robustness",
    "best": "each at its best constant η",
    "falling": "each at its best falling η",
}
MARKS = "oDs^v"


def write(stem: Path, make: Callable[P, Figure], *arguments: P.args, **options: P.kwargs) -> list[Path]:
    """Write a figure as PNG and PDF beside each other."""
    with plots.style():
        figure = make(*arguments, **options)
        figure.align_ylabels()
        # not with_suffix, which would cut a name at its last dot
        return [plots.save(figure, stem.with_name(stem.name + suffix)) for suffix in (".png", ".pdf")]


# ------------------------------------------------------------------------------------ against rounds


def curves(c: Comparison, s: Settings, done: Done) -> Figure:
    """fig1 and fig2: average, worst and STDEV against rounds; two rows (models) of three columns (measures)."""
    figure = Figure(figsize=(10.5, 6.0), layout="constrained")
    grid = figure.subplots(2, 3, sharex=True, sharey="col")
    pair = c.pair(s)
    for row, kind in zip(grid, KINDS, strict=True):
        for axes, measure in zip(row, PANELS, strict=True):
            _draw_pair(axes, c, s, done, kind, measure)
            axes.set_ylabel(_unit(measure))
    for axes, (title, _) in zip(grid[0], PANELS.values(), strict=True):
        axes.set_title(title)
    _finish(grid, [c] * 3)
    K, T, p = (c.fields[name] for name in ("devices", "rounds", "p"))
    figure.suptitle(f"{_data(c.data, s)}, K = {K}, T = {T}, μ = {c.mu:g}, p = {p:g}")
    keys = [
        _key(" · ".join([label, *_state([group], done)]), colour)
        for (label, group), colour in zip(pair.items(), COLOURS, strict=False)
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=2)
    return figure


def denser(cases: Mapping[DataName, Cases], s: Settings, done: Done) -> Figure:
    """fig4: the worst accuracy against rounds on denser and denser graphs.

    For each data set two rows (models) and a column per graph: six curves in one panel would hide each other.
    """
    columns = max(len(by_name) for by_name in cases.values())
    figure = Figure(figsize=(1.8 + 2.9 * columns, 1.0 + 4.6 * len(cases)), layout="constrained")
    parts = figure.subfigures(len(cases), 1, squeeze=False)[:, 0]
    for part, (data, by_name) in zip(parts, cases.items(), strict=True):
        part.suptitle(_data(data, s), weight="bold")
        grid = part.subplots(2, columns, sharex=True, sharey=True, squeeze=False)
        for row, kind in zip(grid, KINDS, strict=True):
            for axes, c in zip(row, by_name.values(), strict=True):
                _draw_pair(axes, c, s, done, kind, "worst")
            row[0].set_ylabel(_worst())
        for axes, name in zip(grid[0], by_name, strict=True):
            axes.set_title(name, weight="normal")
        _finish(grid, list(by_name.values()))
    _legend(figure, [c for by_name in cases.values() for c in by_name.values()], s, done)
    return figure


def topologies(cases: Cases, s: Settings, done: Done) -> Figure:
    """fig5: a column per graph, with its picture (for the first seed) and the worst accuracy of both models."""
    figure = Figure(figsize=(1.0 + 3.1 * len(cases), 8.2), layout="constrained")
    pictures, *grid = figure.subplots(3, len(cases), squeeze=False)
    for axes, (name, c) in zip(pictures, cases.items(), strict=True):
        graph = make_graph(c.pair(s)["DSGD"].example)
        plots.draw_graph(axes, graph, ["#667080"] * len(graph), width=2.4)
        axes.set_title(name)
    for row, kind in zip(grid, KINDS, strict=True):
        for axes, c in zip(row, cases.values(), strict=True):
            if axes is not grid[0][0]:
                axes.sharey(grid[0][0])
            _draw_pair(axes, c, s, done, kind, "worst")
            axes.tick_params(labelleft=axes is row[0])
        row[0].set_ylabel(_worst())
    _finish(grid, list(cases.values()))
    _legend(figure, cases.values(), s, done)
    return figure


def _draw_pair(axes: Axes, c: Comparison, s: Settings, done: Done, kind: Kind, measure: Measure) -> None:
    """A curve for each algorithm with runs, and marks where runs diverged."""
    for group, colour in zip(c.pair(s).values(), COLOURS, strict=False):
        if runs := group.runs(done):
            points = over_rounds([dict(zip(run.rounds, run.curves[kind][measure], strict=True)) for run in runs])
            plots.draw_curve(axes, points, colour)
        for run in runs:
            plots.draw_end(axes, run.status, run.rounds[-1], run.final(kind, measure), colour)


def _legend(figure: Figure, comparisons: Iterable[Comparison], s: Settings, done: Done) -> None:
    """A legend below: both algorithms, and a note on runs that are missing or diverged, with the mark of these."""
    words = _state([group for c in comparisons for group in c.pair(s).values()], done)
    keys = [_key(label, colour) for label, colour in zip(ALGORITHMS.values(), COLOURS, strict=False)]
    keys += [_key(each, INK, "", "x" if "diverged" in each else "") for each in words]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys))


def _finish(grid: Iterable[Sequence[Axes]], columns: Sequence[Comparison]) -> None:
    """Set the limits, when everything is drawn, and the labels on the outside."""
    top, bottom = grid
    empty = not any(axes.lines for axes in chain(top, bottom))
    for row, kind in zip((top, bottom), KINDS, strict=True):
        for axes, c in zip(row, columns, strict=True):
            plots.against_rounds(axes)
            # also where no run got that far, or none is done
            axes.set_xlim(right=1.01 * c.fields["rounds"])
            if empty:
                axes.set_ylim(top=100)
        _name_row(row[0], MODELS[kind])
    for axes in top:
        axes.tick_params(labelbottom=False)
    for axes in bottom:
        axes.set_xlabel("rounds")


def _name_row(axes: Axes, name: str) -> None:
    """A name left of the label of the y axis."""
    axes.annotate(
        name, (0, 0.5), (-6, 0), xycoords=axes.yaxis.label, textcoords="offset points", rotation=90, ha="right",
        va="center", weight="bold",
    )  # fmt: skip


def _key(label: str, colour: str, dash: Dash = "-", mark: str = "") -> Line2D:
    return Line2D([], [], color=colour, linestyle=dash, marker=mark, linewidth=1.9, label=label)


def _state(groups: Sequence[Group], done: Done) -> list[str]:
    """A note on runs that are missing from the means, or diverged."""
    runs = [run for group in groups for run in group.runs(done)]
    planned, n = sum(len(group.experiments) for group in groups), diverged(runs)
    words = [f"{n} of {len(runs)} runs diverged"] if n else []
    return words + ([f"{len(runs)} of {planned} runs done"] if len(runs) < planned else [])


def _unit(measure: Measure) -> str:
    return PANELS[measure if measure in PANELS else "worst"][1].format("test")


def _worst() -> str:
    return f"worst {_unit('worst')}"


def _data(data: DataName, s: Settings) -> str:
    """The name of the data; a quick check must not pass for the paper's data."""
    return f"digits in place of {data}" if s.quick else data


# ------------------------------------------------------------------------------------- over devices


def spread(comparisons: Sequence[Comparison], s: Settings, done: Done) -> Figure:
    """fig3: how the final accuracies are spread over the devices of all seeds.

    Two rows (models), a column per comparison; the histograms of both algorithms lie over each other.
    """
    figure = Figure(figsize=(1.8 + 4.2 * len(comparisons), 6.4), layout="constrained")
    grid = figure.subplots(2, len(comparisons), sharex=True, sharey=True, squeeze=False)
    for row, kind in zip(grid, KINDS, strict=True):
        for axes, c in zip(row, comparisons, strict=True):
            for (label, group), colour in zip(c.pair(s).items(), COLOURS, strict=False):
                _draw_spread(axes, label, group, done, kind, colour)
            axes.legend(loc="upper left", fontsize=9)
        row[0].set_ylabel(f"% of devices, per {BIN} points")
        _name_row(row[0], MODELS[kind])
    for axes, c in zip(grid[0], comparisons, strict=True):
        axes.set_title(_data(c.data, s))
    for axes in grid[-1]:
        axes.set_xlabel("device's final test accuracy in %")
    highest = grid[0, 0].get_ylim()[1] if any(axes.patches for axes in grid.flat) else 100
    grid[0, 0].set(xlim=(0, 100), ylim=(0, highest / BELOW_LEGEND))
    return figure


def _draw_spread(axes: Axes, label: str, group: Group, done: Done, kind: Kind, colour: str) -> None:
    """A histogram of the devices of all finished runs, and a line at their mean."""
    runs = group.runs(done)
    accuracies = [accuracy for run in runs if run.status == "finished" for accuracy in run.per_device[kind]]
    state = _state([group], done)
    if not accuracies:
        axes.plot([], [], color=colour, label="\n".join([f"{label}: no run finished", *state]))
        return
    average, stdev = (estimate(runs, kind, measure) for measure in ("average", "stdev"))
    shares, edges = np.histogram(accuracies, bins=np.arange(0, 100 + BIN, BIN))
    # without empty ends, which would draw lines along the axis
    first, last = np.flatnonzero(shares)[[0, -1]]
    heights, edges = 100 * shares[first : last + 1] / len(accuracies), edges[first : last + 2]
    words = "\n".join([f"{label}: average {average.mean:.1f}, STDEV {stdev.mean:.1f}", *state])
    axes.stairs(heights, edges, fill=True, color=colour, alpha=0.22, linewidth=0)
    axes.stairs(heights, edges, color=colour, linewidth=1.7, label=words)
    axes.axvline(float(np.mean(accuracies)), ymax=BELOW_LEGEND, color=colour, linestyle="--", linewidth=1.5)


# ------------------------------------------------------------------------------------------ Table 1


def table(s: Settings, done: Done) -> Figure:
    """Table 1: average, worst 10 % and STDEV against mu, ours and as printed; a row per data set."""
    figure = Figure(figsize=(10.5, 6.2), layout="constrained")
    grid = figure.subplots(len(table1.PRINTED), len(table1.COLUMNS), squeeze=False)
    for row, (data, printed) in zip(grid, table1.PRINTED.items(), strict=True):
        groups = table1.rows(s, data)
        for axes, column in zip(row, table1.COLUMNS, strict=True):
            # side by side: error bars would hide each other
            for shift, kind, colour, mark in zip((-0.08, 0.08), KINDS, OTHERS, "os", strict=False):
                values = [estimate(g.runs(done), kind, column) for g in groups.values()]
                there = [(mu + shift, value) for mu, value in zip(groups, values, strict=True) if value.n]
                _draw_estimates(axes, there, color=colour, marker=mark, linewidth=1.6)
            axes.plot(table1.MUS, printed[column], "*:", color=INK, markersize=11, linewidth=1.2, zorder=4)
            axes.set(ylabel=_unit(column), xlim=(1.6, 5.4))
            axes.set_xticks(table1.MUS, [f"{mu:g}{_lost(group, done)}" for mu, group in groups.items()])
            axes.margins(y=0.12)
        _name_row(row[0], _data(data, s))
    for axes, column in zip(grid[0], table1.COLUMNS, strict=True):
        axes.set_title(MEASURES[column])
    for axes in grid[-1]:
        axes.set_xlabel("μ")
    keys = [
        _key(f"ours, {MODELS[kind].lower()}", colour, "-", mark)
        for kind, colour, mark in zip(KINDS, OTHERS, "os", strict=False)
    ]
    keys.append(Line2D([], [], color=INK, linestyle=":", marker="*", markersize=11, label="as printed in the paper"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure


def _draw_estimates(axes: Axes, points: Sequence[tuple[float, Estimate]], *, across: bool = False, **look: Any) -> None:
    """Dots with error bars at places on the x axis (`across`: on the y axis); no bar for a single seed."""
    if not points:
        return
    places = [place for place, _ in points]
    means = [value.mean for _, value in points]
    errors = [np.nan_to_num(value.error) for _, value in points]
    look = {"markersize": 6, "capsize": 3, "zorder": 3, **look}
    if across:
        axes.errorbar(means, places, xerr=errors, **look)
    else:
        axes.errorbar(places, means, yerr=errors, **look)


def _lost(group: Group, done: Done) -> str:
    """How many of a row's runs diverged, as a second line."""
    runs = group.runs(done)
    return f"\n{n} of {len(runs)}\ndiverged" if (n := diverged(runs)) else ""


def readings(s: Settings, done: Done) -> Figure:
    """How far every measured reading of the paper is from the printed table; the closest is on top."""
    ranking, every = table1.closest(s, done), len(table1.readings())
    figure = Figure(figsize=(9.0, 1.6 + 0.22 * max(len(ranking), 3)), layout="constrained")
    axes = figure.add_subplot()
    colours = dict(zip(KINDS, OTHERS, strict=False))
    places = np.arange(len(ranking))
    means = [distance.mean for _, distance in ranking]
    axes.barh(places, means, height=0.72, color=[colours[reading.kind] for reading, _ in ranking], alpha=0.85)
    for place, (_, distance) in zip(places, ranking, strict=True):
        lost = f"  ({distance.diverged} diverged)" if distance.diverged else ""
        axes.annotate(
            f"{distance.mean:.1f}{lost}", (distance.mean, place), (4, 0), textcoords="offset points", va="center",
            fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_yticks(places, [str(reading) for reading, _ in ranking], fontsize=8)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(len(ranking) - 0.4, -0.6)
    # room for the text at the end of the longest bar
    axes.set_xlim(0, 1.25 * max(means, default=1.0))
    missing = every - len(ranking)
    note = f"\n{missing} of {every} readings are missing: they have a μ without a finished run" if missing else ""
    axes.set_xlabel(f"mean distance to the nine printed numbers, in percentage points{note}")
    keys = [Patch(color=colour, alpha=0.85, label=MODELS[kind]) for kind, colour in colours.items()]
    figure.legend(handles=keys, loc="outside upper center", ncols=2)
    return figure


# -------------------------------------------------------------------------------- the fair comparison


def gains(comparisons: Sequence[Comparison], s: Settings, done: Done) -> Figure:
    """DR-DSGD's gain in worst accuracy, also with matched or tuned steps; a row per comparison."""
    figure = Figure(figsize=(8.5, 1.6 + 0.62 * max(len(comparisons), 1)), layout="constrained")
    axes = figure.add_subplot()
    found = [fair.gain(fair.sides(c, s, done), done, "consensus", "worst") for c in comparisons]
    shifts = np.linspace(-0.32, 0.32, len(GAINS))
    for shift, name, colour, mark in zip(shifts, GAINS, COLOURS, MARKS, strict=False):
        values: list[tuple[float, Estimate]] = [(row + shift, getattr(gain, name)) for row, gain in enumerate(found)]
        for all_seeds, fill in ((True, colour), (False, "white")):
            there = [(place, value) for place, value in values if value.n and (value.n == len(s.seeds)) == all_seeds]
            _draw_estimates(axes, there, across=True, color=colour, marker=mark, linestyle="", markerfacecolor=fill)
    for row in range(0, len(comparisons), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f3f4f6", zorder=0, linewidth=0)
    axes.axvline(0, color=INK, linewidth=1.1, zorder=2)
    axes.set_yticks(range(len(comparisons)), [f"{c.part}: {c.name}" for c in comparisons])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(max(len(comparisons), 1) - 0.5, -0.5)
    axes.set_xlabel("DR-DSGD − DSGD: worst accuracy of the consensus model, in percentage points")
    keys = [_key(label, c, "", mark) for label, c, mark in zip(GAINS.values(), COLOURS, MARKS, strict=False)]
    keys.append(Line2D([], [], color=INK, marker="o", markerfacecolor="white", linestyle="", label="not of all seeds"))
    # matplotlib fills columns first: one for the same eta, one for the best
    figure.legend(handles=keys, loc="outside upper center", ncols=2)
    return figure
