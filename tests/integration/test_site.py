"""The site: every page is in its contents, every link leads somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from inspect import ismodule
from pathlib import Path
from statistics import mean
from typing import Any
from xml.etree import ElementTree

import pytest
from docsite import hooks, lift
from mkdocs.commands.build import build
from mkdocs.config import load_config

import drdsgd
from drdsgd.baselines import SERVERS
from drdsgd.core.algorithms import ALGORITHMS
from drdsgd.experiments.compare import Study
from drdsgd.experiments.records import Folder, Network
from drdsgd.options import Rule
from drdsgd.training.metrics import Metrics, Spread
from tests.support.contract import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """A heading's anchor, as code hosts and mkdocs make it."""
    text = re.sub(r"[`*]|\]\(.*?\)|\[", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def test_anchors_are_made_as_elsewhere() -> None:
    assert anchor("`device.toml`, and *more*: 4. Turn it!") == "devicetoml-and-more-4-turn-it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for target, part in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(page.read_text(encoding="utf-8"))):
        if not re.match(r"https?://", target):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{target} is not there"
            assert not part or part in anchors(there), f"{target}#{part}: no such heading"


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in nav for page in pages_of(next(iter(entry.values())))]


def test_every_page_is_in_the_contents_once() -> None:
    nav = pages_of(load_config(str(ROOT / "mkdocs.yml")).nav)
    assert sorted(nav) == sorted([str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")] + ["changelog.md"])


def test_the_reference_has_every_public_name() -> None:
    shown = re.findall(r"^::: (drdsgd[\w.]+)", (DOCS / "reference/python.md").read_text(encoding="utf-8"), re.MULTILINE)
    for name in drdsgd.__all__:
        value = getattr(drdsgd, name)
        home = value.__name__ if ismodule(value) else value.__module__
        assert home in shown or home.rpartition(".")[0] in shown, name  # the page of a package has what it exports


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    """Those of the picture."""
    found: dict[str, Any] = json.loads((DOCS / "lift.json").read_text())
    return found


def test_the_picture_is_drawn_from_its_numbers(numbers: dict[str, Any]) -> None:
    assert (DOCS / "lift.svg").read_text(encoding="utf-8") == lift.drawn(numbers)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_words_at_the_picture_have_its_numbers(numbers: dict[str, Any], page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"![{lift.alt(numbers)}](" in text and f"*{lift.caption(numbers)} " in text


def test_what_the_picture_says_in_words_is_so(numbers: dict[str, Any]) -> None:
    behind, along, *without = (numbers["accuracy"][name][-1] for name in (*lift.SIDES, *lift.WITHOUT_WEIGHTS))
    assert min(behind) < 0.6 * mean(behind) and min(along) > 0.7 * mean(along)
    # most of the lift is there without the weights
    assert max(map(min, without)) - min(behind) > 0.5 * (min(along) - min(behind))


def test_the_pictures_numbers_are_those_of_its_commands(numbers: dict[str, Any], tmp_path: Path) -> None:
    command = (lift.__doc__ or "").partition("python -m")[0]
    shared = {"dataset": "fashion-mnist", "devices": 25}
    assert "--dataset fashion-mnist --devices 25 --seeds 1 " in command
    cells = Study(tuple(re.findall(r"--algorithm (\S+)", command)), (0,), shared).cells(tmp_path)
    assert {cell.label for cell in cells} == {*numbers["accuracy"]} == {*lift.SIDES, *lift.WITHOUT_WEIGHTS}
    for cell in cells:
        assert {name: getattr(cell.experiment, name) for name in numbers["setting"]} == numbers["setting"]
        assert len(numbers["accuracy"][cell.label]) == len(numbers["rounds"])
        # a folder of such a run is what the numbers are read from
        folder = Folder(cell.path)
        folder.start(cell.experiment, Network([], [], [], 0.0, ""))
        for t, frame in zip(numbers["rounds"], numbers["accuracy"][cell.label], strict=True):
            scores = Spread.over(frame)
            folder.append(Metrics(t, scores, scores, [], 0.0, 0.0, [], numbers["floats_sent"][cell.label], 0.0))
    assert lift.measured(tmp_path) == numbers


def test_the_picture_begins_and_ends_as_it_stands_without_motion(numbers: dict[str, Any]) -> None:
    text = lift.drawn(numbers)
    states = {name: re.findall(r"\{(.*?)\}", rules) for name, rules in re.findall(r"@keyframes (\w+)\{(.*)\}", text)}
    moved = set()
    for element in ElementTree.fromstring(text).iter():
        style, still, opacity = (element.get(name, "") for name in ("style", "transform", "opacity"))
        if style:
            name = style.removeprefix("animation-name:")
            first, last = states[name][0], states[name][-1]
            moved.add(name)
            stands = f"transform:{still.replace(' ', 'px,').replace(')', 'px)')}" if still else f"opacity:{opacity}"
            assert first == last == stands, name
    assert moved == {*states}
    # motion is asked for in one place, and not of those who want none, nor in print
    asked = text.partition("@media screen and (prefers-reduced-motion: no-preference) {")
    assert "animation:" not in asked[0] and asked[2].partition("  }\n")[2].count("animation:") == 0
    assert len(text.encode()) < 150_000 and not re.search(r"<script|url\(|href|@import", text)


def test_the_lists_are_the_programs() -> None:
    commands = "\n".join(hooks.commands())
    for name, options in COMMANDS.items():
        assert f"\n## drdsgd {name}\n" in commands
        assert all(f"`{option}`" in commands for option in options if option.startswith("--"))


def test_make_docs_fails_where_a_page_is_in_no_menu(tmp_path: Path) -> None:
    command = re.search(r"-m (mkdocs build .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert command is not None
    (tmp_path / "docs").mkdir()
    for name in ("index", "forgotten"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# {name}\n")
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: small\nnav: [index.md]\nvalidation: {nav: {omitted_files: warn}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", *command[1].split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "forgotten.md" in done.stderr


class Assets(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.found += [values.get("src") or "", values.get("srcset") or ""]
        elif tag == "link" and values.get("rel") != "canonical":
            self.found.append(values.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(path), strict=True))
    return path


@pytest.fixture(scope="module")
def entries(site: Path) -> dict[str, str]:
    """The text of every entry of the Python reference, by its anchor."""
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    _, *parts = re.split(r'<h\d id="(drdsgd[^"]*)"', page)
    return {
        anchor: unescape(re.sub(r"<[^>]*>", "", text)) for anchor, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("name", [*ALGORITHMS, *SERVERS])
def test_the_reference_has_every_constructor_with_its_options(entries: dict[str, str], name: str) -> None:
    made = getattr(drdsgd, name.replace("-", "_"))
    home = "baselines" if name in SERVERS else "core.algorithms"
    text = entries[f"drdsgd.{home}.{made.__name__}"]
    for key, option in inspect.signature(made).parameters.items():
        assert re.search(rf"^    {key}: .* = {re.escape(default(option.default))},$", text, re.MULTILINE), key
    assert made.__doc__[:20].replace("`", "") in text


def default(value: object) -> str:
    return f'Rule("{value.words}")' if isinstance(value, Rule) else json.dumps(value) if value else repr(value)


def test_the_reference_shows_the_values_of_defaults(entries: dict[str, str]) -> None:
    text = entries["drdsgd.training.loop.train"]
    for line in (
        "rounds: Rounds = 300,",
        'batch_size: BatchSize = Rule("sqrt(K T)"),',
        'execution: Execution = "auto",',
    ):
        assert f"\n    {line}\n" in text
    for anchor, text in entries.items():
        names = re.findall(
            r"^ +\w+: [^=\n]* = (?!None|True|False|Rule\(|lambda|map)([A-Za-z_].*),$", text, re.MULTILINE
        )
        assert names in ([], ["loggers.no_log"]), anchor


def test_it_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assets = Assets()
        assets.feed(text)
        assert not [asset for asset in assets.found if re.match(r"(https?:)?//", asset)], page
        assert "arithmatex" not in text and "<!-- commands -->" not in text and "<!-- methods -->" not in text
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text(encoding="utf-8")), style
    tutorial = (site / "tutorial.html").read_text(encoding="utf-8")
    assert 'data-copy="drdsgd train --resume --out runs/robust"' in tutorial and 'data-copy="$' not in tutorial
    assert not re.search(r'data-copy="[^"]*(seeds average|report:)', tutorial)
    mathematics = (site / "mathematics.html").read_text(encoding="utf-8")
    assert mathematics.count("<math") > 60 and "merror" not in mathematics
    assert not {"$", "\\"} & set(_visible(mathematics)), "LaTeX that is not understood"


def _visible(page: str) -> str:
    return re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*>", "", page, flags=re.DOTALL)
