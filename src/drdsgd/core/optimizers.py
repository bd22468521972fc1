"""Gossip optimizers: weighted gradients -> the next models. Communication enters here, through `mix`.

An optimizer is three functions. `init(theta)` makes its state. `local(theta, gradient, state, t)` is each device's own
part of a step: it changes the device's rows of theta [n, d] and of the state in place. `combine(theta, state, mix)` is
the part with its neighbours, where `mix` is this round's gossip, x -> W_t x. `check(mixing)` refuses a mixing that the
method cannot use, and gives the reason.

Let g_i be the weighted gradient of device i at its model. In the order of a round:

    dsgd                    theta <- W (theta - eta g)
    momentum                m <- beta m + g;  theta <- W (theta - eta m)
    quasi_global_momentum   theta+ <- W (theta - eta (beta m + g));  m <- beta m + (1 - beta) (theta - theta+) / eta
    gradient_tracking       y <- W y + g - g_before;  theta <- W (theta - eta y)
    gt_adam                 y <- W (y + g - g_before);  theta <- W (theta - eta Adam's direction for y)
    d2                      psi <- theta - eta g;  theta <- W (psi + theta - psi_before)
    exact_diffusion         the same with (I + W) / 2
    choco                   x <- theta - eta g;  hat <- hat + Q(x - hat);  theta <- x + gamma (W hat - hat)
    push                    x <- P (x - eta g);  w <- P w;  theta <- x / w

The step size is a number or a schedule, `t -> eta_t`; there is no hidden one. `momentum`,
`quasi_global_momentum`, `gt_adam` and `choco` can compress their messages; an `Exchange` is how they average with
neighbours.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drdsgd.core.compression import Compressor, compressor
from drdsgd.core.parts import Part, declare
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.errors import InputError, named
from drdsgd.options import (
    Compression,
    Eta,
    Gamma,
    Momentum,
    Rule,
    SecondMomentum,
    adam_step,
    by_compression,
    checked,
    gamma_of,
    paper_step,
    renamed,
)
from drdsgd.topology.mixing import Mixing, least_eigenvalue

if TYPE_CHECKING:
    from drdsgd.core.engine import Combine, Mix
    from drdsgd.core.gradients import Gradient

__all__ = [
    "OPTIMIZERS", "Exchange", "GossipOptimizer", "OptimizerState", "as_they_are", "choco", "compressed", "d2", "dsgd",
    "exact_diffusion", "gradient_tracking", "gt_adam", "momentum", "push", "quasi_global_momentum",
]  # fmt: skip

OPTIMIZERS: dict[str, Part] = {}
OptimizerState = dict[str, Tensor]

# what compressed messages rely on
COPIES = "the copies that neighbours have of each other's models"
# what tracking relies on
SUM = "the sum of what devices track"
# added to the root of Adam's second moment, to avoid a division by zero
EPS = 1e-8


def balanced(mixing: Mixing) -> None:
    """Refuse a W_t that does not keep the mean."""
    if not mixing.balanced:
        what, instead = mixing.unbalanced
        raise InputError(
            f"{what} is not doubly stochastic, and gossip would not keep the mean: use {named('optimizer', 'push')}, "
            f"or {instead}"
        )


def constant_over_time(method: str, instead: str = "gradient-tracking") -> Callable[[Mixing], None]:
    """Refuse a W_t that changes, and say what to use instead."""

    def check(mixing: Mixing) -> None:
        balanced(mixing)
        if not mixing.static:
            raise InputError(
                f"{method} needs the same W in every round, because its state belongs to one W; "
                f"use {instead}, or a mixing that does not change"
            )

    return check


@dataclass(frozen=True)
class GossipOptimizer:
    """`init(theta [n, d]) -> state`, `local(theta, gradient, state, t)`, `combine(theta, state, mix) -> theta, state`.

    `local` works in place and row by row, so it may be called for some of the devices at a time. `combine` works
    column by column, so it may be called for some of the columns, a multiple of `together`, at a time; with None it
    needs all. `keeps` names what a lost message would destroy; if it is not empty, the optimizer needs an engine that
    loses no message.
    """

    init: Callable[[Tensor], OptimizerState]
    local: Callable[[Tensor, Gradient, OptimizerState, int], None]
    combine: Combine
    check: Callable[[Mixing], None] = balanced
    keeps: str = ""
    together: int | None = None


@dataclass(frozen=True)
class Exchange:
    """How models are averaged: `init(theta) -> state`, `average(theta, state, mix) -> theta`; it overwrites theta.

    `keeps` and `together` are as in `GossipOptimizer`.
    """

    init: Callable[[Tensor], OptimizerState]
    average: Callable[[Tensor, OptimizerState, Mix], Tensor]
    check: Callable[[Mixing], None] = balanced
    keeps: str = ""
    together: int | None = None

    def combine(self, theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        """`GossipOptimizer.combine` of an optimizer that averages models and does nothing else."""
        return self.average(theta, state, mix), state


# how messages travel: a spelling such as top:0.1, a compressor, an exchange, or None for uncompressed messages
Messages = Compression | Compressor | Exchange | None


def as_they_are() -> Exchange:
    """`theta <- W theta`.

    >>> as_they_are().init(torch.zeros(2, 3))
    {}
    """
    return Exchange(lambda theta: {}, lambda theta, state, mix: mix(theta, donate=True), together=1)


@checked
def compressed(compressor: Compressor, gamma: Gamma = by_compression) -> Exchange:
    """Neighbours keep a copy `hat` of each model, and messages hold the compressed difference.

        hat <- hat + Q(theta - hat),  theta <- theta + gamma (W hat - hat)

    This is done as often as a round gossips. Without compression and with gamma = 1 it is `as_they_are`. See `choco`.

    >>> from drdsgd.core.compression import top_k
    >>> sorted(compressed(top_k(0.1), gamma=0.5).init(torch.zeros(2, 3)))
    ['hat', 'mixed_hat']
    """
    step = gamma_of(compressor.spelled) if isinstance(gamma, Rule) else gamma

    def average(theta: Tensor, state: OptimizerState, mix: Mix) -> Tensor:
        hat, mixed = state["hat"], state["mixed_hat"]
        for again in range(mix.repeats):
            mix.compressed(theta, hat, mixed, compressor, mix.t * mix.repeats + again)
            theta.add_(mixed, alpha=step).sub_(hat, alpha=step)
        return theta

    # all devices start from the same model, so the first copies need not be sent
    return Exchange(
        lambda theta: {"hat": theta.clone(), "mixed_hat": theta.clone()},
        average,
        constant_over_time("compression", f"{named('compression', 'none')} with gamma 1 (its default)"),
        COPIES,
        compressor.together,
    )


def exchange_of(compression: Messages, gamma: Gamma = by_compression) -> Exchange:
    """How messages travel: as they are, or compressed by a compressor or its spelling.

    >>> sorted(exchange_of("quantize:4").init(torch.zeros(2, 3))), exchange_of(None).init(torch.zeros(2, 3))
    (['hat', 'mixed_hat'], {})
    """
    if isinstance(compression, Exchange):
        return compression
    Q = compressor(compression) if isinstance(compression, str) else compression
    if Q is None or (Q.spelled == "none" and (isinstance(gamma, Rule) or gamma == 1)):
        return as_they_are()
    return compressed(Q, gamma)


@declare(OPTIMIZERS, "theta <- W (theta - eta g)", "d", "Lian et al., NeurIPS 2017; Yuan, Ling and Yin, 2016")
def dsgd(eta: Eta | Schedule = paper_step, exchange: Exchange | None = None) -> GossipOptimizer:
    """The paper's step: `theta_i <- sum_j W_ij (theta_j - eta grad_j)`.

    >>> dsgd(eta=-1.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: eta=-1.0: input should be greater than 0 (step size)
    """
    if exchange is not None:
        warnings.warn(
            "dsgd(eta, exchange) is now choco(eta, exchange); the old way will be removed in the next release",
            DeprecationWarning,
            stacklevel=3,  # past the checks of options
        )
    return _dsgd(eta, exchange or as_they_are())


def _dsgd(eta: float | Schedule, exchange: Exchange) -> GossipOptimizer:
    schedule = schedule_of("eta", eta)

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        gradient.add_to(theta, -schedule(t))

    return GossipOptimizer(exchange.init, local, exchange.combine, exchange.check, exchange.keeps, exchange.together)


@renamed(beta="momentum", exchange="compression")
@declare(OPTIMIZERS, "momentum on every device", "d, or compressed d", "Yu, Jin and Yang, ICML 2019")
def momentum(
    eta: Eta | Schedule = paper_step,
    momentum: Momentum = 0.9,
    compression: Messages = None,
    gamma: Gamma = by_compression,
) -> GossipOptimizer:
    """Heavy-ball momentum on each device: `m <- beta m + g`, `theta <- W (theta - eta m)`.

    H. Yu, R. Jin and S. Yang, "On the Linear Speedup Analysis of Communication Efficient Momentum SGD", ICML 2019.

    >>> sorted(momentum(eta=0.1).init(torch.zeros(2, 3)))
    ['momentum']
    """
    schedule, beta, exchange = schedule_of("eta", eta), momentum, exchange_of(compression, gamma)

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        m = state["momentum"].mul_(beta)
        gradient.add_to(m, 1.0)
        theta.sub_(m, alpha=schedule(t))

    def init(theta: Tensor) -> OptimizerState:
        return {"momentum": torch.zeros_like(theta), **exchange.init(theta)}

    return GossipOptimizer(init, local, exchange.combine, exchange.check, exchange.keeps, exchange.together)


@renamed(beta="momentum", exchange="compression")
@declare(
    OPTIMIZERS, "momentum of the models' changes, including gossip", "d, or compressed d",
    "Lin, Karimireddy, Stich and Jaggi, ICML 2021",
)  # fmt: skip
def quasi_global_momentum(
    eta: Eta | Schedule = paper_step,
    momentum: Momentum = 0.9,
    compression: Messages = None,
    gamma: Gamma = by_compression,
) -> GossipOptimizer:
    """Momentum of how the model moved, gossip included, instead of the device's own gradients.

        theta+ <- W (theta - eta (beta m + g)),  m <- beta m + (1 - beta) (theta - theta+) / eta

    T. Lin, S. P. Karimireddy, S. U. Stich and M. Jaggi, "Quasi-Global Momentum", ICML 2021.

    >>> sorted(quasi_global_momentum(eta=0.1).init(torch.zeros(2, 3)))
    ['before', 'momentum']
    """
    schedule, beta, exchange = schedule_of("eta", eta), momentum, exchange_of(compression, gamma)

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        state["before"].copy_(theta)
        gradient.add_to(theta, -schedule(t))
        theta.sub_(state["momentum"], alpha=schedule(t) * beta)

    def combine(theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        theta, eta_t = exchange.average(theta, state, mix), schedule(mix.t)
        # a step size of (almost) zero says nothing about the direction, and dividing by it would overflow
        if eta_t >= torch.finfo(theta.dtype).tiny:
            moved = state["before"].sub_(theta)
            state["momentum"].mul_(beta).add_(moved, alpha=(1 - beta) / eta_t)
        return theta, state

    def init(theta: Tensor) -> OptimizerState:
        return {"momentum": torch.zeros_like(theta), "before": torch.zeros_like(theta), **exchange.init(theta)}

    return GossipOptimizer(init, local, combine, exchange.check, exchange.keeps, exchange.together)


@declare(
    OPTIMIZERS, "steps along a gossiped estimate of the mean gradient", "2 d",
    "Di Lorenzo and Scutari, 2016; Pu and Nedic, 2021",
)  # fmt: skip
def gradient_tracking(eta: Eta | Schedule = paper_step) -> GossipOptimizer:
    """A step along each device's estimate y_i of the mean gradient.

        y <- W y + g - g_before,  theta <- W (theta - eta y)

    The sum of all y equals the sum of all last gradients, for every doubly stochastic W_t. Two messages of d numbers.
    P. Di Lorenzo and G. Scutari, "NEXT", 2016; A. Nedic, A. Olshevsky and W. Shi, 2017; S. Pu and
    A. Nedic, "Distributed Stochastic Gradient Tracking Methods", 2021.

    >>> sorted(gradient_tracking(eta=0.1).init(torch.zeros(2, 3)))
    ['gradient', 'tracked']
    """
    schedule = schedule_of("eta", eta)

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        _track(gradient, state)
        theta.sub_(state["tracked"], alpha=schedule(t))

    def combine(theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        return mix(theta, donate=True), {**state, "tracked": mix(state["tracked"], donate=True)}

    def init(theta: Tensor) -> OptimizerState:
        return {"tracked": torch.zeros_like(theta), "gradient": torch.zeros_like(theta)}

    return GossipOptimizer(init, local, combine, keeps=SUM, together=1)


@renamed(beta="momentum", beta2="second_momentum", exchange="compression")
@declare(
    OPTIMIZERS, "Adam along a gossiped estimate of the mean gradient; models and estimates are averaged after the step",
    "2 d, or compressed 2 d", "Carnevale, Farina, Notarnicola and Notarstefano, IEEE TCNS 2023",
)  # fmt: skip
def gt_adam(
    eta: Eta | Schedule = adam_step,
    momentum: Momentum = 0.9,
    second_momentum: SecondMomentum = 0.99,
    compression: Messages = None,
    gamma: Gamma = by_compression,
) -> GossipOptimizer:
    """Adam's step along each device's estimate y_i of the mean gradient.

        y <- W (y + g - g_before),  m <- beta m + (1 - beta) y,  v <- beta2 v + (1 - beta2) y^2,
        theta <- W (theta - eta (m / c) / (sqrt(v / c2) + 1e-8))   with c = 1 - beta^(t+1), c2 = 1 - beta2^(t+1)

    beta is `momentum`, beta2 `second_momentum`.
    Adam on each device's own gradient would scale every device differently, and the mean model would not follow the
    mean gradient. Here all devices scale nearly the same gradient. Two messages, each of d numbers or compressed.
    G. Carnevale, F. Farina, I. Notarnicola and G. Notarstefano, "GTAdam", IEEE TCNS 2023; they have no c, bound v, and
    do not average the newest gradient and the newest step.

    Weight decay is part of the gradient, so Adam scales it too: even a small one moves a parameter that has no other
    gradient by eta in a round. Compressed messages need at least 4 bits, else the y drift apart. In float32, rounding
    moves the mean of compressed y slightly over thousands of rounds.

    >>> sorted(gt_adam(eta=0.01).init(torch.zeros(2, 3)))
    ['first', 'gradient', 'second', 'tracked']
    """
    schedule, exchange = schedule_of("eta", eta), exchange_of(compression, gamma)
    beta, beta2 = momentum, second_momentum

    def init(theta: Tensor) -> OptimizerState:
        state = {name: torch.zeros_like(theta) for name in ("tracked", "gradient", "first", "second")}
        copies = exchange.init(state["tracked"])
        return {**state, **{f"tracked_{name}": copy for name, copy in copies.items()}, **exchange.init(theta)}

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        _track(gradient, state)

    def combine(theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        copies = {name.removeprefix("tracked_"): copy for name, copy in state.items() if name.startswith("tracked_")}
        y, m, v = exchange.average(state["tracked"], copies, mix), state["first"], state["second"]
        m.lerp_(y, 1 - beta)
        v.mul_(beta2).addcmul_(y, y, value=1 - beta2)
        scale = v.sqrt().div_(math.sqrt(1 - beta2 ** (mix.t + 1))).add_(EPS)
        theta.addcdiv_(m, scale, value=-schedule(mix.t) / (1 - beta ** (mix.t + 1)))
        return exchange.average(theta, state, mix), {**state, "tracked": y}

    keeps = " and ".join(filter(None, (SUM, exchange.keeps)))
    return GossipOptimizer(init, local, combine, exchange.check, keeps, exchange.together)


def _track(gradient: Gradient, state: OptimizerState) -> None:
    """`y <- y + g - g_before`, in place, so the sum of all y stays the sum of all last gradients."""
    g, y = state["gradient"], state["tracked"]
    y.sub_(g)
    g.zero_()
    gradient.add_to(g, 1.0)
    y.add_(g)


@declare(
    OPTIMIZERS, "no bias from heterogeneous data; needs a constant W with least eigenvalue above -1/3", "d",
    "Tang, Lian, Yan, Zhang and Liu, ICML 2018",
)  # fmt: skip
def d2(eta: Eta | Schedule = paper_step) -> GossipOptimizer:
    """`theta_{t+1} = W (2 theta_t - theta_{t-1} - eta_t g_t + eta_{t-1} g_{t-1})`: no bias from unlike data.

    W must be constant, and its smallest eigenvalue must be above -1/3. H. Tang, X. Lian, M. Yan, C. Zhang and J. Liu,
    "D2: Decentralized Training over Decentralized Data", ICML 2018.

    >>> sorted(d2(eta=0.1).init(torch.zeros(2, 3)))
    ['correction']
    """
    constant = constant_over_time("d2")

    def check(mixing: Mixing) -> None:
        constant(mixing)
        if (least := least_eigenvalue(mixing)) <= -1 / 3 + 1e-9:
            raise InputError(
                f"d2 needs a W whose smallest eigenvalue is above -1/3, and this graph's is {least:.3f}: "
                "use exact-diffusion, which is the same with (I + W) / 2"
            )

    return _diffusion(eta, lambda phi, mix: mix(phi, donate=True), check)


@declare(OPTIMIZERS, "d2 with (I + W) / 2; needs a constant W", "d", "Yuan, Ying, Zhao and Sayed, 2019")
def exact_diffusion(eta: Eta | Schedule = paper_step) -> GossipOptimizer:
    """`psi <- theta - eta g`, `theta <- (I + W) / 2 (psi + theta - psi_before)`: D2 for every graph.

    K. Yuan, B. Ying, X. Zhao and A. H. Sayed, "Exact Diffusion for Distributed Optimization and Learning", 2019.

    >>> sorted(exact_diffusion(eta=0.1).init(torch.zeros(2, 3)))
    ['correction']
    """
    # in phi's memory: with another alignment, products would round differently after a resume
    return _diffusion(eta, lambda phi, mix: phi.add_(mix(phi)).div_(2), constant_over_time("exact-diffusion"))


def _diffusion(
    eta: float | Schedule, average: Callable[[Tensor, Mix], Tensor], check: Callable[[Mixing], None]
) -> GossipOptimizer:
    """The common part of D2 and exact diffusion; correction = theta_t - psi_t = theta_t - theta_{t-1} + eta g_{t-1}."""
    schedule = schedule_of("eta", eta)

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        gradient.add_to(theta, -schedule(t))  # psi
        before = state["correction"].clone()
        torch.neg(theta, out=state["correction"])
        theta.add_(before)

    def combine(theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        theta = average(theta, mix)
        state["correction"].add_(theta)
        return theta, state

    keeps = "the correction, which belongs to one W"
    return GossipOptimizer(lambda theta: {"correction": torch.zeros_like(theta)}, local, combine, check, keeps, 1)


@renamed(compressor="compression")
@declare(
    OPTIMIZERS, "compressed messages with memory; needs a constant W", "compressed d",
    "Koloskova, Lin, Stich and Jaggi, ICLR 2020",
)  # fmt: skip
def choco(
    eta: Eta | Schedule = paper_step, compression: Messages = "quantize:4", gamma: Gamma = by_compression
) -> GossipOptimizer:
    """DSGD with compressed messages: `x <- theta - eta g`, `hat <- hat + Q(x - hat)`, `theta <- x + gamma (W - I) hat`.

    Without compression and with gamma = 1 it is DSGD. A. Koloskova, T. Lin, S. U. Stich and M. Jaggi, "Decentralized
    Deep Learning with Arbitrary Communication Compression", ICLR 2020.

    >>> sorted(choco(eta=0.1, compression="top:0.1").init(torch.zeros(2, 3)))
    ['hat', 'mixed_hat']
    """
    return _dsgd(eta, exchange_of(compression, gamma))


@declare(
    OPTIMIZERS, "gradient push; also works on directed graphs", "d + 1", "Assran, Loizou, Ballas and Rabbat, ICML 2019",
)  # fmt: skip
def push(eta: Eta | Schedule = paper_step) -> GossipOptimizer:
    """Stochastic gradient push, for directed graphs: `x <- P (x - eta g)`, `w <- P w`, `theta <- x / w`.

    The columns of P sum to one, but its rows need not. w is the mass that has gathered at a device, by which x must be
    divided. d + 1 numbers. M. Assran, N. Loizou, N. Ballas and M. Rabbat, "Stochastic Gradient Push", ICML 2019.

    >>> push(eta=0.1).init(torch.zeros(2, 3))
    {'mass': tensor([1., 1.])}
    """
    schedule = schedule_of("eta", eta)

    def local(theta: Tensor, gradient: Gradient, state: OptimizerState, t: int) -> None:
        gradient.add_to(theta, -schedule(t) / state["mass"])
        theta.mul_(state["mass"][:, None])  # x

    def combine(theta: Tensor, state: OptimizerState, mix: Mix) -> tuple[Tensor, OptimizerState]:
        mass = mix(state["mass"])
        return mix(theta, donate=True).div_(mass[:, None]), {"mass": mass}

    def init(theta: Tensor) -> OptimizerState:
        return {"mass": theta.new_ones(len(theta))}

    return GossipOptimizer(init, local, combine, lambda mixing: None, "the mass of all devices")
