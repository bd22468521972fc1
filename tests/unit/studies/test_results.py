"""The results that are committed: every verdict follows from the records beside it, by the rules of today."""

from __future__ import annotations

import csv
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from drdsgd_studies.league import groups
from drdsgd_studies.league import results as league
from drdsgd_studies.league.entrants import OURS
from drdsgd_studies.league.goals import goals
from drdsgd_studies.paper.parts import PARTS, Row
from drdsgd_studies.paper.results import tables
from drdsgd_studies.shared import pages
from drdsgd_studies.shared.plan import Settings
from drdsgd_studies.shared.store import Done, read_records

RESULTS = Path(__file__).parents[3] / "docs" / "results"
# on one worker, so that all runs are read once
pytestmark = [pytest.mark.xdist_group("results"), pytest.mark.slow]


@pytest.fixture(scope="module")
def done() -> Done:
    """All committed runs, whatever versions they were made with."""
    return {run.experiment: run for run in read_records(RESULTS)}


def settings() -> Settings:
    stored = json.loads((RESULTS / "settings.json").read_text())
    return Settings(tuple(stored["seeds"]), stored["rounds"], stored["quick"])


def test_they_are_of_the_papers_sizes() -> None:
    assert settings() == Settings((0, 1, 2, 3, 4), None, False)


@pytest.mark.parametrize("name", PARTS)
def test_verdicts_are_those_of_the_rules(name: str, done: Done) -> None:
    stored = json.loads((RESULTS / name / "verdicts.json").read_text())
    fresh = [asdict(claim) for claim in PARTS[name].claims(settings(), done)]
    assert stored == fresh


@pytest.mark.parametrize("name", PARTS)
def test_numbers_are_those_of_the_records(name: str, done: Done) -> None:
    assert_stored(RESULTS / name, tables(PARTS[name], settings(), done))


def assert_stored(folder: Path, expected: Mapping[str, Sequence[Row]]) -> None:
    for table, rows in expected.items():
        path = folder / f"{table}.csv"
        assert path.exists() == bool(rows)
        if not rows:
            continue
        with path.open(newline="") as file:
            stored = list(csv.DictReader(file))
        assert stored == [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]


def test_the_page_says_every_verdict() -> None:
    text = (RESULTS / "README.md").read_text().replace(r"\|", "|")
    for name in (*PARTS, "theory"):
        for claim in json.loads((RESULTS / name / "verdicts.json").read_text()):
            for finding in claim["findings"].values():
                assert f"| {finding['ours']} | {finding['verdict']} |" in text


def test_the_league_is_what_its_records_say(done: Done) -> None:
    folder, s = RESULTS / "league", settings()
    assert json.loads((folder / "verdicts.json").read_text()) == [asdict(goal) for goal in goals(s, done)]
    assert_stored(folder, league.tables(s, done))
    assert (folder / "README.md").read_text(encoding="utf-8") == pages.markdown(league.page(s, done, folder), folder)


def test_advice_points_at_numbers_of_the_league() -> None:
    """Every "NAME 66.4 ± 2.1" stands in a row with that name, and every section has one."""
    page = (RESULTS / "league" / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" *") for cell in line.strip("|").split(" | ")] for line in page.splitlines() if "| " in line]
    words_of = {cell for row in rows for cell in row if re.search("[a-zA-Z]", cell) and "±" not in cell}
    names = sorted(words_of, key=len, reverse=True)
    number, named = r"[+−]?\d+\.\d+ ± \d+\.\d+", "|".join(map(re.escape, names))
    _, *sections = re.split(r"^## ", (RESULTS.parent / "choosing.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for section in sections:
        words = " ".join(section.split())
        found = re.findall(rf"({named}):? ({number})", words)
        assert found and len(found) == len(re.findall(number, words)), words  # none stands without what it is of
        for name, value in found:
            assert any(name in row and any(value in cell for cell in row) for row in rows), (name, value)


def test_the_first_page_has_the_leagues_numbers() -> None:
    """At equal floats, of ours, of the best of the others without a server, and of DSGD."""
    page = (RESULTS / "league" / "README.md").read_text(encoding="utf-8")
    table = page[page.index("p = 0.3: equal floats sent") :].partition("Each device's own")[0]
    rows = [[cell.strip(" *") for cell in line.strip("|").split(" | ")] for line in table.splitlines() if "± " in line]
    worst = {row[0]: row[5] for row in rows}
    best = next(row[0] for row in rows if row[1] == "without a server")  # the best first
    words = " ".join((RESULTS.parent.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"at {worst[OURS]} % by our own" in words and f"at {worst['DR-QGM']} % by our DR-QGM" in words
    assert f"at {worst[best]} % by the best of the others, {best}" in words
    assert f"at {worst['DSGD']} % by DSGD" in words
    said = re.findall(r"\d+\.\d ± \d+\.\d", words.partition("In [the league]")[2].partition("[Which method")[0])
    assert len(said) > 3 and all(number in page for number in said)


def test_every_record_is_in_the_file_of_its_study(done: Done) -> None:
    paper = {e for part in PARTS.values() for group in part.groups(settings(), done) for e in group.experiments}
    league = {e for group in groups(settings(), done) for e in group.experiments}
    for study, planned in {"paper": paper, "league": league - paper}.items():
        with lzma.open(RESULTS / f"{study}.jsonl.xz") as lines:
            assert sorted(done[e].name for e in planned) == [json.loads(line)["name"] for line in lines]
    assert done.keys() == paper | league
