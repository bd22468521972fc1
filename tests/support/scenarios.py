"""Devices as processes, each at an address of its own, that are killed, cut off from each other, or lose messages.

Where the machine allows it every device has a network namespace, in one of two halves that a cable joins; else all are
on the loopback interface.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import torch
import zenoh

from drdsgd.errors import Interrupted
from drdsgd.network import deployment, node
from drdsgd.network.deployment import Place
from drdsgd.network.messages import KIND_AT, Header, Kind, pack
from drdsgd.network.transport import Transport, configuration
from tests.support.deployments import free_ports, hostile
from tests.support.killing import SERVER

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Faults:
    """What happens to a device's messages, and how long it takes for a round at least.

    Of its messages this part is lost, and this part comes so many seconds late. While the file `cut` is
    there, nothing gets to those who are beyond it. A hostile one takes no part, and sends so many messages that nobody
    should, of models with so many numbers; an absent one does nothing at all.
    """

    lost: float = 0.0
    late: float = 0.0
    late_by: float = 0.0
    cut: Path | None = None
    beyond: frozenset[int] = frozenset()
    slow: float = 0.0
    hostile: int = 0
    size: int = 0
    absent: bool = False


NONE = Faults()


class Halves:
    """Namespaces for so many devices in two halves, or nothing where they are not allowed."""

    def __init__(self, count: int) -> None:
        self.names = [f"drdsgd-{os.getpid()}-{i}" for i in range(count)]
        self.switches = [f"drdsgd-{os.getpid()}-{half}" for half in "ab"]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self.there = self._made()
        if not self.there:
            self.addresses = [f"127.77.0.{i + 1}" for i in range(count)]

    def _made(self) -> bool:
        def ip(*words: str) -> None:
            subprocess.run(["ip", *words], check=True, capture_output=True)

        try:
            for switch in self.switches:
                ip("netns", "add", switch)
                ip("-n", switch, "link", "add", "bridge", "type", "bridge")
                ip("-n", switch, "link", "set", "bridge", "up")
            a, b = self.switches
            ip("link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b)
            for switch in self.switches:
                ip("-n", switch, "link", "set", "cable", "master", "bridge", "up")
            for i, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
                switch = self.switches[i * 2 // len(self.names)]
                ip("netns", "add", name)
                ip("link", "add", f"v{i}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("-n", switch, "link", "set", f"v{i}", "master", "bridge", "up")
                ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError):
            self.remove()
            return False
        return True

    def cable(self, state: str) -> None:
        """Pull the cable between the halves (down), or plug it in (up)."""
        subprocess.run(["ip", "-n", self.switches[0], "link", "set", "cable", state], check=True, capture_output=True)

    def remove(self) -> None:
        """Leave nothing behind."""
        for name in (*self.names, *self.switches):
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _device(path: Path, namespace: str | None, faults: Faults) -> None:
    """The life of a device's process."""
    if (measuring := coverage.Coverage.current()) is not None:
        measuring.stop()  # ten processes on two cores have no time for it
    if namespace is not None:
        with Path("/run/netns", namespace).open() as file:
            assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0
    if faults.hostile:
        _harass(path, faults)
    draw = random.Random(str(path))

    class Faulty(Transport):
        def send(self, j: int, header: bytes, payload: bytes | bytearray) -> None:
            if faults.cut is not None and j in faults.beyond and faults.cut.exists():
                return
            luck = draw.random()
            if luck < faults.lost:
                return
            if luck < faults.lost + faults.late:
                threading.Timer(faults.late_by, super().send, (j, header, bytes(payload))).start()
                return
            super().send(j, header, payload)

    with contextlib.suppress(Interrupted):
        node.run(path, threads=1, watch=lambda progress, missing: time.sleep(faults.slow), carrier=Faulty)


def _harass(path: Path, faults: Faults) -> None:
    """Send hostile messages to all neighbours of a device, with its certificate and all that they need to believe it.

    Says in the file "sent" that it is done, and stays until it is killed.
    """
    device, folder = deployment.load(path), path.parent
    config = configuration(device, folder, 2**24)
    config["access_control"] = {"enabled": False}
    session: Any = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    digests: dict[str, bytes] = {}

    def hear(sample: Any) -> None:
        header = sample.attachment.to_bytes()
        if header[KIND_AT] == Kind.HELLO:
            digests[str(sample.key_expr).split("/")[1]] = sample.payload.to_bytes()

    prefix, me = device.deployment, device.name
    publishers, kept = [], []
    for n in device.neighbours:
        kept.append(session.declare_subscriber(f"{prefix}/{n.name}/{me}/message", hear))
        kept.append(session.liveliness().declare_token(f"{prefix}/{me}/{n.name}/alive"))
        publishers.append(
            session.declare_publisher(
                f"{prefix}/{me}/{n.name}/message", congestion_control=zenoh.CongestionControl.BLOCK
            )
        )
    while len(digests) < len(device.neighbours):
        time.sleep(0.01)
    for publisher in publishers:
        hello = pack(Header(Kind.HELLO, device.number, 0), torch.float64)
        publisher.put(next(iter(digests.values())), attachment=hello)
    for header, content, length in hostile(random.Random(1), device.number, faults.size, faults.hostile):
        for publisher in publishers:
            publisher.put(content * (min(length, 8 * faults.size) // 8), attachment=header)
    for publisher in publishers:  # at last as much at once as nobody should take
        publisher.put(bytes(2**24), attachment=pack(Header(Kind.DATA, device.number, 0, 3, 2**21), torch.float64))
    (folder / "sent").touch()
    time.sleep(600)


class Network:
    """The processes of a deployment's devices."""

    def __init__(self, folder: Path, halves: Halves, faults: Sequence[Faults]) -> None:
        self.folder, self.halves, self.faults = folder, halves, faults
        self.paths = deployment.devices(folder)
        self.processes = dict[int, Any]()

    def start(self, i: int) -> None:
        namespace = self.halves.names[i] if self.halves.there else None
        self.processes[i] = SERVER.Process(target=_device, args=(self.paths[i], namespace, self.faults[i]))
        self.processes[i].start()

    def kill(self, i: int) -> None:
        self.processes[i].kill()
        self.processes[i].join()

    def round(self, i: int) -> int:
        """Where a device was, a second ago at most."""
        try:
            return int(json.loads((self.paths[i].parent / "run" / "status.json").read_bytes())["round"])
        except FileNotFoundError:
            return 0

    def peak_bytes(self, i: int) -> int:
        """The most memory that a device's process has had."""
        lines = Path(f"/proc/{self.processes[i].pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

    def log(self, i: int) -> list[str]:
        """The events in a device's log."""
        lines = (self.paths[i].parent / "run" / "log.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def wait(self) -> None:
        """For all to end by themselves."""
        for i, process in self.processes.items():
            process.join(120)
            assert not process.is_alive(), f"device {i} hangs"


@contextmanager
def network(folder: Path, e: Any, faults: Faults | Sequence[Faults] = NONE, **settings: Any) -> Iterator[Network]:
    """All devices of an experiment, as processes that have begun; none is left when the block ends."""
    halves = Halves(e.devices)
    try:
        ports = [7447] * e.devices if halves.there else free_ports(e.devices)
        where = [Place(f"device-{i}", f"{halves.addresses[i]}:{port}") for i, port in enumerate(ports)]
        options: dict[str, Any] = {"days": 1.0, "metrics_port": None, "deadline": 20.0, "patience": 30.0}
        deployment.make(e, folder, where, **(options | settings))
        made = Network(folder, halves, [faults] * e.devices if isinstance(faults, Faults) else faults)
        try:
            for i in range(e.devices):
                if not made.faults[i].absent:
                    made.start(i)
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
                process.join()
    finally:
        halves.remove()
