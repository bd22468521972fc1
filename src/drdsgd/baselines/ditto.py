"""Ditto: a personal model for every device, kept close to the server's."""

from __future__ import annotations

from drdsgd.baselines.server import Clients, ServerAlgorithm, server
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import Schedule, highest, schedule_of
from drdsgd.errors import InputError, named
from drdsgd.options import Clients as Number
from drdsgd.options import Eta, LocalSteps, Pull, paper_step, renamed

__all__ = ["ditto"]


@renamed(lam="pull")
@server(
    "Ditto", "a different problem: personal models near a common one", "2 d", "Li, Hu, Beirami and Smith, ICML 2021",
)  # fmt: skip
def ditto(
    eta: Eta | Schedule = paper_step,
    pull: Pull = 1.0,
    local_steps: LocalSteps | None = None,
    clients: Number | None = None,
) -> ServerAlgorithm:
    """A personal model v_i for every device, `min f_i(v_i) + pull / 2 |v_i - theta|^2`. Not the paper's problem.

    theta is the server's model, trained by FedAvg. Devices that take part train both models on the same batches, and
    pull v_i towards the theta that they received. The rows of the state's theta are the personal models; the common
    model is the server's. T. Li, S. Hu, A. Beirami and V. Smith, "Ditto: Fair and Robust Federated Learning Through
    Personalization", ICML 2021.

    >>> ditto(eta=0.1, pull=0.5).name
    'Ditto with pull = 0.5'
    """
    schedule, tau, number = schedule_of("eta", eta), local_steps or 1, clients
    if (top := highest(eta)) is not None and pull * top >= 2:
        raise InputError(
            f"{named('pull', pull)}: times eta {top:g} it must be below 2, or personal models diverge; 0.1 to 2 are "
            "usual"
        )

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        devices, server, eta_t = clients.draw(number), state.optimizer["server"], schedule(state.t)
        models, steps = clients.send(server[0], devices), clients.steps(tau)
        personal = state.theta[devices]
        clients.train(personal, devices, steps, eta_t, server[0], pull)
        state.theta[devices] = personal
        loss = clients.train(models, devices, steps, eta_t)
        weight = clients.p(devices)
        server[0] = weight @ clients.receive(models)
        return state._replace(t=state.t + 1), clients.info(devices, loss, weight)

    return ServerAlgorithm(
        lambda theta, clients: State(0, theta, {}, {"server": theta[:1].clone()}),
        round,
        lambda state: state.optimizer["server"][0],
    )
