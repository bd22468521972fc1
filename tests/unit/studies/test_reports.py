"""The report of small records: it says what they hold, compares within a setting, and leaves out the rest."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from drdsgd import report
from drdsgd.report.content import content
from drdsgd.report.palette import COLOURS
from drdsgd.report.statistics import KINDS, MEASURES
from drdsgd_studies.paper.parts import PARTS
from drdsgd_studies.shared import reports
from drdsgd_studies.shared.plan import Group, Settings
from drdsgd_studies.shared.store import RunRecord, Store
from tests.support.made import experiment, run_record

S = Settings(seeds=(0, 1, 2))
ENDS = {"DSGD": [40.0, 80.0, 90.0], "DR-DSGD": [55.0, 80.0, 88.0]}


def runs(ends: dict[str, list[float]], **fields: object) -> dict[str, list[RunRecord]]:
    """Three seeds of each."""
    return {
        label: [
            run_record(experiment(algorithm=label.lower(), devices=3, seed=k, **fields), [end + k for end in of])
            for k in S.seeds
        ]
        for label, of in ends.items()
    }


def group(some: list[RunRecord]) -> Group:
    return Group(tuple(run.experiment for run in some))


def test_a_record_says_what_was_kept() -> None:
    for run in (runs(ENDS)["DSGD"][1], run_record(experiment(devices=3), ENDS["DSGD"], "diverged")):
        found = reports.record(run, Path("here"))
        assert (found.experiment, found.status, found.message) == (run.experiment, run.status, run.message)
        assert [m.round for m in found.metrics] == run.rounds
        for kind in KINDS:
            assert getattr(found.final, kind).per_device == run.per_device[kind]
            for measure in MEASURES:
                assert [getattr(getattr(m, kind), measure) for m in found.metrics] == run.curves[kind][measure]
        assert [m.consensus_distance for m in found.metrics] == run.consensus_distance
        assert [m.floats_sent for m in found.metrics] == [10 * t for t in run.rounds]  # as they were sent there
        assert found.path == Path("here")


def test_a_run_that_diverged_at_once_has_a_record() -> None:
    run = run_record(experiment(devices=3), ENDS["DSGD"], "diverged")
    first = replace(
        run, rounds=[0], floats_sent=0, train_loss=[1.0], consensus_distance=[0.0],
        curves={kind: {m: [50.0] for m in MEASURES} for kind in KINDS},
    )  # fmt: skip
    assert reports.record(first, Path()).final.floats_sent == 0


def test_what_records_do_not_hold_is_left_out_and_said(tmp_path: Path) -> None:
    some = runs(ENDS)
    done = {run.experiment: run for each in some.values() for run in each}
    reports.write(
        {"only": {label: group(each) for label, each in some.items()}}, "A title", S, done, tmp_path / "part", "paper"
    )
    text = (tmp_path / "part" / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', text) == ["answer", "path", "fairness", "agreement", "runs"]
    assert re.findall(r'<figure id="([^"]+)"', text) == [
        "curve-average", "curve-worst", "curve-worst10", "curve-stdev", "spread", "apart",
    ]  # fmt: skip
    assert text.count("These are small records") == 2  # in words, and in the script's data
    assert "DR-DSGD serves the worst-off device better than DSGD" in text
    for run in done.values():
        assert f"<code>../paper.jsonl.xz:{run.name}</code>" in text


def test_a_loose_record_is_named_where_it_is(tmp_path: Path) -> None:
    done = {run.experiment: run for each in runs(ENDS).values() for run in each}
    loose, *_ = done.values()
    Store(tmp_path).keep(loose)
    reports.write({"only": {"all": Group(tuple(done))}}, "A title", S, done, tmp_path / "part", "paper")
    text = (tmp_path / "part" / "report.html").read_text(encoding="utf-8")
    assert f"<code>../runs/{loose.name}.json</code>" in text
    assert text.count("<code>../paper.jsonl.xz:") == len(done) - 1


def test_settings_are_not_mixed(tmp_path: Path) -> None:
    # one that is better than all others in the other setting, on the same problem
    settings = {
        f"T = {T}": runs(ENDS if T == 6 else {k: [e + 4 for e in v] for k, v in ENDS.items()}, rounds=T) for T in (6, 8)
    }
    done = {run.experiment: run for some in settings.values() for each in some.values() for run in each}
    compared = {name: {label: group(each) for label, each in some.items()} for name, some in settings.items()}
    reports.write(compared, "A title", S, done, tmp_path, "paper")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    headlines = re.findall(r'<p class="headline">(.*?)</p>', text)
    assert len(headlines) == 2
    for headline, T in zip(headlines, (6, 8), strict=True):
        assert f"DR-DSGD, T = {T} serves the worst-off device better than DSGD, T = {T}: " in headline
        assert headline.count("T = ") == 2
        assert "15.0" in headline  # 55 - 40, of the same setting


def test_of_several_settings_the_first_is_shown_at_first() -> None:
    settings = [
        {
            f"{label}, {T}": [reports.record(run, Path(run.name)) for run in some]
            for label, some in runs(ENDS, rounds=T).items()
        }
        for T in (6, 8)
    ]
    drawn = content(*settings)
    assert [each["label"] for each in drawn["groups"]] == ["DSGD, 6", "DR-DSGD, 6", "DSGD, 8", "DR-DSGD, 8"]
    assert drawn["visible"] == [0, 1]
    # a group has one colour in its table and in the plots
    rows = re.findall(r'<th scope="row"><svg.*?stroke="(#\w+)".*?</svg>(.*?)</th>', report.page(*settings))
    assert {label: colour for colour, label in rows} == dict(
        zip([each["label"] for each in drawn["groups"]], COLOURS, strict=False)
    )
    assert len(set(rows)) == 4


def test_without_runs_there_is_no_report_not_even_that_of_before(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("of before")
    reports.write(PARTS["fig1"].compared(S), "A title", S, {}, tmp_path, "paper")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", PARTS)
def test_labels_tell_all_groups_of_a_part_apart(name: str) -> None:
    groups = [group for some in PARTS[name].compared(S).values() for group in some.values()]
    assert len({group.experiments for group in groups}) == len(groups) >= 2
