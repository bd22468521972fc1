"""What processes tell each other; tests/integration/test_distributed.py runs several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from drdsgd.engines.distributed import Members
from drdsgd.errors import Diverged, named


def test_all_processes_raise_the_earliest_divergence_with_its_marks() -> None:
    late, early = (Diverged(f"try {named('weight_cap', t)}", round=t, device=4 - t) for t in (3, 2))
    said: list[str] = []

    def texts(text: str) -> list[str]:
        said.append(text)
        return said

    ranks: Any = SimpleNamespace(texts=texts)
    assert Members.earliest(ranks, None) is None
    Members.earliest(ranks, late)
    found = Members.earliest(ranks, early)
    assert found is not None and (found.round, found.device) == (2, 2)
    assert (str(found), found.on_command_line) == ("try weight_cap=2", "try --weight-cap 2")
