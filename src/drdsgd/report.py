"""One self-contained HTML page of runs: it opens offline and loads nothing.

The headline, the table and the curves are those of `summary`; here they become fragments of HTML and figures that
plotly.js, which the page carries, draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from drdsgd.files import write_text
from drdsgd.records import Record
from drdsgd.summary import (
    KINDS,
    MEASURES,
    Curve,
    Estimate,
    Groups,
    Kind,
    Measure,
    Row,
    caveats,
    count_runs,
    curve,
    final,
    find_runs,
    finished,
    groups,
    headline,
    legend,
    signed,
    table,
)  # fmt: skip

__all__ = ["page", "write"]

# Okabe and Ito's colours: told apart by all eyes; without black and yellow, which vanish on a dark or a light page,
# and with a lighter blue
COLOURS = ("#1a7fc0", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# cividis looks the same with and without a colour vision deficiency
SCALE = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")

# what keeps a page of fifty runs or a thousand devices small enough to open
POINTS = 6000  # of all curves of one figure
STRIP = 400  # devices drawn one by one in a group's distribution
PANELS = 12  # drawn graphs
LINKS = 2000  # drawn in one graph


# --------------------------------------------------------------------- figures
# plain values that plotly.js draws; `meta` says which group and kind a trace shows, for the page's switches

Figure = dict[str, Any]


def _figures(groups: Groups) -> dict[str, Figure]:
    """All figures of the page by the id of their place."""
    figures = {f"curve-{measure}": _curve_figure(groups, measure) for measure in MEASURES}
    figures["devices"] = _device_figure(groups)
    return figures | _graph_figures(groups)


def _curve_figure(groups: Groups, measure: Measure) -> Figure:
    most = max(40, POINTS // max(len(groups), 1))
    data = [
        trace
        for kind in KINDS
        for i, (label, group) in enumerate(groups.items())
        for trace in _curve_traces(i, label, group, kind, measure, most)
    ]
    return {
        "data": data,
        "layout": {
            "height": 290,
            "hovermode": "x unified" if len(groups) <= 6 else "closest",
            "xaxis": {"title": {"text": "rounds"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "percentage points" if measure == "stdev" else "accuracy in %"}},
        },
    }


def _curve_traces(
    i: int, label: str, group: Sequence[Record], kind: Kind, measure: Measure, most: int
) -> list[dict[str, Any]]:
    points = _thinned(curve(group, kind, measure), most)
    mean = [_rounded(value.mean) for value in points.values]
    line = {
        "meta": {"kind": kind, "group": i},
        "type": "scatter",
        "mode": "lines",
        "name": _plotly_text(label),
        "x": points.rounds,
        "y": mean,
        "text": [_hover_value(value, len(group)) for value in points.values],
        "hovertemplate": "%{text}",
        "line": {"color": _colour(i), "dash": _dash(i), "width": 2},
    }
    return [*_band(i, points, kind), line, *_marks(i, label, group, kind, measure)]


def _thinned(curve: Curve, most: int) -> Curve:
    """At most so many points, evenly spread, with the first and the last."""
    n = len(curve.rounds)
    keep = range(n) if n <= most else sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})
    return Curve([curve.rounds[i] for i in keep], [curve.values[i] for i in keep])


def _hover_value(value: Estimate, runs: int) -> str:
    return str(value) if value.n == runs else f"{value} ({value.n} of {count_runs(runs)})"


def _band(i: int, points: Curve, kind: Kind) -> list[dict[str, Any]]:
    # runs only drop out on the way, so what has an error is one stretch from the start
    known = [(t, v) for t, v in zip(points.rounds, points.values, strict=True) if not math.isnan(v.error)]
    if not known:
        return []
    low = [_rounded(v.mean - v.error) for _, v in known]
    high = [_rounded(v.mean + v.error) for _, v in known]
    rounds = [t for t, _ in known]
    return [
        {
            "meta": {"kind": kind, "group": i},
            "type": "scatter",
            "mode": "lines",
            "x": rounds + rounds[::-1],
            "y": high + low[::-1],
            "fill": "toself",
            "fillcolor": _colour(i) + "30",
            "line": {"width": 0},
            "hoverinfo": "skip",
        }
    ]


def _marks(i: int, label: str, group: Sequence[Record], kind: Kind, measure: Measure) -> list[dict[str, Any]]:
    """A cross where a run diverged, a circle where it stopped."""
    short = [record for record in group if record.status != "finished"]
    if not short:
        return []
    return [
        {
            "meta": {"kind": kind, "group": i},
            "type": "scatter",
            "mode": "markers",
            "x": [record.final.round for record in short],
            "y": [_rounded(final(record, kind, measure)) for record in short],
            "marker": {
                "symbol": ["x" if record.status == "diverged" else "circle-open" for record in short],
                "size": 10,
                "color": _colour(i),
            },
            "text": [_plotly_text(f"seed {r.experiment.seed} {_status(r)}") for r in short],
            "name": _plotly_text(label),
            "hovertemplate": "%{text}",
        }
    ]


def _device_figure(groups: Groups) -> Figure:
    """The distribution of the devices' accuracy at the end, over all devices and seeds."""
    shown = [(i, label, list(finished(group).values())) for i, (label, group) in enumerate(groups.items())]
    shown = [each for each in shown if each[2]]
    data = [
        _device_trace(len(shown) - 1 - place, i, label, runs, kind)
        for kind in KINDS
        for place, (i, label, runs) in enumerate(shown)
    ]
    ticks = [_plotly_text(_shortened(label)) for _, label, _ in reversed(shown)]
    return {
        "data": data,
        "layout": {
            "height": 110 + len(shown) * (54 if len(shown) <= 8 else 28),
            "hovermode": "closest",
            "xaxis": {"title": {"text": "accuracy in %"}},
            "yaxis": {
                "tickvals": list(range(len(shown))),
                "ticktext": ticks,
                "showgrid": False,
                "zeroline": False,
                "range": [-0.6, len(shown) - 0.4],
            },
        },
    }


def _device_trace(place: int, i: int, label: str, runs: list[Record], kind: Kind) -> dict[str, Any]:
    return {
        "meta": {"kind": kind, "group": i},
        "type": "box",
        "orientation": "h",
        "name": _plotly_text(label),
        "width": 0.7,
        "marker": {"size": 5, "opacity": 0.6, "color": _colour(i)},
        "line": {"width": 1.5},
        "fillcolor": _colour(i) + "30",
        **_box(place, [(v, device, run) for run in runs for device, v in enumerate(_per_device(run, kind))]),
    }


def _box(place: int, values: list[tuple[float, int, Record]]) -> dict[str, Any]:
    """Every device as a point in the box, or, where they are too many, the box alone, from the worst to the best."""
    accuracy = [v for v, _, _ in values]
    if len(values) > STRIP:
        names = ("lowerfence", "q1", "median", "q3", "upperfence")
        return {"y": [place]} | {
            name: [_rounded(float(q))]
            for name, q in zip(names, np.quantile(accuracy, (0, 0.25, 0.5, 0.75, 1)), strict=True)
        }
    return {
        "x": [_rounded(v) for v in accuracy],
        "y0": place,
        "boxpoints": "all",
        "jitter": 0.7,
        "pointpos": 0,
        "text": [f"device {device}, seed {run.experiment.seed}: {v:.1f} %" for v, device, run in values],
        "hovertemplate": "%{text}<extra></extra>",
        "hoveron": "points",
    }


def _per_device(record: Record, kind: Kind) -> list[float]:
    values: list[float] = getattr(record.final, kind).per_device
    return values


def _graph_figures(groups: Groups) -> dict[str, Figure]:
    """The graph of each group's first run, with one scale of colours for all."""
    runs = [group[0] for group in groups.values()][:PANELS]
    low, high = _scale_ends(groups)
    return {f"graph-{i}": _graph_figure(run, low, high) for i, run in enumerate(runs)}


def _scale_ends(groups: Groups) -> tuple[float, float]:
    values = [v for group in list(groups.values())[:PANELS] for v in _per_device(group[0], "consensus")]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1, high + 1)


def _graph_figure(record: Record, low: float, high: float) -> Figure:
    network, values = record.network, _per_device(record, "consensus")
    links = network.edges[:: math.ceil(len(network.edges) / LINKS) or 1]
    places = [(round(x, 4), round(y, 4)) for x, y in network.positions]
    K = len(places)
    lines = {
        "type": "scatter",
        "mode": "lines",
        "x": [x for i, j in links for x in (places[i][0], places[j][0], None)],
        "y": [y for i, j in links for y in (places[i][1], places[j][1], None)],
        "line": {"color": "#8888", "width": 1},
        "hoverinfo": "skip",
    }
    nodes = {
        "type": "scatter",
        "mode": "markers",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "text": _device_texts(record),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": max(6, min(18, round(90 / math.sqrt(max(K, 1))))),
            "color": [_rounded(v) for v in values],
            "cmin": low,
            "cmax": high,
            "colorscale": [[i / (len(SCALE) - 1), colour] for i, colour in enumerate(SCALE)],
            "line": {"color": "#888", "width": 1 if K <= 200 else 0.5},
        },
    }
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    return {
        "data": [lines, nodes],
        "layout": {
            "height": 330,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "hovermode": "closest",
            "xaxis": hidden,
            "yaxis": hidden | {"scaleanchor": "x"},
        },
    }


def _device_texts(record: Record) -> list[str]:
    """What to say of each device: its place in the graph, its data, its accuracy."""
    degree = [0] * len(record.network.positions)
    for i, j in record.network.edges:
        degree[i] += 1
        degree[j] += 1
    rows = zip(
        degree,
        record.network.label_counts,
        _per_device(record, "consensus"),
        _per_device(record, "local"),
        strict=True,
    )
    return [
        f"<b>device {i}</b>, degree {d}<br>{sum(counts)} training samples<br>labels {_held(counts)}"
        f"<br>accuracy {consensus:.1f} % consensus, {local:.1f} % local"
        for i, (d, counts, consensus, local) in enumerate(rows)
    ]


def _held(counts: list[int], most: int = 6) -> str:
    """The labels that a device holds, the frequent ones first, each with its number of samples."""
    held = sorted(((n, label) for label, n in enumerate(counts) if n), key=lambda each: (-each[0], each[1]))
    text = ", ".join(f"{label} ({n}×)" for n, label in held[:most])
    return text + (f" and {len(held) - most} more" if len(held) > most else "")


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _dash(i: int) -> str:
    return DASHES[i // len(COLOURS) % len(DASHES)]


def _rounded(value: float) -> float:
    return round(value, 3)


def _shortened(text: str, most: int = 32) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _plotly_text(text: str) -> str:
    """Plotly reads a little HTML in texts; of entities it knows these, but not quotes."""
    return escape(text, quote=False)


# ------------------------------------------------------------------------ page


def write(paths: Sequence[Path], out: Path, title: str = "drdsgd report") -> Path:
    """Write one HTML file about all runs at or below the paths; it needs no network and no other file."""
    text = page(groups(find_runs(paths)), title)
    write_text(out, text)
    return out


def page(groups: Groups, title: str = "drdsgd report") -> str:
    """The whole page."""
    # not at the top: a table alone does not need it
    from plotly.offline import get_plotlyjs

    rows = table(groups)
    body = "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            _headline_html(rows),
            _switches_html(groups),
            _table_html(rows),
            _curves_html(groups),
            _devices_html(),
            _graphs_html(groups),
            _runs_html(groups),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{_POLICY}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{get_plotlyjs()}</script>\n"
        f'<script type="application/json" id="figures">{_script_json(_figures(groups))}</script>\n'
        f"<script>{_JS}</script>\n</body>\n</html>\n"
    )


def _script_json(value: object) -> str:
    """JSON that no HTML parser finds an end of the script in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _headline_html(rows: Sequence[Row]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in caveats(rows))
    said = escape(headline(rows)).replace(" ± ", "&nbsp;±&nbsp;")
    return f'<p class="headline">{said}</p>' + (f'<ul class="notes">{notes}</ul>' if notes else "")


def _switches_html(groups: Groups) -> str:
    """Which model to show, and which groups; the script below makes them work."""
    kinds = "".join(
        f'<label><input type="radio" name="kind" value="{kind}"{" checked" * (kind == "consensus")}> {text}</label>'
        for kind, text in (("consensus", "consensus model (the mean)"), ("local", "each device's local model"))
    )
    chips = "".join(
        f'<label title="{escape(label)}"><input type="checkbox" name="group" value="{i}" checked> {_key(i)}'
        f"{escape(label)}</label>"
        for i, label in enumerate(groups)
    )
    return (
        f'<form class="switches" autocomplete="off"><div>{kinds}</div>'
        + (f'<div class="chips">{chips}</div>' if len(groups) > 1 else "")
        + "</form><noscript><p>The figures need JavaScript; the tables do not.</p></noscript>"
    )


def _key(i: int) -> str:
    """A short piece of a group's line."""
    dashes = {"solid": "", "dash": "5 3", "dot": "2 2", "dashdot": "6 2 2 2", "longdash": "9 3"}
    return (
        f'<svg width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" stroke="{_colour(i)}" '
        f'stroke-width="3" stroke-dasharray="{dashes[_dash(i)]}"/></svg>'
    )


def _table_html(rows: Sequence[Row]) -> str:
    compared = any(row.worst_difference is not None for row in rows)
    names = ["seeds", "average", "worst", "worst 10 %", "STDEV"]
    names += ["Δ worst", "Δ average"] if compared else []
    head = '<th></th><th class="kind">model</th>' + "".join(f'<th scope="col">{name}</th>' for name in names)
    place = {label: i for i, label in enumerate(dict.fromkeys(row.label for row in rows))}
    body = "".join(_row_html(row, place[row.label], compared) for row in rows)
    notes = ["Accuracy in % at the end", *legend(rows)]
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="small">{escape("; ".join(notes))}.</p>'
    )


def _row_html(row: Row, i: int, compared: bool) -> str:
    seeds = str(row.seeds) + (f" of {row.runs}" if row.seeds < row.runs else "")
    bad = f'<br><span class="bad">{row.diverged} diverged</span>' if row.diverged else ""
    bad += f'<br><span class="bad">{row.unfinished} unfinished</span>' if row.unfinished else ""
    cells = [seeds + bad, *map(str, (row.average, row.worst, row.worst10, row.stdev))]
    if compared:
        cells += [signed(row.worst_difference), signed(row.average_difference)]
    return (
        f'<tr class="{row.kind}"><th scope="row">{_key(i)}{escape(row.label)}</th>'
        f'<td class="kind">{row.kind}</td>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    )


def _curves_html(groups: Groups) -> str:
    figures = "".join(
        f'<figure><figcaption>{name}</figcaption><div id="curve-{measure}"></div></figure>'
        for measure, name in MEASURES.items()
    )
    bands = any(len(group) > 1 for group in groups.values())
    statuses = {record.status for group in groups.values() for record in group}
    notes = ["Lines are means over seeds, bands one standard error."] if bands else []
    if statuses - {"finished"}:
        notes.append("× marks where a run diverged, ○ where one stopped; from there on the mean is over the others.")
    return f'<h2>Accuracy against rounds</h2><p class="small">{" ".join(notes)}</p><div class="grid">{figures}</div>'


def _devices_html() -> str:
    return (
        '<h2>How the devices are served</h2><p class="small">All devices of all finished runs, at the end: '
        "the further left a box reaches, the worse off are its last devices.</p>"
        '<figure><div id="devices"></div></figure>'
    )


def _graphs_html(groups: Groups) -> str:
    low, high = _scale_ends(groups)
    shown = list(groups.items())[:PANELS]
    panels = "".join(
        f"<figure><figcaption>{_key(i)}{escape(label)}</figcaption>"
        f'<div id="graph-{i}"></div><p class="small">{escape(_graph_note(group[0]))}</p></figure>'
        for i, (label, group) in enumerate(shown)
    )
    rest = f" The first {PANELS} of {len(groups)} groups are drawn." if len(groups) > PANELS else ""
    bar = f'<span class="bar" style="background:linear-gradient(90deg,{",".join(SCALE)})"></span>'
    return (
        '<h2>Where they are in the graph</h2><p class="small">Each device with its consensus accuracy at the end of '
        f"the first seed: {low:.0f} % {bar} {high:.0f} %. Point at a device for its data.{rest}</p>"
        f'<div class="grid">{panels}</div>'
    )


def _graph_note(record: Record) -> str:
    K, links = len(record.network.positions), len(record.network.edges)
    drawn = f" (every {math.ceil(links / LINKS)}th drawn)" if links > LINKS else ""
    ended = "" if record.status == "finished" else f", {_status(record)}"
    return f"seed {record.experiment.seed}{ended}: {K} devices, {links} links{drawn}, rho = {record.network.rho:.3f}"


def _status(record: Record) -> str:
    at = f"after round {record.final.round} of {record.experiment.rounds}"
    if record.status == "diverged":
        return f"diverged; last evaluated {at}"
    return record.status if record.status == "finished" else f"{record.status}, {at}"


def _runs_html(groups: Groups) -> str:
    parts = "".join(_group_html(i, label, group) for i, (label, group) in enumerate(groups.items()))
    return f"<h2>What was run</h2>{parts}{_versions_html(groups)}"


def _group_html(i: int, label: str, group: Sequence[Record]) -> str:
    first, bad = group[0], sum(record.status != "finished" for record in group)
    mark = f' <span class="bad">{bad} not finished</span>' if bad else ""
    runs = "".join(_run_html(record) for record in group)
    other = "; for another seed, change <code>seed</code>" if len(group) > 1 else ""
    return (
        f"<details{' open' * bool(bad)}><summary>{_key(i)}{escape(label)}, {count_runs(len(group))}{mark}</summary>"
        f'<ul class="runs">{runs}</ul>'
        f"<p>To repeat the run of seed {first.experiment.seed}, save this as <code>config.toml</code> "
        f"(it is in the run's folder, too){other}:</p>"
        f"<pre>{escape(first.experiment.to_toml())}</pre><pre>drdsgd train config.toml --out DIR</pre></details>"
    )


def _run_html(record: Record) -> str:
    message = f"<br>{escape(record.message)}" if record.message else ""
    status = escape(_status(record))
    shown = status if record.status == "finished" else f'<span class="bad">{status}</span>'
    return f"<li>seed {record.experiment.seed}: {shown}, <code>{escape(str(record.path))}</code>{message}</li>"


def _versions_html(groups: Groups) -> str:
    """The versions of all runs; more than one line if they were not made with the same."""
    known = {
        ", ".join(f"{name} {version}" for name, version in record.versions.items())
        for group in groups.values()
        for record in group
        if record.versions
    }
    return "".join(f'<p class="small">Made with {escape(each)}.</p>' for each in sorted(known))


# whatever a hostile name or a bug might try: this page loads nothing
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'\">"
)

_CSS = """
:root { color-scheme: light dark; --text: #1d2126; --soft: #5b6470; --line: #d9dde2; --page: #fff; --card: #f6f7f9;
  --bad: #a33c00 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e7eaee; --soft: #a4adb8; --line: #3a414b; --page: #14171b; --card: #1c2026; --bad: #ff9a5c }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 1100px; margin: 0 auto; padding: 1rem clamp(.8rem, 3vw, 2rem) 3rem }
h1 { font-size: 1.3rem; margin: .5rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem }
.headline { font-size: clamp(1.1rem, 2.6vw, 1.4rem); line-height: 1.4; margin: .4rem 0; overflow-wrap: anywhere }
.notes, .small { color: var(--soft); font-size: .88rem; margin: .3rem 0 }
.notes { padding-left: 1.2rem }
.switches { position: sticky; top: 0; z-index: 5; background: var(--page); border-bottom: 1px solid var(--line);
  padding: .5rem 0; margin-top: .8rem; font-size: .9rem; max-height: 35vh; overflow-y: auto }
.switches label { display: inline-block; margin-right: 1.1rem; cursor: pointer; overflow-wrap: anywhere }
svg { vertical-align: middle; margin-right: .35rem }
.scroll { overflow-x: auto; margin-top: 1rem }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; min-width: 100% }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child { text-align: left; padding-left: 0 }
tbody th { font-weight: 600; white-space: normal; min-width: min(14rem, 32vw); overflow-wrap: anywhere }
thead th { color: var(--soft); font-weight: 500 }
body[data-kind=consensus] tr.local, body[data-kind=local] tr.consensus, body[data-kind] .kind { display: none }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); gap: 1rem }
figure { margin: .6rem 0 0; padding: .6rem; background: var(--card); border-radius: 8px; min-width: 0 }
figcaption { font-weight: 600; font-size: .95rem; overflow-wrap: anywhere }
.bar { display: inline-block; width: 7rem; height: .7rem; border-radius: 3px; vertical-align: middle }
.bad { color: var(--bad); font-weight: 600 }
details { border-bottom: 1px solid var(--line); padding: .5rem 0 }
summary { cursor: pointer; overflow-wrap: anywhere }
pre { background: var(--card); padding: .7rem; border-radius: 8px; overflow-x: auto; font-size: .85rem }
.runs { padding-left: 1.2rem; font-size: .9rem; overflow-wrap: anywhere }
@media print { .switches { position: static } }
"""

_JS = """
'use strict';
(() => {
  const figures = JSON.parse(document.getElementById('figures').textContent);
  const form = document.querySelector('.switches');
  const touch = matchMedia('(hover: none), (pointer: coarse)').matches;
  // these buttons only: plotly's own bar has one that sends the data to its makers
  const config = {responsive: true, displaylogo: false, plotlyServerURL: '', displayModeBar: touch ? false : 'hover',
    modeBarButtons: [['toImage', 'resetScale2d']]};

  function themed(layout) {
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    const axis = {gridcolor: colour('--line'), zerolinecolor: colour('--line'), linecolor: colour('--line'),
      automargin: true, type: 'linear'};  // plotly's guess at the type takes some numbers for names
    return {showlegend: false, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      margin: {l: 50, r: 18, t: 14, b: 44},
      modebar: {bgcolor: 'rgba(0,0,0,0)', color: colour('--soft'), activecolor: colour('--text')},
      dragmode: touch ? false : 'zoom',
      font: {family: 'system-ui, sans-serif', size: 13, color: colour('--text')},
      hoverlabel: {bgcolor: colour('--card'), bordercolor: colour('--line'), font: {color: colour('--text')},
        align: 'left', namelength: 40},
      ...layout, xaxis: {...axis, ...layout.xaxis}, yaxis: {...axis, ...layout.yaxis}};
  }

  function draw() {
    const kind = form.elements.kind.value;
    const hidden = new Set([...form.querySelectorAll('[name=group]:not(:checked)')].map(box => Number(box.value)));
    document.body.dataset.kind = kind;
    for (const [id, figure] of Object.entries(figures)) {
      const data = figure.data.map(trace => trace.meta
        ? {...trace, visible: trace.meta.kind === kind && !hidden.has(trace.meta.group)} : trace);
      Plotly.react(id, data, themed(figure.layout), config);
    }
  }

  form.addEventListener('change', draw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  draw();
})();
"""
