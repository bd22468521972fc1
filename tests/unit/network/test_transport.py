"""Access: a real device in its own process, and intruders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import zenoh

from drdsgd.network import certificates, deployment
from drdsgd.network.messages import Header, Kind, pack
from drdsgd.network.transport import configuration
from tests.support.deployments import deploy
from tests.support.program import wait_for

# all tests share one victim
pytestmark = [pytest.mark.xdist_group("intruders"), pytest.mark.slow]


class Victim:
    """A device that waits for its neighbours, 1 and 3 of a ring of four."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "device-0"
        self.device = deployment.load(self.path)

    def log(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log with this event."""
        lines = (self.path / "run" / "log.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def neighbour(self, name: str) -> dict[str, Any]:
        """A neighbour in its status."""
        found: dict[str, Any] = json.loads((self.path / "run" / "status.json").read_bytes())["neighbours"][name]
        return found

    def time(self) -> float:
        """When it last wrote its status."""
        return float(json.loads((self.path / "run" / "status.json").read_bytes())["time"])

    def key(self, sender: str) -> str:
        return f"{self.device.deployment}/{sender}/device-0/message"


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("intruders") / "net"
    deploy(folder, devices=4, settings={"patience": 600.0})
    process = subprocess.Popen(
        [sys.executable, "-m", "drdsgd", "node", str(folder / "device-0"), "--threads", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RUST_LOG": "off"},  # whatever a host sets for other programs, refusals are seen
    )
    try:
        found = Victim(folder)
        wait_for(lambda: (found.path / "run" / "log.jsonl").exists() and bool(found.log("started")))
        yield found
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def intruder(victim: Victim, change: Callable[[dict[str, Any]], None], as_: str = "device-1") -> Iterator[Any]:
    """Connects to the victim with another device's files, and without access control of its own."""
    device, folder = deployment.load(victim.folder / as_), victim.folder / as_
    config = configuration(device, folder, 10_000)
    config["access_control"] = {"enabled": False}
    config["listen"] = {"endpoints": []}
    config["connect"]["endpoints"] = [f"tls/{victim.device.address}"]
    change(config["transport"]["link"]["tls"])
    session: Any = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    try:
        yield session
    finally:
        session.close()


def with_files(folder: Path, key: Any, certificate: Any) -> Callable[[dict[str, Any]], None]:
    """Use this key and certificate."""
    folder.mkdir()
    certificates.write(folder / "k", key)
    certificates.write(folder / "c", certificate)

    def change(tls: dict[str, Any]) -> None:
        for end in ("listen", "connect"):
            tls[f"{end}_private_key"], tls[f"{end}_certificate"] = str(folder / "k"), str(folder / "c")

    return change


def without(tls: dict[str, Any]) -> None:
    """Use no certificate."""
    tls["enable_mtls"] = False
    for name in [name for name in tls if name.endswith(("private_key", "certificate")) and not name.startswith("root")]:
        del tls[name]


def write(session: Any, key: str, sender: int) -> bool:
    """Send a message that the victim would count as refused if it arrived."""
    session.put(key, b"", attachment=pack(Header(Kind.DATA, sender + 1, 0, 0, 1), torch.float64))
    return True


def test_a_neighbour_gets_in(victim: Victim) -> None:
    """Otherwise the tests below would prove nothing."""
    with intruder(victim, lambda tls: None) as session:
        wait_for(lambda: bool(list(session.info.links())))
        wait_for(lambda: write(session, victim.key("device-1"), 1) and victim.neighbour("device-1")["dropped"] != {})
    assert set(victim.neighbour("device-1")["dropped"]) == {"another sender"}


def test_no_certificate(victim: Victim) -> None:
    with intruder(victim, without) as session:
        wait_for(lambda: any("no certificates" in line["why"] for line in victim.log("connection refused")))
        assert not list(session.info.links())


def test_another_authority(victim: Victim, tmp_path: Path) -> None:
    key = certificates.make_key()
    signed = certificates.make_authority("another", 1).sign("device-1", "127.0.0.1", key.public_key(), 1)
    with intruder(victim, with_files(tmp_path / "files", key, signed)) as session:
        wait_for(lambda: any("UnknownIssuer" in line["why"] for line in victim.log("connection refused")))
        assert not list(session.info.links())


def test_an_expired_certificate(victim: Victim, tmp_path: Path) -> None:
    authority = certificates.open_authority(victim.folder / "ca.key", victim.folder / "ca.pem")
    key = certificates.make_key()
    signed = authority.sign("device-1", "127.0.0.1", key.public_key(), days=-1 / 1440)
    with intruder(victim, with_files(tmp_path / "files", key, signed)) as session:
        wait_for(lambda: any("xpired" in line["why"] for line in victim.log("connection refused")))
        assert not list(session.info.links())


def test_a_certificate_of_one_that_is_no_neighbour(victim: Victim) -> None:
    with intruder(victim, lambda tls: None, as_="device-2") as session:
        wait_for(lambda: bool(victim.log("stranger may do nothing")))
        heard: list[str] = []
        of_victim = f"{victim.device.deployment}/device-0"
        session.declare_subscriber(f"{of_victim}/**", lambda sample: heard.append(str(sample.key_expr)))
        for sender in (1, 2, 3):
            write(session, victim.key(f"device-{sender}"), sender)
        before = victim.time()
        # a real neighbour is there, so that the victim says hello
        with intruder(victim, lambda tls: None) as neighbour:
            told: list[str] = []
            neighbour.declare_subscriber(
                f"{of_victim}/device-1/message", lambda sample: told.append(str(sample.key_expr))
            )
            token = neighbour.liveliness().declare_token(f"{victim.device.deployment}/device-1/device-0/alive")
            wait_for(lambda: bool(told))
            token.undeclare()
        wait_for(lambda: victim.time() > before + 1)
    assert victim.log("stranger may do nothing")[0]["name"] == "device-2" and heard == []
    assert victim.neighbour("device-3")["dropped"] == {}


def test_a_neighbour_that_listens_to_what_is_for_another(victim: Victim) -> None:
    with intruder(victim, lambda tls: None) as session, intruder(victim, lambda tls: None, as_="device-3") as other:
        heard: list[str] = []
        prefix = victim.device.deployment
        for key in (
            f"{prefix}/device-0/**",
            f"{prefix}/device-0/device-3/message",
            f"{prefix}/device-0/device-1/message",
        ):
            session.declare_subscriber(key, lambda sample: heard.append(str(sample.key_expr)))
        tokens = [
            one.liveliness().declare_token(f"{prefix}/{name}/device-0/alive")
            for one, name in ((other, "device-3"), (session, "device-1"))
        ]
        wait_for(lambda: f"{prefix}/device-0/device-1/message" in heard)  # its own hello
        before = victim.time()
        wait_for(lambda: victim.time() > before + 2)  # by now there were several for device-3
        for token in tokens:
            token.undeclare()
    assert {*heard} == {f"{prefix}/device-0/device-1/message"}


def test_a_neighbour_that_writes_anothers_key(victim: Victim) -> None:
    with intruder(victim, lambda tls: None) as session:
        wait_for(lambda: bool(list(session.info.links())))
        wait_for(
            lambda: (
                write(session, victim.key("device-3"), 3)
                and write(session, victim.key("*"), 3)
                and bool(victim.log("write refused"))
            )
        )
    assert victim.log("write refused")[0]["name"] == "device-1"
    assert victim.neighbour("device-3") == {
        "connected": False, "cut_off": False, "round": None, "lag": None, "missed": 0, "dropped": {}
    }  # fmt: skip
