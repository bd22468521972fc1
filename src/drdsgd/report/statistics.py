"""Numbers over runs: estimates over seeds, a table of final accuracies, paired differences, curves.

A number is the mean over a group's finished runs, with its standard error. Groups are compared in pairs of runs with
the same seed, which share graph, data, initial model and batches. The standard error of the mean *difference* tells
chance from merit. A run that diverged or did not finish has no final accuracy: it is counted, marked, and shown as far
as it got, but it enters no mean of the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from drdsgd.experiments import registry
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Record
from drdsgd.report.groups import Groups
from drdsgd.training.metrics import standard_error

__all__ = [
    "KINDS", "MEASURES", "Curve", "Estimate", "Kind", "Measure", "Row", "best", "curve", "final", "finished",
    "over_rounds", "same_problem", "signed", "table",
]  # fmt: skip

Kind = Literal["consensus", "local"]
Measure = Literal["average", "worst", "worst10", "stdev"]

KINDS: tuple[Kind, ...] = ("consensus", "local")
MEASURES: dict[Measure, str] = {
    "average": "Average accuracy",
    "worst": "Worst device",
    "worst10": "Worst 10 % of devices",
    "stdev": "STDEV over devices",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds and its standard error (nan for one seed; with no seeds the mean is nan, too).

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
        """The 95 % interval of the mean, by Student's t with n - 1 degrees of freedom; infinite for one seed.

        >>> low, high = Estimate(3.0, 1.0, 5).interval
        >>> round(low, 2), round(high, 2)
        (0.22, 5.78)
        """
        if self.n < 2:
            return -math.inf, math.inf
        from scipy.special import stdtrit  # not scipy.stats, which takes a second to load

        half = float(stdtrit(self.n - 1, 0.975)) * self.error
        return self.mean - half, self.mean + half

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval excludes zero."""
        low, high = self.interval
        return low > 0 or high < 0

    def __str__(self) -> str:
        return self.format()

    def format(self, sign: str = "-", separator: str = " ± ") -> str:
        """The mean and, if there is one, its error; sign "+" also writes a plus, and "" writes the absolute value."""
        if not self.n:
            return "—"
        # a small error gets a second digit: 0.04 ± 0.03 would otherwise read 0.0 ± 0.0
        digits = 2 if 0 < self.error < 0.095 else 1
        mean = f"{self.mean if sign else abs(self.mean):{sign or '-'}.{digits}f}"
        mean = mean.removeprefix("-") if float(mean) == 0 else mean.replace("-", "−")  # no −0.0
        return mean if math.isnan(self.error) else f"{mean}{separator}{self.error:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One group and kind of model: final accuracies of its finished runs, and differences from the first group.

    The differences are over the seeds that both groups finished; they are None in the first group itself.
    """

    label: str
    kind: Kind
    experiment: Experiment  # of the group's first run
    runs: int
    seeds: int  # finished runs, over which the means are taken
    diverged: int
    average: Estimate
    worst: Estimate
    worst10: Estimate
    stdev: Estimate
    gap: Estimate  # how far the worst-off device is below the average
    weights: tuple[float, ...]  # of each finished run, the mean of the devices' weights in the last round
    worst_devices: tuple[str, ...]  # of the only finished run; empty for several, as each seed deals the data anew
    worst_difference: Estimate | None
    average_difference: Estimate | None
    stdev_difference: Estimate | None

    @property
    def unfinished(self) -> int:
        """The number of runs that neither finished nor diverged."""
        return self.runs - self.seeds - self.diverged

    @property
    def validation(self) -> bool:
        """Whether accuracies are on samples held out for validation, not on test samples."""
        return self.experiment.validation is not None

    @property
    def averaged(self) -> bool:
        """Whether the consensus model is the mean of a server's models over rounds."""
        rule = registry.SERVERS.get(self.experiment.algorithm)
        return rule is not None and rule.averaged


def table(groups: Groups) -> list[Row]:
    """One row for every kind of model and group."""
    first = next(iter(groups), None)
    return [
        _row(label, kind, group, None if label == first else groups[first or ""])
        for kind in KINDS
        for label, group in groups.items()
    ]


def _row(label: str, kind: Kind, group: Sequence[Record], first: Sequence[Record] | None) -> Row:
    ends = finished(group)

    def end(measure: Measure) -> Estimate:
        return Estimate.over([final(run, kind, measure) for run in ends.values()])

    def difference(measure: Measure) -> Estimate | None:
        return None if first is None else _difference(ends, finished(first), kind, measure)

    return Row(
        label=label,
        kind=kind,
        experiment=group[0].experiment,
        runs=len(group),
        seeds=len(ends),
        diverged=sum(record.status == "diverged" for record in group),
        average=end("average"),
        worst=end("worst"),
        worst10=end("worst10"),
        stdev=end("stdev"),
        gap=Estimate.over([final(run, kind, "average") - final(run, kind, "worst") for run in ends.values()]),
        weights=tuple(
            math.fsum(w / len(run.final.weights) for w in run.final.weights)
            for run in ends.values()
            if run.final.weights
        ),
        worst_devices=_worst_devices(next(iter(ends.values())), kind) if len(ends) == 1 else (),
        worst_difference=difference("worst"),
        average_difference=difference("average"),
        stdev_difference=difference("stdev"),
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


# with the seed, these determine graph, data and initial model; runs that differ here cannot be paired
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
    """A measure of a run's last evaluation; nan if that was not of this kind of model, as in a run that ended early."""
    spread = getattr(record.final, kind)
    return math.nan if spread is None else float(getattr(spread, measure))


def signed(estimate: Estimate | None, separator: str = " ± ") -> str:
    """A difference with its sign; empty if there is none."""
    return "" if estimate is None else estimate.format(sign="+", separator=separator)


def best(rows: Sequence[Row]) -> Row | None:
    """The consensus model's row with the largest gain for the worst-off device over the first; None without a pair."""
    paired = [row for row in rows if row.kind == "consensus" and row.worst_difference and row.worst_difference.n]
    return max(paired, key=_gain, default=None)


def _gain(row: Row) -> float:
    assert row.worst_difference is not None
    return row.worst_difference.mean


@dataclass(frozen=True)
class Curve:
    """A group's mean and standard error at its evaluated rounds, with the number of runs that got there."""

    rounds: list[int]
    values: list[Estimate]


def curve(group: Sequence[Record], kind: Kind, measure: Measure) -> Curve:
    """A measure of a group against rounds; local models may be evaluated in fewer of them."""

    def values(record: Record) -> dict[int, float]:
        spreads = {m.round: getattr(m, kind) for m in record.metrics}
        return {t: float(getattr(spread, measure)) for t, spread in spreads.items() if spread is not None}

    return over_rounds([values(record) for record in group])


def over_rounds(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The curve over runs, each of which gives a value at its evaluated rounds.

    A run counts as far as it got. A round counts if all runs that got there evaluated it.

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
