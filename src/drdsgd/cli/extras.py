"""Commands that other packages provide: `reproduce` (studies) and `bench` (benchmarks).

The library never imports these packages. They register a function under the entry point group `drdsgd.commands`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.errors import InputError

__all__ = ["bench", "reproduce"]


def _registered(command: str, folder: str) -> Callable[..., Any]:
    """The function behind a command that another package provides."""
    from importlib.metadata import entry_points  # slow to load

    found = tuple(entry_points(group="drdsgd.commands", name=command))
    if not found:
        raise InputError(
            f"{command}: the package drdsgd-{folder} is not installed; in a clone of the repository: "
            f"pip install ./{folder}"
        )
    function: Callable[..., Any] = found[0].load()
    return function


def reproduce(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="a figure or table of the paper (fig1, …, table1), theory, league or all"),
    ],
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="number of seeds, or the seeds as 0,3,7; default 5 (--quick: 2)")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="INTEGER", help="rounds of every run; default the paper's T")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="output folder; default docs/results (--quick: runs/quick)"),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option("--records", help="folder with records of finished runs to reuse; default docs/results"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="check the whole pipeline on the embedded data, in under a minute")
    ] = False,
    only_known: Annotated[
        bool, typer.Option("--only-known", help="run nothing; draw and judge the finished runs")
    ] = False,
    threads: Annotated[
        str | None,
        typer.Option("--threads", metavar="INTEGER", help="number of runs at the same time; default all cores"),
    ] = None,
) -> None:
    """Reproduce the paper's figures, table and theory, with a verdict on each claim, or the league of methods."""
    _registered("reproduce", "studies")(what, seeds, rounds, out, known, quick, only_known, threads)


def bench(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]...",
            help="mlp, cnn, methods, scale, load, evaluation, cifar, ranks, study, demo, start; default all",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="repetitions of every measurement")] = 5,
    out: Annotated[Path, typer.Option("--out", help="file for all numbers, as JSON")] = Path("bench.json"),
    plot: Annotated[Path | None, typer.Option("--plot", help="picture of cost against K, from the case scale")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep the finished cases in --out, measure the others")
    ] = False,
) -> None:
    """Measure speed on this machine: ratios to a plain loop, to the bare arithmetic, and between sizes."""
    _registered("bench", "benchmarks")(cases, repeats, out, plot, resume)
