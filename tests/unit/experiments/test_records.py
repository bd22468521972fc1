"""A run's folder records the experiment and its results, and a corrupt file is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drdsgd.errors import InputError
from drdsgd.experiments import records
from drdsgd.experiments.build import make_data, make_graph
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import run
from drdsgd.topology.mixing import metropolis_matrix, rho
from drdsgd.training.metrics import Metrics
from tests.support.made import study as study  # a fixture
from tests.support.program import Crash, begun, contents, crashing_at, drdsgd, evaluations, refused, small


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    run(small(), path)
    return path


@pytest.fixture
def spoilt(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# ----------------------------------------------------------------------- whole


def test_a_record_is_what_was_run(finished: Path) -> None:
    record = records.read(finished)
    assert record.path == finished and record.experiment == small()
    assert (record.status, record.message) == ("finished", "")
    assert [m.round for m in record.metrics] == [0, 2, 4, 6] and record.final is record.metrics[-1]
    assert record.versions.keys() == {"python", "drdsgd", "torch", "numpy", "networkx", "scikit-learn"}


def test_the_files_are_those_of_the_design(finished: Path) -> None:
    assert contents(finished).keys() == {
        "config.toml", "network.json", "metrics.jsonl", "summary.json", "model.safetensors", "model.md",
        "checkpoint/round-6-part-1-of-1.safetensors",
    }  # fmt: skip
    line = json.loads(Folder(finished).metrics.read_text().splitlines()[-1])
    accuracy = {"average", "worst", "worst10", "stdev", "per_device"}
    assert line.keys() == {
        "round", "consensus", "local", "per_class", "consensus_distance", "train_loss", "weights", "floats_sent",
        "seconds", "losses",
    }  # fmt: skip
    assert line["consensus"].keys() == line["local"].keys() == accuracy
    summary = json.loads(Folder(finished).summary.read_text())
    assert summary["final"] == line and summary["status"] == "finished"


def test_the_network_is_the_graph_and_what_the_devices_hold(finished: Path) -> None:
    network = records.read(finished).network
    graph, data = make_graph(small()), make_data(small())
    assert network.edges == list(graph.edges)
    assert network.rho == pytest.approx(rho(metropolis_matrix(graph)))
    assert len(network.positions) == data.K
    for counts, y in zip(network.label_counts, data.train.y.split(data.train.sizes.tolist()), strict=True):
        assert counts == y.bincount(minlength=data.classes).tolist()


def test_with_a_server_there_is_no_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layout and rho take seconds for a thousand devices, and nothing depends on them."""

    def unused(*about: Any) -> Any:
        raise AssertionError("not with a server")

    monkeypatch.setattr("drdsgd.topology.graphs.layout", unused)
    monkeypatch.setattr("drdsgd.topology.mixing.rho_over_time", unused)
    record = run(small(algorithm="fedavg"), tmp_path / "run")
    network = record.network
    assert network.edges == [] and network.rho is None and records.read(tmp_path / "run") == record
    assert len({*network.positions}) == len(network.label_counts) == record.experiment.devices
    assert all(x**2 + y**2 <= 1 for x, y in network.positions)
    assert drdsgd("report", tmp_path / "run").status == 0
    assert "none: every device communicates with the server" in (tmp_path / "run" / "model.md").read_text()


def test_a_run_with_a_server_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """It has recorded its graph."""
    e, whole = small(algorithm="fedavg"), run(small(algorithm="fedavg"), tmp_path / "whole")
    with pytest.raises(Crash):
        run(e, tmp_path / "run", watch=crashing_at(3))
    before = Folder(tmp_path / "run").network
    before.write_text(json.dumps({**json.loads(before.read_text()), "edges": [[0, 1]], "rho": 0.5}))
    resumed = run(e, tmp_path / "run", resume=True)
    assert resumed.status == "finished" and resumed.final.consensus == whole.final.consensus
    assert resumed.network.rho == 0.5


def test_a_run_on_its_way_can_be_read(tmp_path: Path) -> None:
    record = records.read(begun(tmp_path, t=4))
    assert record.status == "unfinished" and record.final.round == 4 and record.versions == {}


def test_a_line_that_is_being_written_is_not_there_yet(spoilt: Path) -> None:
    metrics = Folder(spoilt).metrics
    whole = metrics.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for size in (last + 1, (last + len(whole)) // 2, len(whole) - 1):
        metrics.write_bytes(whole[:size])
        assert [m.round for m in records.read(spoilt).metrics] == [0, 2, 4]


def test_metrics_come_back_as_they_were(finished: Path, tmp_path: Path) -> None:
    metrics = records.read(finished).metrics
    folder = Folder(tmp_path)
    for m in metrics:
        folder.append(m)
    assert records.read_metrics(folder.metrics) == metrics
    assert records.read_metrics(tmp_path / "nowhere") == []


# ---------------------------------------------------------------------- spoilt

TABLES = ("network.json", "summary.json")


def says_which(path: Path, name: str, what: str) -> None:
    """Reading names the file in one line, and so do the commands; nothing is changed."""
    with pytest.raises(InputError) as caught:
        records.read(path)
    before = contents(path)
    for line in (
        str(caught.value),
        refused("report", path),
        refused("train", "--resume", "--out", path),
    ):
        assert str(path / name) in line and what in line and "\n" not in line
    assert contents(path) == before


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff", b"{}", b'{"status": 3, "edges": 3}'])
def test_a_spoilt_table(spoilt: Path, name: str, content: bytes) -> None:
    (spoilt / name).write_bytes(content)
    says_which(spoilt, name, "is corrupt")


def test_a_missing_network(spoilt: Path) -> None:
    Folder(spoilt).network.unlink()
    with pytest.raises(InputError, match=r"network\.json is missing"):
        records.read(spoilt)


@pytest.mark.parametrize(
    "change",
    [
        {"edges": [[0, 9]]}, {"edges": [[0, 1, 2]]}, {"edges": ["ab"]},
        {"positions": [[0, 0]]}, {"rho": None}, {"label_counts": 3},
    ],
)  # fmt: skip
def test_a_network_that_does_not_belong_together(spoilt: Path, change: dict[str, Any]) -> None:
    network = Folder(spoilt).network
    network.write_text(json.dumps(json.loads(network.read_text()) | change))
    says_which(spoilt, "network.json", "is corrupt")


@pytest.mark.parametrize("content", ["rounds = \n", "rounds = 0\n", "round = 3\n", "\x00"])
def test_a_spoilt_config(spoilt: Path, content: str) -> None:
    Folder(spoilt).config.write_text(content)
    says_which(spoilt, "config.toml", "")


@pytest.mark.parametrize("content", ["", "{", "3", "{}", '{"round": 2}', '{"round": 2, "consensus": 3, "local": 4}'])
@pytest.mark.parametrize("number", [1, 3])
def test_a_spoilt_line_is_told_by_its_number(spoilt: Path, number: int, content: str) -> None:
    metrics = Folder(spoilt).metrics
    lines = metrics.read_text().splitlines()
    lines[number - 1] = content
    metrics.write_text("".join(f"{line}\n" for line in lines))
    says_which(spoilt, "metrics.jsonl", f"line {number} is corrupt")


@given(
    k=st.integers(0, 5000), byte=st.integers(0, 255), name=st.sampled_from([*TABLES, "metrics.jsonl", "config.toml"])
)
def test_any_other_byte_in_any_file_is_a_record_or_one_line(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, k: int, byte: int, name: str
) -> None:
    path = Path(shutil.copytree(finished, tmp_path_factory.mktemp("byte") / "run"))
    data = bytearray((path / name).read_bytes())
    data[k % len(data)] = byte
    (path / name).write_bytes(data)
    try:
        records.read(path)
    except InputError as error:
        assert name in str(error) and "\n" not in str(error)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a run's folder: it has no config\.toml"):
        records.read(tmp_path)


def test_a_run_before_its_first_evaluation_says_how_to_go_on(tmp_path: Path, finished: Path) -> None:
    for name in ("config.toml", "network.json"):
        shutil.copy(finished / name, tmp_path)
    with pytest.raises(InputError, match="no evaluation yet; continue the run with resume=True"):
        records.read(tmp_path)
    assert drdsgd("train", "--resume", "--out", tmp_path).status == 0
    assert evaluations(tmp_path) == evaluations(finished)


# --------------------------------------------------------------------- writing


def test_rewinding_drops_only_what_comes_after(spoilt: Path) -> None:
    folder = Folder(spoilt)
    whole = folder.metrics.read_text().splitlines(keepends=True)
    for t, kept in ((6, 4), (5, 3), (4, 3), (0, 1), (-1, 0)):
        folder.metrics.write_text("".join(whole) + '{"half')
        folder.rewind(t, records.read_config(folder.config))
        assert folder.metrics.read_text() == "".join(whole[:kept])


def test_numbers_that_json_has_not_are_never_written(tmp_path: Path, finished: Path) -> None:
    """Other programs read these files."""
    wrong = Metrics(**{**records.read(finished).final.__dict__, "train_loss": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        Folder(tmp_path).append(wrong)
    assert not Folder(tmp_path).metrics.exists()


# ------------------------------------------------------------------------ many


def test_runs_are_found_below_a_folder_each_once(study: Path) -> None:
    found = records.find_runs([study, study / "dsgd" / "seed-0"])
    assert [r.path.relative_to(study).as_posix() for r in found] == [
        "dr-dsgd/seed-0", "dr-dsgd/seed-1", "dsgd/seed-0", "dsgd/seed-1",
    ]  # fmt: skip
    assert [r.path for r in records.find_runs([study / "dsgd" / "seed-1"])] == [study / "dsgd" / "seed-1"]


def test_seeds_are_in_natural_order() -> None:
    paths = [Path(f"a/seed-{k}") for k in (10, 2, 1)]
    assert [p.name for p in sorted(paths, key=records._natural)] == ["seed-1", "seed-2", "seed-10"]


def test_a_run_that_ended_without_metrics_is_no_run_to_leave_out(study: Path, tmp_path: Path) -> None:
    there = shutil.copytree(study, tmp_path / "there")
    (there / "dsgd" / "seed-0" / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"seed-0 is damaged: its run ended, but metrics.jsonl is empty; remove it"):
        records.find_runs([there])


def test_no_run_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = 3\n")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=re.escape(str(path))) as error:
            records.find_runs([path])
        assert "\n" not in str(error.value)
