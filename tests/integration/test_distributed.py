"""The same experiment in several processes equals the local one, also after ranks are killed or stopped."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drdsgd.core.round import State
from drdsgd.engines.local import SingleProcess
from drdsgd.errors import Died
from drdsgd.experiments.records import Folder
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress
from tests.laws import equality
from tests.support.program import (
    assert_same_run,
    contents,
    drdsgd,
    evaluations,
    is_saved,
    refused,
    saved,
    tensors,
    wait_for,
)
from tests.support.together import Together, free_port, programs, worlds

EXACT = [
    "--dataset", "synthetic", "--devices", "7", "--graph", "ring", "--dtype", "float64", "--threads", "1",
    "--eval-every", "10", "--checkpoint-every", "10", "--timeout", "60",
]  # fmt: skip
RUN = [
    "train",
    *EXACT,
    "--rounds",
    "40",
    "--local-every",
    "3",
    "--algorithm",
    "dr-qgm",
    "--compression",
    "none",
    "--eta",
    "0.05",
]
# a model with slow rounds, so that a run can be disturbed; once a file "go on" exists, rounds are fast
SLOW = """
import time
from pathlib import Path
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        if not Path(__file__).with_name("go on").exists():
            time.sleep(0.05)
        return super().forward(x)

def net(shape, classes):
    return Slow(*shape, classes)
"""
LONG = [*RUN, "--model", "slow_net:net"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert drdsgd(*RUN, "--out", path).status == 0
    return path


@pytest.fixture(scope="module")
def go_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that makes slow rounds fast, also in a run that is under way."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "slow_net.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield folder / "go on"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, go_on: Path) -> Callable[[int], Path]:
    """The slow run in `size` processes."""

    @functools.cache
    def run(size: int) -> Path:
        path = tmp_path_factory.mktemp("undisturbed")
        go_on.touch()
        said = programs(path / "logs", *[[*LONG, "--out", path / "run"]] * size).end()
        assert said.status == [0] * size, said.text
        return path / "run"

    return run


def assert_equal(path: Path, whole: Path) -> None:
    """The same run up to rounding; several processes record more fields."""
    assert Folder(path).status == Folder(whole).status == "finished"
    assert Folder(path).config.read_bytes() == Folder(whole).config.read_bytes()
    assert Folder(path).network.read_bytes() == Folder(whole).network.read_bytes()
    mine, theirs = evaluations(path), evaluations(whole)
    assert len(mine) == len(theirs)
    for found, expected in zip(mine, theirs, strict=True):
        added = {"bytes_between_ranks", "exchange_seconds"}
        assert found.keys() - added == expected.keys() - added
        for name in ("consensus_distance", "train_loss", "losses", "weights"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)
        for name in ("round", "consensus", "local", "per_class", "floats_sent"):
            assert found[name] == expected[name]
    for name, value in tensors(whole).items():
        torch.testing.assert_close(tensors(path)[name], value, rtol=1e-10, atol=1e-13)


# ------------------------------------------------------------------ equality


@pytest.mark.parametrize(("size", "least_bytes"), [(2, 0), (3, 2**20), (4, 0)])
def test_every_method_gives_what_one_process_gives(size: int, least_bytes: int, tmp_path: Path) -> None:
    """Seven devices, so that processes host different numbers of them; through shared memory and as messages."""
    said = worlds(size, tmp_path, equality.every_case, least_bytes)
    assert said.status == [0] * size, said.text


LAWS: list[Callable[..., None]] = [
    equality.in_float32, equality.bytes_of_the_cut, equality.memory_that_is_shared, equality.all_diverge_alike,
    equality.all_refuse_alike, equality.a_place_in_use_is_left_alone, equality.what_all_say,
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_laws_of_several_processes(law: Callable[..., None], tmp_path: Path) -> None:
    said = worlds(3, tmp_path, law)
    assert said.status == [0] * 3, said.text


def torchrun(*arguments: object, restarts: int = 0) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        f"--max-restarts={restarts}", "-m", "drdsgd", *map(str, arguments),
    ]  # fmt: skip


def test_under_torchrun_the_record_is_that_of_one_process(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run"
    done = subprocess.run(torchrun(*RUN, "--out", path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report:") == 1  # only one of them prints
    assert_equal(path, whole)
    assert sorted(part.path.name for part in checkpoint.parts(Folder(path).checkpoint)) == [
        "round-40-part-1-of-2.safetensors", "round-40-part-2-of-2.safetensors",
    ]  # fmt: skip
    last = json.loads(Folder(path).metrics.read_text().splitlines()[-1])
    assert last["bytes_between_ranks"] > 0 and last["exchange_seconds"] > 0


# ----------------------------------------------------------- killed and stopped


def ranks_of(out: Path) -> dict[int, int]:
    """rank -> process id, for a run that torchrun has started."""
    found = dict[int, int]()
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if str(out).encode() in words and b"torch.distributed.run" not in words:
            found |= {int(one[5:]): int(folder.name) for one in environment if one.startswith(b"RANK=")}
    return found


def under_way(size: int, path: Path, go_on: Path, t: int = 0) -> Together:
    """The slow run in `size` processes, once it has a checkpoint of round t or later."""
    go_on.unlink(missing_ok=True)
    together = programs(path.with_name("logs"), *[[*LONG, "--out", path]] * size)
    wait_for(lambda: is_saved(path) and checkpoint.parts(Folder(path).checkpoint)[0].t >= t)
    return together


def test_torchrun_recovers_from_a_killed_rank(tmp_path: Path, go_on: Path, undisturbed: Callable[[int], Path]) -> None:
    path, expected = tmp_path / "run", undisturbed(2)
    go_on.unlink(missing_ok=True)
    program = subprocess.Popen(
        torchrun(*LONG, "--out", path, restarts=1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(lambda: is_saved(path) and checkpoint.parts(Folder(path).checkpoint)[0].t >= 10)
    os.kill(ranks_of(path)[1], signal.SIGKILL)
    go_on.touch()
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 0, said
    assert said.count("another process ended") == 1  # so it was disturbed
    assert_same_run(path, expected)


def test_a_killed_rank_ends_all_with_one_line(tmp_path: Path, go_on: Path, undisturbed: Callable[[int], Path]) -> None:
    path, expected = tmp_path / "run", undisturbed(3)
    together = under_way(3, path, go_on)
    together.children[1].kill()
    go_on.touch()
    said = together.end()
    assert said.status == [1, -signal.SIGKILL, 1]
    (line,) = said.lines
    assert "another process ended, or did not answer in time (" in line
    assert line.endswith(f"; continue with: torchrun ... -m drdsgd train --resume --out {path}")
    again = programs(tmp_path / "again", *[["train", "--resume", "--out", path]] * 3).end()
    assert again.status == [0] * 3, again.text
    assert_same_run(path, expected)


def test_a_rank_that_does_not_answer_is_given_up(tmp_path: Path, go_on: Path) -> None:
    path = tmp_path / "run"
    go_on.unlink(missing_ok=True)
    together = programs(tmp_path / "logs", *[[*LONG, "--timeout", "3", "--out", path]] * 2)
    wait_for(lambda: is_saved(path))
    stopped = together.children[1].pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    together.children[0].join(60)
    os.kill(stopped, signal.SIGKILL)
    said = together.end()
    assert said.status == [1, -signal.SIGKILL]
    assert "did not answer in time" in said.lines[0] and len(said.lines) == 1


def test_a_stop_is_agreed_on_and_devices_may_move_afterwards(
    tmp_path: Path, go_on: Path, undisturbed: Callable[[int], Path]
) -> None:
    """Only the last process is asked to stop."""
    path, expected = tmp_path / "run", undisturbed(2)
    together = under_way(2, path, go_on)
    pid = together.children[-1].pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    go_on.touch()
    said = together.end()
    assert said.status == [130, 130]
    (line,) = said.lines
    t = saved(path).state.t
    assert (
        f"stopped after round {t} of 40; continue with: torchrun ... -m drdsgd train --resume" in line and t % 10 == 0
    )
    for size in (1, 3):  # another number of processes needs --regroup
        other = programs(tmp_path / f"{size}", *[["train", "--resume", "--out", path]] * size).end()
        assert other.status == [2] * size and len(other.lines) == 1
        assert f"was written by 2 processes, not by {size}: --regroup moves the devices" in other.lines[0]
    assert "--regroup" in refused("train", "--resume", "--out", path)
    for folder in ("two", "locally"):
        shutil.copytree(path, tmp_path / folder)
    again = [(path, 3, ["--regroup"]), (tmp_path / "two", 2, [])]
    for out, size, more in again:
        words = ["train", "--resume", *more, "--out", out]
        said = programs(tmp_path / f"again-{size}", *[words] * size).end()
        assert said.status == [0] * size, said.text
    assert drdsgd("train", "--resume", "--regroup", "--out", tmp_path / "locally").status == 0
    assert_same_run(tmp_path / "two", expected)
    assert_equal(path, expected)
    assert_equal(tmp_path / "locally", expected)


def test_a_set_of_which_a_part_is_missing_is_no_checkpoint(
    tmp_path: Path, go_on: Path, undisturbed: Callable[[int], Path]
) -> None:
    """As if one of two was killed while it wrote its part: both continue from the previous set."""
    path, expected = tmp_path / "run", undisturbed(2)
    together = under_way(2, path, go_on, t=10)
    for child in together.children:
        child.kill()
    together.end()
    go_on.touch()
    before = {part.path: part.path.read_bytes() for part in checkpoint.parts(Folder(path).checkpoint)}
    again = programs(tmp_path / "again", *[["train", "--resume", "--out", path]] * 2).end()
    assert again.status == [0, 0], again.text
    Folder(path).summary.unlink()
    checkpoint.parts(Folder(path).checkpoint)[0].path.unlink()  # only the second part of the last round is left
    for file, content in before.items():
        file.write_bytes(content)
    again = programs(tmp_path / "once more", *[["train", "--resume", "--out", path]] * 2).end()
    assert again.status == [0, 0], again.text
    assert_same_run(path, expected)


def test_the_old_set_stays_until_all_parts_of_the_new_one_are_there(tmp_path: Path) -> None:
    class Alive(SingleProcess):
        def texts(self, text: str) -> list[str]:
            raise Died("another process ended")

    state = State(3, torch.ones(2, 4), {}, {})
    checkpoint.save(tmp_path, Progress(state, 0, 0.0, None), SingleProcess(2))
    with pytest.raises(Died):
        checkpoint.save(tmp_path, Progress(state._replace(t=5), 0, 0.0, None), Alive(2))
    assert [part.t for part in checkpoint.parts(tmp_path)] == [5, 3]


# ------------------------------------------------------------------------ data


def test_every_rank_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    """The devices are then those of all folders, in the order of the file names; no data are moved."""
    rng = np.random.default_rng(0)
    together = tmp_path / "together"
    for folder in (together, tmp_path / "site-0", tmp_path / "site-1"):
        folder.mkdir()
    for i, name in enumerate("bdaec"):
        # only the second has the last class
        arrays: dict[str, Any] = {"x": rng.normal(size=(12 + i, 3)), "y": np.arange(12 + i) % (2 + i % 2)}
        for folder in (together, tmp_path / f"site-{i % 2}"):
            np.savez(folder / f"{name}.npz", **arrays)
    fields = [
        "train", "--graph", "ring", "--dtype", "float64", "--threads", "1", "--rounds", "12", "--batch-size", "4",
        "--random-labels", "2",
    ]  # fmt: skip
    assert drdsgd(*fields, "--dataset", together, "--out", tmp_path / "local").status == 0
    own = [*fields, "--dataset", tmp_path / "site-{rank}", "--devices", "5"]
    said = programs(tmp_path / "logs", *[[*own, "--out", tmp_path / "apart"]] * 2).end()
    assert said.status == [0, 0], said.text
    shared = programs(tmp_path / "more", *[[*fields, "--dataset", together, "--out", tmp_path / "shared"]] * 2).end()
    assert shared.status == [0, 0], shared.text
    Folder(tmp_path / "apart").config.write_bytes(Folder(tmp_path / "local").config.read_bytes())  # names differ
    assert_equal(tmp_path / "apart", tmp_path / "local")
    assert_equal(tmp_path / "shared", tmp_path / "local")
    parts = checkpoint.parts(Folder(tmp_path / "apart").checkpoint)
    assert [checkpoint._header(part.path)[1] for part in parts] == [[0, 1, 2], [3, 4]]  # a b c, d e

    spoilt = programs(tmp_path / "spoilt", *[[*own, "--random-labels", "5", "--out", tmp_path / "x"]] * 2).end()
    assert len(spoilt.lines) == 1 and "--random-labels 5: must be below the number of devices, 5" in spoilt.lines[0]
    shutil.copy(tmp_path / "site-0" / "a.npz", tmp_path / "site-1")
    twice = programs(tmp_path / "twice", *[[*own, "--out", tmp_path / "x"]] * 2).end()
    assert twice.status == [2, 2] and len(twice.lines) == 1 and "several ranks have the file a.npz" in twice.lines[0]
    for file in (tmp_path / "site-1").iterdir():
        file.unlink()
    none = programs(tmp_path / "none", *[[*own, "--out", tmp_path / "x"]] * 2).end()
    assert none.status == [2, 2] and len(none.lines) == 1 and "rank 1 has no .npz files there" in none.lines[0]
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([["--eta", "0.1"], ["--eta", "0.2"]], "--eta is 0.1 for rank 0, but 0.2 for rank 1"),
        ([["--backend", "mpi"]] * 2, "--backend mpi: this torch was built without it; use gloo"),
        ([["--backend", "tcp"]] * 2, "--backend tcp: unknown; known are gloo, nccl, mpi"),
        ([["--backend", "nccl"]] * 2, "--backend nccl: "),
        ([["--devices", "2"]] * 3, "3 processes for 2 devices"),
        ([["--algorithm", "fedavg"]] * 2, "FedAvg has a server, which is simulated in one process"),
        ([["--mu", "-1"]] * 2, "--mu -1"),
        ([["--mu", "many"]] * 2, "--mu many: not a number"),
        ([["--graph", "nowhere.txt"]] * 2, "--graph nowhere.txt: "),
        ([["--engine", "remote"]] * 2, "--engine remote: unknown"),
        ([["--timeout", "0"]] * 2, "--timeout 0: give a positive number of seconds"),
        ([["--resume"], []], "--resume, --regroup: some ranks have them and some do not"),
        ([["--backend", "gloo", "--device", "cuda"]] * 2, "--device cuda: process "),
    ],
)
def test_bad_input_ends_all_ranks_with_one_line(tmp_path: Path, arguments: list[list[str]], says: str) -> None:
    run = ["train", *EXACT, "--timeout", "5", "--rounds", "4"]
    said = programs(tmp_path / "logs", *[[*run, *some, "--out", tmp_path / "run"] for some in arguments]).end()
    assert says in said.lines[0]
    assert not (tmp_path / "run").exists()
    assert said.status == [2] * len(arguments) and len(said.lines) == 1


def test_ranks_for_which_the_same_options_mean_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ranked_net.py").write_text(
        "import os, torch\n"
        "def net(shape, classes):\n"
        "    torch.manual_seed(int(os.environ['RANK']))\n"
        "    return torch.nn.Linear(*shape, classes)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        run = ["train", *EXACT, "--rounds", "4", "--model", "ranked_net:net", "--out", tmp_path / "run"]
        said = programs(tmp_path / "logs", *[run] * 2).end()
    assert said.status == [2, 2] and len(said.lines) == 1
    assert "the initial model differs between rank 1 and rank 0" in said.lines[0]


def test_parts_that_do_not_serve_are_not_passed_over(tmp_path: Path) -> None:
    """Parts from which a run can't continue must not let it start again: that would lose them."""
    path = tmp_path / "run"
    assert programs(tmp_path / "logs", *[[*RUN, "--out", path]] * 2).end().status == [0, 0]
    Folder(path).summary.unlink()
    first, second = checkpoint.parts(Folder(path).checkpoint)
    second.path.unlink()
    assert "has parts of a checkpoint of 2 processes" in refused("train", "--resume", "--regroup", "--out", path)
    first.path.rename(first.path.with_name("state.safetensors"))
    assert "is not a checkpoint of this version" in refused("train", "--resume", "--out", path)
    assert len(evaluations(path)) == 5


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        environment["MASTER_PORT"] = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "drdsgd", *RUN, "--timeout", "5", "--out", str(tmp_path / "run")],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("drdsgd: ")]
    assert len(lines) == 1 and f"could not connect at 127.0.0.1:{environment['MASTER_PORT']}" in lines[0]
    assert "Traceback" not in done.stderr


def test_without_torchrun_it_says_how(tmp_path: Path) -> None:
    line = refused("train", *EXACT, "--engine", "distributed", "--out", tmp_path / "run")
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set in the environment: start it with torchrun" in line
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        assert "--out: say which folder" in refused("train", *EXACT)
        # a run in this process alone can still be asked for
        assert drdsgd(*RUN, "--engine", "local", "--out", tmp_path / "run").status == 0
    assert contents(tmp_path / "run")
