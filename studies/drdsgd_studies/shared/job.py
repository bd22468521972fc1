"""Do the runs that are missing: several at once, each recorded as soon as it ends, all of them resumable.

OUT/settings.json       the user's choices: an output folder holds the results of one choice
OUT/runs/*.json         loose records of finished runs (`store`)
OUT/STUDY.jsonl.xz      records of a study that is complete, packed
OUT/unfinished/NAME/    a run in progress, which can be continued
OUT/fig1/ ...           results
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from drdsgd.data import sources
from drdsgd.errors import InputError, InUse, flag, named
from drdsgd.experiments import records, workers
from drdsgd.experiments.config import Experiment
from drdsgd.files import write_text
from drdsgd.training import checkpoint
from drdsgd_studies.shared.corrupt import validated
from drdsgd_studies.shared.plan import Group, Settings, cost
from drdsgd_studies.shared.store import Done, RunRecord, Store, name_of, run_record

__all__ = ["Watch", "check_data", "check_folder", "do", "missing"]

# (done, total, note): how much is done of how much in all, and the latest news
Watch = Callable[[float, float, str], None]
Plan = Callable[[Done], Sequence[Group]]


@dataclass
class _Saved:
    """The content of settings.json."""

    seeds: list[int]
    rounds: int | None
    quick: bool


def check_folder(out: Path, s: Settings) -> None:
    """Refuse a folder that holds something else, or results of other settings; write these settings into a new one."""
    for file, what in (("study.toml", "comparison"), ("config.toml", "run")):
        if (out / file).exists():
            raise InputError(f"{named('out', out)} holds a {what} ({file}): give another folder")
    path = out / "settings.json"
    now = json.loads(json.dumps(asdict(s)))
    if path.exists():
        try:
            before = asdict(validated(TypeAdapter(_Saved), path.read_bytes()))
        except InputError as error:
            raise InputError(
                f"{path} is corrupt: {error.marked}; remove it if the folder is yours to overwrite"
            ) from None
        # the greatest difference first
        differing = [name for name in ("quick", "rounds", "seeds") if before[name] != now[name]]
        if differing:
            there, here = (" and ".join(_said(name, some[name]) for name in differing) for some in (before, now))
            raise InputError(
                f"{out} holds results {there}, not {here}: give the same options, or another {named('out')}"
            )
    write_text(path, json.dumps(now) + "\n")


def _said(name: str, value: object) -> str:
    """A setting as a user would write it, in the message of an error.

    >>> InputError(f"{_said('seeds', [0, 1])}, {_said('rounds', None)}, {_said('quick', True)}").on_command_line
    'with --seeds 0,1, without --rounds, with --quick'
    """
    if not value:
        return f"without {named(name)}"
    if value is True:
        return f"with {flag(name)}"
    return f"with {named(name, ','.join(map(str, value)) if isinstance(value, list) else value)}"


def check_data(plan: Iterable[Group], done: Done) -> None:
    """Refuse to begin where a data set of missing runs is not there; the error tells how to get it."""
    todo = (group for group in plan if not group.ready or missing([group], done))
    for name in sorted({group.example.dataset for group in todo}):
        if name in sources.KNOWN:
            try:
                sources.find(name)
            except InputError as error:
                # there is no option for it here, but the variable works everywhere
                said = error.marked.removesuffix(", or name its folder")
                raise InputError(f"{said}, or set DRDSGD_DATA to a folder that has it as {name}/") from None


def missing(plan: Iterable[Group], done: Done) -> list[Experiment]:
    """The experiments of all groups that are ready and not done, each once."""
    return list(dict.fromkeys(e for group in plan if group.ready for e in group.experiments if e not in done))


def do(plan: Plan, store: Store, work: Path, at_once: int, watch: Watch = lambda done, total, note: None) -> None:
    """Run what the plan asks for until it asks for no more; it may depend on the runs that are done.

    If this ends early, finished runs are kept, and the next call continues the others.
    """
    while True:
        groups = plan(store.runs)
        harvest((e for group in groups for e in group.experiments), store, work)
        todo = missing(groups, store.runs)
        if not todo:
            with suppress(OSError):  # it does not exist, or holds runs of another command
                work.rmdir()
            return
        try:
            costs = {e: cost(e) for group in groups for e in group.experiments}
            _run(todo, costs, all(group.ready for group in groups), store, work, at_once, watch)
        finally:
            harvest(todo, store, work)


def _run(
    todo: Sequence[Experiment],
    costs: dict[Experiment, float],
    known: bool,
    store: Store,
    work: Path,
    at_once: int,
    watch: Watch,
) -> None:
    """Run these experiments. Unless all are `known`, some stand for others that depend on results.

    Such a choice may fall on a run that is done already, so until then the total is an estimate.
    """
    about = "" if known else "about "
    behind = {e: seconds for e, seconds in costs.items() if e in store.runs}
    for e in todo:  # rounds in a checkpoint take no more time
        if saved := checkpoint.parts(records.Folder(work / name_of(e)).checkpoint):
            behind[e] = costs[e] * (saved[0].t / e.rounds)
    total, over = sum(costs.values()), set[Experiment]()

    def see(job: int, t: int) -> None:
        e = todo[job]
        behind[e] = costs[e] * (t / e.rounds)  # exactly the cost at the last round
        # at once: the machine may fail before the last of them ends
        over.difference_update([run.experiment for run in harvest(over, store, work)])
        if t == e.rounds:
            over.add(e)
        finished = sum(seconds == costs[one] for one, seconds in behind.items())
        watch(sum(behind.values()), total, f"{finished} of {about}{len(costs)} runs done; {_described(e)}")

    watch(sum(behind.values()), total, f"{len(todo)} runs to do")
    with workers.team([(e, work / name_of(e)) for e in todo], min(at_once, len(todo)), see) as team:
        team.run()


def _described(e: Experiment) -> str:
    mu = "" if e.mu is None else f" mu={e.mu:g}"
    return f"{e.algorithm}{mu}, {e.dataset}, K={e.devices}, seed {e.seed}"


def harvest(experiments: Iterable[Experiment], store: Store, work: Path) -> list[RunRecord]:
    """Turn the folders of ended runs, which no process holds any more, into records."""
    found = []
    for e in experiments:
        folder = records.Folder(work / name_of(e))
        if e in store.runs:
            shutil.rmtree(folder.path, ignore_errors=True)  # recorded already, before we were stopped
        elif folder.status != "unfinished":
            with suppress(InUse), folder.lock():
                run = run_record(records.read(folder.path))
                store.keep(run)
                shutil.rmtree(folder.path)
                found.append(run)
    return found
