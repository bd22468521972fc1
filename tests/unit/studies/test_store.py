"""Records of runs: they hold what the run's folder holds, loose or packed, and are taken if they fit."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from drdsgd.core.numerics import NUMERICS
from drdsgd.errors import InputError
from drdsgd.experiments import records
from drdsgd.experiments import run as running
from drdsgd.experiments.config import Experiment, load
from drdsgd.report.statistics import KINDS, MEASURES
from drdsgd.versions import versions
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import RunRecord, Store, diverged, ends, name_of, read_records, run_record
from tests.support import made
from tests.support.program import small

E = small(algorithm="dr-dsgd", mu=3.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    running.run(E, path)
    return path


def test_a_record_says_what_the_folder_says(folder: Path) -> None:
    record = records.read(folder)
    small_one = run_record(record)
    assert small_one.experiment == E and small_one.name == name_of(E)
    assert small_one.rounds == [0, 2, 4, 6] and small_one.status == "finished"
    for kind in KINDS:
        for measure in MEASURES:
            full = [getattr(getattr(m, kind), measure) for m in record.metrics]
            assert small_one.curves[kind][measure] == pytest.approx(full, abs=1e-4)
        assert small_one.per_device[kind] == pytest.approx(getattr(record.final, kind).per_device, abs=1e-4)
    assert small_one.weight == pytest.approx([sum(m.weights) / 4 for m in record.metrics], rel=1e-5)
    assert small_one.versions == versions() and small_one.numerics == records.numerics_of(E)


def test_it_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    run = run_record(records.read(folder))
    Store(tmp_path).keep(run)
    again = Store(tmp_path)
    assert again.runs == {E: run}
    path = again.path(run)
    assert load(path) == run.config and Experiment(**load(path)) == E
    assert path.stat().st_size < 6000


def test_a_config_of_before_an_option_was_there_has_its_default(folder: Path, tmp_path: Path) -> None:
    run = run_record(records.read(folder))
    config = {name: value for name, value in run.config.items() if name != "weights"}
    old = replace(run, config=config, name=name_of(E, config))
    assert old.name != run.name  # its checksum is that of its time
    Store(tmp_path).keep(old)
    assert Store(tmp_path).runs == {E: old}


def test_studies_evaluate_all_models_always_as_records_of_before_did(folder: Path, tmp_path: Path) -> None:
    planned = Group.of(Settings(seeds=(0,)), {"dataset": "cifar10"}).example
    assert planned.local_every == 1
    config = planned.model_dump(exclude_none=True)
    del config["local_every"]
    assert replace(run_record(records.read(folder)), config=config).experiment == planned


@pytest.mark.parametrize(
    ("name", "version", "fits"), [("torch", "1.0", False), ("python", None, True), ("drdsgd", "0.0.1", True)]
)
def test_other_versions_are_not_taken(folder: Path, tmp_path: Path, name: str, version: str | None, fits: bool) -> None:
    run = run_record(records.read(folder))
    patch = versions()["python"].rpartition(".")[0] + ".99"  # a patch of Python changes no numbers
    Store(tmp_path).keep(type(run)(**{**run.__dict__, "versions": {**run.versions, name: version or patch}}))
    store = Store(tmp_path)
    assert (E in store.runs, store.outdated) == ((True, 0) if fits else (False, 1))
    # which, and each once
    assert store.differing == ([] if fits else [f"torch 1.0 there, {versions()['torch']} here"])


def test_a_record_of_other_numerics_is_not_taken(folder: Path, tmp_path: Path) -> None:
    run = run_record(records.read(folder))
    for name, numerics in {"one": run.numerics, "none": {}, "older": {"training": 1}}.items():  # what is not named is 1
        Store(tmp_path / name).keep(replace(run, numerics=numerics))
        assert E in Store(tmp_path / name).runs
        with patch.dict(NUMERICS, {"optimizer gt-adam": 2}):  # which the run does not use
            assert E in Store(tmp_path / name).runs
        with patch.dict(NUMERICS, {"objective kl-dro": 2}):
            store = Store(tmp_path / name)
            assert (store.runs, store.outdated) == ({}, 1)
            assert store.differing == ["numerics of objective kl-dro 1 there, 2 here"]


# ---------------------------------------------------------------------- packed


def kept(out: Path, runs: Iterable[RunRecord]) -> Store:
    """A store with these loose records."""
    store = Store(out)
    for run in runs:
        store.keep(run)
    return store


def several(*seeds: int) -> list[RunRecord]:
    return [made.run_record(made.experiment(seed=seed), [50.0] * 5) for seed in seeds]


def test_packing_keeps_every_record_and_removes_the_loose_ones(tmp_path: Path) -> None:
    runs = several(3, 1, 2)
    store = kept(tmp_path, runs)
    store.pack("paper", runs[:2])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["paper.jsonl.xz", "runs"]  # one is loose still
    assert list(read_records(tmp_path)) == [runs[2], *sorted(runs[:2], key=lambda run: run.name)]
    store.pack("paper", runs[2:])  # beside what is packed already
    assert [path.name for path in tmp_path.iterdir()] == ["paper.jsonl.xz"]
    assert Store(tmp_path).runs == store.runs == {run.experiment: run for run in runs}


def test_the_same_records_are_the_same_bytes_and_are_not_written_again(tmp_path: Path) -> None:
    runs = several(1, 2, 3)
    for name, order in {"one": runs, "other": runs[::-1]}.items():
        for run in order:
            kept(tmp_path / name, [run]).pack("paper", [run])
    one, other = (tmp_path / name / "paper.jsonl.xz" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    with patch("drdsgd_studies.shared.store.replacing", side_effect=AssertionError):
        kept(one.parent, runs).pack("paper", runs)
    assert [path.name for path in one.parent.iterdir()] == ["paper.jsonl.xz"]


def test_killed_between_packing_and_removing_nothing_is_lost(tmp_path: Path) -> None:
    runs = several(1, 2)
    store = kept(tmp_path, runs)
    with patch.object(Store, "path", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        store.pack("paper", runs)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["paper.jsonl.xz", "runs"]
    store = Store(tmp_path)
    assert store.runs == {run.experiment: run for run in runs}
    store.pack("paper", runs)
    assert [path.name for path in tmp_path.iterdir()] == ["paper.jsonl.xz"]


def test_a_loose_record_counts_more_than_a_packed_one(tmp_path: Path) -> None:
    (run,) = several(1)
    store = kept(tmp_path, [run])
    store.pack("paper", [run])
    again = replace(run, seconds=9.0)
    store.keep(again)
    assert Store(tmp_path).runs == {run.experiment: again}
    Store(tmp_path).pack("paper", [again])
    assert Store(tmp_path).runs == {run.experiment: again}


def test_a_packed_record_can_be_run_again(tmp_path: Path) -> None:
    runs = several(1, 2)
    kept(tmp_path, runs).pack("paper", runs)
    file = tmp_path / "paper.jsonl.xz"
    for run in runs:
        assert Experiment(**load(Path(f"{file}:{run.name}"))) == run.experiment
    for name, wrong in {"": "has no record ''", ":nobody": "has no record 'nobody'"}.items():
        with pytest.raises(InputError, match=rf"{file} {wrong}: write {file}:NAME"):
            load(Path(f"{file}{name}"))
    with pytest.raises(InputError, match=r"there is no file .*league\.jsonl\.xz$"):
        load(tmp_path / f"league.jsonl.xz:{runs[0].name}")
    for content in (b"", b"no xz", file.read_bytes()[:60], lzma.compress(b"{\n"), lzma.compress(b"[1]\n")):
        file.write_bytes(content)
        with pytest.raises(InputError, match=rf"{file} (is not the record of a run|has no record)"):
            load(Path(f"{file}:{runs[0].name}"))


def test_a_corrupt_packed_file_is_named_with_its_line(tmp_path: Path) -> None:
    runs = sorted(several(1, 2), key=lambda run: run.name)
    kept(tmp_path, runs).pack("paper", runs)
    file = tmp_path / "paper.jsonl.xz"
    packed = file.read_bytes()
    first, second = lzma.decompress(packed).splitlines(keepends=True)
    cases: dict[str, bytes] = {
        "line 2 is not the record of a run: it is not JSON": lzma.compress(first + second[:-9]),
        "line 1 is not the record of a run: its rho": lzma.compress(first.replace(b'"rho": 0.5', b'"rho": "a"')),
        f"line 2 must not be {runs[0].name}": lzma.compress(second + first),
        f"line 2 must not be {runs[1].name}": lzma.compress(second + second),
        "is corrupt: ": packed[:-40],
    }
    for wrong, content in cases.items():
        file.write_bytes(content)
        with pytest.raises(InputError) as caught:
            Store(tmp_path)
        assert str(caught.value).startswith(f"{file} {wrong}") and "\n" not in str(caught.value)


def test_only_another_folder_may_hold_loose_records_itself(tmp_path: Path) -> None:
    (run,) = several(1)
    kept(tmp_path / "elsewhere", [run])
    bare = tmp_path / "elsewhere" / "runs"
    assert set(Store(tmp_path / "out", bare).runs) == {run.experiment}
    assert Store(bare).runs == {}  # an output folder's own files are not records
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "settings.json").write_text("{}")  # an output folder without records yet
    assert Store(tmp_path / "out", tmp_path / "begun").runs == {}


# --------------------------------------------------------------------- refused


def refusal(folder: Path) -> str:
    """What is said of the one loose record in a folder, between its name and what to do."""
    with pytest.raises(InputError) as caught:
        Store(folder)
    (path,), line = (folder / "runs").iterdir(), str(caught.value)
    before, after = f"{path} is not the record of a run: ", "; remove it to run it again"
    assert line.startswith(before) and line.endswith(after) and "\n" not in line
    return line[len(before) : -len(after)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it is not JSON"),
        ('{"name": "half', "it is not JSON"),
        ("[]", "input should be an object"),
        ("{}", "it lacks name"),
        ('{"name": 1}', "its name: input should be a valid string"),
    ],
)
def test_a_corrupt_record_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "broken.json").write_text(text)
    assert refusal(tmp_path) == wrong


Change = Callable[[dict[str, Any]], object]
CHANGES: dict[str, Change] = {
    "it lacks versions": lambda r: r.pop("versions"),
    "its status: input should be 'finished', 'diverged' or 'unfinished'": lambda r: r.update(status="done"),
    "its rounds.1: input should be a valid integer, unable to parse string as an integer": lambda r: r.update(
        rounds=[0, "two", 4, 6]
    ),
    "its name is another": lambda r: r.update(name="another"),
    "its config has mu=-1.0: input should be greater than 0": lambda r: r["config"].update(mu=-1.0),
    "its config is that of synthetic-K4-T6-dr-dsgd-mu5-seed0": lambda r: r["config"].update(mu=5.0),
    "its last round is 4 of 6, but its status is finished": lambda r: r["rounds"].pop(),
    "the run has not ended": lambda r: r.update(status="unfinished"),
    "its curves.local.worst has 3 values, not 4": lambda r: r["curves"]["local"]["worst"].pop(),
    "its curves.consensus.stdev has 0 values, not 4": lambda r: r["curves"]["consensus"].pop("stdev"),
    "its weight has 5 values, not 4": lambda r: r["weight"].append(1.0),
    "its per_device.consensus has 3 values, not 4": lambda r: r["per_device"]["consensus"].pop(),
    "its curves.consensus.worst ends at 99.5, its lowest per_device.consensus is": lambda r: r["curves"][
        "consensus"
    ].update(worst=[0.0, 0.0, 0.0, 99.5]),
}


@pytest.mark.parametrize("wrong", CHANGES)
def test_a_record_that_contradicts_itself_is_refused(folder: Path, tmp_path: Path, wrong: str) -> None:
    run = run_record(records.read(folder))
    Store(tmp_path).keep(run)
    path = Store(tmp_path).path(run)
    values = json.loads(path.read_text())
    CHANGES[wrong](values)
    path.write_text(json.dumps(values))
    assert refusal(tmp_path).startswith(wrong)


def test_a_record_under_another_name_is_refused(folder: Path, tmp_path: Path) -> None:
    run = run_record(records.read(folder))
    Store(tmp_path).keep(run)
    Store(tmp_path).path(run).rename(tmp_path / "runs" / "mine.json")
    assert refusal(tmp_path) == f"its name is {run.name}"


def test_a_half_written_file_is_not_seen(folder: Path, tmp_path: Path) -> None:
    Store(tmp_path).keep(run_record(records.read(folder)))
    (tmp_path / "runs" / ".x.json.k3j2").write_text('{"name": "half')
    assert list(Store(tmp_path).runs) == [E]


def test_what_is_taken_from_elsewhere_is_gathered(folder: Path, tmp_path: Path) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    Store(elsewhere).keep(run_record(records.read(folder)))
    store = Store(here, elsewhere)
    store.gather(store.runs.values())
    assert E in Store(here).runs
    outdated = Store(here).path(store.runs[E])
    outdated.write_text(outdated.read_text().replace(versions()["torch"], "1.0"))
    again = Store(here, elsewhere)
    assert again.outdated == 1
    again.gather(again.runs.values())  # else a CSV file would name a record with other numbers
    assert E in Store(here).runs


def test_names_differ_where_experiments_do() -> None:
    names = {name_of(small(**fields)) for fields in ({}, {"seed": 1}, {"eta": 0.1}, {"shards": None, "p": None})}
    assert len(names) == 3


def test_ends_leave_out_what_diverged() -> None:
    one = made.run_record(made.experiment(seed=1), [50.0] * 5)
    other = made.run_record(made.experiment(seed=2), [9.0] * 5, "diverged")
    assert ends([one, other], "consensus", "average") == {1: 50.0} and diverged([one, other]) == 1
