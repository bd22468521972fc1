"""FedAvg: minimise the average risk, with a server."""

from __future__ import annotations

from torch import Tensor

from drdsgd.baselines.server import Replies, ServerAlgorithm, stateless
from drdsgd.core.schedules import Schedule

__all__ = ["fed_avg"]


def fed_avg(eta: float | Schedule, local_steps: int = 1, clients: int | None = None) -> ServerAlgorithm:
    """Average risk: the server averages the devices' models, weighted by their numbers of samples.

    In each round `clients` of the devices take part, drawn uniformly (default: all). B. McMahan, E. Moore, D. Ramage,
    S. Hampson and B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.

    >>> fed_avg(eta=0.1, local_steps=0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: local_steps must be a whole number, at least 1, got 0: change local_steps
    """

    def combine(replies: Replies) -> tuple[Tensor, Tensor]:
        weight = replies.clients.p(replies.devices)
        return weight @ replies.clients.receive(replies.models), weight

    return stateless("FedAvg", eta, local_steps, clients, combine)
