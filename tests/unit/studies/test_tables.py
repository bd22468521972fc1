"""The CSV files and the page: every row names its runs, what is lost or missing is said, nothing stale is left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from drdsgd.experiments.config import Experiment
from drdsgd_studies.paper import fair, results, table1
from drdsgd_studies.paper.parts import PARTS
from drdsgd_studies.shared.claims import NOT_RUN, Claim, Finding
from drdsgd_studies.shared.pages import Table
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import RunRecord
from tests.support.made import run_record

S = Settings(seeds=(0, 1, 2), rounds=6)
(C,) = PARTS["fig2"].comparisons(S)
Runs = dict[Experiment, RunRecord]


def runs(group: Group, worst: float, lost: Iterable[int] = ()) -> Runs:
    return {
        e: run_record(e, [worst, *[80.0] * (e.devices - 1)], "diverged" if e.seed in lost else "finished")
        for e in group.experiments
    }


def pair(lost: Iterable[int] = ()) -> Runs:
    """Both algorithms, and DSGD at the matched step; those seeds of DR-DSGD diverged."""
    dsgd, dr_dsgd = C.pair(S).values()
    done = runs(dsgd, 40.0) | runs(dr_dsgd, 45.0, lost)
    return done | runs(fair.variants(C, S, done)[fair.MATCHED], 43.0)


def test_without_rows_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.csv"
    results.write_csv(path, [{"seed": 0, "run": "a"}])
    assert path.read_text() == "seed,run\n0,a\n"
    results.write_csv(path, [])
    results.write_csv(path, [])
    assert not path.exists()


def test_a_gain_names_the_runs_that_it_is_made_of() -> None:
    rows = results.tables(PARTS["fig2"], S, done := pair(lost=[1]))["gains"]
    assert {row["gain"] for row in rows} == {"same_eta", "step", "rest"}  # nothing is tuned yet
    by_name = {run.name: run.experiment for run in done.values()}
    for row in rows:
        made_of = [by_name[name] for name in row["runs"].split()]
        assert len(made_of) == 2 * row["pairs"] == 4 and {e.seed for e in made_of} == {0, 2}
        assert {e.algorithm for e in made_of} == ({"dsgd"} if row["gain"] == "step" else {"dsgd", "dr-dsgd"})


def test_a_gain_that_is_not_of_all_seeds_says_so() -> None:
    def cells(lost: Iterable[int]) -> list[str]:
        return list(results.gain_table([C], S, pair(lost)).rows[0][2:])

    assert cells([]) == ["+5.0 ± 0.0", "+3.0 ± 0.0", "+2.0 ± 0.0", "—", "—"]
    assert cells([1]) == ["+5.0 ± 0.0 (2 of 3)", "+3.0 ± 0.0 (2 of 3)", "+2.0 ± 0.0 (2 of 3)", "—", "—"]


def tables(done: Runs, name: str) -> list[Table]:
    return [block for block in results.section(PARTS[name], S, done, [], {}) if isinstance(block, Table)]


def test_what_is_not_done_is_not_called_finished() -> None:
    done = pair(lost=[1])
    finished = {row[1]: row[-1] for row in tables(done, "fig2")[1].rows}
    assert finished["DSGD"] == "3 of 3" and finished["DR-DSGD"] == "2 of 3"
    assert finished["DSGD, best eta"] == "0 of 3 done"
    del done[C.pair(S)["DR-DSGD"].experiments[0]]
    assert {row[1]: row[-1] for row in tables(done, "fig2")[1].rows}["DR-DSGD"] == "2 of 3 done, 1 diverged"


def test_the_choice_of_a_step_is_called_noisy_where_it_is_shown() -> None:
    for name, seeds in (("fig1", "2 seeds on Fashion-MNIST"), ("fig2", "1 seed on CIFAR-10")):
        assert any(seeds in str(block) for block in results.section(PARTS[name], S, {}, [], {}))
    assert "best eta" not in str(results.section(PARTS["table1"], S, {}, [], {}))


def test_the_order_of_the_readings_is_said_and_why_some_are_missing() -> None:
    read = [r for r in table1.readings() if r.kind == "consensus"]
    done: Runs = {}
    for r in read[:2]:  # each is scored as both models
        for group in table1.reading_rows(S, r).values():
            done |= runs(group, 40.0)
    text = str(results.section(PARTS["table1"], S, done, [], {}))
    assert "First those of which no run diverged" in text and "32 of 36 are missing" in text


@pytest.mark.parametrize("undone", [0, 2])
def test_what_is_not_run_is_counted_apart(undone: int) -> None:
    findings = [Finding("", "holds"), Finding("", "cannot be told"), *[NOT_RUN] * undone]
    claims = [Claim("", "", "", {"consensus": finding}) for finding in findings]
    text, _ = results.overview({"fig1": claims})
    counted = "holds: 1, cannot be told: 1" + (", not run yet: 2" if undone else "")
    assert str(text).count(f"each names. {counted}.") == 1
