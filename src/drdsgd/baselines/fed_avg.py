"""FedAvg: average risk, with a server."""

from __future__ import annotations

from torch import Tensor

from drdsgd.baselines.server import ServerAlgorithm, Told, of_models
from drdsgd.core.schedules import Schedule

__all__ = ["fed_avg"]


def fed_avg(eta: float | Schedule, local_steps: int = 1, clients: int | None = None) -> ServerAlgorithm:
    """Average risk: the server averages the models of devices, by their samples.

    `clients` of the devices take part in a round, drawn uniformly; by default all. B. McMahan, E. Moore, D. Ramage,
    S. Hampson and B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.

    >>> fed_avg(eta=0.1, local_steps=0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: local_steps must be a whole number, at least 1, got 0: change local_steps
    """

    def combine(told: Told) -> tuple[Tensor, Tensor]:
        weight = told.clients.p(told.devices)
        return weight @ told.clients.receive(told.models), weight

    return of_models("FedAvg", eta, local_steps, clients, combine)
