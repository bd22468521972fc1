"""The pages' numbers, made from what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drdsgd.errors import InputError
from drdsgd_benchmarks import machine, page, results
from drdsgd_benchmarks.results import Measured, Result

HERE = {"cores": 2, "processor": "AMD EPYC", "features": ["avx2", "avx512f"], "torch": "2.13.0"}


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A repository with numbers of its own."""
    (tmp_path / "docs").mkdir()

    def line(case: str, what: str, against: str, unit: Any, target: float | None, *turns: float) -> Result:
        return Result(case, what, against, unit, target, list(turns))

    lines = [
        line("mlp", "MLP round", "plain loop", "times faster", 6, 7.0, 6.5, 8.0),
        line("mlp", "MLP round", "bare matrix products", "times the time", 1.6, 1.5, 1.7, 1.8),
        line("scale", "a device's round, K=100", "K=25", "times the time", None, 1.0),
        line("scale", "a device's round, K=10,000", "K=25", "times the time", 1.2, 1.1),
        line("scale", "peak memory of a round, K=10,000", "size of theta", "times the size", 2.5, 1.2),
    ]
    Measured(HERE, 3, {"mlp": 1.0}, lines).write(tmp_path / "docs/performance.json")
    others = {
        "machine": HERE,
        "versions": {"drdsgd": "0.1.0", "pfl-research": "0.6.0"},
        "missing": {"Flower": "Flower can't be installed: ERROR: none"},
        "tools": {"drdsgd": [{"rounds": 0.5, "command": 3.0}], "pfl-research": [{"rounds": 1.5, "command": 6.0}]},
        "results": [
            line("flute", "rounds of FLUTE's benchmark", "pfl-research", "times faster", 2, 3.0).to_json(),
            line("flute", "the whole command", "pfl-research", "times faster", None, 2.0).to_json(),
        ],
    }
    (tmp_path / "docs/performance-others.json").write_text(json.dumps(others))
    shares = {"a round": {"aten::bmm": 60.4, "aten::mm": 20, "c": 3, "d": 2, "e": 1}}
    (tmp_path / "docs/performance-time.json").write_text(json.dumps({"shares": shares}))
    return tmp_path


def test_blocks_have_the_numbers(measured: Path) -> None:
    found = page.blocks(measured)
    assert found["machine"] == "\nMeasured on 2 cores of an AMD EPYC (avx2, avx512f), torch 2.13.0.\n\n"
    assert "| MLP round | plain loop | 7.00 times faster | 6.50 to 8.00 | at least 6 | reached |\n" in found["table"]
    assert "| 1.70 times the time | 1.50 to 1.80 | at most 1.6 | **not reached** |\n" in found["table"]
    assert (
        "| pfl-research 0.6.0 | 1.50 s | 3.0 times faster (at least 2, reached) | 6.00 s | 2.0 times faster |\n"
        in found["others"]
    )
    assert "| drdsgd 0.1.0 | 0.50 s |  | 3.00 s |  |\n" in found["others"]
    assert "(avx2, avx512f), torch 2.13.0. Turns of each: 1. These numbers are to be measured" in found["others"]
    assert "Not measured: Flower can't be installed: ERROR: none.\n" in found["others"]
    assert found["time"] == "\n- a round: `aten::bmm` 60 %, `aten::mm` 20 %, `c` 3 %, `d` 2 %\n\n"
    sentence = " ".join(found["sentence"].split())
    assert "7.0 times as fast as a loop over 25 PyTorch modules, and takes 1.7 times as long" in sentence
    assert "A device among 10,000 costs 1.1 times as much" in sentence
    assert "are 3.0 times as fast as pfl-research's." in sentence


def test_few_turns_are_said_to_be_few(measured: Path) -> None:
    path = measured / "docs/performance.json"
    values = json.loads(path.read_text())
    values["results"][0]["turns"] = [7.0]
    path.write_text(json.dumps(values))
    assert "Turns of each: 1." in page.blocks(measured)["machine"]


def test_pages_are_written_and_stay_as_they_are(measured: Path) -> None:
    blocks = [f"before\n\n<!-- measured: {name} -->\nold\n<!-- end -->\n\nafter\n" for name in page.blocks(measured)]
    for name in page.PAGES:
        (measured / name).write_text("".join(blocks))
    page.main(measured)
    for name in page.PAGES:
        text = (measured / name).read_text()
        assert "old" not in text and text.count("before") == text.count("after") == len(blocks)
        assert text == page.filled(text, page.blocks(measured))


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    one = Result("mlp", "a", "b", "times the time", 1.5, [1.0, 2.0], {"a": [1.0]}, "why")
    there = Measured(HERE, 2, {"mlp": 3.0}, [one])
    there.write(tmp_path / "bench.json")
    assert results.read(tmp_path / "bench.json") == there
    again = Result("mlp", "a", "b", "times the time", 1.5, [3.0])
    assert there.having("mlp", 4.0, [again]) == Measured(HERE, 2, {"mlp": 4.0}, [again])
    with pytest.raises(InputError, match="is not a file of this benchmark"):
        results.read(Path(__file__))


def test_the_processor_is_named_with_its_features(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512_bf16 amx_tile avx512fp16\n")
    assert machine.features(cpuinfo) == ["avx2", "avx512_bf16", "amx_tile"]
    assert machine._processor(cpuinfo) == "Some CPU"
    assert machine.features(tmp_path / "none") == [] and machine._processor(tmp_path / "none")
    assert set(machine.machine()) == {"cores", "processor", "features", "capability", "python", "torch", "drdsgd"}
