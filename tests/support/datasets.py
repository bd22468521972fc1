"""Small files in place of the known data sets."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from drdsgd.data import sources


def genuine_as(monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> None:
    """Let these small files be the known data set."""
    known = sources.KNOWN[name]
    table = {file: (len(raw), hashlib.new(known.algorithm, raw).hexdigest()) for file, raw in files.items()}
    monkeypatch.setitem(sources.KNOWN, name, replace(known, files=table))
