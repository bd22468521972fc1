"""DRFA: minimise the loss of the worst mixture of devices, with a server, local steps and sampled devices."""

from __future__ import annotations

import torch

from drdsgd.baselines.server import Clients, ServerAlgorithm, after_dual_step, server, with_dual
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.options import Clients as Number
from drdsgd.options import DualEta, Eta, LocalSteps, paper_step
from drdsgd.random import Stream

__all__ = ["drfa"]


@server(
    "DRFA", "worst mixture of devices, by dual ascent on sampled devices", "3 d + 2, with local steps up to 4 d + 2",
    "Deng, Kamani and Mahdavi, NeurIPS 2020", averaged=True,
)  # fmt: skip
def drfa(
    eta: Eta | Schedule = paper_step,
    dual_eta: DualEta | Schedule = 0.01,
    local_steps: LocalSteps | None = None,
    clients: Number | None = None,
) -> ServerAlgorithm:
    """The problem of `afl`, with local steps and with m = `clients` of the devices.

    m devices train; they are drawn one after another with probabilities lambda. The server averages their models, and
    also their models after a randomly drawn step. This snapshot stands for all steps: m devices, drawn uniformly,
    report their losses f at it, and `lambda <- P(lambda + local_steps dual_eta (K / m) f)`. The common model is the
    average of all snapshots. In expectation this is the average of all local models, which are not sent. If the
    snapshot is that of the last step (always, with one local step), the server gets it anyway, and it is sent once.
    Y. Deng, M. M. Kamani and M. Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020.

    >>> drfa(eta=0.1, local_steps=10, clients=5).name
    'DRFA with 5 clients'
    """
    schedule, dual_schedule = schedule_of("eta", eta), schedule_of("dual_eta", dual_eta)
    tau, number = local_steps or 1, clients

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        dual, t = state.objective["dual"], state.t
        devices, times = clients.draw_by(dual, number)  # a device that is drawn twice counts twice
        weight, at = times / times.sum(), clients.draw_step(tau)
        steps = clients.steps(tau + 1)  # the last batch is for the losses at the snapshot
        models = clients.send(state.theta[0], devices)
        clients.send(models.new_tensor([at]), devices)
        loss = clients.train(models, devices, steps[:at], schedule(t))
        snapshot = theta = weight @ clients.receive(models)
        if at < tau:
            clients.train(models, devices, steps[at:tau], schedule(t))
            theta = weight @ clients.receive(models)

        asked = clients.draw(number, Stream.ASKED_CLIENTS)
        f = torch.zeros_like(dual)
        f[asked] = clients.receive(clients.losses(clients.send(snapshot, asked), asked, steps[tau]))
        rise = tau * dual_schedule(t) * clients.K / len(asked) * f
        return after_dual_step(state, theta, snapshot, rise), clients.info(devices, loss, weight)

    return ServerAlgorithm(with_dual, round, lambda state: state.optimizer["average"][0])
