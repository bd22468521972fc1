"""Where the time of a round and of an evaluation goes, on one core: shares of torch's operations, and their speed.

    python -m drdsgd_benchmarks.where_time_goes [--out docs/performance-time.json]

First come the products of the MLP's round (K=25, B=87) next to one large product, in GFLOPS, and mixing of 1,000 models
with 6 neighbours each, as the engine does it and by a CSR tensor. Then come the operations that take most time in
rounds of an MLP and a CNN and in an evaluation of 10,000 images, as torch's profiler sees them (profiling takes time,
too).
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from drdsgd.core.flat import aligned
from drdsgd.core.parallel import one_thread
from drdsgd.engines.local import LocalEngine
from drdsgd.engines.products import column_blocks
from drdsgd.files import write_text
from drdsgd.topology import graphs
from drdsgd.topology.mixing import metropolis
from drdsgd_benchmarks.machine import machine
from drdsgd_benchmarks.sides import ours

K, B, INSIDE, OUT = 25, 87, 784, 128


def seconds(step: Callable[[], object], repeats: int = 25) -> float:
    """The median time of a step, after warm-up."""
    times = []
    for turn in range(repeats + 3):
        begun = time.perf_counter()
        step()
        if turn >= 3:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def products() -> None:
    """The speed of the round's large products, and of one that is larger."""
    x, delta, out = torch.rand(K, B, INSIDE), torch.rand(K, B, OUT), torch.empty(K, B, OUT)
    theta = aligned(torch.rand(K, INSIDE * OUT + 10))
    weight = theta[:, : INSIDE * OUT].view(K, OUT, INSIDE)
    unaligned = torch.rand(K, INSIDE * OUT + 10)[:, : INSIDE * OUT].view(K, OUT, INSIDE)
    W, large = torch.rand(K, K), torch.rand(1024, 1024)
    of_a_layer, of_mixing = 2 * K * B * INSIDE * OUT, 2 * K * K * INSIDE * OUT
    steps: dict[str, tuple[Callable[[], object], int]] = {
        "one large product": (lambda: large @ large, 2 * 1024**3),
        "forward, first layer": (lambda: torch.bmm(x, weight.mT, out=out), of_a_layer),
        "its weights' gradient, in place": (lambda: weight.baddbmm_(delta.mT, x, alpha=1e-9), of_a_layer),
        "the same, rows not aligned": (lambda: unaligned.baddbmm_(delta.mT, x, alpha=1e-9), of_a_layer),
        "dense mixing": (lambda: W @ theta[:, : 2**13], of_mixing * 2**13 // (INSIDE * OUT)),
    }
    for name, (step, operations) in steps.items():
        print(f"{name:34s} {operations / seconds(step) / 1e9:6.1f} GFLOPS")


def mixing() -> None:
    """Mixing along links, next to the product with a sparse tensor, on the same columns at a time."""
    W = metropolis(graphs.random_regular(1000, 6)).at(0)
    theta = aligned(torch.rand(1000, INSIDE * OUT))
    mix = LocalEngine(metropolis(graphs.random_regular(1000, 6)), torch.float32).mix(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls CSR tensors beta
        sparse = torch.sparse_csr_tensor(
            torch.as_tensor(W.indptr), torch.as_tensor(W.indices), torch.as_tensor(W.data, dtype=torch.float32), W.shape
        )

    def by_csr() -> None:
        for some in column_blocks(theta):
            theta[:, some] = sparse @ theta[:, some]

    engine, csr = seconds(lambda: mix(theta, donate=True), repeats=5), seconds(by_csr, repeats=5)
    print(f"{'mixing 1,000 models by a CSR tensor':34s} {csr / engine:5.1f} times the engine's time")


def shares(what: str, step: Callable[[], object], rounds: int) -> dict[str, float]:
    """The operations that take most of the time, and their shares of it in percent."""
    for _ in range(3):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(rounds):
            step()
    operations = sorted(seen.key_averages(), key=lambda one: -one.self_cpu_time_total)
    total = sum(one.self_cpu_time_total for one in operations)
    found = {one.key: 100 * one.self_cpu_time_total / total for one in operations[:8]}
    print(f"\n{what}")
    for name, share in found.items():
        print(f"  {name:38s} {share:5.1f} %")
    return found


def main(out: Annotated[Path | None, typer.Option(help="file for the shares, as JSON")] = None) -> None:
    """Print all of it."""
    with one_thread():
        products()
        mixing()
        evaluating: dict[str, Any] = {"kind": "mlp", "K": K, "B": 1, "eval_every": 1, "test": 10_000}
        steps = {
            "an MLP round": (ours(threads=1, kind="mlp", K=K, B=B), 20),
            "a round of DR-GTAdam with 4 bits": (ours(threads=1, algorithm="dr-gt-adam", kind="mlp", K=K, B=B), 20),
            "an evaluation of 10,000 images (with a round of one sample per device)": (
                ours(threads=1, **evaluating),
                10,
            ),
            "a CNN round": (ours(threads=1, kind="cnn", K=10, B=55), 3),
        }
        found = {what: shares(what, step, rounds) for what, (step, rounds) in steps.items()}
    if out is not None:
        write_text(out, json.dumps({"machine": machine(), "shares": found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
