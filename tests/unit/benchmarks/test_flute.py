"""FLUTE's benchmark next to other tools: what it runs, what it says of them, and what if one can't be installed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drdsgd.errors import Died
from drdsgd_benchmarks import clients, flute
from drdsgd_benchmarks.flute import OTHERS, Missing, Once, Other

FAKE = Other("a tool", ["no-such-package"], "no-such-package", "fake.py", rounds=2, command=10)


def test_ours_is_a_real_run(tmp_path: Path) -> None:
    """The same work as the other tools': ten clients a round, six steps each."""
    clients.write(tmp_path, K=12, n=10, test=2)
    found = flute.ours(tmp_path, rounds=20)
    assert 0 < found["rounds"] < found["command"]
    assert found["accuracy"] > 50  # of ten classes: it learned something


def test_clients_have_the_samples_of_the_benchmark(tmp_path: Path) -> None:
    clients.write(tmp_path, K=11, n=4, test=2)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files[0] == "device-00.npz" and len(files) == 11
    with np.load(tmp_path / files[3]) as file:
        assert file["x"].shape == (4, 28, 28) and file["x_test"].shape == (2, 28, 28)
        assert file["x"].dtype == np.float32 and file["x"].min() >= 0 and file["x"].max() <= 1
    steps = flute.SAMPLES // flute.SETTING["batch_size"]
    assert steps == flute.SETTING["local_steps"]  # one local epoch


def test_a_tool_answers_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of ours, not of theirs
    program = tmp_path / "fake.py"
    program.write_text(
        "import json, os, sys\n"
        "assert 'PYTHONPATH' not in os.environ and os.environ['FLWR_TELEMETRY_ENABLED'] == '0'\n"
        "assert json.loads(sys.argv[2])['clients'] == 10\n"
        "print('log')\n"
        'print(json.dumps({"rounds": 0.5, "accuracy": float(sys.argv[1])}))\n'
    )
    tool = Other("a tool", [], "none", str(program))  # an absolute path stays as it is
    found = flute.theirs(tool, Path(sys.executable), Path("7"), rounds=3)
    assert (found["rounds"], found["accuracy"]) == (0.5, 7) and found["command"] > 0
    program.write_text("raise SystemExit('no such thing')")
    with pytest.raises(Died, match="a command of the benchmark failed: no such thing"):
        flute.theirs(tool, Path(sys.executable), Path("7"), rounds=3)


def test_sides_take_turns_forth_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], Once]:
        def once() -> Once:
            order.append(name)
            return {"rounds": 1.0, "command": 2.0}

        return once

    found = flute.in_turns({"a": side("a"), "b": side("b")}, 3)
    assert "".join(order) == "abbaab" and [len(some) for some in found.values()] == [3, 3]
    assert "a: 1.00 s of rounds, 2.0 s in all" in capsys.readouterr().err


def test_ratios_are_formed_turn_by_turn() -> None:
    def runs(*seconds: tuple[float, float]) -> list[Once]:
        return [{"rounds": a, "command": b, "accuracy": 0.0} for a, b in seconds]

    found = {"drdsgd": runs((1, 3), (2, 4)), "Flower": runs((10, 30), (40, 60)), "pfl-research": runs((3, 5), (5, 6))}
    assert [(r.what, r.against, r.target, r.turns) for r in flute.compared(found)] == [
        ("rounds of FLUTE's benchmark", "pfl-research", 2, [3, 2.5]),
        ("the whole command", "pfl-research", None, [5 / 3, 1.5]),
        ("rounds of FLUTE's benchmark", "Flower", None, [10, 20]),
        ("the whole command", "Flower", 10, [10, 15]),
    ]


def test_a_tool_that_cant_be_installed_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = subprocess.CompletedProcess(
        [], 1, "", "WARNING: slow\nERROR: No package at https://there/simple\nHint: none\n"
    )
    monkeypatch.setattr(flute.subprocess, "run", lambda *given, **options: failed)  # type: ignore[attr-defined]  # a module of a module
    with pytest.raises(Missing, match=r"^a tool can't be installed: ERROR: No package at …$"):
        flute.environment(FAKE, tmp_path)
    assert not (tmp_path / "no-such-package" / "installed").exists()  # the next time tries again
    monkeypatch.setattr(flute, "OTHERS", (FAKE,))
    monkeypatch.setattr(flute, "CLIENTS", 2)
    monkeypatch.setattr(flute, "ours", lambda data, rounds: {"rounds": 1.0, "command": 2.0, "accuracy": 3.0})
    out = tmp_path / "flute.json"
    flute.main(environments=tmp_path, repeats=1, rounds=1, out=out)
    said = capsys.readouterr()
    assert "a tool can't be installed: ERROR: No package at …\n" in said.err
    written = json.loads(out.read_text())
    assert list(written["missing"]) == ["a tool"] and list(written["tools"]) == ["drdsgd"] and written["results"] == []


def test_an_environment_is_made_once_with_the_same_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(flute.subprocess, "run", run)  # type: ignore[attr-defined]  # a module of a module
    first = flute.environment(FAKE, tmp_path)
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    constraints = Path(commands[1][commands[1].index("-c") + 1])
    assert constraints.read_text().startswith("torch==") and "+" not in constraints.read_text()
    assert flute.environment(FAKE, tmp_path) == first and len(commands) == 2


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
def test_a_tools_program_needs_nothing_of_this_project(other: Other) -> None:
    text = (Path(flute.__file__).parent / "others" / other.program).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.startswith("drdsgd") for name in names)
