"""FLUTE's benchmark, side by side with pfl-research and Flower: logistic regression on 28 x 28 images.

    python -m drdsgd_benchmarks.flute --out docs/performance-others.json

1,000 clients of 60 samples, 10 of them in each round, batches of 10, one local epoch (6 steps), step size 0.03, 100
rounds, as in M. H. Garcia et al., "FLUTE: A Scalable, Extensible Framework for High-Performance Federated Learning
Simulations", 2022. All read the same files, one per client, and end with the accuracy on 10,000 other images.

Each other tool is installed into a virtual environment of its own, by pip, with the version of torch that is used here.
`--environments` says where; they stay there for the next time. What can't be installed is named in one line, and left
out. The tools take turns, forth and back. Reported are the seconds of the rounds alone, as each tool's process sees
them, and of the whole command, from its start to its end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.data.sources import cache_folder
from drdsgd.errors import Died, InputError
from drdsgd.files import write_text
from drdsgd_benchmarks import clients
from drdsgd_benchmarks.machine import caption, machine
from drdsgd_benchmarks.results import Result

__all__ = ["OTHERS", "Missing", "Once", "Other", "compared", "main", "write"]

SETTING: dict[str, Any] = {"clients": 10, "batch_size": 10, "local_steps": 6, "eta": 0.03}
CLIENTS, SAMPLES, TEST, ROUNDS = 1_000, 60, 10, 100
OURS = "drdsgd"

# seconds of the rounds and of the whole command, and the accuracy at the end
Once = Mapping[str, float]


@dataclass(frozen=True)
class Other:
    """Another tool: what pip installs, its distribution, our program for it, and the targets against it."""

    name: str
    install: Sequence[str]
    distribution: str
    program: str
    rounds: float | None = None
    command: float | None = None


OTHERS = (
    Other("pfl-research", ["pfl[pytorch]"], "pfl", "pfl_research.py", rounds=2),
    Other("Flower", ["flwr[simulation]", "torch"], "flwr", "flower.py", command=10),
)


class Missing(Exception):
    """A tool can't be installed here."""


def environment(other: Other, folder: Path) -> Path:
    """The Python of the tool's own environment, which is made at the first time."""
    home = folder / other.distribution
    python, ready = home / "bin" / "python", home / "installed"
    if not ready.exists():
        home.mkdir(parents=True, exist_ok=True)
        constraints = home / "constraints.txt"
        write_text(constraints, f"torch=={version('torch').partition('+')[0]}\n")  # the same arithmetic for all
        _install([sys.executable, "-m", "venv", str(home)], other)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _install([*pip, "-c", str(constraints), *other.install], other)
        write_text(ready, "")
    return python


def _install(command: Sequence[str], other: Other) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        why = re.sub(r"\w+://\S+", "…", " ".join(errors))  # where pip looked is of no use elsewhere
        raise Missing(f"{other.name} can't be installed: {why[:300]}")


def ours(data: Path, rounds: int) -> Once:
    """One run by `drdsgd train`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = [word for name, value in SETTING.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        begun = time.perf_counter()
        _run(
            [
                sys.executable, "-P", "-m", "drdsgd", "train", "--dataset", str(data), "--model", "logistic",
                "--algorithm", "fedavg", *options, "--rounds", str(rounds), "--eval-every", str(rounds),
                "--checkpoint-every", str(rounds), "--out", str(out),
            ]
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        last = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {"rounds": last["seconds"], "command": seconds, "accuracy": last["consensus"]["average"]}


def theirs(other: Other, python: Path, data: Path, rounds: int) -> Once:
    """One run by another tool."""
    program = Path(__file__).parent / "others" / other.program
    begun = time.perf_counter()
    printed = _run([str(python), str(program), str(data), json.dumps({"rounds": rounds, **SETTING})], _theirs())
    seconds = time.perf_counter() - begun
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return {"rounds": found["rounds"], "command": seconds, "accuracy": found["accuracy"]}


def _theirs() -> dict[str, str]:
    """The environment of other tools' processes: nothing of ours, no reports to their makers, one thread of torch.

    These products are too small to be shared: more threads only wait, which costs much where the machine is busy.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command prints, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise Died(f"a command of the benchmark failed: {' '.join(done.stderr.split())[-1000:]}")
    return done.stdout


def in_turns(sides: Mapping[str, Callable[[], Once]], repeats: int) -> dict[str, list[Once]]:
    """Runs of all sides, forth and back."""
    found: dict[str, list[Once]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            found[name].append(sides[name]())
            last = found[name][-1]
            print(f"{name}: {last['rounds']:.2f} s of rounds, {last['command']:.1f} s in all", file=sys.stderr)
    return found


def compared(found: Mapping[str, Sequence[Once]]) -> list[Result]:
    """Lines of the table: the rounds and the whole command, against every other tool."""
    results = []
    for other in OTHERS:
        if other.name not in found:
            continue
        for key, what, target in (
            ("rounds", "rounds of FLUTE's benchmark", other.rounds),
            ("command", "the whole command", other.command),
        ):
            faster = [b[key] / a[key] for a, b in zip(found[OURS], found[other.name], strict=True)]
            seconds = {name: [one[key] for one in found[name]] for name in (OURS, other.name)}
            results.append(Result("flute", what, other.name, "times faster", target, faster, seconds))
    return results


def write(
    path: Path, found: Mapping[str, Sequence[Once]], versions: Mapping[str, str], missing: Mapping[str, str]
) -> None:
    """All numbers as JSON, with the machine, the versions, and what could not be installed."""
    values = {
        "machine": machine(),
        "versions": versions,
        "missing": missing,
        "tools": found,
        "results": [one.to_json() for one in compared(found)],
    }
    write_text(path, json.dumps(values, indent=1) + "\n")


def main(
    environments: Annotated[
        Path | None, typer.Option(help="folder for the tools' environments; default below the user's cache")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="runs of every tool")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of every run")] = ROUNDS,
    out: Annotated[Path, typer.Option(help="file for all numbers, as JSON")] = Path("flute.json"),
) -> None:
    """Run FLUTE's benchmark with drdsgd and other tools."""
    folder = cache_folder("benchmarks") if environments is None else environments.resolve()
    versions, missing = {OURS: version("drdsgd")}, {}
    with tempfile.TemporaryDirectory() as made:
        data = Path(made)
        clients.write(data, CLIENTS, SAMPLES, TEST)
        sides: dict[str, Callable[[], Once]] = {OURS: lambda: ours(data, rounds)}
        for other in OTHERS:
            try:
                python = environment(other, folder)
            except Missing as why:
                missing[other.name] = str(why)
                print(why, file=sys.stderr)
                continue
            versions[other.name] = _version(other, python)
            sides[other.name] = lambda other=other, python=python: theirs(other, python, data, rounds)  # type: ignore[misc]  # a lambda with defaults
        found = in_turns(sides, repeats)
    write(out, found, versions, missing)
    print(caption(machine()))
    for one in compared(found):
        print(" | ".join(one.cells))
    print(f"numbers: {out}")


def _version(other: Other, python: Path) -> str:
    code = f"from importlib.metadata import version; print(version({other.distribution!r}))"
    return _run([str(python), "-c", code], _theirs()).strip()


if __name__ == "__main__":
    try:
        typer.run(main)
    except (Died, InputError) as error:
        sys.exit(f"flute: {error}")
