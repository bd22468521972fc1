"""The picture of the measurements: the rate, and the distance between the models."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drdsgd.report.palette import COLOURS
from drdsgd.report.statistics import Estimate
from drdsgd_studies.theory.measurements import Results
from drdsgd_studies.theory.verdicts import ROUNDING, rounds_of, slopes, three

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SHOWN", "draw"]

SHOWN = (
    "Left: the mean over t = 1..T of the squared gradient norm of F at the average model, against T; bars are one "
    "standard error over seeds. Right: the squared distance of the devices' models theta (a column each) from their "
    "mean, theta J (all entries of J are 1/K), against rho of the graph; marks are single runs, lines the bound of "
    "Lemma 3. The complete graph, where rho = 0, is left out."
)


def draw(results: Results, path: Path) -> Path:
    """Draw the rate against T, and the distance between the models with Lemma 3's bound against rho."""
    from matplotlib.figure import Figure

    from drdsgd.report.plots import save, style

    with style():
        figure = Figure(figsize=(10.5, 4.6), layout="constrained")
        for axes, panel in zip(figure.subplots(1, 2), (_draw_rate, _draw_distance), strict=True):
            panel(axes, results)
            # plain numbers, which matplotlib does not read as formulas
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
            axes.yaxis.set_minor_formatter(lambda value, _: "")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=9)
        return save(figure, path)


def _draw_rate(axes: Axes, results: Results) -> None:
    rate = results.of("rate")
    Ts, top = sorted({rounds_of(m) for m in rate}), 0.0
    for colour, (K, slope) in zip(itertools.cycle(COLOURS), slopes(results).items(), strict=False):
        T, values = _by((rounds_of(m), m.measured) for m in rate if m.K == K)
        top = max(top, values[0].mean)
        axes.errorbar(
            T, [v.mean for v in values], [v.error if v.n > 1 else 0.0 for v in values],
            color=colour, marker="o", markersize=4, linewidth=1.9, capsize=3, label=f"K = {K}: slope {three(slope)}",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", title="Corollary 1: rate", xlabel="rounds T")
    axes.set_ylabel("mean over t of ||grad F||²")
    if Ts:
        ends = np.array([Ts[0], Ts[-1]])
        axes.plot(ends, 1.3 * top * np.sqrt(ends[0] / ends), color="#777777", linestyle=":", label="slope -1/2")
        axes.set_xticks(Ts, [str(T) for T in Ts])
        axes.minorticks_off()


def _draw_distance(axes: Axes, results: Results) -> None:
    some = [m for m in results.of("lemma 3") if m.problem == "waves" and m.rho > ROUNDING]
    looks = ((COLOURS[0], "o", 3.5, 4), (COLOURS[1], "s", 6.5, 3))
    for (colour, mark, size, order), mu in zip(looks, sorted({m.mu for m in some if m.mu is not None}), strict=False):
        # the bound does not depend on B
        rhos, bounds = _by((m.rho, m.bound) for m in some if m.mu == mu and m.bound is not None)
        axes.plot(rhos, [b.mean for b in bounds], color=colour, linewidth=1.9, label=f"bound, mu = {mu:g}")
        # values almost coincide: small marks on large ones, open marks around them
        for fill, B in zip(("none", "full"), sorted({m.B for m in some if m.B is not None}), strict=False):
            shown = [m for m in some if (m.mu, m.B) == (mu, B)]
            label = f"measured, mu = {mu:g}, B = {B}"
            x, y = [m.rho for m in shown], [m.measured for m in shown]
            axes.plot(
                x, y, color=colour, marker=mark, markersize=size + 4 * (fill == "none"), fillstyle=fill, linestyle="",
                label=label, zorder=order,
            )  # fmt: skip
    axes.margins(x=0.04)  # open marks would be cut off
    axes.set(yscale="log", title="Lemma 3: distance", xlabel="rho of the graph")
    axes.set_ylabel("mean over t of 1/K ||theta (I - J)||²")


def _by(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[Estimate]]:
    """Points (x, y) as sorted x, and an estimate of y for each."""
    found: dict[float, list[float]] = {}
    for x, y in points:
        found.setdefault(x, []).append(y)
    return sorted(found), [Estimate.over(found[x]) for x in sorted(found)]
