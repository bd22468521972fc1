"""Small records of runs: they say what the run's folder says, come back as they were, and are taken if they fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drdsgd import records
from drdsgd.errors import InputError
from drdsgd.experiment import Experiment, load
from drdsgd.paper.store import Store, diverged, ends, kept, name_of
from drdsgd.runs import run
from drdsgd.summary import KINDS, MEASURES
from tests import made
from tests.program import small

E = small(algorithm="dr-dsgd", mu=3.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    run(E, path)
    return path


def test_a_record_says_what_the_folder_says(folder: Path) -> None:
    record = records.read(folder)
    small_one = kept(record)
    assert small_one.experiment == E and small_one.name == name_of(E)
    assert small_one.rounds == [0, 2, 4, 6] and small_one.status == "finished"
    for kind in KINDS:
        for measure in MEASURES:
            full = [getattr(getattr(m, kind), measure) for m in record.metrics]
            assert small_one.curves[kind][measure] == pytest.approx(full, abs=1e-4)
        assert small_one.per_device[kind] == pytest.approx(getattr(record.final, kind).per_device, abs=1e-4)
    assert small_one.weight == pytest.approx([sum(m.weights) / 4 for m in record.metrics], rel=1e-5)
    assert small_one.versions == records.versions()


def test_it_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    run = kept(records.read(folder))
    Store(tmp_path).keep(run)
    again = Store(tmp_path)
    assert again.runs == {E: run}
    path = again.path(run)
    assert load(path) == run.config and Experiment(**load(path)) == E
    assert path.stat().st_size < 6000


def test_a_config_of_before_an_option_was_there_has_its_default(folder: Path, tmp_path: Path) -> None:
    run = kept(records.read(folder))
    path = Store(tmp_path).path(run)
    Store(tmp_path).keep(run)
    values = json.loads(path.read_text())
    del values["config"]["weights"]
    path.write_text(json.dumps(values))
    assert E in Store(tmp_path).runs


@pytest.mark.parametrize(("name", "version", "fits"), [("torch", "1.0", False), ("python", None, True)])
def test_other_versions_are_not_taken(folder: Path, tmp_path: Path, name: str, version: str | None, fits: bool) -> None:
    run = kept(records.read(folder))
    patch = records.versions()["python"].rpartition(".")[0] + ".99"  # a patch of Python changes no numbers
    Store(tmp_path).keep(type(run)(**{**run.__dict__, "versions": {**run.versions, name: version or patch}}))
    store = Store(tmp_path)
    assert (E in store.runs, store.outdated) == ((True, 0) if fits else (False, 1))


@pytest.mark.parametrize("text", ["", "{}", '{"name": 1}', "[]", '{"name": "half'])
def test_a_corrupt_record_is_named(folder: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(InputError, match=r"broken\.json is not the record of a run .*remove it"):
        Store(tmp_path)


def test_a_half_written_file_is_not_seen(folder: Path, tmp_path: Path) -> None:
    Store(tmp_path).keep(kept(records.read(folder)))
    (tmp_path / ".x.json.k3j2").write_text('{"name": "half')
    assert list(Store(tmp_path).runs) == [E]


def test_what_is_taken_from_elsewhere_is_gathered(folder: Path, tmp_path: Path) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    Store(elsewhere).keep(kept(records.read(folder)))
    store = Store(here, elsewhere)
    assert [run.experiment for run in store.gather([E, E, small(seed=9)])] == [E]
    assert E in Store(here).runs
    outdated = Store(here).path(store.runs[E])
    outdated.write_text(outdated.read_text().replace(records.versions()["torch"], "1.0"))
    again = Store(here, elsewhere)
    assert again.outdated == 1
    again.gather([E])  # else a CSV file would name a record with other numbers
    assert E in Store(here).runs


def test_names_differ_where_experiments_do() -> None:
    names = {name_of(small(**fields)) for fields in ({}, {"seed": 1}, {"eta": 0.1}, {"shards": None, "p": None})}
    assert len(names) == 3


def test_ends_leave_out_what_diverged() -> None:
    one = made.kept(made.experiment(seed=1), [50.0] * 5)
    other = made.kept(made.experiment(seed=2), [9.0] * 5, "diverged")
    assert ends([one, other], "consensus", "average") == {1: 50.0} and diverged([one, other]) == 1
