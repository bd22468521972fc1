"""Progress: a bar on a terminal, few lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from drdsgd import progress


def test_a_terminal_shows_a_bar_with_the_note_and_leaves_nothing() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with progress.bar(console, "dsgd, digits", 10) as advance:
        advance(5, "worst 40.0 %")
        advance(7, "later", 14)
    text = out.getvalue()
    assert "dsgd, digits" in text and "50%" in text and "later" in text
    assert text.endswith("\x1b[2K")  # the line is erased


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("drdsgd.progress.time.monotonic", lambda: now[0])
    return now


def lines(clock: list[float], total: float | None, steps: list[tuple[float, float, str]]) -> list[str]:
    """What is printed where there is no terminal, of steps (time, done, note)."""
    out = io.StringIO()
    with progress.bar(Console(file=out, width=100), "[red]x", total) as advance:
        for clock[0], done, note in steps:
            advance(done, note)
    return out.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then(clock: list[float]) -> None:
    steps = [(float(second), float(second), "note") for second in range(100)]
    said = lines(clock, 100.0, steps)
    assert len(said) == 99 // progress.LINE_EVERY
    assert said[0] == "[red]x: 10 %, 90 s left, note"
    assert said[-1] == "[red]x: 90 %, 10 s left, note"


def test_what_was_done_before_it_began_is_no_speed(clock: list[float]) -> None:
    said = lines(clock, 100.0, [(0.0, 50.0, ""), (10.0, 55.0, "note"), (20.0, 60.0, "note")])
    assert said == ["[red]x: 55 %, 90 s left, note", "[red]x: 60 %, 80 s left, note"]


def test_a_short_job_says_nothing(clock: list[float]) -> None:
    assert lines(clock, 10.0, [(5.0, 9.0, "note")]) == []


def test_without_a_total_or_a_beginning_there_is_no_time_left(clock: list[float]) -> None:
    assert lines(clock, None, [(11.0, 5.0, "note")]) == ["[red]x: note"]
    clock[0] = 0.0
    assert lines(clock, 10.0, [(11.0, 0.0, "")]) == ["[red]x:"]
