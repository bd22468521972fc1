"""Pictures are written and show something."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from drdsgd.errors import InputError
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import find_runs
from drdsgd.experiments.run import run
from drdsgd.report import plots
from drdsgd.report.groups import Groups, groups
from drdsgd.topology import graphs
from tests.support.made import record

SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-", ".svg": b"<?xml"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """Two algorithms over two seeds; one run was stopped after two evaluations."""
    out = tmp_path_factory.mktemp("runs")
    for algorithm in ("dsgd", "dr-dsgd"):
        for seed in (0, 1):
            e = Experiment(
                dataset="synthetic", devices=5, rounds=6, eval_every=2, graph="ring", algorithm=algorithm, seed=seed,
                threads=1,
            )  # fmt: skip
            run(e, out / algorithm / f"seed-{seed}")
    stopped = out / "dsgd" / "seed-1"
    (stopped / "summary.json").unlink()
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join(lines[:2]))
    return groups(find_runs([out]))


def colours(path: Path) -> int:
    """The number of colours in a PNG; a blank one has one."""
    pixels = (255 * np.asarray(matplotlib.image.imread(path))[..., :3]).round().astype(np.int64)
    return len(np.unique(pixels @ [65536, 256, 1]))


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg", ".PNG"])
def test_curves_are_written_whole(compared: Groups, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"curves{suffix}"
    assert plots.curves(compared, path) == path
    assert path.read_bytes().startswith(SIGNATURES[suffix.lower()])
    assert path.stat().st_size > 5000
    assert list(path.parent.iterdir()) == [path]
    if suffix.lower() == ".png":
        assert colours(path) > 50


def test_curves_of_one_run_and_of_hostile_labels(compared: Groups, tmp_path: Path) -> None:
    label = "$x_{$ <b> _dsgd"
    assert colours(plots.curves({label: compared["dr-dsgd"][:1]}, tmp_path / "one.png")) > 10


def test_the_axis_says_which_samples_were_scored(tmp_path: Path) -> None:
    tested, kept = record([40, 80], dataset="digits"), record([40, 80], dataset="digits", validation=0.2)
    for runs, label in (
        ([tested], "test accuracy"),
        ([kept], "validation accuracy"),
        ([tested, kept], "validation or test accuracy"),
    ):
        drawn = plots.curves(groups(runs), tmp_path / "curves.svg").read_text()
        assert f"<!-- {label} in % -->" in drawn


def test_the_same_data_give_the_same_file(compared: Groups, tmp_path: Path) -> None:
    first, second = (plots.curves(compared, tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second


@pytest.mark.parametrize("name", ["curves.gif", "curves"])
def test_unknown_formats_are_refused_before_anything_is_written(compared: Groups, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.png, \.pdf or \.svg"):
        plots.curves(compared, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("K", [9, 60, 100])
def test_a_network(tmp_path: Path, K: int) -> None:
    assert colours(plots.network(graphs.grid(K), tmp_path / "plain.png")) > 10
    values = [math.nan, *np.linspace(50, 90, K - 1)]
    coloured = plots.network(graphs.grid(K), tmp_path / "values.png", values=values, label="accuracy in %")
    assert colours(coloured) > 100


def test_equal_values_have_a_colour_too(tmp_path: Path) -> None:
    assert colours(plots.network(graphs.ring(4), tmp_path / "equal.png", values=[1.0] * 4)) > 10


def test_as_many_values_as_nodes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 numbers, but the graph has 4 nodes"):
        plots.network(graphs.ring(4), tmp_path / "graph.png", values=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_cost_against_devices(tmp_path: Path, suffix: str) -> None:
    path = plots.cost({25: [1e-4, 2e-4, 3e-4], 1000: [2e-4, 2e-4, 2.5e-4]}, tmp_path / f"cost{suffix}")
    assert path.read_bytes().startswith(SIGNATURES[suffix])
    if suffix == ".png":
        assert colours(path) > 3
