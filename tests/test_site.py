"""The site: every page is in its contents, every link leads somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from inspect import ismodule
from pathlib import Path
from typing import Any

import pytest
from docsite import hooks, picture
from mkdocs.commands.build import build
from mkdocs.config import load_config

import drdsgd
from tests.test_public import COMMANDS

ROOT = Path(__file__).parent.parent
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
    shown = re.findall(r"^::: (drdsgd\.\w+)", (DOCS / "reference/python.md").read_text(encoding="utf-8"), re.MULTILINE)
    for name in drdsgd.__all__:
        value = getattr(drdsgd, name)
        assert (value.__name__ if ismodule(value) else value.__module__) in shown, name


def test_the_picture_is_drawn_from_its_numbers() -> None:
    numbers = json.loads((DOCS / "picture.json").read_text())
    assert (DOCS / "picture.svg").read_text(encoding="utf-8") == picture.drawn(numbers)


def test_the_lists_are_the_programs() -> None:
    commands = "\n".join(hooks.commands())
    for name, options in COMMANDS.items():
        assert f"\n## drdsgd {name}\n" in commands
        assert all(f"`{option}`" in commands for option in options if option.startswith("--"))


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


def test_it_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) >= 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assets = Assets()
        assets.feed(text)
        assert not [asset for asset in assets.found if re.match(r"(https?:)?//", asset)], page
        assert "arithmatex" not in text and "<!-- commands -->" not in text and "<!-- methods -->" not in text
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text(encoding="utf-8")), style
    mathematics = (tmp_path / "mathematics.html").read_text(encoding="utf-8")
    assert mathematics.count("<math") > 60 and "merror" not in mathematics
    assert not {"$", "\\"} & set(_visible(mathematics)), "LaTeX that is not understood"


def _visible(page: str) -> str:
    return re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*>", "", page, flags=re.DOTALL)
