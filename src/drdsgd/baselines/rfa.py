"""RFA: FedAvg with the geometric median, robust to corrupted updates."""

from __future__ import annotations

import torch
from torch import Tensor

from drdsgd.baselines.server import Replies, ServerAlgorithm, stateless
from drdsgd.core.schedules import Schedule
from drdsgd.errors import positive, whole

__all__ = ["rfa"]


def rfa(
    eta: float | Schedule,
    iterations: int = 4,
    nu: float = 1e-6,
    local_steps: int = 1,
    clients: int | None = None,
) -> ServerAlgorithm:
    """FedAvg with the geometric median, `min_z sum p_i |z - theta_i|`, instead of the mean. Not the paper's problem.

    It protects against corrupted updates, and gives *less* weight to a device that differs from most. The smoothed
    Weiszfeld algorithm starts from the mean and repeats, `iterations` times,

        z <- sum b_i theta_i / sum b_i,  b_i = p_i / max(nu, |z - theta_i|)

    Devices compute b_i, and the server receives only sums: each iteration sends z down, and a model with its weight
    up. The influence of a far outlier falls by (its share) / (the others' share) in every iteration. K. Pillutla, S. M.
    Kakade and Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.

    >>> rfa(eta=0.1).name
    'RFA'
    """
    whole("iterations", iterations)
    positive("nu", nu, "1e-6 is usual")

    def combine(replies: Replies) -> tuple[Tensor, Tensor]:
        devices, models, clients = replies.devices, replies.models, replies.clients
        weight = p = clients.p(devices)
        median = weight @ clients.receive(models)
        for _ in range(iterations):
            distance = torch.linalg.vector_norm(models - clients.send(median, devices), dim=1)
            b = clients.receive(p / distance.clamp(min=nu))
            weight = b / b.sum()
            median = weight @ clients.receive(models)
        return median, weight

    return stateless("RFA", eta, local_steps, clients, combine)
