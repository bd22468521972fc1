"""Runs that last: exact resume whatever happens, one process per folder, nothing overwritten, divergence recorded."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drdsgd.core.engine import Ranks
from drdsgd.errors import InputError, Interrupted
from drdsgd.experiments import records
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import check_device, resume, resumed, run, stop_requests
from drdsgd.training.loop import Progress
from tests.support import killing
from tests.support.program import (
    SMALL,
    Crash,
    Said,
    assert_same_run,
    begun,
    contents,
    crashing_at,
    drdsgd,
    evaluations,
    is_saved,
    one_line,
    refused,
    saved,
    small,
    wait_for,
)  # fmt: skip

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that nothing disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run(small(), path)
    return path


def go_on(path: Path) -> None:
    """Resume, or begin if the process was killed before it wrote anything."""
    run(small(), path, resume=Folder(path).config.exists())


# ---------------------------------------------------------------------- killed


@pytest.mark.parametrize("first", [1, 2, 3])
def test_killed_at_any_touch_of_its_folder_it_resumes_exactly(whole: Path, tmp_path: Path, first: int) -> None:
    for event in itertools.count(first, step=3):
        path = tmp_path / f"{event}"
        code = killing.outcome(killing.killed_at_event, path, False, event)
        if code == 0:
            break
        assert code == KILLED
        go_on(path)
        assert_same_run(path, whole)
        shutil.rmtree(path)
    assert event > 40  # else the hook sees nothing


def test_killed_at_any_touch_of_its_folder_while_resuming_it_resumes_exactly(whole: Path, tmp_path: Path) -> None:
    stopped = begun(tmp_path / "stopped", t=5)
    for event in itertools.count(1):
        path = tmp_path / f"{event}"
        shutil.copytree(stopped, path)
        code = killing.outcome(killing.killed_at_event, path, True, event)
        if code == 0:
            break
        assert code == KILLED
        go_on(path)
        assert_same_run(path, whole)
        shutil.rmtree(path)
    assert event > 20


@pytest.mark.parametrize("call", [1, 2, 4])
def test_killed_half_way_through_a_checkpoint_it_resumes_exactly(whole: Path, tmp_path: Path, call: int) -> None:
    assert killing.outcome(killing.killed_writing_a_checkpoint, tmp_path, call) == KILLED
    strays = list((tmp_path / "checkpoint").glob(".*"))
    assert len(strays) == 1 and strays[0].stat().st_size > 0
    go_on(tmp_path)
    assert_same_run(tmp_path, whole)
    assert contents(tmp_path).keys() == contents(whole).keys()  # what was half-written does not pile up


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("call", [1, 3])
def test_killed_half_way_through_a_line_it_resumes_exactly(whole: Path, tmp_path: Path, call: int, part: float) -> None:
    assert killing.outcome(killing.killed_writing_a_line, tmp_path, call, part) == KILLED
    assert len(records.read_metrics(Folder(tmp_path).metrics)) == call - 1
    go_on(tmp_path)
    assert_same_run(tmp_path, whole)


def test_killed_at_random_moments_again_and_again_it_ends_the_same(tmp_path: Path) -> None:
    # many rounds, so that none of these runs ends before it is killed
    arguments = ["train", *SMALL, "--rounds", "2000", "--eval-every", "5", "--checkpoint-every", "7"]
    path, metrics, rng = tmp_path / "killed", Folder(tmp_path / "killed").metrics, random.Random(0)
    for _ in range(6):
        again = ["--resume"] if Folder(path).config.exists() else []
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        child = killing.process(killing.program, [*arguments, *again, "--out", str(path)], tmp_path / "log")
        after = lines + rng.randint(1, 5)
        wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= after)  # noqa: B023 (called now)
        time.sleep(rng.uniform(0, 0.03))
        child.kill()
        child.join()
        assert child.exitcode == KILLED, (tmp_path / "log").read_text()
    assert drdsgd(*arguments, "--resume", "--out", path).status == 0
    assert drdsgd(*arguments, "--out", tmp_path / "whole").status == 0
    assert_same_run(path, tmp_path / "whole")


@pytest.mark.parametrize("own", [{}, {"algorithm": "dsgd"}, {"weights": "normalized", "mu": 0.5}], ids=str)
def test_resumed_between_evaluations_and_between_checkpoints_it_ends_the_same(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"rounds": 11, "eval_every": 3, "checkpoint_every": 4, **own}
    run(small(**fields), tmp_path / "whole")
    for t in range(12):
        path = begun(tmp_path / f"{t}", t, **fields)
        run(small(**fields), path, resume=True)
        assert_same_run(path, tmp_path / "whole")


# ----------------------------------------------------------------- interrupted


def test_an_interrupted_program_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    """In a real process, in a folder whose name needs quotes."""
    path, arguments = tmp_path / "my  run", ["train", *SMALL, "--rounds", "400", "--eval-every", "50"]
    program = subprocess.Popen(
        [sys.executable, "-m", "drdsgd", *arguments, "--out", str(path)], stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: is_saved(path))
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    goes_on_as_it_says(Said(program.returncode, "", err), path, arguments)


def test_a_terminated_program_says_how_to_go_on_and_does(tmp_path: Path) -> None:
    path, arguments = tmp_path / "run", ["train", *SMALL, "--rounds", "400", "--eval-every", "50"]
    program = killing.process(killing.program, [*arguments, "--out", str(path)], tmp_path / "log")
    wait_for(lambda: is_saved(path))
    program.terminate()
    program.join(60)
    goes_on_as_it_says(Said(program.exitcode or 0, "", (tmp_path / "log").read_text()), path, arguments)


def goes_on_as_it_says(said: Said, path: Path, arguments: list[str]) -> None:
    message, _, command = one_line(said, status=130).partition("; continue with: ")
    t = int(message.removeprefix("stopped after round ").removesuffix(" of 400"))
    assert stored_round(path) == t < 400
    name, *again = shlex.split(command)
    assert name == "drdsgd"
    assert drdsgd(*again).status == 0
    whole = path.with_name("whole")
    assert drdsgd(*arguments, "--out", whole).status == 0
    assert_same_run(path, whole)


def test_an_interruption_before_there_is_anything_says_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("drdsgd.experiments.run.make_graph", interrupted)
    assert one_line(drdsgd("train", *SMALL, "--out", tmp_path), status=130) == "interrupted"
    assert contents(tmp_path) == {}
    monkeypatch.undo()
    path = begun(tmp_path / "begun")
    monkeypatch.setattr("drdsgd.experiments.run.make_graph", interrupted)
    line = one_line(drdsgd("train", "--resume", "--out", path), status=130)
    assert line == f"stopped; continue with: drdsgd train --resume --out {path}"


def stored_round(path: Path) -> int:
    return saved(path).state.t


def interrupting_at(t: int, times: int = 1) -> Callable[[Progress], None]:
    """For `run(watch=...)`: Ctrl-C in round t."""

    def watch(progress: Progress) -> None:
        if progress.state.t == t:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return watch


@pytest.mark.parametrize("t", [0, 1, 4, 6])
def test_an_interruption_leaves_a_checkpoint_of_its_round(whole: Path, tmp_path: Path, t: int) -> None:
    """Also in the last round: a comparison must not start its next run."""
    with pytest.raises(Interrupted, match=f"stopped after round {t} of 6"):
        run(small(), tmp_path, watch=interrupting_at(t))
    assert stored_round(tmp_path) == t
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    go_on(tmp_path)
    assert_same_run(tmp_path, whole)


def test_a_second_interruption_ends_at_once(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        run(small(), tmp_path, watch=interrupting_at(5, times=2))
    assert not isinstance(caught.value, Interrupted)
    assert stored_round(tmp_path) == 4
    go_on(tmp_path)
    assert_same_run(tmp_path, whole)


def test_an_interruption_during_the_last_checkpoint_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drdsgd.training import checkpoint

    save = checkpoint.save

    def saving(path: Path, progress: Progress, ranks: Ranks) -> None:
        save(path, progress, ranks)
        if progress.state.t == 6:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(checkpoint, "save", saving)
    with pytest.raises(Interrupted):
        run(small(), tmp_path)


def test_outside_the_main_thread_nobody_asks_to_stop() -> None:
    answers = []

    def look() -> None:
        with stop_requests() as asked:
            answers.append(asked())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert answers == [False]


# -------------------------------------------------------------------- in Python


def test_a_run_is_continued_with_its_folder_alone(whole: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    record = resume(begun(tmp_path), watch=lambda progress: seen.append(progress.state.t))
    assert record.status == "finished" and seen == [5, 6]  # the last checkpoint is that of round 4
    assert_same_run(tmp_path, whole)


def test_a_finished_run_is_read_again(whole: Path) -> None:
    before = contents(whole)
    assert resume(whole).final == records.read(whole).final
    assert contents(whole) == before


def test_a_continued_run_can_be_stopped_again(whole: Path, tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(Interrupted, match=r"^stopped after round 5 of 6$"):
        resume(tmp_path, stop=lambda: True)
    assert stored_round(tmp_path) == 5
    resume(tmp_path)
    assert_same_run(tmp_path, whole)


def test_another_machine_may_have_other_threads_and_another_folder_of_data(tmp_path: Path) -> None:
    e = small(threads=1)
    run(e, tmp_path)
    assert resumed(tmp_path) == resumed(tmp_path, e.model_dump()) == e
    assert resumed(tmp_path, {"threads": 3}) == e.replace(threads=3)
    assert resume(tmp_path, threads=3).experiment == e  # its config.toml stays as it was
    of_files = small(dataset="fashion-mnist", devices=4, data_dir="here", heterogeneity=None, threads=1)
    folder = Folder(tmp_path / "files")
    folder.path.mkdir()
    folder.config.write_text(of_files.to_toml())
    assert resumed(folder.path, {"data_dir": "there"}) == of_files.replace(data_dir="there")


def test_folders_are_paths_or_texts(tmp_path: Path) -> None:
    e = small(rounds=2)
    assert run(e, str(tmp_path / "run")) == resume(str(tmp_path / "run")) == records.read(tmp_path / "run")
    with pytest.raises(InputError, match=r"; continue it with resume=True, or use another folder$"):
        run(e, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rounds": 7}, "rounds=7: the run in {path} has 6; resume it unchanged, or start another in another folder"),
        ({"graph": "star"}, "graph='star': the run in {path} has ring; resume it unchanged"),
        ({"threads": 2, "mu": 3.0}, "mu=3.0: the run in {path} has 6.0; resume it unchanged"),
        ({"colour": "red"}, "the key 'colour' is unknown"),
    ],
)
def test_a_field_that_differs_is_refused(whole: Path, fields: dict[str, Any], says: str) -> None:
    before = contents(whole)
    with pytest.raises(InputError) as caught:
        resumed(whole, fields)
    assert str(caught.value).startswith(says.format(path=whole))
    assert contents(whole) == before


def test_where_no_run_began_none_is_continued(tmp_path: Path) -> None:
    for call in (resume, resumed):
        with pytest.raises(InputError, match=r"^resume: there is no run in .*nowhere; it has no config\.toml$"):
            call(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_only_the_first_process_needs_the_folder(whole: Path, tmp_path: Path) -> None:
    """The others get the experiment from it, and may have other threads."""
    said: list[str] = []

    class Process:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def texts(self, text: str) -> list[str]:
            said.append(text)
            return [said[0], text]

    first: Any = Process(0)
    second: Any = Process(1)
    e = resumed(whole, world=first)
    assert e == records.read(whole).experiment
    assert resumed(tmp_path / "nowhere", {"threads": 3}, second) == e.replace(threads=3)


# ------------------------------------------------------------------ overwritten


def test_a_run_is_not_overwritten(whole: Path) -> None:
    before = contents(whole)
    assert "already holds a run (finished)" in refused("train", *SMALL, "--out", whole)
    assert contents(whole) == before


def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    before = contents(begun(tmp_path))
    line = refused("train", *SMALL, "--out", tmp_path)
    assert "already holds a run (unfinished)" in line and "--resume" in line and "another folder" in line
    assert contents(tmp_path) == before


def test_resuming_a_finished_run_shows_it_and_changes_nothing(tmp_path: Path) -> None:
    first = drdsgd("train", *SMALL, "--out", tmp_path)
    before = contents(tmp_path)
    again = drdsgd("train", "--resume", "--out", tmp_path)
    assert (again.status, again.out) == (first.status, first.out) and "dr-dsgd" in again.out
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--mu", "3"], "--mu 3.0: the run in {path} has 6.0"),
        (["--rounds", "7"], "--rounds 7: the run in {path} has 6"),
        (["--algorithm", "dsgd"], "--algorithm dsgd: the run in {path} has dr-dsgd"),
        (["--graph", "star"], "--graph star: the run in {path} has ring"),
        (["--loss-clip", "5"], "--loss-clip 5.0: the run in {path} has None"),
        (["--dataset", "digits"], "--dataset digits: the run in {path} has synthetic"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_resuming_with_a_changed_option_names_it_and_both_values(
    whole: Path, tmp_path: Path, change: list[str], says: str, finished: bool
) -> None:
    path = whole if finished else begun(tmp_path / "begun")
    before = contents(path)
    assert refused("train", "--resume", *change, "--out", path).startswith(says.format(path=path))
    assert contents(path) == before
    (tmp_path / "changed.toml").write_text("mu = 3.0\n")
    assert refused("train", tmp_path / "changed.toml", "--resume", "--out", path).startswith("--mu 3.0: the run in")


def test_resuming_with_options_that_say_the_same_is_fine(tmp_path: Path, whole: Path) -> None:
    assert drdsgd("train", "--resume", *SMALL, "--mu", "6", "--out", begun(tmp_path)).status == 0
    assert_same_run(tmp_path, whole)


def test_resuming_nothing(tmp_path: Path) -> None:
    assert "give the folder of the run with --out" in refused("train", "--resume")
    assert "there is no run in" in refused("train", "--resume", "--out", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(InputError, match=r"^resume: there is no run in .*; it has no config\.toml"):
        run(small(), tmp_path, resume=True)


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = killing.process(
        killing.program, ["train", *SMALL, "--rounds", "100000", "--out", str(path)], tmp_path / "log"
    )
    try:
        wait_for(lambda: is_saved(path))
        for resume in ([], ["--resume"]):
            line = refused("train", *SMALL, "--rounds", "100000", *resume, "--out", path)
            assert "another process is working in" in line and str(path) in line
    finally:
        first.kill()
        first.join()
    with pytest.raises(Crash):  # the dead hold nothing
        run(small(rounds=100000), path, resume=True, watch=crashing_at(stored_round(path) + 3))


# ------------------------------------------------------- resuming something else


def test_a_graph_file_that_changed_is_noticed(tmp_path: Path) -> None:
    graph = tmp_path / "graph.csv"
    graph.write_text("0,1\n1,2\n2,3\n")
    path = begun(tmp_path / "run", graph=str(graph))
    graph.write_text("0,1\n1,2\n2,3\n3,0\n")
    before = contents(path)
    assert "the graph changed since the run in" in refused("train", "--resume", "--out", path)
    assert contents(path) == before


def test_data_that_changed_are_noticed(tmp_path: Path) -> None:
    for k in range(3):
        np.savez(tmp_path / f"{k}.npz", x=np.eye(10), y=np.arange(10) % 2)
    path = begun(tmp_path / "run", dataset=str(tmp_path), devices=3, model="logistic")
    np.savez(tmp_path / "0.npz", x=np.eye(10), y=np.ones(10, int))
    assert "the data changed since the run in" in refused("train", "--resume", "--out", path)


def test_a_model_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from torch import nn\ndef net(shape, classes): return nn.Linear(*shape, {})\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "changing_net.py").write_text(code.format("classes"))
    path = begun(tmp_path / "run", model="changing_net:net")
    (tmp_path / "changing_net.py").write_text(code.format("classes + 1"))
    del sys.modules["changing_net"]
    os.utime(tmp_path / "changing_net.py", (1, 1))  # else Python may take the compiled one of the same second
    assert "the model's code changed" in refused("train", "--resume", "--out", path)


@pytest.mark.parametrize("keep", [0, 1])
def test_lost_lines_are_noticed(tmp_path: Path, keep: int) -> None:
    """A checkpoint relies on all lines up to its round."""
    metrics = Folder(begun(tmp_path)).metrics
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:keep]))
    line = refused("train", "--resume", "--out", tmp_path)
    assert f"lacks the evaluation of round {2 * keep}" in line and "remove" in line
    shutil.rmtree(Folder(tmp_path).checkpoint)  # the cure that it names
    assert drdsgd("train", "--resume", "--out", tmp_path).status == 0
    assert [line["round"] for line in evaluations(tmp_path)] == [0, 2, 4, 6]


# ------------------------------------------------------------------- divergence


def test_divergence_ends_the_run_with_one_line_and_a_readable_record(tmp_path: Path) -> None:
    arguments = ["train", *SMALL, "--mu", "0.01", "--rounds", "50"]
    said = drdsgd(*arguments, "--out", tmp_path)
    line = one_line(said, status=1)
    # the record shows what it did until then
    assert said.out == f"report: {tmp_path / 'report.html'}\n"
    assert "diverged; last evaluated after round" in (tmp_path / "report.html").read_text()
    cures = ("smaller eta", "larger mu", "--loss-clip", "--weights normalized")
    for part in ("diverged in round ", "device ", "loss ", "mu = 0.01", *cures):
        assert part in line
    record = records.read(tmp_path)
    assert record.status == "diverged" and record.message == line
    assert record.final.round <= 50 and record.metrics[0].round == 0
    # again: the same status, the same message, the same folder
    before = {name: data for name, data in contents(tmp_path).items() if name != "report.html"}
    again = drdsgd("train", "--resume", "--out", tmp_path)
    assert again.status == 1 and line in again.out
    assert {name: data for name, data in contents(tmp_path).items() if name != "report.html"} == before
    # and the remedy that it names
    assert drdsgd(*arguments, "--loss-clip", "0.05", "--out", tmp_path / "clipped").status == 0
    assert drdsgd(*arguments, "--weights", "normalized", "--out", tmp_path / "normalized").status == 0


def test_a_run_whose_weights_vanish_says_so_in_one_line_at_its_end(tmp_path: Path) -> None:
    """With normalized weights and such a small mu it does not diverge: it stalls."""
    arguments = [*SMALL, "--mu", "0.001", "--rounds", "40", "--eta", "0.5"]
    stalled = (
        "in the last round, which shortens its steps by that factor: with --weights normalized use --weight-cap 3 if"
    )
    said = drdsgd("train", *arguments, "--weights", "normalized", "--out", tmp_path / "one")
    assert said.status == 0
    (line,) = [line for line in said.out.splitlines() if "--mu-schedule linear:0.1 --loss-smoothing 0.03" in line]
    assert line.startswith("dr-dsgd: the devices' weights are 0") and stalled in line
    larger = drdsgd(
        "train", *SMALL, "--mu", "1", "--rounds", "40", "--weights", "normalized", "--out", tmp_path / "two"
    )
    assert larger.status == 0 and "on average in the last round" not in larger.out


def test_a_start_beyond_the_floats_is_refused_and_leaves_no_run(tmp_path: Path) -> None:
    for k in range(3):
        np.savez(tmp_path / f"{k}.npz", x=np.full((10, 2), 3e38), y=np.arange(10) % 2)
    line = refused("train", "--dataset", tmp_path, "--out", tmp_path / "run")
    assert "loss on device 0 is not finite" in line and "scale of the data" in line
    assert contents(tmp_path / "run") == {}


# --------------------------------------------------------- a disk that is full


@pytest.fixture
def short_files() -> Iterator[Callable[[int], None]]:
    """Limit the size of this process's files, so that the system itself acts like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("most", [100, 1000, 4000, 50_000])
def test_a_full_disk_ends_in_one_line_and_loses_nothing(
    tmp_path: Path, short_files: Callable[[int], None], most: int
) -> None:
    """With increasing room: no config, no checkpoint, not all metrics, no report."""
    arguments = ["train", *SMALL, "--rounds", "30", "--out"]
    assert drdsgd(*arguments, tmp_path / "whole").status == 0
    path = tmp_path / "short"
    short_files(most)
    said = drdsgd(*arguments, path)
    short_files(resource.RLIM_INFINITY)
    assert "File too large" in one_line(said) and "space on the disk" in said.err
    if most >= 4000:
        assert records.read(path).final.round > 0
    if most == 100_000:
        assert records.read(path).status == "finished" and not Folder(path).report.exists()
    again = ["--resume"] if Folder(path).config.exists() else []
    assert drdsgd(*arguments, path, *again).status == 0
    assert_same_run(path, tmp_path / "whole")
    assert contents(path).keys() == contents(tmp_path / "whole").keys()


# -------------------------------------------------------------------- devices


def test_a_device_that_is_not_here_is_refused() -> None:
    assert check_device("cpu") == torch.device("cpu")
    for name in ("meta", "cpuu", "cuda:99"):
        with pytest.raises(InputError, match=f"device='{name}': .*cpu always works"):
            check_device(name)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "float64", "threads": 2},
        {"dtype": "float64", "threads": 1, "graph": "erdos-renyi"},
        {"dtype": "float32", "threads": 2},
        {"dtype": "float32", "threads": 2, "model": "cnn", "rounds": 18},
        {"dtype": "float64", "threads": 2, "model": "cnn", "rounds": 18},
    ],
    ids=str,
)
def test_models_of_real_size_resume_exactly(fields: dict[str, Any], tmp_path: Path) -> None:
    """In both precisions, on several threads: the bits of an undisturbed run."""
    e = Experiment(
        **{"dataset": "digits", "graph": "ring", "rounds": 30, "eval_every": 10, "checkpoint_every": 7, **fields}
    )
    run(e, tmp_path / "whole")

    def crash(progress: Progress) -> None:
        if progress.state.t == 16:  # after checkpoints of trained models
            raise ZeroDivisionError

    for watch in (crash, lambda progress: None):
        with contextlib.suppress(ZeroDivisionError):
            run(e, tmp_path / "broken", resume=(tmp_path / "broken").exists(), watch=watch)
    assert_same_run(tmp_path / "broken", tmp_path / "whole")
