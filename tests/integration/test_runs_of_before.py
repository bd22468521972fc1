"""A run's folder, config and checkpoint that an older version wrote can be read, reported and resumed.

The folders in `before/` were stopped after round 13 of 20, with a checkpoint of round 10, by the version before modules
moved into folders (commit 2a71362). They are never written again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drdsgd.experiments import records
from drdsgd.experiments.run import run
from tests.support.program import drdsgd

BEFORE = Path(__file__).parent / "before"


@pytest.fixture(params=sorted(path.name for path in BEFORE.iterdir()))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy to work in."""
    return Path(shutil.copytree(BEFORE / request.param, tmp_path / request.param))


def test_it_is_reported(folder: Path) -> None:
    said = drdsgd("report", folder)
    assert said.status == 0 and folder.name in said.out
    assert (folder / "report.html").exists()


def test_it_is_resumed_to_the_end_of_a_run_that_was_never_stopped(folder: Path) -> None:
    written = (folder / "metrics.jsonl").read_text().splitlines()
    assert drdsgd("train", "--resume", "--out", folder).status == 0
    assert (folder / "metrics.jsonl").read_text().splitlines()[:3] == written[:3]
    resumed = records.read(folder)
    whole = run(resumed.experiment, folder.parent / "whole")
    assert [m.round for m in resumed.metrics] == [m.round for m in whole.metrics] == [0, 5, 10, 15, 20]
    for a, b in zip(resumed.metrics, whole.metrics, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-4)
        assert a.consensus.per_device == pytest.approx(b.consensus.per_device, abs=2.1)  # one sample of 50
        assert a.floats_sent == b.floats_sent


def test_its_config_starts_the_same_run(folder: Path) -> None:
    said = drdsgd("train", folder / "config.toml", "--rounds", "5", "--out", folder.parent / "again")
    assert said.status == 0
    assert records.read(folder.parent / "again").metrics[0].losses == pytest.approx(
        records.read(folder).metrics[0].losses, rel=1e-5
    )
