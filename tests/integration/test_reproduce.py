"""`drdsgd reproduce`: the whole way, on the embedded data, with the code that judges the real runs."""

from __future__ import annotations

import csv
import functools
import json
import os
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from matplotlib.figure import Figure
from playwright.sync_api import Browser

from drdsgd.data import sources
from drdsgd.experiments.records import Folder, read
from drdsgd.report import plots
from drdsgd.versions import versions
from drdsgd_studies.paper import draw
from drdsgd_studies.paper.parts import PARTS
from drdsgd_studies.shared.plan import Settings
from drdsgd_studies.shared.store import Store, read_records, run_record
from drdsgd_studies.theory import measurements
from tests.support.browser import opened
from tests.support.killing import process, program
from tests.support.program import Crash, contents, drdsgd, refused, wait_for

# all of it on one worker, so that it is done once
pytestmark = pytest.mark.xdist_group("reproduce")

VERDICTS = ("holds", "holds in part", "does not hold", "cannot be told")
ROUNDS = 5
QUICK = ("--quick", "--rounds", str(ROUNDS), "--threads", "1")


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    """What takes long, and others test: pictures in full size and as PDF, the disk, reading the digits every time."""

    def save(figure: Figure, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pdf":
            path.write_bytes(b"%PDF-")
        else:
            figure.savefig(path, dpi=20)
        return path

    cases = measurements._cases

    def short(quick: bool, seeds: Sequence[int]) -> list[measurements._Case]:
        return [case for case in cases(quick, seeds) if case.T <= 256]

    with (
        patch.object(plots, "save", save),
        patch.object(measurements, "_cases", short),
        patch.object(os, "fsync", lambda file: None),
        patch.object(sources, "digits", functools.cache(sources.digits)),
    ):
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`drdsgd reproduce all --quick`, all of it."""
    out = tmp_path_factory.mktemp("quick") / "out"
    said = drdsgd("reproduce", "all", *QUICK, "--out", out, "--records", out.parent)
    assert said.status == 0, said.err
    assert (out / "paper.jsonl.xz").exists() and not (out / "runs").exists()
    assert "drdsgd: --quick: a check of the whole way on the embedded digits" in said.err.splitlines()[0]
    assert all(f"\n{name}: " in said.out for name in (*PARTS, "theory"))
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_part_leaves_numbers_pictures_and_verdicts(everything: Path) -> None:
    for name in (*PARTS, "theory"):
        files = {path.name for path in (everything / name).iterdir()}
        assert "verdicts.json" in files
        pictures = {Path(file).stem for file in files if file.endswith(".png")}
        assert pictures and {f"{picture}.pdf" for picture in pictures} <= files
        for claim in json.loads((everything / name / "verdicts.json").read_text()):
            assert claim["rule"] and claim["paper"]
            assert all(f["verdict"] in VERDICTS and f["ours"] for f in claim["findings"].values())
        for file in (everything / name).glob("*.csv"):
            assert rows(file), file


def test_verdicts_are_those_of_the_rules(everything: Path) -> None:
    s, done = Settings((0, 1), ROUNDS, True), Store(everything).runs
    for name, part in PARTS.items():
        stored = json.loads((everything / name / "verdicts.json").read_text())
        fresh = part.claims(s, done)
        assert [claim["text"] for claim in stored] == [claim.text for claim in fresh]
        for claim, other in zip(stored, fresh, strict=True):
            assert {of: f["verdict"] for of, f in claim["findings"].items()} == {
                of: f.verdict for of, f in other.findings.items()
            }


def test_every_row_names_its_runs(everything: Path) -> None:
    names = {run.name for run in read_records(everything)}
    for name in PARTS:
        for file in (everything / name).glob("*.csv"):
            for row in rows(file):
                assert set((row.get("run") or row["runs"]).split()) <= names, file


def test_a_run_can_be_repeated_from_its_record(everything: Path, tmp_path: Path) -> None:
    row = rows(everything / "fig1" / "curves.csv")[-1]
    record = f"{everything}/paper.jsonl.xz:{row['run']}"
    assert drdsgd("train", record, "--out", tmp_path / "again").status == 0
    again = run_record(read(tmp_path / "again"))
    assert again.name == row["run"]
    assert replace(again, seconds=0) == replace(Store(everything).runs[again.experiment], seconds=0)


def test_a_second_time_nothing_runs_and_nothing_changes(everything: Path) -> None:
    before = contents(everything)
    with (
        patch("drdsgd.experiments.workers.team", side_effect=Crash),
        patch.object(measurements, "measure", side_effect=Crash),
    ):
        for name in ("fig1", "theory"):
            said = drdsgd("reproduce", name, *QUICK, "--out", everything)
            assert said.status == 0 and "is out of date" not in said.err
            last = f"results: {everything}" if name == "theory" else f"report: {everything / name / 'report.html'}"
            assert said.out.splitlines()[-1] == last
    assert contents(everything) == before


def test_a_page_that_differs_is_said_to_be_out_of_date(everything: Path, tmp_path: Path) -> None:
    shutil.copytree(everything, out := tmp_path / "out")
    (out / "README.md").write_text("# Something else\n")
    said = drdsgd("reproduce", "theory", *QUICK, "--out", out)
    last = said.err.splitlines()[-1]
    command = last[last.index("drdsgd reproduce") : last.index(" renews it")]
    assert last.startswith(f"drdsgd: {out / 'README.md'} is out of date: ")
    assert command == f"drdsgd reproduce all --quick --seeds 0,1 --rounds {ROUNDS} --out {out} --only-known"


def test_another_folder_takes_the_records_that_fit(everything: Path, tmp_path: Path) -> None:
    with patch("drdsgd.experiments.workers.team", side_effect=Crash):
        said = drdsgd("reproduce", "fig5", *QUICK, "--out", tmp_path / "out", "--records", everything)
    assert said.status == 0, said.err
    assert contents(tmp_path / "out" / "fig5") == contents(everything / "fig5")
    taken = list(read_records(tmp_path / "out"))
    assert len(taken) > 10 and all(run in read_records(everything) for run in taken[:3])
    assert not (tmp_path / "out" / "runs").exists()


def test_the_reports_open_in_a_browser(everything: Path, browser: Browser) -> None:
    for name in ("fig1", "fig4"):  # of one setting, and of several
        file = everything / name / "report.html"
        found = opened(browser, file)
        for group in found.page.locator("[name=group]").all():
            group.check()
        found.page.locator("[name=kind][value=local]").check()
        found.page.locator("[name=x][value=floats]").check()
        found.page.locator("#spread .dot").first.dispatch_event("click")  # others may lie above it
        found.page.keyboard.press("Escape")
        found.settle()
        labels = {f"{a}{c}" for c in _settings(name) for a in ("DSGD", "DR-DSGD")}
        assert set(found.lines("curve-worst")) == set(found.lines("apart")) == labels
        assert found.page.locator(".headline").count() == len(_settings(name))
        assert "local model" in found.text("#curve-worst figcaption")
        assert "(a quick check" in found.text("h1")
        found.page.close()
        assert (found.errors, found.requests) == ([], [file.as_uri()])


def _settings(name: str) -> list[str]:
    """What labels say of the settings of a part; nothing if there is one."""
    found = PARTS[name].comparisons(Settings((0, 1), ROUNDS, True))
    return [f", {c.name}" for c in found] if len(found) > 1 else [""]


def test_measurements_with_the_lemmas_old_number_are_taken(everything: Path, tmp_path: Path) -> None:
    shutil.copytree(everything, tmp_path / "out")
    file = tmp_path / "out" / "theory" / "results.json"
    text = file.read_text()
    assert '"lemma 3"' in text
    file.write_text(text.replace('"lemma 3"', '"lemma 2"'))
    assert drdsgd("reproduce", "theory", *QUICK, "--only-known", "--out", tmp_path / "out").status == 0
    for name in ("measurements.csv", "verdicts.json"):
        assert (tmp_path / "out/theory" / name).read_text() == (everything / "theory" / name).read_text()


def test_every_part_has_a_report_but_theory(everything: Path) -> None:
    assert {path.parent.name for path in everything.rglob("report.html")} == {*PARTS}


def test_the_page(everything: Path) -> None:
    text = (everything / "README.md").read_text()
    first = text[: text.index("## ")].replace(r"\|", "|")
    for name in (*PARTS, "theory"):  # all verdicts stand on the first page, the bad ones, too
        for claim in json.loads((everything / name / "verdicts.json").read_text()):
            assert claim["text"] in first
            assert all(finding["verdict"] in first for finding in claim["findings"].values())
    for line in text.splitlines():
        if line.startswith("!["):
            assert (everything / line[line.index("](") + 2 : -1]).exists()


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = "choose fig1, fig2, fig3, fig4, fig5, table1, theory, league or all"
    assert refused("reproduce", "fig9") == f"reproduce fig9: unknown; {choices}"
    assert "--seeds x" in refused("reproduce", "fig1", "--seeds", "x")
    assert "--seeds : give a number of seeds" in refused("reproduce", "fig1", "--seeds", "")
    assert "--rounds 0: input should be greater than or equal to 1" in refused("reproduce", "fig1", "--rounds", "0")
    assert "--threads many: not a whole number" in refused("reproduce", "fig1", "--threads", "many")
    monkeypatch.setattr(sources, "_places", lambda known, data_dir: [tmp_path / "nowhere"])
    out = tmp_path / "out"
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    line = refused("reproduce", "fig2", "--out", out, "--records", nothing)
    assert "drdsgd data get cifar10" in line and "DRDSGD_DATA" in line
    assert not out.exists()  # what is refused leaves nothing
    with patch.object(measurements, "measure", return_value=measurements.Results(())):
        assert drdsgd("reproduce", "theory", "--quick", "--out", out).status == 0
    assert "with --seeds 0,1, not" in refused("reproduce", "theory", "--quick", "--seeds", "3", "--out", out)
    assert "--records nowhere: there is no such folder" in refused("reproduce", "fig1", "--records", "nowhere")
    with Folder(out).lock():
        assert "another process is working in" in refused("reproduce", "theory", "--quick", "--out", out)
    made = json.dumps({"versions": versions()})
    for text, wrong in (("{", "it is not JSON"), ("{}", "it lacks versions"), (made, "it lacks results")):
        (out / "theory" / "results.json").write_text(text)
        assert f"results.json is corrupt: {wrong}; remove it" in refused("reproduce", "theory", "--quick", "--out", out)
    (out / "runs").mkdir()
    (out / "runs" / "half.json").write_text('{"name"')
    line = refused("reproduce", "fig1", "--quick", "--out", out)
    assert "half.json is not the record of a run: it is not JSON" in line


def test_only_known_runs_nothing_and_says_what_is_missing(everything: Path, tmp_path: Path) -> None:
    known, out = tmp_path / "known", tmp_path / "out"
    known.mkdir()
    for run in list(read_records(everything))[::2]:
        Store(known).keep(run)
    with (
        patch("drdsgd.experiments.workers.team", side_effect=Crash),
        patch.object(measurements, "measure", side_effect=Crash),
        patch.object(draw, "write", lambda stem, *_: plots.save(Figure(), stem.with_name(f"{stem.name}.png"))),
    ):
        said = drdsgd("reproduce", "all", *QUICK, "--only-known", "--out", out, "--records", known)
    assert said.status == 0, said.err
    (line,) = (line for line in said.err.splitlines() if "runs are known" in line)
    n, _, planned, *_ = line.removeprefix("drdsgd: ").split()
    assert 0 < int(n) < int(planned) and line.endswith(f"runs are known, from {known}")
    assert "theory is not measured yet" in said.err
    assert len(list((out / "runs").iterdir())) == int(n) and not (out / "paper.jsonl.xz").exists()  # not complete
    assert f"**Not complete: {n} of {planned} runs" in (out / "README.md").read_text()
    assert "**Not complete: " not in (everything / "README.md").read_text()


def test_interrupted_it_says_how_to_go_on_and_goes_on(everything: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "fig2", *QUICK, "--seeds", "2", "--records", str(tmp_path), "--out", str(out)]
    begun = process(program, command, tmp_path / "log")
    wait_for(lambda: len(list((out / "runs").glob("*.json"))) > 3)
    assert begun.pid is not None
    os.kill(begun.pid, signal.SIGINT)
    begun.join(60)
    said = (tmp_path / "log").read_text()
    assert begun.exitcode == 130, said
    last = said.splitlines()[-1]
    assert f"runs unfinished; continue with: drdsgd reproduce fig2 --quick --seeds 2 --rounds {ROUNDS}" in last
    done = list(read_records(out))
    assert drdsgd(*shlex.split(last[last.index("drdsgd reproduce") :])[1:]).status == 0
    packed = list(read_records(out))
    assert all(run in packed for run in done)
    assert not (out / "unfinished").exists() and not (out / "runs").exists()
    for name in ("curves.csv", "fair.csv", "verdicts.json"):
        assert (out / "fig2" / name).read_bytes() == (everything / "fig2" / name).read_bytes()
