"""The sides of a comparison: each is a process of its own, with its own threads, that works when asked.

A side is a function that prepares and returns a `step`. The process says `ready`, then for every number it reads
takes that number of steps and answers with their seconds.

    python -m drdsgd_benchmarks.sides NAME '{"threads": 2, ...}'
"""

from __future__ import annotations

import inspect
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from drdsgd import models
from drdsgd.core.algorithms import choco_sgd, dr_dsgd, dr_gt_adam, dsgd, qg_dsgdm
from drdsgd.core.method import Method
from drdsgd.core.parallel import blocks, each_of, one_thread
from drdsgd.data.devices import Devices, Samples
from drdsgd.topology import graphs
from drdsgd.training.loop import train, trajectory
from drdsgd_benchmarks.plain import PlainLoop, datasets, shuffling

__all__ = ["SIDES", "has", "main", "onednn_is_exact"]

Step = Callable[[], Any]
ETA, MU = 0.01, 6.0
WARM_UP_SECONDS = 0.5
# lets torch hand float32 products to oneDNN
ONEDNN = "bf16"


def made_up(K: int, n: int, test: int, shape: tuple[int, ...]) -> Devices:
    """Random images, as bytes, and labels: n for every device, and `test` for all together."""
    generator = torch.Generator().manual_seed(0)

    def samples(sizes: torch.Tensor) -> Samples:
        N = int(sizes.sum())
        x = torch.randint(0, 256, (N, *shape), dtype=torch.uint8, generator=generator)
        return Samples(x, torch.randint(0, 10, (N,), generator=generator), sizes)

    tests = torch.full((K,), test // K)
    tests[: test % K] += 1
    return Devices(samples(torch.full((K,), n)), samples(tests), 10, torch.tensor(1 / 255), torch.tensor(0.0))


def problem(kind: str, K: int, degree: int | None = None, n: int = 200, test: int | None = None) -> tuple[Any, ...]:
    """The paper's model, data for K devices, and a graph: random with p = 0.3, or regular of that degree."""
    torch.manual_seed(0)
    shape = (1, 28, 28) if kind == "mlp" else (3, 32, 32)
    model = models.mlp(shape, 10) if kind == "mlp" else models.cnn(shape, 10)
    graph = graphs.erdos_renyi(K, 0.3, seed=0) if degree is None else graphs.random_regular(K, degree, seed=0)
    return model, made_up(K, n, K if test is None else test, shape), graph


# all with the step size of the plain loop, but for Adam, whose steps are as long as its step size
ALGORITHMS: dict[str, Callable[[], Method]] = {
    "dr-dsgd": lambda: dr_dsgd(ETA, MU),
    "dsgd": lambda: dsgd(ETA),
    "dr-gt-adam": lambda: dr_gt_adam(ETA / 10),  # messages of 4 bits, as is its default
    "qg-dsgdm": lambda: qg_dsgdm(ETA, compression="quantize:4"),
    "choco-sgd": lambda: choco_sgd(ETA, compression="quantize:4"),
}


def ours(
    threads: int, B: int, algorithm: str = "dr-dsgd", eval_every: int = 2**31, options: Any = None, **of: Any
) -> Step:
    """A round as `drdsgd train` takes it; `options` are further ones of `trajectory`."""

    def run(problem: tuple[Any, ...]) -> Step:
        model, data, graph = problem
        steps = trajectory(
            model, data, graph, ALGORITHMS[algorithm](), rounds=2**31, batch_size=B, eval_every=eval_every,
            threads=threads, **(options or {}),
        )  # fmt: skip
        next(steps)
        return lambda: next(steps)

    run(problem(of["kind"], K=4, degree=2, n=1))()  # loads what a process needs for any run
    given = problem(**of)
    before_the_run()
    return run(given)


def plain(threads: int, B: int, channels_last: bool = False, **of: Any) -> Step:
    """A round of the loop that one would write by hand."""
    torch.set_num_threads(threads)
    model, data, graph = problem(**of)
    loaders = shuffling(datasets(data, data.train, torch.float32), B, seed=0)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return PlainLoop(model, graph, loaders, ETA, MU, [1.0] * data.K, memory_format).round


def products(threads: int, K: int, B: int, pool: bool, library: str) -> Step:
    """The bare matrix products of an MLP's round, on torch's threads, or on ours: forward, backward, mixing.

    Into tensors of their own, and mixing by a dense matrix, as one would write them down. The library is oneDNN, or
    what torch takes by default (MKL on x86).
    """
    if library == "oneDNN":
        _onednn().fp32_precision = ONEDNN
    widths = [784, 128, 64, 10]
    d = sum(i * o + o for i, o in itertools.pairwise(widths))
    W, theta, mixed = torch.rand(K, K), torch.rand(K, d), torch.empty(K, d)
    inputs = [torch.rand(K, B, width) for width in widths]
    weights = [torch.rand(K, o, i) for i, o in itertools.pairwise(widths)]
    deltas = [torch.rand(K, B, width) for width in widths]
    out, back, gradients = ([torch.empty_like(t) for t in tensors] for tensors in (inputs, deltas, weights))

    def on_block(some: slice) -> None:
        for layer in range(3):
            torch.bmm(inputs[layer][some], weights[layer][some].mT, out=out[layer + 1][some])
        for layer in reversed(range(3)):
            torch.bmm(deltas[layer + 1][some].mT, inputs[layer][some], out=gradients[layer][some])
            if layer:
                torch.bmm(deltas[layer + 1][some], weights[layer][some], out=back[layer][some])

    def mix(some: slice) -> None:
        torch.mm(W, theta[:, some], out=mixed[:, some])

    each, parts = (each_of(threads), threads) if pool else (map, 1)

    def step() -> None:
        list(each(on_block, blocks(K, -(-K // parts))))
        list(each(mix, blocks(d, 2**13 if pool else d)))

    torch.set_num_threads(threads)
    return one_thread()(step) if pool else step


def onednn_is_exact() -> bool:
    """Whether oneDNN multiplies in float32 when torch may hand it products in bfloat16.

    Torch hands float32 products to oneDNN only if it may compute in bfloat16. On processors that have the instructions
    but no AMX it computes in float32 all the same. Where it does not, it is no library for float32 products.
    """
    matmul = _onednn()
    before = matmul.fp32_precision
    a, b = torch.rand(64, 784), torch.rand(784, 128)
    exact = a.double() @ b.double()
    try:
        matmul.fp32_precision = ONEDNN
        error = ((a @ b).double() - exact).abs().max() / exact.abs().max()
    finally:
        matmul.fp32_precision = before
    return float(error) < 1e-5


def _onednn() -> Any:
    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch has it, its types do not


def has(option: str) -> bool:
    """Whether `train` has this option; rows of options that do not exist yet are left out."""
    return option in inspect.signature(train).parameters


SIDES: dict[str, Callable[..., Step]] = {
    "ours": ours, "plain": plain, "products": products,
}  # fmt: skip


def main() -> None:
    """Prepare the side named on the command line, warm up, and time what is asked for."""
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    step = SIDES[name](**settings)
    begun, steps = time.perf_counter(), 0
    while steps < 2 or time.perf_counter() - begun < WARM_UP_SECONDS:
        step()
        steps += 1
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begun = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begun)
        print(json.dumps({"seconds": seconds, "own_bytes": _own_bytes()}), flush=True)


_before: list[int] = []


def before_the_run() -> None:
    """Take what the process has now, libraries and data included, for what it needs without the run."""
    _before[:] = [_memory("VmRSS")]


def _own_bytes() -> int:
    """The most memory that this process has had, less what it had before the run."""
    return _memory("VmHWM") - (_before[0] if _before else 0)


def _memory(what: str) -> int:
    """The process's memory now (VmRSS) or at its peak (VmHWM), in bytes; always the peak where Linux does not say.

    `getrusage` is the second choice, because its peak may be that of the process that started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


if __name__ == "__main__":
    main()
