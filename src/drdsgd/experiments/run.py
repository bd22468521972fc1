"""Run one experiment into one folder: build, train, record, checkpoint, resume; in one process or in several."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from drdsgd.core.engine import Ranks
from drdsgd.core.flat import Flat
from drdsgd.engines.local import SingleProcess
from drdsgd.errors import Diverged, InputError, Interrupted, flag, named
from drdsgd.experiments import loggers, records
from drdsgd.experiments.build import (
    gossip_of,
    make_algorithm,
    make_data,
    make_graph,
    make_mixing,
    make_model,
    options_of,
)
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.loggers import Logger
from drdsgd.experiments.records import Folder, Record
from drdsgd.training import card, checkpoint
from drdsgd.training.loop import Progress, steps
from drdsgd.training.preparation import Settings, prepare
from drdsgd.versions import versions

if TYPE_CHECKING:
    import networkx as nx

    from drdsgd.data.devices import Devices
    from drdsgd.engines.distributed import World

__all__ = [
    "check", "check_alike", "check_device", "check_same_flags", "check_unchanged", "resume", "resumed", "run",
    "run_together", "settings_of", "stop_requests",
]  # fmt: skip

# fields that may differ between machines without changing the experiment
OF_A_MACHINE = ("threads", "data_dir")


def run(
    e: Experiment,
    path: Path | str,
    *,
    resume: bool = False,
    regroup: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    log: loggers.Make = loggers.no_log,
) -> Record:
    """Run an experiment into a folder, or continue it there; `watch` sees every round, and `log` every evaluation.

    A folder with a run in it is refused unless `resume` is set; then the experiment must be the same. Whatever happens
    to the process, the folder can be resumed and ends with the same metrics. An interruption (Ctrl-C, or `stop` that
    returns True after a round) leaves a checkpoint of the last complete round. The summary of a run that diverges says
    so. With `regroup`, a run of several processes (`run_together`) may be continued.

    >>> import tempfile
    >>> e = Experiment(dataset="synthetic", devices=4, rounds=5, graph="ring")
    >>> run(e, Path(tempfile.mkdtemp()) / "first").final.round
    5
    """
    folder = Folder(Path(path))
    with folder.lock():
        _check(folder, e, resume)
        if folder.status == "unfinished":
            _go(e, folder, make_graph(e), make_data(e), SingleProcess(e.devices), regroup, watch, stop, log)
        else:
            with _logging(log, e, folder):  # copies the finished run
                pass
        return records.read(folder.path)


def resume(
    path: Path | str,
    *,
    threads: int | None = None,
    data_dir: str | None = None,
    regroup: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    log: loggers.Make = loggers.no_log,
) -> Record:
    """Continue the run in a folder exactly, as its config.toml describes it; a run that has ended is only read.

    Another machine may have other `threads` and another `data_dir`. All else is as in `run`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "first"
    >>> e = Experiment(dataset="synthetic", devices=4, rounds=5, graph="ring")
    >>> try:
    ...     run(e, path, stop=lambda: True)
    ... except KeyboardInterrupt as interrupted:
    ...     print(interrupted)
    stopped after round 0 of 5
    >>> resume(path).final.round
    5
    """
    given = {"threads": threads, "data_dir": data_dir}
    e = resumed(path, {name: value for name, value in given.items() if value is not None})
    return run(e, path, resume=True, regroup=regroup, watch=watch, stop=stop, log=log)


def resumed(path: Path | str, fields: Mapping[str, Any] | None = None, world: World | None = None) -> Experiment:
    """The experiment with which `run` or `run_together` continues the run in a folder, with these fields.

    The number of threads and the folder of the data may change; another field that differs is refused. Of the processes
    of a `world` only the first needs the folder: the others may be on machines without it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "first"
    >>> _ = run(Experiment(dataset="synthetic", devices=4, rounds=5, graph="ring", threads=1), path)
    >>> resumed(path, {"threads": 2}).threads
    2
    >>> resumed(path, {"rounds": 9})
    Traceback (most recent call last):
    drdsgd.errors.InputError: rounds=9: the run in ... has 5; resume it unchanged, or start another in another folder
    """
    stored, given = dict[str, Any](), dict(fields or {})
    if world is None or world.rank == 0:
        folder = _begun(Path(path))
        check_unchanged(folder, given)
        stored = records.read_config(folder.config).model_dump()
    if world is not None:
        stored = json.loads(world.texts(json.dumps(stored))[0])
    return Experiment(**{**stored, **given})


def run_together(
    e: Experiment,
    path: Path | str,
    world: World,
    *,
    resume: bool = False,
    regroup: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    log: loggers.Make = loggers.no_log,
) -> Record | None:
    """As `run`, in several processes that make the same call and share the devices; the first writes the record.

    Every process writes its part of a checkpoint. A request to stop takes effect at the next evaluation or checkpoint.
    A process that torchrun has restarted continues the run. Only the first process gets the record.
    """
    from drdsgd.experiments import hosting  # slow to load

    folder, first = Folder(Path(path)), world.rank == 0
    check_alike(e, world)
    # asked of all: torchrun counts restarts only on the machine where something failed
    again = any(int(count) > 0 for count in world.texts(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    with folder.lock() if first else nullcontext():
        if first:
            _check(folder, e, resume or (again and folder.config.exists()))
        if world.texts(folder.status if first else "")[0] == "unfinished":
            graph = make_graph(e)
            members, data = hosting.host(e, graph, world)
            _check_results_alike(e, graph, data, world)
            _go(e, folder, graph, data, members, regroup, watch, log=log if first else loggers.no_log)
            members.post.close()
        elif first:
            with _logging(log, e, folder):
                pass
        return records.read(folder.path) if first else None


def _go(
    e: Experiment,
    folder: Folder,
    graph: nx.Graph,
    data: Devices,
    ranks: Ranks,
    regroup: bool,
    watch: Callable[[Progress], None],
    stop: Callable[[], bool] = lambda: False,
    log: loggers.Make = loggers.no_log,
) -> None:
    """Begin or continue the run in this folder, up to its end; the first of several processes writes."""
    data = data.to(check_device(e.device))
    mixing, model, algorithm = make_mixing(e, graph), make_model(e, data), make_algorithm(e)
    network = records.network(graph, data, None if algorithm.has_server else gossip_of(e, graph), ranks)
    start = checkpoint.load(folder.checkpoint, ranks, e.device, regroup)
    # every mistake in the input is refused here, before anything is written
    prepared = prepare(model, data, mixing, algorithm, settings_of(e), ranks)
    rounds = steps(prepared, start, agree_every=e.checkpoint_every)
    last, t = start, -1 if start is None else start.state.t
    if network is not None:
        if start is None:
            folder.start(e, network)
        else:
            folder.check_network(network)
        folder.rewind(t, e)
    with _logging(log, e, folder) as logger:
        with stop_requests() as asked:
            try:
                stopping = False
                for progress in rounds:
                    last, t = progress, progress.state.t
                    if progress.metrics is not None and ranks.rank == 0:
                        folder.append(progress.metrics)
                        logger.log(progress.metrics)
                    watch(progress)
                    saving = t % e.checkpoint_every == 0 or t == e.rounds
                    # several processes must stop after the same round
                    if ranks.size == 1 or saving or progress.metrics is not None:
                        stopping = any(ranks.texts("stop" if asked() or stop() else ""))
                    # only after the metrics: a checkpoint relies on all lines up to its round
                    if saving or stopping:
                        checkpoint.save(folder.checkpoint, progress, ranks)
                    if stopping:
                        break
            except Diverged as error:
                if ranks.rank == 0:
                    folder.finish("diverged", error.on_command_line)
                raise
            # also after the last round: a comparison must not start its next run
            if stopping or any(ranks.texts("stop" if asked() or stop() else "")):
                raise Interrupted(f"stopped after round {t} of {e.rounds}")
        assert last is not None
        trained, training = prepared.consensus(last.state), card.describe(prepared)
        if network is not None:
            training = dataclasses.replace(training, names=network.names, rho=network.rho)
            card.save(folder.path, trained, training, records.read_metrics(folder.metrics)[-1], folder.card.name)
            folder.finish("finished", "")


def settings_of(e: Experiment, mean_samples: float | None = None) -> Settings:
    """How to train; a process that can't know all devices gives the mean number of samples per device."""
    known = {} if mean_samples is None or e.reference == "uniform" else {"reference": mean_samples}
    return Settings(**{**options_of(e, Settings), **known})


@contextmanager
def _logging(log: loggers.Make, e: Experiment, folder: Folder) -> Iterator[Logger]:
    """A log that has all evaluations in the folder; at the end of the block it gets the status of the run."""
    logger = log(e, folder.path)
    if log is loggers.no_log:
        yield logger
        return
    try:
        for metrics in records.read_metrics(folder.metrics):
            logger.log(metrics)
        yield logger
    finally:
        logger.close(folder.status)


def check_alike(e: Experiment, world: World) -> None:
    """Refuse processes with different experiments; only `OF_A_MACHINE` may differ."""
    found = [json.loads(text) for text in world.texts(json.dumps(e.model_dump()))]
    for rank, other in enumerate(found):
        for name in e.model_dump():
            if name not in OF_A_MACHINE and other[name] != found[0][name]:
                raise InputError(
                    f"{named(name)} is {found[0][name]} for rank 0, but {other[name]} for rank {rank}: "
                    "give all processes the same value"
                )


def check_same_flags(world: World, *, resume: bool, regroup: bool) -> None:
    """Refuse processes of which only some have `resume` or `regroup`: they would wait for each other in vain."""
    if len({*world.texts(f"{resume} {regroup}")}) > 1:
        raise InputError(
            f"{named('resume')}, {named('regroup')}: some ranks have them and some do not; give all the same"
        )


def _check_results_alike(e: Experiment, graph: nx.Graph, data: Devices, world: World) -> None:
    """Refuse processes for which the same experiment means something else: other files, code or versions."""
    row = Flat(make_model(e, data)).row().cpu()
    here = {
        "the graph": hashlib.sha256(json.dumps(sorted(map(list, graph.edges))).encode()).hexdigest(),
        "the initial model": hashlib.sha256(row.numpy().tobytes()).hexdigest(),
        **{f"the version of {name}": number for name, number in versions().items()},
    }
    found = [json.loads(text) for text in world.texts(json.dumps(here))]
    for rank, other in enumerate(found):
        for what, value in found[0].items():
            if other[what] != value:
                raise InputError(f"{what} differs between rank {rank} and rank 0: give all machines the same")


def check(e: Experiment) -> None:
    """Refuse an experiment whose graph, data, model or algorithm cannot be made; writes nothing."""
    make_algorithm(e).check(gossip_of(e, make_graph(e)))
    make_model(e, make_data(e).to(check_device(e.device)))


def _check(folder: Folder, e: Experiment, resume: bool) -> None:
    """Refuse to overwrite a run, to resume a run that is not there, and to resume with a different experiment."""
    if not resume:
        if folder.config.exists():
            raise InputError(
                f"{folder.path} already holds a run ({folder.status}); continue it with {flag('resume')}, or use "
                "another folder"
            )
        return
    check_unchanged(_begun(folder.path), e.model_dump())


def _begun(path: Path) -> Folder:
    """The folder of a run that has begun."""
    folder = Folder(path)
    if not folder.config.exists():
        raise InputError(f"{named('resume')}: there is no run in {path}; it has no config.toml")
    return folder


def check_unchanged(folder: Folder, fields: Mapping[str, Any]) -> None:
    """Refuse to resume a run if these fields differ from those that it began with.

    The folder of its data and the number of threads may change.
    """
    stored = records.read_config(folder.config).model_dump()
    for name, now in fields.items():
        before = stored.get(name, now)
        if before != now and name not in OF_A_MACHINE:
            raise InputError(
                f"{named(name, now)}: the run in {folder.path} has {before}; resume it unchanged, "
                "or start another in another folder"
            )


def check_device(name: str) -> torch.device:
    """The torch device of that name; refused if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"{named('device', name)}: {str(error).splitlines()[0]}; cpu always works") from error
    return device


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within the block, the first Ctrl-C or SIGTERM only asks to stop; the function tells whether it came.

    The current round is finished and saved. A second Ctrl-C ends the process at once.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        # torchrun forwards a SIGTERM that its processes may have received already
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
