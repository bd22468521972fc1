"""The sides of a comparison: each is a process of its own, with its own threads, that works when asked.

A side is a function that prepares and returns a `step`. The process says `ready`, then for every number it reads
takes that number of steps and answers with their seconds.

    python -m drdsgd_benchmarks.sides NAME '{"threads": 2, ...}'
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from drdsgd import models
from drdsgd.core.algorithms import dr_dsgd
from drdsgd.core.parallel import blocks, each_of, one_thread
from drdsgd.data.devices import Devices, Samples
from drdsgd.topology import graphs
from drdsgd.training.loop import trajectory
from drdsgd_benchmarks.plain import PlainLoop, datasets, shuffling

__all__ = ["SIDES", "main"]

Step = Callable[[], Any]
ETA, MU = 0.01, 6.0
WARM_UP_SECONDS = 1.0


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


def ours(threads: int, B: int, eval_every: int = 2**31, **of: Any) -> Step:
    """A round as `drdsgd train` takes it."""
    model, data, graph = problem(**of)
    steps = trajectory(
        model, data, graph, dr_dsgd(ETA, MU), rounds=2**31, batch_size=B, eval_every=eval_every, threads=threads
    )
    next(steps)
    return lambda: next(steps)


def plain(threads: int, B: int, channels_last: bool = False, **of: Any) -> Step:
    """A round of the loop that one would write by hand."""
    torch.set_num_threads(threads)
    model, data, graph = problem(**of)
    loaders = shuffling(datasets(data, data.train, torch.float32), B, seed=0)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return PlainLoop(model, graph, loaders, ETA, MU, [1.0] * data.K, memory_format).round


def products(threads: int, K: int, B: int, pool: bool) -> Step:
    """The bare matrix products of an MLP's round, on torch's threads, or on ours: forward, backward, mixing.

    Into tensors of their own, and mixing by a dense matrix, as one would write them down.
    """
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


def large_products(threads: int, side: int = 1024) -> Step:
    """One large product on every core: the arithmetic that the machine can do, 2 side^3 operations each."""
    tensors = [(torch.rand(side, side), torch.rand(side, side), torch.empty(side, side)) for _ in range(threads)]
    each = each_of(threads)
    return one_thread()(lambda: list(each(lambda abc: torch.mm(abc[0], abc[1], out=abc[2]), tensors)))


SIDES: dict[str, Callable[..., Step]] = {
    "ours": ours, "plain": plain, "products": products, "large_products": large_products,
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
        print(json.dumps({"seconds": seconds, "peak_bytes": _peak_bytes()}), flush=True)


def _peak_bytes() -> int:
    """The most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
