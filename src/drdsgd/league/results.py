"""What came of the league: one table per graph, every number as CSV, two pictures, and the goals."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from drdsgd import plots
from drdsgd.files import write_text
from drdsgd.league.entrants import ENTRANTS, OURS
from drdsgd.league.goals import LIMIT, goals, limit
from drdsgd.league.plan import (
    HALVINGS,
    HANDFUL_SEEDS,
    TRIALS,
    TUNING_SEEDS,
    Arena,
    Place,
    arenas,
    at_equal_rounds,
    attempts,
    failed,
    hardships,
    paper_runs,
    places,
    reported,
    variants,
)
from drdsgd.paper import pages, reports
from drdsgd.paper.claims import Claim, paired
from drdsgd.paper.pages import Block, Heading, Picture, Table, Text
from drdsgd.paper.parts import Row
from drdsgd.paper.plan import Group, Settings
from drdsgd.paper.results import end_rows, verdict_table, write_csv, write_verdicts
from drdsgd.paper.store import Done, Kept, ends
from drdsgd.plots import COLOURS
from drdsgd.summary import KINDS, MEASURES, Estimate, Kind, Measure, signed

__all__ = ["page", "tables", "write"]

TITLE, FLOATS = "The league", "floats"
COLUMNS = {"average": "average", "worst": "worst", "worst10": "worst 10 %", "stdev": "STDEV"}
# points of average accuracy that the picture of all shows; of the worst, twice as many
SHOWN = 25.0
MARKS = {"without a server": "o", "ours": "*", "with a server": "s", "another problem": "x", "pooled": "D"}


def write(s: Settings, done: Done, folder: Path) -> list[Claim]:
    """Write the page, the CSV files, the pictures and the report; the goals with their verdicts."""
    claims = goals(s, done)
    for arena in arenas(s):
        here = places(arena, done)
        _save(front(arena, here, done), folder / _front(arena))
        if arena.main:
            counted = {name: tried[-1] for name, tried in _counted(here, done).items()}
            _save(against_floats(counted, done), folder / FLOATS)
            # one of the tables is enough for a page on which one looks at curves: all would have a hundred methods
            alike = {name: at_equal_rounds(one) for name, one in here.items()}
            reports.write({arena.graph: alike}, f"{TITLE}: {arena.data}, {arena.graph}", s, done, folder)
    for name, rows in tables(s, done).items():
        write_csv(folder / f"{name}.csv", rows)
    write_verdicts(folder, claims)
    write_text(folder / "README.md", pages.markdown(page(s, done, folder), folder))
    return claims


def page(s: Settings, done: Done, folder: Path) -> list[Block]:
    """What the page says; its pictures are in the folder."""
    blocks: list[Block] = [Heading(TITLE, 1), *_about(s), verdict_table(goals(s, done), "wanted")]
    for arena in arenas(s):
        here = places(arena, done)
        blocks += [
            Heading(f"{arena.data}, {arena.graph}: equal rounds"),
            Picture(
                folder / f"{_front(arena)}.png",
                "Worst against average accuracy of the consensus model; bars are standard errors.",
            ),
            _table(here, {name: attempts(one) for name, one in here.items()}, done),
        ]
        if arena.main:
            blocks += [
                Heading(f"{arena.data}, {arena.graph}: equal floats sent"),
                Picture(folder / f"{FLOATS}.png", "Worst accuracy of the consensus model against floats sent."),
                _table(here, _counted(here, done), done),
                Heading("Harder circumstances", 3),
                Text(
                    "Compressed messages need the same links in every round; where links fail, they are not compressed."
                ),
                _hard_table(here, done),
                Heading(f"{OURS} in other ways", 3),
                Text(
                    "One thing changed at a time, the best of three step sizes on validation data, equal rounds; "
                    f"changes are to {OURS} as it is, paired by seed."
                ),
                _variants_table(here[OURS], done),
            ]
    return blocks


def tables(s: Settings, done: Done) -> dict[str, list[Row]]:
    """The CSV files, by name."""
    found: dict[str, list[Row]] = {"results": [], "tuning": []}
    for arena in arenas(s):
        here = places(arena, done)
        found["results"] += _end_rows(arena, here, done)
        found["tuning"] += _tuning_rows(here)
    return found


def _counted(here: Mapping[str, Place], done: Done) -> dict[str, tuple[Group, ...]]:
    """The attempts at equal floats."""
    return {name: reported(one, here["DSGD"], done) for name, one in here.items()}


def _front(arena: Arena) -> str:
    return f"front-{arena.data.lower()}-{'ring' if arena.graph == 'ring' else 'erdos-renyi'}"


def _about(s: Settings) -> list[Block]:
    first, second = (
        (3, 1) if s.quick else (TRIALS[data], TUNING_SEEDS[data]) for data in ("Fashion-MNIST", "CIFAR-10")
    )
    return [
        Text(
            "Every method on the same devices: 25 of them, 2 shards each, the same model, batches and first model. "
            f"Each is tuned on each graph over {first[0]} trials of {first[1]} seeds on validation data cut from the "
            "training set, by the consensus model's worst accuracy: step size and schedule first, then its own "
            f"settings. Then {len(s.seeds)} other seeds on test data, mean ± one standard error. Where one of these "
            "runs fails (it diverges, or its training loss ends no lower than it began), all are run again with half "
            f"of the step size, up to {HALVINGS} times; the last count, and the tables say how many failed. "
            f"CIFAR-10 is slow: a handful of methods, {second[0]} trials of {second[1]} seed, then {HANDFUL_SEEDS} "
            "seeds."
        ),
        Text(
            f"The limit is {LIMIT}: all data in one place, with the same model and as many gradients, and weights by "
            "the softmax of the devices' losses. Methods with a server talk to all devices at once, and are baselines; "
            "AFL and DRFA are scored by the average of their models over rounds, as their authors have it. "
            "Another problem: inputs that shift (FedRobust), personal models (Ditto), corrupted updates (RFA). "
            "Stochastic gradient push is DSGD on an undirected graph, and so is not listed."
        ),
    ]


def _table(here: Mapping[str, Place], by_name: Mapping[str, Sequence[Group]], done: Done) -> Table:
    """A row per entrant, the best worst accuracy first."""
    rows = []
    top = ends(limit(here).runs(done), "consensus", "worst")
    for name, tried in by_name.items():
        runs, kind_of = tried[-1].runs(done), here[name].entrant.kind
        cells = [str(_estimate(runs, kind, measure)) for kind in KINDS for measure in MEASURES]
        below = paired(ends(runs, "consensus", "worst"), top)
        values = list(ends(runs, "consensus", "worst").values())
        rows.append((
            statistics.fmean(values) if values else -1.0,
            [
                f"**{name}**" if name == OURS else name, kind_of, f"{tried[-1].example.rounds}",
                "—" if kind_of == "pooled" else _millions(runs), *cells, signed(below) if below.n else "—",
                _failures(tried, done),
            ],
        ))  # fmt: skip
    columns = [
        f"{COLUMNS[measure]}{'' if kind == 'consensus' else ', local'}" for kind in KINDS for measure in MEASURES
    ]
    head = ["method", "kind", "rounds", "million floats", *columns, "worst, from the limit", "failed"]
    return Table(head, [row for _, row in sorted(rows, key=lambda one: -one[0])])


def _failures(tried: Sequence[Group], done: Done) -> str:
    """How many runs failed at each step size."""
    return ", ".join(
        f"{sum(map(failed, runs))} of {len(runs)}{f' at eta / {2**n}' if n else ''}"
        for n, runs in enumerate(group.runs(done) for group in tried)
    )


def _estimate(runs: Sequence[Kept], kind: Kind, measure: Measure) -> Estimate:
    return Estimate.over(list(ends(runs, kind, measure).values()))


def _hard_table(here: Mapping[str, Place], done: Done) -> Table:
    rows = [
        [name, what, *_changes([group], at_equal_rounds(one), done)]
        for name, one in here.items()
        for what, group in hardships(one).items()
    ]
    return Table(["method", "", *CHANGES], rows)


def _variants_table(ours: Place, done: Done) -> Table:
    usual = at_equal_rounds(ours)
    sides = {f"**{OURS}**": attempts(ours), **{name: one.attempts for name, one in variants(ours, done).items()}}
    return Table(["", *CHANGES], [[name, *_changes(tried, usual, done)] for name, tried in sides.items()])


CHANGES = ("average", "worst", "average, change", "worst, change", "million floats", "failed")


def _changes(tried: Sequence[Group], usual: Group, done: Done) -> list[str]:
    """How the last attempt ends, and how much of it is another end than the usual."""
    runs, before = tried[-1].runs(done), usual.runs(done)
    measures: tuple[Measure, ...] = ("average", "worst")
    changes = [paired(*(ends(some, "consensus", measure) for some in (runs, before))) for measure in measures]
    return [
        *(str(_estimate(runs, "consensus", measure)) for measure in measures),
        *(signed(change) if change.n and tried[-1] != usual else "—" for change in changes),
        _millions(runs),
        _failures(tried, done),
    ]


def _millions(runs: Sequence[Kept]) -> str:
    sent = [run.floats_sent for run in runs if run.status == "finished"]
    return f"{statistics.fmean(sent) / 1e6:.0f}" if sent else "—"


# --------------------------------------------------------------------------------------------------- CSV


def _end_rows(arena: Arena, here: Mapping[str, Place], done: Done) -> Iterator[Row]:
    for name, one in here.items():
        sides = {"equal rounds": at_equal_rounds(one)}
        if arena.main:
            sides |= {"equal floats": reported(one, here["DSGD"], done)[-1], **hardships(one)}
        if arena.main and name == OURS:
            sides |= {variant: again.reported for variant, again in variants(one, done).items()}
        for side, group in sides.items():
            for run in group.runs(done):
                place = {"data": arena.data, "graph": arena.graph, "method": name, "side": side}
                for row in end_rows(place, run):
                    yield {**row, "rounds": run.experiment.rounds, "floats_sent": run.floats_sent}


def _tuning_rows(here: Mapping[str, Place]) -> Iterator[Row]:
    for name, one in here.items():
        for number, (point, score) in enumerate(one.found.tried):
            settings = " ".join(f"{key}={value}" for key, value in point.items())
            yield {
                "data": one.arena.data, "graph": one.arena.graph, "method": name, "trial": number, "settings": settings,
                "worst_on_validation": f"{score:.2f}", "chosen": point == one.tuned,
            }  # fmt: skip


# ---------------------------------------------------------------------------------------------- pictures


def _save(figure: Figure, stem: Path) -> None:
    with plots.style():
        for suffix in (".png", ".pdf"):
            plots.save(figure, stem.with_name(stem.name + suffix))


def front(arena: Arena, here: Mapping[str, Place], done: Done) -> Figure:
    """Worst against average accuracy: who is above and to the right of whom. Numbers are explained beside it."""
    sides = {name: (one.entrant.kind, at_equal_rounds(one)) for name, one in here.items()}
    if arena.graph != "ring":
        paper = paper_runs(arena.s, arena.data)
        sides |= {f"{name}, the paper's η": ("without a server", group) for name, group in paper.items()}
    found = [
        (name, kind, _estimate(runs, "consensus", "average"), _estimate(runs, "consensus", "worst"))
        for name, (kind, group) in sides.items()
        if ends(runs := group.runs(done), "consensus", "worst")
    ]
    ranked = sorted(found, key=lambda one: -one[3].mean)
    figure = Figure(figsize=(10.5, 6.0), layout="constrained")
    axes, beside = figure.subplots(1, 2, width_ratios=(3, 1))
    beside.axis("off")
    colours = dict(zip(MARKS, COLOURS, strict=False))
    for number, (name, kind, average, worst) in enumerate(ranked, start=1):
        axes.errorbar(
            average.mean, worst.mean, xerr=_error(average), yerr=_error(worst), marker=MARKS[kind], color=colours[kind],
            markersize=11 if kind == "ours" else 6, linewidth=0.8, capsize=0,
        )  # fmt: skip
        axes.annotate(
            f"{number}", (average.mean, worst.mean), xytext=(5, 4), textcoords="offset points", fontsize=7,
            annotation_clip=True,
        )  # fmt: skip
        line = 1 - number / (len(ranked) + 1)
        beside.text(0, line, f"{number:>2}  {name}", color=colours[kind], fontsize=7, va="center")
    if ranked:  # what is far behind all others would squeeze these into a corner
        right, top = max(one[2].mean for one in ranked), ranked[0][3].mean
        axes.set_xlim(left=max(axes.get_xlim()[0], right - SHOWN))
        axes.set_ylim(bottom=max(axes.get_ylim()[0], top - 2 * SHOWN))
    axes.set_xlabel("average test accuracy (%)")
    axes.set_ylabel("worst device's test accuracy (%)")
    data = "digits, a quick check" if arena.s.quick else arena.data
    axes.set_title(f"{data}, {arena.graph}: tuned alike, equal rounds, consensus model", fontsize="medium")
    handles = [
        Line2D([], [], marker=mark, color=colours[kind], linestyle="", label=kind) for kind, mark in MARKS.items()
    ]
    axes.legend(handles=handles, loc="lower right", fontsize=8)
    return figure


def against_floats(groups: Mapping[str, Group], done: Done) -> Figure:
    """Worst accuracy against floats sent, mean over seeds."""
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    axes = figure.subplots()
    kinds = {entrant.name: entrant.kind for entrant in ENTRANTS}
    grey, shown = "#bbbbbb", 0
    for name, group in groups.items():
        runs = [run for run in group.runs(done) if run.status == "finished"]
        if not runs or kinds[name] not in ("without a server", "ours"):
            continue
        sent = [statistics.fmean(run.floats_sent for run in runs) * t / runs[0].rounds[-1] for t in runs[0].rounds]
        worst = [
            statistics.fmean(values) for values in zip(*(run.curves["consensus"]["worst"] for run in runs), strict=True)
        ]
        mine = name == OURS
        colour = COLOURS[shown % len(COLOURS)] if shown < len(COLOURS) or mine else grey
        shown += 1
        axes.plot(sent, worst, color=colour, linewidth=2.4 if mine else 1.0, label=name, zorder=3 if mine else 2)
    axes.set_xlabel("floats sent by all devices")
    axes.set_ylabel("worst device's test accuracy (%)")
    if shown:
        axes.legend(fontsize=7, ncols=2)
    return figure


def _error(estimate: Estimate) -> float:
    return estimate.error if estimate.n > 1 else 0.0
