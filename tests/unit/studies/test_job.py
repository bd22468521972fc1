"""Doing what is not done: everything once, in any number of sittings, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from drdsgd.data import sources
from drdsgd.errors import InputError
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder
from drdsgd_studies.shared import job
from drdsgd_studies.shared.plan import Group, Settings, waiting
from drdsgd_studies.shared.store import Done, Store
from tests.support import made
from tests.support.program import Crash, contents, small

S = Settings(seeds=(0, 1))
FIRST, SECOND = (Group(tuple(small(seed=seed, eta=eta) for seed in S.seeds)) for eta in (0.1, 0.2))


def plan(done: Done) -> list[Group]:
    """The second group is known to be needed only when the first is done."""
    return [FIRST, SECOND] if all(e in done for e in FIRST.experiments) else [FIRST]


def test_what_depends_on_results_follows_them(tmp_path: Path) -> None:
    store, seen, notes = Store(tmp_path / "out"), list[float](), list[str]()

    def watch(done: float, total: float, note: str) -> None:
        seen.append(done / total)
        notes.append(note)

    job.do(plan, store, tmp_path / "work", 1, watch)
    assert notes[-1].startswith("4 of 4 runs done")
    assert set(store.runs) == {*FIRST.experiments, *SECOND.experiments}
    assert set(Store(tmp_path / "out").runs) == set(store.runs)
    assert not (tmp_path / "work").exists()
    assert seen[0] == 0 and seen[-1] == pytest.approx(1) and all(0 <= part <= 1 + 1e-9 for part in seen)


def test_a_number_of_runs_that_may_change_is_a_guess(tmp_path: Path) -> None:
    """What stands for the best of some may turn out to be done already."""
    notes = list[str]()

    def chosen(done: Done) -> list[Group]:
        return [FIRST, FIRST if all(e in done for e in FIRST.experiments) else waiting(SECOND)]

    job.do(chosen, Store(tmp_path / "out"), tmp_path / "work", 1, lambda done, total, note: notes.append(note))
    assert notes[-1].startswith("2 of about 4 runs done")


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    job.do(plan, Store(tmp_path / "out"), tmp_path / "work", 1)
    before = contents(tmp_path / "out")
    with patch("drdsgd.experiments.workers.team", side_effect=Crash):
        job.do(plan, Store(tmp_path / "out"), tmp_path / "work", 1)
    assert contents(tmp_path / "out") == before


def test_what_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    job.do(plan, whole := Store(tmp_path / "whole"), tmp_path / "work", 1)

    def crash(done: float, total: float, note: str) -> None:
        if done > 0.6 * total:
            raise Crash

    with pytest.raises(Crash):
        job.do(plan, store := Store(tmp_path / "out"), tmp_path / "work", 1, crash)
    kept = contents(tmp_path / "out")
    assert len(kept) == 1  # the first; the second was on its way
    assert Folder(next((tmp_path / "work").iterdir())).status == "unfinished"
    job.do(plan, store := Store(tmp_path / "out"), tmp_path / "work", 1)
    assert kept.items() <= contents(tmp_path / "out").items()
    without_time = {e: {**run.__dict__, "seconds": 0} for e, run in store.runs.items()}
    assert without_time == {e: {**run.__dict__, "seconds": 0} for e, run in whole.runs.items()}


def test_a_run_that_was_over_when_the_process_was_killed_is_kept(tmp_path: Path) -> None:
    from drdsgd.experiments.run import run
    from drdsgd_studies.shared.store import name_of

    e = FIRST.experiments[0]
    run(e, tmp_path / "work" / name_of(e))
    store = Store(tmp_path / "out")
    with Folder(tmp_path / "work" / name_of(e)).lock():  # a process that has not let go of it yet
        assert job.harvest([e], store, tmp_path / "work") == []
    assert [run.experiment for run in job.harvest([e], store, tmp_path / "work")] == [e]
    assert not (tmp_path / "work" / name_of(e)).exists()
    run(e, tmp_path / "work" / name_of(e))  # as if we had been killed after the record was written
    assert job.harvest([e], store, tmp_path / "work") == []
    assert not (tmp_path / "work" / name_of(e)).exists()


def test_a_shared_experiment_is_done_once() -> None:
    assert job.missing([FIRST, FIRST, Group(SECOND.experiments, ready=False)], {}) == list(FIRST.experiments)


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (Settings(seeds=(0, 1, 2)), "holds results with seeds='0,1', not with seeds='0,1,2': .* another out"),
        (Settings(seeds=(0, 1), rounds=7), "holds results without rounds, not with rounds=7"),
        (Settings(seeds=(0, 1), quick=True), "holds results without quick, not with quick=True"),
        (
            Settings(seeds=(2, 3), rounds=7, quick=True),
            "without quick and without rounds and with seeds='0,1', not with quick=True and with rounds=7 and with",
        ),
    ],
)
def test_a_folder_of_other_settings_is_refused(tmp_path: Path, now: Settings, line: str) -> None:
    job.check_folder(tmp_path, S)
    job.check_folder(tmp_path, S)
    with pytest.raises(InputError, match=line):
        job.check_folder(tmp_path, now)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "it is not JSON"),
        ("{}", "it lacks seeds"),
        ("[1]", "input should be an object"),
        (json.dumps({"seeds": [0, 1]}), "it lacks rounds"),
    ],
)
def test_a_corrupt_settings_file_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(InputError, match=rf"settings\.json is corrupt: {wrong}; remove it"):
        job.check_folder(tmp_path, S)


@pytest.mark.parametrize(("file", "what"), [("study.toml", "comparison"), ("config.toml", "run")])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, file: str, what: str) -> None:
    (tmp_path / file).write_text("")
    with pytest.raises(InputError, match=f"holds a {what} .*give another folder"):
        job.check_folder(tmp_path, S)
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_a_missing_data_set_is_said_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_places", lambda known, data_dir: [tmp_path])
    group = Group((e := Experiment(dataset="fashion-mnist", threads=1),))
    with pytest.raises(InputError, match=r"drdsgd data get fashion-mnist`, or set DRDSGD_DATA to a folder that has it"):
        job.check_data([FIRST, group], {})
    job.check_data([FIRST], {})
    # what is on record needs no data, but what may follow from it does
    known = {e: made.run_record(e, [50.0] * e.devices)}
    job.check_data([FIRST, group], known)
    with pytest.raises(InputError, match="DRDSGD_DATA"):
        job.check_data([Group(group.experiments, ready=False)], known)
