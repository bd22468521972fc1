"""Processes that are killed, or kill themselves, at a chosen moment of a run.

They are forked from a server that has imported everything, including what torch imports on first use, so each starts in
a tenth of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from safetensors.torch import save_file

from drdsgd.cli import main
from drdsgd.core.algorithms import dsgd
from drdsgd.data.devices import synthetic
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import run
from drdsgd.models import logistic
from drdsgd.topology.graphs import ring
from drdsgd.training import checkpoint
from drdsgd.training.loop import trajectory
from drdsgd.versions import versions
from tests.support.program import small

SERVER = multiprocessing.get_context("forkserver")
# one server for all tests of a process, started by the first test that needs it; it loads what any of them needs
SERVER.set_forkserver_preload(
    ["tests.support.killing", "tests.support.scenarios", "drdsgd.report", "drdsgd.cli.progress"]
)
# only a forward pass: after a backward pass a process cannot be forked on machines with GPUs
next(iter(trajectory(logistic((20,), 10), synthetic(4), ring(4), dsgd(0.1), rounds=1, batch_size=2)))
versions()


def process(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A started process."""
    child = SERVER.Process(target=target, args=arguments, daemon=True)
    child.start()
    return child


def outcome(target: Callable[..., None], *arguments: Any) -> int | None:
    """The exit code of a process, negative if it was killed."""
    child = process(target, *arguments)
    child.join(60)
    return child.exitcode


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def program(arguments: list[str], log: Path) -> None:
    """`drdsgd ARGUMENTS`, with its output in a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    main(arguments)


def killed_at_event(path: Path, resume: bool, event: int) -> None:
    """A run that dies when it touches its folder for the `event`-th time (opens or renames a file)."""
    seen = 0

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if name in ("open", "os.rename") and str(arguments[0]).startswith(str(path)):
            seen += 1
            if seen == event:
                die()

    sys.addaudithook(hook)
    run(small(), path, resume=resume)


def killed_writing_a_checkpoint(path: Path, call: int) -> None:
    """A run that dies after writing half of its `call`-th checkpoint."""
    calls = 0

    def half(tensors: Any, file: Path, about: dict[str, str]) -> None:
        nonlocal calls
        calls += 1
        save_file(tensors, file, about)
        if calls == call:
            os.truncate(file, file.stat().st_size // 2)
            die()

    with patch.object(checkpoint, "save_file", half):
        run(small(), path)


def killed_writing_a_line(path: Path, call: int, part: float) -> None:
    """A run that dies after writing a part of its `call`-th evaluation."""
    calls, append = 0, Folder.append

    def partly(folder: Folder, metrics: Any) -> None:
        nonlocal calls
        calls += 1
        before = folder.metrics.stat().st_size
        append(folder, metrics)
        if calls == call:
            size = folder.metrics.stat().st_size
            # at least without its line end
            os.truncate(folder.metrics, min(size - 1, before + int(part * (size - before))))
            die()

    with patch.object(Folder, "append", partly):
        run(small(), path)
