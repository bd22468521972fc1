"""Comparisons: paired seeds, one folder per run; a run that fails does not stop the others."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drdsgd.cli import progress
from drdsgd.cli.runs import DEMO
from drdsgd.data import sources
from drdsgd.errors import InputError, Interrupted
from drdsgd.experiments import compare as study
from drdsgd.experiments import records, workers
from drdsgd.experiments.compare import Cell, Study, _at_once, compare, extended
from drdsgd.experiments.records import Folder
from tests.support.program import (
    FIELDS,
    SMALL,
    assert_same_run,
    contents,
    drdsgd,
    evaluations,
    one_line,
    refused,
    saved,
)

pytestmark = pytest.mark.slow

BOTH = ("dsgd", "dr-dsgd")


def plan(algorithms: tuple[str, ...] = BOTH, seeds: tuple[int, ...] = (0, 1), **options: Any) -> Study:
    return Study(algorithms, seeds, {**FIELDS, **options})


def stamps(path: Path) -> dict[str, tuple[int, bytes]]:
    """When each run's files were written, and what is in them."""
    files = [file for file in path.rglob("seed-*/**/*") if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


# ----------------------------------------------------------------------- paired


@pytest.mark.parametrize(
    "options",
    [
        {"graph": "erdos-renyi"},
        {"dataset": "digits", "model": "mlp:8", "graph": "geometric", "devices": 5},
        {"dataset": "digits", "model": "logistic", "partition": "dirichlet", "devices": 5},
    ],
)
def test_a_seed_gives_every_algorithm_the_same_beginning(tmp_path: Path, options: dict[str, Any]) -> None:
    made = study.compare(plan(rounds=2, **options), tmp_path, threads=1)
    by_seed = {seed: [r for r in made if r.experiment.seed == seed] for seed in (0, 1)}
    for one, other in by_seed.values():
        assert one.experiment.algorithm != other.experiment.algorithm
        assert Folder(one.path).network.read_bytes() == Folder(other.path).network.read_bytes()
        # the same model on the same first batch: the accuracies and the loss are equal, but not the weights
        first_of = [{**evaluations(run.path)[0], "weights": None} for run in (one, other)]
        assert first_of[0] == first_of[1]
        assert evaluations(one.path)[-1] != evaluations(other.path)[-1]
    (first, _), (second, _) = by_seed.values()
    assert first.network != second.network
    assert evaluations(first.path)[0] != evaluations(second.path)[0]


def test_all_runs_of_a_process_load_their_data_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[sources.Dataset] = []

    def load() -> sources.Dataset:
        loaded.append(sources.digits())
        return loaded[-1]

    monkeypatch.setitem(sources.SOURCES, "digits", load)
    options: dict[str, Any] = {"dataset": "digits", "model": "logistic", "rounds": 1}
    made = compare(plan(**options), tmp_path / "one", threads=1)
    assert len(made) == 4 and len(loaded) == 1
    here, there = socket.socketpair()
    with here, there:
        for record in made:
            e = record.experiment
            about = {"path": str(tmp_path / f"{e.algorithm}-{e.seed}"), "log": list[str]()}
            here.sendall(json.dumps({**about, "experiment": e.model_dump(exclude_none=True)}).encode() + b"\n")
        serving = threading.Thread(target=workers.serve, args=(there,))
        serving.start()
        said = b""
        while said.count(b'["over", null]') < 4:
            said += here.recv(2**16)
        here.shutdown(socket.SHUT_WR)
        serving.join()
    assert len(loaded) == 2
    for record in made:
        assert_same_run(record.path, tmp_path / f"{record.experiment.algorithm}-{record.experiment.seed}")


def test_batches_are_paired_too(tmp_path: Path) -> None:
    """With mu so large that its weights are all 1 / mu, DR-DSGD takes DSGD's steps if it sees DSGD's batches."""
    mu, eta = 2.0**20, 0.25
    specs = ("dsgd", f"dr-dsgd:mu={mu},eta={min(eta * mu, 1e6)}")
    one, other = study.compare(plan(specs, (3,), eta=eta), tmp_path, threads=1)
    assert [m.train_loss for m in one.metrics] == pytest.approx([m.train_loss for m in other.metrics], rel=1e-4)


# ------------------------------------------------------------------------ cells


def test_runs_go_seed_by_seed_into_folders_of_their_own(tmp_path: Path) -> None:
    cells = plan(("dsgd", "dr-dsgd:mu=3", "dr-dsgd:mu=4,eta=0.1"), (4, 2)).cells(tmp_path)
    assert [cell.path.relative_to(tmp_path).as_posix() for cell in cells] == [
        "dsgd/seed-4", "dr-dsgd-mu=3/seed-4", "dr-dsgd-mu=4-eta=0.1/seed-4",
        "dsgd/seed-2", "dr-dsgd-mu=3/seed-2", "dr-dsgd-mu=4-eta=0.1/seed-2",
    ]  # fmt: skip
    assert [(c.experiment.mu, c.experiment.seed) for c in cells] == [
        (None, 4),
        (3, 4),
        (4, 4),
        (None, 2),
        (3, 2),
        (4, 2),
    ]
    assert cells[2].experiment.eta == 0.1 and cells[0].experiment.eta == (4 / 6) ** 0.5


def test_mu_goes_to_those_that_have_one() -> None:
    cells = plan(mu=3.0, loss_clip=5.0, weights="normalized").cells(Path("out"))
    assert {(c.experiment.algorithm, c.experiment.mu, c.experiment.loss_clip, c.experiment.weights) for c in cells} == {
        ("dsgd", None, None, None),
        ("dr-dsgd", 3.0, 5.0, "normalized"),
    }


def test_a_spec_spells_keys_as_options_or_fields() -> None:
    for spec in ("dsgd:batch-size=3", "dsgd:batch_size=3", "dsgd: batch-size=3,"):
        assert plan((spec,)).cells(Path("out"))[0].experiment.batch_size == 3


@pytest.mark.parametrize(
    ("algorithms", "options", "says"),
    [
        (("dsdg",), {}, "algorithm='dsdg': unknown, did you mean dsgd?"),
        (("",), {}, "algorithm='': unknown; known are dsgd, dr-dsgd"),
        (("dr-dsgd:nu=3",), {}, "algorithm='dr-dsgd:nu=3': the key 'nu' is unknown, did you mean mu?"),
        (("dr-dsgd:mu=x",), {}, "mu='x': not a number"),
        (("dr-dsgd:mu",), {}, "algorithm='dr-dsgd:mu': 'mu' has no value; write mu=VALUE"),
        (("dr-dsgd:mu=-1",), {}, "mu=-1.0: input should be greater than 0"),
        (("dsgd:mu=3",), {}, "mu=3.0 does nothing here: it needs objective kl-dro"),
        (("dsgd",), {"mu": 3.0}, "mu=3.0: none of the compared algorithms has this option"),
        (("dsgd:seed=3",), {}, "algorithm='dsgd:seed=3': the key 'seed' is unknown"),
        (("dsgd:threads=2",), {}, "algorithm='dsgd:threads=2': all runs share the threads; give threads=2"),
        (("dsgd:algorithm=dr-dsgd",), {}, "algorithm='dsgd:algorithm=dr-dsgd': the key 'algorithm' is unknown"),
        (("dr-dsgd", "dr-dsgd:mu=6"), {}, "algorithm: dr-dsgd and dr-dsgd-mu=6 are the same experiment"),
    ],
)
def test_what_cant_be_compared_is_told_before_anything_runs(
    tmp_path: Path, algorithms: tuple[str, ...], options: dict[str, Any], says: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError) as caught:
        study.compare(plan(algorithms, **options), out)
    assert str(caught.value).startswith(says)
    assert not out.exists()


# --------------------------------------------------------------------- threads


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs at the same time in every comparison; here they really go one by one."""
    asked: list[int] = []

    def team(jobs: Any, at_once: int, watch: Any, log: Any, real: Any = workers.team) -> Any:
        asked.append(at_once)
        return real(jobs, 1, watch)

    monkeypatch.setattr(workers, "team", team)
    return asked


@pytest.mark.parametrize(("threads", "of_a_run", "runs"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (9, 2, 4), (None, 3, 4)])
def test_threads_are_shared_by_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: list[int], threads: int | None, of_a_run: int, runs: int
) -> None:
    monkeypatch.setattr(study, "default_threads", lambda: 12)
    options = {name: value for name, value in FIELDS.items() if name != "threads"}
    made = study.compare(Study(BOTH, (0, 1), {**options, "rounds": 1}), tmp_path, threads=threads)
    assert {record.experiment.threads for record in made} == {of_a_run} and at_once == [runs]
    assert study.load(tmp_path / "study.toml").options["threads"] == of_a_run


def test_all_runs_have_one_schedule_of_local_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Study(("dsgd", "dr-dsgd:local_every=3"), (0,), {**FIELDS, "model": "torch.nn:Linear"})
    made = {e.algorithm: e.local_every for e in (cell.experiment for cell in own.cells(tmp_path))}
    assert made == {"dsgd": 5, "dr-dsgd": 3}

    def schedule(study_: Study) -> set[int]:
        return {record.experiment.local_every for record in study.compare(study_, tmp_path, resume=True)}

    (tmp_path / "net.py").write_text("from torch import nn\ndef net(shape, classes): return nn.Linear(*shape, classes)")
    monkeypatch.syspath_prepend(str(tmp_path))
    two = Study(("dsgd", "dr-dsgd:local_every=3"), (0,), {**FIELDS, "rounds": 1, "model": "net:net"})
    assert schedule(two) == {3} and study.load(tmp_path / "study.toml").options["local_every"] == 3
    assert schedule(two) == {3} and schedule(study.resumed(tmp_path)) == {3}


def test_a_comparison_of_an_older_version_goes_on_with_its_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\ndef net(shape, classes): return nn.Linear(*shape, classes)")
    monkeypatch.syspath_prepend(str(tmp_path))
    old = plan(rounds=1, model="net:net")
    (tmp_path / "study.toml").write_text(old.to_toml())
    made = compare(study.resumed(tmp_path), tmp_path, resume=True)
    assert {record.experiment.local_every for record in made} == {1}


@pytest.mark.parametrize(("threads", "runs"), [(1, 1), (3, 1), (5, 2), (100, 4)])
def test_a_study_goes_on_with_the_threads_that_its_runs_have(
    tmp_path: Path, at_once: list[int], threads: int, runs: int
) -> None:
    stored = plan(matmul="mkl", rounds=1, threads=2, local_every=1).to_toml()
    (tmp_path / "study.toml").write_text(stored)
    assert drdsgd("compare", "--resume", "--threads", str(threads), "--out", tmp_path).status == 0
    assert at_once == [runs] and (tmp_path / "study.toml").read_text() == stored
    assert {records.read(path.parent).experiment.threads for path in tmp_path.rglob("config.toml")} == {2}


def test_finished_runs_need_no_process(tmp_path: Path, at_once: list[int]) -> None:
    study.compare(plan(rounds=1), tmp_path, threads=8)
    study.compare(plan(rounds=1, seeds=(0, 1, 2)), tmp_path, resume=True, threads=8)
    study.compare(plan(rounds=1, seeds=(0, 1, 2)), tmp_path, resume=True, threads=8)
    assert at_once == [4, 2, 1]


@pytest.mark.parametrize("only_here", [{"device": "cuda:1"}, {"model": "__main__:net"}])
def test_what_other_processes_cant_do_goes_one_by_one(only_here: dict[str, Any]) -> None:
    assert _at_once(plan().cells(Path("x")), 4) == 4
    assert _at_once(plan(**only_here).cells(Path("x")), 4) == 1


@pytest.mark.parametrize("text", ["0", "-3", "ten", "2.5", "nan", "", "99999999999999999999"])
def test_threads_that_are_none(tmp_path: Path, text: str) -> None:
    options = [word for word in SMALL if word not in ("--threads", "1")]
    line = refused("compare", *options, "--seeds", "1", "--threads", text, "--out", tmp_path / "out")
    assert line.startswith(f"--threads {text}: ") and not (tmp_path / "out").exists()


# ----------------------------------------------------------------------- stored


def test_a_study_is_what_its_toml_says(tmp_path: Path) -> None:
    one = plan(("dsgd", "dr-dsgd:mu=3"), (0, 7), mu=2.5, model="mlp:3")
    (tmp_path / "study.toml").write_text(one.to_toml())
    assert study.load(tmp_path / "study.toml") == one


@pytest.mark.parametrize(
    "content",
    ["", 'algorithms = ["dsgd"]\nseeds = 3\n[options]\n', 'algorithms = ["dsgd"]\nseeds = [1]\noptions = 3\n', "x ="],
)
def test_a_spoilt_study_is_told_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.toml").write_text(content)
    assert str(tmp_path / "study.toml") in refused("compare", "--resume", "--out", tmp_path)


# --------------------------------------------------------------------- command


def test_one_that_diverges_is_marked_and_the_others_go_on(tmp_path: Path) -> None:
    specs = ["--algorithm", "dr-dsgd:mu=0.005", "--algorithm", "dsgd", "--algorithm", "dr-dsgd"]
    said = drdsgd("compare", *SMALL, "--rounds", "20", *specs, "--seeds", "2", "--out", tmp_path)
    assert said.status == 0 and said.err == ""
    made = {(c.parent.parent.name, c.parent.name): records.read(c.parent) for c in tmp_path.rglob("config.toml")}
    assert {key: record.status for key, record in made.items()} == {
        (label, f"seed-{seed}"): "diverged" if "0.005" in label else "finished"
        for label in ("dr-dsgd-mu=0.005", "dsgd", "dr-dsgd")
        for seed in (0, 1)
    }
    for record in made.values():
        assert (f"{record.path}: diverged in round" in said.out) == (record.status == "diverged")
    assert "diverged" in (tmp_path / "report.html").read_text()
    # and a marked run stays marked
    before = stamps(tmp_path)
    again = drdsgd("compare", "--resume", "--out", tmp_path)
    assert again == said and stamps(tmp_path) == before


def test_a_comparison_is_not_overwritten(tmp_path: Path) -> None:
    assert drdsgd("compare", *SMALL, "--seeds", "1", "--out", tmp_path).status == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    before = contents(tmp_path)
    assert "already holds a comparison; continue it with --resume" in refused("compare", *SMALL, "--out", tmp_path)
    # nor by a changed option, which would leave a study that cannot be resumed
    assert refused("compare", "--resume", "--mu", "3", "--out", tmp_path).startswith("--mu 3.0: the run in ")
    assert refused("compare", "--resume", "--rounds", "7", "--out", tmp_path).startswith("--rounds 7: the run in ")
    assert contents(tmp_path) == before


def test_seeds_and_algorithms_can_be_added(tmp_path: Path) -> None:
    assert drdsgd("compare", *SMALL, "--seeds", "1", "--out", tmp_path).status == 0
    before = stamps(tmp_path)
    assert drdsgd("compare", "--resume", "--seeds", "0,5", "--out", tmp_path).status == 0
    algorithms = ["--algorithm", "dsgd", "--algorithm", "dr-dsgd", "--algorithm", "dr-dsgd:mu=3"]
    assert drdsgd("compare", "--resume", *algorithms, "--out", tmp_path).status == 0
    after = stamps(tmp_path)
    assert before.items() <= after.items()  # what was there was not run again
    assert {config.parent.relative_to(tmp_path).as_posix() for config in tmp_path.rglob("config.toml")} == {
        f"{label}/seed-{seed}" for label in ("dsgd", "dr-dsgd", "dr-dsgd-mu=3") for seed in (0, 5)
    }
    assert study.load(tmp_path / "study.toml").seeds == (0, 5)


def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drdsgd("compare", *SMALL, "--seeds", "2", "--out", tmp_path / "whole").status == 0
    compare, path = study.compare, tmp_path / "interrupted here"

    def interrupted(plan: Study, out: Path, *, watch: Any, **options: Any) -> list[records.Record]:
        def both(cell: Cell, t: int) -> None:
            watch(cell, t)
            if (cell.label, cell.experiment.seed, t) == ("dr-dsgd", 0, 3):
                signal.raise_signal(signal.SIGINT)

        return compare(plan, out, watch=both, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study, "compare", interrupted)
        line = one_line(drdsgd("compare", *SMALL, "--seeds", "2", "--out", path), status=130)
    message, _, command = line.partition("; continue with: ")
    assert message == "stopped with 3 runs unfinished"
    assert saved(path / "dr-dsgd" / "seed-0").state.t == 3
    assert [Folder(path / label / "seed-0").status for label in BOTH] == ["finished", "unfinished"]
    assert not (path / "dsgd" / "seed-1").exists()
    before = stamps(path / "dsgd")
    assert drdsgd(*shlex.split(command)[1:]).status == 0
    assert before.items() <= stamps(path / "dsgd").items()
    for label in BOTH:
        for seed in (0, 1):
            assert_same_run(path / label / f"seed-{seed}", tmp_path / "whole" / label / f"seed-{seed}")


def test_an_interruption_in_a_runs_last_round_stops_the_comparison(tmp_path: Path) -> None:
    def watch(cell: Cell, t: int) -> None:
        if t == 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        study.compare(plan(), tmp_path, threads=1, watch=watch)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["dsgd"]
    made = study.compare(plan(), tmp_path, resume=True, threads=1)
    assert [record.status for record in made] == ["finished"] * 4


def test_the_bar_shows_the_rounds_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that advance at the same time, and runs that had already finished."""
    study.compare(plan(seeds=(0,)), tmp_path, threads=1)
    shown: list[tuple[float, str]] = []

    @contextmanager
    def bar(console: object, what: str, total: float) -> Iterator[Callable[[float, str], None]]:
        assert total == 4 * 6
        yield lambda done, note: shown.append((done, note))

    def compare(plan: Study, out: Path, *, watch: Any, **options: Any) -> list[records.Record]:
        *_, one, other = plan.cells(out)
        for cell, t in ((one, 0), (one, 2), (other, 1), (one, 3), (other, 6), (one, 6)):
            watch(cell, t)
        return [records.read(cell.path) for cell in plan.cells(out)[:2]]

    monkeypatch.setattr(progress, "bar", bar)
    monkeypatch.setattr(study, "compare", compare)
    assert drdsgd("compare", "--resume", "--seeds", "2", "--out", tmp_path).status == 0
    one, other = "runs done; dsgd, seed 1", "runs done; dr-dsgd, seed 1"
    assert shown == [
        (12, ""), (12, f"2 of 4 {one}"), (14, f"2 of 4 {one}"), (15, f"2 of 4 {other}"), (16, f"2 of 4 {one}"),
        (21, f"3 of 4 {other}"), (24, f"4 of 4 {one}"),
    ]  # fmt: skip


def test_a_comparison_is_continued_in_python_with_its_folder_alone(tmp_path: Path) -> None:
    first = compare(plan(seeds=(0,), matmul="mkl"), tmp_path, threads=1)
    stored = study.resumed(tmp_path)
    assert stored == plan(seeds=(0,), matmul="mkl", local_every=1)
    before = stamps(tmp_path)
    more = compare(study.resumed(tmp_path, ["dr-dsgd:mu=3"], [5]), tmp_path, resume=True, threads=1)
    assert before.items() <= stamps(tmp_path).items()
    assert len(more) == 6 and {record.path for record in first} <= {record.path for record in more}
    assert study.resumed(tmp_path) == Study((*BOTH, "dr-dsgd:mu=3"), (0, 5), stored.options)
    with pytest.raises(InputError, match=r"^rounds=7: the run in .* has 6; resume it unchanged"):
        compare(study.resumed(tmp_path, options={"rounds": 7}), tmp_path, resume=True, threads=1)
    with pytest.raises(InputError, match=r"there is no file .*study\.toml"):
        study.resumed(tmp_path / "nowhere")


def test_resuming_no_comparison(tmp_path: Path) -> None:
    assert "give the folder of the comparison with --out" in refused("compare", "--resume")
    assert f"there is no file {tmp_path / 'study.toml'}" in refused("compare", "--resume", "--out", tmp_path)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1,1", "1,-2", "1.5", "3,", "99999999999999", "nan"])
def test_seeds_that_are_none(tmp_path: Path, text: str) -> None:
    arguments = ["--seeds", text, "--out", str(tmp_path / "out")]
    assert refused("demo", *arguments).startswith(f"--seeds {text}: ")
    if text:  # nothing is as good as the default
        assert refused("compare", *SMALL, *arguments).startswith(f"--seeds {text}: ")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------ demo


def test_the_demo_goes_on_and_shows_itself_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEMO, "rounds", 3)
    monkeypatch.setitem(DEMO, "eta", 0.5)  # the default of so few is above 1, of which it would speak
    monkeypatch.setitem(DEMO, "threads", 1)
    path = tmp_path / "demo"
    first = drdsgd("demo", "--seeds", "1", "--out", path)
    assert first.status == 0 and first.err == ""
    assert "dsgd" in first.out and "dr-dsgd" in first.out and f"report: {path / 'report.html'}" in first.out
    before = stamps(path)
    assert drdsgd("demo", "--seeds", "1", "--out", path) == first
    assert stamps(path) == before
    assert drdsgd("demo", "--seeds", "2", "--out", path).status == 0
    assert before.items() <= stamps(path).items() and len(stamps(path)) == 2 * len(before)
    summary = json.loads((path / "dsgd" / "seed-1" / "summary.json").read_text())
    assert summary["final"]["round"] == 3


def test_an_interrupted_demo_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEMO, "rounds", 3)
    (tmp_path / "study.toml").write_text(Study(BOTH, (0,), dict(DEMO)).to_toml())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "compare", interrupted)
    line = one_line(drdsgd("demo", "--seeds", "1", "--out", tmp_path), status=130)
    assert line == f"stopped; continue with: drdsgd demo --seeds 1 --out {tmp_path}"


def test_specs_that_would_share_a_folder_are_refused() -> None:
    assert len({cell.path for cell in Study(("dsgd:eta=1e-1", "dsgd:eta=1e+1"), (0,), {}).cells(Path("x"))}) == 2
    for pair in (("dsgd", "dsgd"), ("dsgd:graph=a/b", "dsgd:graph=a-b")):
        with pytest.raises(InputError, match="the same folder"):
            Study(pair, (0,), {"devices": 4}).cells(Path("x"))


@pytest.mark.parametrize(
    "wrong",
    [{"eta_schedule": "exponentil"}, {"graph": "rign"}, {"dataset": "digit"}, {"model": "mpl"}, {"device": "gpu"}],
)
def test_what_cant_run_is_refused_before_anything_is_written(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        compare(
            Study(("dsgd", "dr-dsgd"), (0,), {"dataset": "synthetic", "devices": 4, "rounds": 2, **wrong}),
            tmp_path / "s",
        )
    assert not (tmp_path / "s").exists()


def test_a_study_is_extended_never_narrowed() -> None:
    study = Study(("dsgd", "dr-dsgd"), (0, 1, 2), {"rounds": 5})
    assert extended(study, ["dsgd"], [1], {}) == study
    assert extended(study, ["dr-dsgd:mu=3"], [5], {}) == Study(
        ("dsgd", "dr-dsgd", "dr-dsgd:mu=3"), (0, 1, 2, 5), {"rounds": 5}
    )


def test_a_part_that_all_share_goes_to_those_that_have_parts(tmp_path: Path) -> None:
    plan = Study(("dsgd", "fedavg"), (0,), {**FIELDS, "objective": "q-ffl", "q": 2.0, "clients": 3})
    by_label = {cell.label: cell.experiment for cell in plan.cells(tmp_path)}
    assert (by_label["dsgd"].objective, by_label["dsgd"].q, by_label["dsgd"].clients) == ("q-ffl", 2.0, None)
    assert (by_label["fedavg"].objective, by_label["fedavg"].q, by_label["fedavg"].clients) == (None, None, 3)
