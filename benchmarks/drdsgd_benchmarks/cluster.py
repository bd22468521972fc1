"""The cost of a network per device, and what 10,000 and a million devices would need: the numbers of docs/cluster.md.

    python -m drdsgd_benchmarks.cluster --json docs/cluster.json       measure, and print the page's tables
    python -m drdsgd_benchmarks.cluster --from docs/cluster.json       print them from what was measured

It measures rounds of an MLP on one core (the paper's batch size at K = 100, T = 300), the worked example of the page,
and the time to build the networks and to place their devices on ranks. The rest is calculated from that, for a torus
and links of 10 Gbit/s between ranks.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from drdsgd.topology import graphs, mixing
from drdsgd_benchmarks.ranks import once

EXAMPLE = (
    "--devices 1000 --graph torus --dataset synthetic --model mlp:64 --algorithm dr-dsgd --mu 2 --eta 0.1 "
    "--rounds 100 --batch-size 20 --eval-every 50"
)
# devices and ranks; more than a thousand ranks are more than the sockets that a process may usually have
NETWORKS = [(1_000, 10), (10_000, 100), (1_000_000, 1_000)]
PARAMETERS, BATCH, BITS = 109_386, 173, 10e9


def building(K: int, ranks: int) -> dict[str, float]:
    """The cost of what every process does before the first round of K devices."""
    script = f"""
import time, resource
from drdsgd import graphs, mixing
from drdsgd.engines import placement
begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
graph = graphs.torus({K})
W = mixing.metropolis(graph)
placed = placement.place(graph, {ranks})
seconds, memory = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(seconds, memory * 1024, placement.crossing(graph, placed) / {ranks})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, memory, rows = map(float, done.stdout.split())
    return {"K": K, "ranks": ranks, "seconds": seconds, "bytes": memory, "rows of a rank": rows}


def rho(K: int) -> dict[str, float]:
    """How long the first process works on rho of K devices."""
    W = mixing.metropolis(graphs.torus(K))
    begun = time.perf_counter()
    mixing.rho_over_time(W)
    return {"K": K, "seconds": time.perf_counter() - begun}


def example() -> dict[str, Any]:
    """The page's run of 1,000 devices on two ranks."""
    begun = time.perf_counter()
    last = once(2, EXAMPLE.split())
    whole = time.perf_counter() - begun
    return {
        "seconds": whole,
        "ms per round": 1e3 * last["seconds"] / last["round"],
        "exchange": last["exchange_seconds"] / last["seconds"],
        "KiB per round": last["bytes_between_ranks"] / last["round"] / 1024,
        "MiB of a rank": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "bytes of a line per device": len(json.dumps(last)) / 1000,
    }


def measure() -> dict[str, Any]:
    """All costs."""
    arguments = [
        "--algorithm", "dr-dsgd", "--model", "mlp", "--dataset", "fashion-mnist", "--devices", "100",
        "--graph", "torus", "--rounds", "20", "--eta", "0.1", "--batch-size", str(BATCH), "--eval-every", "20",
        "--checkpoint-every", "20",
    ]  # fmt: skip
    found = example()  # first: the largest process of all so far is one of its ranks
    rounds = sorted(once(1, arguments)["seconds"] for _ in range(3))
    return {
        "example": found,
        "ms per device and round": 1e3 * rounds[1] / 20 / 100,
        "building": [building(K, ranks) for K, ranks in NETWORKS],
        "rho": [rho(10_000), rho(100_000)],
    }


def tables(costs: dict[str, Any]) -> list[str]:
    """The lines of the page that say numbers."""
    e, model = costs["example"], 4 * PARAMETERS
    lines = [
        f"It took {e['seconds']:.0f} s in all, {e['ms per round']:.0f} ms a round, {100 * e['exchange']:.0f} % of them "
        f"in exchange; {e['KiB per round']:.0f} KiB crossed between the two ranks in a round, and a rank had "
        f"{e['MiB of a rank']:.0f} MiB.",
        "| devices | ranks | compute a round | a rank receives a round | that is, at 10 Gbit/s | models of a rank "
        "| network, on every rank | a line of metrics.jsonl |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in costs["building"]:
        K, hosted, rows = one["K"], one["K"] // one["ranks"], one["rows of a rank"]
        compute, coming = hosted * costs["ms per device and round"] / 1e3, rows * model
        # theta, one more state of its size, and what comes
        held = (2 * hosted + rows) * model
        lines.append(
            f"| {K:,} | {one['ranks']:,} | {compute:.2f} s | {coming / 1e6:.0f} MB | {8 * coming / BITS:.2f} s "
            f"| {held / 1e9:.2f} GB | {one['seconds']:.1f} s, {one['bytes'] / 1e9:.2f} GB "
            f"| {e['bytes of a line per device'] * K / 1e6:.1f} MB |"
        )
    # where everybody is linked with a third of all, a rank needs nearly all models of others
    K, ranks = NETWORKS[1]
    coming = (K - K // ranks) * model
    seconds = 8 * coming / BITS
    lines.append(f"at {K:,} devices {coming / 1e9:.1f} GB a round for each rank, {seconds:.1f} s at 10 Gbit/s")
    small, large = costs["rho"]
    lines.append(
        f"took {small['seconds']:.1f} s for {small['K']:,} devices and {large['seconds']:.0f} s for {large['K']:,}"
    )
    return lines


def main(
    json_out: Annotated[Path | None, typer.Option("--json")] = None,
    json_in: Annotated[Path | None, typer.Option("--from")] = None,
) -> None:
    """Measure, or print what was measured."""
    costs = measure() if json_in is None else json.loads(json_in.read_text())
    if json_out is not None:
        json_out.write_text(json.dumps(costs, indent=2) + "\n")
    print("\n".join(tables(costs)))


if __name__ == "__main__":
    typer.run(main)
