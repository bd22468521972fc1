"""RFA: FedAvg with the geometric median, against corrupted updates."""

from __future__ import annotations

import torch
from torch import Tensor

from drdsgd.baselines.server import ServerAlgorithm, Told, of_models
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
    """FedAvg with the geometric median, `min_z sum p_i |z - theta_i|`, in place of the mean. Another problem than ours.

    It is meant for corrupted updates, and trusts a device that differs from most *less*. The smoothed Weiszfeld
    algorithm begins with the mean; then, so many times,

        z <- sum b_i theta_i / sum b_i,  b_i = p_i / max(nu, |z - theta_i|)

    where devices compute b_i, and the server gets nothing but sums: each iteration sends z down, and up a model with
    its weight. What is left of a far outlier falls by (its share) / (the others') in every iteration. K. Pillutla,
    S. M. Kakade and Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.

    >>> rfa(eta=0.1).name
    'RFA'
    """
    whole("iterations", iterations)
    positive("nu", nu, "1e-6 is usual")

    def combine(told: Told) -> tuple[Tensor, Tensor]:
        devices, models, crossing = told.devices, told.models, told.clients
        weight = p = crossing.p(devices)
        median = weight @ crossing.receive(models)
        for _ in range(iterations):
            apart = torch.linalg.vector_norm(models - crossing.send(median, devices), dim=1)
            b = crossing.receive(p / apart.clamp(min=nu))
            weight = b / b.sum()
            median = weight @ crossing.receive(models)
        return median, weight

    return of_models("RFA", eta, local_steps, clients, combine)
