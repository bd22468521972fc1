"""What one can see of a device."""

from __future__ import annotations

import io
import json
import os
import re
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from drdsgd.core.round import State
from drdsgd.network.deployment import Device, Neighbour
from drdsgd.network.messages import Header, Kind, pack
from drdsgd.network.monitor import BURST, CarrierLines, Journal, Status, carrier_log, serve
from drdsgd.training.loop import Progress
from drdsgd.training.metrics import Metrics, Spread
from tests.support.deployments import free_ports, joined_links
from tests.support.program import wait_for
from tests.support.refusing import message

pytestmark = pytest.mark.slow


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_is_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    log = Journal(tmp_path / "run" / "log.jsonl", "device-0", sys.stderr)
    log("started", round=3)
    log("neighbour is gone", neighbour="b\nc")
    log.close()
    log("too late")
    first, second = lines(tmp_path / "run" / "log.jsonl")
    assert first["event"] == "started" and first["round"] == 3 and first["device"] == "device-0"
    assert datetime.fromisoformat(str(first["time"])).tzinfo == UTC
    assert second["neighbour"] == "b\nc"
    assert capsys.readouterr().err.splitlines() == [json.dumps(first), json.dumps(second)]


def test_a_log_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    stream = io.StringIO()
    (tmp_path / "log.jsonl").symlink_to("/dev/full")  # which says that the disk is full
    log = Journal(tmp_path / "log.jsonl", "device-0", stream)
    log("one")
    assert json.loads(stream.getvalue())["event"] == "one"
    stream.close()
    log("two")
    log.close()


def test_a_log_that_is_flooded_counts_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("drdsgd.network.monitor.time.monotonic", lambda: now[0])
    log = Journal(tmp_path / "log.jsonl", "device-0")
    for _ in range(int(BURST) + 50):
        log("knock")
    assert len(lines(tmp_path / "log.jsonl")) == BURST
    now[0] += 10
    log("knock")
    log.close()
    assert lines(tmp_path / "log.jsonl")[-1]["lines_left_out_before"] == 50


def test_what_the_carrier_prints_comes_into_the_log_and_what_python_prints_does_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said: list[tuple[str, dict[str, object]]] = []
    with carrier_log(lambda event, /, **about: said.append((event, about))):
        os.write(1, b"2026-01-01T00:00:00Z  WARN acc-0 ThreadId(05) zenoh_link_tls::unicast: peer sent no \xff.\n")
        os.write(1, b"something else\n")
        print("for the user")
    assert said == [("connection refused", {"why": "peer sent no \ufffd."})]
    print("and after")
    assert capfd.readouterr().out == "for the user\nand after\n"


def test_lines_that_tell_of_nothing() -> None:
    meaning = CarrierLines().meaning
    start = "2026-01-01T00:00:00Z"
    assert meaning(f"{start}  INFO ThreadId(01) zenoh::net::runtime: Using ZID: 1f") is None
    assert (
        meaning(f"{start} TRACE rx-0 ThreadId(10) zenoh::acl: Using cached result: 1f is authorized to Put on a")
        is None
    )
    assert meaning("") is None
    cached = (
        f"{start} TRACE rx-0 ThreadId(10) zenoh::acl: Using cached result: 1f is unauthorized to Put (ingress) on a/b"
    )
    assert meaning(cached) == ("write refused", {"name": "1f", "key": "a/b"})
    coloured = f"\x1b[2m{start}\x1b[0m \x1b[31mERROR\x1b[0m ThreadId(01) \x1b[2mzenoh::x\x1b[0m\x1b[2m:\x1b[0m no"
    assert meaning(coloured) == ("carrier", {"why": "no"})


@pytest.fixture
def status(tmp_path: Path) -> Status:
    neighbours = [Neighbour(number=j, name=f"device-{j}", address=f"127.0.0.1:{j}") for j in (1, 2)]
    device = Device(
        deployment="0" * 16, number=0, name="device-0", address="127.0.0.1:9", neighbours=neighbours, experiment={}
    )
    links = joined_links([(0, 1), (0, 2)])[0]
    links.receive(1, pack(Header(Kind.YES, 1, 7, 0), torch.float64), lambda: b"", 0)
    links.receive(1, b"", lambda: b"", 0)
    links.gone(2)
    metrics = Metrics(
        10, Spread.over([50.0]), Spread.over([50.0]), [50.0], 0.1, 1.5, [0.7], 40, 2.0,
    )  # fmt: skip
    state = State(10, torch.zeros(1, 4), {}, {})
    until = datetime(2030, 1, 1, tzinfo=UTC)
    return Status(
        device,
        100,
        links,
        tmp_path / "status.json",
        until,
        10,
        "running",
        metrics,
        Progress(state, 40, 2.0, None, 320, 0.5),
    )


def test_a_status_says_who_is_there_and_how_far(status: Status) -> None:
    status.write()
    said = json.loads(status.path.read_text())
    assert (said["state"], said["round"], said["rounds"], said["accuracy"]) == ("running", 10, 100, 50.0)
    assert said["neighbours"]["device-1"] == {
        "connected": True, "cut_off": False, "round": 7, "lag": 3, "missed": 0, "dropped": {"no header": 1}
    }  # fmt: skip
    assert said["neighbours"]["device-2"]["connected"] is False and said["neighbours"]["device-2"]["lag"] is None
    status.round = 11
    status.write()  # not again within a second
    assert json.loads(status.path.read_text())["round"] == 10
    status.write(now=True)
    assert json.loads(status.path.read_text())["round"] == 11


def test_prometheus_reads_it(status: Status) -> None:
    port = free_ports(1)[0]
    with serve(f"127.0.0.1:{port}", status.to_prometheus):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10)
        refused.value.close()
        message(lambda: serve(f"127.0.0.1:{port}", str).__enter__(), "metrics at 127.0.0.1", "device.toml")
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found = re.fullmatch(r"(drdsgd_[a-z_]+(?:\{[a-z]+=\"[^\"]*\"(?:,[a-z]+=\"[^\"]*\")*\})?) (\S+)", line)
            assert found, line
            samples[found[1]] = float(found[2])
    kinds = dict(re.findall(r"# TYPE (\S+) (gauge|counter)", text))
    assert {name.partition("{")[0] for name in samples} <= set(kinds)
    assert samples["drdsgd_round"] == 10 and samples["drdsgd_bytes_sent_total"] == 320
    assert samples['drdsgd_neighbour_connected{neighbour="device-1"}'] == 1
    assert samples['drdsgd_neighbour_connected{neighbour="device-2"}'] == 0
    assert samples['drdsgd_messages_dropped_total{neighbour="device-1",reason="no header"}'] == 1
    assert samples["drdsgd_certificate_expires_timestamp_seconds"] == 1893456000
    wait_for(lambda: _refuses(port))


def _refuses(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1).close()
    except urllib.error.URLError:
        return True
    return False
