"""The page is whole, loads nothing, and takes no harm from hostile names."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from drdsgd import report, summary
from tests.made import HOSTILE, record
from tests.made import study as study  # a fixture


def test_thinning_keeps_the_ends() -> None:
    values = [summary.Estimate(float(t), math.nan, 1) for t in range(1000)]
    thin = report._thinned(summary.Curve(list(range(1000)), values), 40)
    assert len(thin.rounds) == len(thin.values) == 40
    assert (thin.rounds[0], thin.rounds[-1]) == (0, 999)


# ------------------------------------------------------------------------ page


class Page(HTMLParser):
    """What a browser would see of a page: tags with their attributes, texts, scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.scripts if self.tags and self.tags[-1][0] == "script" and self.cdata_elem else self.texts).append(data)

    @property
    def figures(self) -> dict[str, Any]:
        """The figures that the last but one script holds."""
        found: dict[str, Any] = json.loads(self.scripts[-2])
        return found


def own(text: str) -> str:
    """The page without plotly.js."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    assert text.count(library) == 1
    return text.replace(library, "")


@pytest.fixture(scope="module")
def written(study: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "new" / "report.html"
    assert report.write([study], out, title="Two methods") == out
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    return out.read_text(encoding="utf-8")


def test_the_page_loads_nothing(written: str) -> None:
    text = own(written)
    assert not re.search(r"""(?:src|href|action|srcset)\s*=|@import|url\(|fetch\(|https?://|XMLHttp""", text)
    assert "default-src 'none'" in text
    # plotly's own bar of buttons would offer to send the data to its makers
    assert "modeBarButtons: [['toImage', 'resetScale2d']]" in text
    assert "plotlyServerURL: ''" in text


def test_the_page_says_it_all(written: str, study: Path) -> None:
    page = Page(own(written))
    said = " ".join(page.texts)
    groups = summary.groups(summary.find_runs([study]))
    assert summary.headline(summary.table(groups)).replace(" ± ", "\xa0±\xa0") in said
    for row in summary.table(groups):
        for value in (row.average, row.worst, row.worst10, row.stdev):
            assert str(value) in said
    assert "Two methods" in said
    assert "drdsgd train config.toml --out DIR" in said
    assert groups["dsgd"][0].experiment.to_toml() in said
    assert "torch" in said


def test_every_figure_is_valid_and_has_its_place(written: str, study: Path) -> None:
    from plotly import graph_objects

    page = Page(own(written))
    places = {attributes.get("id") for _, attributes in page.tags}
    assert set(page.figures) <= places
    assert len(page.figures) == 4 + 1 + 2
    for figure in page.figures.values():
        graph_objects.Figure(figure)  # raises for what plotly does not know
    final = json.loads((study / "dsgd" / "seed-0" / "metrics.jsonl").read_text().splitlines()[-1])
    nodes = page.figures["graph-0"]["data"][1]
    assert nodes["marker"]["color"] == pytest.approx(final["consensus"]["per_device"], abs=1e-3)
    assert "<b>device 0</b>, degree 2" in nodes["text"][0]
    curve = page.figures["curve-worst"]["data"][1]
    assert curve["name"] == "dsgd"
    assert curve["x"] == [0, 2, 4, 6]


def test_hostile_strings_stay_text() -> None:
    names: dict[str, Any] = {"graph": HOSTILE, "dataset": HOSTILE + "2"}
    runs = [record([40, 80], algorithm="dsgd"), record([40, 80], **names, status="diverged", message=HOSTILE)]
    runs = [dataclasses.replace(r, path=Path(HOSTILE), versions={HOSTILE: HOSTILE}) for r in runs]
    text = own(report.page(summary.groups(runs), title=HOSTILE))
    page = Page(text)
    assert "<img" not in text
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}
    assert HOSTILE in " ".join(page.texts)
    # plotly would read tags in texts, so they are escaped there, too
    shown = json.dumps(page.figures)
    assert "alert(1)" in shown
    assert "<img" not in shown


def test_diverged_and_unfinished_runs_are_marked() -> None:
    runs = [record([40, 80], seed=k, rounds=(0, 2, 4, 6)) for k in (0, 1)]
    runs += [record([20, 30], seed=2, rounds=(0, 2), status="diverged", message="diverged in round 3: device 1")]
    runs += [record([20, 30], seed=3, rounds=(0, 2, 4), status="unfinished")]
    page = Page(own(report.page(summary.groups(runs))))
    said = " ".join(page.texts)
    assert "diverged; last evaluated after round 2 of 6" in said
    assert "diverged in round 3: device 1" in said
    assert "unfinished, after round 4 of 6" in said
    marks = [trace for trace in page.figures["curve-worst"]["data"] if trace["mode"] == "markers"]
    assert marks[0]["x"] == [2, 4]
    assert marks[0]["marker"]["symbol"] == ["x", "circle-open"]


def test_one_run_has_no_band_and_no_error() -> None:
    text = own(report.page(summary.groups([record([40, 80])])))
    page = Page(text)
    assert "±" not in " ".join(page.texts)
    assert [trace["mode"] for trace in page.figures["curve-worst"]["data"]] == ["lines", "lines"]
    assert not any("fill" in trace for trace in page.figures["curve-worst"]["data"])


def test_a_page_of_many_runs_and_devices_stays_small() -> None:
    rounds = range(0, 600, 2)
    one = record([50.0 + k / 40 for k in range(1000)], rounds=[0, 2])
    one = dataclasses.replace(
        one,
        metrics=[dataclasses.replace(one.final, round=t) for t in rounds],
        network=dataclasses.replace(one.network, edges=[(i, j) for i in range(0, 1000, 2) for j in range(i)]),
    )
    runs = [dataclasses.replace(one, experiment=one.experiment.replace(mu=float(mu))) for mu in range(1, 51)]
    text = report.page(summary.groups(runs))
    assert len(text.encode()) < 10e6
    assert "The first 12 of 50 groups are drawn" in text
    assert "125th drawn" in text
    box = Page(own(text)).figures["devices"]["data"][0]
    assert (box["lowerfence"], box["median"], box["upperfence"]) == ([50.0], [62.487], [74.975])
