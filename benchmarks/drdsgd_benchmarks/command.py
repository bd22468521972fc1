"""The command `drdsgd bench`."""

from __future__ import annotations

from pathlib import Path

from drdsgd.cli.output import console
from drdsgd.cli.progress import bar
from drdsgd.errors import InputError, named, unknown
from drdsgd.report import plots
from drdsgd_benchmarks import speed

__all__ = ["bench"]


def bench(cases: list[str] | None, repeats: int, out: Path, plot: Path | None) -> None:
    """Measure the cases, print a table, and write all numbers as JSON."""
    names = list(dict.fromkeys(cases or speed.CASES))
    for name in names:
        if name not in speed.CASES:
            raise InputError(f"bench {name}: {unknown(name, list(speed.CASES))}")
    if plot is not None:
        plots.check_kind(plot)
        if "scale" not in names:
            raise InputError(f"{named('plot', plot)}: the picture is made from the case scale; name it, too")
    for name, path in {"out": out, "plot": plot}.items():  # now, not after some minutes
        if path is not None and path.is_dir():
            raise InputError(f"{named(name, path)}: that is a folder; name a file in it")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    results: list[speed.Result] = []
    with bar(console(stderr=True), "measuring", len(names)) as advance:
        for found in speed.run(names, repeats, advance):
            results += found
            speed.write(results, out)  # what was measured before a Ctrl-C is kept
    console().print(speed.table(results))
    print(f"numbers: {out}")
    if plot is not None:
        print(f"picture: {plots.cost(speed.costs(results), plot)}")
