"""A page as a list of blocks, written as Markdown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "Heading", "Picture", "Table", "Text", "markdown"]


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
    """A PNG file, and a description of it for those who cannot see it."""

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
