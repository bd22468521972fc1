"""The result in words: one sentence for the consensus model, what qualifies it, and how to repair vanished weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drdsgd.experiments import registry
from drdsgd.experiments.config import Experiment
from drdsgd.report.statistics import Estimate, Row, best, signed
from drdsgd.report.tables import count_runs, not_counted, not_tested

__all__ = ["LEAST_WEIGHT", "caveats", "headline", "vanished"]

# Weights of 1 on average make steps as long as those of average risk. Below this a run has almost stopped.
LEAST_WEIGHT = 0.1


def headline(rows: Sequence[Row]) -> str:
    """One sentence on what the rows show for the consensus model, and no more than they show."""
    first, *others = [row for row in rows if row.kind == "consensus"]
    if not others:
        return _without_rival(first)
    row = best(rows)
    if row is None:
        names = " or ".join(each.label for each in others)
        return (
            f"There is no pair to compare: no seed finished the same problem both with {first.label} and with {names}."
        )
    return _against(row, first)


def _without_rival(row: Row) -> str:
    if not row.seeds:
        return f"No run of {row.label} has finished, so there is no end result."
    n = len(row.worst_devices)
    names = " and ".join(row.worst_devices)
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
            f"On the only seed that both finished, replacing {first.label} by {row.label} changes the worst-off "
            f"device's accuracy by {signed(worst)} points and the average by {signed(average)}; "
            f"one seed cannot tell whether this is more than chance ({basis})."
        )
    if not worst.clear:
        return (
            f"It is not clear whether {row.label} serves the worst-off device better than {first.label}: "
            f"the difference of {signed(worst)} points in its accuracy may be due to chance"
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
    """What else a reader of the headline should know."""
    notes = [*not_tested(rows), *not_counted(rows), *vanished(rows)]
    differences = [row.worst_difference for row in rows if row.kind == "consensus"]
    pairs = [pair for pair in differences if pair is not None and pair.n]
    few = min((pair.n for pair in pairs if pair.n > 1), default=9)
    if few < 4:
        notes.append(f"With {few} seeds the standard error itself is a rough estimate; use five seeds or more.")
    if len(pairs) > 1:
        notes.append(
            f"The headline is about the best of {len(pairs)} settings, chosen on the same seeds, so it is optimistic."
        )
    return notes


# ---------------------------------------------------------------------- weights


def vanished(rows: Sequence[Row]) -> list[str]:
    """A line for each group with runs whose weights have vanished: how large they are, and what helps."""
    return list(filter(None, (_vanished(row) for row in rows if row.kind == "consensus")))


def _vanished(row: Row) -> str:
    small = [weight for weight in row.weights if weight < LEAST_WEIGHT]
    if not small or row.experiment.algorithm in registry.SERVERS:  # a server may scale its steps as it likes
        return ""
    how_many = "" if row.seeds == 1 else f" in {len(small)} of {count_runs(row.seeds)}"
    return (
        f"{row.label}: the devices' weights are {math.fsum(small) / len(small):.2g} on average in the last "
        f"round{how_many}, which shortens its steps by that factor: {_remedy(row.experiment)}"
    )


def _remedy(e: Experiment) -> str:
    """Options that make an experiment's weights larger; normalized ones vanish if their moving average lags behind."""
    objective, _ = registry.parts_of(e.algorithm, e.objective, e.optimizer)
    if objective == "kl-dro" and e.weights == "normalized":
        return (
            "with --weights normalized use --weight-cap 3 if some loss was an outlier, else a larger --mu than "
            f"{e.mu:g}, or one that decays (--mu 3 --mu-schedule linear:0.1 --loss-smoothing 0.03 --weight-cap 2)"
        )
    if objective == "kl-dro":
        return f"with --weights {e.weights} use a smaller --mu than {e.mu:g}, a larger --eta, or --weights normalized"
    options = {"term": ("tilt", e.tilt), "q-ffl": ("q", e.q), "kl-ball": ("radius", e.radius)}
    if objective in options:
        name, value = options[objective]
        return f"use a smaller --{name} than {value:g}"
    return "use a larger --eta"
