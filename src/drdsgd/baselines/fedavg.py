"""FedAvg: minimise the average risk, with a server."""

from __future__ import annotations

from torch import Tensor

from drdsgd.baselines.server import Replies, ServerAlgorithm, server, stateless
from drdsgd.core.schedules import Schedule
from drdsgd.options import Clients, Eta, LocalSteps, paper_step

__all__ = ["fedavg"]


@server("FedAvg", "average risk", "2 d", "McMahan et al., AISTATS 2017")
def fedavg(
    eta: Eta | Schedule = paper_step, local_steps: LocalSteps | None = None, clients: Clients | None = None
) -> ServerAlgorithm:
    """Average risk: the server averages the devices' models, weighted by their numbers of samples.

    In each round `clients` of the devices take part, drawn uniformly (default: all). B. McMahan, E. Moore, D. Ramage,
    S. Hampson and B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.

    >>> fedavg(eta=0.1, local_steps=0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: local_steps=0: input should be greater than or equal to 1 (rounds between two ...)
    """

    def combine(replies: Replies) -> tuple[Tensor, Tensor]:
        weight = replies.clients.p(replies.devices)
        return weight @ replies.clients.receive(replies.models), weight

    return stateless(eta, local_steps, clients, combine)
