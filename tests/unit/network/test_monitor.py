"""A device's log, status and metrics."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import socket
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from drdsgd.core.round import State
from drdsgd.network.deployment import Device, Neighbour
from drdsgd.network.messages import Header, Kind, pack
from drdsgd.network.monitor import BURST, LARGEST, LONGEST, Journal, Status, serve
from drdsgd.training.loop import Progress
from drdsgd.training.metrics import Metrics, Spread
from tests.support.deployments import free_ports, joined_links
from tests.support.program import wait_for
from tests.support.refusing import message

pytestmark = pytest.mark.slow

GAUGES = [
    "drdsgd_accuracy_percent", "drdsgd_certificate_expires_timestamp_seconds", "drdsgd_neighbour_connected",
    "drdsgd_neighbour_cut_off", "drdsgd_neighbour_round", "drdsgd_round", "drdsgd_rounds", "drdsgd_train_loss",
    "drdsgd_weight",
]  # fmt: skip
COUNTERS = [  # without the ending _total
    "drdsgd_bytes_sent", "drdsgd_exchange_seconds", "drdsgd_messages_dropped", "drdsgd_neighbour_missed",
    "drdsgd_round_seconds",
]  # fmt: skip


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_is_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_log_that_cannot_be_written_harms_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    (tmp_path / "log.jsonl").symlink_to("/dev/full")  # behaves like a full disk
    log = Journal(tmp_path / "log.jsonl", "device-0", stream)
    log("one")
    assert json.loads(stream.getvalue())["event"] == "one"
    stream.close()
    log("two")
    log.close()
    assert capsys.readouterr().err == ""


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


def test_strangers_cannot_crowd_out_other_events(tmp_path: Path) -> None:
    log = Journal(tmp_path / "log.jsonl", "device-0")
    for _ in range(10 * int(BURST)):
        log("connection refused", why="no certificate")
    log("neighbour is here", neighbour="b")
    log.close()
    events = [line["event"] for line in lines(tmp_path / "log.jsonl")]
    assert events.count("connection refused") <= BURST + 50 and events[-1] == "neighbour is here"


def test_a_log_never_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a stranger knocks, there are at most two files of limited size."""
    now = [0.0]
    monkeypatch.setattr("drdsgd.network.monitor.time.monotonic", lambda: now[0])
    monkeypatch.setattr("drdsgd.network.monitor.LARGEST", 10_000)
    log = Journal(tmp_path / "log.jsonl", "device-0")
    for n in range(500):
        now[0] += 1
        log("connection refused", why="x" * 10 * LONGEST, number=n)
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.1"]
    assert all(0 < path.stat().st_size <= 10_000 for path in tmp_path.iterdir())
    kept = [line for name in ("log.jsonl.1", "log.jsonl") for line in lines(tmp_path / name)]
    assert [line["number"] for line in kept] == list(range(500 - len(kept), 500))
    assert all(line["why"] == "x" * LONGEST for line in kept)
    assert LARGEST == 10_000_000


def test_devices_in_one_process_share_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = [Journal(tmp_path / f"{i}.jsonl", "device-0") for i in range(2)]
    for i, log in enumerate(logs):
        log("started", round=i)
    logs[0].close()
    logs[1]("stopped", round=5)
    logs[1].close()
    assert [line["round"] for line in lines(tmp_path / "0.jsonl")] == [0]
    assert [line["round"] for line in lines(tmp_path / "1.jsonl")] == [1, 5]
    assert not caplog.records and "device-0" not in logging.Logger.manager.loggerDict


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
    with serve(f"127.0.0.1:{port}", status):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        message(lambda: serve(f"127.0.0.1:{port}", status).__enter__(), "metrics at 127.0.0.1", "device.toml")
    kinds = {name: family.type for name, family in families.items()}
    assert kinds == dict.fromkeys(GAUGES, "gauge") | dict.fromkeys(COUNTERS, "counter")
    samples = {(sample.name, *sample.labels.values()): sample.value for f in families.values() for sample in f.samples}
    assert samples["drdsgd_round",] == 10 and samples["drdsgd_bytes_sent_total",] == 320
    assert samples["drdsgd_neighbour_connected", "device-1"] == 1
    assert samples["drdsgd_neighbour_connected", "device-2"] == 0
    assert samples["drdsgd_neighbour_round", "device-1"] == 7
    assert samples["drdsgd_messages_dropped_total", "device-1", "no header"] == 1
    assert samples["drdsgd_certificate_expires_timestamp_seconds",] == 1893456000
    wait_for(lambda: _refuses(port))


def test_devices_in_one_process_serve_their_own_metrics(status: Status) -> None:
    other = dataclasses.replace(status, round=11)
    ports = free_ports(2)
    with serve(f"127.0.0.1:{ports[0]}", status), serve(f"127.0.0.1:{ports[1]}", other):
        for port, there in zip(ports, (10, 11), strict=True):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                assert f"\ndrdsgd_round {there}.0\n" in answer.read().decode()


def test_a_client_that_says_nothing_does_not_hold_up_the_end(status: Status) -> None:
    port = free_ports(1)[0]
    begun = time.monotonic()
    with serve(f"127.0.0.1:{port}", status):
        client = socket.create_connection(("127.0.0.1", port))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.status == 200
    assert time.monotonic() - begun < 5 and _refuses(port)
    client.close()


def _refuses(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1).close()
    except urllib.error.URLError:
        return True
    return False
