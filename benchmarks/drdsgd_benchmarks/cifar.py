"""Where the time of a default CIFAR-10 run goes: into its rounds, or into its evaluations.

    python -m drdsgd_benchmarks.cifar 2            on two threads

The paper's CNN, 10 devices, 100 rounds and the default batch size and evaluations of `drdsgd train`. The images are
made up, as many and as large as CIFAR-10's. It prints the seconds of each as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from drdsgd.core.algorithms import dr_dsgd
from drdsgd.training.loop import trajectory
from drdsgd_benchmarks.sides import ETA, MU, problem

__all__ = ["run"]

K, ROUNDS, TRAIN, TEST = 10, 100, 50_000, 10_000


def run(threads: int, rounds: int = ROUNDS, train: int = TRAIN, test: int = TEST) -> dict[str, float]:
    """The seconds of all rounds and of all evaluations of a run."""
    model, data, graph = problem("cnn", K, n=train // K, test=test)
    begun = time.perf_counter()
    # all else as is the default; with the default step size the run may diverge on labels that nothing explains
    for progress in trajectory(model, data, graph, dr_dsgd(ETA, MU), rounds=rounds, threads=threads):
        last = progress
    return {"rounds": last.seconds, "evaluations": time.perf_counter() - begun - last.seconds}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
