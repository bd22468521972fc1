"""Learning with a server: the systems that the paper sets itself against, each by its own rule.

In a round the server hands a model theta to some devices, these take tau steps of SGD from it on their own batches,
and the server makes the next theta of what comes back. With theta_i device i's model after its steps, f_i its loss at
theta (on its first batch), p_i = n_i / n (or 1 / K), and sums over the devices that take part:

    fed_avg      theta <- sum p_i theta_i / sum p_i                                              d down, d up
    afl          theta <- sum lambda_i theta_i,  lambda <- P(lambda + eta' f)                    d, d + 1
    drfa         theta <- mean theta_i over i drawn by lambda,  lambda <- P(lambda + tau eta' (K/m) f(snapshot))
                                               d + 1, 2 d (d where tau = 1); and d, 1 with those that are asked
    q_fed_avg    theta <- theta - sum a_i (theta - theta_i) / sum a_i (1 + q |theta - theta_i|^2 / (eta f_i)),
                 a_i = p_i f_i^q                                                                 d, d + 1
    fed_term     theta <- sum a_i theta_i / sum a_i,  a_i = p_i exp(t f_i)                       d, d + 1
    fed_robust   as fed_avg, while each device bends its inputs, x -> Lambda_i x + delta_i, to raise its loss    d, d
    ditto        as fed_avg, and personal models  v_i <- v_i - eta (g_i(v_i) + lam (v_i - theta))       d, d
    rfa          theta <- the geometric median of theta_i, by R more averages                    d + R d, d + R (d + 1)

An algorithm is a value, as elsewhere: `init`, `round` and `common`, the model that the server hands out. `Clients` is
the only thing that crosses between the server and its devices, and counts what does. Which devices take part is, like
their batches, a function of (seed, device, round).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from drdsgd.batches import Batches, philox
from drdsgd.errors import Diverged, InputError, positive, whole
from drdsgd.flat import Flat, aligned
from drdsgd.gradients import Execution, Forward, Loss
from drdsgd.mixing import Mixing
from drdsgd.objectives import project_on_simplex
from drdsgd.options import unknown
from drdsgd.parallel import Each
from drdsgd.round import Info, Round, State
from drdsgd.schedules import Schedule, schedule_of

__all__ = [
    "Clients",
    "ServerAlgorithm",
    "afl",
    "ditto",
    "drfa",
    "fed_avg",
    "fed_robust",
    "fed_term",
    "make_server_round",
    "q_fed_avg",
    "rfa",
]

# what a random number is for: the fourth word of its counter, which is 0 for batches
TAKES_PART, ASKED, DRAWN, SNAPSHOT = 0x5E000001, 0x5E000002, 0x5E000003, 0x5E000004

Shift = Literal["matrix", "diagonal"]


def _together(n: int) -> Sequence[slice]:
    return [slice(0, n)]


@dataclass
class Clients:
    """The devices in round t, as the server sees them: draw some, send them a model, let them train, receive.

    `devices` are always numbers in increasing order, [m], and models [m, d] are their rows.
    """

    share: Tensor
    """K p_i, [K]."""
    batches: Batches
    flat: Flat
    forward: Forward
    loss: Loss = nn.functional.cross_entropy
    execution: Execution = "batched"
    parts_of: Callable[[int], Sequence[slice]] = _together
    each: Each = map
    t: int = 0
    floats_sent: int = 0
    """Numbers sent so far in this round, down to the devices and up from them."""

    @property
    def K(self) -> int:
        return len(self.share)

    def p(self, devices: Tensor) -> Tensor:
        """Reference weights of some devices, [m], that sum to 1."""
        share = self.share[devices]
        return share / share.sum()

    # who takes part

    def draw(self, number: int | None, purpose: int = TAKES_PART) -> Tensor:
        """So many devices, every set of them as likely as any other; all of them where number is None."""
        if number is None or number == self.K:
            return self._devices(np.arange(self.K))
        if number > self.K:
            raise InputError(f"clients is {number}, but there are {self.K} devices: ask for at most so many")
        words = self._random(np.arange(self.K), purpose)
        order = np.lexsort((words[:, 1], words[:, 0]))
        return self._devices(np.sort(order[:number]))

    def draw_by(self, probability: Tensor, number: int | None) -> tuple[Tensor, Tensor]:
        """So many devices (K where None), one after another by a probability [K], and how often each came: [m], [m]."""
        if not (finite := probability.isfinite()).all():
            device = int((~finite).nonzero()[0])
            raise Diverged(
                f"diverged in round {self.t}: the weight of device {device} is not finite; try a smaller eta",
                round=self.t,
                device=device,
            )
        u = self._random(np.arange(number or self.K), DRAWN)[:, 0] / 2**32
        ends = probability.double().cumsum(0).cpu().numpy()
        drawn, times = np.unique(np.searchsorted(ends, u * ends[-1], side="right"), return_counts=True)
        return self._devices(drawn), torch.from_numpy(times).to(self.share)

    def draw_step(self, local_steps: int) -> int:
        """One of 1, ..., local_steps, the same for all devices."""
        return 1 + int(self._random(np.arange(1), SNAPSHOT)[0, 0]) * local_steps // 2**32

    def _random(self, which: NDArray[np.int64], purpose: int) -> NDArray[np.uint64]:
        low, seed = 2**32 - 1, self.batches.seed
        return philox((0, which, self.t & low, purpose), (seed & low, (seed >> 32) & low))

    def _devices(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(self.share.device)

    # what crosses

    def send(self, x: Tensor, devices: Tensor) -> Tensor:
        """The same x [d] to some devices: a copy for each, [m, d]."""
        self.floats_sent += len(devices) * x.numel()
        return aligned(x.expand(len(devices), -1))

    def receive(self, x: Tensor) -> Tensor:
        """What devices have, [m, ...], at the server."""
        self.floats_sent += x.numel()
        return x

    # what devices do alone

    def steps(self, number: int) -> range:
        """The numbers of a round's batches, where every round has so many."""
        return range(self.t * number, (self.t + 1) * number)

    def batch(self, step: int, devices: Tensor) -> tuple[Tensor, Tensor]:
        """The batches of some devices, features [m, B, ...] and labels [m, B]."""
        first, last = int(devices[0]), int(devices[-1])
        x, y = self.batches(step, slice(first, last + 1))
        return (x, y) if len(x) == len(devices) else (x[devices - first], y[devices - first])

    def train(
        self,
        models: Tensor,
        devices: Tensor,
        steps: range,
        eta: float,
        centre: Tensor | None = None,
        pull: float = 0.0,
    ) -> Tensor:
        """SGD in place, `theta_i <- theta_i - eta (g_i + pull (theta_i - centre))`; the first step's losses [m]."""

        def alone(some: slice) -> Tensor:
            theta, losses = models[some], []
            for step in steps:
                loss, backward = self.forward(theta, *self.batch(step, devices[some]))
                apart = None if centre is None else theta - centre
                backward(torch.full_like(loss, -eta), theta)
                if apart is not None:
                    theta.sub_(apart, alpha=eta * pull)
                losses.append(loss)
            return losses[0]

        return torch.cat(list(self.each(alone, self.parts_of(len(devices)))))

    def losses(self, models: Tensor, devices: Tensor, step: int) -> Tensor:
        """The losses [m] of models [m, d], each on its device's batch."""
        parts = self.parts_of(len(devices))
        return torch.cat(
            list(self.each(lambda some: self.forward(models[some], *self.batch(step, devices[some]))[0], parts))
        )

    def info(self, devices: Tensor, loss: Tensor, weight: Tensor) -> Info:
        """What a person wants to see: losses [m], and how much each device's steps counted [m], 1 on average over all.

        A device that did not take part has weight 0, and as its loss the mean of those that are known.
        """
        losses = torch.full_like(self.share, float(loss[loss.isfinite()].mean()))
        losses[devices] = loss.to(losses)
        weights = torch.zeros_like(self.share)
        weights[devices] = self.K * weight
        return Info(losses, weights, self.floats_sent)


@dataclass(frozen=True)
class ServerAlgorithm:
    """`init(theta [K, d], clients) -> state`, `round(state, clients) -> state, info`, `common(state) -> model [d]`.

    The rows of a state's theta are the devices' models: the server's, unless devices keep models of their own. `round`
    takes the given state over and works in its tensors, of which each has a row per device, or one row.
    """

    init: Callable[[Tensor, Clients], State]
    round: Callable[[State, Clients], tuple[State, Info]]
    common: Callable[[State], Tensor]
    name: str = "your server"

    def check(self, mixing: Mixing) -> None:
        """Every mixing will do: the graph is not used."""


def make_server_round(algorithm: ServerAlgorithm, clients: Clients) -> Round:
    """The function `state -> (state, info)` that takes the server and its devices through one round."""
    return lambda state: algorithm.round(state, replace(clients, t=state.t))


def fed_avg(eta: float | Schedule, local_steps: int = 1, clients: int | None = None) -> ServerAlgorithm:
    """Average risk: the server averages the models of devices, by their samples.

    `clients` of the devices take part in a round, drawn uniformly; by default all. B. McMahan, E. Moore, D. Ramage,
    S. Hampson and B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.

    >>> fed_avg(eta=0.1, local_steps=0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: local_steps must be a whole number, at least 1, got 0: change local_steps
    """

    def combine(told: _Told) -> tuple[Tensor, Tensor]:
        weight = told.clients.p(told.devices)
        return weight @ told.clients.receive(told.models), weight

    return _of_models("FedAvg", eta, local_steps, clients, combine)


def fed_term(
    eta: float | Schedule, t: float = 1.0, local_steps: int = 1, clients: int | None = None
) -> ServerAlgorithm:
    """Tilted risk over devices, `(1/t) log sum_i p_i exp(t f_i)`: eq. 5 of the paper with mu = 1 / t.

    The problem that DR-DSGD solves without a server; here the weights `p_i exp(t f_i)` are normalised exactly, over
    the devices that take part. T. Li, A. Beirami, M. Sanjabi and V. Smith, "Tilted Empirical Risk Minimization",
    ICLR 2021 (group TERM, a device is a group).

    >>> fed_term(eta=0.1, t=2.0).name
    'FedTERM with t = 2'
    """
    positive("t", t, "0 is average risk, 1 / t is mu")

    def combine(told: _Told) -> tuple[Tensor, Tensor]:
        models, loss = told.clients.receive(told.models), told.clients.receive(told.loss)
        weight = torch.softmax(t * loss + told.clients.p(told.devices).log(), dim=0)
        return weight @ models, weight

    return _of_models(f"FedTERM with t = {t:g}", eta, local_steps, clients, combine)


def q_fed_avg(
    eta: float | Schedule, q: float = 1.0, local_steps: int = 1, clients: int | None = None
) -> ServerAlgorithm:
    """q-fair risk, `sum_i p_i f_i^(q+1) / (q+1)`, with a step that an estimate of its Lipschitz constant sets.

        theta <- theta - sum p_i f_i^q u_i / sum p_i (q f_i^(q-1) |u_i|^2 + f_i^q / eta),  u_i = (theta - theta_i) / eta

    At q = 0 it is FedAvg; the larger q, the shorter its steps. T. Li, M. Sanjabi, A. Beirami and V. Smith, "Fair
    Resource Allocation in Federated Learning", ICLR 2020 (q-FedAvg, with L = 1 / eta).

    >>> q_fed_avg(eta=0.1, q=2.0).name
    'q-FedAvg with q = 2'
    """
    _not_negative("q", q, "0 is average risk, 1 to 5 are usual")

    def combine(told: _Told) -> tuple[Tensor, Tensor]:
        moved = told.clients.receive(told.server - told.models)
        f = told.clients.receive(told.loss).clamp(min=1e-10)  # f^(q-1) is no number at 0
        # both sums over the largest f^q, which is beyond the floats sooner than they are
        a = told.clients.p(told.devices) * (f / f.max()) ** q
        eta_t = max(told.eta, torch.finfo(f.dtype).tiny)  # where no step was taken, nothing moved
        weight = a / (a * (1 + q * moved.square().sum(dim=1) / (eta_t * f))).sum()
        return told.server - weight @ moved, weight

    return _of_models(f"q-FedAvg with q = {q:g}", eta, local_steps, clients, combine)


def rfa(
    eta: float | Schedule,
    iterations: int = 4,
    nu: float = 1e-6,
    local_steps: int = 1,
    clients: int | None = None,
) -> ServerAlgorithm:
    """FedAvg with the geometric median, `min_z sum p_i |z - theta_i|`, in place of the mean. Another problem than ours.

    It is meant for corrupted updates, and trusts a device that differs from most *less*. The smoothed Weiszfeld
    algorithm begins with the mean; then, so many times,

        z <- sum b_i theta_i / sum b_i,  b_i = p_i / max(nu, |z - theta_i|)

    where devices compute b_i, and the server gets nothing but sums: each iteration sends z down, and up a model with
    its weight. What is left of a far outlier falls by (its share) / (the others') in every iteration. K. Pillutla,
    S. M. Kakade and Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022.

    >>> rfa(eta=0.1).name
    'RFA'
    """
    whole("iterations", iterations)
    positive("nu", nu, "1e-6 is usual")

    def combine(told: _Told) -> tuple[Tensor, Tensor]:
        devices, models, crossing = told.devices, told.models, told.clients
        weight = p = crossing.p(devices)
        median = weight @ crossing.receive(models)
        for _ in range(iterations):
            apart = torch.linalg.vector_norm(models - crossing.send(median, devices), dim=1)
            b = crossing.receive(p / apart.clamp(min=nu))
            weight = b / b.sum()
            median = weight @ crossing.receive(models)
        return median, weight

    return _of_models("RFA", eta, local_steps, clients, combine)


def afl(eta: float | Schedule, dual_eta: float | Schedule = 0.01) -> ServerAlgorithm:
    """The worst mixture of devices, `min_theta max_lambda sum_i lambda_i f_i`, lambda anywhere in the simplex.

        theta <- theta - eta sum lambda_i g_i,  lambda <- P(lambda + dual_eta f)

    from lambda = p, with one gradient of every device per round (their PerDomain gradient). The common model is the
    average of all theta so far, for which they have guarantees; the last one is every device's own. M. Mohri, G. Sivek
    and A. T. Suresh, "Agnostic Federated Learning", ICML 2019 (Stochastic-AFL).

    >>> afl(eta=0.1).name
    'AFL'
    """
    schedule, dual_schedule = _steps(eta), _dual_steps(dual_eta)

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        dual, devices, t = state.objective["dual"], clients.draw(None), state.t
        models = clients.send(state.theta[0], devices)
        loss = clients.receive(clients.train(models, devices, clients.steps(1), schedule(t)))
        # theta - eta g_i is sent for g_i: as lambda sums to 1, the same
        theta = dual @ clients.receive(models)
        info = clients.info(devices, loss, dual)
        after = project_on_simplex((dual + dual_schedule(t) * loss)[None])[0]
        return _next(state, theta, {"dual": after}, {"average": _averaged(state, theta)}), info

    return ServerAlgorithm(_with_dual, round, lambda state: state.optimizer["average"][0], "AFL")


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
    schedule, dual_schedule = _steps(eta), _dual_steps(dual_eta)
    tau, number = whole("local_steps", local_steps), _number(clients)

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

        asked = clients.draw(number, ASKED)
        f = torch.zeros_like(dual)
        f[asked] = clients.receive(clients.losses(clients.send(snapshot, asked), asked, steps[tau]))
        rise = tau * dual_schedule(t) * clients.K / len(asked) * f
        ostate = {"dual": project_on_simplex((dual + rise)[None])[0]}
        info = clients.info(devices, loss, weight)
        return _next(state, theta, ostate, {"average": _averaged(state, snapshot)}), info

    return ServerAlgorithm(_with_dual, round, lambda state: state.optimizer["average"][0], "DRFA")


def ditto(eta: float | Schedule, lam: float = 1.0, local_steps: int = 1, clients: int | None = None) -> ServerAlgorithm:
    """A personal model v_i for every device, `min f_i(v_i) + lam / 2 |v_i - theta|^2`. Another problem than ours.

    theta is the server's model, by FedAvg. Devices that take part train both on the same batches, and v_i towards the
    theta that they were handed. A state's theta are the personal models, the common one is the server's. T. Li, S. Hu,
    A. Beirami and V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.

    >>> ditto(eta=0.1, lam=0.5).name
    'Ditto with lam = 0.5'
    """
    schedule, tau, number = _steps(eta), whole("local_steps", local_steps), _number(clients)
    _not_negative("lam", lam, "0 is everybody alone, 0.1 to 2 are usual")

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        devices, server, eta_t = clients.draw(number), state.optimizer["server"], schedule(state.t)
        models, steps = clients.send(server[0], devices), clients.steps(tau)
        personal = state.theta[devices]
        clients.train(personal, devices, steps, eta_t, server[0], lam)
        state.theta[devices] = personal
        loss = clients.train(models, devices, steps, eta_t)
        weight = clients.p(devices)
        server[0] = weight @ clients.receive(models)
        return state._replace(t=state.t + 1), clients.info(devices, loss, weight)

    return ServerAlgorithm(
        lambda theta, clients: State(0, theta, {}, {"server": theta[:1].clone()}),
        round,
        lambda state: state.optimizer["server"][0],
        f"Ditto with lam = {lam:g}",
    )


def fed_robust(
    eta: float | Schedule,
    penalty: float = 1.0,
    shift_eta: float = 0.01,
    local_steps: int = 1,
    clients: int | None = None,
    shift: Shift = "matrix",
) -> ServerAlgorithm:
    """The worst affine shift of every device's inputs, `x -> Lambda_i x + delta_i`. Another problem than ours.

        min_theta  sum_i p_i max_{Lambda_i, delta_i}  f_i(theta; Lambda_i x + delta_i)
                                                      - penalty (|Lambda_i - I|^2 + |delta_i|^2)

    Devices count by p_i whatever their losses; what is guarded against is that inputs change. Each local step
    descends in theta and, from the same point, ascends in the shift, which stays on its device; the server averages
    theta. A `shift` "matrix" has as many numbers as an input has, squared; "diagonal" is for large inputs.
    A. Reisizadeh, F. Farnia, R. Pedarsani and A. Jadbabaie, "Robust Federated Learning: The Case of Affine
    Distribution Shifts", NeurIPS 2020.

    >>> fed_robust(eta=0.1, penalty=200.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: shift_eta * penalty must be below 1, or the shift runs away: 0.01 * 200; lower shift_eta
    """
    schedule, tau, number = _steps(eta), whole("local_steps", local_steps), _number(clients)
    positive("penalty", penalty, "the larger, the smaller the shifts")
    if positive("shift_eta", shift_eta) * penalty >= 1:
        raise InputError(
            f"shift_eta * penalty must be below 1, or the shift runs away: {shift_eta:g} * {penalty:g}; lower shift_eta"
        )
    if shift not in (known := get_args(Shift)):
        raise InputError(f"shift is {shift!r}: {unknown(str(shift), known)}")

    def init(theta: Tensor, clients: Clients) -> State:
        if not clients.batches.dtype.is_floating_point:
            raise InputError(
                "FedRobust shifts inputs a little, but this model takes whole numbers (it embeds them?), which can't "
                "be: take another algorithm, such as fed_term"
            )
        features = math.prod(clients.batches.samples.x.shape[1:])
        size = (features, features) if shift == "matrix" else (features,)
        # Lambda - I, and delta
        shifts = {"bend": theta.new_zeros(clients.K, *size), "offset": theta.new_zeros(clients.K, features)}
        return State(0, theta, shifts, {})

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        devices, eta_t = clients.draw(number), schedule(state.t)
        models = clients.send(state.theta[0], devices)
        bends, offsets = state.objective["bend"][devices], state.objective["offset"][devices]

        def alone(some: slice) -> Tensor:
            theta, bend, offset, losses = models[some], bends[some], offsets[some], []
            for step in clients.steps(tau):
                x, y = clients.batch(step, devices[some])
                inputs = x.flatten(2)  # [n, B, features]
                bent = inputs @ bend.mT if shift == "matrix" else inputs * bend[:, None]
                loss, rise = _descend(clients, theta, x + (bent + offset[:, None]).view_as(x), y, eta_t)
                rise = rise.flatten(2)
                for part in (bend, offset):
                    part.mul_(1 - 2 * shift_eta * penalty)
                up = rise.mT @ inputs if shift == "matrix" else (rise * inputs).sum(dim=1)
                bend.add_(up, alpha=shift_eta)
                offset.add_(rise.sum(dim=1), alpha=shift_eta)
                losses.append(loss)
            return losses[0]

        loss = torch.cat(list(clients.each(alone, clients.parts_of(len(devices)))))
        state.objective["bend"][devices], state.objective["offset"][devices] = bends, offsets
        weight = clients.p(devices)
        theta = weight @ clients.receive(models)
        return _next(state, theta, state.objective, {}), clients.info(devices, loss, weight)

    return ServerAlgorithm(init, round, lambda state: state.theta[0], f"FedRobust with penalty {penalty:g}")


def _descend(clients: Clients, theta: Tensor, x: Tensor, y: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """A step of SGD in place on theta [n, d]; the losses [n], and their gradients with respect to x [n, B, ...]."""
    flat, loss = clients.flat, clients.loss
    leaves = {name: view.data.requires_grad_() for name, view in flat.views(theta).items()}
    x = x.requires_grad_()
    if clients.execution == "loop":
        rows = ({name: value[i] for name, value in leaves.items()} for i in range(len(theta)))
        losses = torch.stack([loss(flat.apply(row, xi), yi) for row, xi, yi in zip(rows, x, y, strict=True)])
    else:
        losses = vmap(lambda row, xi, yi: loss(flat.apply(row, xi), yi))(leaves, x, y)
    *gradients, rise = torch.autograd.grad(losses.sum(), [*leaves.values(), x], materialize_grads=True)
    for target, gradient in zip(flat.views(theta).values(), gradients, strict=True):
        target.sub_(gradient, alpha=eta)
    return losses.detach(), rise


@dataclass(frozen=True)
class _Told:
    """What the devices [m] of a round have for the server: models [m, d] after their steps from its own [d], losses."""

    clients: Clients
    devices: Tensor
    server: Tensor
    models: Tensor
    loss: Tensor
    eta: float


def _of_models(
    name: str,
    eta: float | Schedule,
    local_steps: int,
    clients: int | None,
    combine: Callable[[_Told], tuple[Tensor, Tensor]],
) -> ServerAlgorithm:
    """A server that keeps nothing but its model: `combine` gives the next one, and how much each device counted."""
    schedule, tau, number = _steps(eta), whole("local_steps", local_steps), _number(clients)

    def round(state: State, clients: Clients) -> tuple[State, Info]:
        devices, server, eta_t = clients.draw(number), state.theta[0], schedule(state.t)
        models = clients.send(server, devices)
        loss = clients.train(models, devices, clients.steps(tau), eta_t)
        theta, weight = combine(_Told(clients, devices, server, models, loss, eta_t))
        return _next(state, theta, {}, {}), clients.info(devices, loss, weight)

    return ServerAlgorithm(lambda theta, clients: State(0, theta, {}, {}), round, lambda state: state.theta[0], name)


def _next(state: State, theta: Tensor, objective: dict[str, Tensor], optimizer: dict[str, Tensor]) -> State:
    """The state after a round that left the server with theta [d]."""
    return State(state.t + 1, state.theta.copy_(theta), objective, optimizer)


def _with_dual(theta: Tensor, clients: Clients) -> State:
    return State(0, theta, {"dual": clients.share / clients.K}, {"average": theta[:1].clone()})


def _averaged(state: State, theta: Tensor) -> Tensor:
    """The mean of one more, [1, d]; what it is before the first round does not count."""
    return state.optimizer["average"].lerp_(theta[None], 1 / (state.t + 1))


def _steps(eta: float | Schedule) -> Schedule:
    return schedule_of("eta", eta, "0.01 to 0.5 are usual")


def _dual_steps(dual_eta: float | Schedule) -> Schedule:
    return schedule_of("dual_eta", dual_eta, "0.01 is usual")


def _number(clients: int | None) -> int | None:
    return None if clients is None else whole("clients", clients)


def _not_negative(argument: str, value: float, hint: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{argument} must be 0 or more: {value:g}; {hint}")
