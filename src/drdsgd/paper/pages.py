"""A page as a list of blocks, written as Markdown or as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["Block", "Heading", "Picture", "Table", "Text", "html", "markdown"]


@dataclass(frozen=True)
class Heading:
    """A heading of level 1, 2 or 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table: its columns' names, and its rows as text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A PNG file, and what it shows for those who do not see it."""

    path: Path
    shows: str


Block = Heading | Text | Table | Picture


def markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The page as Markdown; pictures are linked as seen from `folder`.

    >>> print(markdown([Heading("A", 1), Text("x < y"), Table(["a"], [["1 | 2"]])], Path(".")))
    # A
    <BLANKLINE>
    x < y
    <BLANKLINE>
    | a |
    |---|
    | 1 \\| 2 |
    <BLANKLINE>
    """
    return "\n".join(_markdown(block, folder) + "\n" for block in blocks)


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Picture(path, shows):
            return f"![{shows}]({Path(os.path.relpath(path, folder)).as_posix()})\n\n*{shows}*"
        case Table(columns, rows):
            lines = [columns, *rows]
            cells = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
            return "\n".join([cells[0], "|" + "---|" * len(columns), *cells[1:]])


def html(blocks: Sequence[Block], title: str) -> str:
    """The page as HTML with its pictures inside; it loads nothing, and has no scripts.

    >>> "&lt;b&gt;" in html([Text("<b>")], "a page")
    True
    """
    body = "\n".join(map(_html, blocks))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n{_POLICY}\n'
        f"<style>{_CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{escape(text)}</p>"
        case Picture(path, shows):
            image = base64.b64encode(path.read_bytes()).decode()
            source = f"data:image/png;base64,{image}"
            return (
                f'<figure><img src="{source}" alt="{escape(shows)}"><figcaption>{escape(shows)}</figcaption></figure>'
            )
        case Table(columns, rows):
            head = "".join(f"<th>{escape(column)}</th>" for column in columns)
            lines = ("".join(f"<td>{_mark(cell)}</td>" for cell in row) for row in rows)
            body = "\n".join(f"<tr>{line}</tr>" for line in lines)
            return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _mark(cell: str) -> str:
    """A cell; a verdict gets a colour beside its words."""
    kinds = {"holds": "good", "holds in part": "part", "does not hold": "bad"}
    kinds |= dict.fromkeys(("cannot be told", "not run yet"), "none")
    return f'<span class="{kinds[cell]}">{cell}</span>' if cell in kinds else escape(cell)


# whatever a bug might try: this page loads nothing
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; form-action 'none'; base-uri 'none'\">"
)

_CSS = """
:root { color-scheme: light dark; --text: #1d2126; --soft: #5b6470; --line: #d9dde2; --page: #fff;
  --good: #00664b; --part: #7a5200; --bad: #a33c00 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e7eaee; --soft: #a4adb8; --line: #3a414b; --page: #14171b;
    --good: #57c9a3; --part: #e6b84d; --bad: #ff9a5c }
}
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 1100px; margin: 0 auto; padding: 1rem clamp(.8rem, 3vw, 2rem) 3rem; overflow-wrap: anywhere }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 100% }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
td { min-width: 4rem; overflow-wrap: normal }
th { color: var(--soft); font-weight: 500 }
figure { margin: 1rem 0; padding: .5rem; background: #fff; color: #1d2126; border-radius: 8px }
figcaption { font-size: .9rem }
img { max-width: 100%; height: auto; display: block; margin: auto }
.good, .part, .bad { font-weight: 600; white-space: nowrap }
.good { color: var(--good) } .part { color: var(--part) } .bad { color: var(--bad) } .none { color: var(--soft) }
"""
