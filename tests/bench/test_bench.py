"""The benchmark: that it measures what it says. Its times are never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from drdsgd import bench
from drdsgd.bench import sides
from tests.program import drdsgd as program


@pytest.mark.parametrize(
    ("unit", "target", "turns", "reached"),
    [
        ("times faster", 2, [1.0, 2.5, 3.0], True),
        ("times faster", 2, [1.0, 1.5, 3.0], False),
        ("times the time", 2, [1.0, 1.5, 3.0], True),
        ("s more", 0.3, [0.2, 0.4, 0.5], False),
        ("times faster", None, [1.0], None),
    ],
)
def test_a_target_is_a_bound_on_the_median(unit: str, target: float | None, turns: list[float], reached: bool) -> None:
    result = bench.Result("case", "this", "that", unit, target, turns)  # type: ignore[arg-type]
    assert result.reached is reached
    said = result.to_json()
    assert (said["median"], said["low"], said["high"], said["reached"]) == (
        turns[len(turns) // 2],
        min(turns),
        max(turns),
        reached,
    )


def test_sides_take_turns_in_processes_of_their_own() -> None:
    ticks: list[None] = []
    small = {"K": 2, "B": 3}
    turns = bench.in_turns(
        {
            "drdsgd": ("ours", {"threads": 1, "kind": "mlp", **small}),
            "plain": ("plain", {"threads": 1, "kind": "mlp", **small}),
            "products": ("products", {"threads": 1, "pool": True, **small}),
        },
        2,
        lambda: ticks.append(None),
    )
    assert len(ticks) == 2
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in turns.seconds.values())
    assert all(peak > 2**20 for peak in turns.peak_bytes.values())
    turns.seconds["plain, faster"] = [1e-9, 1e-9]
    assert turns.best("plain") == "plain, faster"


def test_a_side_that_ends_is_said_so() -> None:
    with pytest.raises(RuntimeError, match="ended with status"):
        bench.in_turns({"none": ("products", {"threads": 1, "pool": True, "K": -1, "B": 3})}, 1, lambda: None)


def test_the_arithmetic_is_that_of_the_products() -> None:
    step = sides.products(threads=1, K=4, B=6, pool=True)
    with FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() == bench._mlp_operations(K=4, B=6)


def test_the_data_are_spread_over_all_devices() -> None:
    made = sides.made_up(K=3, n=5, test=7, shape=(2,))
    assert made.train.sizes.tolist() == [5, 5, 5] and made.test.sizes.tolist() == [3, 2, 2]


def test_the_command(tmp_path: Path) -> None:
    said = program("bench", "start", "--repeats", "1", "--out", str(tmp_path / "bench.json"))
    assert said.status == 0
    assert "drdsgd --help" in said.out and "at most 0.3" in said.out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["machine"]["cores"] >= 1
    (result,) = written["results"]
    assert result["case"] == "start" and len(result["seconds"]["drdsgd --help"]) == 1


def test_help_names_the_cases() -> None:
    assert ", ".join(bench.CASES) in " ".join(program("bench", "--help").out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mpl"], "bench mpl: unknown, did you mean mlp?"),
        (["start", "--plot", "cost.png"], "--plot cost.png: the picture is made from the case scale; name it, too"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(arguments: list[str], message: str, tmp_path: Path) -> None:
    said = program("bench", *arguments, "--out", str(tmp_path / "bench.json"))
    assert (said.status, said.err.strip()) == (2, f"drdsgd: {message}")
    assert list(tmp_path.iterdir()) == []
