"""Golden runs: a tiny run of every part whose results have a number in `drdsgd.core.numerics`.

`python -m tests.laws.golden` writes the results of new runs, and of runs whose numerics were raised.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from drdsgd.engines.local import SingleProcess
from drdsgd.experiments.build import gossip_of, make_algorithm, make_data, make_mixing, make_model, options_of
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import numerics_of
from drdsgd.topology.graphs import GRAPHS
from drdsgd.topology.spectrum import rho_over_time
from drdsgd.training.loop import trajectory

FILE = Path(__file__).with_name("golden.json")
COMMAND = "python -m tests.laws.golden"

_ROBUST = {"algorithm": "dr-dsgd", "weights": "normalized", "mu": 0.5}
# the fields of a run, by the part that it is for; after a comma, another run of the same part
RUNS: dict[str, dict[str, Any]] = {
    "training": {"graph": "erdos-renyi", "p": 0.6, "dataset": "digits", "model": "logistic", "weight_decay": 0.01},
    "training, dirichlet": {"dataset": "digits", "model": "mlp:6", "partition": "dirichlet", "scaling": "standard"},
    "training, validation": {"dataset": "digits", "model": "logistic", "validation": 0.3, "eta_schedule": "linear"},
    "training, iid": {"dataset": "digits", "model": "logistic", "partition": "iid", "eta_schedule": "warmup:0.5"},
    "training, complete": {"graph": "complete", "random_labels": 2, "reference": "uniform", "eta_schedule": "cosine"},
    "training, geometric": {"graph": "geometric", "devices": 8, "eta_schedule": "exponential:0.9"},
    **{
        f"objective {name}": {"objective": name}
        for name in ("erm", "kl-dro", "kl-ball", "chi2-dro", "term", "q-ffl", "ad-gda")
    },
    "objective kl-dro, without mu": {"algorithm": "dr-dsgd", "weights": "without-mu"},
    "objective kl-dro, normalized": {**_ROBUST, "mu_schedule": "linear:0.1"},
    "loss-clip": {**_ROBUST, "loss_clip": 1.5},
    "loss-smoothing": {**_ROBUST, "loss_smoothing": 0.3},
    "weight-cap": {**_ROBUST, "weight_cap": 1.1},
    **{
        f"optimizer {name}": {"optimizer": name}
        for name in (
            "dsgd", "momentum", "quasi-global-momentum", "gradient-tracking", "gt-adam", "d2", "exact-diffusion",
            "choco",
        )
    },
    "optimizer push": {"optimizer": "push", "graph": "directed-erdos-renyi", "p": 0.6},
    "optimizer gt-adam, compressed": {"optimizer": "gt-adam", "compression": "quantize:4"},
    "compressor top": {"optimizer": "choco", "compression": "top:0.2"},
    "compressor random": {"optimizer": "choco", "compression": "random:0.2"},
    "compressor quantize": {"optimizer": "choco", "compression": "quantize:2"},
    **{
        f"baseline {name}": {"algorithm": name, "local_steps": None if name == "afl" else 2}
        for name in ("fedavg", "afl", "drfa", "q-fedavg", "fed-term", "fedrobust", "ditto", "rfa")
    },
    "baseline fedavg, some clients": {"algorithm": "fedavg", "clients": 3},
    "kernel mlp": {"model": "mlp:6,4"},
    "kernel batched": {"dataset": "digits", "model": "cnn", "execution": "batched"},
    "kernel loop": {"model": "mlp:6,4", "execution": "loop"},
    "kernel mixing": {"graph": "grid", "devices": 6, "link_failures": 0.3, "gossip_steps": 2},
    "kernel mixing, matchings": {"graph": "grid", "devices": 6, "mixing": "matchings", "dropouts": 0.2},
    "kernel mixing, one peer": {"graph": "complete", "mixing": "one-peer-exponential", "local_steps": 2},
    "kernel mixing, matcha": {"graph": "erdos-renyi", "p": 0.6, "mixing": "matcha:0.5"},
}  # fmt: skip


def experiment(name: str) -> Experiment:
    """The experiment of a golden run: float64, one thread, few devices, rounds and samples."""
    tiny = {
        "algorithm": "dsgd", "dataset": "synthetic", "devices": 5, "graph": "ring", "rounds": 4, "batch_size": 8,
        "eta": 0.1, "eval_every": 4, "dtype": "float64", "seed": 7, "threads": 1,
    }  # fmt: skip
    return Experiment(**{**tiny, **RUNS[name]})


def results(name: str) -> dict[str, float]:
    """The final numbers of a golden run."""
    e = experiment(name)
    # drawn also where there is a server, which has no use for it
    data, graph = make_data(e), GRAPHS[e.graph](e.devices, **options_of(e, GRAPHS[e.graph]))
    *_, last = trajectory(
        make_model(e, data), data, make_mixing(e, graph), make_algorithm(e),
        rounds=e.rounds, batch_size=e.batch_size, seed=e.seed, eval_every=e.eval_every, reference=e.reference,
        execution=e.execution, threads=e.threads, ranks=SingleProcess(e.devices),
    )  # fmt: skip
    theta, metrics = last.state.theta, last.metrics
    assert metrics is not None and theta.dtype == torch.float64
    # every parameter of every device counts
    sums = theta @ torch.arange(theta.shape[1], dtype=theta.dtype).cos()
    found = {f"device {i}": float(value) for i, value in enumerate(sums)}
    found |= {"train loss": metrics.train_loss, "weight": metrics.weights[0], "floats sent": metrics.floats_sent}
    found |= {"consensus distance": metrics.consensus_distance, "rho": rho_over_time(gossip_of(e, graph))}
    for kind in ("consensus", "local"):
        for measure in ("average", "worst", "worst10", "stdev"):
            found[f"{kind} {measure}"] = getattr(getattr(metrics, kind), measure)
    return {name: float(f"{value:.10g}") for name, value in found.items()}


def same(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether results are the same up to what processors may differ in."""
    return one.keys() == other.keys() and all(
        math.isclose(one[name], other[name], rel_tol=1e-8, abs_tol=1e-20) for name in one
    )


def complaint(name: str, stored: dict[str, Any] | None, now: dict[str, float]) -> str:
    """What is wrong with a golden run, and what to do; empty if nothing is."""
    if stored is None or stored["numerics"] != numerics_of(experiment(name)):
        return f"the golden run of {name} is not that of today's numerics: run `{COMMAND}`"
    if not same(stored["results"], now):
        part = name.partition(",")[0]
        return (
            f"the numbers of {part} changed: if that is intended, raise its number in src/drdsgd/core/numerics.py, "
            f"and run `{COMMAND}` to write the new ones"
        )
    return ""


def main() -> None:
    """Write golden.json; refuse results that changed while their numerics did not."""
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    runs = {}
    for name in RUNS:
        now, numerics = results(name), numerics_of(experiment(name))
        stored = before.get(name)
        if stored is not None and stored["numerics"] == numerics:
            if wrong := complaint(name, stored, now):
                raise SystemExit(wrong)
            runs[name] = stored  # the digits beyond those compared stay
        else:
            runs[name] = {"numerics": numerics, "results": now}
    lines = [f"{json.dumps(name)}: {json.dumps(run)}" for name, run in runs.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
