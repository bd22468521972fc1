"""The loop that one would write by hand in ordinary PyTorch, with which the benchmarks compare.

A list of K modules, each with its `DataLoader` and its `SGD`, and averaging of `state_dict`s over neighbours. It
is not slowed down on purpose: features are floats beforehand, and nothing is kept or written.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import networkx as nx
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drdsgd.data.devices import Devices, Samples

__all__ = ["PlainLoop", "average", "datasets", "shuffling"]

Loader = DataLoader[tuple[Tensor, ...]]


def datasets(data: Devices, samples: Samples, dtype: torch.dtype) -> list[TensorDataset]:
    """Every device's samples as a data set of floats."""
    x = samples.x.to(dtype) * data.scale.to(dtype) + data.shift.to(dtype)
    sizes = samples.sizes.tolist()
    return [TensorDataset(*pair) for pair in zip(x.split(sizes), samples.y.split(sizes), strict=True)]


def shuffling(train: Sequence[TensorDataset], B: int, seed: int) -> list[Loader]:
    """An ordinary loader for every device."""
    generator = torch.Generator().manual_seed(seed)
    return [
        DataLoader(dataset, min(B, len(dataset)), shuffle=True, drop_last=True, generator=generator)
        for dataset in train
    ]


def average(states: Sequence[dict[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted sum of state_dicts."""
    mixed = {name: torch.zeros_like(value) for name, value in states[0].items()}
    for state, weight in zip(states, weights, strict=True):
        for name, value in state.items():
            mixed[name] += weight * value
    return mixed


class PlainLoop:
    """DSGD, or with mu DR-DSGD, with Metropolis weights; `share` [K] is how much each device counts."""

    def __init__(
        self,
        model: nn.Module,
        graph: nx.Graph,
        loaders: Sequence[Loader],
        eta: float,
        mu: float | None,
        share: Sequence[float],
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        K = graph.number_of_nodes()
        self.W: list[dict[int, float]] = [
            {j: 1 / (1 + max(graph.degree(i), graph.degree(j))) for j in graph.neighbors(i)} for i in range(K)
        ]
        for i in range(K):
            self.W[i][i] = 1 - sum(self.W[i].values())
        self.models = [copy.deepcopy(model) for _ in range(K)]
        for one in self.models:
            one.to(memory_format=memory_format)  # type: ignore[call-overload]  # torch has it, its types do not
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=eta) for one in self.models]
        self.batches = [_forever(loader) for loader in loaders]
        self.mu, self.share, self.memory_format = mu, share, memory_format
        self.loss_function = nn.CrossEntropyLoss()

    def round(self) -> None:
        """One round of all devices."""
        for i, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            x, y = next(self.batches[i])
            if x.dim() == 4:
                x = x.contiguous(memory_format=self.memory_format)
            optimizer.zero_grad()
            loss = self.loss_function(model(x), y)
            weight = self.share[i]
            if self.mu is not None:  # DR-DSGD: the gradient times h / mu, h = exp(loss / mu)
                weight *= math.exp(loss.item() / self.mu) / self.mu
            (weight * loss).backward()
            optimizer.step()

        states = [model.state_dict() for model in self.models]
        mixed = [average([states[j] for j in row], list(row.values())) for row in self.W]
        for model, state in zip(self.models, mixed, strict=True):
            model.load_state_dict(state)


def _forever(loader: Loader) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader
