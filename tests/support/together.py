"""Several processes that share the devices, as under torchrun, but forked, which is faster."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drdsgd.cli import main
from drdsgd.engines.distributed import World, join
from tests.support.killing import process


class Said(NamedTuple):
    """How every process ended, and what each printed."""

    status: list[int | None]
    text: list[str]

    @property
    def lines(self) -> list[str]:
        """The error lines of all."""
        lines = [line for text in self.text for line in text.splitlines()]
        return [line.removeprefix("drdsgd: ") for line in lines if line.startswith("drdsgd: ")]


def free_port() -> int:
    """A free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Together:
    """Started processes."""

    def __init__(self, size: int, folder: Path, target: Callable[..., None], arguments: Sequence[Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.logs = [folder / f"rank-{rank}.log" for rank in range(size)]
        self.children = [
            process(_begin, Path.cwd(), rank, size, port, str(log), target, arguments[rank])
            for rank, log in enumerate(self.logs)
        ]

    def end(self, seconds: float = 120.0) -> Said:
        for child in self.children:
            child.join(seconds)
        hanging = [child for child in self.children if child.exitcode is None]
        for child in hanging:
            child.kill()
        said = Said([child.exitcode for child in self.children], [log.read_text() for log in self.logs])
        assert not hanging, said
        return said


def programs(folder: Path, *arguments: Sequence[object]) -> Together:
    """`drdsgd ARGUMENTS`, one process per list of arguments."""
    return Together(len(arguments), folder, _program, [[str(one) for one in some] for some in arguments])


def worlds(size: int, folder: Path, target: Callable[..., None], *arguments: Any) -> Said:
    """target(world, ...) in each of several processes."""
    return Together(size, folder, _in_world, [(target, arguments)] * size).end()


def _begin(folder: Path, rank: int, size: int, port: int, log: str, target: Callable[..., None], argument: Any) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    os.chdir(folder)
    target(argument)


def _program(arguments: list[str]) -> None:
    main(arguments)


def _in_world(what: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    target, arguments = what
    world: World = join("gloo", "cpu", 60.0)
    try:
        target(world, *arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without waiting for the others
    world.leave()
