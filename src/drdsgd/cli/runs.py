"""Commands that train: `train`, `compare` and `demo`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drdsgd.cli.options import Log, Out, Resume, experiment_options, seeds_of
from drdsgd.cli.output import console, continued_with, log_options, show_table, warn_once
from drdsgd.engines import ENVIRONMENT
from drdsgd.errors import Diverged, InputError, unknown
from drdsgd.experiments.registry import parse

if TYPE_CHECKING:
    from drdsgd.engines.distributed import World
    from drdsgd.experiments.compare import Study
    from drdsgd.experiments.config import Experiment
    from drdsgd.experiments.loggers import Make
    from drdsgd.experiments.records import Record

__all__ = ["WORLD", "compare", "demo", "train"]

_several = partial(typer.Option, rich_help_panel="Several processes")

# the connection to the other ranks, if this process is one of several
WORLD: list[World] = []

# the demo uses the paper's eta and B. With mu = 1 a device with a loss near 0 takes the step of DSGD, and the clip
# keeps every weight below e = 2.7
DEMO = {"devices": 10, "rounds": 100, "p": 0.5, "model": "mlp:32", "mu": 1.0, "loss_clip": 1.0, "eval_every": 5}


@experiment_options()
def train(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="file with an experiment; options override it")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    log: Log = None,
    engine: Annotated[
        str | None,
        _several(
            "--engine",
            help="local (one process) or distributed (one of several); default local (torchrun: distributed)",
        ),
    ] = None,
    backend: Annotated[str | None, _several("--backend", help="gloo, nccl or mpi; default gloo (GPUs: nccl)")] = None,
    timeout: Annotated[
        float, _several("--timeout", help="seconds after which a silent process counts as lost")
    ] = 300.0,
    regroup: Annotated[
        bool, _several("--regroup", help="with --resume: continue with another number of processes")
    ] = False,
    *,
    given: dict[str, Any],
) -> None:
    """Do one run, in several processes under torchrun, and write it into a folder; --resume continues it."""
    from drdsgd import report
    from drdsgd.experiments import config, loggers, records, run

    copy = loggers.of(log or ())
    if engine not in (None, "local", "distributed"):
        raise InputError(f"--engine {engine}: {unknown(str(engine), ('local', 'distributed'))}")
    fields = {**(config.load(file) if file else {}), **given}
    world = None
    if engine == "distributed" or (engine is None and all(name in os.environ for name in ENVIRONMENT)):
        world = _joined(out, fields, resume, regroup, backend, timeout)
    if resume:
        if out is None:
            raise InputError("--resume: give the folder of the run with --out DIR")
        e = run.resumed(out, fields, world)
    else:
        e = config.Experiment(**fields)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{e.algorithm}-{Path(e.dataset).name}"

    over = resume and not log and records.Folder(folder).status == "finished"
    launcher = "" if world is None else "torchrun ... -m "
    with continued_with(f"train --resume{log_options(log)}", folder, records.Folder(folder).config, launcher):
        record = _run(e, folder, world, copy, resume=resume, regroup=regroup)
        if record is None:  # the first rank prints the results
            return
        show_table([record])
        print(f"report: {report.write([folder], folder / 'report.html')}")
    if over:
        print(f"the run in {folder} had already finished its {e.rounds} rounds: nothing left to do", file=sys.stderr)
    if record.status == "diverged":  # in an earlier run, which was only shown again
        raise typer.Exit(1)


def _joined(
    out: Path | None, fields: Mapping[str, Any], resume: bool, regroup: bool, backend: str | None, timeout: float
) -> World:
    """The connection to the other ranks, which are to do the same."""
    from drdsgd.engines.distributed import join
    from drdsgd.experiments import records, run

    if out is None:
        raise InputError("--out: say which folder, so that a process that is started again finds the run")
    begun = records.Folder(out).config
    device = records.read_config(begun).device if resume and begun.exists() else "cpu"
    world = join(backend, str(fields.get("device", device)), timeout)
    WORLD.append(world)
    run.check_same_flags(world, resume=resume, regroup=regroup)
    return world


def _run(e: Experiment, folder: Path, world: World | None, log: Make, *, resume: bool, regroup: bool) -> Record | None:
    """Do a run and show its progress; of several processes only the first shows it and gets the record."""
    from drdsgd import report
    from drdsgd.cli.progress import view
    from drdsgd.experiments import records, run
    from drdsgd.training.loop import Progress

    if world is not None and world.rank > 0:
        return run.run_together(e, folder, world, resume=resume, regroup=regroup)
    begun = [e]

    def watch(progress: Progress) -> None:
        warn_once(begun)
        show(progress.state.t, progress.metrics)

    what = f"{e.algorithm}, {e.dataset}, K={e.devices}, eta={e.eta:.3g}, B={e.batch_size}"
    try:
        with view(console(stderr=True), what, e.rounds) as show:
            if world is None:
                return run.run(e, folder, resume=resume, regroup=regroup, watch=watch, log=log)
            return run.run_together(e, folder, world, resume=resume, regroup=regroup, watch=watch, log=log)
    except Diverged:
        if records.Folder(folder).status == "diverged":  # the report shows what it did until then
            print(f"report: {report.write([folder], folder / 'report.html')}")
        raise


@experiment_options(without=["algorithm", "seed", "threads"])
def compare(
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", help="repeat for each; settings as dr-dsgd:mu=3,eta=0.1; default dsgd and dr-dsgd"),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="number of seeds, or the seeds as 0,3,7; default 3")
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads",
            metavar="INTEGER",
            help="number of compute threads, shared by all runs; default all cores",
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    log: Log = None,
    *,
    given: dict[str, Any],
) -> None:
    """Compare several algorithms on paired seeds: one table and one report."""
    from drdsgd.experiments import compare, loggers

    loggers.of(log or ())  # refuses wrong names before anything is made
    if resume:
        if out is None:
            raise InputError("--resume: give the folder of the comparison with --out DIR")
        plan = compare.resumed(out, algorithm or (), seeds_of(seeds) if seeds else (), given)
    else:
        plan = compare.Study(tuple(algorithm or ("dsgd", "dr-dsgd")), seeds_of(seeds or "3"), given)
    folder = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-compare"
    budget = None if threads is None else int(parse("threads", threads))
    run_comparison(plan, folder, resume, f"compare --resume{log_options(log)}", budget, log or ())


def demo(
    out: Annotated[Path, typer.Option("--out", help="output folder")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option("--seeds", help="number of seeds, or the seeds as 0,3,7")] = "5",
) -> None:
    """Compare DR-DSGD with DSGD on the embedded data: a table and a report."""
    from drdsgd.experiments import compare

    plan, begun = compare.Study(("dsgd", "dr-dsgd"), seeds_of(seeds), dict(DEMO)), (out / "study.toml").exists()
    if begun:  # a second `demo` shows the runs of the first again, and continues those that were stopped
        stored = compare.load(out / "study.toml")
        if stored.algorithms != plan.algorithms or {**stored.options, **DEMO} != stored.options:
            raise InputError(f"{out} holds another comparison; use another --out")
        plan = compare.extended(stored, (), plan.seeds, {})
    # one after the other: the runs are short, and finish before a second process has loaded torch
    run_comparison(plan, out, begun, f"demo --seeds {shlex.quote(seeds)}", threads=1)


def run_comparison(
    plan: Study, out: Path, resume: bool, again: str, threads: int | None = None, log: Sequence[str] = ()
) -> None:
    """Run a study with one progress bar for all its runs, and then write table, picture and report."""
    from drdsgd import report
    from drdsgd.cli.progress import bar
    from drdsgd.experiments import compare
    from drdsgd.experiments.records import Folder
    from drdsgd.report import plots
    from drdsgd.report.groups import groups
    from drdsgd.training import checkpoint

    cells = plan.cells(out)
    begun = [cell.experiment for cell in cells]
    # completed rounds of each run, including those in a checkpoint, which take no more time
    saved = {c.path: checkpoint.parts(Folder(c.path).checkpoint) for c in cells}
    over = {c.path for c in cells if Folder(c.path).status != "unfinished"}
    reached = {c.path: saved[c.path][0].t for c in cells if saved[c.path]}
    reached |= {c.path: c.experiment.rounds for c in cells if c.path in over}
    with continued_with(again, out, begun=out / "study.toml"):
        with bar(console(stderr=True), "comparing", sum(cell.experiment.rounds for cell in cells)) as advance:

            def watch(cell: compare.Cell, t: int) -> None:
                warn_once(begun)
                reached[cell.path] = t
                if t == cell.experiment.rounds:
                    over.add(cell.path)
                note = f"{len(over)} of {len(cells)} runs done; {cell.label}, seed {cell.experiment.seed}"
                advance(sum(reached.values()), note)

            advance(sum(reached.values()), "")
            records = compare.compare(plan, out, resume=resume, threads=threads, watch=watch, log=log)
        show_table(records)
        print(f"picture: {plots.curves(groups(records), out / 'curves.png')}")
        print(f"report: {report.write([out], out / 'report.html')}")
