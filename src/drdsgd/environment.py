"""Variables that torch reads when it is loaded: the program sets them for itself and for processes that it starts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["for_torch"]

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def for_torch() -> dict[str, str]:
    """The variables, with their values.

    - Waiting threads sleep. If they spun, a round would be many times slower beside a second process.
    - Large tensors are in pages of 2 MB where Linux gives them to those who ask ("madvise"). A column of theta touches
      a page of every device, and with small pages it takes long to look up their addresses.

    >>> for_torch()["OMP_WAIT_POLICY"]
    'PASSIVE'
    """
    found = {"OMP_WAIT_POLICY": "PASSIVE"}
    with suppress(OSError):
        if "[madvise]" in HUGE_PAGES.read_text():
            found["THP_MEM_ALLOC_ENABLE"] = "1"
    return found
