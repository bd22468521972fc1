"""The benchmark: that it measures what it says. Its times are never asserted."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from drdsgd.errors import Died
from drdsgd.topology import graphs
from drdsgd_benchmarks import sides, speed
from tests.support.program import drdsgd as program

pytestmark = pytest.mark.slow


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
def test_a_target_is_a_bound_on_the_median(unit: Any, target: float | None, turns: list[float], reached: bool) -> None:
    result = speed.Result("case", "this", "that", unit, target, turns)
    assert result.reached is reached
    said = result.to_json()
    assert (said["median"], said["low"], said["high"], said["reached"]) == (
        turns[len(turns) // 2],
        min(turns),
        max(turns),
        reached,
    )


def test_sides_take_turns_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "TURN_SECONDS", 0.01)
    ticks: list[None] = []
    small = {"K": 2, "B": 3}
    turns = speed.in_turns(
        {
            "drdsgd": ("ours", {"threads": 1, "kind": "mlp", **small}),
            "plain": ("plain", {"threads": 1, "kind": "mlp", **small}),
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
    with pytest.raises(Died, match="ended with status"):
        speed.in_turns({"none": ("products", {"threads": 1, "pool": True, "K": -1, "B": 3})}, 1, lambda: None)


def test_the_arithmetic_is_that_of_the_products() -> None:
    K, B, d = 8, 6, 109_386
    step = sides.products(threads=1, K=K, B=B, pool=True)
    with FlopCounterMode(display=False) as counter:
        step()
    # they mix by a dense matrix
    links = 2 * graphs.erdos_renyi(K, 0.3, seed=0).number_of_edges()
    assert counter.get_total_flops() - 2 * K * K * d == speed._mlp_operations(K, B) - 2 * (K + links) * d


class Known:
    """A side whose turns take a known time, three times as long while a core is busy."""

    busy = False

    def __init__(self, name: str, settings: dict[str, Any], spinning: bool) -> None:
        assert spinning == (name == "plain" or settings.get("pool") is False)
        threads, seconds = settings["threads"], {"ours": 2.0, "plain": 12.0, "products": 1.0, "large_products": 9.0}
        self.seconds: float = seconds[name] * settings.get("K", 1) / 25 / threads
        if settings.get("channels_last"):
            self.seconds /= 2
        if settings.get("eval_every"):
            self.seconds *= 6
        if settings.get("K") == 10_000:
            self.seconds *= 1.5
        self.peak_bytes = 2 * 4 * 109_386 * settings.get("K", 0) + 32 * 792 * settings.get("K", 0)

    def ready(self) -> None: ...

    def close(self) -> None: ...

    def turn(self) -> float:
        return self.seconds * (3 if Known.busy else 1)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    Known.busy = True
    yield
    Known.busy = False


def test_ratios_are_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "Side", Known)
    monkeypatch.setattr(speed, "_a_busy_core", busy)
    monkeypatch.setattr(speed, "_fits", lambda size: True)
    monkeypatch.setattr(speed, "default_threads", lambda: 2)
    ticks: list[tuple[float, str]] = []
    names = ["mlp", "cnn", "load", "scale", "evaluation"]
    results = list(itertools.chain(*speed.run(names, 4, lambda done, name: ticks.append((done, name)))))
    assert ticks[-1] == (5, "evaluation") and len(ticks) == 5 * 5
    found = {(r.what, r.against): r.median for r in results}
    arithmetic = 9 / 25 / 2 * speed._mlp_operations(25, 87) / (2 * 2 * 1024**3)
    expected = {
        ("MLP round", "plain loop"): 6,
        ("MLP round", "bare matrix products"): 2,
        ("its arithmetic, as fast as one large product", "plain loop"): 6 / arithmetic,
        ("CNN round", "plain loop"): 3,
        ("MLP round, one core busy", "quiet round"): 3,
        ("CNN round, one core busy", "quiet round"): 3,
        ("a device's round, K=100", "K=25"): 1,
        ("a device's round, K=1,000", "K=25"): 1,
        ("a device's round, K=10,000", "K=25"): 1.5,
        ("peak memory, K=10,000", "size of theta"): 2,
        ("evaluation, 10,000 images", "MLP round"): 5,
    }
    assert found == pytest.approx(expected)
    assert {K: seconds[0] for K, seconds in speed.costs(results).items()} == pytest.approx(
        {25: 0.04, 100: 0.04, 1_000: 0.04, 10_000: 0.06}
    )


def test_many_devices_are_left_out_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "Side", Known)
    monkeypatch.setattr(speed, "_fits", lambda size: size < 2**30)
    assert [r.what for r in speed.scale(2, 1, lambda: None)] == ["a device's round, K=100"]
    assert "memory is enough for K=100 only" in capsys.readouterr().err


def test_the_data_are_spread_over_all_devices() -> None:
    made = sides.made_up(K=3, n=5, test=7, shape=(2,))
    assert made.train.sizes.tolist() == [5, 5, 5] and made.test.sizes.tolist() == [3, 2, 2]


def test_the_command(tmp_path: Path) -> None:
    said = program("bench", "start", "start", "--repeats", "1", "--out", str(tmp_path / "bench.json"))
    assert said.status == 0
    assert "drdsgd --help" in said.out and "at most 0.3" in said.out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["machine"]["cores"] >= 1
    (result,) = written["results"]
    assert result["case"] == "start" and len(result["seconds"]["drdsgd --help"]) == 1


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(cores: int, repeats: int, tick: speed.Tick) -> list[speed.Result]:
        raise KeyboardInterrupt

    monkeypatch.setitem(speed.CASES, "cnn", interrupted)
    said = program("bench", "start", "cnn", "--repeats", "1", "--out", str(tmp_path / "new" / "bench.json"))
    assert said.status == 130
    assert [r["case"] for r in json.loads((tmp_path / "new" / "bench.json").read_text())["results"]] == ["start"]


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    said = program("bench", "start", "--out", str(tmp_path))
    assert (said.status, said.err.strip()) == (2, f"drdsgd: --out {tmp_path}: that is a folder; name a file in it")


def test_help_names_the_cases() -> None:
    assert ", ".join(speed.CASES) in " ".join(program("bench", "--help").out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mpl"], "bench mpl: unknown, did you mean mlp?"),
        (["start", "--plot", "cost.png"], "--plot cost.png: the picture is made from the case scale; name it, too"),
        (
            ["scale", "--plot", "cost.gif"],
            "cost.gif: can't write a picture of that kind; end the name in .png, .pdf or .svg",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(arguments: list[str], message: str, tmp_path: Path) -> None:
    said = program("bench", *arguments, "--out", str(tmp_path / "bench.json"))
    assert (said.status, said.err.strip()) == (2, f"drdsgd: {message}")
    assert list(tmp_path.iterdir()) == []
