"""What commands print: tables, warnings, and how to continue after a stop."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drdsgd.errors import Died, Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from drdsgd.experiments.config import Experiment
    from drdsgd.experiments.records import Record

__all__ = ["console", "continued_with", "log_options", "show_table", "warn_once"]


def console(stderr: bool = False) -> Console:
    """A console on the standard output or error."""
    from rich.console import Console

    # FORCE_COLOR asks for colours; a display that moves is for terminals only
    there = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, force_interactive=None if there else False)


@contextmanager
def continued_with(command: str, out: Path, begun: Path, launcher: str = "") -> Iterator[None]:
    """Add to the message of an interruption how to continue, if the file `begun` exists."""
    try:
        yield
    except (KeyboardInterrupt, Died) as stopped:
        if not begun.exists():
            raise
        kind, said = (Died, stopped.marked) if isinstance(stopped, Died) else (Interrupted, str(stopped) or "stopped")
        raise kind(f"{said}; continue with: {launcher}drdsgd {command} --out {shlex.quote(str(out))}") from None


def show_table(records: Sequence[Record]) -> None:
    """Print the table of runs, and what went wrong with those that diverged or have almost stopped."""
    from drdsgd.report.groups import groups
    from drdsgd.report.headline import vanished
    from drdsgd.report.statistics import table
    from drdsgd.report.tables import rich_table

    rows = table(groups(records))
    console().print(rich_table(rows))
    for line in vanished(rows):
        print(line)
    for record in records:
        if record.status == "diverged":
            print(f"{record.path}: {record.message}")


def warn_once(begun: list[Experiment]) -> None:
    """Warn about runs that will hardly learn; once, after the first round, when nothing is refused any more."""
    for line in dict.fromkeys(filter(None, map(_warning, begun))):
        print(f"drdsgd: {line}", file=sys.stderr)
    begun.clear()


def _warning(e: Experiment) -> str:
    """A warning about a run that will hardly learn; empty if there is none.

    >>> from drdsgd.experiments.config import Experiment
    >>> _warning(Experiment(devices=1000, rounds=50))
    '--eta: the default, sqrt(K / T) = 4.47, is above 1, and few models learn with such steps; try --eta 0.5, or ...'
    """
    if e.eta <= 1 or e.eta != math.sqrt(e.devices / e.rounds):
        return ""
    return (
        f"--eta: the default, sqrt(K / T) = {e.eta:.3g}, is above 1, and few models learn with such steps; try "
        f"--eta 0.5, or more --rounds than --devices ({e.devices})"
    )


def log_options(names: Sequence[str] | None) -> str:
    """The --log options as they were given."""
    return "".join(f" --log {name}" for name in names or ())
