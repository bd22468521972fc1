"""What the league leaves: a page, tables and pictures, from whatever is done, by the command that makes them."""

from __future__ import annotations

import csv
import json
import lzma
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from drdsgd.report import plots
from drdsgd_studies import reproduce
from drdsgd_studies.league import plan
from drdsgd_studies.league.entrants import OURS
from drdsgd_studies.shared.plan import Settings
from drdsgd_studies.shared.store import Store, name_of
from tests.support.league import finished, tuned
from tests.support.program import drdsgd

pytestmark = pytest.mark.slow

QUICK = Settings(seeds=(0, 1), quick=True)
PICTURES = (
    "front-fashion-mnist-erdos-renyi", "front-fashion-mnist-ring", "front-cifar-10-erdos-renyi",
    "floats-fashion-mnist-erdos-renyi", "floats-fashion-mnist-ring",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(figure: Figure, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=20)
        return path

    monkeypatch.setattr(plots, "save", save)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_before_anything_is_done_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    said = drdsgd("reproduce", "league", "--quick", "--only-known", "--out", tmp_path, "--records", tmp_path)
    assert said.status == 0 and "0 of " in said.err
    words = " ".join(said.out.split())  # lines are broken where the terminal ends
    assert "not run yet" in words and "(wanted: at most 5 points below)" in words
    assert {f"{name}.png" for name in PICTURES} <= {path.name for path in (tmp_path / "league").iterdir()}
    assert not any((tmp_path / "league" / name).exists() for name in ("results.csv", "report.html"))
    assert said.out.splitlines()[-1] == f"results: {tmp_path}"


def test_a_run_of_both_studies_is_packed_once_with_the_papers(tmp_path: Path) -> None:
    both = plan.paper_runs(QUICK, "Fashion-MNIST")["DSGD"]
    own = plan.fresh(both)
    reproduce._pack([*finished(both, 30.0).values(), *finished(own, 30.0).values()], QUICK, Store(tmp_path))
    for study, group in {"paper": both, "league": own}.items():
        with lzma.open(tmp_path / f"{study}.jsonl.xz") as lines:
            assert {json.loads(line)["name"] for line in lines} == {name_of(e) for e in group.experiments}


def test_everybody_is_in_the_tables_best_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = [entrant.name for entrant in plan.arenas(QUICK)[0].entrants]
    worst = {name: 40.0 + i for i, name in enumerate(names)}
    for arena in plan.arenas(QUICK):
        for run in tuned([entrant.name for entrant in arena.entrants], worst, arena).values():
            store.keep(run)
    one = plan.place(plan.arenas(QUICK)[0], next(e for e in arena.entrants if e.name == OURS), store.runs)
    for hard in plan.hardships(one).values():
        for run in finished(hard.group, 30.0).values():
            store.keep(run)
    said = drdsgd("reproduce", "league", "--quick", "--only-known", "--out", tmp_path, "--records", tmp_path)
    assert said.status == 0, said.err
    report = tmp_path / "league" / "report.html"
    assert said.out.splitlines()[-1] == f"report: {report}"
    headlines = re.findall(r'<p class="headline">(.*?): its accuracy', report.read_text(encoding="utf-8"))
    assert headlines == [f"{OURS} serves the worst-off device better than DSGD"]
    page = (tmp_path / "league" / "README.md").read_text(encoding="utf-8")
    table = page[page.index("ring: equal rounds") : page.index("ring: equal floats")].splitlines()
    ranked = [line.split(" | ")[0].removeprefix("| ").strip("*") for line in table if "| 0 of 2 |" in line]
    assert ranked == names[::-1]
    assert f"| {OURS} | 20 % of links fail | " in page
    assert "A quick check on the embedded digits" in page  # its headings name other data
    found = rows(tmp_path / "league" / "results.csv")
    assert {row["method"] for row in found} == set(names)
    assert {row["run"] for row in found} <= {path.stem for path in (tmp_path / "runs").iterdir()}
    tuning = rows(tmp_path / "league" / "tuning.csv")
    entered = sum(len(arena.entrants) for arena in plan.arenas(QUICK))
    assert len(tuning) == 3 * entered  # trials
    assert sum(row["chosen"] == "True" for row in tuning) == entered
