"""The command `drdsgd bench`."""

from __future__ import annotations

from pathlib import Path

from drdsgd.cli.output import console
from drdsgd.cli.progress import bar
from drdsgd.errors import InputError, named, unknown
from drdsgd.report import plots
from drdsgd_benchmarks import results, speed
from drdsgd_benchmarks.machine import machine
from drdsgd_benchmarks.results import Measured

__all__ = ["bench"]


def bench(cases: list[str] | None, repeats: int, out: Path, plot: Path | None, resume: bool) -> None:
    """Measure the cases, print a table, and write all numbers as JSON; with `resume`, those that are not in it."""
    names = list(dict.fromkeys(cases or speed.CASES))
    for name in names:
        if name not in speed.CASES:
            raise InputError(f"bench {name}: {unknown(name, list(speed.CASES))}")
    for name, path in {"out": out, "plot": plot}.items():  # now, not after some minutes
        if path is not None and path.is_dir():
            raise InputError(f"{named(name, path)}: that is a folder; name a file in it")
    if plot is not None:
        plots.check_kind(plot)
    measured = Measured(machine(), repeats)
    if resume:
        before = results.read(out)
        before.check_same(measured, out)
        measured = before
    if plot is not None and "scale" not in {*names, *measured.cases}:
        raise InputError(f"{named('plot', plot)}: the picture is made from the case scale; name it, too")
    for path in (out, plot):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if name not in measured.cases]
    with bar(console(stderr=True), "measuring", len(missing)) as advance:
        for name, seconds, found in speed.run(missing, repeats, advance):
            measured = measured.having(name, seconds, found)
            measured.write(out)  # what was measured before a Ctrl-C is kept
    console().print(results.table(measured))
    print(f"numbers: {out}")
    if plot is not None:
        print(f"picture: {plots.cost(results.costs(measured.results), plot)}")
