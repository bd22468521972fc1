"""What methods with a server share: the devices as the server sees them, and a round.

An algorithm is a value: `init`, `round` and `common`, the model that the server hands out. All communication between
the server and its devices goes through `Clients`, which counts the numbers sent. Which devices take part is a function
of (seed, device, round), like their batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.core.composition import Constructor, Make, Setting, with_schedules
from drdsgd.core.engine import Ranks
from drdsgd.core.flat import aligned
from drdsgd.core.method import Play, Site
from drdsgd.core.objectives import project_on_simplex
from drdsgd.core.parallel import Each
from drdsgd.core.parts import Part
from drdsgd.core.round import Info, Round, State
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.errors import Diverged, InputError
from drdsgd.options import checked, parameters
from drdsgd.random import Stream, words
from drdsgd.topology.mixing import Mixing

__all__ = ["SERVERS", "Clients", "Replies", "ServerAlgorithm", "make_server_round", "server", "stateless"]


@dataclass
class Clients:
    """The devices in round t, as the server sees them: draw some, send them a model, let them train, receive.

    `devices` [m] are always device numbers in increasing order, and models [m, d] are their rows.
    """

    site: Site
    t: int = 0
    floats_sent: int = 0
    """Numbers sent so far in this round, down to the devices and up to the server."""

    @property
    def K(self) -> int:
        return self.site.hosted.K

    @property
    def share(self) -> Tensor:
        """K p_i, [K]."""
        return self.site.hosted.share

    def p(self, devices: Tensor) -> Tensor:
        """Reference weights of some devices, [m]; they sum to 1."""
        share = self.share[devices]
        return share / share.sum()

    # which devices take part

    def draw(self, number: int | None, purpose: Stream = Stream.TRAINING_CLIENTS) -> Tensor:
        """A uniformly drawn set of `number` devices; all devices if None."""
        if number is None or number == self.K:
            return self._devices(np.arange(self.K))
        if number > self.K:
            raise InputError(f"clients is {number}, but there are only {self.K} devices: lower clients")
        words = self._random(np.arange(self.K), purpose)
        order = np.lexsort((words[:, 1], words[:, 0]))
        return self._devices(np.sort(order[:number]))

    def draw_by(self, probability: Tensor, number: int | None) -> tuple[Tensor, Tensor]:
        """Draw `number` devices (default K) with replacement by probability [K]: the devices [m] and counts [m]."""
        if not (finite := probability.isfinite()).all():
            device = int((~finite).nonzero()[0])
            raise Diverged(
                f"diverged in round {self.t}: the weight of device {device} is not finite; try a smaller eta",
                round=self.t,
                device=device,
            )
        u = self._random(np.arange(number or self.K), Stream.CLIENTS_BY_WEIGHT)[:, 0] / 2**32
        ends = probability.double().cumsum(0).cpu().numpy()
        drawn, times = np.unique(np.searchsorted(ends, u * ends[-1], side="right"), return_counts=True)
        return self._devices(drawn), torch.from_numpy(times).to(self.share)

    def draw_step(self, local_steps: int) -> int:
        """One of 1, ..., local_steps, the same for all devices."""
        return 1 + int(self._random(np.arange(1), Stream.SNAPSHOT_STEP)[0, 0]) * local_steps // 2**32

    def _random(self, which: NDArray[np.int64], purpose: Stream) -> NDArray[np.uint64]:
        return words(self.site.batches.seed, purpose, self.t, 0, which)

    def _devices(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self.share.device)

    # communication

    def send(self, x: Tensor, devices: Tensor) -> Tensor:
        """Send x [d] to some devices: one copy each, [m, d]."""
        self.floats_sent += len(devices) * x.numel()
        return aligned(x.expand(len(devices), -1))

    def receive(self, x: Tensor) -> Tensor:
        """Send x [m, ...] from the devices to the server."""
        self.floats_sent += x.numel()
        return x

    # local work on the devices

    def steps(self, number: int) -> range:
        """The batch numbers of this round, if every round has `number` batches."""
        return range(self.t * number, (self.t + 1) * number)

    def batch(self, step: int, devices: Tensor) -> tuple[Tensor, Tensor]:
        """The batches of some devices, features [m, B, ...] and labels [m, B]."""
        return self.site.batches(step, devices.cpu().numpy())

    def train(
        self,
        models: Tensor,
        devices: Tensor,
        steps: range,
        eta: float,
        centre: Tensor | None = None,
        pull: float = 0.0,
    ) -> Tensor:
        """SGD in place, `theta_i <- theta_i - eta (g_i + pull (theta_i - centre))`; returns the first losses [m]."""

        def on_block(some: slice) -> Tensor:
            theta, losses = models[some], []
            for step in steps:
                loss, backward = self.site.forward(theta, *self.batch(step, devices[some]))
                apart = None if centre is None else theta - centre
                backward(torch.full_like(loss, -eta), theta)
                if apart is not None:
                    theta.sub_(apart, alpha=eta * pull)
                losses.append(loss)
            return losses[0]

        return torch.cat(list(self.site.each(on_block, self.site.parts_of(len(devices)))))

    def losses(self, models: Tensor, devices: Tensor, step: int) -> Tensor:
        """The losses [m] of models [m, d], each on its device's batch."""
        parts = self.site.parts_of(len(devices))
        return torch.cat(
            list(
                self.site.each(lambda some: self.site.forward(models[some], *self.batch(step, devices[some]))[0], parts)
            )
        )

    def info(self, devices: Tensor, loss: Tensor, weight: Tensor) -> Info:
        """The round's `Info` from losses [m] and weights [m]; weights are scaled to 1 on average over all devices.

        A device that did not take part has weight 0 and the mean of the known losses.
        """
        losses = torch.full_like(self.share, float(loss[loss.isfinite()].mean()))
        losses[devices] = loss.to(losses)
        weights = torch.zeros_like(self.share)
        weights[devices] = self.K * weight
        return Info(losses, weights, self.floats_sent)


@dataclass(frozen=True)
class ServerAlgorithm:
    """`init(theta [K, d], clients) -> state`, `round(state, clients) -> state, info`, `common(state) -> model [d]`.

    The rows of a state's theta are the devices' models: copies of the server's, unless devices keep their own. `round`
    takes over the given state and works in its tensors. Each tensor has one row per device, or one row. `name` and
    `eta` are texts for messages and the model card. It is a `Method` (`drdsgd.core.method`) with a server.
    """

    init: Callable[[Tensor, Clients], State]
    round: Callable[[State, Clients], tuple[State, Info]]
    common: Callable[[State], Tensor]
    name: str = "your server"
    eta: str = ""
    resolve: Callable[[Setting], ServerAlgorithm] | None = None
    """makes the same algorithm with all defaults resolved (see `composition`)"""
    has_server: ClassVar[Literal[True]] = True
    cures: ClassVar[str] = "try a smaller eta"
    keeps: ClassVar[str] = ""

    def check(self, mixing: Mixing, processes: int = 1) -> None:
        """Accept every mixing, because the graph is not used; refuse several processes."""
        if processes > 1:
            raise InputError(f"{self.name} has a server, which is simulated in one process: run it without torchrun")

    def over(self, mixing: Mixing) -> Mixing:
        """The mixing as it is: nothing is gossiped."""
        return mixing

    def start(self, site: Site) -> Play:
        """The server and all devices, in this process."""
        clients = Clients(site)
        round = make_server_round(self, clients)
        return Play(lambda theta: self.init(theta, clients), round, lambda state, loss: round(state.copy())[1].weight)

    def consensus(self, state: State, ranks: Ranks, each: Each = map) -> Tensor:
        """The server's model, [d]."""
        return self.common(state)


SERVERS: dict[str, Constructor[ServerAlgorithm]] = {}


def server(
    title: str, what: str, sends: str, source: str, *, averaged: bool = False
) -> Callable[[Callable[..., ServerAlgorithm]], Make[ServerAlgorithm]]:
    """Enter an algorithm with a server into `SERVERS`, and make its function a constructor with all its options."""

    def decorate(function: Callable[..., ServerAlgorithm]) -> Make[ServerAlgorithm]:
        name, build = function.__name__.replace("_", "-"), checked(function)
        part = Part(name, build, what, sends, source, averaged=averaged)
        made = Constructor(
            name, title, source, (part,), lambda chosen: build(**chosen), with_schedules(parameters(function))
        )
        SERVERS[name] = made
        return made.function(function.__module__, function.__doc__)

    return decorate


def make_server_round(algorithm: ServerAlgorithm, clients: Clients) -> Round:
    """The function `state -> (state, info)` for one round of the server and its devices."""
    return lambda state: algorithm.round(state, replace(clients, t=state.t))


@dataclass(frozen=True)
class Replies:
    """What the devices [m] of a round offer the server: models [m, d] after their steps from `server` [d], losses."""

    clients: Clients
    devices: Tensor
    server: Tensor
    models: Tensor
    loss: Tensor
    eta: float


def stateless(
    eta: float | Schedule,
    local_steps: int | None,
    clients: int | None,
    combine: Callable[[Replies], tuple[Tensor, Tensor]],
) -> ServerAlgorithm:
    """A server whose only state is its model: `combine` gives the next model and each device's weight."""
    schedule, number = schedule_of("eta", eta), clients

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        devices, server, eta_t = clients.draw(number), state.theta[0], schedule(state.t)
        models = clients.send(server, devices)
        loss = clients.train(models, devices, clients.steps(local_steps or 1), eta_t)
        theta, weight = combine(Replies(clients, devices, server, models, loss, eta_t))
        return after(state, theta, {}, {}), clients.info(devices, loss, weight)

    return ServerAlgorithm(lambda theta, clients: State(0, theta, {}, {}), round, lambda state: state.theta[0])


def after(state: State, theta: Tensor, objective: dict[str, Tensor], optimizer: dict[str, Tensor]) -> State:
    """The state after a round in which the server computed theta [d]."""
    return State(state.t + 1, state.theta.copy_(theta), objective, optimizer)


def with_dual(theta: Tensor, clients: Clients) -> State:
    """The first state of a server with a mixture `dual` [K] of devices, from p, and an `average` model [1, d]."""
    return State(0, theta, {"dual": clients.share / clients.K}, {"average": theta[:1].clone()})


def after_dual_step(state: State, theta: Tensor, iterate: Tensor, rise: Tensor) -> State:
    """`after` for `with_dual`: dual <- P(dual + rise), and `average` is the mean of the iterates [d] of all rounds."""
    dual = project_on_simplex((state.objective["dual"] + rise)[None])[0]
    average = state.optimizer["average"].lerp_(iterate[None], 1 / (state.t + 1))
    return after(state, theta, {"dual": dual}, {"average": average})
