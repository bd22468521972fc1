"""The paper's two algorithm boxes in plain Python loops: the truth that every engine is held to.

Nothing here is shared with the package but the models' forward pass and the batches (which samples a device sees in
a round is part of the problem, not of the algorithm). Gradients come from plain autograd on one ordinary module
per device, mixing weights from the formula in the text, one entry at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import networkx as nx
import torch
from torch import Tensor, nn

Batch = Callable[[int, int], tuple[Tensor, Tensor]]  # (device, round) -> features [B, ...], labels [B]


def metropolis(graph: nx.Graph) -> list[list[float]]:
    """W_ij = 1 / (1 + max(d_i, d_j)) on edges, 0 elsewhere, W_ii = 1 - sum of the rest."""
    K = graph.number_of_nodes()
    W = [[0.0] * K for _ in range(K)]
    for i in range(K):
        for j in range(K):
            if i != j and graph.has_edge(i, j):
                W[i][j] = 1 / (1 + max(graph.degree(i), graph.degree(j)))
        W[i][i] = 1 - sum(W[i])
    return W


def dsgd(
    model: nn.Module, W: list[list[float]], batch: Batch, eta: Callable[[int], float], T: int, share: list[float]
) -> list[nn.Module]:
    """Algorithm 1. `share` is K n_i / n (all ones where devices have equally many samples)."""
    return _run(model, W, batch, eta, T, lambda i, loss: share[i])


def dr_dsgd(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    share: list[float],
    mu: float,
    loss_clip: float = math.inf,
) -> list[nn.Module]:
    """Algorithm 2, with h = exp(loss / mu)."""
    return _run(model, W, batch, eta, T, lambda i, loss: share[i] * math.exp(min(loss, loss_clip) / mu) / mu)


def _run(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    weight: Callable[[int, float], float],
) -> list[nn.Module]:
    K = len(W)
    devices = [copy.deepcopy(model) for _ in range(K)]
    for t in range(T):
        # lines 2 and 3: a gradient on a mini-batch, and a half-step
        halves: list[list[Tensor]] = []
        for i in range(K):
            x, y = batch(i, t)
            devices[i].zero_grad()
            loss = nn.functional.cross_entropy(devices[i](x), y)
            loss.backward()
            w = weight(i, float(loss.detach()))
            half = []
            for p in devices[i].parameters():
                assert p.grad is not None
                half.append(p.detach() - eta(t) * w * p.grad)
            halves.append(half)
        # lines 4 and 5: send to the neighbours, and average
        for i in range(K):
            for number, p in enumerate(devices[i].parameters()):
                mixed = torch.zeros_like(p)
                for j in range(K):
                    if W[i][j] != 0:
                        mixed += W[i][j] * halves[j][number]
                with torch.no_grad():
                    p.copy_(mixed)
    return devices
