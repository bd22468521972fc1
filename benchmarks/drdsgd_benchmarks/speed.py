"""How fast is it on this machine? Ratios within one run, against a plain loop and against the bare arithmetic.

Every side of a comparison is a process of its own with its own number of threads (`sides`). Sides are warmed up,
then take turns, forth and back; a turn's time is the median of its steps, and a ratio is formed of two turns of the
same repeat, so what else the machine does falls on both. The result is the median of these ratios, with the lowest and
the highest. Where a side may choose its threads (1, 2, 4, ... all cores) or memory format, it is run with each, and its
best counts.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from drdsgd.errors import Died
from drdsgd.experiments.config import default_threads
from drdsgd.files import write_text
from drdsgd.topology.graphs import erdos_renyi

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CASES", "Case", "Result", "Turns", "costs", "run", "table", "write"]

# about how long a turn lasts, so that a slow side is not timed much longer than a fast one
TURN_SECONDS = 0.4
MLP: dict[str, Any] = {"kind": "mlp", "K": 25, "B": 87}
CNN: dict[str, Any] = {"kind": "cnn", "K": 10, "B": 55}
SCALE = (25, 100, 1_000, 10_000)
_D = 109_386  # parameters of the MLP


@dataclass(frozen=True)
class Result:
    """One line of the table: a ratio of two sides, turn by turn."""

    case: str
    what: str
    against: str
    unit: Literal["times faster", "times the time", "times the size", "s more"]
    target: float | None
    turns: list[float]
    seconds: dict[str, list[float]] = field(default_factory=dict)

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

    def to_json(self) -> dict[str, Any]:
        """As plain values: with the median and its spread."""
        spread = {"median": self.median, "low": min(self.turns), "high": max(self.turns), "reached": self.reached}
        return {**asdict(self), **spread}


# ------------------------------------------------------------------------------------------- processes in turns


class Side:
    """A process that takes steps when asked."""

    def __init__(self, name: str, settings: Mapping[str, Any], spinning: bool) -> None:
        environment = dict(os.environ)
        # the package's own threads sleep while they wait, as under `drdsgd train`; a plain loop has torch's default
        environment.pop("OMP_WAIT_POLICY", None)
        if not spinning:
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[variable] = str(settings["threads"])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "drdsgd_benchmarks.sides", name, json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,  # a Ctrl-C is for us; we end them
        )  # fmt: skip
        self.peak_bytes = 0.0
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
        self.peak_bytes = answer["peak_bytes"]
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
    """The seconds of every side, turn by turn, and its peak memory."""

    seconds: dict[str, list[float]]
    peak_bytes: dict[str, float]

    def best(self, of: str) -> str:
        """The fastest of the sides whose names begin so."""
        return min(
            (name for name in self.seconds if name.startswith(of)), key=lambda n: statistics.median(self.seconds[n])
        )


Spec = tuple[str, dict[str, Any]]
Tick = Callable[[], None]


def in_turns(specs: Mapping[str, Spec], repeats: int, tick: Tick) -> Turns:
    """Let sides take turns, forth and back."""
    with _started(specs) as sides:
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(repeats):
            for name in list(sides)[:: -1 if repeat % 2 else 1]:
                seconds[name].append(sides[name].turn())
            tick()
        return Turns(seconds, {name: side.peak_bytes for name, side in sides.items()})


@contextmanager
def _started(specs: Mapping[str, Spec]) -> Iterator[dict[str, Side]]:
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


def _ratios(turns: Turns, above: str, below: str) -> list[float]:
    return [a / b for a, b in zip(turns.seconds[above], turns.seconds[below], strict=True)]


def _each_count(name: str, side: str, cores: int, **settings: Any) -> dict[str, Spec]:
    """A side with 1, 2, 4, ... threads, up to one for every core."""
    counts = sorted({cores, *(2**i for i in range(cores.bit_length()))})
    return {f"{name}, {count} threads": (side, {"threads": count, **settings}) for count in counts}


# --------------------------------------------------------------------------------------------------- the cases


def mlp(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """A round of the paper's MLP (K=25, B=87) against the plain loop, its bare products, the arithmetic alone."""
    shape = {"K": 25, "B": 87}
    turns = in_turns(
        {
            **_each_count("drdsgd", "ours", cores, **MLP),
            **_each_count("plain loop", "plain", cores, **MLP),
            **_each_count("products by torch", "products", cores, pool=False, **shape),
            f"products by blocks, {cores} threads": ("products", {"threads": cores, "pool": True, **shape}),
            f"large products, {cores} threads": ("large_products", {"threads": cores}),
        },
        repeats,
        tick,
    )
    ours, plain, products = (turns.best(name) for name in ("drdsgd", "plain loop", "products"))
    large = turns.best("large products")
    share = _mlp_operations(**shape) / (2 * 1024**3 * cores)  # of a large product on every core
    arithmetic = [share * seconds for seconds in turns.seconds[large]]
    turns.seconds[f"the arithmetic at the speed of {large}"] = arithmetic
    what = "MLP round"
    return [
        Result("mlp", what, "plain loop", "times faster", 8, _ratios(turns, plain, ours), turns.seconds),
        Result("mlp", what, "bare matrix products", "times the time", 1.4, _ratios(turns, ours, products)),
        Result(
            "mlp", "its arithmetic, as fast as one large product", "plain loop",
            "times faster", None, [a / b for a, b in zip(turns.seconds[plain], arithmetic, strict=True)],
        ),
    ]  # fmt: skip


def _mlp_operations(K: int, B: int) -> int:
    """Additions and multiplications of a round: forward and backward, and mixing along the graph's links."""
    sizes = [784 * 128, 128 * 64, 64 * 10]
    weights: int = K + 2 * erdos_renyi(K, 0.3, seed=0).number_of_edges()  # as in sides.problem
    return 2 * K * B * (3 * sum(sizes) - sizes[0]) + 2 * weights * _D


def cnn(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """A round of the paper's CNN (K=10, B=55) against the plain loop, in both memory formats."""
    turns = in_turns(
        {
            **_each_count("drdsgd", "ours", cores, **CNN),
            **_each_count("plain loop", "plain", cores, **CNN),
            **_each_count("plain loop, channels last", "plain", cores, channels_last=True, **CNN),
        },
        repeats,
        tick,
    )
    ratios = _ratios(turns, turns.best("plain loop"), turns.best("drdsgd"))
    return [Result("cnn", "CNN round", "plain loop", "times faster", 1.25, ratios, turns.seconds)]


def load(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """Rounds while another process keeps one core busy."""
    models = {"MLP": MLP, "CNN": CNN}
    with _started({kind: ("ours", {"threads": cores, **settings}) for kind, settings in models.items()}) as sides:
        seconds: dict[str, list[float]] = {f"{kind}, {how}": [] for kind in sides for how in ("quiet", "busy")}
        for _ in range(repeats):
            for kind, side in sides.items():
                seconds[f"{kind}, quiet"].append(side.turn())
                with _a_busy_core():
                    seconds[f"{kind}, busy"].append(side.turn())
            tick()
    turns = Turns(seconds, {})
    return [
        Result(
            "load", f"{kind} round, one core busy", "quiet round",
            "times the time", 3, _ratios(turns, f"{kind}, busy", f"{kind}, quiet"), seconds if kind == "CNN" else {},
        )
        for kind in models
    ]  # fmt: skip


@contextmanager
def _a_busy_core() -> Iterator[None]:
    # it ends by itself, too: nobody else would stop it if we were killed
    busy = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    process = subprocess.Popen([sys.executable, "-P", "-c", busy])
    try:
        time.sleep(0.1)  # until it is
        yield
    finally:
        process.kill()
        process.wait()


def scale(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """The cost of a device among many (MLP, B=32, random graph with 6 neighbours each), and the memory.

    The data are not counted as memory.
    """
    data = 32  # samples of a device
    sizes = [K for K in SCALE if SCALE[0] == K or _fits(2.5 * K * _D * 4)]
    if sizes != list(SCALE):
        print(f"bench scale: memory is enough for K={sizes[-1]:,} only", file=sys.stderr)
    turns = in_turns(
        {f"K={K}": ("ours", {"threads": cores, "kind": "mlp", "K": K, "B": 32, "degree": 6, "n": data}) for K in sizes},
        repeats,
        tick,
    )
    per_device = {f"K={K}": [s / K for s in turns.seconds[f"K={K}"]] for K in sizes}
    results = [
        Result(
            "scale", f"a device's round, K={K:,}", "K=25", "times the time",
            1.2 if K >= 1000 else None,
            [a / b for a, b in zip(per_device[f"K={K}"], per_device["K=25"], strict=True)],
            per_device if sizes[-1] == K else {},
        )
        for K in sizes[1:]
    ]  # fmt: skip
    if sizes[-1] == 10_000:
        K = sizes[-1]
        memory = (turns.peak_bytes[f"K={K}"] - K * data * (784 + 8)) / (K * _D * 4)
        what = f"peak memory, K={K:,}"
        results.append(Result("scale", what, "size of theta", "times the size", 2.5, [memory]))
    return results


def _fits(size: float) -> bool:
    """Whether this number of bytes is available; True where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return True
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return not available or size < available[0]


def evaluation(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """The cost of evaluating all 25 devices, relative to a round: both kinds of model, 10,000 images in all."""
    settings = {"threads": cores, "test": 10_000, **MLP}
    turns = in_turns(
        {"round": ("ours", settings), "round and evaluation": ("ours", {"eval_every": 1, **settings})}, repeats, tick
    )
    extra = [ratio - 1 for ratio in _ratios(turns, "round and evaluation", "round")]
    what = "evaluation, 10,000 images"
    return [Result("evaluation", what, "MLP round", "times the time", 3, extra, turns.seconds)]


def start(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """How long the program takes to answer."""
    commands = {"drdsgd --help": ["-m", "drdsgd", "--help"], "python -c pass": ["-c", "pass"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, arguments in commands.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-P", *arguments], check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first is the warm-up
                seconds[name].append(time.perf_counter() - begun)
        if turn:
            tick()
    more = [a - b for a, b in zip(*seconds.values(), strict=True)]
    return [Result("start", "drdsgd --help", "python -c pass", "s more", 0.3, more, seconds)]


def study(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """A comparison of eight runs of 2,000 rounds, on one core and on all cores, start and report included."""
    seconds: dict[str, list[float]] = {"1 thread": [], f"{cores} threads": []}
    for turn in range(repeats):
        for name, threads in zip(seconds, (1, cores), strict=True):
            if turn % 4:  # each takes long: a quarter of the turns is enough
                continue
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable, "-P", "-m", "drdsgd", "compare", "--dataset", "digits", "--devices", "25",
                    "--seeds", "4", "--rounds", "2000", "--batch-size", "87", "--eval-every", "50",
                    "--threads", str(threads), "--out", f"{folder}/out",
                ]  # fmt: skip
                begun = time.perf_counter()
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise Died(f"a comparison of the benchmark failed: {' '.join(done.stderr.split())}")
                seconds[name].append(time.perf_counter() - begun)
        tick()
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    what = f"8 runs on {cores} cores"
    return [Result("study", what, "on one core", "times faster", 1.8, ratios, seconds)]


Case = Callable[[int, int, Tick], list[Result]]
CASES: dict[str, Case] = {
    "mlp": mlp, "cnn": cnn, "load": load, "scale": scale, "evaluation": evaluation, "study": study, "start": start,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- all together


def run(
    names: Sequence[str], repeats: int, tick: Callable[[float, str], None] = lambda done, name: None
) -> Iterator[list[Result]]:
    """Run cases on all cores, one by one; `tick` gets the number of cases done, in fractions, and the current case."""
    for number, name in enumerate(names):
        tick(number, name)
        yield CASES[name](default_threads(), repeats, _counted(tick, number, repeats, name))


def _counted(tick: Callable[[float, str], None], number: int, repeats: int, name: str) -> Tick:
    turn = itertools.count(1)
    return lambda: tick(number + next(turn) / repeats, name)


def costs(results: Sequence[Result]) -> dict[int, list[float]]:
    """Seconds per device and round by the number of devices, from the case `scale`."""
    found = [r.seconds for r in results if r.case == "scale" and r.seconds]
    return {int(name.removeprefix("K=")): seconds for name, seconds in found[0].items()} if found else {}


def write(results: Sequence[Result], path: Path) -> None:
    """All numbers as JSON, with the machine they were measured on."""
    import torch

    machine = {
        "cores": default_threads(),
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    write_text(path, json.dumps({"machine": machine, "results": [r.to_json() for r in results]}, indent=1) + "\n")


def table(results: Sequence[Result]) -> Table:
    """The results, for a terminal."""
    from rich.table import Table

    lines = Table("what", "against", "median", "low to high", "target", "", box=None, pad_edge=False)
    for r in results:
        bound = "" if r.target is None else f"{'at least' if r.unit == 'times faster' else 'at most'} {r.target:g}"
        verdict = {True: "reached", False: "not reached", None: ""}[r.reached]
        lines.add_row(
            r.what, r.against, f"{r.median:.2f} {r.unit}", f"{min(r.turns):.2f} to {max(r.turns):.2f}", bound, verdict
        )
    return lines
