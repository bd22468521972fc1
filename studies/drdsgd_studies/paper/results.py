"""The results: CSV files with every number, verdicts, and the page about them.

Every row of the CSV files of figures and table names its runs. `drdsgd train OUT/paper.jsonl.xz:NAME` runs one again
and gives the same metrics. A table without rows has no file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from drdsgd.files import write_text
from drdsgd.report.statistics import KINDS, MEASURES, Estimate, Kind, signed
from drdsgd_studies.paper import fair, table1
from drdsgd_studies.paper.parts import Part, Row
from drdsgd_studies.shared import reports
from drdsgd_studies.shared.claims import Claim
from drdsgd_studies.shared.pages import Block, Heading, Picture, Table, Text
from drdsgd_studies.shared.plan import Comparison, Group, Settings
from drdsgd_studies.shared.store import Done, RunRecord, diverged, estimate

__all__ = ["gain_table", "overview", "section", "verdict_table", "write", "write_csv", "write_verdicts"]

LABELS = {"average": "average", "worst": "worst", "worst10": "worst 10 %", "stdev": "STDEV"}


def write(part: Part, claims: Sequence[Claim], s: Settings, done: Done, folder: Path) -> list[Block]:
    """Write a part's CSV files, pictures, verdicts and report into a folder, and return its section of the page."""
    for name, rows in tables(part, s, done).items():
        write_csv(folder / f"{name}.csv", rows)
    write_verdicts(folder, claims)
    reports.write(part.compared(s), part.title, s, done, folder, "paper")
    return section(part, s, done, claims, part.draw(s, done, folder))


def write_verdicts(folder: Path, claims: Sequence[Claim]) -> None:
    """Write the verdicts on a part's claims."""
    write_text(folder / "verdicts.json", json.dumps([asdict(claim) for claim in claims], indent=1) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the columns of the first row; without rows there is no file."""
    if not rows:
        path.unlink(missing_ok=True)  # an older file would not fit the runs
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


# ------------------------------------------------------------------------------------------------ numbers


def tables(part: Part, s: Settings, done: Done) -> dict[str, list[Row]]:
    """The CSV files of a part, by name."""
    compared = part.comparisons(s)
    others = [
        row
        for name, group in part.readings(s).items()
        for run in group.runs(done)
        for row in end_rows({"reading": name}, run)
    ]
    if not compared:
        return _of_table1(s, done) | {"others": others}
    paired = [
        ({"setting": c.name, "algorithm": label}, run)
        for c in compared
        for label, group in c.pair(s).items()
        for run in group.runs(done)
    ]
    return {
        "curves": [row for place, run in paired for row in curve_rows(place, run)],
        "devices": [row for place, run in paired for row in device_rows(place, run)],
        "fair": [row for c in compared for row in _fair_rows(c, s, done)],
        "tuning": [row for c in compared if c.tuned_at is None for row in _tuning_rows(c, s, done)],
        "gains": [row for c in compared for row in _gain_rows(c, s, done)],
        "others": others,
    }


def _of_table1(s: Settings, done: Done) -> dict[str, list[Row]]:
    printed = [
        row
        for data in table1.PRINTED
        for mu, group in table1.rows(s, data).items()
        for run in group.runs(done)
        for row in end_rows({"data": data, "mu": mu}, run)
    ]
    tried = [
        row
        for r in table1.readings()
        for mu, group in table1.reading_rows(s, r).items()
        for run in group.runs(done)
        for row in end_rows(
            {"shards": r.shards, "weights": r.weights, "loss_clip": r.loss_clip, "mu": mu}, run, [r.kind]
        )
    ]
    steps = [
        {
            "eta": run.experiment.eta, "seed": run.experiment.seed, "status": run.status, "said": run.message,
            "average": run.final("consensus", "average"), "run": run.name,
        }
        for _, group in table1.steps(s, done)
        for run in group.runs(done)
    ]  # fmt: skip
    return {"table": printed, "readings": tried, "closest": _closest_rows(s, done), "steps": steps}


def _closest_rows(s: Settings, done: Done) -> list[Row]:
    return [
        {
            "rank": rank, "model": r.kind, "shards": r.shards, "weights": r.weights, "loss_clip": r.loss_clip,
            "near": d.near, "mean_distance": f"{d.mean:.3f}", "largest_distance": f"{d.largest:.3f}",
            "diverged": d.diverged,
            "runs": _names(run for group in table1.reading_rows(s, r).values() for run in group.runs(done)),
        }
        for rank, (r, d) in enumerate(table1.closest(s, done), start=1)
    ]  # fmt: skip


def curve_rows(place: Row, run: RunRecord) -> Iterator[Row]:
    """A row for every evaluation of a run and kind of model."""
    for kind in KINDS:
        for i, t in enumerate(run.rounds):
            yield {
                **place, "seed": run.experiment.seed, "round": t, "model": kind,
                **{measure: run.curves[kind][measure][i] for measure in MEASURES},
                "consensus_distance": run.consensus_distance[i], "train_loss": run.train_loss[i],
                "weight": run.weight[i], "status": run.status, "run": run.name,
            }  # fmt: skip


def device_rows(place: Row, run: RunRecord) -> Iterator[Row]:
    """A row for every device of a run, at its end."""
    both = zip(*(run.per_device[kind] for kind in KINDS), strict=True)
    for device, (consensus, local) in enumerate(both):
        yield {
            **place, "seed": run.experiment.seed, "device": device, "consensus": consensus, "local": local,
            "status": run.status, "run": run.name,
        }  # fmt: skip


def end_rows(place: Row, run: RunRecord, kinds: Sequence[Kind] = KINDS) -> Iterator[Row]:
    """A row for every kind of model at the end of a run."""
    for kind in kinds:
        yield {
            **place, "seed": run.experiment.seed, "model": kind,
            **{measure: run.final(kind, measure) for measure in MEASURES}, "status": run.status, "run": run.name,
        }  # fmt: skip


def _fair_rows(c: Comparison, s: Settings, done: Done) -> Iterator[Row]:
    for label, group in fair.sides(c, s, done).items():
        e = group.example
        place = {"setting": c.name, "side": label, "eta": e.eta, "eta_schedule": e.eta_schedule}
        for run in group.runs(done):
            yield from end_rows(place, run)


def _tuning_rows(c: Comparison, s: Settings, done: Done) -> Iterator[Row]:
    for schedule in fair.SCHEDULES:
        for algorithm in fair.ALGORITHMS:
            chosen = fair.best(c, s, algorithm, schedule, done)
            for multiple in fair.grid(c, s, schedule, done):
                for run in fair.trial(c, s, algorithm, schedule, multiple).runs(done):
                    yield {
                        "setting": c.name, "algorithm": algorithm, "eta_schedule": schedule, "multiple": multiple,
                        "eta": run.experiment.eta, "seed": run.experiment.seed,
                        "validation_worst": run.final("consensus", "worst"),
                        "validation_average": run.final("consensus", "average"),
                        "status": run.status, "chosen": multiple == chosen, "run": run.name,
                    }  # fmt: skip


def _gain_rows(c: Comparison, s: Settings, done: Done) -> Iterator[Row]:
    sides = fair.sides(c, s, done)
    names = {name: _names(chain(*pairs)) for name, pairs in fair.paired_runs(sides, done).items()}
    for kind in KINDS:
        for measure in MEASURES:
            for name, gain in asdict(fair.gain(sides, done, kind, measure)).items():
                if gain["n"]:
                    yield {
                        "setting": c.name, "model": kind, "measure": measure, "gain": name,
                        "mean": _number(gain["mean"]), "error": _number(gain["error"]), "pairs": gain["n"],
                        "runs": names[name],
                    }  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.4f}"


def _names(runs: Iterable[RunRecord]) -> str:
    return " ".join(dict.fromkeys(run.name for run in runs))


# --------------------------------------------------------------------------------------------------- page


def section(part: Part, s: Settings, done: Done, claims: Sequence[Claim], pictures: Mapping[Path, str]) -> list[Block]:
    """A part's section of the page: pictures, verdicts, and the numbers behind them."""
    blocks: list[Block] = [Heading(part.title)]
    blocks += [Picture(stem.with_name(f"{stem.name}.png"), f"{shows}.") for stem, shows in pictures.items()]
    blocks += [verdict_table(claims)]
    if compared := part.comparisons(s):
        blocks += [Heading("At the end of all runs", 3), _end_table(compared, s, done)]
    if any(c.tuned for c in compared):
        blocks += [Text(noisy_choice([c for c in compared if c.tuned], s))]
    if others := part.readings(s):
        blocks += [Heading("Other readings", 3), _others_table(others, done)]
    if not compared:
        blocks += [Heading("Beside the printed numbers", 3), *_printed_tables(s, done)]
        blocks += [Heading("The open readings", 3), Text(_ranked(s, done)), _reading_table(s, done)]
        blocks += [Heading("mu = 2: how large a step?", 3), _step_table(s, done)]
    return blocks


def noisy_choice(compared: Sequence[Comparison], s: Settings) -> str:
    """A note on the few runs that choose the best eta.

    >>> from drdsgd_studies.paper import fig2
    >>> noisy_choice(fig2.comparisons(Settings()), Settings())
    'A best eta is the best of few runs (1 seed on CIFAR-10), so it is noisy itself: other seeds may choose another.'
    """
    by = {c.data: fair.chosen_by(s, c.data) for c in compared}
    seeds = ", ".join(f"{n} seed{'s' * (n > 1)} on {data}" for data, n in by.items())
    return f"A best eta is the best of few runs ({seeds}), so it is noisy itself: other seeds may choose another."


def _ranked(s: Settings, done: Done) -> str:
    """The order of the readings, and why some are missing."""
    every, missing = len(table1.readings()), len(table1.readings()) - len(table1.closest(s, done))
    without = f" {missing} of {every} are missing: they have a mu of which no run finished." if missing else ""
    return f"First those of which no run diverged, then the others; among each, the closest first.{without}"


def verdict_table(claims: Sequence[Claim], who: str = "the paper") -> Table:
    """The claims of a part, whose they are, the findings and the rules."""
    return Table(["claim", who, "of", "ours", "verdict", "rule"], verdict_rows(claims))


def verdict_rows(claims: Sequence[Claim], rule: bool = True) -> list[list[str]]:
    """A row for every finding; the first row of a claim has what all its rows share."""
    rows = []
    for claim in claims:
        for i, (of, finding) in enumerate(claim.findings.items()):
            first = i == 0
            row = [claim.text if first else "", claim.paper if first else "", of, finding.ours, finding.verdict]
            rows.append([*row, claim.rule if first else ""] if rule else row)
    return rows


def overview(claims: Mapping[str, Sequence[Claim]]) -> list[Block]:
    """The overview: how many claims hold, and the verdict on each, the headline model first."""
    heads = [next(iter(claim.findings.values())).verdict for part in claims.values() for claim in part]
    order = ("holds", "holds in part", "does not hold", "cannot be told", "not run yet")
    counts = ", ".join(f"{verdict}: {heads.count(verdict)}" for verdict in order if verdict in heads)
    rows = [
        [name if i == 0 else "", *row]
        for name, part in claims.items()
        for i, row in enumerate(verdict_rows(part, rule=False))
    ]
    return [
        Text(f"{len(heads)} claims, judged on the first model or setting that each names. {counts}."),
        Table(["", "claim", "the paper", "of", "ours", "verdict"], rows),
    ]


def _end_table(compared: Sequence[Comparison], s: Settings, done: Done) -> Table:
    rows = []
    for c in compared:
        for label, group in fair.sides(c, s, done).items():
            runs, e = group.runs(done), group.example
            eta = f"{e.eta:.3g}, falling" if e.eta_schedule == "linear" else f"{e.eta:.3g}"
            for kind in KINDS:
                rows.append([
                    c.name, label, eta if group.ready else "not known yet", kind,
                    *(str(estimate(runs, kind, measure)) for measure in MEASURES),
                    _finished(group, done),
                ])  # fmt: skip
    return Table(["setting", "side", "eta", "model", *LABELS.values(), "finished"], rows)


def _others_table(others: Mapping[str, Group], done: Done) -> Table:
    rows = [
        [
            name, kind,
            *(str(estimate(group.runs(done), kind, measure)) for measure in MEASURES),
            _finished(group, done),
        ]
        for name, group in others.items()
        for kind in KINDS
    ]  # fmt: skip
    return Table(["reading", "model", *LABELS.values(), "finished"], rows)


def _finished(group: Group, done: Done) -> str:
    """How many runs finished, if all are done; else how many are done, and how many of these diverged."""
    runs, planned = group.runs(done), len(group.experiments)
    if len(runs) == planned:
        return f"{planned - diverged(runs)} of {planned}"
    return f"{len(runs)} of {planned} done" + (f", {diverged(runs)} diverged" if diverged(runs) else "")


def gain_table(compared: Sequence[Comparison], s: Settings, done: Done) -> Table:
    """How much of the gain in worst accuracy is due to the step size, and how much to robustness."""
    rows, sides = [], [fair.sides(c, s, done) for c in compared]
    for kind in KINDS:
        for c, some in zip(compared, sides, strict=True):
            g = fair.gain(some, done, kind, "worst")
            cells = (_gained(estimate, s) for estimate in (g.same_eta, g.step, g.rest, g.best, g.falling))
            rows.append([kind, f"{c.part}: {c.name}", *cells])
    return Table(
        ["worst accuracy of", "setting", "DR-DSGD over DSGD at the same eta", "of it step size", "the rest: robustness",
         "both at best eta", "both at best eta, falling"],
        rows,
    )  # fmt: skip


def _gained(estimate: Estimate, s: Settings) -> str:
    """A gain, with the number of seeds if some are missing."""
    lost = f" ({estimate.n} of {len(s.seeds)})" if 0 < estimate.n < len(s.seeds) else ""
    return signed(estimate) + lost


def _printed_tables(s: Settings, done: Done) -> Iterator[Table]:
    for data, printed in table1.PRINTED.items():
        rows = []
        for i, (mu, group) in enumerate(table1.rows(s, data).items()):
            runs = group.runs(done)
            errors = table1.ERRORS[data]
            numbers = (f"{printed[column][i]:g} ± {errors[column][i]:g}" for column in table1.COLUMNS)
            rows.append([f"{mu:g}", "the paper", *numbers, ""])
            for kind in KINDS:
                ours = (estimate(runs, kind, column) for column in table1.COLUMNS)
                rows.append(["", f"ours, {kind}", *map(str, ours), _finished(group, done)])
        yield Table([f"{data}, mu", "", *(LABELS[column] for column in table1.COLUMNS), "finished"], rows)


def _reading_table(s: Settings, done: Done) -> Table:
    return Table(
        ["reading", "mean distance from the nine printed numbers", "largest", "near", "diverged", "the three trends"],
        [
            [
                str(r), f"{d.mean:.1f}", f"{d.largest:.1f}", f"{d.near} of 9", str(d.diverged),
                table1.trends(table1.reading_rows(s, r), done, r.kind).verdict,
            ]
            for r, d in table1.closest(s, done)
        ],
    )  # fmt: skip


def _step_table(s: Settings, done: Done) -> Table:
    looked = sorted(((group.example.eta, group.runs(done)) for _, group in table1.steps(s, done)), key=lambda x: x[0])
    rows = [
        [
            f"{eta:.3g}", f"{diverged(runs)} of {len(runs)}",
            *(str(estimate(runs, kind, "average")) for kind in KINDS),
        ]
        for eta, runs in looked
    ]  # fmt: skip
    return Table(["eta", "seeds that diverged", "average accuracy of the others, consensus", "local"], rows)
