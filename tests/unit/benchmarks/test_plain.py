"""The plain loop of the benchmarks, an independent implementation, gives the package's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from drdsgd.data import batches
from drdsgd.experiments.build import make_data, make_graph, make_model
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.run import run
from drdsgd.training.loop import Progress
from drdsgd_benchmarks.plain import PlainLoop, datasets, shuffling


def experiment(algorithm: str, dtype: str) -> Experiment:
    return Experiment(
        algorithm=algorithm, dataset="digits", devices=5, rounds=12, eval_every=12, p=0.5, dtype=dtype, seed=3, eta=0.1,
        threads=1, mu=2.0 if algorithm == "dr-dsgd" else None,
        # without a ReLU in float32: at its kink the last bit decides between two gradients
        model="mlp" if dtype == "float64" else "logistic",
    )  # fmt: skip


def plain(e: Experiment, same_batches: bool = True) -> Tensor:
    """The models [K, d] of the plain loop after all rounds, on the package's batches or on shuffled ones."""
    graph, data = make_graph(e), make_data(e)
    initial = make_model(e, data)
    train = datasets(data, data.train, next(initial.parameters()).dtype)
    n, K = np.array([len(dataset) for dataset in train]), e.devices
    loaders: Any = shuffling(train, e.batch_size, e.seed)
    if same_batches:
        drawn = [batches.draw(e.seed, np.arange(K), t, n, e.batch_size).tolist() for t in range(e.rounds)]
        loaders = [DataLoader(train[i], batch_sampler=[some[i] for some in drawn]) for i in range(K)]
    loop = PlainLoop(initial, graph, loaders, e.eta, e.mu, (K * n / n.sum()).tolist())
    for _ in range(e.rounds):
        loop.round()
    return torch.stack([nn.utils.parameters_to_vector(model.parameters()).detach() for model in loop.models])


def package(e: Experiment, folder: Path) -> Tensor:
    """The models [K, d] of `drdsgd train`."""
    seen: list[Progress] = []
    run(e, folder, watch=seen.append)
    return seen[-1].state.theta


def apart(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
@pytest.mark.parametrize("algorithm", ["dsgd", "dr-dsgd"])
def test_same_batches_give_the_same_models(algorithm: str, dtype: str, tolerance: float, tmp_path: Path) -> None:
    e = experiment(algorithm, dtype)
    assert apart(plain(e), package(e, tmp_path / "run")) < tolerance


def test_another_run_has_other_models(tmp_path: Path) -> None:
    e = experiment("dr-dsgd", "float64")
    ours = package(e, tmp_path / "run")
    for other in (plain(e.replace(mu=2.1)), plain(e, same_batches=False), plain(e.replace(p=0.9))):
        assert apart(other, ours) > 1e-3
