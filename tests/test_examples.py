"""The examples run as they are, and what they print is possible."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# how often each prints a summary, and of how many devices
SAYS = {
    "own_data": (2, 10),
    "own_graph": (4, 10),
    "own_objective": (3, 12),
    "partitions_made_elsewhere": (2, 10),
    "regression": (2, 6),
    "tabular": (2, 8),
    "text": (2, 8),
}
SUMMARY = re.compile(r"average ([\d.]+)[^,]*, worst ([\d.]+)[^,]*, of (\d+) devices")


def test_every_example_is_here_and_listed() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == set(SAYS) == set(re.findall(r"\]\((\w+)\.py\)", page))
    assert all(len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 80 for name in found)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    here = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}  # this one, wherever it is run from
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    summaries = [(float(a), float(w), int(K)) for a, w, K in SUMMARY.findall(done.stdout)]
    assert [K for _, _, K in summaries] == [SAYS[name][1]] * SAYS[name][0], done.stdout
    error = name == "regression"  # of which the highest is the worst
    assert all(0 <= (average if error else worst) <= (worst if error else average) for average, worst, _ in summaries)
    assert done.stdout.splitlines()[-1].endswith(".")  # the sentence that matters
    if name == "own_data":
        assert "read back it is the same model" in done.stdout
        assert {path.name for path in (tmp_path / "digits-model").iterdir()} == {"README.md", "model.safetensors"}
