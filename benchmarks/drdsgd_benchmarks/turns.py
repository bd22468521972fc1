"""Sides of a comparison that take turns, each a process of its own (`sides`).

Sides are warmed up, then take turns, forth and back; a turn's time is the median of its steps, and a ratio is formed of
two turns of the same repeat, so what else the machine does falls on both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from drdsgd.environment import for_torch
from drdsgd.errors import Died

__all__ = ["Side", "Spec", "Tick", "Turns", "each_count", "in_turns", "ratios", "started"]

# about how long a turn lasts, so that a slow side is not timed much longer than a fast one
TURN_SECONDS = 0.4


class Side:
    """A process that takes steps when asked."""

    def __init__(self, name: str, settings: Mapping[str, Any], spinning: bool) -> None:
        # ours has the variables of `drdsgd train`; a plain loop has torch's default
        environment = {name: value for name, value in os.environ.items() if name not in for_torch()}
        if not spinning:
            environment |= for_torch()
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[variable] = str(settings["threads"])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "drdsgd_benchmarks.sides", name, json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,  # a Ctrl-C is for us; we end them
        )  # fmt: skip
        self.own_bytes = 0.0
        self._steps = 1

    def ready(self) -> None:
        """Wait until it is warm."""
        self._answer()

    def turn(self) -> float:
        """Seconds of a step, the median of a turn's."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._steps}\n")
        self._process.stdin.flush()
        answer = self._answer()
        seconds = float(statistics.median(answer["seconds"]))
        self.own_bytes = answer["own_bytes"]
        self._steps = max(1, round(TURN_SECONDS / seconds))
        return seconds

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise Died(f"a side of the benchmark ended with status {status}; its own message stands above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Turns:
    """The seconds of every side, turn by turn, and its memory: the peak, less what it had before the run."""

    seconds: dict[str, list[float]]
    own_bytes: dict[str, float]

    def best(self, of: str) -> str:
        """The fastest of the sides whose names begin so."""
        names = (name for name in self.seconds if name.startswith(of))
        return min(names, key=lambda name: statistics.median(self.seconds[name]))


Spec = tuple[str, dict[str, Any]]
Tick = Callable[[], None]


def in_turns(specs: Mapping[str, Spec], repeats: int, tick: Tick) -> Turns:
    """Let sides take turns, forth and back."""
    with started(specs) as sides:
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(repeats):
            for name in list(sides)[:: -1 if repeat % 2 else 1]:
                seconds[name].append(sides[name].turn())
            tick()
        return Turns(seconds, {name: side.own_bytes for name, side in sides.items()})


@contextmanager
def started(specs: Mapping[str, Spec]) -> Iterator[dict[str, Side]]:
    """The sides, warm; after the block their processes are gone."""
    with ExitStack() as stack:
        sides = {}
        for name, (kind, settings) in specs.items():  # one after the other: warm-ups at once would take longer
            sides[name] = Side(kind, settings, spinning=kind == "plain" or settings.get("pool") is False)
            stack.callback(sides[name].close)
            sides[name].ready()
        for side in sides.values():
            side.turn()  # now each knows how many steps a turn has
        yield sides


def ratios(turns: Turns, above: str, below: str) -> list[float]:
    """The time of one side relative to another's, turn by turn."""
    return [a / b for a, b in zip(turns.seconds[above], turns.seconds[below], strict=True)]


def each_count(name: str, side: str, cores: int, **settings: Any) -> dict[str, Spec]:
    """A side with 1, 2, 4, ... threads, up to one for every core."""
    counts = sorted({cores, *(2**i for i in range(cores.bit_length()))})
    return {f"{name}, {count} threads": (side, {"threads": count, **settings}) for count in counts}
