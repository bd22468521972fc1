"""What runs say: groups of runs over seeds, a table of their ends, a headline, curves.

Runs that differ only in the seed are a group, and a number is the mean over a group's finished runs with its
standard error. Groups are compared in pairs of the same seed, which share graph, data, first model and batches: the
standard error of the mean *difference* is what tells luck from merit. A run that diverged or did not finish has no
end: it is counted and marked, and shown as far as it got, but enters no mean of the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from drdsgd.errors import InputError
from drdsgd.experiments import config, records, registry
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.options import ALGORITHMS
from drdsgd.experiments.records import Record
from drdsgd.training.metrics import standard_error

__all__ = [
    "KINDS",
    "MEASURES",
    "Curve",
    "Estimate",
    "Groups",
    "Kind",
    "Measure",
    "Row",
    "best",
    "caveats",
    "count_runs",
    "curve",
    "final",
    "find_runs",
    "finished",
    "groups",
    "headline",
    "legend",
    "over_rounds",
    "rich_table",
    "same_problem",
    "signed",
    "table",
    "vanished",
]  # fmt: skip

Kind = Literal["consensus", "local"]
Measure = Literal["average", "worst", "worst10", "stdev"]
Groups = Mapping[str, Sequence[Record]]

KINDS: tuple[Kind, ...] = ("consensus", "local")
MEASURES: dict[Measure, str] = {
    "average": "Average accuracy",
    "worst": "Worst device",
    "worst10": "Worst 10 % of devices",
    "stdev": "STDEV over devices",
}


# ------------------------------------------------------------------------ runs


def find_runs(paths: Sequence[Path]) -> list[Record]:
    """All runs at or below the paths, each once; in the order of the paths, and below one in natural order.

    Of several, one that was stopped before its first evaluation is left out; one that ended and has none is damaged.
    """
    folders = list({folder.resolve(): folder for path in paths for folder in _run_folders(path)}.values())
    begun = [folder for folder in folders if records.read_metrics(records.Folder(folder).metrics)]
    for folder in folders:
        if folder not in begun and records.Folder(folder).status != "unfinished":
            raise InputError(
                f"{folder} is damaged: its run ended, but metrics.jsonl has nothing; remove it, or run it again"
            )
    return [records.read(folder) for folder in begun or folders[:1]]


def _run_folders(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"there is no folder {path}; give the folder of a run, or of several")
    if _is_run(path):
        return [path]
    # a config.toml alone may be somebody's input to a run
    found = [config.parent for config in path.rglob("config.toml") if _is_run(config.parent)]
    if not found:
        raise InputError(f"no run in or below {path}: a run's folder has a config.toml and a network.json")
    return sorted(found, key=_natural)


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file() and (path / "network.json").is_file()


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """A key that sorts seed-2 before seed-10."""
    return [
        [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


# ---------------------------------------------------------------------- groups


# where and how safely a run was made, which is no part of what was run
_INCIDENTAL = {"seed", "threads", "checkpoint_every", "data_dir"}


def groups(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Runs that differ only in the seed, under a label: the algorithm, and the settings in which groups differ.

    What all groups of an algorithm have by default goes with its name.
    They are in the order in which `drdsgd algorithms` lists algorithms (the first is the one that others are compared
    with), else keep the order of their first runs. Within a group runs are sorted by seed, and a seed stands once.
    """
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(_settings(record.experiment).values()), []).append(record)
    members = sorted(found.values(), key=lambda group: ALGORITHMS.index(group[0].experiment.algorithm))
    named = zip(_labels([group[0].experiment for group in members]), members, strict=True)
    return {label: _by_seed(label, group) for label, group in named}


def _settings(e: Experiment) -> dict[str, Any]:
    return {name: value for name, value in e.model_dump().items() if name not in _INCIDENTAL}


def _by_seed(label: str, group: list[Record]) -> list[Record]:
    """The runs in the order of their seeds; the same seed twice would pass for independent evidence."""
    runs: dict[int, Record] = {}
    for record in group:
        other = runs.setdefault(record.experiment.seed, record)
        if other is not record:
            raise InputError(
                f"{record.path} and {other.path} are the same experiment ({label}, seed {record.experiment.seed}); "
                "give only one of them"
            )
    return [runs[seed] for seed in sorted(runs)]


def _labels(experiments: list[Experiment]) -> list[str]:
    settings = [_settings(e) for e in experiments]
    names = [name for name in settings[0] if _differs(name, settings)] if settings else []
    special: dict[str, set[str]] = {}  # by algorithm, what not all of its groups have by default
    for e, each in zip(experiments, settings, strict=True):
        # a name of exchanged parts says nothing of defaults
        defaults = {} if e.objective or e.optimizer else config.method_defaults(e)
        others = {name for name in names if name not in defaults or each[name] != defaults[name]}
        special.setdefault(e.algorithm, set()).update(others)
    short = [
        _label(each, [name for name in names if name in special[each["algorithm"]]], exact=False) for each in settings
    ]
    return short if len(set(short)) == len(short) else [_label(each, names, exact=True) for each in settings]


def _differs(name: str, settings: list[dict[str, Any]]) -> bool:
    """Whether a setting tells groups apart: mu does if it has two values, but not if only one algorithm has it."""
    if name == "algorithm":
        return False
    if len({each[name] for each in settings if each[name] is not None}) > 1:
        return True
    values: dict[str, set[Any]] = {}
    for each in settings:
        values.setdefault(each["algorithm"], set()).add(each[name])
    return any(len(of_one) > 1 for of_one in values.values())


def _label(settings: dict[str, Any], names: list[str], *, exact: bool) -> str:
    """The method, and what differs; exact by the options that were given, as two may have the same parts."""
    parts = ("objective", "optimizer")
    method = settings["algorithm"] if exact else registry.name_of(settings["algorithm"], *(settings[p] for p in parts))
    others = [name for name in names if name not in parts]
    shown = [name for name in ([*parts, *others] if exact else others) if settings[name] is not None]
    return " ".join([method, *(f"{name}={_value(settings[name], exact)}" for name in shown)])


def _value(value: object, exact: bool) -> str:
    if exact:
        return str(value)
    # of a data folder or a graph's file the name is enough
    return f"{value:.4g}" if isinstance(value, float) else PurePath(str(value)).name


# ----------------------------------------------------------------------- table


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds and its standard error (nan for one seed; the mean of none is nan, too).

    >>> str(Estimate.over([1.0, 3.0])), str(Estimate.over([2.0])), str(Estimate.over([]))
    ('2.0 ± 1.0', '2.0', '—')
    """

    mean: float
    error: float
    n: int

    @staticmethod
    def over(values: Sequence[float]) -> Estimate:
        """The estimate from one value per seed."""
        mean = math.fsum(values) / len(values) if values else math.nan
        return Estimate(mean, standard_error(values), len(values))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean, by Student's t with n - 1 degrees of freedom; one seed tells nothing.

        >>> low, high = Estimate(3.0, 1.0, 5).interval
        >>> round(low, 2), round(high, 2)
        (0.22, 5.78)
        """
        if self.n < 2:
            return -math.inf, math.inf
        from scipy.stats import t  # slow to load

        half = float(t.ppf(0.975, self.n - 1)) * self.error
        return self.mean - half, self.mean + half

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval leaves out zero."""
        low, high = self.interval
        return low > 0 or high < 0

    def __str__(self) -> str:
        return self.format()

    def format(self, sign: str = "-", separator: str = " ± ") -> str:
        """The mean and, where there is one, its error; sign "+" shows a plus, and "" shows the size only."""
        if not self.n:
            return "—"
        # a small error deserves a second digit, else 0.04 ± 0.03 would read 0.0 ± 0.0
        digits = 2 if 0 < self.error < 0.095 else 1
        mean = f"{self.mean if sign else abs(self.mean):{sign or '-'}.{digits}f}"
        mean = mean.removeprefix("-") if float(mean) == 0 else mean.replace("-", "−")  # no −0.0
        return mean if math.isnan(self.error) else f"{mean}{separator}{self.error:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One group and kind of model: accuracies at the end of its finished runs, and how they compare.

    The differences are to the first group, over the seeds that both finished; None in the first group itself.
    """

    label: str
    kind: Kind
    runs: int
    seeds: int  # of the finished runs, those that the means are over
    diverged: int
    validation: bool  # whether accuracies are on samples kept for validation, not on test samples
    average: Estimate
    worst: Estimate
    worst10: Estimate
    stdev: Estimate
    gap: Estimate  # how far the worst-off device is below the average
    who: tuple[str, ...]  # the worst-off devices of the one finished run; of several runs none, they deal data anew
    worst_difference: Estimate | None
    average_difference: Estimate | None
    stdev_difference: Estimate | None
    vanished: str = ""  # what is to be known of runs whose weights have
    averaged: bool = False  # whether the common model is the mean of a server's models over rounds

    @property
    def unfinished(self) -> int:
        """Runs that neither finished nor diverged."""
        return self.runs - self.seeds - self.diverged


def table(groups: Groups) -> list[Row]:
    """A row for every kind of model and group."""
    first = next(iter(groups), None)
    return [
        _row(label, kind, group, None if label == first else groups[first or ""])
        for kind in KINDS
        for label, group in groups.items()
    ]


def _row(label: str, kind: Kind, group: Sequence[Record], first: Sequence[Record] | None) -> Row:
    ends = finished(group)
    return Row(
        label=label,
        kind=kind,
        runs=len(group),
        seeds=len(ends),
        diverged=sum(record.status == "diverged" for record in group),
        validation=group[0].experiment.validation is not None,
        average=_end(ends, kind, "average"),
        worst=_end(ends, kind, "worst"),
        worst10=_end(ends, kind, "worst10"),
        stdev=_end(ends, kind, "stdev"),
        gap=Estimate.over([final(run, kind, "average") - final(run, kind, "worst") for run in ends.values()]),
        who=_worst_devices(next(iter(ends.values())), kind) if len(ends) == 1 else (),
        worst_difference=_difference(ends, finished(first), kind, "worst") if first is not None else None,
        average_difference=_difference(ends, finished(first), kind, "average") if first is not None else None,
        stdev_difference=_difference(ends, finished(first), kind, "stdev") if first is not None else None,
        vanished=_vanished(label, list(ends.values())),
        averaged=(rule := registry.SERVERS.get(group[0].experiment.algorithm)) is not None and rule.averaged,
    )


def _worst_devices(record: Record, kind: Kind) -> tuple[str, ...]:
    accuracy, names = getattr(record.final, kind), record.network.names
    return tuple(
        f"{i} ({names[i]})" if names else f"{i}"
        for i, value in enumerate(accuracy.per_device)
        if value == accuracy.worst
    )


def finished(group: Sequence[Record]) -> dict[int, Record]:
    """The finished runs by seed."""
    return {record.experiment.seed: record for record in group if record.status == "finished"}


def _end(ends: dict[int, Record], kind: Kind, measure: Measure) -> Estimate:
    return Estimate.over([final(record, kind, measure) for record in ends.values()])


# what, with the seed, decides about graph, data and initial model; runs that differ here have nothing in common
_PROBLEM = (
    "dataset", "model", "devices", "graph", "p", "partition", "shards", "alpha", "heterogeneity", "scaling",
    "validation",
)  # fmt: skip


def same_problem(a: Record, b: Record) -> bool:
    """Whether two runs of the same seed share graph, data and initial model."""
    return all(getattr(a.experiment, name) == getattr(b.experiment, name) for name in _PROBLEM)


def _difference(ends: dict[int, Record], first: dict[int, Record], kind: Kind, measure: Measure) -> Estimate:
    common = [seed for seed in ends if seed in first and same_problem(ends[seed], first[seed])]
    return Estimate.over([final(ends[seed], kind, measure) - final(first[seed], kind, measure) for seed in common])


def final(record: Record, kind: Kind, measure: Measure) -> float:
    return float(getattr(getattr(record.final, kind), measure))


def rich_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal; narrow enough for 80 columns with short labels."""
    made = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    notes = [*legend(rows), *_not_tested(rows), *_not_counted(rows)]
    made.caption, made.caption_justify = Text("\n".join(notes)), "left"
    compared = any(row.worst_difference is not None for row in rows)
    made.add_column("accuracy in %", overflow="fold")
    for name in ("seeds", "average", "worst", "worst 10%", "STDEV"):
        made.add_column(name, justify="right", no_wrap=True)
    for name in ("Δ worst", "Δ average") if compared else ():
        made.add_column(name, justify="right", no_wrap=True)
    for kind in KINDS:
        made.add_row(Text(f"{kind} model" + "s" * (kind == "local"), style="italic"))
        for row in rows:
            if row.kind == kind:
                made.add_row(*_cells(row, compared))
        made.add_section()
    return made


def _cells(row: Row, compared: bool) -> list[Text]:
    seeds = str(row.seeds) if row.seeds == row.runs else f"{row.seeds}/{row.runs}"
    means = [each.format(separator="±") for each in (row.average, row.worst, row.worst10, row.stdev)]
    differences = [signed(each, "±") for each in (row.worst_difference, row.average_difference)]
    # Text, not str: a label with [brackets] is no markup
    return [Text(f" {row.label}"), *map(Text, [seeds, *means, *(differences if compared else [])])]


def signed(estimate: Estimate | None, separator: str = " ± ") -> str:
    return "" if estimate is None else estimate.format(sign="+", separator=separator)


def legend(rows: Sequence[Row]) -> list[str]:
    """What the signs in a table mean."""
    lines = []
    if any(row.seeds > 1 for row in rows):
        lines.append("± one standard error over seeds")
    if any(row.worst_difference is not None for row in rows):
        lines.append(f"Δ difference to {rows[0].label}, in pairs of the same seed")
    if averaged := [row.label for row in rows if row.averaged and row.kind == "consensus"]:
        lines.append(
            f"of {', '.join(averaged)}: consensus, the mean of the server's models over rounds; local, its last"
        )
    return lines


def _not_tested(rows: Sequence[Row]) -> list[str]:
    """A number that served to choose a setting must not pass for one of the test set."""
    chosen_on = [row.label for row in rows if row.validation and row.kind == "consensus"]
    if not chosen_on:
        return []
    whose = "" if all(row.validation for row in rows) else f" of {', '.join(chosen_on)}"
    return [f"Accuracies{whose} are on validation samples, not on the test set"]


def _not_counted(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        if row.kind == "consensus":
            what = {"diverged": row.diverged, "did not finish": row.unfinished}
            lines += [
                f"{row.label}: {n} of {count_runs(row.runs)} {verb}, not counted in the means"
                for verb, n in what.items()
                if n
            ]
    return lines


# Weights of 1 on average make steps as long as those of average risk. Below this a run has all but stopped.
LEAST_WEIGHT = 0.1


def vanished(rows: Sequence[Row]) -> list[str]:
    """A line for each group with runs that end with hardly any weight: how much is left, and what helps."""
    return [row.vanished for row in rows if row.vanished and row.kind == "consensus"]


def _vanished(label: str, ends: Sequence[Record]) -> str:
    weights = [math.fsum(w / len(run.final.weights) for w in run.final.weights) for run in ends if run.final.weights]
    small = [weight for weight in weights if weight < LEAST_WEIGHT]
    if not small or ends[0].experiment.algorithm in registry.SERVERS:  # a server may take steps as it likes
        return ""
    how_many = "" if len(ends) == 1 else f" in {len(small)} of {count_runs(len(ends))}"
    return (
        f"{label}: devices' weights are {math.fsum(small) / len(small):.2g} on average in the last round{how_many}, "
        f"and so much shorter are its steps: {_cure(ends[0].experiment)}"
    )


def _cure(e: Experiment) -> str:
    """What makes the weights of an experiment larger: where they are normalised, a moving average must keep up."""
    objective, _ = registry.parts_of(e.algorithm, e.objective, e.optimizer)
    if objective == "kl-dro" and e.weights == "normalized":
        return (
            "with --weights normalized take --weight-cap 3 if some loss was far off, else a larger --mu than "
            f"{e.mu:g}, or one from above (--mu 3 --mu-schedule linear:0.1 --loss-smoothing 0.03 --weight-cap 2)"
        )
    if objective == "kl-dro":
        return f"with --weights {e.weights} take a smaller --mu than {e.mu:g}, a larger --eta, or --weights normalized"
    options = {"term": ("tilt", e.tilt), "q-ffl": ("q", e.q), "kl-ball": ("radius", e.radius)}
    if objective in options:
        name, value = options[objective]
        return f"take a smaller --{name} than {value:g}"
    return "take a larger --eta"


def count_runs(n: int) -> str:
    return f"{n} run" + "s" * (n != 1)


# -------------------------------------------------------------------- headline


def headline(rows: Sequence[Row]) -> str:
    """One sentence that says for the consensus model what the rows show, and no more than they show."""
    first, *others = [row for row in rows if row.kind == "consensus"]
    if not others:
        return _without_rival(first)
    row = best(rows)
    if row is None:
        names = " or ".join(each.label for each in others)
        return (
            f"There is no pair to compare: no seed was finished on the same problem both with {first.label} "
            f"and with {names}."
        )
    return _against(row, first)


def best(rows: Sequence[Row]) -> Row | None:
    """Of the consensus model's rows, the one with the most for the worst-off device over the first; None if no pair."""
    paired = [row for row in rows if row.kind == "consensus" and row.worst_difference and row.worst_difference.n]
    return max(paired, key=_gain, default=None)


def _gain(row: Row) -> float:
    assert row.worst_difference is not None
    return row.worst_difference.mean


def _without_rival(row: Row) -> str:
    if not row.seeds:
        return f"No run of {row.label} has finished, so there is no end result."
    n = len(row.who)
    names = " and ".join(row.who)
    who = {0: "worst-off device ends", 1: f"worst-off device, device {names}, ends"}.get(
        n, f"worst-off devices, {names}, end" if n <= 3 else f"{n} worst-off devices end"
    )
    return (
        f"With {row.label} the {who} at {row.worst} % accuracy, {row.gap} points below the average over devices, "
        f"{row.average} % ({_basis(row.worst)})."
    )


def _against(row: Row, first: Row) -> str:
    worst, average = row.worst_difference, row.average_difference
    assert worst is not None
    assert average is not None
    basis = _basis(worst, "paired seed")
    if worst.n == 1:
        return (
            f"On the one seed that both finished, going from {first.label} to {row.label} changes the worst-off "
            f"device's accuracy by {signed(worst)} points and the average by {signed(average)}; "
            f"one seed cannot tell whether that is more than chance ({basis})."
        )
    if not worst.clear:
        return (
            f"It is not clear whether {row.label} serves the worst-off device better than {first.label}: "
            f"the difference of {signed(worst)} points in its accuracy is within what chance can do"
            f"{_price(average, better=False)} ({basis})."
        )
    verdict, moved = ("better", "higher") if worst.mean > 0 else ("worse", "lower")
    return (
        f"{row.label} serves the worst-off device {verdict} than {first.label}: "
        f"its accuracy is {worst.format(sign='')} points {moved}"
        f"{_price(average, better=worst.mean > 0)} ({basis})."
    )


def _price(average: Estimate, *, better: bool) -> str:
    size = average.format(sign="")
    if not average.clear:
        return f", and the average accuracy does not clearly change ({signed(average)} points)"
    if average.mean > 0:
        return f", and the average accuracy is {size} points higher"
    if better:
        return f", at the price of {size} points of average accuracy"
    return f", and the average accuracy is {size} points lower"


def _basis(estimate: Estimate, seed: str = "seed") -> str:
    n = estimate.n
    error = "; ± is one standard error" if n > 1 else ""
    return f"consensus model, {n} {seed}{'s' if n != 1 else ''}{error}"


def caveats(rows: Sequence[Row]) -> list[str]:
    """What a reader of the headline should know, too."""
    notes = [*_not_tested(rows), *_not_counted(rows), *vanished(rows)]
    differences = [row.worst_difference for row in rows if row.kind == "consensus"]
    pairs = [pair for pair in differences if pair is not None and pair.n]
    few = min((pair.n for pair in pairs if pair.n > 1), default=9)
    if few < 4:
        notes.append(f"With {few} seeds the standard error is itself a rough guess; five seeds or more say much more.")
    if len(pairs) > 1:
        notes.append(
            f"The headline speaks of the best of {len(pairs)} settings, chosen on the same seeds, which flatters it."
        )
    return notes


# ---------------------------------------------------------------------- curves


@dataclass(frozen=True)
class Curve:
    """A group's mean and standard error at its evaluated rounds, and how many runs got there."""

    rounds: list[int]
    values: list[Estimate]


def curve(group: Sequence[Record], kind: Kind, measure: Measure) -> Curve:
    """A measure against rounds."""
    return over_rounds(
        [{m.round: float(getattr(getattr(m, kind), measure)) for m in record.metrics} for record in group]
    )


def over_rounds(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The curve of runs that have a value at each evaluated round.

    A run counts as far as it got; a round counts if all runs that got there have it.

    >>> over_rounds([{0: 1.0, 5: 2.0, 10: 3.0}, {0: 3.0, 5: 4.0}]).values[1:]
    [Estimate(mean=3.0, error=1.0, n=2), Estimate(mean=3.0, error=nan, n=1)]
    """
    rounds, values = [], []
    for t in sorted(set().union(*runs)):
        there = [run for run in runs if max(run) >= t]
        if all(t in run for run in there):
            rounds.append(t)
            values.append(Estimate.over([run[t] for run in there]))
    return Curve(rounds, values)
