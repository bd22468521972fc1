"""DRFA: the worst mixture of devices, with a server, local steps and sampled devices."""

from __future__ import annotations

import torch

from drdsgd.baselines.server import (
    Clients,
    ServerAlgorithm,
    after,
    averaged,
    dual_steps_of,
    number_of,
    steps_of,
    with_dual,
)  # fmt: skip
from drdsgd.core.objectives import project_on_simplex
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import Schedule
from drdsgd.errors import whole
from drdsgd.random import Stream

__all__ = ["drfa"]


def drfa(
    eta: float | Schedule,
    dual_eta: float | Schedule = 0.01,
    local_steps: int = 1,
    clients: int | None = None,
) -> ServerAlgorithm:
    """The problem of `afl` with local steps, and with m = `clients` of the devices.

    m devices, drawn one after another by lambda, train; the server averages their models, and also those that they had
    after a step drawn at random. That snapshot stands for all steps: m others, drawn uniformly, report their losses f
    at it, and `lambda <- P(lambda + local_steps dual_eta (K / m) f)`. The common model is the average of all snapshots,
    which is in expectation that of all local models (these are not sent). Where the snapshot is the last step's, as it
    always is with one local step, it is what the server gets anyway, and is sent once. Y. Deng, M. M. Kamani and
    M. Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020.

    >>> drfa(eta=0.1, local_steps=10, clients=5).name
    'DRFA'
    """
    schedule, dual_schedule = steps_of(eta), dual_steps_of(dual_eta)
    tau, number = whole("local_steps", local_steps), number_of(clients)

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        dual, t = state.objective["dual"], state.t
        devices, times = clients.draw_by(dual, number)  # who comes twice does the same twice
        weight, at = times / times.sum(), clients.draw_step(tau)
        steps = clients.steps(tau + 1)  # the last is for the losses at the snapshot
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
        ostate = {"dual": project_on_simplex((dual + rise)[None])[0]}
        info = clients.info(devices, loss, weight)
        return after(state, theta, ostate, {"average": averaged(state, snapshot)}), info

    return ServerAlgorithm(with_dual, round, lambda state: state.optimizer["average"][0], "DRFA")
