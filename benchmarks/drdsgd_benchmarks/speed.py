"""How fast is it on this machine? Ratios within one run, against a plain loop and against the bare arithmetic.

A case compares sides that take turns (`turns`). The result is the median of the ratios of two turns of the same repeat,
with the lowest and the highest. Where a side may choose its threads (1, 2, 4, ... all cores), its memory format or the
library of its products, it is run with each, and its best counts.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drdsgd.errors import Died
from drdsgd.experiments.config import default_threads
from drdsgd_benchmarks import clients
from drdsgd_benchmarks.machine import features
from drdsgd_benchmarks.ranks import once
from drdsgd_benchmarks.results import Result
from drdsgd_benchmarks.turns import Spec, Tick, Turns, each_count, in_turns, ratios, started

__all__ = ["CASES", "Case", "run"]

MLP: dict[str, Any] = {"kind": "mlp", "K": 25, "B": 87}
CNN: dict[str, Any] = {"kind": "cnn", "K": 10, "B": 55}
MANY: dict[str, Any] = {"kind": "mlp", "K": 1_000, "B": 32, "degree": 6, "n": 32}
SCALE = (25, 100, 1_000, 10_000)
_D = 109_386  # parameters of the MLP
# how `trajectory` is told to multiply in bfloat16, and the processors whose instructions make that fast
BFLOAT16 = {"precision": "bfloat16"}
BFLOAT16_FEATURES = {"avx512_bf16", "amx_bf16"}
# cases that take long have this part of the turns
FEWER = 4


# --------------------------------------------------------------------------------------------------- the cases


def mlp(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """A round of the paper's MLP (K=25, B=87) against the plain loop, and against its bare products."""
    from drdsgd_benchmarks.sides import onednn_is_exact

    libraries = ["MKL", "oneDNN"] if onednn_is_exact() else ["MKL"]
    bare: dict[str, Spec] = {}
    for library in libraries:
        shape = {"library": library, "K": MLP["K"], "B": MLP["B"]}
        bare |= each_count(f"products by {library}", "products", cores, pool=False, **shape)
        blocks = ("products", {"threads": cores, "pool": True, **shape})
        bare[f"products by {library} in blocks, {cores} threads"] = blocks
    turns = in_turns(
        {
            **each_count("drdsgd", "ours", cores, **MLP),
            **_in_bfloat16(cores, MLP),
            **each_count("plain loop", "plain", cores, **MLP),
            **bare,
        },
        repeats,
        tick,
    )
    ours, plain, products = (turns.best(name) for name in ("drdsgd", "plain loop", "products"))
    wins = "oneDNN" in products
    note = f"the fastest {products}"
    return [
        Result("mlp", "MLP round", "plain loop", "times faster", 6 if wins else 4.5, ratios(turns, plain, ours),
               turns.seconds, note),
        *_of_bfloat16("mlp", "MLP round", turns, plain, 7),
        Result("mlp", "MLP round", "bare matrix products", "times the time", 1.6, ratios(turns, ours, products),
               note=note),
    ]  # fmt: skip


def cnn(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """A round of the paper's CNN (K=10, B=55) against the plain loop, in both memory formats."""
    turns = in_turns(
        {
            **each_count("drdsgd", "ours", cores, **CNN),
            **_in_bfloat16(cores, CNN),
            **each_count("plain loop", "plain", cores, **CNN),
            **each_count("plain loop, channels last", "plain", cores, channels_last=True, **CNN),
        },
        repeats,
        tick,
    )
    plain = turns.best("plain loop")
    faster = ratios(turns, plain, turns.best("drdsgd"))
    return [
        Result("cnn", "CNN round", "plain loop", "times faster", 1.3, faster, turns.seconds),
        *_of_bfloat16("cnn", "CNN round", turns, plain, 1.8),
    ]


def _in_bfloat16(cores: int, settings: dict[str, Any]) -> dict[str, Spec]:
    """The same round with products in bfloat16; nothing where the option or the instructions are missing."""
    from drdsgd_benchmarks.sides import has

    if not (all(map(has, BFLOAT16)) and BFLOAT16_FEATURES.intersection(features())):
        return {}
    return {f"bfloat16, {cores} threads": ("ours", {"threads": cores, "options": BFLOAT16, **settings})}


def _of_bfloat16(case: str, what: str, turns: Turns, plain: str, target: float) -> list[Result]:
    if not any(name.startswith("bfloat16") for name in turns.seconds):
        return []
    faster = ratios(turns, plain, turns.best("bfloat16"))
    return [Result(case, f"{what}, bfloat16", "plain loop", "times faster", target, faster)]


def methods(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """Methods with momentum, tracking and messages of 4 bits against DSGD: K=25 (B=87), and K=1,000 (B=32)."""
    titles = {"dr-gt-adam": "DR-GTAdam", "qg-dsgdm": "QG-DSGDm", "choco-sgd": "CHOCO-SGD"}
    targets = {"dr-gt-adam": 2.6, "qg-dsgdm": 1.8, "choco-sgd": 1.8}

    def sides(names: Sequence[str], settings: dict[str, Any]) -> dict[str, Spec]:
        return {name: ("ours", {"threads": cores, "algorithm": name, **settings}) for name in names}

    few = in_turns(sides(["dsgd", *titles], MLP), repeats, lambda: None)  # the other half takes most of the time
    results = [
        Result("methods", f"{title}, 4 bits, K=25", "DSGD", "times the time", targets[name],
               ratios(few, name, "dsgd"), few.seconds if name == "dr-gt-adam" else {})
        for name, title in titles.items()
    ]  # fmt: skip
    K, name = MANY["K"], "dr-gt-adam"
    if not _fits(16 * K * _D * 4):
        print(f"bench methods: memory is not enough for {name} at K={K:,}", file=sys.stderr)
        return results
    many = in_turns(sides(["dsgd", name], MANY), repeats, tick)
    what = f"{titles[name]}, 4 bits"
    slower = ratios(many, name, "dsgd")
    return [
        *results,
        Result("methods", f"{what}, K={K:,}", "DSGD", "times the time", 4, slower, many.seconds),
        _memory("methods", what, K, many.own_bytes[name], 9.5),
    ]


def _memory(case: str, what: str, K: int, own_bytes: float, target: float) -> Result:
    """The peak of a process, less what it had before the run was prepared, in sizes of theta."""
    sizes = [own_bytes / (K * _D * 4)]
    return Result(case, f"peak memory of {what}, K={K:,}", "size of theta", "times the size", target, sizes)


def scale(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """The cost of a device among many (MLP, B=32, random graph with 6 neighbours each), and the memory.

    Memory is the peak of the process, less what it had before the run was prepared; so the data do not count.
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
        results.append(_memory("scale", "a round", K, turns.own_bytes[f"K={K}"], 2.5))
    return results


def _fits(size: float) -> bool:
    """Whether this number of bytes is available; True where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return True
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return not available or size < available[0]


def load(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """Rounds while another process keeps one core busy."""
    models = {"MLP": MLP, "CNN": CNN}
    with started({kind: ("ours", {"threads": cores, **settings}) for kind, settings in models.items()}) as sides:
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
            "times the time", 3, ratios(turns, f"{kind}, busy", f"{kind}, quiet"), seconds if kind == "CNN" else {},
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


def evaluation(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """The cost of evaluating all 25 devices, relative to a round: both kinds of model, 10,000 images in all."""
    settings = {"threads": cores, "test": 10_000, **MLP}
    turns = in_turns(
        {"round": ("ours", settings), "round and evaluation": ("ours", {"eval_every": 1, **settings})}, repeats, tick
    )
    extra = [ratio - 1 for ratio in ratios(turns, "round and evaluation", "round")]
    what = "evaluation, 10,000 images"
    return [Result("evaluation", what, "MLP round", "times the time", 3, extra, turns.seconds)]


def cifar(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """The share of evaluation in a default run of the paper's CNN: K=10, 100 rounds, images as CIFAR-10's."""
    seconds: dict[str, list[float]] = {"rounds": [], "evaluations": []}
    for turn in range(repeats):
        if turn % FEWER == 0:
            done = _succeeds([sys.executable, "-P", "-m", "drdsgd_benchmarks.cifar", str(cores)])
            for name, value in json.loads(done).items():
                seconds[name].append(value)
        tick()
    share = [100 * e / (r + e) for r, e in zip(*seconds.values(), strict=True)]
    return [Result("cifar", "evaluation, CNN, 100 rounds", "the whole run", "% of the run", 35, share, seconds)]


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


def demo(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """How long `drdsgd demo` takes."""
    seconds = []
    for turn in range(repeats):
        if turn % FEWER == 0:
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(_timed([sys.executable, "-P", "-m", "drdsgd", "demo", "--out", f"{folder}/out"]))
        tick()
    return [Result("demo", "drdsgd demo", "", "s", 10, seconds)]


def ranks(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """Rounds of K=100 devices: two ranks of one thread each, against two threads of one process."""
    if cores < 2:
        print("bench ranks: two ranks need two cores", file=sys.stderr)
        return []
    seconds: dict[str, list[float]] = {"2 ranks": [], "2 threads": []}
    with tempfile.TemporaryDirectory() as folder:
        clients.write(Path(folder), K=100, n=200, test=2)
        arguments = [
            "--dataset", folder, "--model", "mlp", "--algorithm", "dr-dsgd", "--eta", str(0.01), "--rounds", "20",
            "--batch-size", "173", "--eval-every", "20", "--checkpoint-every", "20",
        ]  # fmt: skip
        for turn in range(repeats):
            for name in list(seconds)[:: -1 if turn % 4 else 1]:
                if turn % 2:  # every second turn is enough
                    continue
                processes, threads = (2, 1) if name == "2 ranks" else (None, 2)
                seconds[name].append(once(processes, arguments, threads)["seconds"])
            tick()
    slower = [a / b for a, b in zip(*seconds.values(), strict=True)]
    return [Result("ranks", "2 ranks, K=100", "2 threads", "times the time", 1.05, slower, seconds)]


def study(cores: int, repeats: int, tick: Tick) -> list[Result]:
    """A comparison of eight runs of 2,000 rounds, on one core and on all cores, start and report included."""
    seconds: dict[str, list[float]] = {"1 thread": [], f"{cores} threads": []}
    for turn in range(repeats):
        for name, threads in zip(seconds, (1, cores), strict=True):
            if turn % FEWER:
                continue
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable, "-P", "-m", "drdsgd", "compare", "--dataset", "digits", "--devices", "25",
                    "--seeds", "4", "--rounds", "2000", "--batch-size", "87", "--eval-every", "50",
                    "--threads", str(threads), "--out", f"{folder}/out",
                ]  # fmt: skip
                seconds[name].append(_timed(command))
        tick()
    faster = [a / b for a, b in zip(*seconds.values(), strict=True)]
    return [Result("study", f"8 runs on {cores} cores", "on one core", "times faster", 1.8, faster, seconds)]


def _timed(command: Sequence[str]) -> float:
    """Seconds of a command that must succeed."""
    begun = time.perf_counter()
    _succeeds(command)
    return time.perf_counter() - begun


def _succeeds(command: Sequence[str]) -> str:
    """What a command prints that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Died(f"a command of the benchmark failed: {' '.join(done.stderr.split())}")
    return done.stdout


Case = Callable[[int, int, Tick], list[Result]]
CASES: dict[str, Case] = {
    "mlp": mlp, "cnn": cnn, "methods": methods, "scale": scale, "load": load, "evaluation": evaluation,
    "cifar": cifar, "ranks": ranks, "study": study, "demo": demo, "start": start,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- all together


def run(
    names: Sequence[str], repeats: int, tick: Callable[[float, str], None] = lambda done, name: None
) -> Iterator[tuple[str, float, list[Result]]]:
    """Run cases on all cores, one by one: their names, how many seconds they took, and their results.

    `tick` gets the number of cases done, in fractions, and the current case.
    """
    for number, name in enumerate(names):
        tick(number, name)
        begun = time.perf_counter()
        found = CASES[name](default_threads(), repeats, _counted(tick, number, repeats, name))
        yield name, time.perf_counter() - begun, found


def _counted(tick: Callable[[float, str], None], number: int, repeats: int, name: str) -> Tick:
    turn = itertools.count(1)
    return lambda: tick(number + next(turn) / repeats, name)
