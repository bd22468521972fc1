"""Small records of runs: they say what the run's folder says, come back as they were, and are taken if they fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drdsgd.errors import InputError
from drdsgd.experiments import records
from drdsgd.experiments.config import Experiment, load
from drdsgd.experiments.run import run
from drdsgd.report.statistics import KINDS, MEASURES
from drdsgd.versions import versions
from drdsgd_studies.shared.store import Store, diverged, ends, name_of, run_record
from tests.support import made
from tests.support.program import small

E = small(algorithm="dr-dsgd", mu=3.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    run(E, path)
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
    assert small_one.versions == versions()


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


@pytest.mark.parametrize(("name", "version", "fits"), [("torch", "1.0", False), ("python", None, True)])
def test_other_versions_are_not_taken(folder: Path, tmp_path: Path, name: str, version: str | None, fits: bool) -> None:
    run = run_record(records.read(folder))
    patch = versions()["python"].rpartition(".")[0] + ".99"  # a patch of Python changes no numbers
    Store(tmp_path).keep(type(run)(**{**run.__dict__, "versions": {**run.versions, name: version or patch}}))
    store = Store(tmp_path)
    assert (E in store.runs, store.outdated) == ((True, 0) if fits else (False, 1))
    # which, and each once
    assert store.differing == ([] if fits else [f"torch 1.0 there, {versions()['torch']} here"])


def refusal(folder: Path) -> str:
    """What is said of the one record in a folder, between its name and what to do."""
    with pytest.raises(InputError) as caught:
        Store(folder)
    (path,), line = folder.iterdir(), str(caught.value)
    before, after = f"{path} is not the record of a run: ", "; remove it, and the run is done again"
    assert line.startswith(before) and line.endswith(after) and "\n" not in line
    return line[len(before) : -len(after)]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it is not JSON"),
        ('{"name": "half', "it is not JSON"),
        ("[]", "it is not a JSON object with named values"),
        ("{}", "it lacks name"),
        ('{"name": 1}', "its name: input should be a valid string"),
    ],
)
def test_a_corrupt_record_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    assert refusal(tmp_path) == wrong


Change = Callable[[dict[str, Any]], object]
CHANGES: dict[str, Change] = {
    "it lacks versions": lambda r: r.pop("versions"),
    "its status: input should be 'finished', 'diverged' or 'unfinished'": lambda r: r.update(status="done"),
    "its rounds.1: input should be a valid integer, unable to parse string as an integer": lambda r: r.update(
        rounds=[0, "two", 4, 6]
    ),
    "its name is another": lambda r: r.update(name="another"),
    "its config has --mu -1.0: input should be greater than 0": lambda r: r["config"].update(mu=-1.0),
    "its config is that of synthetic-K4-T6-dr-dsgd-mu5-seed0": lambda r: r["config"].update(mu=5.0),
    "its last round is 4 of 6, but it says finished": lambda r: r["rounds"].pop(),
    "it is of no run that is over": lambda r: r.update(status="unfinished"),
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
    Store(tmp_path).path(run).rename(tmp_path / "mine.json")
    assert refusal(tmp_path) == f"its name is {run.name}"


def test_a_half_written_file_is_not_seen(folder: Path, tmp_path: Path) -> None:
    Store(tmp_path).keep(run_record(records.read(folder)))
    (tmp_path / ".x.json.k3j2").write_text('{"name": "half')
    assert list(Store(tmp_path).runs) == [E]


def test_what_is_taken_from_elsewhere_is_gathered(folder: Path, tmp_path: Path) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    Store(elsewhere).keep(run_record(records.read(folder)))
    store = Store(here, elsewhere)
    assert [run.experiment for run in store.gather([E, E, small(seed=9)])] == [E]
    assert E in Store(here).runs
    outdated = Store(here).path(store.runs[E])
    outdated.write_text(outdated.read_text().replace(versions()["torch"], "1.0"))
    again = Store(here, elsewhere)
    assert again.outdated == 1
    again.gather([E])  # else a CSV file would name a record with other numbers
    assert E in Store(here).runs


def test_names_differ_where_experiments_do() -> None:
    names = {name_of(small(**fields)) for fields in ({}, {"seed": 1}, {"eta": 0.1}, {"shards": None, "p": None})}
    assert len(names) == 3


def test_ends_leave_out_what_diverged() -> None:
    one = made.run_record(made.experiment(seed=1), [50.0] * 5)
    other = made.run_record(made.experiment(seed=2), [9.0] * 5, "diverged")
    assert ends([one, other], "consensus", "average") == {1: 50.0} and diverged([one, other]) == 1
