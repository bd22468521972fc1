"""Variables for torch follow from what the system offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from drdsgd import environment


@pytest.mark.parametrize(
    ("says", "asks"),
    [
        ("always [madvise] never", True),
        ("[always] madvise never", False),
        ("always madvise [never]", False),
        (None, False),
    ],
)
def test_large_pages_where_linux_gives_them_to_those_who_ask(
    says: str | None, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "enabled"
    if says is not None:
        file.write_text(says)
    monkeypatch.setattr(environment, "HUGE_PAGES", file)
    assert environment.for_torch() == {"OMP_WAIT_POLICY": "PASSIVE", **({"THP_MEM_ALLOC_ENABLE": "1"} if asks else {})}
