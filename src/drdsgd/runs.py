"""One experiment into one folder: build, train, record, checkpoint, resume."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from drdsgd import checkpoint, records
from drdsgd.algorithms import Algorithm
from drdsgd.errors import Diverged, InputError, Interrupted
from drdsgd.experiment import Experiment, make_algorithm, make_data, make_graph, make_mixing, make_model
from drdsgd.mixing import rho_over_time
from drdsgd.options import spelling
from drdsgd.records import Folder, Record
from drdsgd.training import Progress, trajectory

__all__ = ["check", "check_device", "check_unchanged", "run", "stop_requests"]


def run(
    e: Experiment,
    path: Path,
    *,
    resume: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Record:
    """Run an experiment into a folder, or continue it there; `watch` sees every round.

    A folder with a run in it is refused unless `resume` is set; then the experiment must be the same. What happens
    to the process at any moment, the folder can be resumed, and ends with the same metrics. An interruption
    (Ctrl-C, or `stop` that says so after a round) leaves a checkpoint of the last whole round; a run that diverges
    says so in its summary.

    >>> import tempfile
    >>> e = Experiment(dataset="synthetic", devices=4, rounds=5, graph="ring")
    >>> run(e, Path(tempfile.mkdtemp()) / "first").final.round
    5
    """
    folder = Folder(path)
    with folder.lock():
        _check(folder, e, resume)
        if folder.status != "unfinished":
            return records.read(path)

        graph, data = make_graph(e), make_data(e).to(check_device(e.device))
        mixing, model = make_mixing(e, graph), make_model(e, data)
        network = records.network(graph, data, rho_over_time(mixing))
        start = checkpoint.load(folder.checkpoint, e.device) if folder.checkpoint.exists() else None
        # all that can be wrong with the input is refused here, before anything is written
        steps = trajectory(
            model, data, mixing, make_algorithm(e),
            rounds=e.rounds, batch_size=e.batch_size, seed=e.seed, eval_every=e.eval_every,
            reference=e.reference, execution=e.execution, threads=e.threads, start=start,
        )  # fmt: skip
        t = -1
        if start is None:
            folder.start(e, network)
        else:
            folder.check_network(network)
            t = start.state.t
        folder.rewind(t, e)
        with stop_requests() as asked:
            try:
                for progress in steps:
                    t = progress.state.t
                    if progress.metrics is not None:
                        folder.append(progress.metrics)
                    watch(progress)
                    stopping = asked() or stop()
                    # only after the metrics: a checkpoint promises that all lines up to its round are there
                    if t % e.checkpoint_every == 0 or t == e.rounds or stopping:
                        checkpoint.save(folder.checkpoint, progress)
                    if stopping:
                        break
            except Diverged as error:
                folder.finish("diverged", str(error))
                raise
            if asked() or stop():  # also after the last round: a comparison must not go on with its next run
                raise Interrupted(f"stopped after round {t} of {e.rounds}")
        folder.finish("finished", "")
        return records.read(path)


def check(e: Experiment) -> None:
    """Refuse an experiment whose graph, data, model or algorithm can't be made; writes nothing."""
    mixing, algorithm = make_mixing(e, make_graph(e)), make_algorithm(e)
    if isinstance(algorithm, Algorithm):
        algorithm.check(mixing)
    make_model(e, make_data(e).to(check_device(e.device)))


def _check(folder: Folder, e: Experiment, resume: bool) -> None:
    """Refuse to overwrite a run, to resume none, and to resume one with another experiment."""
    if not resume:
        if folder.config.exists():
            raise InputError(
                f"{folder.path} already holds a run ({folder.status}); continue it with --resume, or use another --out"
            )
        return
    if not folder.config.exists():
        raise InputError(f"there is no run to resume in {folder.path}: it has no config.toml")
    check_unchanged(folder, e.model_dump())


def check_unchanged(folder: Folder, fields: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other values of these fields than it began with."""
    stored = records.read_config(folder.config).model_dump()
    for name, now in fields.items():
        before = stored.get(name, now)
        if before != now:
            raise InputError(
                f"{spelling(name)} {now}: the run in {folder.path} has {before}; resume it unchanged, "
                "or start another with another --out"
            )


def check_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}; cpu always works") from error
    return device


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C or SIGTERM only asks to stop; the returned function says whether it did.

    The round at work is finished and saved. A second Ctrl-C ends at once, as it always does.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
