"""The examples run as they are, and what they print is possible."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
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
def test_an_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, as loading torch takes longer than most of them; warnings are errors here, too."""
    path = EXAMPLES / f"{name}.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    summaries = [(float(a), float(w), int(K)) for a, w, K in SUMMARY.findall(out)]
    assert [K for _, _, K in summaries] == [SAYS[name][1]] * SAYS[name][0], out
    error = name == "regression"  # of which the highest is the worst
    assert all(0 <= (average if error else worst) <= (worst if error else average) for average, worst, _ in summaries)
    assert out.splitlines()[-1].endswith(".")  # the sentence that matters
    if name == "own_data":
        assert "read back it is the same model" in out
        assert {path.name for path in (tmp_path / "digits-model").iterdir()} == {"README.md", "model.safetensors"}
