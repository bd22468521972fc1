"""Networks for tests: links that are joined in memory, and deployments whose devices are threads of this process."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drdsgd.engines.local import SingleProcess
from drdsgd.errors import InputError, Interrupted
from drdsgd.experiments.config import Experiment
from drdsgd.network import deployment, node
from drdsgd.network.deployment import Place
from drdsgd.network.links import Links
from drdsgd.network.messages import HEADER_BYTES, Header, Kind, pack
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress

Deliver = Callable[[int, int, bytes], bool]
SMALL: dict[str, Any] = {
    "dataset": "synthetic", "devices": 5, "graph": "ring", "rounds": 20, "eval_every": 10, "checkpoint_every": 10,
    "dtype": "float64", "eta": 0.1, "batch_size": 8, "threads": 1,
}  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def joined_links(
    edges: Sequence[tuple[int, int]],
    *,
    size: int = 4,
    deliver: Deliver = lambda i, j, header: True,
    meet: bool = True,
    latency: float = 0.0,
    **options: Any,
) -> dict[int, Links]:
    """The links of devices that are joined in memory; `deliver(sender, receiver, header)` may lose a message.

    With `latency` messages are on their way for so many seconds, in order.
    """
    numbers = sorted({i for edge in edges for i in edge})
    neighbours = {i: {j: f"device-{j}" for edge in edges if i in edge for j in edge if j != i} for i in numbers}
    made: dict[int, Links] = {}

    ways = {way: ThreadPoolExecutor(1) for i, j in edges for way in ((i, j), (j, i))} if latency else {}

    def sending(i: int) -> Callable[[int, bytes, bytes | bytearray], None]:
        def send(j: int, header: bytes, payload: bytes | bytearray) -> None:
            if not deliver(i, j, header):
                return
            sent, due = bytes(payload), time.monotonic() + latency  # the sender uses its memory again

            def arrive() -> None:
                time.sleep(max(0.0, due - time.monotonic()))
                made[j].receive(i, header, lambda: sent, len(sent))

            if ways:
                ways[i, j].submit(arrive)
            else:
                made[j].receive(i, header, lambda: sent, len(sent))

        return send

    settings: dict[str, Any] = {
        "digest": b"d" * 32,
        "dtype": torch.float64,
        "most": size,
        "rounds": 100,
        "deadline": 5.0,
    } | options
    for i in numbers:
        made[i] = Links(i, neighbours[i], send=sending(i), size=size, **settings)
    for i, links in made.items():
        for j in neighbours[i]:
            links.here(j)
    if meet:
        for links in made.values():
            links.meet(0.01 + 100 * latency)
        assert all(links.meet(0.01 + 100 * latency) == [] for links in made.values())
    for links in made.values():
        links.running = True
    return made


def hostile(draw: random.Random, sender: int, size: int, count: int) -> Iterator[tuple[bytes, bytes, int]]:
    """So many messages that nobody should send: header, what its payload repeats, and the payload's length.

    None of them is one that could be used: models are of `size` float64, exchanged once or twice in a round.
    """
    good = pack(Header(Kind.DATA, sender, 0, 3, size), torch.float64)
    for n in range(count):
        kind, length = draw.randrange(6), draw.choice([0, 8, 8 * size, 8 * size + 1])
        header = bytearray(good)
        if kind == 0:  # fuzzed header
            header[draw.randrange(HEADER_BYTES)] = draw.randrange(256)
        elif kind == 1:  # no header at all
            header = bytearray(draw.randbytes(draw.randrange(2 * HEADER_BYTES)))
        elif kind == 2:  # huge lengths
            header, length = bytearray(pack(Header(Kind.DATA, sender, 0, 3, 2**40), torch.float64)), 2**43
        elif kind == 3:  # rounds of the future, valid in themselves
            header = bytearray(pack(Header(Kind.DATA, sender, n % 100, 3 + n % 7, size), torch.float64))
            length = 8 * size
        elif kind == 4:  # replays
            length = 8 * size
        yield bytes(header), b"\xff" * 8 if kind == 5 else bytes(8), length  # all ones: not a number


def all_at_once(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """What tasks return that run at the same time; the first exception of any is raised."""
    results: list[Any] = [None] * len(tasks)
    errors: list[BaseException] = []

    def do(i: int) -> None:
        try:
            results[i] = tasks[i]()
        except BaseException as error:  # it is raised below
            errors.append(error)

    threads = [threading.Thread(target=do, args=(i,)) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a device hangs"
    return results


def deploy(out: Path, *, settings: dict[str, Any] | None = None, **fields: Any) -> Experiment:
    """A deployment on this machine, at ports that are free, and its experiment."""
    e = Experiment(**(SMALL | fields))
    where = [Place(f"device-{i}", f"127.0.0.1:{port}") for i, port in enumerate(free_ports(e.devices))]
    options: dict[str, Any] = {"days": 1.0, "metrics_port": None, "deadline": 20.0, "patience": 20.0}
    deployment.make(e, out, where, **(options | (settings or {})))
    return e


def play(folder: Path, watch: Callable[[int, Progress], None] = lambda i, progress: None) -> list[node.Outcome | None]:
    """Run all devices of a deployment, each in a thread, to the end; None for one that was stopped."""

    def one(i: int, path: Path) -> node.Outcome | None:
        try:
            return node.run(path, threads=1, watch=lambda progress, _: watch(i, progress), in_own_process=False)
        except Interrupted:
            return None

    paths = deployment.devices(folder)
    return all_at_once([partial(one, i, path) for i, path in enumerate(paths)])


def models(folder: Path, count: int | None = None) -> Tensor:
    """The models of a deployment's devices, or of the first so many, in their checkpoints, [K, d]."""
    return torch.stack([_model(path) for path in deployment.devices(folder)[:count]])


def one_of(number: int) -> SingleProcess:
    """The process of one device, as far as its checkpoint is concerned."""
    ranks = SingleProcess(1)
    ranks.rows = torch.tensor([number])
    return ranks


def _model(path: Path) -> Tensor:
    ranks = one_of(deployment.load(path).number)
    for _ in range(20):  # one that is at work may put another in its place meanwhile
        with suppress(InputError):
            progress = checkpoint.load(path.parent / "run" / "checkpoint", ranks)
            if progress is not None:
                return progress.state.theta[0]
        time.sleep(0.1)
    raise AssertionError(f"no checkpoint of {path}")
