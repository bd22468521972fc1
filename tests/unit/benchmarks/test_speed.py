"""The benchmark: that it measures what it says. Its times are never asserted."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from drdsgd.errors import Died
from drdsgd_benchmarks import cifar, sides, speed
from drdsgd_benchmarks import turns as turns_of
from drdsgd_benchmarks.machine import machine
from drdsgd_benchmarks.results import Measured, Result, costs, read
from tests.support.program import drdsgd as program
from tests.support.program import one_line

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
    result = Result("case", "this", "that", unit, target, turns)
    assert result.reached is reached
    said = result.to_json()
    assert (said["median"], said["low"], said["high"], said["reached"]) == (
        turns[len(turns) // 2],
        min(turns),
        max(turns),
        reached,
    )


def test_sides_take_turns_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_of, "TURN_SECONDS", 0.01)
    ticks: list[None] = []
    small = {"K": 2, "B": 3}
    turns = turns_of.in_turns(
        {
            "drdsgd": ("ours", {"threads": 1, "kind": "mlp", **small}),
            "plain": ("plain", {"threads": 1, "kind": "mlp", **small}),
        },
        2,
        lambda: ticks.append(None),
    )
    assert len(ticks) == 2
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in turns.seconds.values())
    assert turns.own_bytes["drdsgd"] > 2**20
    turns.seconds["plain, faster"] = [1e-9, 1e-9]
    assert turns.best("plain") == "plain, faster"


def test_a_side_that_ends_is_said_so() -> None:
    with pytest.raises(Died, match="ended with status"):
        turns_of.in_turns(
            {"none": ("products", {"threads": 1, "pool": True, "K": -1, "B": 3, "library": "MKL"})}, 1, lambda: None
        )


def test_the_bare_products_are_those_of_a_round() -> None:
    K, B, d = 8, 6, 109_386
    layers = [784 * 128, 128 * 64, 64 * 10]
    for library in ["MKL", "oneDNN"]:
        before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]  # torch has it, its types do not
        try:
            step = sides.products(threads=1, K=K, B=B, pool=True, library=library)
            with FlopCounterMode(display=False) as counter:
                step()
        finally:
            torch.backends.mkldnn.matmul.fp32_precision = before  # type: ignore[attr-defined]  # torch has it, its types do not
        # forward, gradients of weights, gradients of all inputs but the first layer's, and mixing by a dense matrix
        assert counter.get_total_flops() == 2 * K * B * (3 * sum(layers) - layers[0]) + 2 * K * K * d


def test_onednn_is_a_library_for_float32_only_if_it_computes_so(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch has it, its types do not
    before = matmul.fp32_precision
    sides.onednn_is_exact()
    assert matmul.fp32_precision == before

    def in_bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b) if a.dtype is torch.float64 else torch.mm(a.bfloat16(), b.bfloat16()).to(a)

    monkeypatch.setattr(torch.Tensor, "__matmul__", in_bfloat16)
    assert not sides.onednn_is_exact()


def test_an_option_is_there_if_train_has_it() -> None:
    assert sides.has("batch_size") and not sides.has("no_such_option")


@pytest.mark.parametrize("algorithm", sides.ALGORITHMS)
def test_every_method_takes_rounds(algorithm: str) -> None:
    step = sides.ours(threads=1, B=2, algorithm=algorithm, kind="mlp", K=4, degree=2, n=3)
    assert step().state.t == 1 and step().state.t == 2


def test_the_memory_of_a_run_is_without_that_of_the_process() -> None:
    K = 40
    size = 4 * 109_386 * K  # theta
    settings = {"threads": 1, "kind": "mlp", "K": K, "B": 2, "degree": 4, "n": 2}
    turns = turns_of.in_turns({"dsgd": ("ours", {"algorithm": "dsgd", **settings})}, 1, lambda: None)
    assert size < turns.own_bytes["dsgd"] < 10 * size < 200e6  # a process with torch has more


class Known:
    """A side whose turns take a known time, three times as long while a core is busy."""

    busy = False

    def __init__(self, name: str, settings: dict[str, Any], spinning: bool) -> None:
        assert spinning == (name == "plain" or settings.get("pool") is False)
        threads, seconds = settings["threads"], {"ours": 2.0, "plain": 12.0, "products": 1.0}
        self.seconds: float = seconds[name] * settings.get("K", 1) / 25 / threads
        if settings.get("channels_last"):
            self.seconds /= 2
        if settings.get("eval_every"):
            self.seconds *= 6
        if settings.get("K") == 10_000:
            self.seconds *= 1.5
        if settings.get("library") == "oneDNN":
            self.seconds /= 2
        if settings.get("options") == {"precision": "bfloat16"}:
            self.seconds /= 4
        self.seconds *= {"dr-gt-adam": 3, "qg-dsgdm": 2, "choco-sgd": 1.5}.get(settings.get("algorithm", ""), 1)
        self.own_bytes = 2 * 4 * 109_386 * settings.get("K", 0)

    def ready(self) -> None: ...

    def close(self) -> None: ...

    def turn(self) -> float:
        return self.seconds * (3 if Known.busy else 1)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    Known.busy = True
    yield
    Known.busy = False


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides whose times are known, on two cores, with enough memory, and oneDNN as a library for float32."""
    monkeypatch.setattr(turns_of, "Side", Known)
    monkeypatch.setattr(speed, "_a_busy_core", busy)
    monkeypatch.setattr(speed, "_fits", lambda size: True)
    monkeypatch.setattr(speed, "default_threads", lambda: 2)
    monkeypatch.setattr(sides, "onednn_is_exact", lambda: True)


@pytest.mark.usefixtures("known")
def test_ratios_are_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "has", lambda option: False)
    ticks: list[tuple[float, str]] = []
    names = ["mlp", "cnn", "methods", "scale", "load", "evaluation"]
    measured = list(speed.run(names, 4, lambda done, name: ticks.append((done, name))))
    assert [name for name, _, _ in measured] == names
    results = list(itertools.chain(*(found for _, _, found in measured)))
    assert ticks[-1] == (6, "evaluation") and len(ticks) == 6 * 5
    assert {(r.what, r.against): r.median for r in results} == pytest.approx(
        {
            ("MLP round", "plain loop"): 6,
            ("MLP round", "bare matrix products"): 4,
            ("CNN round", "plain loop"): 3,
            ("DR-GTAdam, 4 bits, K=25", "DSGD"): 3,
            ("QG-DSGDm, 4 bits, K=25", "DSGD"): 2,
            ("CHOCO-SGD, 4 bits, K=25", "DSGD"): 1.5,
            ("DR-GTAdam, 4 bits, K=1,000", "DSGD"): 3,
            ("peak memory of DR-GTAdam, 4 bits, K=1,000", "size of theta"): 2,
            ("MLP round, one core busy", "quiet round"): 3,
            ("CNN round, one core busy", "quiet round"): 3,
            ("a device's round, K=100", "K=25"): 1,
            ("a device's round, K=1,000", "K=25"): 1,
            ("a device's round, K=10,000", "K=25"): 1.5,
            ("peak memory of a round, K=10,000", "size of theta"): 2,
            ("evaluation, 10,000 images", "MLP round"): 5,
        }
    )
    assert {K: seconds[0] for K, seconds in costs(results).items()} == pytest.approx(
        {25: 0.04, 100: 0.04, 1_000: 0.04, 10_000: 0.06}
    )


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("exact", "target"), [(True, 6), (False, 4.5)])
def test_the_target_is_that_of_the_fastest_library(exact: bool, target: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "onednn_is_exact", lambda: exact)
    first = speed.mlp(2, 1, lambda: None)[0]
    assert first.target == target and ("oneDNN" in first.note) == exact


@pytest.mark.usefixtures("known")
def test_bfloat16_is_measured_where_the_option_and_the_instructions_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"mlp": ("MLP round, bfloat16", 24.0, 7), "cnn": ("CNN round, bfloat16", 12.0, 1.8)}
    for option, features in itertools.product([True, False], [["avx2", "avx512_bf16"], ["avx2"]]):
        monkeypatch.setattr(sides, "has", lambda name, option=option: option)
        monkeypatch.setattr(speed, "features", lambda features=features: features)
        for name, row in rows.items():
            found = [(r.what, round(r.median, 9), r.target) for r in speed.CASES[name](2, 1, lambda: None)]
            assert (row in found) == (option and len(features) == 2)


def test_many_devices_are_left_out_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns_of, "Side", Known)
    monkeypatch.setattr(speed, "_fits", lambda size: size < 2**30)
    assert [r.what for r in speed.scale(2, 1, lambda: None)] == ["a device's round, K=100"]
    assert "memory is enough for K=100 only" in capsys.readouterr().err
    assert all("K=25" in r.what for r in speed.methods(2, 1, lambda: None))
    assert "memory is not enough for dr-gt-adam at K=1,000" in capsys.readouterr().err


def test_the_data_are_spread_over_all_devices() -> None:
    made = sides.made_up(K=3, n=5, test=7, shape=(2,))
    assert made.train.sizes.tolist() == [5, 5, 5] and made.test.sizes.tolist() == [3, 2, 2]


def test_commands_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases that run whole commands, with commands that take a known time."""
    runs: list[tuple[Any, ...]] = []

    def timed(command: list[str]) -> float:
        threads = int(command[command.index("--threads") + 1]) if "--threads" in command else 1
        return 8.0 / threads

    def once(processes: int | None, arguments: list[str], threads: int) -> dict[str, float]:
        runs.append((processes, threads, len(list(Path(arguments[1]).iterdir()))))
        return {"seconds": 3.0 if processes else 2.0}

    monkeypatch.setattr(speed, "_timed", timed)
    monkeypatch.setattr(speed, "_succeeds", lambda command: json.dumps({"rounds": 3.0, "evaluations": 1.0}))
    monkeypatch.setattr(speed, "once", once)
    ticks: list[None] = []
    for name, median, turns in [("demo", 8.0, 2), ("study", 2.0, 2), ("cifar", 25.0, 2), ("ranks", 1.5, 3)]:
        (found,) = speed.CASES[name](2, 5, lambda: ticks.append(None))
        assert (found.median, len(found.turns)) == (median, turns)
    assert len(ticks) == 4 * 5
    assert runs[:4] == [(2, 1, 100), (None, 2, 100), (None, 2, 100), (2, 1, 100)]


def test_two_ranks_need_two_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.ranks(1, 1, lambda: None) == []
    assert "two ranks need two cores" in capsys.readouterr().err


def test_a_command_that_fails_ends_the_case() -> None:
    with pytest.raises(Died, match=r"a command of the benchmark failed: .*unknown"):
        speed._timed([sys.executable, "-m", "drdsgd", "train", "--algorithm", "none"])


def test_a_run_of_the_cnn_takes_rounds_and_evaluations() -> None:
    found = cifar.run(threads=1, rounds=2, train=40, test=20)
    assert found["rounds"] > 0 and found["evaluations"] > 0


def test_the_command(tmp_path: Path) -> None:
    said = program("bench", "start", "start", "--repeats", "1", "--out", str(tmp_path / "bench.json"))
    assert said.status == 0
    assert "drdsgd --help" in said.out and "at most 0.3" in said.out and "torch" in said.out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["machine"]["cores"] >= 1 and written["cases"]["start"] > 0
    (result,) = written["results"]
    assert result["case"] == "start" and len(result["seconds"]["drdsgd --help"]) == 1


def fake(name: str, value: float) -> speed.Case:
    """A case with one result."""
    return lambda cores, repeats, tick: [Result(name, name, "that", "times faster", 1, [value] * repeats)]


def test_what_was_measured_before_an_interruption_is_kept_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(cores: int, repeats: int, tick: turns_of.Tick) -> list[Result]:
        raise KeyboardInterrupt

    monkeypatch.setitem(speed.CASES, "start", fake("start", 2.0))
    monkeypatch.setitem(speed.CASES, "cnn", interrupted)
    out = tmp_path / "new" / "bench.json"
    arguments = ["bench", "start", "cnn", "--repeats", "1", "--out", str(out)]
    assert program(*arguments).status == 130
    assert [r.case for r in read(out).results] == ["start"]
    # what is there is not measured again
    monkeypatch.setitem(speed.CASES, "start", interrupted)
    monkeypatch.setitem(speed.CASES, "cnn", fake("cnn", 3.0))
    assert program(*arguments, "--resume").status == 0
    assert [(r.case, r.median) for r in read(out).results] == [("start", 2.0), ("cnn", 3.0)]
    assert list(read(out).cases) == ["start", "cnn"]
    # without --resume all is measured anew
    assert program(*arguments).status == 130


def test_results_of_another_machine_are_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(speed.CASES, "cnn", fake("cnn", 3.0))
    out = tmp_path / "bench.json"
    arguments = ["bench", "cnn", "--out", str(out), "--resume"]
    assert one_line(program(*arguments)) == f"{out} is not there; leave out --resume to measure"
    program("bench", "cnn", "--repeats", "2", "--out", out)
    assert one_line(program(*arguments)) == (
        f"--resume: {out} was measured with --repeats 2, this is 5; leave out --resume, or use another --out"
    )
    for name, value in {"torch": "1.0", "processor": "another"}.items():
        written = json.loads(out.read_text())
        written["machine"][name] = value
        (other := tmp_path / f"{name}.json").write_text(json.dumps(written))
        said = one_line(program("bench", "cnn", "--repeats", "2", "--out", other, "--resume"))
        assert said.startswith(f"--resume: {other} was measured with {name} {value}, this is ")
    out.write_text("{}")
    assert f"{out} is not a file of this benchmark (KeyError 'results')" in one_line(program(*arguments))


def test_a_kept_case_gives_the_picture(tmp_path: Path) -> None:
    seconds = {"K=25": [1e-3], "K=100": [2e-3]}
    kept = Result("scale", "a device's round, K=100", "K=25", "times the time", None, [2.0], seconds)
    out, plot = tmp_path / "bench.json", tmp_path / "cost.svg"
    Measured(machine(), 5, {"scale": 1.0}, [kept]).write(out)
    assert program("bench", "scale", "--resume", "--out", out, "--plot", plot).status == 0
    assert plot.stat().st_size > 0


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
