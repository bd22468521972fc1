"""FedTERM: minimise the tilted risk over devices, with a server."""

from __future__ import annotations

import torch
from torch import Tensor

from drdsgd.baselines.server import Replies, ServerAlgorithm, server, stateless
from drdsgd.core.schedules import Schedule
from drdsgd.options import Clients, Eta, LocalSteps, Tilt, paper_step, renamed

__all__ = ["fed_term"]


@renamed(t="tilt")
@server("FedTERM", "tilted risk: kl-dro with mu = 1 / t", "2 d + 1", "Li, Beirami, Sanjabi and Smith, ICLR 2021")
def fed_term(
    eta: Eta | Schedule = paper_step,
    tilt: Tilt = 1.0,
    local_steps: LocalSteps | None = None,
    clients: Clients | None = None,
) -> ServerAlgorithm:
    """Tilted risk over devices, `(1/t) log sum_i p_i exp(t f_i)`: eq. 7 of the paper with mu = 1 / t.

    This is the problem that DR-DSGD solves without a server. Here the weights `p_i exp(t f_i)` are normalised exactly
    over the devices that take part. T. Li, A. Beirami, M. Sanjabi and V. Smith, "Tilted Empirical Risk Minimization",
    ICLR 2021 (group TERM; a device is a group).

    >>> fed_term(eta=0.1, tilt=2.0).name
    'FedTERM with tilt = 2'
    """

    def combine(replies: Replies) -> tuple[Tensor, Tensor]:
        models, loss = replies.clients.receive(replies.models), replies.clients.receive(replies.loss)
        weight = torch.softmax(tilt * loss + replies.clients.p(replies.devices).log(), dim=0)
        return weight @ models, weight

    return stateless(eta, local_steps, clients, combine)
