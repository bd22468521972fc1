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
    return _run(model, W, batch, eta, T, lambda losses: share)


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

    def weights(losses: list[float]) -> list[float]:
        return [share[i] * math.exp(min(loss, loss_clip) / mu) / mu for i, loss in enumerate(losses)]

    return _run(model, W, batch, eta, T, weights)


def normalized_dr_dsgd(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    share: list[float],
    mu: float,
    loss_clip: float = math.inf,
    b: float = 0.3,
) -> list[nn.Module]:
    """Algorithm 2 with weights h_i / m_i, where m is a gossiped moving average of h, itself and not its logarithm."""
    K = len(W)
    m: list[float] | None = None

    def weights(losses: list[float]) -> list[float]:
        nonlocal m
        h = [share[i] * math.exp(min(losses[i], loss_clip) / mu) for i in range(K)]
        sent = h if m is None else [(1 - b) * m[i] + b * h[i] for i in range(K)]
        m = [sum(W[i][j] * sent[j] for j in range(K)) for i in range(K)]
        return [h[i] / m[i] for i in range(K)]

    return _run(model, W, batch, eta, T, weights)


def _run(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    weights: Callable[[list[float]], list[float]],
) -> list[nn.Module]:
    K = len(W)
    devices = [copy.deepcopy(model) for _ in range(K)]
    for t in range(T):
        # line 2: a gradient on a mini-batch
        losses: list[float] = []
        for i in range(K):
            x, y = batch(i, t)
            devices[i].zero_grad()
            loss = nn.functional.cross_entropy(devices[i](x), y)
            loss.backward()
            losses.append(float(loss.detach()))
        # line 3: a half-step
        w = weights(losses)
        halves: list[list[Tensor]] = []
        for i in range(K):
            half = []
            for p in devices[i].parameters():
                assert p.grad is not None
                half.append(p.detach() - eta(t) * w[i] * p.grad)
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
