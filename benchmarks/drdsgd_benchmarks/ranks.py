"""How much faster are two processes than one? The same experiment under torchrun, each rank on one thread.

    python -m drdsgd_benchmarks.ranks                                  Fashion-MNIST, MLP, K=100, Erdos-Renyi p=0.3
    python -m drdsgd_benchmarks.ranks --graph torus --ranks 1,2,4

Runs come in pairs, and every second pair runs in the opposite order, because the machine may be busy with other work.
The time is that of the rounds (`seconds` in metrics.jsonl), with exchanges and without evaluations. Beside it stand
the bytes that ranks sent each other per round, and the share of time that the exchange took.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.errors import Died


def once(ranks: int | None, arguments: Sequence[str], threads: int = 1) -> dict[str, Any]:
    """The last evaluation of a run on this number of ranks; with None, of one without torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            sys.executable, *([] if ranks is None else launcher),
            "-m", "drdsgd", "train", *arguments, "--threads", str(threads), "--out", str(out),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Died(f"a run of the benchmark failed: {' '.join(done.stderr.split())}")
        last: dict[str, Any] = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        return last


def main(
    ranks: Annotated[str, typer.Option(help="numbers of ranks; the others are compared with the first")] = "1,2",
    pairs: int = 5,
    devices: int = 100,
    graph: str = "erdos-renyi",
    dataset: str = "fashion-mnist",
    rounds: int = 20,
    batch_size: Annotated[int, typer.Option(help="the paper's sqrt(K T) at K = 100, T = 300 is 173")] = 173,
    json_out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Time the same experiment on several numbers of ranks."""
    arguments = [
        "--algorithm", "dr-dsgd", "--model", "mlp", "--dataset", dataset, "--devices", str(devices), "--graph", graph,
        "--rounds", str(rounds), "--eta", "0.1", "--batch-size", str(batch_size), "--eval-every", str(rounds),
        "--checkpoint-every", str(rounds),
    ]  # fmt: skip
    sizes = [int(one) for one in ranks.split(",")]
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    for pair in range(pairs):
        for size in sizes if pair % 2 == 0 else reversed(sizes):
            found[size].append(once(size, arguments))
        times = {size: some[-1]["seconds"] / rounds for size, some in found.items()}
        print(" ".join(f"{size} ranks {1e3 * seconds:.0f} ms/round" for size, seconds in times.items()), flush=True)
    result = [summary(found[sizes[0]], found[size], sizes[0], size, graph, rounds) for size in sizes[1:]]
    print("\n".join(map(said, result)))
    if json_out is not None:
        before = json.loads(json_out.read_text()) if json_out.exists() else []
        kept = [one for one in before if one["graph"] != graph]
        json_out.write_text(json.dumps([*kept, *result], indent=2) + "\n")


def summary(
    few: list[dict[str, Any]], many: list[dict[str, Any]], a: int, b: int, graph: str, rounds: int
) -> dict[str, Any]:
    """The comparison of pairs of runs on `a` and on `b` ranks."""
    ratios = [one["seconds"] / other["seconds"] for one, other in zip(few, many, strict=True)]
    return {
        "graph": graph, "few": a, "many": b, "ratios": ratios,
        "MiB per round": many[-1]["bytes_between_ranks"] / rounds / 2**20,
        "exchange": statistics.median(one["exchange_seconds"] / one["seconds"] for one in many),
    }  # fmt: skip


def said(result: dict[str, Any]) -> str:
    """A result in words.

    >>> said({"graph": "ring", "few": 1, "many": 2, "ratios": [1.7, 1.8, 1.9], "MiB per round": 1, "exchange": 0.1})
    'ring: 2 ranks are 1.80 times as fast as 1 (1.70 to 1.90, 3 pairs); 1.0 MiB per round between ranks, 10 % ...'
    """
    ratios = result["ratios"]
    return (
        f"{result['graph']}: {result['many']} ranks are {statistics.median(ratios):.2f} times as fast as "
        f"{result['few']} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs); "
        f"{result['MiB per round']:.1f} MiB per round between ranks, {100 * result['exchange']:.0f} % in exchange"
    )


if __name__ == "__main__":
    typer.run(main)
