"""Runs in several processes: the same bits as in one; if a process is killed, nothing is lost and none is left over."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from drdsgd.errors import InputError, Interrupted, named
from drdsgd.experiments import compare, records, workers
from drdsgd.experiments.compare import Cell, Study
from drdsgd.experiments.records import Folder
from tests.support.killing import process, program
from tests.support.program import (
    FIELDS,
    SMALL,
    assert_same_run,
    drdsgd,
    evaluations,
    is_saved,
    one_line,
    saved,
    small,
    wait_for,
)

BOTH = ("dsgd", "dr-dsgd")
# rounds that last as long as a file says, so that there is time to kill a process within them
SLOW = """
import sys, time
from pathlib import Path
from torch import nn

calls = 0

class Slow(nn.Linear):
    def forward(self, x):
        global calls
        calls += 1
        word = Path(__file__).with_name("word").read_text()
        if word == "bug" and getattr(sys.modules["__main__"].__spec__, "name", "") == "drdsgd.experiments.workers":
            raise RuntimeError("a bug")
        if calls > 10:  # before that, nothing is under way
            time.sleep(0.3 if word == "bug" else float(word))
        return super().forward(x)

def net(shape, classes):
    print("a model that prints")
    return Slow(*shape, classes)
"""
OPTIONS = [*SMALL, "--model", "slow:net", "--rounds", "100", "--eval-every", "50", "--checkpoint-every", "1000"]
OPTIONS += ["--seeds", "1"]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], object]]:
    """Sets the duration of a round of the model slow:net, also in running processes."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "slow.py").write_text(SLOW)

    def say(word: str) -> None:
        (folder / "new").write_text(word)
        (folder / "new").replace(folder / "word")

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield say


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, slow: Callable[[str], object]) -> Path:
    """The comparison of the other tests, undisturbed, in one process."""
    path = tmp_path_factory.mktemp("whole")
    slow("0")
    assert drdsgd("compare", *OPTIONS, "--threads", "1", "--out", path).status == 0
    return path


class Comparison:
    """A slow comparison in progress, with one run in the program's process and one in a worker."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, path.with_name("log")
        arguments = ["compare", *OPTIONS, "--threads", "2", "--out", str(path)]
        self.program: ForkServerProcess = process(program, arguments, self.log)
        self.here, self.there = path / "dsgd" / "seed-0", path / "dr-dsgd" / "seed-0"
        wait_for(lambda: Folder(self.there).metrics.exists() or not self.program.is_alive())
        assert self.program.pid is not None
        self.pid = self.program.pid
        (self.worker,) = [child for child in processes() if parent(child) == self.pid]

    def ended(self) -> int | None:
        """The exit status of the program; the worker ends by then, or soon after."""
        self.program.join(60)
        wait_for(lambda: self.worker not in processes())
        return self.program.exitcode

    def said(self) -> str:
        """The last line of the program, without its name and how to continue."""
        name, _, line = self.log.read_text().splitlines()[-1].partition(": ")
        assert name == "drdsgd"
        said, _, command = line.partition("; continue with: ")
        assert command == f"drdsgd compare --resume --out {self.path}"
        return said

    def assert_goes_on_to(self, whole: Path) -> None:
        """Resumed, here in one process, it ends as if nothing had happened."""
        compare.compare(compare.load(self.path / "study.toml"), self.path, resume=True, threads=1)
        for label in BOTH:
            assert_same_run(self.path / label / "seed-0", whole / label / "seed-0")


def stat(pid: int) -> list[str]:
    """State, parent and more of a process; nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return ["Z", "0"]


def parent(pid: int) -> int:
    return int(stat(pid)[1])


def processes() -> set[int]:
    """All living processes."""
    return {int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and stat(int(p.name))[0] != "Z"}


# -------------------------------------------------------------------- processes


def test_several_processes_give_what_one_gives(
    tmp_path: Path, slow: Callable[[str], object], capfd: pytest.CaptureFixture[str]
) -> None:
    """The same bits in the same order, also with a model that prints and a run that diverges."""
    specs = ("dsgd:rounds=100,eval-every=50,checkpoint-every=50", "dr-dsgd", "dr-dsgd:mu=0.005")
    plan = Study(specs, (0, 1), {**FIELDS, "rounds": 20, "model": "slow:net"})
    seen: list[tuple[Path, int]] = []

    def watch(cell: Cell, t: int) -> None:
        if len({path for path, _ in seen}) == 1 and cell.path != seen[0][0]:
            slow("0")  # the worker is there: now we need not wait for it any more
        seen.append((cell.path, t))

    slow("0.3")
    several = compare.compare(plan, tmp_path / "several", threads=2, watch=watch)
    one = compare.compare(plan, tmp_path / "one", threads=1)
    assert [(r.experiment, r.status, r.message) for r in several] == [(r.experiment, r.status, r.message) for r in one]
    assert {r.status for r in one} == {"finished", "diverged"}
    for a, b in zip(several, one, strict=True):
        assert a.path.relative_to(tmp_path / "several") == b.path.relative_to(tmp_path / "one")
        assert evaluations(a.path) == evaluations(b.path)
        if a.status == "finished":
            assert_same_run(a.path, b.path)
    # every run was watched to its end, two of them at the same time
    assert {(record.path, record.experiment.rounds) for record in several} <= set(seen)
    order = [path for path, _ in seen]
    assert order.index(several[1].path) < len(order) - order[::-1].index(several[0].path)
    assert "a model that prints" in capfd.readouterr().out


def test_a_comparison_that_is_asked_to_stop_saves_every_run(
    tmp_path: Path, slow: Callable[[str], object], whole: Path
) -> None:
    slow("0.3")
    comparison = Comparison(tmp_path / "comparison")
    os.kill(comparison.pid, signal.SIGINT)
    assert comparison.ended() == 130
    assert comparison.said() == "stopped with 2 runs unfinished"
    for run in (comparison.here, comparison.there):
        assert 0 <= saved(run).state.t < 100
    slow("0")
    comparison.assert_goes_on_to(whole)


def test_who_asks_twice_does_not_wait(tmp_path: Path, slow: Callable[[str], object], whole: Path) -> None:
    slow("0.3")
    comparison = Comparison(tmp_path / "comparison")
    slow("1000")
    time.sleep(0.5)  # now nobody finishes a round
    os.kill(comparison.pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(comparison.pid, signal.SIGINT)
    assert comparison.ended() == 130
    assert comparison.said() == "stopped"
    slow("0")
    comparison.assert_goes_on_to(whole)


def test_workers_notice_that_they_are_alone(tmp_path: Path, slow: Callable[[str], object], whole: Path) -> None:
    slow("0.3")
    comparison = Comparison(tmp_path / "comparison")
    os.kill(comparison.pid, signal.SIGKILL)
    assert comparison.ended() == -signal.SIGKILL
    assert is_saved(comparison.there)  # it took its time for that
    slow("0")
    comparison.assert_goes_on_to(whole)


@pytest.mark.parametrize(
    ("death", "says"),
    [
        ("kill", "was killed (signal 9, Killed); if memory was short, use fewer --threads"),
        ("bug", "ended with status 1; see its output above"),
    ],
)
def test_a_worker_that_dies_is_told_in_one_line(
    tmp_path: Path, slow: Callable[[str], object], whole: Path, death: str, says: str
) -> None:
    slow("0.3")
    comparison = Comparison(tmp_path / "comparison")
    if death == "kill":
        os.kill(comparison.worker, signal.SIGKILL)
    else:
        slow("bug")
    assert comparison.ended() == 1
    assert comparison.said() == f"the process of the run in {comparison.there} {says}"
    assert ("RuntimeError: a bug" in comparison.log.read_text()) == (death == "bug")
    assert is_saved(comparison.here)  # the other run was asked to stop
    slow("0")
    comparison.assert_goes_on_to(whole)


def test_a_worker_that_cant_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    said = drdsgd("compare", *SMALL, "--rounds", "3000", "--seeds", "1", "--threads", "2", "--out", tmp_path)
    assert one_line(said, 1).startswith("the process of a worker ended with status 1; see its output above; cont")


# ---------------------------------------------------------------------- threads


class Thread:
    """A worker on a thread of this process, where it starts at once and can be patched."""

    def __init__(self, number: int, threads: int) -> None:
        channel = socket.socket(fileno=os.dup(number))

        def work() -> None:
            with channel:
                workers.serve(channel)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def kill(self) -> None:
        """A thread cannot be killed; but it ends as soon as its socket is closed."""

    def wait(self, timeout: float = 0) -> int:
        self._thread.join(60)
        return 0


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_start", Thread)
    monkeypatch.setattr(workers, "SAY_EVERY", 0.0)


# the first run has time to receive messages of the second
UNEVEN = Study(("dsgd:rounds=3000", "dr-dsgd"), (0,), {**FIELDS, "checkpoint_every": 10**6, "eval_every": 3000})


def assert_stopped(path: Path) -> None:
    """A run was asked to stop, and saved a checkpoint."""
    assert Folder(path).status == "unfinished"
    assert 0 <= saved(path).state.t < 3000


@pytest.mark.usefixtures("here")
def test_bad_input_of_one_run_stops_the_others(tmp_path: Path) -> None:
    with Folder(tmp_path / "dr-dsgd" / "seed-0").lock(), pytest.raises(InputError, match="another process is working"):
        compare.compare(UNEVEN, tmp_path, threads=2)
    assert_stopped(tmp_path / "dsgd-rounds=3000" / "seed-0")
    made = compare.compare(UNEVEN, tmp_path, resume=True, threads=2)
    assert [record.final.round for record in made] == [3000, 6]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InputError(f"{named('p', 0.1)}: raise p"), InputError(f"{named('p', 0.1)}: raise p")),
        (OSError(errno.ENOSPC, "No space left on device"), OSError(errno.ENOSPC, "No space left on device")),
        (PermissionError(errno.EACCES, "Denied", "/x"), PermissionError(errno.EACCES, "Denied", "/x")),
        (PermissionError(errno.EACCES, "Denied", Path("/x")), PermissionError(errno.EACCES, "Denied", "/x")),
        (OSError("odd"), OSError("odd")),
        (MemoryError("72 GB"), MemoryError("72 GB")),
        (RuntimeError("can't allocate memory: 72 GB"), MemoryError("can't allocate memory: 72 GB")),
        (Interrupted("stopped after round 3 of 6"), Interrupted("stopped with 2 runs unfinished")),
    ],
)
def test_what_ends_a_workers_run_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: BaseException
) -> None:
    carry_out = workers.carry_out

    def failing(e: Any, path: Path, *arguments: Any) -> None:
        if path.parent.name == "dr-dsgd":
            raise error
        carry_out(e, path, *arguments)

    monkeypatch.setattr(workers, "carry_out", failing)
    with pytest.raises(type(raised)) as caught:
        compare.compare(UNEVEN, tmp_path, threads=2)
    assert type(caught.value) is type(raised)
    assert str(caught.value) == str(raised)
    if isinstance(raised, InputError):  # the command line adds the dashes
        assert isinstance(caught.value, InputError) and caught.value.on_command_line == raised.on_command_line
    assert_stopped(tmp_path / "dsgd-rounds=3000" / "seed-0")


@pytest.mark.usefixtures("here")
def test_what_ends_our_own_run_stops_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out, begun = workers.carry_out, threading.Event()
    plan = Study(("dsgd:eta=0.1", "dr-dsgd"), (0,), {**UNEVEN.options, "rounds": 3000})

    def failing(e: Any, path: Path, watch: Callable[[int], None], stop: Callable[[], bool], log: Any) -> None:
        if path.parent.name == "dr-dsgd":
            carry_out(e, path, lambda t: begun.set(), stop)
            return
        while not begun.wait(0.01):
            watch(0)
        raise RuntimeError("a bug")

    monkeypatch.setattr(workers, "carry_out", failing)
    with pytest.raises(RuntimeError, match="a bug"):
        compare.compare(plan, tmp_path, threads=2)
    assert_stopped(tmp_path / "dr-dsgd" / "seed-0")


@pytest.mark.usefixtures("here")
def test_a_comparison_that_only_waits_can_be_interrupted(tmp_path: Path) -> None:
    plan = Study(("dsgd", "dr-dsgd:rounds=3000"), (0,), UNEVEN.options)
    asked = False

    def watch(cell: Cell, t: int) -> None:
        nonlocal asked
        # our own run has ended, and the worker's thread gets no signals
        if not asked and Folder(tmp_path / "dsgd" / "seed-0").status == "finished":
            asked = True
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"^stopped with 1 run unfinished$"):
        compare.compare(plan, tmp_path, threads=2, watch=watch)
    assert_stopped(tmp_path / "dr-dsgd-rounds=3000" / "seed-0")


def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_start", lambda number, threads: subprocess.Popen(["sleep", "1000"]))
    monkeypatch.setattr(workers, "END_WITHIN", 0.01)
    assert workers.Worker(threads=1).end() == -signal.SIGKILL


@pytest.mark.usefixtures("here")
def test_a_worker_that_is_asked_to_stop_begins_nothing_more(tmp_path: Path) -> None:
    """Not even a job that it got before."""
    worker = workers.Worker(threads=1)
    assert worker.hear() == [("ready", None)]
    worker.give(small(rounds=3000, checkpoint_every=10**6), tmp_path / "first")
    assert worker.hear()[0] == ("round", 0)
    worker.give(small(), tmp_path / "second")
    worker.stop()
    heard: list[tuple[str, Any]] = []
    while not worker.silent:
        heard += worker.hear()
    assert worker.end() == 0
    assert heard[-1] == ("interrupted", None)
    assert_stopped(tmp_path / "first")
    assert not (tmp_path / "second").exists()


@pytest.mark.usefixtures("here")
def test_a_worker_that_nobody_listens_to_any_more_ends(tmp_path: Path) -> None:
    worker = workers.Worker(threads=1)
    worker.give(small(rounds=3000, checkpoint_every=10**6), tmp_path / "run")
    wait_for(lambda: Folder(tmp_path / "run").metrics.exists())
    assert worker.end() == 0  # without having heard a word
    assert_stopped(tmp_path / "run")
    assert records.read(tmp_path / "run").status == "unfinished"
