"""What a person sees while rounds go by: a bar with the time left, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["bar"]


class Advance(Protocol):
    """How far it is, a short note, and the total if it was not known before."""

    def __call__(self, done: float, note: str, total: float | None = None) -> None: ...


# seconds between two lines where there is no terminal: enough to see life, few enough for a log
LINE_EVERY = 10.0


@contextmanager
def bar(console: Console, what: str, total: float | None) -> Iterator[Advance]:
    """Progress of `what` up to `total`: call the result with how far it is and a short note."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(what, total=total, note="")
            yield lambda done, note, total=total: progress.update(task, completed=done, note=note, total=total)
        return

    begun = last = time.monotonic()
    first: float | None = None

    def line(done: float, note: str, total: float | None = total) -> None:
        nonlocal last, first
        now = time.monotonic()
        if first is None:
            first = done  # what was there when it began says nothing of the time left
        if now - last < LINE_EVERY:
            return
        last = now
        part = f"{100 * done / total:.0f} %" if total and done else ""
        if total and done > first:
            part += f", {(now - begun) * (total - done) / (done - first):.0f} s left"
        said = ", ".join(filter(None, (part, note)))
        console.print(f"{what}: {said}".rstrip(), highlight=False, markup=False)

    yield line
