"""FedRobust: minimise the loss under the worst affine shift of every device's inputs, with a server."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import vmap

from drdsgd.baselines.server import Clients, ServerAlgorithm, after, server
from drdsgd.core.round import Info, State
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.errors import InputError, named
from drdsgd.options import Clients as Number
from drdsgd.options import Eta, LocalSteps, Shift, ShiftEta, ShiftPenalty, paper_step, renamed

__all__ = ["fedrobust"]


@renamed(penalty="shift_penalty")
@server(
    "FedRobust", "a different problem: shifts of inputs", "2 d",
    "Reisizadeh, Farnia, Pedarsani and Jadbabaie, NeurIPS 2020",
)  # fmt: skip
def fedrobust(
    eta: Eta | Schedule = paper_step,
    shift_penalty: ShiftPenalty = 1.0,
    shift_eta: ShiftEta = 0.01,
    shift: Shift = "matrix",
    local_steps: LocalSteps | None = None,
    clients: Number | None = None,
) -> ServerAlgorithm:
    """The worst affine shift of every device's inputs, `x -> Lambda_i x + delta_i`. Not the paper's problem.

        min_theta  sum_i p_i max_{Lambda_i, delta_i}  f_i(theta; Lambda_i x + delta_i)
                                                      - shift_penalty (|Lambda_i - I|^2 + |delta_i|^2)

    The device weights p_i do not depend on losses; the method protects against changed inputs. Each local step
    descends in theta and, from the same point, ascends in the shift, which stays on its device. The server averages
    theta. For inputs of size m, a `shift` "matrix" has m^2 numbers and "diagonal" (for large inputs) has m.
    A. Reisizadeh, F. Farnia, R. Pedarsani and A. Jadbabaie, "Robust Federated Learning: The Case of Affine
    Distribution Shifts", NeurIPS 2020.

    >>> fedrobust(eta=0.1, shift_penalty=200.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: shift_eta=0.01: times shift_penalty=200.0 it must be below 1, or the shift diverges; ...
    """
    schedule, tau, number = schedule_of("eta", eta), local_steps or 1, clients
    if shift_eta * shift_penalty >= 1:
        raise InputError(
            f"{named('shift_eta', shift_eta)}: times {named('shift_penalty', shift_penalty)} it must be below 1, or "
            "the shift diverges; 0.01 is usual"
        )

    def init(theta: Tensor, clients: Clients) -> State:
        if not clients.site.batches.dtype.is_floating_point:
            raise InputError(
                "FedRobust shifts inputs, but this model takes integers (an embedding?), which can't be shifted: use "
                "another algorithm, such as fed_term"
            )
        features = math.prod(clients.site.batches.shape)
        size = (features, features) if shift == "matrix" else (features,)
        # Lambda - I, and delta
        shifts = {"bend": theta.new_zeros(clients.K, *size), "offset": theta.new_zeros(clients.K, features)}
        return State(0, theta, shifts, {})

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        devices, eta_t = clients.draw(number), schedule(state.t)
        models = clients.send(state.theta[0], devices)
        bends, offsets = state.objective["bend"][devices], state.objective["offset"][devices]

        def on_block(some: slice) -> Tensor:
            theta, bend, offset, losses = models[some], bends[some], offsets[some], []
            for step in clients.steps(tau):
                x, y = clients.batch(step, devices[some])
                inputs = x.flatten(2)  # [n, B, features]
                bent = inputs @ bend.mT if shift == "matrix" else inputs * bend[:, None]
                loss, rise = _descend(clients, theta, x + (bent + offset[:, None]).view_as(x), y, eta_t)
                rise = rise.flatten(2)
                for part in (bend, offset):
                    part.mul_(1 - 2 * shift_eta * shift_penalty)
                up = rise.mT @ inputs if shift == "matrix" else (rise * inputs).sum(dim=1)
                bend.add_(up, alpha=shift_eta)
                offset.add_(rise.sum(dim=1), alpha=shift_eta)
                losses.append(loss)
            return losses[0]

        loss = torch.cat(list(clients.site.each(on_block, clients.site.parts_of(len(devices)))))
        state.objective["bend"][devices], state.objective["offset"][devices] = bends, offsets
        weight = clients.p(devices)
        theta = weight @ clients.receive(models)
        return after(state, theta, state.objective, {}), clients.info(devices, loss, weight)

    return ServerAlgorithm(init, round, lambda state: state.theta[0])


def _descend(clients: Clients, theta: Tensor, x: Tensor, y: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """One SGD step on theta [n, d], in place; the losses [n] and their gradients with respect to x [n, B, ...]."""
    flat, loss = clients.site.flat, clients.site.loss
    leaves = {name: view.data.requires_grad_() for name, view in flat.views(theta).items()}
    x = x.requires_grad_()
    if clients.site.execution == "loop":
        rows = ({name: value[i] for name, value in leaves.items()} for i in range(len(theta)))
        losses = torch.stack([loss(flat.apply(row, xi), yi) for row, xi, yi in zip(rows, x, y, strict=True)])
    else:
        losses = vmap(lambda row, xi, yi: loss(flat.apply(row, xi), yi))(leaves, x, y)
    *gradients, rise = torch.autograd.grad(losses.sum(), [*leaves.values(), x], materialize_grads=True)
    for target, gradient in zip(flat.views(theta).values(), gradients, strict=True):
        target.sub_(gradient, alpha=eta)
    return losses.detach(), rise
