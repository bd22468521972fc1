"""The time of an exchange between two devices, against zenoh alone with the same bytes and processes.

    python -m drdsgd_benchmarks.network [--out docs/network.json]

Two processes with one thread each are connected as devices are (mutual TLS, access control). They alternate between
exchanging a model as a round does (`links.exchange`: headers, checks, both ends agree) and as zenoh alone does: each
puts the bytes and waits for the other's. The ratio of the medians is printed; single times on a shared machine mean
little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

REPEATS = 150
RAW = bytes(32)  # in place of a header
SIZES = {"MLP of the paper, Fashion-MNIST": 109_386, "CNN of the paper, CIFAR-10": 1_149_770, "ten million": 10_000_000}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="all numbers, as JSON")
    out = parser.parse_args().out
    rows = {}
    for name, size in SIZES.items():
        rows[name] = _measured(size)
        print(said(name, rows[name]))
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n")


def said(name: str, row: dict[str, float]) -> str:
    """A row of the table in docs/network.md."""
    return f"| {name} | {4 * row['numbers'] / 1e6:.1f} MB | {row['ratio']:.2f} |"


def _measured(size: int) -> dict[str, float]:
    from drdsgd.experiments.config import Experiment
    from drdsgd.network import deployment
    from drdsgd.network.deployment import Place

    with tempfile.TemporaryDirectory() as folder:
        e = Experiment(dataset="synthetic", devices=2, graph="complete", threads=1)
        where = [Place(f"device-{i}", f"127.0.0.1:{7600 + i}") for i in range(2)]
        deployment.make(e, Path(folder) / "net", where, days=1.0, metrics_port=None)
        context = multiprocessing.get_context("spawn")
        near, far = context.Pipe()
        processes = [context.Process(target=_device, args=(Path(folder) / "net", i, size, far)) for i in range(2)]
        for process in processes:
            process.start()
        times: list[dict[str, list[float]]] = [near.recv(), near.recv()]
        for process in processes:
            process.join()
    # the mean of both ends, because one may begin a little before the other
    ours, zenoh = (
        statistics.median(sum(both) / 2 for both in zip(times[0][kind], times[1][kind], strict=True))
        for kind in ("exchange", "zenoh")
    )
    return {"numbers": size, "ratio": ours / zenoh, "exchange_ms": 1000 * ours, "zenoh_ms": 1000 * zenoh}


def _device(folder: Path, i: int, size: int, pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from drdsgd.experiments.build import make_graph, make_mixing
    from drdsgd.network import deployment
    from drdsgd.network.engine import NetworkEngine
    from drdsgd.network.links import Links
    from drdsgd.network.transport import Transport

    torch.set_num_threads(1)
    path = deployment.devices(folder)[i]
    device = deployment.load(path)
    e = deployment.experiment_of(device, path.parent)

    class Carrier(Transport):
        """Gives messages to the links, but only counts those of zenoh's turn."""

        came = threading.Semaphore(0)

        def attach(self, links: Links) -> None:
            receive = links.receive

            def take(j: int, header: bytes, payload: Callable[[], bytes], length: int) -> None:
                if header == RAW:
                    payload()
                    self.came.release()
                else:
                    receive(j, header, payload, length)

            kept: Any = links
            kept.receive = take
            super().attach(links)

    carrier = Carrier(device, path.parent, 4 * size, lambda event, /, **about: None)
    links = Links(
        i, {1 - i: f"device-{1 - i}"}, send=carrier.send, digest=bytes(32), dtype=torch.float32, size=size, most=size,
        rounds=10**6, deadline=60.0,
    )  # fmt: skip
    carrier.attach(links)
    assert links.meet(60.0) == []
    engine = NetworkEngine(make_mixing(e, make_graph(e)), i, links, torch.device("cpu"))
    x = torch.randn(1, size)
    payload = x.numpy().tobytes()
    one = torch.ones(1, 1)
    times: dict[str, list[float]] = {"exchange": [], "zenoh": []}
    for t in range(2 * REPEATS):
        engine.mix(2 * t)(one)  # both ends are ready
        if t % 2 == 0:
            begun = time.perf_counter()
            links.exchange(2 * t + 1, 0, x, [1 - i])
            times["exchange"].append(time.perf_counter() - begun)
        else:
            begun = time.perf_counter()
            carrier.send(1 - i, RAW, payload)
            assert carrier.came.acquire(timeout=60)
            times["zenoh"].append(time.perf_counter() - begun)
    pipe.send(times)
    links.leave(10**6, 10.0)
    carrier.close()


if __name__ == "__main__":
    main()
