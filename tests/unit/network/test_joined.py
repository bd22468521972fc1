"""The devices' records as one run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from drdsgd.experiments import records, run
from drdsgd.experiments.records import Folder
from drdsgd.network.joined import is_deployment, join
from tests.support.deployments import deploy, play
from tests.support.program import drdsgd
from tests.support.refusing import message


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment whose devices have run, and the same experiment in one process."""
    folder = tmp_path_factory.mktemp("joined")
    e = deploy(folder / "net", devices=4)
    play(folder / "net")
    run.run(e, folder / "local")
    return folder


def test_it_is_the_record_of_a_local_run(played: Path) -> None:
    assert is_deployment(played / "net") and not is_deployment(played / "local")
    together, alone = records.read(join(played / "net")), records.read(played / "local")
    assert together.status == alone.status == "finished"
    assert together.network.edges == alone.network.edges and together.network.rho == alone.network.rho
    assert together.network.label_counts == alone.network.label_counts
    assert [m.round for m in together.metrics] == [m.round for m in alone.metrics] == [0, 10, 20]
    for a, b in zip(together.metrics, alone.metrics, strict=True):
        assert a.local is not None and b.local is not None
        assert a.local.per_device == pytest.approx(b.local.per_device)
        assert a.weights == pytest.approx(b.weights) and a.losses == pytest.approx(b.losses)
        assert a.floats_sent == b.floats_sent and a.consensus == a.local
    assert together.metrics[0].consensus_distance == 0 < together.final.consensus_distance


def test_the_record_of_another_device_is_refused(played: Path, tmp_path: Path) -> None:
    net = Path(shutil.copytree(played / "net", tmp_path / "net"))
    shutil.rmtree(net / "device-1" / "run")
    shutil.copytree(net / "device-0" / "run", net / "device-1" / "run")
    message(lambda: join(net), "has the record of device-0", "not of device-1", "copy its own")


def test_a_report_of_it(played: Path, tmp_path: Path) -> None:
    said = drdsgd("report", played / "net", "--out", tmp_path / "page.html")
    assert said.status == 0 and "page.html" in said.out and (tmp_path / "page.html").stat().st_size > 10_000


def test_one_that_was_away_counts_as_it_was_last_seen(played: Path, tmp_path: Path) -> None:
    shutil.copytree(played / "net", tmp_path / "net")
    metrics = Folder(tmp_path / "net" / "device-2" / "run").metrics
    first, second, last = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(first + last)
    together = records.read(join(tmp_path / "net"))
    assert [m.round for m in together.metrics] == [0, 10, 20]
    seen = json.loads(first)["local"]["per_device"][0]
    local = together.metrics[1].local
    assert local is not None and local.per_device[2] == seen
    metrics.write_text("")
    message(lambda: join(tmp_path / "net"), "has been evaluated yet")
    Folder(metrics.parent).summary.unlink()
    metrics.write_text(first + second)
    assert records.read(join(tmp_path / "net")).status == "unfinished"


def test_what_is_not_there_is_named(played: Path, tmp_path: Path) -> None:
    shutil.copytree(played / "net", tmp_path / "net")
    shutil.rmtree(tmp_path / "net" / "device-1" / "run")
    message(lambda: join(tmp_path / "net"), "device-1 has not run")
    shutil.rmtree(tmp_path / "net" / "device-1")
    message(lambda: join(tmp_path / "net"), "no record of device 1")
    message(lambda: join(tmp_path / "elsewhere"), "not a deployment")
