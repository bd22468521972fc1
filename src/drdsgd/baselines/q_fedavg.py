"""q-FedAvg: minimise the q-fair risk, with a server."""

from __future__ import annotations

import torch
from torch import Tensor

from drdsgd.baselines.server import Replies, ServerAlgorithm, server, stateless
from drdsgd.core.schedules import Schedule
from drdsgd.options import Clients, Eta, LocalSteps, Q, paper_step

__all__ = ["q_fedavg"]


@server("q-FedAvg", "q-fair risk", "2 d + 1", "Li, Sanjabi, Beirami and Smith, ICLR 2020")
def q_fedavg(
    eta: Eta | Schedule = paper_step,
    q: Q = 1.0,
    local_steps: LocalSteps | None = None,
    clients: Clients | None = None,
) -> ServerAlgorithm:
    """q-fair risk, `sum_i p_i f_i^(q+1) / (q+1)`; an estimate of its Lipschitz constant sets the step size.

        theta <- theta - sum p_i f_i^q u_i / sum p_i (q f_i^(q-1) |u_i|^2 + f_i^q / eta),  u_i = (theta - theta_i) / eta

    With q = 0 it is FedAvg. The larger q, the shorter its steps. T. Li, M. Sanjabi, A. Beirami and V. Smith, "Fair
    Resource Allocation in Federated Learning", ICLR 2020 (q-FedAvg, with L = 1 / eta).

    >>> q_fedavg(eta=0.1, q=2.0).name
    'q-FedAvg with q = 2'
    """

    def combine(replies: Replies) -> tuple[Tensor, Tensor]:
        moved = replies.clients.receive(replies.server - replies.models)
        f = replies.clients.receive(replies.loss).clamp(min=1e-10)  # f^(q-1) is undefined at 0
        # both sums are divided by the largest f^q, which would overflow
        a = replies.clients.p(replies.devices) * (f / f.max()) ** q
        eta_t = max(replies.eta, torch.finfo(f.dtype).tiny)  # with eta = 0 nothing moved
        weight = a / (a * (1 + q * moved.square().sum(dim=1) / (eta_t * f))).sum()
        return replies.server - weight @ moved, weight

    return stateless(eta, local_steps, clients, combine)
