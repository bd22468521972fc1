"""The page is complete, loads nothing, agrees with the records, and is safe from hostile names."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from drdsgd import report
from drdsgd.experiments import records
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import find_runs
from drdsgd.report.content import DEVICES, FRAMES, LINKS, content
from drdsgd.report.groups import groups
from drdsgd.report.headline import headline
from drdsgd.report.palette import COLOURS, DASHES
from drdsgd.report.statistics import KINDS, MEASURES, curve, table
from tests.support.made import HOSTILE, lively, record, seldom
from tests.support.made import study as study  # a fixture
from tests.support.program import drdsgd

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """A page as a browser sees it: tags with their attributes, texts, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.pre: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if self.cdata_elem:
            (self.scripts if tag == "script" else []).append(data)
            return
        self.texts.append(data)
        if tag == "pre":
            self.pre.setdefault(attributes.get("class") or "", []).append(data)

    @property
    def said(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def data(self) -> dict[str, Any]:
        """The data in the second-last script."""
        found: dict[str, Any] = json.loads(self.scripts[-2])
        return found


@pytest.fixture(scope="module")
def written(study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "new" / "report.html"
    assert report.write([study], out, title="Two methods") == out
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    return out.read_text(encoding="utf-8")


# ------------------------------------------------------------------------ page


def test_the_page_loads_nothing(written: str) -> None:
    assert not re.search(
        r"""(?:src|href|action|srcset)\s*=|@import|url\(|fetch\(|https?://|XMLHttp|import\(""", written
    )
    assert "default-src 'none'" in written


def test_the_page_says_it_all_without_its_script(written: str, study: Path) -> None:
    page = Page(written)
    compared = groups(find_runs([study]))
    # the basis comes after the end of the sentence
    found = re.fullmatch(r"(.*) (\(.*\))\.", headline(table(compared)))
    assert found
    sentence, basis = found.groups()
    assert f"{sentence}. {basis}" in page.said
    for row in table(compared):
        for value in (row.average, row.worst, row.worst10, row.stdev):
            assert str(value) in page.said
    assert "Two methods" in page.said
    assert "torch" in page.said
    questions = re.findall(r"<h2[^>]*>.*?</span>(.*?)</h2>", written)
    assert [question.split()[0] for question in questions] == ["Is", "How", "Who", "How", "Did", "What"]
    for term in ("worst-off device", "consensus model", "local model", "STDEV", "weight", "Floats sent", "rho"):
        assert written.count(f"<dfn>{term}</dfn>") == 1, term


def test_the_command_on_the_page_repeats_the_run(written: str, study: Path, tmp_path: Path, monkeypatch: Any) -> None:
    page = Page(written)
    first = groups(find_runs([study]))["dsgd"][0]
    assert page.pre["config"][0] == first.experiment.to_toml()
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(page.pre["config"][0])
    program, *arguments = page.pre["command"][0].split()
    assert program == "drdsgd"
    assert drdsgd(*arguments).status == 0
    again = records.read(Path("again"))
    assert [dataclasses.replace(m, seconds=0) for m in again.metrics] == [
        dataclasses.replace(m, seconds=0) for m in first.metrics
    ]


def test_every_plot_has_its_place_a_caption_a_table_and_its_data(written: str) -> None:
    figures = re.findall(r'<figure id="([^"]+)".*?</figure>', written, re.DOTALL)
    whole = re.findall(r"<figure .*?</figure>", written, re.DOTALL)
    assert figures == [
        "curve-average", "curve-worst", "curve-worst10", "curve-stdev", "graph", "spread", "classes", "weights",
        "losses", "apart",
    ]  # fmt: skip
    for figure in whole:
        for part in ("<figcaption>", 'class="numbers"', 'class="csv"', 'class="plot"', "<h3"):
            assert figure.count(part) == 1


def test_hostile_strings_stay_text() -> None:
    names: dict[str, Any] = {"graph": HOSTILE, "dataset": HOSTILE + "2"}
    runs = [record([40, 80], algorithm="dsgd"), record([40, 80], **names, status="diverged", message=HOSTILE)]
    runs = [dataclasses.replace(r, path=Path(HOSTILE), versions={HOSTILE: HOSTILE}) for r in runs]
    text = report.page(groups(runs), title=HOSTILE)
    page = Page(text)
    assert "<img" not in text
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}
    assert HOSTILE in "".join(page.texts)
    assert HOSTILE.removeprefix("</") in page.data["groups"][1]["label"]


def test_diverged_and_unfinished_runs_are_marked() -> None:
    runs = [record([40, 80], seed=k, rounds=(0, 2, 4, 6)) for k in (0, 1)]
    runs += [record([20, 30], seed=2, rounds=(0, 2), status="diverged", message="diverged in round 3: device 1")]
    runs += [record([20, 30], seed=3, rounds=(0, 2, 4), status="unfinished")]
    page = Page(report.page(groups(runs)))
    assert "diverged; last evaluated after round 2 of 6" in page.said
    assert "diverged in round 3: device 1" in page.said
    assert "unfinished, after round 4 of 6" in page.said
    stops = page.data["groups"][0]["stops"]
    assert [(stop["rounds"], stop["status"]) for stop in stops] == [(2, "diverged"), (4, "unfinished")]
    assert stops[0]["consensus"]["worst"] == 20


def test_what_diverged_runs_said_stands_at_the_top() -> None:
    lost = [record([20, 30], seed=k, status="diverged", message=f"diverged in round {k}") for k in range(6)]
    answer = report.page(groups(lost)).partition('id="controls"')[0]
    assert "<li>dr-dsgd, seed 2: diverged in round 2</li><li>3 more runs diverged; " in answer
    few = report.page(groups(lost[:4])).partition('id="controls"')[0]
    assert "seed 3: diverged in round 3" in few and "more runs" not in few


def test_devices_have_their_names() -> None:
    run = record([40, 80, 60])
    named = dataclasses.replace(run, network=dataclasses.replace(run.network, names=["north", HOSTILE, "west"]))
    text = report.page(groups([named]))
    page = Page(text)
    assert page.data["runs"][0]["names"] == ["north", HOSTILE, "west"] and "<img" not in text
    assert "the worst-off device, device 0 (north), ends at" in page.said
    assert Page(report.page(groups([run]))).data["runs"][0]["names"] is None


def test_lines_differ_in_grey_from_the_first_on() -> None:
    looks = [(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]) for i in range(42)]
    assert len(set(looks)) == 42 and len({dash for _, dash in looks[:6]}) == 6


def test_the_worst_comes_first_in_the_table() -> None:
    heads = re.findall(r'<th scope="col">([^<]*)</th>', report.page(groups([record([40, 80])])))
    assert heads[:2] == ["worst", "average"]
    both = [record([40, 80], algorithm="dsgd"), record([50, 80])]
    heads = re.findall(r'<th scope="col">([^<]*)</th>', report.page(groups(both)))
    assert heads[:4] == ["worst", "Δ worst", "average", "Δ average"]


def test_one_run_has_no_error() -> None:
    page = Page(report.page(groups([record([40, 80])])))
    assert "±" not in page.said
    assert "How is the worst-off device served?" in page.said
    assert set(page.data["groups"][0]["consensus"]["worst"]["error"]) == {None}


def test_records_of_older_versions_have_no_losses() -> None:
    assert content(groups([record([40, 80])]))["runs"][0]["loss"] is None


# --------------------------------------------------------------------- content


def test_the_content_is_what_the_records_say() -> None:
    compared = groups(
        [lively(12, algorithm="dsgd", seed=k) for k in (0, 1)] + [lively(12, gain=3, mu=1.0, seed=k) for k in (0, 1)]
    )
    drawn = content(compared)
    for g, (label, group) in enumerate(compared.items()):
        for kind in KINDS:
            for measure in MEASURES:
                drawn_from, found = curve(group, kind, measure), drawn["groups"][g][kind][measure]
                assert found["mean"] == pytest.approx([v.mean for v in drawn_from.values], rel=1e-4)
                assert found["error"] == pytest.approx([v.error for v in drawn_from.values], rel=1e-4)
        assert drawn["groups"][g]["label"] == label
        assert drawn["groups"][g]["floats"] == [m.floats_sent for m in group[0].metrics]
        assert drawn["groups"][g]["rho"] == pytest.approx([0.505, 0.005])
        assert drawn["groups"][g]["spread"]["consensus"]["n"] == 24
    first = compared["dr-dsgd"][0]
    run = drawn["runs"][2]
    assert (run["group"], run["seed"], run["rounds"]) == (1, 0, [m.round for m in first.metrics])
    for kind in KINDS:
        for found, m in zip(run[kind], first.metrics, strict=True):
            assert found == pytest.approx(getattr(m, kind).per_device, abs=0.01)
    weights = first.final.weights
    mean = sum(weights) / len(weights)
    assert run["share"][-1] == pytest.approx([w / mean for w in weights], rel=0.01)
    assert run["loss"][-1] == pytest.approx(first.final.losses, rel=0.01)
    assert run["samples"] == [sum(counts) for counts in first.network.label_counts]
    assert run["labels"][1] == [(1, 81)]
    assert run["labels"][7] == [(7, 60), (0, 22)]
    assert sum(run["degree"]) == 2 * len(first.network.edges)
    # the headline is about dr-dsgd, and runs of the same seed have the same devices
    assert drawn["start"] == 2
    assert drawn["pairs"] == [0, 1, 0, 1]
    assert drawn["left_out"] == []


def test_the_run_that_is_shown_first_has_finished_if_one_has() -> None:
    runs = [record([40, 80], mu=1.0, status="diverged"), record([40, 80], mu=2.0)]
    assert content(groups(runs))["start"] == 1


def test_huge_and_zero_weights_have_shares() -> None:
    one = record([40, 80])
    for weights, shares in (([1e308, 1e308], [1, 1]), ([0.0, 0.0], [1, 1]), ([0.0, 5.0], [0, 2])):
        end = dataclasses.replace(one.final, weights=weights)
        drawn = content(groups([dataclasses.replace(one, metrics=[end])]))
        assert drawn["runs"][0]["share"] == [shares]


def test_a_page_of_many_runs_and_devices_stays_small_and_says_what_is_left_out() -> None:
    one = lively(1000, evaluations=40)
    dense = dataclasses.replace(one.network, edges=[(i, j) for i in range(0, 1000, 9) for j in range(i)])
    one = dataclasses.replace(one, network=dense)
    runs = [dataclasses.replace(one, experiment=one.experiment.replace(mu=float(mu))) for mu in range(1, 51)]
    text = report.page(groups(runs))
    assert len(text.encode()) < 10e6
    page = Page(text)
    shown = len(page.data["runs"])
    assert 5 <= shown < 50
    assert f"for {shown} of 50 runs" in page.said
    assert "Devices are shown at 20 of up to 40 evaluations of a run" in page.said
    assert f"about {LINKS} of up to" in page.said
    assert all(len(run["links"]) <= 2 * LINKS for run in page.data["runs"])
    # only some of many groups are shown at first, among them the first
    assert page.data["visible"][0] == 0
    assert len(page.data["visible"]) < 10


def test_of_very_many_devices_the_worst_off_are_kept() -> None:
    one = lively(DEVICES + 500, evaluations=3)
    accuracy = one.final.consensus.per_device
    run = content(groups([one]))["runs"][0]
    assert len(run["devices"]) == DEVICES
    worst = sorted(range(len(accuracy)), key=lambda i: accuracy[i])[: DEVICES // 3]
    assert {*worst} <= {*run["devices"]}
    assert max(run["links"]) < DEVICES
    assert run["consensus"][-1] == pytest.approx([accuracy[i] for i in run["devices"]], abs=0.01)


def test_thinning_keeps_the_ends() -> None:
    run = content(groups([lively(3, evaluations=1000, every=2)]))["runs"][0]
    assert len(run["rounds"]) == len(run["local"]) == FRAMES
    assert (run["rounds"][0], run["rounds"][-1]) == (0, 1998)


def test_local_models_that_were_not_evaluated_are_null() -> None:
    one = lively(3, evaluations=5)
    always, drawn = (content(groups([some])) for some in (one, seldom(one, 4)))
    for kind in ("local", "average"):
        whole, found = (d["runs"][0][kind] for d in (always, drawn))
        whole, found = (d if kind == "local" else d["local"] for d in (whole, found))
        assert found == [whole[0], None, None, None, whole[4]]
    whole, found = (d["groups"][0]["local"]["worst"]["mean"] for d in (always, drawn))
    assert found == [whole[0], None, None, None, whole[4]]
    assert drawn["groups"][0]["consensus"] == always["groups"][0]["consensus"]
    assert drawn["runs"][0]["consensus"] == always["runs"][0]["consensus"]


def test_a_run_that_stops_without_local_models_has_a_mark_for_the_consensus_model_only() -> None:
    one = dataclasses.replace(seldom(lively(3, evaluations=4), 2), status="diverged")
    (stop,) = content(groups([one]))["groups"][0]["stops"]
    assert stop["local"]["worst"] is None and stop["consensus"]["worst"] == pytest.approx(
        one.final.consensus.worst, 1e-3
    )
    json.dumps(content(groups([one])), allow_nan=False)


def test_thinning_keeps_evaluations_of_both_kinds_of_model() -> None:
    run = content(groups([seldom(lively(3, evaluations=1000, every=2), 3)]))["runs"][0]
    assert len(run["rounds"]) <= FRAMES + 1 and (run["rounds"][0], run["rounds"][-1]) == (0, 1998)
    assert None not in run["local"]


def test_a_name_with_path_tricks_is_only_a_name(tmp_path: Path) -> None:
    hostile = tmp_path / "..%2f..%2fetc" / HOSTILE.replace("/", "∕")
    folder = records.Folder(hostile)
    one = lively(3, evaluations=2)
    with folder.lock():
        folder.start(one.experiment, one.network)
        for line in one.metrics:
            folder.append(line)
        folder.finish("finished", "")
    out = report.write([hostile], hostile / "report.html")
    assert out.parent == hostile
    assert [path.name for path in tmp_path.iterdir()] == ["..%2f..%2fetc"]
    assert isinstance(records.read(hostile).experiment, Experiment)
    assert "<img" not in out.read_text(encoding="utf-8")
