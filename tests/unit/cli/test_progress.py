"""Progress: a view that leaves the terminal clean, few lines elsewhere, and an honest time estimate."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from drdsgd.cli import progress
from drdsgd.experiments.records import Folder, read, read_metrics
from drdsgd.training.metrics import Metrics
from tests.support.made import metrics
from tests.support.program import SMALL, drdsgd

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def a_terminals_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same terminal wherever the tests run."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("drdsgd.cli.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "FIRST_AFTER", 2.0)
    return now


def screen(written: str, width: int = 1000) -> list[str]:
    """The lines in a terminal after this output, without colours."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]", written):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
            column = 0
        elif token == "\r":
            column = 0
        elif token.endswith("A"):
            row -= int(token[2:-1] or 1)
            assert row >= 0, "the terminal's history was overwritten"
        elif token == "\x1b[2K":
            lines[row] = ""
        elif not token.startswith("\x1b"):
            lines[row] = (lines[row].ljust(column) + token) if column >= len(lines[row]) else (
                lines[row][:column] + token + lines[row][column + 1 :]
            )  # fmt: skip
            column += 1
            assert column <= width, lines[row]
    return [line for line in lines if line.strip()]


# ------------------------------------------------------------------------ pace


def test_the_pace_is_that_of_the_last_half_minute() -> None:
    pace = progress.Pace()
    assert pace.rate(0.0) is None
    for now in range(100):  # ten per second, then one
        pace.see(now, 10.0 * min(now, 50) + max(0, now - 50))
    assert pace.rate(99.0) == 1.0


@pytest.mark.parametrize("before", [0, 990])
def test_what_was_done_before_is_no_speed(before: int) -> None:
    """A run that continues at round 990 is not faster than a new run."""
    pace = progress.Pace()
    for now in range(5):
        pace.see(float(now), before + now)
    assert pace.rate(4.0) == 1.0


def test_slow_rounds_have_a_pace_and_a_standstill_is_seen() -> None:
    pace = progress.Pace()
    for now in range(401):  # one in a hundred seconds, looked at every second
        pace.see(float(now), now // 100)
    assert pace.rate(400.0) == pytest.approx(0.01)
    assert pace.rate(499.0) == pytest.approx(0.01)  # as long as it has always taken
    rates = [pace.rate(500.0 + 100 * k) or 0.0 for k in range(5)]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.0061


def test_another_thing_has_a_pace_of_its_own() -> None:
    pace = progress.Pace()
    for now, done in ((0, 0), (1, 1000), (2, 0), (3, 5)):
        pace.see(now, done)
    assert pace.rate(3.0) == 5.0


# ----------------------------------------------------------------------- lines


def lines(clock: list[float], total: float | None, steps: Sequence[tuple[float, float, str]]) -> list[str]:
    """The lines that steps (time, done, note) print without a terminal."""
    out = io.StringIO()
    with progress.bar(Console(file=out, width=30), "[red]x", total) as advance:
        for clock[0], done, note in steps:
            advance(done, note)
    return out.getvalue().splitlines()


def test_a_log_gets_a_line_soon_then_now_and_then_and_at_the_end(clock: list[float]) -> None:
    said = lines(clock, 100.0, [(float(second), float(second), "note") for second in range(100)])
    assert said[0] == "[red]x: 2 %, note"
    assert said[1] == "[red]x: 12 %, 0:01:28 left, note"
    assert said[-1] == "[red]x: 99 %, after 0:01:39, note"
    assert len(said) == 1 + 97 // progress.LINE_EVERY + 1


def test_a_time_left_needs_some_work_to_tell_it_from(clock: list[float]) -> None:
    """After a tenth of the work and two seconds; for work of hours, after half a minute."""
    steps = [(float(second), float(second), "") for second in range(36)]
    assert [" left" in line for line in lines(clock, 1000.0, steps)[:-1]] == [False, False, False, True]
    steps = [(0.0, 50.0, ""), (1.0, 60.0, ""), (3.0, 70.0, "")]
    assert lines(clock, 100.0, steps)[0] == "[red]x: 70 %, 0:00:04 left"
    meter = progress._Meter("x", 100.0)
    for now, done in ((0.0, 50.0), (1.0, 60.0), (2.0, 70.0)):
        meter.worked = meter.done = done
        meter.look(now)
        assert bool(meter.left(now)) == (now >= 2)


def test_what_was_done_before_it_began_is_no_speed(clock: list[float]) -> None:
    said = lines(clock, 100.0, [(0.0, 50.0, ""), (10.0, 55.0, "note"), (20.0, 60.0, "note")])
    assert said[:2] == ["[red]x: 55 %, 0:01:30 left, note", "[red]x: 60 %, 0:01:20 left, note"]


def test_a_short_job_says_nothing(clock: list[float]) -> None:
    assert lines(clock, 10.0, [(0.0, 1.0, "note"), (1.9, 9.0, "note")]) == []


def test_without_a_total_or_a_beginning_there_is_no_time_left(clock: list[float]) -> None:
    assert lines(clock, None, [(0.0, 0.0, ""), (11.0, 5.0, "note")])[0] == "[red]x: note"
    clock[0] = 0.0
    assert lines(clock, 10.0, [(0.0, 0.0, ""), (11.0, 0.0, "")])[0] == "[red]x:"


def seen(clock: list[float], rounds: int, begin: int, evaluations: dict[int, Metrics], **options: Any) -> str:
    """The log of a run with ten rounds per second."""
    out = io.StringIO()
    with progress.view(Console(file=out, width=40), "run", rounds, **options) as show:
        for t in range(begin, rounds + 1):
            clock[0] = (t - begin) / 10
            show(t, evaluations.get(t))
    return out.getvalue()


@pytest.mark.parametrize("begin", [0, 700])
def test_a_line_of_a_run_says_all_and_its_time_left_is_honest_after_a_resume(clock: list[float], begin: int) -> None:
    said = seen(clock, 1000, begin, {begin + 10: metrics(10, [60.0, 37.25, 80.0])}).splitlines()
    t, left = begin + 120, str(round((1000 - begin - 120) / 10))
    numbers = "average 59.1 %, worst 37.2 % (device 1), consensus distance 0.1, 10 rounds/s"
    seconds = f"0:{int(left) // 60:02d}:{int(left) % 60:02d}"
    assert said[1] == f"run: round {t} of 1000, {seconds} left, {numbers}"
    assert re.fullmatch(rf"run: round 1000 of 1000, after 0:0[01]:\d\d, {re.escape(numbers)}", said[-1])


def test_rounds_that_are_left_out_are_no_speed(clock: list[float]) -> None:
    """A device that was absent continues at the round of its neighbours."""
    out = io.StringIO()
    with progress.view(Console(file=out), "north", 1000, progress.of_one) as show:
        show(None, note="waiting for south")
        for k in range(31):
            clock[0] = float(k)
            show(k if k < 5 else 800 + k, metrics(0, [50.0]) if k == 3 else None, "without south" if k > 10 else "")
    said = out.getvalue().splitlines()
    assert said[0] == "north: round 2 of 1000, 1 rounds/s"
    assert said[1] == (
        "north: round 812 of 1000, 0:03:08 left, own accuracy 50.0 %, from neighbours 0.1, 1 rounds/s, without south"
    )


# ------------------------------------------------------------------- a terminal


def test_a_terminal_shows_a_bar_with_the_note_and_leaves_nothing() -> None:
    out = io.StringIO()
    with progress.bar(Console(file=out, force_terminal=True, width=100), "dsgd, digits", 10) as advance:
        advance(5, "worst 40.0 %")
        advance(7, "later", 14)
    text = out.getvalue()
    assert "dsgd, digits" in text and "50 %" in text and "later" in text
    assert screen(text) == []
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize("name", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    clock: list[float], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", name)
    out = io.StringIO()
    with progress.bar(Console(file=out, force_terminal=True), "x", 10) as advance:
        for clock[0] in (0.0, 5.0):
            advance(clock[0], "")
    assert out.getvalue() == "x: 50 %, 0:00:05 left\nx: 50 %, after 0:00:05\n"


@pytest.mark.parametrize("width", [100, 60, 40])
@pytest.mark.parametrize("K", [10, 3000])
def test_the_view_states_the_metrics_and_the_worst_device(clock: list[float], width: int, K: int) -> None:
    before = metrics(90, [70.0 - i % 7 for i in range(K)])
    last = metrics(100, [80.0 - (50.4 if i == K - 2 else i % 5) for i in range(K)])
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=20)
    meter = progress._Meter("dr-dsgd, cifar10, K=3000, eta=0.0123, B=128", 200, "round")
    for t in range(101):
        clock[0] = t / 4
        meter.done = meter.worked = t
        meter.look(clock[0])
        if t in (80, 90, 100):
            meter.evaluated(progress.of_all({80: before, 90: before}.get(t, last)))
    console.print(meter)
    shown = screen(out.getvalue(), width)
    c, b = last.consensus, before.consensus
    assert shown[0].startswith("dr-dsgd, cifar10, K=3000")
    assert "50 %" in shown[1] and "0:00:25 left" in shown[1]
    assert shown[2] == "round 100 of 200   4 rounds/s"
    rows = {line[:20].strip(): line[20:].split() for line in shown[3:]}
    assert list(rows) == [
        "average", f"worst (device {K - 2})", "worst 10 %", "STDEV", "consensus distance", "train loss",
    ]  # fmt: skip
    for name, now, then in (
        ("average", c.average, b.average), (f"worst (device {K - 2})", c.worst, b.worst),
        ("worst 10 %", c.worst10, b.worst10), ("STDEV", c.stdev, b.stdev),
    ):  # fmt: skip
        assert rows[name][:3] == [f"{now:.1f}", "%", f"{now - then:+.1f}"]
        curve = width >= progress.ROOMY and name[:5] in ("avera", "worst") and name != "worst 10 %"
        assert rows[name][3:] == ([{"a": "▁▁█", "w": "██▁"}[name[0]]] if curve else [])
    assert rows["consensus distance"] == ["0.1", "+0"] and rows["train loss"] == ["0.5", "+0"]


def test_without_colours_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    with progress.view(Console(file=out, force_terminal=True, width=60), "run", 10) as show:
        for t in range(3):
            show(t, metrics(t, [10.0 + t, 20.0]))
    assert re.findall(r"\x1b\[[0-9;]*3[0-7]m", out.getvalue()) == []
    assert screen(out.getvalue())[0].startswith("run: round 2 of 10, after 0:00:00, average 16.0 %, worst 12.0 %")


def test_a_small_terminal_shows_what_fits(clock: list[float]) -> None:
    out = io.StringIO()
    with progress.view(Console(file=out, force_terminal=True, width=60, height=6), "run", 10) as show:
        show(1, metrics(1, [10.0, 20.0]))
    assert "worst (device 0)" in out.getvalue() and "train loss" not in out.getvalue()
    said = "run: round 1 of 10, after 0:00:00, average 15.0 %, worst 10.0 % (device 0), consensus distance 0.1"
    assert screen(out.getvalue()) == [said]


def test_a_curve_of_many_evaluations_stays_small_and_ends_with_the_last() -> None:
    curves = progress._Curves()
    for k in range(10_000):
        curves.add([float(k)])
        way = curves(0)
        assert way[-1] == k and len(way) <= 2 * progress.WIDEST + 2
    gaps = {b - a for a, b in pairwise(way[:-1])}
    assert len(gaps) == 1  # evenly over all
    assert progress.sparkline(way, 8) == "▁▂▃▄▅▆▇█"


# ----------------------------------------------------- the program in a terminal

PROGRAM = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from drdsgd.cli import main; main()"


class Terminal:
    """The program in its own terminal; `written` is all of its output."""

    def __init__(self, width: int, *arguments: str | Path) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(width)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(theirs)
        self._bytes = b""

    def resize(self, width: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    @property
    def written(self) -> str:
        return self._bytes.decode(errors="replace").replace("\r\n", "\n")

    def read(self, until: Callable[[str], bool] = lambda written: False) -> None:
        """Read until the condition holds, or to the end."""
        while not until(self.written):
            try:
                some = os.read(self._ours, 2**16)
            except OSError:  # it is over
                break
            if not some:
                break
            self._bytes += some

    def end(self) -> int:
        self.read()
        os.close(self._ours)
        return self.process.wait(60)


def test_in_a_terminal_the_view_appears_and_leaves_it_clean(tmp_path: Path) -> None:
    terminal = Terminal(70, "train", *SMALL, "--rounds", "300", "--eval-every", "10", "--out", tmp_path)
    terminal.read(lambda written: "worst (device" in written)
    terminal.resize(45)
    assert terminal.end() == 0
    final = read(tmp_path).final.consensus
    worst = final.per_device.index(final.worst)
    summary, *table = screen(terminal.written)
    assert summary.startswith("dr-dsgd, synthetic, K=4, ")
    assert re.search(r": round 300 of 300, after 0:\d\d:\d\d, ", summary)
    assert f"average {final.average:.1f} %, worst {final.worst:.1f} % (device {worst}), consensus" in summary
    assert "train loss" in terminal.written and not any("train loss" in line for line in table)
    assert "report:" in table[-2] + table[-1]
    assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")


def test_after_ctrl_c_the_terminal_is_clean(tmp_path: Path) -> None:
    terminal = Terminal(80, "train", *SMALL, "--rounds", "1000000", "--eval-every", "100", "--out", tmp_path)
    terminal.read(lambda written: "worst (device" in written)
    terminal.type(b"\x03")
    assert terminal.end() == 130
    summary, line = screen(terminal.written)
    assert re.search(r": round \d+ of 1000000, after 0:\d\d:\d\d, ", summary)
    assert line.startswith("drdsgd: stopped after round ") and "; continue with: drdsgd train --resume --out" in line
    assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")


def test_a_log_is_no_terminal_even_if_colours_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert drdsgd("train", *SMALL, "--out", tmp_path).err == ""
    monkeypatch.setattr(progress, "FIRST_AFTER", 0.0)
    said = drdsgd("train", *SMALL, "--out", tmp_path / "again").err.splitlines()
    first, final = read_metrics(Folder(tmp_path / "again").metrics)[0], read(tmp_path / "again").final
    assert "\x1b[?25l" not in said[0]
    for line, t, m in ((said[0], 0, first), (said[-1], 6, final)):
        assert (
            f"round {t} of 6, " in line
            and f"average {m.consensus.average:.1f} %, worst {m.consensus.worst:.1f}" in line
        )
        assert f"consensus distance {m.consensus_distance:.3g}" in line
