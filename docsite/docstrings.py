"""Docstrings as Markdown: examples become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Examples", "fenced"]


def fenced(text: str) -> str:
    """A docstring whose examples, up to the next empty line, stand in fences.

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    # [K][C] is a shape, no link
    text = re.sub(r"(?<=\w)\]\[(?=\w)", r"]\[", text)
    return re.sub(r"(^>>> .*?)(?=\n\s*\n|\Z)", r"```pycon\n\1\n```", text, flags=re.MULTILINE | re.DOTALL)


class Examples(griffe.Extension):
    """For mkdocstrings, which shows the text of docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
