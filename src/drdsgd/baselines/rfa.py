"""RFA: FedAvg with the geometric median, robust to corrupted updates."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from drdsgd.baselines.server import Replies, ServerAlgorithm, server, stateless
from drdsgd.core.schedules import Schedule
from drdsgd.options import IN_PYTHON, Clients, Eta, LocalSteps, Option, paper_step

__all__ = ["rfa"]


@server(
    "RFA", "a different problem: corrupted updates, by the geometric median (4 steps)", "10 d + 4",
    "Pillutla, Kakade and Harchaoui, IEEE TSP 2022",
)  # fmt: skip
def rfa(
    eta: Eta | Schedule = paper_step,
    iterations: Annotated[int, Option("steps towards the median", IN_PYTHON, least=1)] = 4,
    nu: Annotated[float, Option("least distance from the median", IN_PYTHON, above=0)] = 1e-6,
    local_steps: LocalSteps | None = None,
    clients: Clients | None = None,
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

    return stateless(eta, local_steps, clients, combine)
