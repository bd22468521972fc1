"""The program in this process, small experiments for it, and the contents of a run's folder."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from drdsgd.cli import main
from drdsgd.engines.local import SingleProcess
from drdsgd.experiments import records
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import run
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress

FIELDS: dict[str, Any] = {
    "dataset": "synthetic", "devices": 4, "rounds": 6, "graph": "ring", "eval_every": 2,
    "checkpoint_every": 2, "threads": 1,
}  # fmt: skip
SMALL = [word for name, value in FIELDS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


class Said(NamedTuple):
    """How the program ended and what it printed."""

    status: int
    out: str
    err: str


def drdsgd(*arguments: str | Path) -> Said:
    """`drdsgd ARGUMENTS` in this process."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            assert isinstance(end.code, int)
            status = end.code
    return Said(status, out.getvalue(), err.getvalue())


def one_line(said: Said, status: int = 2) -> str:
    """The only line on the program's standard error; it must have ended with this status."""
    assert said.status == status, said
    assert said.err.startswith("drdsgd: ") and said.err.endswith("\n") and len(said.err.splitlines()) == 1, said.err
    return said.err.removeprefix("drdsgd: ").rstrip("\n")


def refused(*arguments: str | Path) -> str:
    """The program's error for arguments that it must refuse."""
    said = drdsgd(*arguments)
    assert said.out == ""
    return one_line(said)


def small(**fields: Any) -> Experiment:
    """A small experiment."""
    return Experiment(**{**FIELDS, **fields})


class Crash(Exception):
    """An exception that no code of the package expects."""


def crashing_at(t: int) -> Callable[[Progress], None]:
    """For `run(watch=...)`: a crash in round t, after its evaluation and before its checkpoint."""

    def watch(progress: Progress) -> None:
        if progress.state.t == t:
            raise Crash

    return watch


def begun(path: Path, t: int = 5, **fields: Any) -> Path:
    """The folder of a small run that crashed in round t."""
    with contextlib.suppress(Crash):
        run(small(**fields), path, watch=crashing_at(t))
    assert Folder(path).status == "unfinished"
    return path


def contents(path: Path) -> dict[str, bytes]:
    """All files at or below a path."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def evaluations(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without seconds, the only values that differ between two equal runs."""
    lines = [json.loads(line) for line in Folder(path).metrics.read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "exchange_seconds")} for line in lines
    ]


def saved(path: Path) -> Progress:
    """The checkpoint in a folder, whatever number of processes wrote it."""
    K = records.read_config(Folder(path).config).devices
    found = checkpoint.load(Folder(path).checkpoint, SingleProcess(K), regroup=True)
    assert found is not None
    return found


def is_saved(path: Path) -> bool:
    """Whether there is a checkpoint in a run's folder."""
    return bool(checkpoint.parts(Folder(path).checkpoint))


def tensors(path: Path) -> dict[str, Tensor]:
    """All tensors in the run's checkpoint, and its round."""
    state = saved(path).state
    return {"theta": state.theta, **state.objective, **state.optimizer}


def assert_same_run(one: Path, other: Path) -> None:
    """Two folders hold the same run: metrics line by line, models bit by bit."""
    assert Folder(one).status == Folder(other).status == "finished"
    assert evaluations(one) == evaluations(other)
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    assert all(a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a)
    assert Folder(one).config.read_bytes() == Folder(other).config.read_bytes()
    assert Folder(one).network.read_bytes() == Folder(other).network.read_bytes()


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait for something that must happen soon."""
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within a minute")
