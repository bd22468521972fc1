"""AFL: minimise the loss of the worst mixture of devices, with a server."""

from __future__ import annotations

from drdsgd.baselines.server import Clients, ServerAlgorithm, after_dual_step, server, with_dual
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.options import DualEta, Eta, paper_step

__all__ = ["afl"]


@server(
    "AFL", "worst mixture of devices, by dual ascent", "2 d + 1", "Mohri, Sivek and Suresh, ICML 2019", averaged=True,
)  # fmt: skip
def afl(eta: Eta | Schedule = paper_step, dual_eta: DualEta | Schedule = 0.01) -> ServerAlgorithm:
    """The worst mixture of devices, `min_theta max_lambda sum_i lambda_i f_i` with lambda in the simplex.

        theta <- theta - eta sum lambda_i g_i,  lambda <- P(lambda + dual_eta f)

    starting from lambda = p, with one gradient of every device per round (the paper's PerDomain gradient). The common
    model is the average of all theta so far, for which the paper has guarantees. Every device's own model is the last
    theta. M. Mohri, G. Sivek and A. T. Suresh, "Agnostic Federated Learning", ICML 2019 (Stochastic-AFL).

    >>> afl(eta=0.1).name
    'AFL'
    """
    schedule, dual_schedule = schedule_of("eta", eta), schedule_of("dual_eta", dual_eta)

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        dual, devices, t = state.objective["dual"], clients.draw(None), state.t
        models = clients.send(state.theta[0], devices)
        loss = clients.receive(clients.train(models, devices, clients.steps(1), schedule(t)))
        # devices send theta - eta g_i instead of g_i: equivalent, because lambda sums to 1
        theta = dual @ clients.receive(models)
        info = clients.info(devices, loss, dual)
        return after_dual_step(state, theta, theta, dual_schedule(t) * loss), info

    return ServerAlgorithm(with_dual, round, lambda state: state.optimizer["average"][0])
