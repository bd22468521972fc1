"""The part of the page that needs no script: headline, tables, explanations, and empty places for the plots."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from drdsgd.experiments.records import Record
from drdsgd.report.content import all_of, rhos, status
from drdsgd.report.groups import Groups
from drdsgd.report.headline import caveats, headline
from drdsgd.report.palette import COLOURS, DASHES
from drdsgd.report.statistics import KINDS, MEASURES, Estimate, Kind, Row, best, finished, signed, table
from drdsgd.report.tables import count_runs, legend

__all__ = ["body"]


def body(compared: Sequence[Groups], title: str, drawn: dict[str, Any]) -> str:
    """The page without its data and its script: six questions in order, without parts for which no run has data."""
    groups, rows = all_of(compared), [table(some) for some in compared]
    devices = bool(drawn["runs"])  # whether single devices are shown
    return "\n".join(
        [
            f'<header><h1>{escape(title)}</h1><p class="soft">{escape(_scope(groups))}</p></header>',
            "<main>",
            _answer(compared, rows),
            _controls(groups, drawn),
            _path(groups, drawn),
            *([_devices()] if devices else []),
            _fairness(devices),
            _agreement(groups, [row for some in rows for row in some]),
            _runs(groups, drawn),
            "</main>",
            '<div id="following" role="status" hidden></div><div id="tip" role="tooltip" hidden></div>',
        ]
    )


def _scope(groups: Groups) -> str:
    """The subject of the page, in one line."""
    runs = [record for group in groups.values() for record in group]
    e = runs[0].experiment
    sizes = sorted({record.experiment.devices for record in runs})
    devices = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    datasets = sorted({record.experiment.dataset for record in runs})
    on = f" on {datasets[0]}" if len(datasets) == 1 else ""
    rounds = f", {e.rounds} rounds" if len({record.experiment.rounds for record in runs}) == 1 else ""
    return f"{count_runs(len(runs))}{on}, {devices} devices{rounds}"


def _section(name: str, question: str, *parts: str) -> str:
    inside = "\n".join(part for part in parts if part)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">'
        f'<h2 id="{name}-title"><span class="number"></span>{question}</h2>\n{inside}\n</section>'
    )


def _figure(name: str, title: str, what: str, classes: str = "") -> str:
    """The place for a plot: the script draws it, describes it in words, and lists its numbers."""
    return (
        f'<figure id="{name}" class="{classes}"><h3>{title}</h3><p class="what">{what}</p>'
        '<div class="plot"></div><figcaption></figcaption>'
        '<div class="tools"><details class="numbers"><summary>Table</summary><div class="scroll"></div></details>'
        f'<button type="button" class="csv" aria-label="Download the data of {title} as CSV">CSV</button></div>'
        "</figure>"
    )


# ---------------------------------------------------------------------- answer


def _answer(groups: Sequence[Groups], compared: Sequence[Sequence[Row]]) -> str:
    """A sentence, its numbers and a table for each set of groups that are compared."""
    question = "Is the worst-off device served better, and at what price?"
    if all(len(rows) == len(KINDS) for rows in compared):
        question = "How is the worst-off device served?"
    parts, before = [], 0
    for some, rows in zip(groups, compared, strict=True):
        notes = "".join(f"<li>{escape(note)}</li>" for note in [*caveats(rows), *_why_diverged(some)])
        parts += [
            f'<p class="headline">{_emphasised(headline(rows))}</p>',
            f'<ul class="notes">{notes}</ul>' if notes else "",
            _tiles(rows),
            "" if before else _TERMS,
            _table(rows, before),
        ]
        before += len(rows) // len(KINDS)
    return _section("answer", question, *parts)


def _why_diverged(groups: Groups) -> list[str]:
    """The messages of runs that diverged; only the first if there are many."""
    said = [
        f"{label}, seed {record.experiment.seed}: {record.message}"
        for label, group in groups.items()
        for record in group
        if record.status == "diverged" and record.message
    ]
    more = [f"{len(said) - 3} more runs diverged; their messages are at the end of the page."] if len(said) > 4 else []
    return said[: 3 if more else 4] + more


_TERMS = """<p class="explained">Devices on a graph train one model together. Each talks only to its neighbours, keeps
its data to itself, and is evaluated on test samples like its own. The <dfn>worst-off device</dfn> is the one with the
lowest accuracy. The <dfn>worst 10 %</dfn> is the mean accuracy over the worst-off tenth of devices, and
<dfn>STDEV</dfn> is the standard deviation over devices: the smaller, the fairer. Two models are evaluated: the
<dfn>consensus model</dfn>, the mean of all devices' models, which is the one to use after training, and each
device's own <dfn>local model</dfn>.</p>"""


def _emphasised(text: str) -> str:
    """The sentence with its measured numbers in bold."""
    number = r"([+−]?\d+\.\d+(?: ± \d+\.\d+)? (?:%|points))"
    said, _, basis = text.removesuffix(").").partition(" (consensus model, ")
    parts = re.split(number, said)  # every second part is a number
    whole = "".join(
        f"<strong>{escape(part).replace(' ', '&nbsp;')}</strong>" if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )
    return f"{whole}. <small>(consensus model, {escape(basis)})</small>" if basis else whole


def _tiles(rows: Sequence[Row]) -> str:
    """The numbers behind the headline, large."""
    first, row = rows[0], best(rows)
    if row is None:
        if not first.seeds or sum(each.kind == "consensus" for each in rows) > 1:
            return ""
        single = (("Worst-off device", first.worst, " %"), ("Average", first.average, " %"))
        tiles = [_tile(name, f"{_wide(value)}{unit}", "") for name, value, unit in single]
        tiles.append(_tile("STDEV", _wide(first.stdev), "percentage points"))
    else:
        measures = (
            ("Worst-off device", first.worst, row.worst, row.worst_difference, "points"),
            ("Average", first.average, row.average, row.average_difference, "points"),
            ("STDEV", first.stdev, row.stdev, row.stdev_difference, "points; less is more even"),
        )
        tiles = [
            _tile(
                name,
                f"{signed(difference).replace(' ± ', ' <small>± ')}{'</small>' * ('±' in signed(difference))}",
                f"{unit}<br>{escape(first.label)} {_wide(before)}, {escape(row.label)} {_wide(after)}",
            )
            for name, before, after, difference, unit in measures
        ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _tile(name: str, value: str, note: str) -> str:
    return f'<div><span>{name}</span><b>{value}</b><span class="soft">{note}</span></div>'


def _wide(value: Estimate) -> str:
    return str(value).replace(" ", "&nbsp;")


def _table(rows: Sequence[Row], before: int) -> str:
    """One row per group and kind of model; `before` groups stand before these on the page, which shifts the colours."""
    compared = any(row.worst_difference is not None for row in rows)
    # the main result comes first: a phone shows two or three columns
    names = ["worst", "Δ worst", "average", "Δ average"] if compared else ["worst", "average"]
    names += ["worst 10 %", "STDEV", "seeds"]
    head = "<td></td>" + "".join(f'<th scope="col">{name}</th>' for name in names)
    place = {label: i for i, label in enumerate(dict.fromkeys(row.label for row in rows), start=before)}
    parts = []
    for kind in KINDS:
        name = "consensus model" if kind == "consensus" else "local models"
        lines = "".join(_row(row, place[row.label], compared) for row in rows if row.kind == kind)
        parts.append(f'<tbody><tr class="kind"><th colspan="{len(names) + 1}" scope="rowgroup">{name}</th></tr>{lines}')
    notes = ["Accuracy in % at the end", *legend(rows)]
    return (
        '<div class="scroll tall" tabindex="0" role="region" '
        f'aria-label="Results at the end{f" ({escape(rows[0].label)} and others)" * bool(before)}">'
        f"<table><caption>{escape('; '.join(notes))}.</caption>"
        f"<thead><tr>{head}</tr></thead>{'</tbody>'.join(parts)}</tbody></table></div>"
    )


def _row(row: Row, i: int, compared: bool) -> str:
    seeds = str(row.seeds) + (f" of {row.runs}" if row.seeds < row.runs else "")
    bad = f'<br><span class="bad">{row.diverged} diverged</span>' if row.diverged else ""
    bad += f'<br><span class="bad">{row.unfinished} unfinished</span>' if row.unfinished else ""
    cells = [str(row.worst), signed(row.worst_difference), str(row.average), signed(row.average_difference)]
    cells = (cells if compared else cells[::2]) + [str(row.worst10), str(row.stdev), seeds + bad]
    return f'<tr><th scope="row">{_key(i)}{escape(row.label)}</th>' + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"


def _key(i: int) -> str:
    """A short piece of a group's line, for the legend."""
    return (
        f'<svg class="key" width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" '
        f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="3" '
        f'stroke-dasharray="{DASHES[i % len(DASHES)]}"/></svg>'
    )


# -------------------------------------------------------------------- controls


def _controls(groups: Groups, drawn: dict[str, Any]) -> str:
    """The choice of model, axis and groups, for all plots at once."""
    chips = "".join(
        f'<label title="{escape(label)}"><input type="checkbox" name="group" value="{i}"'
        f"{' checked' * (i in drawn['visible'])}> {_key(i)}<span>{escape(label)}</span></label>"
        for i, label in enumerate(groups)
    )
    some = len(drawn["visible"]) < len(groups)
    hint = f'<span class="soft">{len(drawn["visible"])} of {len(groups)} shown at first</span>' if some else ""
    return (
        '<form id="controls" autocomplete="off" aria-label="What the plots show">'
        f"{_choice('kind', 'Model', {'consensus': 'consensus', 'local': 'local'})}"
        f"{_choice('x', 'Against', {'rounds': 'rounds', 'floats': 'floats sent'})}"
        + (f'<fieldset class="chips"><legend>Methods</legend>{chips}{hint}</fieldset>' if len(groups) > 1 else "")
        + "</form><noscript><p>The plots need JavaScript; the texts and tables do not.</p></noscript>"
    )


def _choice(name: str, legend: str, values: dict[str, str]) -> str:
    inputs = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"{" checked" * (i == 0)}> {text}</label>'
        for i, (value, text) in enumerate(values.items())
    )
    return f"<fieldset><legend>{legend}</legend>{inputs}</fieldset>"


# ----------------------------------------------------------------- how and who


def _path(groups: Groups, drawn: dict[str, Any]) -> str:
    what = {
        "average": "Mean accuracy over devices, in %.",
        "worst": "Accuracy of the device that is worst off in that round, in %.",
        "worst10": "Mean accuracy of the worst-off tenth of devices, in %.",
        "stdev": "How unequal devices' accuracies are, in percentage points. Lower is fairer.",
    }
    notes = [
        "In a <dfn>round</dfn> every device takes a step on its own data and averages its model with its neighbours'. "
        "<dfn>Floats sent</dfn> counts all numbers sent over all links so far: the load of the network."
    ]
    if any(len(group) > 1 for group in groups.values()):
        notes.append("Lines are means over seeds, bands one standard error.")
    if any(record.status != "finished" for group in groups.values() for record in group):
        notes.append(
            "× marks where a run diverged, ○ where a run stopped; from there on the mean is over the other runs."
        )
    figures = "".join(_figure(f"curve-{measure}", name, what[measure]) for measure, name in MEASURES.items())
    left_out = "".join(f"<li>{escape(note)}</li>" for note in drawn["left_out"])
    return _section(
        "path",
        "How did it get there?",
        f'<p class="explained">{" ".join(notes)}</p>',
        f'<div class="grid">{figures}</div>',
        f'<ul class="notes">{left_out}</ul>' if left_out else "",
    )


def _devices() -> str:
    return _section(
        "devices",
        "Who is the worst-off device, and why?",
        '<p class="explained">The graph of one run: lines are links, and each circle is a device, coloured by its '
        "accuracy; larger circles have a larger weight. A device's <dfn>weight</dfn> is how much its data count in "
        "training: plain methods give all devices the same weight, robust methods give more to devices with a high "
        "loss. Point at a device for its data, or move between devices with the arrow keys. Click or press Enter to "
        "follow a device in all plots, and Escape to stop.</p>",
        '<div class="moment" role="group" aria-label="Run and round"><label>Run <select id="run"></select></label>'
        '<button type="button" id="play" aria-pressed="false">▶ Play</button>'
        '<label class="slider">Round <input type="range" id="round" min="0" step="1"> '
        '<output id="at" for="round"></output></label></div>',
        '<div class="network"><figure id="graph"><h3 class="hidden">The graph</h3><div class="plot"></div>'
        '<div class="scales"></div><figcaption></figcaption>'
        '<div class="tools"><details class="numbers"><summary>Table</summary><div class="scroll"></div></details>'
        '<button type="button" class="csv" aria-label="Download the data of the graph as CSV">CSV</button></div>'
        '</figure><aside id="card" class="card" aria-live="polite"></aside></div>',
    )


def _fairness(devices: bool) -> str:
    """The devices' final accuracies and, if known, their histories."""
    return _section(
        "fairness",
        "How fair is it?",
        _figure(
            "spread",
            "All devices at the end",
            "Every device of every finished run; the box holds the middle half of them, and its line is the median. "
            "The further left a row reaches, the worse off its last devices are.",
        ),
        _over_rounds() if devices else "",
    )


def _over_rounds() -> str:
    return (
        _figure(
            "classes",
            "Accuracy per class",
            "Accuracy of the consensus model on each label, in %, over the test samples of all devices. "
            "A device that holds mostly labels with low bars is badly served.",
        )
        + '<div class="grid">'
        + _figure(
            "weights",
            "How much each device counts",
            "The device's weight λ<sub>i</sub> relative to the average device's, 1/K: "
            "with 2 its data count twice as much.",
        )
        + _figure(
            "losses",
            "Training loss of each device",
            "Loss of the device's local model on its mini-batch of the round. A robust method turns a high loss into "
            "a large weight.",
        )
        + "</div>"
    )


def _agreement(groups: Groups, rows: Sequence[Row]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{_key(i)}{escape(label)}</th><td>{_rho(group)}</td><td>{_apart(group)}</td>'
        f"<td>{_average(rows, label, 'consensus')}</td><td>{_average(rows, label, 'local')}</td></tr>"
        for i, (label, group) in enumerate(groups.items())
    )
    return _section(
        "agreement",
        "Did the network agree?",
        '<p class="explained">Nothing averages all models during training; devices talk only to their neighbours. The '
        "<dfn>consensus distance</dfn> is the mean squared distance of the devices' models from their mean; near zero, "
        "all devices have the same model. <dfn>rho</dfn> is a property of the graph: one averaging with the neighbours "
        "leaves at most this fraction of the distance, from 0 (all agree at once) to 1 (never). If the network agrees, "
        "the local models are as good as the consensus model.</p>",
        _figure(
            "apart",
            "Consensus distance",
            "Mean squared distance of the devices' models from their mean; logarithmic axis.",
        ),
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Agreement at the end"><table><thead><tr>'
        '<td></td><th scope="col">rho</th><th scope="col">distance at the end</th>'
        f'<th scope="col">average, consensus</th><th scope="col">average, local</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>",
    )


def _rho(group: Sequence[Record]) -> str:
    values = Estimate.over(rhos(group))
    if not values.n:
        return "—"
    return f"{values.mean:.3f}" + ("" if math.isnan(values.error) else f" ± {values.error:.3f}")


def _apart(group: Sequence[Record]) -> str:
    values = Estimate.over([record.final.consensus_distance for record in finished(group).values()])
    if not values.n:
        return "—"
    return f"{values.mean:.3g}" + ("" if math.isnan(values.error) else f" ± {values.error:.2g}")


def _average(rows: Sequence[Row], label: str, kind: Kind) -> str:
    return next(str(row.average) for row in rows if (row.label, row.kind) == (label, kind))


# ------------------------------------------------------------------------ runs


def _runs(groups: Groups, drawn: dict[str, Any]) -> str:
    parts = "".join(_group(i, label, group) for i, (label, group) in enumerate(groups.items()))
    return _section(
        "runs",
        "What exactly was run?",
        '<p class="explained">A run is a function of its settings: the same settings, versions and number of threads '
        "give the same numbers again.</p>",
        parts,
        _versions(groups),
    )


def _group(i: int, label: str, group: Sequence[Record]) -> str:
    first, bad = group[0], sum(record.status != "finished" for record in group)
    mark = f' <span class="bad">{bad} not finished</span>' if bad else ""
    runs = "".join(_run(record) for record in group)
    seed = group[-1].experiment.seed
    other = (
        f"<p>For the other seeds add <code>--seed</code>, as in "
        f"<code>drdsgd train config.toml --seed {seed} --out again-{seed}</code>.</p>"
        if len(group) > 1
        else ""
    )
    return (
        f"<details{' open' * bool(bad)}><summary>{_key(i)}<b>{escape(label)}</b>, {count_runs(len(group))}{mark}"
        "</summary>"
        f'<ul class="runs">{runs}</ul>'
        f"<p>To repeat the run of seed {first.experiment.seed}, save its settings as <code>config.toml</code> "
        "(it is also in the folder above) and run</p>"
        f'<div class="copied"><pre class="command">drdsgd train config.toml --out again</pre>'
        '<button type="button" class="copy">Copy</button></div>'
        f'{other}<div class="copied"><pre class="config">{escape(first.experiment.to_toml())}</pre>'
        '<button type="button" class="copy">Copy</button><button type="button" class="save">Save</button></div>'
        "</details>"
    )


def _run(record: Record) -> str:
    message = f"<br>{escape(record.message)}" if record.message else ""
    ended = escape(status(record))
    shown = ended if record.status == "finished" else f'<span class="bad">{ended}</span>'
    return f"<li>seed {record.experiment.seed}: {shown}, <code>{escape(str(record.path))}</code>{message}</li>"


def _versions(groups: Groups) -> str:
    """The versions of all runs; several lines if they differ."""
    known = {
        ", ".join(f"{name} {version}" for name, version in record.versions.items())
        for group in groups.values()
        for record in group
        if record.versions
    }
    return "".join(f'<p class="soft">Made with {escape(each)}.</p>' for each in sorted(known))
