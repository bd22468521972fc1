"""The command line: every command does its job, and every mistake is answered in one line with exit status 2."""

from __future__ import annotations

import errno
import gzip
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from drdsgd.cli import explore, main
from drdsgd.data import download, sources
from drdsgd.errors import InputError
from drdsgd.experiments import records
from drdsgd.experiments.records import Folder
from drdsgd.experiments.registry import parse
from tests.support.program import SMALL, begun, contents, drdsgd, one_line, refused

# -------------------------------------------------------------------- commands


def test_train_runs_into_a_folder_and_shows_it(tmp_path: Path) -> None:
    said = drdsgd("train", *SMALL, "--algorithm", "dsgd", "--seed", "2", "--out", tmp_path)
    assert said.status == 0 and said.err == ""
    record = records.read(tmp_path)
    assert (record.experiment.algorithm, record.experiment.seed, record.status) == ("dsgd", 2, "finished")
    assert record.final.local is not None
    assert f"{record.final.consensus.average:.1f}" in said.out and f"{record.final.local.worst:.1f}" in said.out
    assert said.out.endswith(f"report: {tmp_path / 'report.html'}\n")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_without_out_a_run_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert drdsgd("train", *SMALL, "--rounds", "1").status == 0
    assert drdsgd("compare", *SMALL, "--rounds", "1", "--seeds", "1").status == 0
    made = sorted(path.name.split("-", 2)[2] for path in (tmp_path / "runs").iterdir())
    assert made == ["compare", "dr-dsgd-synthetic"]


@pytest.mark.parametrize("name", ["graph.png", "graph.svg", "graph.pdf", "new/folder/graph.png"])
def test_graph_says_what_the_theory_says(tmp_path: Path, name: str) -> None:
    said = drdsgd("graph", "--graph", "star", "--devices", "5", "--rounds", "80", "--out", tmp_path / name)
    assert said.status == 0 and said.err == ""
    rows = dict(line.rsplit("  ", 1) for line in said.out.splitlines())
    rows = {key.strip(): value.strip() for key, value in rows.items()}
    # Metropolis weights of a star: 1/5 on every link, so W - J has the eigenvalue 4/5, and rho is its square
    assert rows == {
        "devices K": "5",
        "edges": "4",
        "degrees": "1 to 4, mean 1.60",
        "rho": "0.640000",
        "spectral gap 1 - sqrt(rho)": "0.200000",
        # 6 (1 - 4/5) / (8 * 4/5)
        "Theorem 1, mu = 6": "eta below min(0.1875 / G, 1) / L "
        "(L: bound on curvature, G: on gradients and exp(loss / mu))",
        "eta = sqrt(K / T), T = 80": "0.2500",
        "B = sqrt(K T), T = 80": "20.0",
        "picture": str(tmp_path / name),
    }
    assert (tmp_path / name).stat().st_size > 1000


def test_a_graph_that_averages_at_once_does_not_bound_eta(tmp_path: Path) -> None:
    said = drdsgd("graph", "--graph", "complete", "--devices", "6", "--out", tmp_path / "a.png")
    assert "eta below 1 / L (" in said.out


def test_graph_of_a_file_and_of_a_seed(tmp_path: Path) -> None:
    nx.write_graphml(nx.path_graph(4), tmp_path / "four.graphml")
    said = drdsgd("graph", "--graph", tmp_path / "four.graphml", "--out", tmp_path / "a.png")
    assert said.status == 0 and "devices K" in said.out and " 4\n" in said.out
    outs = {drdsgd("graph", "--seed", seed, "--out", tmp_path / "b.png").out for seed in ("0", "1", "0")}
    assert len(outs) == 2


def test_data_lists_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    nothing_here(tmp_path, monkeypatch)
    said = drdsgd("data")
    assert said.status == 0 and said.err == ""
    lines = {line.split("│")[1].strip(): line for line in said.out.splitlines() if "│" in line}
    assert list(lines) == ["digits", "fashion-mnist", "cifar10", "synthetic", "your own"]
    assert "1352" in lines["digits"] and "445" in lines["digits"] and "embedded" in lines["digits"]
    for name in ("fashion-mnist", "cifar10"):
        assert "not here" in lines[name] and f"drdsgd data get {name}" in lines[name]


def test_data_get_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def got(name: str, to: Path | None, progress: Callable[[str, int, int | None], None]) -> Path:
        progress("a file", 3, 10)
        return to or tmp_path / "cache"

    monkeypatch.setattr(download, "get", got)
    assert drdsgd("data", "get", "cifar10").out == f"cifar10 is in {tmp_path / 'cache'}, checksums right\n"
    said = drdsgd("data", "get", "cifar10", "--data-dir", tmp_path)
    assert said == (0, f"cifar10 is in {tmp_path}, checksums right\n", "")


def test_data_get_without_a_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> Path:
        raise InputError("nothing can be reached; put the files there")

    monkeypatch.setattr(download, "get", unreachable)
    assert refused("data", "get", "cifar10") == "nothing can be reached; put the files there"
    monkeypatch.undo()
    assert "mnist" in refused("data", "get", "mnist")


def test_report_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun(tmp_path / "a" / "seed-0", t=5)
    begun(tmp_path / "b", t=5, algorithm="dsgd")
    said = drdsgd("report", tmp_path / "a", tmp_path / "b")
    assert said.status == 0 and said.out.endswith("report: report.html\n")
    assert not (tmp_path / "a" / "report.html").exists()  # it may have one of its own
    said = drdsgd("report", tmp_path, "--out", tmp_path / "page.html")
    assert said.status == 0 and "dsgd" in (tmp_path / "page.html").read_text()
    assert "nowhere" in refused("report", tmp_path / "nowhere")


def test_the_program_says_its_version() -> None:
    said = drdsgd("--version")
    assert said.status == 0 and said.out == f"drdsgd {importlib.metadata.version('drdsgd')}\n"


def test_help_without_a_command() -> None:
    said = drdsgd()
    assert "Usage: drdsgd" in said.out and said.err == ""


# ---------------------------------------------------------------- wrong numbers

WHOLE = ["0", "-3", "ten", "2.5", "nan", "inf", "1e3", "", "99999999999999999999"]
NUMBER = ["0", "-1", "six", "nan", "inf", "-inf", ""]
WRONG = {
    "mu": NUMBER,
    "eta": [*NUMBER, "1e7"],
    "loss-clip": NUMBER,
    "weights": ["foo", ""],
    "p": [*NUMBER, "1.5", "30%"],
    "alpha": NUMBER,
    "heterogeneity": ["-1", "x", "nan", "inf"],
    "rounds": WHOLE,
    "devices": [*WHOLE, "1"],
    "batch-size": WHOLE,
    "shards": WHOLE,
    "eval-every": WHOLE,
    "checkpoint-every": WHOLE,
    "threads": WHOLE,
    "seed": ["-1", "x", "1.5", str(2**63)],
    "algorithm": ["sgd", ""],
    "partition": ["shard", ""],
    "scaling": ["none"],
    "validation": [*NUMBER, "1", "1.5", "20%"],
    "reference": ["samples,uniform"],
    "execution": ["fast"],
    "dtype": ["float16"],
}
NEEDED = {"alpha": ["--partition", "dirichlet"], "heterogeneity": ["--dataset", "synthetic"]}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_value_out_of_range_is_named_with_its_option(tmp_path: Path, name: str, value: str) -> None:
    line = refused("train", *NEEDED.get(name, []), f"--{name}", value, "--out", tmp_path / "run")
    try:
        shown = str(parse(name.replace("-", "_"), value))
    except InputError:
        shown = value
    assert line.startswith(f"--{name} {shown}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dataset", "digits", "--shards", "1000"], "K * shards = 10 * 1000 = 10000 is more than the 1352 samples"),
        (
            ["--dataset", "digits", "--devices", "400", "--shards", "4"],
            "K * shards = 400 * 4 = 1600 is more than the 1352 samples",
        ),
        (["--dataset", "digits", "--devices", "600", "--partition", "iid"], "test"),
        (["--graph", "grid", "--devices", "7"], "a grid needs K = rows * columns, but K=7 is prime"),
        (["--devices", "100", "--p", "0.001"], "raise p"),
        (["--graph", "rign"], "--graph rign: no such file, and unknown, did you mean ring?"),
        (["--dataset", "digit"], "--dataset digit: no such folder, and unknown, did you mean digits?"),
        (
            ["--dataset", "fashionmnist", "--shards", "2"],
            "--dataset fashionmnist: no such folder, and unknown, did you mean fashion-mnist?",
        ),
        (["--model", "mpl"], "--model mpl: unknown, did you mean mlp?"),
        (["--model", "cnn", "--dataset", "synthetic"], "a cnn needs images"),
        (["--eta-schedule", "linear:2"], "--eta-schedule linear:2: end must be in [0, 1]: 2"),
        (["--eta-schedule", "exponential:2"], "--eta-schedule exponential:2: decay must be in (0, 1]: 2"),
        (["--device", "cuda:99"], "--device cuda:99: "),
        (["--device", "gpu"], "--device gpu: "),
        (["--device", "meta"], "--device meta: "),
        (["--algorithm", "dsgd", "--mu", "3"], "--mu 3.0 does nothing here: it needs --objective kl-dro"),
    ],
)
def test_what_does_not_fit_together_is_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    assert says in refused("train", *arguments, "--threads", "1", "--out", tmp_path / "run")
    assert contents(tmp_path / "run") == {}


@pytest.mark.parametrize("error", [MemoryError("72 GB"), RuntimeError("can't allocate memory: you tried 72 GB")])
def test_too_little_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def greedy(*_: object) -> None:
        raise error

    monkeypatch.setattr("drdsgd.experiments.run.make_data", greedy)
    line = refused("train", *SMALL, "--out", tmp_path)
    assert "not enough memory" in line and "72 GB" in line and "--batch-size" in line


def test_a_bug_is_not_dressed_up_as_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("drdsgd.experiments.run.make_data", buggy)
    with pytest.raises(RuntimeError, match="a bug"):
        drdsgd("train", *SMALL, "--out", tmp_path)


@pytest.mark.parametrize("command", [["train"], ["compare"], ["network", "init"]])
def test_more_devices_than_samples_are_refused_before_a_graph_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def built(*_: object, **__: object) -> nx.Graph:
        raise AssertionError("a graph is built")

    monkeypatch.setattr("drdsgd.topology.graphs.erdos_renyi", built)
    out = tmp_path / "out"
    for arguments, says in (
        (["digits"], "digits is enough for 445 devices (1352 training and 445 test samples)"),
        (["fashion-mnist"], "fashion-mnist is enough for 10000 devices (60000 training and 10000 test samples)"),
        (
            ["cifar10", "--validation", "0.2"],
            "cifar10 is enough for 25000 devices (50000 training samples, two per device with --validation)",
        ),
    ):
        line = refused(*command, "--devices", "50000", "--dataset", *arguments, "--out", out)
        assert line == f"--devices 50000: {says}; use fewer devices"
    assert not out.exists()


def test_a_graph_without_data_may_have_any_number_of_devices(tmp_path: Path) -> None:
    said = drdsgd("graph", "--devices", "500", "--graph", "ring", "--out", tmp_path / "a.png")
    assert said.status == 0 and " 500\n" in said.out


# ------------------------------------------------------------- commands, options


@pytest.mark.parametrize(
    ("command", "folder"),
    [(["reproduce", "fig1"], "studies"), (["bench", "mlp"], "benchmarks")],
)
def test_commands_of_other_packages_say_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, command: list[str], folder: str
) -> None:
    """Where only the library is installed."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert refused(*command) == (
        f"{command[0]}: the package drdsgd-{folder} is not installed; in a clone of the repository: "
        f"pip install ./{folder}"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frain"], "No such command 'frain'. Did you mean 'train'?"),
        (["train", "--round", "3"], "--rounds"),
        (["train", "--rounds"], "--rounds"),
        (["train", "a.toml", "b.toml"], "b.toml"),
        (["demo", "--rounds", "3"], "--rounds"),
        (["data", "got"], "got"),
        (["data", "get"], "name"),
        (["report"], "DIR..."),
        (["graph", "--out", "graph.bmp"], "graph.bmp"),
        (["graph", "--mu", "3"], "--mu"),
        (["compare", "--seed", "3"], "--seeds"),
    ],
)
def test_unknown_commands_and_options(
    tmp_path: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(*arguments)
    assert contents(tmp_path) == {}


# ------------------------------------------------------------------------ TOML


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("batchsize = 3", "the key 'batchsize' is unknown, did you mean batch_size?"),
        ("learning_rate = 3", "the key 'learning_rate' is unknown; known are algorithm, objective, "),
        ("[train]\nrounds = 3", "the key 'train' is unknown"),
        ("self = 3", "the key 'self' is unknown"),
        ('rounds = "many"', "--rounds many: input should be a valid integer"),
        ("rounds = 2.5", "--rounds 2.5: input should be a valid integer"),
        ("devices = true", "--devices True: input should be a valid integer"),
        ("eta = [0.1]", "--eta [0.1]: input should be a valid number"),
        ("dataset = ['digits']", "--dataset ['digits']: input should be a valid string"),
        ("graph = 5", "--graph 5: input should be a valid string"),
        ("mu = nan", "--mu nan: input should be a finite number"),
        ("mu = inf", "--mu inf: input should be a finite number"),
        ("mu = 0", "--mu 0: input should be greater than 0"),
        ("rounds = 1979-05-27", "--rounds 1979-05-27: input should be a valid integer"),
        ("rounds = ", "is not TOML"),
        ("rounds = 3\nrounds = 4", "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(content)
    assert says in refused("train", file, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_cant_be_read_is_told(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path / 'a.toml'}" in refused("train", tmp_path / "a.toml")
    assert refused("train", tmp_path).startswith(f"{tmp_path}: Is a directory")


# ---------------------------------------------------------------------- graphs


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "0,1\n2,3\n", "graph is not connected: it has 2 parts"),
        ("a.csv", "0,1\n1,2\n", "graph has 3 nodes, but K=4"),
        ("a.csv", "0,1\n1,2\n2,3\n3,4\n", "graph has 5 nodes, but K=4"),
        ("a.csv", "0,1\n1,2\n2,3\n3,3\n", "graph has a self-loop at node 3"),
        ("a.csv", "0,1,2,3\n", "line 1 is not an edge"),
        ("a.csv", "", "graph needs at least 2 devices"),
        ("a.graphml", "<graphml", "not readable as XML"),
        ("a.npy", "junk", "not readable as a NumPy array"),
    ],
)
def test_a_wrong_graph_is_told(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    for command in ("train", "graph"):
        out = tmp_path / ("run" if command == "train" else "run/graph.png")
        line = refused(command, "--graph", tmp_path / name, "--devices", "4", "--out", out)
        assert says in line and (name in line or "K=4" in line)
    assert contents(tmp_path / "run") == {}


def test_a_directed_graph_is_told(tmp_path: Path) -> None:
    nx.write_graphml(nx.DiGraph([(0, 1), (1, 2), (2, 3)]), tmp_path / "a.graphml")
    assert "graph is directed" in refused("train", *SMALL, "--graph", tmp_path / "a.graphml", "--out", tmp_path / "run")
    np.save(tmp_path / "a.npy", np.triu(np.ones((4, 4), dtype=int), 1))
    assert "must be symmetric" in refused("train", *SMALL, "--graph", tmp_path / "a.npy", "--out", tmp_path / "run")


# ------------------------------------------------------------------------ data


def sites(path: Path, **changes: Any) -> Path:
    """A folder of four devices, the second of which is changed."""
    path.mkdir()
    for k in range(4):
        arrays: dict[str, Any] = {"x": np.random.default_rng(k).random((10, 3)), "y": np.arange(10) % 3}
        np.savez(path / f"{k}.npz", **(arrays | changes if k == 1 else arrays))
    return path


def spoilt_features(value: float) -> Any:
    x = np.ones((10, 3))
    x[4, 2] = value
    return x


def test_numbers_to_predict_are_for_python(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    for file in folder.iterdir():
        np.savez(file, x=np.ones((10, 3)), y=np.linspace(0, 1, 10))
    said = refused("train", "--dataset", folder, "--graph", "ring", "--out", tmp_path / "run")
    assert "its y are floats" in said and "drdsgd.train" in said and "y.astype(int)" in said
    assert contents(tmp_path / "run") == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"y": np.arange(10) - 1}, "1.npz: y[0] is -1: labels must be whole numbers"),
        ({"y": np.arange(10) + 0.5}, "1.npz: y holds floats but 0.npz: y integers"),
        ({"x": spoilt_features(np.nan)}, "1.npz: x[4, 2] is nan: features must be finite"),
        ({"x": spoilt_features(np.inf)}, "1.npz: x[4, 2] is inf: features must be finite"),
        ({"x": np.ones((0, 3)), "y": np.ones(0)}, "1.npz: x is empty: give the device at least one sample"),
        ({"x": np.ones((9, 3))}, "1.npz: x has 9 samples but y has 10"),
        ({"x": np.ones((10, 2))}, "1.npz: x has samples of shape [2] but 0.npz: x of [3]"),
    ],
)
def test_wrong_data_of_your_own_are_told(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = sites(tmp_path / "sites", **changes)
    assert says in refused("train", "--dataset", folder, "--graph", "ring", "--out", tmp_path / "run")
    assert contents(tmp_path / "run") == {}


def test_data_of_your_own_that_cant_be_read_are_told(tmp_path: Path) -> None:
    folder = sites(tmp_path / "sites")
    whole = (folder / "2.npz").read_bytes()
    (folder / "2.npz").write_bytes(whole[: len(whole) // 2])
    assert "2.npz is not a readable .npz file" in refused("train", "--dataset", folder, "--out", tmp_path / "run")
    (folder / "2.npz").unlink()
    line = refused("train", "--dataset", folder, "--devices", "4", "--graph", "ring", "--out", tmp_path / "run")
    assert "--devices 4: the folder" in line and "holds data for 3 devices" in line
    assert "no .npz files" in refused("train", "--dataset", tmp_path / "run", "--out", tmp_path / "run")


def test_data_of_your_own_are_trained_on(tmp_path: Path) -> None:
    arguments = ["--dataset", str(sites(tmp_path / "sites")), "--graph", "ring", "--rounds", "2", "--threads", "1"]
    assert drdsgd("train", *arguments, "--out", tmp_path / "run").status == 0
    assert records.read(tmp_path / "run").experiment.devices == 4


def nothing_here(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set can be found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / "cache"))
    monkeypatch.setenv("DRDSGD_DATA", str(path / "data"))
    monkeypatch.setattr(sources, "_DEBIAN", path / "debian")


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_data_set_that_is_not_here_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    nothing_here(tmp_path, monkeypatch)
    line = refused("train", "--dataset", name, "--out", tmp_path / "run")
    assert f"run `drdsgd data get {name}`" in line and str(tmp_path / "data") in line
    assert contents(tmp_path / "run") == {}


def fashion(path: Path, labels: int = 10) -> Path:
    """A small Fashion-MNIST: its four files with 40 and 20 images."""
    path.mkdir()
    for kind, n in (("train", 40), ("t10k", 20)):
        x = np.random.default_rng(n).integers(0, 256, (n, 28, 28), dtype=np.uint8)
        y = (np.arange(n) % labels).astype(np.uint8)
        for name, array in ((f"{kind}-images-idx3-ubyte", x), (f"{kind}-labels-idx1-ubyte", y)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(d.to_bytes(4, "big") for d in array.shape)
            (path / f"{name}.gz").write_bytes(gzip.compress(head + array.tobytes()))
    return path


def test_a_data_folder_is_trained_on(tmp_path: Path) -> None:
    arguments = ["--dataset", "fashion-mnist", "--data-dir", str(fashion(tmp_path / "data")), "--devices", "4"]
    arguments += ["--graph", "ring", "--rounds", "2", "--model", "logistic", "--threads", "1"]
    assert drdsgd("train", *arguments, "--out", tmp_path / "run").status == 0
    assert records.read(tmp_path / "run").experiment.data_dir == str(tmp_path / "data")


@pytest.mark.parametrize("spoil", ["truncated", "flipped", "empty", "missing", "labels"])
def test_a_spoilt_data_file_is_told(tmp_path: Path, spoil: str) -> None:
    folder = fashion(tmp_path / "data", labels=12 if spoil == "labels" else 10)
    file = folder / ("train-labels-idx1-ubyte.gz" if spoil == "labels" else "t10k-images-idx3-ubyte.gz")
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 255
    if spoil == "missing":
        file.unlink()
    elif spoil != "labels":
        file.write_bytes({"truncated": whole[:-50], "flipped": whole, "empty": bytearray()}[spoil])
    arguments = ["--dataset", "fashion-mnist", "--data-dir", str(folder), "--devices", "4"]
    line = refused("train", *arguments, "--out", tmp_path / "run")
    assert file.stem in line and "drdsgd data get fashion-mnist" in line
    assert contents(tmp_path / "run") == {}


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def net(s, c): return nn.Sequential(nn.Linear(*s, c), nn.BatchNorm1d(c))", "use nn.GroupNorm instead"),
        ("def net(s, c): return nn.Sequential(nn.Linear(*s, c), nn.Dropout(0.5))", "is random (Dropout?)"),
        ("def net(s, c): return nn.Linear(7, c)", "does not take the data (one sample is (20,))"),
        ("def net(s, c): return nn.Flatten()", "has no parameter to train"),
        ("def net(s, c): return 3", "gave a int, not an nn.Module"),
        ("def net(s, c): return nn.Linear(*s, d)", "NameError: name 'd' is not defined"),
        ("def not_net(s, c): return nn.Linear(*s, c)", "has no attribute 'net'"),
        ("import own_nowhere", "No module named 'own_nowhere'"),
        ("def net(:", "SyntaxError"),
    ],
)
def test_a_wrong_model_of_your_own_is_told_and_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"from torch import nn\n{code}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    line = refused("train", *SMALL, "--model", f"{name}:net", "--out", tmp_path / "run")
    assert says in line
    assert contents(tmp_path / "run") == {}


def test_words_that_the_model_does_not_know_are_told_and_leave_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_words.py").write_text(
        "from torch import nn\ndef net(s, c): return nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, c))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for k in range(3):
        x = np.arange(400).reshape(100, 4) % 9
        x[-1, -1] = 9 if k == 2 else 0
        np.savez(tmp_path / f"{k}.npz", x=x, y=np.arange(100) % 2)
    line = refused("train", "--dataset", tmp_path, "--model", "own_words:net", "--out", tmp_path / "run")
    assert "does not take all numbers of the data, which are 0 to 9: " in line
    assert contents(tmp_path / "run") == {}


def test_a_model_that_is_nowhere_is_told(tmp_path: Path) -> None:
    line = refused("train", *SMALL, "--model", "own_nowhere.models:net", "--out", tmp_path / "run")
    assert line.startswith("--model own_nowhere.models:net: No module named 'own_nowhere'") and "PYTHONPATH" in line


# --------------------------------------------------------------------- writing


@pytest.mark.parametrize("command", ["train", "compare", "demo", "graph", "report"])
def test_a_place_that_cant_be_written_to_is_told(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("mine")
    arguments: dict[str, list[Any]] = {
        "train": SMALL, "compare": SMALL, "demo": [], "graph": [], "report": [begun(tmp_path / "run")],
    }  # fmt: skip
    for out in (tmp_path / "file" / "below.png", Path("/proc/drdsgd/nowhere.png")):
        said = drdsgd(command, *arguments[command], "--out", out)
        line = one_line(said)
        assert str(out.parent) in line and "check the path, its permissions" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_is_no_folder_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in refused("train", *SMALL, "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that the system gives anyone but root."""

    def denied(*_: object, dir: Path, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(dir))

    monkeypatch.setattr(tempfile, "mkstemp", denied)
    assert refused("train", *SMALL, "--out", tmp_path).startswith(f"{tmp_path}: Permission denied; check the path")


@pytest.mark.parametrize("call", [1, 2, 5, 9])
def test_a_disk_that_is_full_from_some_moment_on_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    calls, sync = 0, os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        line = refused("train", *SMALL, "--out", tmp_path)
    assert line.startswith("No space left on device; ")
    again = ["--resume"] if Folder(tmp_path).config.exists() else []
    assert drdsgd("train", *SMALL, *again, "--out", tmp_path).status == 0
    assert [m.round for m in records.read(tmp_path).metrics] == [0, 2, 4, 6]


def test_a_finished_run_says_that_nothing_is_left_to_continue(tmp_path: Path) -> None:
    assert "nothing left to do" not in drdsgd("train", *SMALL, "--out", tmp_path).err
    again = drdsgd("train", "--resume", "--out", tmp_path)
    assert again.status == 0
    assert f"the run in {tmp_path} had already finished its 6 rounds: nothing left to do" in again.err


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    """As in `drdsgd --help | head -0`."""
    code = "import sys; from drdsgd.cli import main; sys.stdin.read(); main(['--help'])"
    command = [sys.executable, "-c", code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as program:
        assert program.stdin and program.stdout and program.stderr
        program.stdout.close()
        program.stdin.close()
        assert program.stderr.read() == b""
        assert program.wait(60) == 1


def test_a_pipe_that_breaks_while_we_print_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing else in the process handles it."""

    def broken(*_: object) -> None:
        raise BrokenPipeError

    replaced: list[int] = []
    monkeypatch.setattr(explore, "show_table", broken)
    monkeypatch.setattr(os, "dup2", lambda old, new: replaced.append(new))
    monkeypatch.setattr("drdsgd.experiments.records.find_runs", lambda paths: [])

    class Pipe:
        @staticmethod
        def fileno() -> int:
            return 77

    monkeypatch.setattr(sys, "stdout", Pipe())
    with pytest.raises(SystemExit) as end:
        main(["report", "."])
    assert end.value.code == 1 and replaced == [77]


def test_the_demo_leaves_another_comparison_alone(tmp_path: Path) -> None:
    drdsgd("compare", *SMALL, "--seeds", "1", "--out", tmp_path)
    before = (tmp_path / "study.toml").read_text()
    assert "holds another comparison" in refused("demo", "--out", tmp_path)
    assert (tmp_path / "study.toml").read_text() == before


@pytest.mark.parametrize(
    ("file", "wrong", "says"),
    [
        (
            "metrics.jsonl",
            lambda text: text.replace('"round": 0', '"round": null'),
            "metrics.jsonl line 1 is corrupt (round",
        ),
        (
            "summary.json",
            lambda text: re.sub(r'"versions": {[^}]*}', '"versions": 5', text),
            "summary.json is corrupt: versions",
        ),
    ],
)
def test_records_of_wrong_types_are_told(file: str, wrong: Callable[[str], str], says: str, tmp_path: Path) -> None:
    drdsgd("train", *SMALL, "--out", tmp_path)
    (tmp_path / file).write_text(wrong((tmp_path / file).read_text()))
    assert says in refused("report", tmp_path)


def test_a_default_step_above_one_is_told_of_once(tmp_path: Path) -> None:
    few = ["--dataset", "synthetic", "--devices", "8", "--rounds", "4", "--graph", "ring", "--threads", "1"]
    for command, out in ((["train"], "a"), (["compare", "--seeds", "1"], "b")):
        said = drdsgd(*command, *few, "--out", tmp_path / out)
        assert said.status == 0
        assert said.err.count("drdsgd: --eta: the default, sqrt(K / T) = 1.41, is above 1") == 1
    assert "--eta: the default" not in drdsgd("train", *few, "--eta", "1.5", "--out", tmp_path / "c").err


def test_a_refused_run_leaves_no_folder_above_it(tmp_path: Path) -> None:
    refused("train", "--devices", "700", "--threads", "1", "--out", tmp_path / "a" / "b" / "c")
    assert not (tmp_path / "a").exists()
