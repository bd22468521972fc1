"""AFL: the worst mixture of devices, with a server."""

from __future__ import annotations

from drdsgd.baselines.server import Clients, ServerAlgorithm, after, averaged, dual_steps_of, steps_of, with_dual
from drdsgd.core.objectives import project_on_simplex
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import Schedule

__all__ = ["afl"]


def afl(eta: float | Schedule, dual_eta: float | Schedule = 0.01) -> ServerAlgorithm:
    """The worst mixture of devices, `min_theta max_lambda sum_i lambda_i f_i`, lambda anywhere in the simplex.

        theta <- theta - eta sum lambda_i g_i,  lambda <- P(lambda + dual_eta f)

    from lambda = p, with one gradient of every device per round (their PerDomain gradient). The common model is the
    average of all theta so far, for which they have guarantees; the last one is every device's own. M. Mohri, G. Sivek
    and A. T. Suresh, "Agnostic Federated Learning", ICML 2019 (Stochastic-AFL).

    >>> afl(eta=0.1).name
    'AFL'
    """
    schedule, dual_schedule = steps_of(eta), dual_steps_of(dual_eta)

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        dual, devices, t = state.objective["dual"], clients.draw(None), state.t
        models = clients.send(state.theta[0], devices)
        loss = clients.receive(clients.train(models, devices, clients.steps(1), schedule(t)))
        # theta - eta g_i is sent for g_i: as lambda sums to 1, the same
        theta = dual @ clients.receive(models)
        info = clients.info(devices, loss, dual)
        ostate = {"dual": project_on_simplex((dual + dual_schedule(t) * loss)[None])[0]}
        return after(state, theta, ostate, {"average": averaged(state, theta)}), info

    return ServerAlgorithm(with_dual, round, lambda state: state.optimizer["average"][0], "AFL")
