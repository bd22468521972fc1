"""The data that the page's script draws: groups of runs as plain values, thinned and rounded to a budget.

Numbers over seeds are those of `statistics`. The histories of single devices are most of a page, so they have a budget:
the first seed of every group comes first, then the second seeds, and rounds are thinned. `left_out` says in words what
the page omits. Everything is lists, numbers and text, ready for JSON; unknown values are None. Records without a graph
(those that `drdsgd reproduce` keeps) have only curves and final values.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from drdsgd.experiments.records import Record
from drdsgd.report.groups import Groups
from drdsgd.report.statistics import (
    KINDS,
    MEASURES,
    Curve,
    Estimate,
    Kind,
    best,
    curve,
    final,
    finished,
    over_rounds,
    same_problem,
    table,
)
from drdsgd.report.tables import count_runs

__all__ = ["all_of", "content", "degrees", "rhos", "status"]

# these bounds keep a page of fifty runs or a thousand devices far below 10 MB
POINTS = 4000  # in all curves of one plot
HISTORY = 200_000  # (device, evaluation) pairs over all runs that are drawn as a graph; 20 bytes each
FRAMES = 100  # evaluations of a run that the slider stops at
FEWEST = 20  # rather than fewer evaluations per run, the page shows fewer runs
DEVICES = 1500  # drawn in one run
LINKS = 2500  # drawn in one graph
DOTS = 400  # devices drawn one by one in a group's distribution
LABELS = 6  # named in a device's text
VISIBLE = 6  # groups that are shown at first if there are many


def all_of(compared: Sequence[Groups]) -> Groups:
    """Every group of several mappings, in their order."""
    return {label: group for groups in compared for label, group in groups.items()}


def content(*compared: Groups) -> dict[str, Any]:
    """All data that the page draws; at first it shows the first mapping."""
    groups = all_of(compared)
    shown = _shown_runs(groups)
    frames = max(2, HISTORY // max(1, sum(min(DEVICES, _size(record)) for _, record in shown)))
    return {
        "measures": dict(MEASURES),
        "groups": [_group(label, group, _points(groups)) for label, group in groups.items()],
        "runs": [_run(i, record, min(FRAMES, frames)) for i, record in shown],
        "pairs": _pairs([record for _, record in shown]),
        "visible": _visible(compared[0]),
        "start": _start(compared[0], shown),
        "left_out": _left_out(groups, [record for _, record in shown], min(FRAMES, frames)),
    }


def status(record: Record) -> str:
    """How a run ended, in a few words."""
    at = f"after round {record.final.round} of {record.experiment.rounds}"
    if record.status == "diverged":
        return f"diverged; last evaluated {at}"
    return record.status if record.status == "finished" else f"{record.status}, {at}"


def degrees(record: Record) -> list[int]:
    """The number of neighbours of each device."""
    ends = Counter(i for edge in record.network.edges for i in edge)
    return [ends[i] for i in range(_size(record))]


def rhos(group: Sequence[Record]) -> list[float]:
    """The rho of every run's graph; none with a server."""
    return [record.network.rho for record in group if record.network.rho is not None]


def _size(record: Record) -> int:
    return len(record.network.positions)


# ---------------------------------------------------------------------- groups


def _group(label: str, group: Sequence[Record], points: int) -> dict[str, Any]:
    """A group's curves with their errors, and its final values."""
    curves = {kind: {measure: curve(group, kind, measure) for measure in MEASURES} for kind in KINDS}
    rounds = curves["consensus"]["average"].rounds
    keep = _kept([t in {*curves["local"]["average"].rounds} for t in rounds], points)
    floats = over_rounds([{m.round: float(m.floats_sent) for m in record.metrics} for record in group])
    apart = over_rounds([{m.round: m.consensus_distance for m in record.metrics} for record in group])
    ends = list(finished(group).values())
    return {
        "label": label,
        "runs": len(group),
        "rounds": [rounds[i] for i in keep],
        "floats": [round(floats.values[i].mean) for i in keep],
        "n": [floats.values[i].n for i in keep],
        **{
            kind: {measure: _at(curves[kind][measure], [rounds[i] for i in keep]) for measure in MEASURES}
            for kind in KINDS
        },
        "apart": _at(apart, [rounds[i] for i in keep]),
        "rho": _estimate(Estimate.over(rhos(group))),
        "stops": [_stop(record) for record in group if record.status != "finished"],
        "spread": {kind: _spread(ends, kind) for kind in KINDS},
        "classes": _classes(ends),
    }


def _points(groups: Groups) -> int:
    return max(40, POINTS // max(len(groups), 1))


def _thinned(n: int, most: int) -> list[int]:
    """At most `most` of n positions, evenly spread, including the first and the last.

    >>> _thinned(9, 3), _thinned(2, 3)
    ([0, 4, 8], [0, 1])
    """
    return list(range(n)) if n <= most else sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


def _kept(both: Sequence[bool], most: int) -> list[int]:
    """At most about `most` evaluations, rather those of `both` kinds of model; including the first and the last.

    >>> _kept([True, False, True, False, True, False], 4), _kept([True, False, True], 3)
    ([0, 2, 4, 5], [0, 1, 2])
    """
    n = len(both)
    chosen = [i for i in range(n) if both[i] or i == n - 1] if n > most else list(range(n))
    if len(chosen) < min(most, FEWEST):  # too few for a curve
        chosen = list(range(n))
    return [chosen[i] for i in _thinned(len(chosen), most)]


def _at(curve: Curve, rounds: Sequence[int]) -> dict[str, list[float | None]]:
    """The values of a curve in these rounds; None where it has none."""
    known = dict(zip(curve.rounds, curve.values, strict=True))
    values = [_estimate(known[t]) if t in known else [None, None] for t in rounds]
    return {"mean": [mean for mean, _ in values], "error": [error for _, error in values]}


def _estimate(value: Estimate) -> list[float | None]:
    return [_number(value.mean), _number(value.error)]


def _number(value: float) -> float | None:
    """The value with five digits, which is enough for a plot and its table; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _stop(record: Record) -> dict[str, Any]:
    """The point where a run's curve ends early."""
    return {
        "seed": record.experiment.seed,
        "status": record.status,
        "text": status(record),
        "rounds": record.final.round,
        "floats": record.final.floats_sent,
        **{kind: {measure: _number(final(record, kind, measure)) for measure in MEASURES} for kind in KINDS},
    }


def _spread(ends: Sequence[Record], kind: Kind) -> dict[str, Any] | None:
    """The devices' final accuracies over all seeds: every percentile and, if they are few, every device."""
    values = [
        (value, i, record.experiment.seed)
        for record in ends
        for i, value in enumerate(getattr(record.final, kind).per_device)
    ]
    if not values:
        return None
    quantiles = np.quantile([value for value, _, _ in values], np.linspace(0, 1, 101))
    return {
        "quantiles": [round(float(q), 2) for q in quantiles],
        "n": len(values),
        "dots": [[round(value, 2), i, seed] for value, i, seed in values] if len(values) <= DOTS else None,
    }


def _classes(ends: Sequence[Record]) -> list[list[float | None]] | None:
    """The consensus model's final accuracy per class, with its error."""
    if not ends:
        return None
    columns = itertools.zip_longest(*(record.final.per_class for record in ends))
    return [_estimate(Estimate.over([v for v in column if v is not None])) for column in columns]


# ------------------------------------------------------------------------ runs


def _shown_runs(groups: Groups) -> list[tuple[int, Record]]:
    """The runs whose devices are on the page, each with the number of its group, as far as the budget allows.

    Records without a graph are omitted.
    """
    chosen: list[tuple[int, Record]] = []
    room = HISTORY
    for i, record in _first_seeds_first(groups):
        if not _size(record):
            continue
        room -= min(DEVICES, _size(record)) * min(FEWEST, len(record.metrics))
        if room < 0 and chosen:
            break
        chosen.append((i, record))
    return sorted(chosen, key=lambda each: (each[0], each[1].experiment.seed))


def _first_seeds_first(groups: Groups) -> Iterator[tuple[int, Record]]:
    for row in itertools.zip_longest(*groups.values()):
        yield from ((i, record) for i, record in enumerate(row) if record is not None)


def _run(group: int, record: Record, frames: int) -> dict[str, Any]:
    """A run's graph, the devices' data, and their history."""
    devices = _kept_devices(record)
    place = {device: k for k, device in enumerate(devices)}
    links = [(place[i], place[j]) for i, j in record.network.edges if i in place and j in place]
    lines = [record.metrics[k] for k in _kept([m.local is not None for m in record.metrics], frames)]
    degree, counts = degrees(record), record.network.label_counts

    def history(values: Sequence[Sequence[float]], digits: int) -> list[list[float]]:
        return [[float(f"{row[i]:.{digits}g}") for i in devices] for row in values]

    return {
        "group": group,
        "seed": record.experiment.seed,
        "status": status(record),
        "last": record.experiment.rounds,
        "devices": devices,
        "names": [record.network.names[i] for i in devices] if record.network.names else None,
        "size": _size(record),
        "x": [round(record.network.positions[i][0], 3) for i in devices],
        "y": [round(record.network.positions[i][1], 3) for i in devices],
        "links": [end for link in _every(links, LINKS) for end in link],
        "all_links": len(record.network.edges),
        "rho": record.network.rho,
        "samples": [sum(counts[i]) for i in devices],
        "mean_samples": round(sum(map(sum, counts)) / max(1, len(counts)), 1),
        "degree": [degree[i] for i in devices],
        "mean_degree": round(sum(degree) / max(1, len(degree)), 2),
        "labels": [_held(counts[i]) for i in devices],
        "held": [sum(n > 0 for n in counts[i]) for i in devices],
        "rounds": [m.round for m in lines],
        "floats": [m.floats_sent for m in lines],
        "average": {
            kind: [None if (one := getattr(m, kind)) is None else round(one.average, 2) for m in lines]
            for kind in KINDS
        },
        "consensus": history([m.consensus.per_device for m in lines], 4),
        # None where local models were not evaluated
        "local": [None if m.local is None else history([m.local.per_device], 4)[0] for m in lines],
        "share": history([_shares(m.weights) for m in lines], 3),
        # records of older versions do not have them
        "loss": history([m.losses or [] for m in lines], 3) if all(m.losses for m in lines) else None,
        "mean_loss": [float(f"{m.train_loss:.4g}") for m in lines],
        "per_class": [[None if v is None else round(v, 1) for v in m.per_class] for m in lines],
    }


def _kept_devices(record: Record) -> list[int]:
    """All devices; above the limit, a third is for the worst-off devices, the rest for an even sample of the others."""
    K = _size(record)
    if K <= DEVICES:
        return list(range(K))
    accuracy = record.final.consensus.per_device
    worst = sorted(range(K), key=lambda i: accuracy[i])[: DEVICES // 3]
    others = sorted({*range(K)} - {*worst})
    return sorted([*worst, *(others[i] for i in _thinned(len(others), DEVICES - len(worst)))])


def _every(links: Sequence[tuple[int, int]], most: int) -> Sequence[tuple[int, int]]:
    return links[:: math.ceil(len(links) / most) or 1]


def _held(counts: Sequence[int]) -> list[tuple[int, int]]:
    """The most frequent labels of a device, each with its number of samples."""
    held = sorted(((label, n) for label, n in enumerate(counts) if n), key=lambda each: (-each[1], each[0]))
    return held[:LABELS]


def _shares(weights: Sequence[float]) -> list[float]:
    """The devices' relative weights, K lambda_i = w_i / mean w: 1 is the weight of the average device.

    >>> _shares([1.0, 3.0])
    [0.5, 1.5]
    """
    # divide by the largest first, because it may be near the largest float
    top = max(weights, default=0.0)
    if top <= 0:
        return [1.0] * len(weights)
    parts = [w / top for w in weights]
    mean = math.fsum(parts) / len(parts)
    return [part / mean for part in parts]


def _pairs(records: Sequence[Record]) -> list[int]:
    """For each run, the number of the first run with the same problem and seed, where device i is the same device."""
    return [
        next(
            k
            for k, other in enumerate(records)
            if other.experiment.seed == record.experiment.seed and same_problem(other, record)
        )
        for record in records
    ]


# ----------------------------------------------------------------------- start


def _visible(groups: Groups) -> list[int]:
    """The groups that are shown at first: all, or the first and those that serve the worst-off device best."""
    if len(groups) <= VISIBLE + 2:
        return list(range(len(groups)))
    rows = [row for row in table(groups) if row.kind == "consensus"]
    order = sorted(range(1, len(rows)), key=lambda i: -rows[i].worst.mean if rows[i].seeds else math.inf)
    return sorted([0, *order[: VISIBLE - 1]])


def _start(groups: Groups, shown: Sequence[tuple[int, Record]]) -> int:
    """The run whose graph is shown at first: from the group of the headline if possible, and finished."""
    row = best(table(groups))
    spoken_of = None if row is None else list(groups).index(row.label)
    order = sorted(range(len(shown)), key=lambda k: (shown[k][0] != spoken_of, shown[k][1].status != "finished"))
    return order[0] if order else 0


def _left_out(groups: Groups, shown: Sequence[Record], frames: int) -> list[str]:
    """What the page omits, in words."""
    notes = []
    runs = sum(map(len, groups.values()))
    if not shown:
        notes.append(
            "These are small records without graphs and the devices' classes, losses and weights (drdsgd train "
            "RECORD repeats a run with all of them). Floats sent are assumed to grow evenly over rounds."
        )
    elif len(shown) < runs:
        notes.append(f"Single devices and graphs are shown for {len(shown)} of {count_runs(runs)}.")
    most = max((len(record.metrics) for record in shown), default=0)
    if most > frames:
        notes.append(f"Devices are shown at {frames} of up to {most} evaluations of a run, evenly spread.")
    points = max(len(record.metrics) for group in groups.values() for record in group)
    if points > _points(groups):
        notes.append(f"Curves are drawn through {_points(groups)} of up to {points} evaluations, evenly spread.")
    if (K := max(map(_size, shown), default=0)) > DEVICES:
        notes.append(f"{DEVICES} of {K} devices are drawn: the {DEVICES // 3} worst-off, and a sample of the others.")
    if (links := max((len(record.network.edges) for record in shown), default=0)) > LINKS:
        notes.append(f"In a graph, about {LINKS} of up to {links} links are drawn.")
    return notes
