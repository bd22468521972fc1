"""Golden runs: no part's results change unless its number in `drdsgd.core.numerics` is raised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from drdsgd.core import gradients
from drdsgd.core.compression import COMPRESSIONS
from drdsgd.core.numerics import NUMERICS
from drdsgd.experiments import registry
from drdsgd.experiments.records import numerics_of
from tests.laws import golden

GOLDEN: dict[str, dict[str, Any]] = json.loads(golden.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", golden.RUNS)
def test_results_are_those_of_the_golden_run(name: str) -> None:
    assert golden.complaint(name, GOLDEN.get(name), golden.results(name)) == ""


def test_every_part_has_a_golden_run_that_uses_it() -> None:
    assert set(NUMERICS) <= {name.partition(",")[0] for name in golden.RUNS}
    for name in golden.RUNS:
        assert name.partition(",")[0] in numerics_of(golden.experiment(name))
    assert GOLDEN.keys() == golden.RUNS.keys()


def test_every_row_of_the_registry_is_a_part() -> None:
    tables = {
        "objective": registry.OBJECTIVES, "optimizer": registry.OPTIMIZERS, "baseline": registry.SERVERS,
        "compressor": set(COMPRESSIONS) - {"none"},
    }  # fmt: skip
    for kind, table in tables.items():
        parts = {name.partition(",")[0] for name in golden.RUNS}
        assert {part.partition(" ")[2] for part in parts if part.startswith(f"{kind} ")} == set(table)


@pytest.mark.parametrize("name", ["kernel mlp", "kernel batched", "kernel loop"])
def test_the_kernel_is_the_one_that_is_named(name: str) -> None:
    used = set()
    makers = {"mlp": "_by_hand", "batched": "_autograd", "loop": "_loop"}

    def noting(kernel: str) -> Any:
        make = getattr(gradients, makers[kernel])

        def made(*arguments: Any) -> Any:
            used.add(f"kernel {kernel}")
            return make(*arguments)

        return made

    with patch.multiple(gradients, **{maker: noting(kernel) for kernel, maker in makers.items()}):
        golden.results(name)
    # a loop is a loop over passes by autograd
    assert used - ({"kernel batched"} if name == "kernel loop" else set()) == {name}
    assert name in numerics_of(golden.experiment(name))


def test_results_that_change_are_told_with_what_to_do() -> None:
    name = "optimizer gt-adam, compressed"
    stored = GOLDEN[name]
    changed = {**stored["results"], "device 3": stored["results"]["device 3"] * (1 + 1e-7)}
    said = golden.complaint(name, stored, changed)
    assert said.startswith("the numbers of optimizer gt-adam changed: ") and "src/drdsgd/core/numerics.py" in said
    rounding = {**stored["results"], "device 3": stored["results"]["device 3"] * (1 + 1e-9)}
    assert golden.complaint(name, stored, rounding) == ""
    with patch.dict(NUMERICS, {"optimizer gt-adam": 2}):  # raised, but not written
        said = golden.complaint(name, stored, changed)
    assert said == f"the golden run of {name} is not that of today's numerics: run `python -m tests.laws.golden`"
    assert golden.complaint(name, None, changed) == said


def test_writing_renews_only_what_was_raised(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    some = {name: golden.RUNS[name] for name in ("objective erm", "objective term")}
    with patch.object(golden, "FILE", file), patch.object(golden, "RUNS", some):
        golden.main()
        written = json.loads(file.read_text())
        assert all(golden.complaint(name, GOLDEN[name], run["results"]) == "" for name, run in written.items())
        with patch.object(golden, "results", lambda name: {"train loss": 9.0}):
            with pytest.raises(SystemExit, match="the numbers of objective erm changed"):
                golden.main()
            assert json.loads(file.read_text()) == written
        with patch.dict(NUMERICS, {"objective term": 2}):
            golden.main()
        assert json.loads(file.read_text()) == {
            **written, "objective term": {**written["objective term"], "numerics": {
                **written["objective term"]["numerics"], "objective term": 2,
            }},
        }  # fmt: skip
