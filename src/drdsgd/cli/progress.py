"""Progress of a command: a live view in a terminal, and a plain line from time to time elsewhere.

`bar` is for anything that advances, `view` for a run. A round only stores how far it is. In a terminal a thread redraws
this a few times per second; elsewhere each round costs one look at the clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

if TYPE_CHECKING:
    from drdsgd.training.metrics import Metrics

__all__ = ["Pace", "Row", "bar", "of_all", "of_one", "sparkline", "view"]


class Advance(Protocol):
    """Sets how far it is, a short note, and the total if it was not known before."""

    def __call__(self, done: float, note: str, total: float | None = None) -> None: ...


class Show(Protocol):
    """Sets the round reached, its metrics if it was evaluated, and a note."""

    def __call__(self, t: int | None, metrics: Metrics | None = None, note: str = "") -> None: ...


# without a terminal: seconds until the first line, and between two lines; often enough to show life, and fit for a log
FIRST_AFTER, LINE_EVERY = 2.0, 10.0
REDRAWN_PER_SECOND = 4
# seconds over which the pace is measured, and between two measurements
OVER, LOOK_EVERY = 30.0, 0.2
# no time estimate is shown before this many seconds of work and this part of it; a long run needs only the seconds of
# `OVER`, which pass long before that part
WORKED_FIRST, DONE_FIRST = 2.0, 0.1
# columns: few enough that lines stay intact when a wide terminal is made narrower; and the least that has room
# for curves
WIDEST, ROOMY = 76, 56


# ------------------------------------------------------------------------ pace


class Pace:
    """How fast something advances over its last half minute; earlier rates say little about the time left.

    >>> pace = Pace()
    >>> for now in range(100):
    ...     pace.see(now, 500 + (now if now < 50 else 50 + 4 * (now - 50)))
    >>> pace.rate(99)
    4.0
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def see(self, now: float, done: float) -> None:
        """Record how far it is now; the first record is the beginning."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # something new has begun
        if self._seen and (done == self._seen[-1][1] or now < self._seen[-1][0] + LOOK_EVERY):
            return
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - OVER:
            self._seen.popleft()

    def rate(self, now: float) -> float | None:
        """The rate per second; it falls while nothing advances."""
        if len(self._seen) < 2:
            return None
        (begun, first), (last, done) = self._seen[0], self._seen[-1]
        usual = (last - begun) / (len(self._seen) - 1)
        return (done - first) / (max(last, now - usual) - begun)


# ---------------------------------------------------------------------- evaluations


class Row(NamedTuple):
    """A number of an evaluation: whether more is better (1), less (-1), or neither (0), and whose it is.

    A `brief` row is also in plain lines; a row with a `curve` shows its history.
    """

    name: str
    value: float
    percent: bool = False
    better: int = 0
    who: str = ""
    brief: bool = False
    curve: bool = False

    @property
    def said(self) -> str:
        """The value with its unit."""
        return f"{self.value:.1f} %" if self.percent else f"{self.value:.3g}"

    def change(self, before: Row) -> str:
        """The change since another evaluation."""
        return f"{self.value - before.value:{'+.1f' if self.percent else '+.2g'}}"


def of_all(metrics: Metrics) -> list[Row]:
    """The rows for all devices: accuracies of the consensus model, agreement, loss."""
    c = metrics.consensus
    worst = f"device {c.per_device.index(c.worst)}"
    return [
        Row("average", c.average, percent=True, better=1, brief=True, curve=True),
        Row("worst", c.worst, percent=True, better=1, who=worst, brief=True, curve=True),
        Row("worst 10 %", c.worst10, percent=True, better=1),
        Row("STDEV", c.stdev, percent=True, better=-1),
        Row("consensus distance", metrics.consensus_distance, brief=True),
        Row("train loss", metrics.train_loss, better=-1),
    ]


def of_one(metrics: Metrics) -> list[Row]:
    """The rows for one device, whose model is the only one in its process."""
    return [
        Row("own accuracy", metrics.consensus.average, percent=True, better=1, brief=True, curve=True),
        Row("from neighbours", metrics.consensus_distance, brief=True),
        Row("train loss", metrics.train_loss, better=-1),
    ]


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of text, between the lowest and the highest value; the last character is the last value.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 4)
    '▁▃▆█'
    """
    shown = [values[-(-len(values) * (k + 1) // width) - 1] for k in range(width)] if len(values) > width else values
    low, high = min(shown), max(shown)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (v - low) / (high - low)) if high > low else 0] for v in shown)


class _Curves:
    """The values of all evaluations so far; of many only every second, every fourth, and so on."""

    def __init__(self) -> None:
        self._kept: list[list[float]] = []
        self._last: list[float] = []
        self._number, self._every = 0, 1

    def add(self, values: list[float]) -> None:
        """Add the values of an evaluation."""
        if self._number % self._every == 0:
            self._kept.append(values)
        self._last, self._number = values, self._number + 1
        if len(self._kept) > 2 * WIDEST:
            self._kept, self._every = self._kept[::2], 2 * self._every

    def __call__(self, i: int) -> list[float]:
        """The history of the i-th value, up to the last."""
        kept, last = self._kept, self._last
        return [values[i] for values in (kept if kept[-1] is last else [*kept, last])]


# ------------------------------------------------------------------------ display


class _Meter:
    """How far something is. The command sets the values; the display reads them in another thread."""

    def __init__(self, what: str, total: float | None, unit: str = "") -> None:
        self.what, self.total, self.unit, self.note = what, total, unit, ""
        self.done, self.worked = 0.0, -1.0  # worked counts only what takes time: not what was done before or is skipped
        self.rows: list[Row] = []
        self.before: list[Row] = []
        self.curves = _Curves()
        self.entered, self.begun, self.pace = time.monotonic(), -1.0, Pace()

    def evaluated(self, rows: list[Row]) -> None:
        """Add an evaluation."""
        self.before, self.rows = self.rows or rows, rows
        self.curves.add([row.value for row in rows])

    def look(self, now: float) -> None:
        """Measure the pace now."""
        if self.worked >= 0:
            if self.begun < 0:
                self.begun = now
            self.pace.see(now, self.worked)

    def part(self) -> str:
        """The part that is done, in percent."""
        return f"{100 * self.done / self.total:.0f} %" if self.total and self.done else ""

    def where(self) -> str:
        """The part that is done, in units."""
        return f"{self.unit} {self.done:.0f}" + (f" of {self.total:.0f}" if self.total else "")

    def left(self, now: float) -> str:
        """The estimated time left; empty if it is too early for an estimate."""
        rate, worked = self.pace.rate(now), now - self.begun
        if not self.total or not rate or worked < WORKED_FIRST:
            return ""
        if self.done < DONE_FIRST * self.total and worked < OVER:
            return ""
        return f"{_time((self.total - self.done) / rate)} left"

    def speed(self, rate: float | None) -> str:
        """The pace in words."""
        return f"{rate:.3g} {self.unit}s/s" if self.unit and rate else ""

    def line(self, now: float) -> str:
        """Everything in one line, for a log."""
        return self._line(self.left(now), self.speed(self.pace.rate(now)))

    def last_line(self, now: float) -> str:
        """The last line, at the end."""
        whole = now - self.begun
        return self._line(f"after {_time(now - self.entered)}", self.speed(self.worked / whole if whole > 0 else None))

    def _line(self, when: str, speed: str) -> str:
        said = [f"{row.name} {row.said}" + (f" ({row.who})" if row.who else "") for row in self.rows if row.brief]
        parts = (self.where() if self.unit else self.part(), when, *said, speed, self.note)
        return f"{self.what}: {', '.join(filter(None, parts))}".rstrip()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        self.look(now)
        width = min(options.max_width, WIDEST)
        yield self._text(self.what, width)
        elapsed = _time(now - self.entered) if width >= ROOMY else ""
        times = "  ".join(filter(None, (self.part(), elapsed, self.left(now))))
        yield from _bar(console, options, self.total, self.done, times, width)
        if self.unit:
            speed = self.speed(self.pace.rate(now))
            yield self._text("   ".join(filter(None, (self.where(), speed, self.note))), width)
        elif self.note:
            yield self._text(self.note, width)
        room = max(0, options.size.height - 4)  # rows that do not fit could not be erased
        roomy = width >= ROOMY and not options.ascii_only
        for i, (row, before) in enumerate(zip(self.rows[:room], self.before, strict=False)):
            yield _row(row, before, self.curves(i) if roomy and row.curve else [], width)

    @staticmethod
    def _text(said: str, width: int) -> Text:
        text = Text(said, no_wrap=True, overflow="ellipsis")
        text.truncate(width)
        return text


def _row(row: Row, before: Row, history: Sequence[float], width: int) -> Text:
    """A number, its change since the last evaluation, and its history."""
    text = Text(f"{row.name} ({row.who})" if row.who else row.name, no_wrap=True)
    text.truncate(20, pad=True)
    text.append(f"{row.said:>9}", style="bold")
    if row is not before:
        gain = row.better * (row.value - before.value)
        text.append(f"{row.change(before):>9}", style="green" if gain > 0 else "red" if gain < 0 else "dim")
        if history:
            text.append(f"  {sparkline(history, width - 40)}", style="cyan")
    return text


def _bar(
    console: Console, options: ConsoleOptions, total: float | None, done: float, times: str, width: int
) -> RenderResult:
    """A bar, followed by the times on the same line."""
    room = width - len(times) - 2 * bool(times)
    shown = ProgressBar(total=total, completed=done, width=room, pulse=total is None)
    for segment in console.render(shown, options.update_width(room)):
        if segment.text != "\n":
            yield segment
    yield Text(f"  {times}" if times else "")


def _time(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> _time(3671.8)
    '1:01:12'
    """
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def _shown(console: Console, meter: _Meter, last: bool) -> Iterator[Callable[[], None]]:
    """Show a meter during the block, which calls the function that it gets whenever the meter has advanced.

    With `last`, a final line stays in the terminal; a log that has any line always has the final one.
    """
    if console.is_interactive:  # a dumb terminal is not
        live = Live(meter, console=console, transient=True, refresh_per_second=REDRAWN_PER_SECOND)
        try:
            with live:
                yield lambda: None
        finally:
            if last and meter.worked >= 0:
                meter.look(now := time.monotonic())
                _print(console, meter.last_line(now))
        return
    said, due = False, float("inf")

    def line() -> None:
        nonlocal said, due
        meter.look(now := time.monotonic())
        if due == float("inf"):
            due = now + FIRST_AFTER
        if now >= due:
            said, due = True, now + LINE_EVERY
            _print(console, meter.line(now))

    try:
        yield line
    finally:
        if said:
            _print(console, meter.last_line(time.monotonic()))


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def bar(console: Console, what: str, total: float | None) -> Iterator[Advance]:
    """Show the progress of `what` up to `total`; call the result with how far it is and a short note."""
    meter = _Meter(what, total)
    with _shown(console, meter, last=False) as shown:

        def advance(done: float, note: str, total: float | None = None) -> None:
            meter.total = meter.total if total is None else total
            meter.note, meter.done, meter.worked = note, done, done
            shown()

        yield advance


@contextmanager
def view(
    console: Console, what: str, rounds: int | None, rows: Callable[[Metrics], list[Row]] = of_all
) -> Iterator[Show]:
    """Show a run of `rounds` rounds; call the result after each round. `rows` chooses the numbers of an evaluation."""
    meter = _Meter(what, rounds, "round")
    with _shown(console, meter, last=True) as shown:

        def show(t: int | None, metrics: Metrics | None = None, note: str = "") -> None:
            meter.note = note
            if metrics is not None:
                meter.evaluated(rows(metrics))
            if t is not None:
                meter.done, meter.worked = t, meter.worked + 1
            shown()

        yield show
