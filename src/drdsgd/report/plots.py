"""Pictures in the paper's style: accuracy against rounds, and the graph of the devices.

Lines are means over seeds, bands one standard error. The suffix of the path is the format: PNG, PDF or SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from drdsgd.errors import InputError
from drdsgd.experiments.records import Record, Status
from drdsgd.files import replacing
from drdsgd.report.groups import Groups
from drdsgd.report.palette import COLOURS, DASHES
from drdsgd.report.statistics import Curve, Measure, curve
from drdsgd.topology.graphs import Positions, layout

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "PANELS", "against_rounds", "check_kind", "cost", "curves", "draw_curve", "draw_end", "draw_graph", "network",
    "save", "style",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Style = str | tuple[float, tuple[float, ...]]

_FORMATS = ("png", "pdf", "svg")
# matplotlib measures dashes in line widths
_LINES: tuple[Style, ...] = tuple(
    (0.0, tuple(float(part) / 2 for part in dash.split())) if dash else "-" for dash in DASHES
)
PANELS: dict[Measure, tuple[str, str]] = {
    "average": ("Average over devices", "{} accuracy in %"),
    "worst": ("Worst-off device", "{} accuracy in %"),
    "stdev": ("STDEV over devices", "percentage points"),
}
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.labelcolor": "#333333",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "grid.color": "#e4e6e9",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # a $ in a label is a $
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "drdsgd",  # the same data give the same file
}


def style() -> AbstractContextManager[None]:
    """The style of all pictures; make and save a figure within it."""
    return mpl.rc_context(_STYLE)


def curves(groups: Groups, path: Path) -> Path:
    """Draw average, worst and STDEV of the consensus model against rounds, a line and a band per group."""
    with style():
        rows = -(-len(groups) // 4)
        validation = [record.experiment.validation is not None for group in groups.values() for record in group]
        samples = "test" if not any(validation) else "validation" if all(validation) else "validation or test"
        figure = Figure(figsize=(10.5, 3.3 + 0.22 * rows), layout="constrained")
        for axes, (measure, (title, unit)) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
            for i, group in enumerate(groups.values()):
                _draw_curve(axes, i, group, measure)
            axes.set(title=title, xlabel="rounds", ylabel=unit.format(samples))
            against_rounds(axes)
        lines = [line for line in figure.axes[0].lines if line.get_marker() == "None"]
        if lines:
            figure.legend(lines, list(groups), loc="outside lower center", ncols=min(len(groups), 4))
        return save(figure, path)


def _draw_curve(axes: Axes, i: int, group: Sequence[Record], measure: Measure) -> None:
    colour, style = COLOURS[i % len(COLOURS)], _LINES[i % len(_LINES)]
    draw_curve(axes, curve(group, "consensus", measure), colour, style)
    for record in group:
        draw_end(axes, record.status, record.final.round, getattr(record.final.consensus, measure), colour)


def draw_curve(axes: Axes, points: Curve, colour: str, style: Style = "-", alpha: float = 0.18) -> None:
    """A line through the means, and a band of one standard error (none where there is one seed)."""
    mean = np.array([value.mean for value in points.values])
    error = np.array([value.error for value in points.values])
    axes.fill_between(points.rounds, mean - error, mean + error, color=colour, alpha=alpha, linewidth=0)
    axes.plot(points.rounds, mean, color=colour, linestyle=style, linewidth=1.9, zorder=3)


def draw_end(axes: Axes, status: Status, t: int, value: float, colour: str) -> None:
    """Mark where a run ended early: x if it diverged, o if it was stopped."""
    if status != "finished":
        mark = "x" if status == "diverged" else "o"
        axes.plot(t, value, mark, color=colour, fillstyle="none", zorder=4, clip_on=False)


def against_rounds(axes: Axes) -> None:
    """Set up the axes: rounds are whole numbers from zero, and no accuracy is below zero."""
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


def cost(seconds: Mapping[int, Sequence[float]], path: Path) -> Path:
    """Draw the cost per device and round against the number of devices: median, lowest and highest value."""
    with style():
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        K, times = np.array(list(seconds)), [1e6 * np.asarray(values) for values in seconds.values()]
        middle = np.array([np.median(values) for values in times])
        spread = [[m - values.min(), values.max() - m] for m, values in zip(middle, times, strict=True)]
        axes.errorbar(K, middle, np.transpose(spread), color=COLOURS[0], marker="o", linewidth=1.9, capsize=4)
        axes.axhline(middle[0], color="#777777", linestyle=":", linewidth=1.2)
        axes.set(xscale="log", xlabel="devices K", ylabel="microseconds per device and round")
        axes.set_xticks(K, [f"{k:,}" for k in K.tolist()])
        axes.minorticks_off()
        axes.margins(x=0.05)
        axes.set_ylim(bottom=0)
        return save(figure, path)


def network(graph: nx.Graph, path: Path, *, values: Sequence[float] | None = None, label: str = "") -> Path:
    """Draw a graph; with `values`, they colour its nodes, and a colour bar has the `label`."""
    K = graph.number_of_nodes()
    if values is not None and len(values) != K:
        raise InputError(f"values has {len(values)} numbers, but the graph has {K} nodes; give one per node")
    with style():
        figure = Figure(figsize=(6.4 if values is not None else 5.6, 5.6), layout="constrained")
        axes = figure.add_subplot()
        fills = [COLOURS[0]] * K
        if values is not None:
            scale = _scale(values)
            fills = [to_hex(colour) for colour in scale.to_rgba(_known(values))]
            figure.colorbar(scale, ax=axes, label=label, shrink=0.7, pad=0.02)
        draw_graph(axes, graph, fills)
        return save(figure, path)


def draw_graph(axes: Axes, graph: nx.Graph, fills: Sequence[str], *, width: float = 5.6) -> None:
    """Draw a graph into axes that are about `width` inches wide; nodes get numbers if these are readable."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.08)
    places = layout(graph)
    _draw_links(axes, graph, places)
    _draw_nodes(axes, places, dict(zip(graph, fills, strict=True)), (width / 5.6) ** 2)


def _scale(values: Sequence[float]) -> ScalarMappable:
    """Colours from the lowest to the highest known value; grey for nan."""
    scale = ScalarMappable(cmap=mpl.colormaps["cividis"].with_extremes(bad="#bbbbbb"))
    scale.set_array(_known(values))
    scale.autoscale()
    return scale


def _known(values: Sequence[float]) -> Array:
    return np.ma.masked_invalid(np.asarray(values, dtype=np.float64))


def _draw_links(axes: Axes, graph: nx.Graph, places: Positions) -> None:
    links = [(places[i], places[j]) for i, j in graph.edges]
    # many links must not hide each other and the nodes
    alpha = float(np.clip(60 / max(len(links), 1) ** 0.75, 0.06, 0.8))
    axes.add_collection(LineCollection(links, colors="#667080", linewidths=1.0, alpha=alpha, zorder=1))


def _draw_nodes(axes: Axes, places: Positions, fills: dict[int, str], area: float) -> None:
    K = len(places)
    x, y = zip(*places.values(), strict=True)
    size, edge = float(np.clip(9000 * area / K, 12, 420)), 1.2 if K <= 200 else 0.4
    axes.scatter(x, y, s=size, c=[fills[node] for node in places], edgecolors="white", linewidths=edge, zorder=2)
    for node, place in places.items() if size >= 150 else ():
        ink = "white" if _luminance(fills[node]) < 0.5 else "black"
        font = 9 if K <= 30 else 7
        axes.annotate(str(node), place, ha="center", va="center", fontsize=font, color=ink, zorder=3)


def _luminance(colour: str) -> float:
    r, g, b = to_rgb(colour)
    return 0.299 * r + 0.587 * g + 0.114 * b


def check_kind(path: Path) -> str:
    """The format that a path's suffix names; an unknown format is refused.

    >>> check_kind(Path("curves.PDF"))
    'pdf'
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise InputError(f"{path}: can't write a picture of that kind; end the name in .png, .pdf or .svg")
    return kind


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format of the path's suffix, completely or not at all."""
    kind = check_kind(path)
    # without a date, the same data give the same file
    stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=200, metadata=stamp, facecolor="white")
    return path
