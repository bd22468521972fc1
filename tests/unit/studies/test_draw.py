"""The paper's figures: that they are written, and show what was measured, what is missing and what diverged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Annotation, Text

from drdsgd.experiments.config import Experiment
from drdsgd.report import plots
from drdsgd.report.palette import COLOURS
from drdsgd_studies.paper import draw, fair, fig1, fig3, fig4, fig5, table1
from drdsgd_studies.shared.plan import Comparison, DataName, Group, Settings
from drdsgd_studies.shared.store import Done, RunRecord
from tests.support.made import run_record

Runs = dict[Experiment, RunRecord]

T = 6
S = Settings(seeds=(0, 1, 2), rounds=T, quick=True)
DATA: tuple[DataName, ...] = ("Fashion-MNIST", "CIFAR-10")
FASHION = fig1.comparisons(S)[0]
BY_P = {data: fig4.cases(S, data) for data in DATA}
BY_GRAPH = fig5.cases(S)

DRAWN: dict[str, Callable[[Settings, Done], Figure]] = {
    "curves": lambda s, done: draw.curves(FASHION, s, done),
    "spread": lambda s, done: draw.spread(fig3.comparisons(S), s, done),
    "denser": lambda s, done: draw.denser(BY_P, s, done),
    "topologies": lambda s, done: draw.topologies(BY_GRAPH, s, done),
    "table": draw.table,
    "readings": draw.readings,
    "gains": lambda s, done: draw.gains([FASHION], s, done),
}
each = pytest.mark.parametrize("name", DRAWN)
# on one worker, so that the runs to draw are made once
pytestmark = [pytest.mark.xdist_group("draw"), pytest.mark.slow]


def runs(group: Group, worst: float, lost: Iterable[int] = ()) -> Runs:
    """Devices from `worst` upwards, a point more with every seed; those seeds of `lost` diverged."""
    return {
        e: run_record(
            e, np.linspace(worst + e.seed, 90, e.devices).tolist(), "diverged" if e.seed in lost else "finished"
        )
        for e in group.experiments
    }


def paired(comparisons: Iterable[Comparison], lost: Iterable[int] = (), s: Settings = S) -> Runs:
    """DSGD's worst-off device at 40 %, DR-DSGD's at 45 %, and those seeds of DR-DSGD diverged."""
    done: Runs = {}
    for c in comparisons:
        pair = c.pair(s)
        done |= runs(pair["DSGD"], 40) | runs(pair["DR-DSGD"], 45, lost)
    return done


@functools.cache
def everything(s: Settings = S, lost: tuple[int, ...] = ()) -> Done:
    """All runs that any of the pictures asks for."""
    done = paired([FASHION, *fig3.comparisons(S), *fig4.comparisons(S), *fig5.comparisons(S)], lost, s)
    for reading in table1.readings():
        if reading.kind == "consensus":  # of a run both are scored
            for group in table1.reading_rows(s, reading).values():
                done |= runs(group, 40 + reading.shards, lost)
    for data in table1.PRINTED:
        for mu, group in table1.rows(s, data).items():
            done |= runs(group, 40 + mu, lost)
    for group in fair.trials(FASHION, s, {}):
        # the middle of the grid is the best, so it does not grow
        done |= runs(group, -60 - abs(group.example.eta - 2 * FASHION.pair(s)["DSGD"].example.eta))
    for label, group in fair.variants(FASHION, s, done).items():
        assert group.ready or lost
        done |= runs(group, {"DSGD, matched step": 44, "DR-DSGD, best eta": 47}.get(label, 46))
    return done


@pytest.fixture(scope="module")
def done() -> Done:
    return everything()


def figure(name: str, s: Settings, done: Done) -> Figure:
    with plots.style():
        return DRAWN[name](s, done)


def laid_out(name: str, s: Settings, done: Done) -> Figure:
    """What fails to be drawn fails here."""
    with plots.style():
        made = DRAWN[name](s, done)
        made.draw_without_rendering()
    return made


def legend(owner: Figure | Axes) -> list[str]:
    """Its words; a figure's legend is none of an axes."""
    found = owner.legends[0] if isinstance(owner, Figure) else owner.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


# -------------------------------------------------------------------------------------------- all of them


@each
def test_both_files_are_written_whole(name: str, done: Done, tmp_path: Path) -> None:
    png, pdf = draw.write(tmp_path / "new" / "p0.3", DRAWN[name], S, done)
    assert [png.name, pdf.name] == ["p0.3.png", "p0.3.pdf"]
    assert sorted(png.parent.iterdir()) == [pdf, png]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert b"CreationDate" not in pdf.read_bytes()
    if name in ("topologies", "gains"):  # the same runs give the same files
        again = draw.write(tmp_path / "again", DRAWN[name], S, done)
        assert [path.read_bytes() for path in again] == [png.read_bytes(), pdf.read_bytes()]


@each
def test_nothing_is_needed(name: str) -> None:
    assert laid_out(name, S, {}).axes


@each
def test_all_runs_may_diverge(name: str) -> None:
    assert laid_out(name, S, everything(lost=S.seeds)).axes


@each
def test_one_seed_is_enough(name: str) -> None:
    s = Settings(seeds=(3,), rounds=T, quick=True)
    assert laid_out(name, s, everything(s)).axes


@each
def test_a_quick_check_does_not_pass_for_the_paper_s_data(name: str, done: Done) -> None:
    made = figure(name, S, done)
    words = [text.get_text() for text in made.findobj(Text) if isinstance(text, Text)]
    named = [word for word in words if word.startswith(("Fashion-MNIST", "CIFAR-10"))]
    assert named == []


# ---------------------------------------------------------------------------------------- against rounds


def lines(axes: Axes, colour: str) -> list[tuple[list[float], list[float]]]:
    """Lines of a colour as x and y; marks are not among them."""
    return [
        (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in axes.lines
        if line.get_color() == colour and line.get_marker() == "None"
    ]


def marks(axes: Axes) -> int:
    return sum(line.get_marker() == "x" for line in axes.lines)


def test_curves_are_means_over_seeds() -> None:
    made = figure("curves", S, paired([FASHION]))
    assert len(made.axes) == 6
    assert [axes.get_title() for axes in made.axes[:3]] == [title for title, _ in plots.PANELS.values()]
    assert legend(made) == ["DSGD", "DR-DSGD"]
    worst = made.axes[1]
    for colour, end in zip(COLOURS, (41.0, 46.0), strict=False):
        ((x, y),) = lines(worst, colour)
        assert x == list(range(T + 1))
        assert y[0] == 10
        assert y[-1] == pytest.approx(end)
    # local models are one point better here
    assert lines(made.axes[4], COLOURS[0])[0][1][-1] == pytest.approx(42)
    assert len(worst.collections) == 2
    assert worst.get_ylim() == made.axes[4].get_ylim()
    assert worst.get_xlim() == pytest.approx((0, 1.01 * T))
    assert sum(map(marks, made.axes)) == 0


def test_diverged_runs_count_as_far_as_they_got_and_are_marked() -> None:
    made = figure("curves", S, paired([FASHION], lost=[2]))
    assert legend(made) == ["DSGD", "DR-DSGD · 1 of 3 runs diverged"]
    worst = made.axes[1]
    ((_, y),) = lines(worst, COLOURS[1])
    assert y[-1] == pytest.approx(45.5)  # of two seeds
    (mark,) = [line for line in worst.lines if line.get_marker() == "x"]
    assert np.asarray(mark.get_xdata()).tolist() == [T // 2]
    assert mark.get_color() == COLOURS[1]


def test_runs_that_are_missing_are_counted() -> None:
    dsgd = runs(FASHION.pair(S)["DSGD"], 40)
    dsgd.popitem()
    made = figure("curves", S, dsgd)
    assert legend(made) == ["DSGD · 2 of 3 runs done", "DR-DSGD · 0 of 3 runs done"]
    assert len(lines(made.axes[0], COLOURS[0])) == 1
    assert lines(made.axes[0], COLOURS[1]) == []


def test_denser_graphs_have_a_panel_each() -> None:
    made = figure("denser", S, paired(fig4.comparisons(S), lost=[0]))
    assert len(made.axes) == 12
    assert legend(made) == ["DSGD", "DR-DSGD", "6 of 36 runs diverged"]
    for part, data in zip(made.subfigs, DATA, strict=True):
        assert part.get_suptitle() == f"digits in place of {data}"
        assert [axes.get_title() for axes in part.axes[:3]] == ["p = 0.3", "p = 0.45", "p = 0.6"]
        assert len({axes.get_ylim() for axes in part.axes}) == 1
    for axes in made.axes:
        assert len(lines(axes, COLOURS[0])) == len(lines(axes, COLOURS[1])) == marks(axes) == 1


def test_the_title_names_the_setting(done: Done) -> None:
    (title,) = (text.get_text() for text in figure("curves", S, done).texts)
    assert title == f"digits in place of Fashion-MNIST, K = 10, T = {T}, μ = 6, p = 0.3"


def test_topologies_have_a_picture_each() -> None:
    made = figure("topologies", S, paired(fig5.comparisons(S)))
    assert [axes.get_title() for axes in made.axes[:3]] == ["geometric", "ring", "grid"]
    links = [len(axes.collections[0].get_paths()) for axes in made.axes[:3]]
    assert links[1:] == [25, 40]
    # too small to hold numbers
    assert [len(axes.texts) for axes in made.axes[:3]] == [0, 0, 0]
    for axes in made.axes[3:]:
        assert len(lines(axes, COLOURS[0])) == len(lines(axes, COLOURS[1])) == 1
    assert len({axes.get_ylim() for axes in made.axes[3:]}) == 1
    assert legend(made) == ["DSGD", "DR-DSGD"]


# ------------------------------------------------------------------------------------------ over devices


def test_spread_is_in_percent_of_all_devices() -> None:
    comparisons = fig3.comparisons(S)
    made = figure("spread", S, paired(comparisons, lost=[0]))
    assert len(made.axes) == 4
    for axes in made.axes:
        dsgd, dr_dsgd = (patch for patch in axes.patches if isinstance(patch, StepPatch) and not patch.get_fill())
        for patch in (dsgd, dr_dsgd):
            heights, edges, _ = patch.get_data()
            assert heights.sum() == pytest.approx(100)
            assert set(np.diff(edges)) == {draw.BIN}
        assert axes.get_xlim() == (0, 100)
        assert len([line for line in axes.lines if line.get_linestyle() == "--"]) == 2
    first = made.axes[0]
    # DSGD's devices are evenly from 40, 41, 42 to 90; DR-DSGD's from 46 and 47
    assert [word.splitlines()[0][:23] for word in legend(first)] == [
        "DSGD: average 65.5, STD",
        "DR-DSGD: average 68.2, ",
    ]
    assert legend(first)[1].endswith("\n1 of 3 runs diverged")
    assert np.asarray(first.lines[0].get_xdata())[0] == pytest.approx(65.5)


def test_spread_of_no_finished_run_says_so() -> None:
    made = figure("spread", S, paired(fig3.comparisons(S), lost=[0, 1, 2]))
    assert legend(made.axes[0])[1] == "DR-DSGD: no run finished\n3 of 3 runs diverged"


# ----------------------------------------------------------------------------------------------- Table 1


def test_the_table_has_ours_and_the_printed_numbers() -> None:
    done: Runs = {}
    for mu, group in table1.rows(S, "Fashion-MNIST").items():
        done |= runs(group, 40 + mu, lost=[0, 1, 2] if mu == 2 else [])
    made = figure("table", S, done)
    assert len(made.axes) == 6
    average = made.axes[0]
    printed = [line for line in average.lines if line.get_marker() == "*"]
    assert [np.asarray(line.get_ydata()).tolist() for line in printed] == [[71.5, 72.3, 73.4]]
    consensus, local = average.containers
    for bars, better in ((consensus, 0), (local, 1)):
        y = np.asarray(bars[0].get_ydata())
        assert y == pytest.approx([(40 + mu + 1 + 90) / 2 + better for mu in (3, 5)])
    assert [label.get_text() for label in average.get_xticklabels()] == ["2\n3 of 3\ndiverged", "3", "5"]
    assert [label.get_text() for label in made.axes[3].get_xticklabels()] == ["2", "3", "5"]
    assert not made.axes[3].containers


def test_readings_are_ranked(done: Done) -> None:
    (axes,) = figure("readings", S, done).axes
    widths = [bar.get_width() for bar in axes.containers[0]]
    assert len(widths) == len(table1.readings()) == 36
    assert widths == sorted(widths)
    ranking = table1.closest(S, done)
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(reading) for reading, _ in ranking]
    assert widths == pytest.approx([distance.mean for _, distance in ranking])
    assert "missing" not in axes.get_xlabel()


def test_readings_say_what_diverged_and_what_is_missing() -> None:
    lossy, gone, *_ = (reading for reading in table1.readings() if reading.kind == "consensus")
    done: Runs = {}
    for reading, lost in ((lossy, [0]), (gone, [0, 1, 2])):
        for group in table1.reading_rows(S, reading).values():
            done |= runs(group, 40, lost)
    (axes,) = figure("readings", S, done).axes
    # runs are scored both ways, so one lossy setting is two readings
    notes = [text.get_text() for text in axes.texts if isinstance(text, Annotation)]
    assert [note.split("  ")[1] for note in notes] == ["(3 diverged)"] * 2
    assert "34 of 36 readings are missing" in axes.get_xlabel()


# --------------------------------------------------------------------------------------- fair comparison


def places(axes: Axes) -> dict[str, list[float]]:
    """The x of the dots by colour."""
    found: dict[str, list[float]] = {}
    for bars in axes.containers:
        found.setdefault(str(bars[0].get_color()), []).extend(np.asarray(bars[0].get_xdata()).tolist())
    return found


def test_gains_have_five_dots(done: Done) -> None:
    (axes,) = figure("gains", S, done).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"fig1: {FASHION.name}"]
    expected = {
        "same_eta": 45 - 40,
        "step": 44 - 40,
        "rest": 45 - 44,
        "best": 47 - 46,
        "falling": 46 - 46,
    }
    found = places(axes)
    assert found == {colour: [pytest.approx(x)] for colour, x in zip(COLOURS, expected.values(), strict=False)}
    assert tuple(expected) == tuple(draw.GAINS)


def test_gains_that_were_not_measured_are_left_out() -> None:
    (axes,) = figure("gains", S, paired([FASHION], lost=[0])).axes
    assert places(axes) == {COLOURS[0]: [pytest.approx(5)]}
    # a seed is missing, which a hollow dot says
    assert axes.containers[0][0].get_markerfacecolor() == "white"
