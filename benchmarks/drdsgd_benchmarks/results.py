"""What was measured: lines of a table, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drdsgd.errors import InputError, flag
from drdsgd.files import write_text
from drdsgd_benchmarks.machine import caption

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Measured", "Result", "costs", "read", "table"]

Unit = Literal["times faster", "times the time", "times the size", "% of the run", "s", "s more"]


@dataclass(frozen=True)
class Result:
    """One line of the table: a ratio of two sides, turn by turn. `note` says why the target is what it is."""

    case: str
    what: str
    against: str
    unit: Unit
    target: float | None
    turns: list[float]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""

    @property
    def median(self) -> float:
        """The result."""
        return statistics.median(self.turns)

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.target is None:
            return None
        return self.median >= self.target if self.unit == "times faster" else self.median <= self.target

    @property
    def cells(self) -> list[str]:
        """What it is, against what, the median, the spread, the target, and whether it is reached.

        >>> Result("case", "this", "that", "times faster", 2, [2.5, 3.0, 1.0]).cells
        ['this', 'that', '2.50 times faster', '1.00 to 3.00', 'at least 2', 'reached']
        """
        bound = "" if self.target is None else f"{'at least' if self.unit == 'times faster' else 'at most'} "
        verdict = {True: "reached", False: "not reached", None: ""}[self.reached]
        return [
            self.what,
            self.against,
            f"{self.median:.2f} {self.unit}",
            f"{min(self.turns):.2f} to {max(self.turns):.2f}",
            "" if self.target is None else f"{bound}{self.target:g}",
            verdict,
        ]

    def to_json(self) -> dict[str, Any]:
        """As plain values: with the median and its spread."""
        spread = {"median": self.median, "low": min(self.turns), "high": max(self.turns), "reached": self.reached}
        return {**asdict(self), **spread}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Result:
        """What `to_json` wrote."""
        known = {one.name for one in fields(Result)}
        return Result(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True)
class Measured:
    """All results of a file, the machine they are from, and the seconds that each finished case took."""

    machine: Mapping[str, Any]
    repeats: int
    cases: Mapping[str, float] = field(default_factory=dict)
    results: Sequence[Result] = ()

    def having(self, case: str, seconds: float, found: Sequence[Result]) -> Measured:
        """The same with one more case; results that it had before are replaced."""
        kept = [one for one in self.results if one.case != case]
        return Measured(self.machine, self.repeats, {**self.cases, case: seconds}, [*kept, *found])

    def write(self, path: Path) -> None:
        """All numbers as JSON."""
        results = [one.to_json() for one in self.results]
        values = {"machine": self.machine, "repeats": self.repeats, "cases": self.cases, "results": results}
        write_text(path, json.dumps(values, indent=1) + "\n")

    def check_same(self, other: Measured, path: Path) -> None:
        """Refuse results of another machine, of other versions, or with other repetitions, which are in `path`."""
        here, there = ({**one.machine, "--repeats": one.repeats} for one in (other, self))
        for name in here:
            if here[name] != there.get(name):
                raise InputError(
                    f"{flag('resume')}: {path} was measured with {name} {there.get(name)}, this is {here[name]}; "
                    f"leave out {flag('resume')}, or use another {flag('out')}"
                )


def read(path: Path) -> Measured:
    """The results in a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        results = [Result.from_json(one) for one in values["results"]]
        return Measured(values["machine"], values["repeats"], values["cases"], results)
    except FileNotFoundError:
        raise InputError(f"{path} is not there; leave out {flag('resume')} to measure") from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a file of this benchmark ({type(error).__name__} {error}); use another {flag('out')}"
        ) from error


def costs(results: Sequence[Result]) -> dict[int, list[float]]:
    """Seconds per device and round by the number of devices, from the case `scale`."""
    found = [r.seconds for r in results if r.case == "scale" and r.seconds]
    return {int(name.removeprefix("K=")): seconds for name, seconds in found[0].items()} if found else {}


def table(measured: Measured) -> Table:
    """The results, for a terminal."""
    from rich.table import Table

    lines = Table(
        "what", "against", "median", "low to high", "target", "",
        box=None, pad_edge=False, caption=caption(measured.machine), caption_justify="left",
    )  # fmt: skip
    for one in measured.results:
        lines.add_row(*one.cells)
    return lines
