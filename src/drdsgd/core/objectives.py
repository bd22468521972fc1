"""Objectives: a device's loss -> the weight of its gradient. Robustness enters here and nowhere else.

An objective is three functions. `init(hosted)` makes its state, of which every tensor has one row per device.
`weigh(loss, state, t)` is what every device does alone: it turns the mini-batch losses [n] of round t into weights [n]
and may change its rows of the state in place. `combine(state, mix)` is what it does with its neighbours, once per round
and at the same time as the models travel. So weights that depend on other devices' losses are those of the round
before, everybody's: were a device's own loss newer than what it is compared with, all weights would rise whenever all
losses do, and with them the steps.

`share [n]` = K p_i are the devices' reference weights: 1 for every device when all count the same (`p_i = 1/K`), and
n_i / mean n when they count by samples (`p_i = n_i / n`, eq. 1). With h_i = exp(f_i / mu):

    min_theta  sum_i p_i f_i(theta)                          erm          weight_i = K p_i
    min_theta  sum_i p_i exp(f_i(theta) / mu)    (eq. 6)     kl_dro       weight_i = K p_i h_i / mu
    min_theta  mu log sum_i p_i exp(f_i / mu)    (eq. 5)     kl_dro       weight_i = K p_i h_i / sum_j p_j h_j
    the same, with mu so that KL(lambda | p) = radius        kl_ball      weight_i = K p_i h_i / sum_j p_j h_j
    min_theta  sum_i p_i f_i^(q + 1) / (q + 1)               q_ffl        weight_i = K p_i f_i^q
    min_theta  max_lambda  sum_i lambda_i f_i - mu / 2 chi2(lambda | p)                 chi2_dro
    min_theta  max_lambda  sum_i lambda_i f_i - dual_penalty / 2 ||lambda - p||^2       ad_gda

The second and third have the same minimisers, those of the worst case over mixtures lambda of devices, held back by
the KL divergence from the reference (eq. 4); their steps differ in length only. See C. Ben Issaid, A. Elgabli and
M. Bennis, "DR-DSGD: A Distributionally Robust Decentralized Learning Algorithm over Graphs", TMLR 2022.

`smoothed`, `clipped` and `capped` take an objective and return one: against mini-batch noise, and against a device
whose loss can't be brought down and that would take the network with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.errors import InputError, positive, unknown

if TYPE_CHECKING:
    from drdsgd.core.engine import Mix
    from drdsgd.topology.mixing import Mixing

__all__ = [
    "NEWEST",
    "LocalDevices",
    "Objective",
    "ObjectiveState",
    "Weights",
    "ad_gda",
    "capped",
    "chi2_dro",
    "clipped",
    "erm",
    "kl_ball",
    "kl_dro",
    "project_on_simplex",
    "q_ffl",
    "smoothed",
    "term",
]

ObjectiveState = dict[str, Tensor]
Weights = Literal["as-written", "without-mu", "normalized"]
# log h of every device, from losses [n] and the round
LogH = Callable[[Tensor, int], Tensor]

# How much of a gossiped mean is the last round's: less would average over more devices of a sparse graph, but lag
# further behind the losses. 0.3 had the smallest error of 0.03, 0.1, 0.3 and 0.5 on ER(25, 0.3), for mu from 0.5 to 6.
NEWEST = 0.3


class LocalDevices(NamedTuple):
    """The n devices that live in this process: their reference weights, their numbers in the network, its size."""

    share: Tensor
    rows: Tensor
    K: int

    @staticmethod
    def all_of(share: Tensor) -> LocalDevices:
        """A network that lives here as a whole.

        >>> LocalDevices.all_of(torch.ones(3)).rows
        tensor([0, 1, 2])
        """
        return LocalDevices(share, torch.arange(len(share), device=share.device), len(share))


def _no_gossip(state: ObjectiveState, mix: Mix) -> ObjectiveState:
    return state


@dataclass(frozen=True)
class Objective:
    """`init(hosted) -> state`, `weigh(loss [n], state, t) -> weight [n]`, `combine(state, mix) -> state`.

    `weigh` works row by row, and in place on the state: it may be called for some of the devices at a time.
    """

    init: Callable[[LocalDevices], ObjectiveState]
    weigh: Callable[[Tensor, ObjectiveState, int], Tensor]
    combine: Callable[[ObjectiveState, Mix], ObjectiveState] = _no_gossip

    @property
    def gossips(self) -> bool:
        """Whether weights need other devices' losses, as those do that are normalised."""
        return self.combine is not _no_gossip

    def check(self, mixing: Mixing) -> None:
        """Refuse a W_t with which what devices gossip would not be a mean."""
        if self.gossips and not mixing.balanced:
            what, instead = mixing.unbalanced
            raise InputError(
                f"weights that need other devices' losses are gossiped, and {what} does not keep their "
                f"mean: use --objective erm, kl-dro with --weights as-written, or {instead}"
            )


def erm() -> Objective:
    """Average risk, the objective of DSGD: `weight_i = K p_i` (eq. 1 and 2).

    >>> objective = erm()
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.1, 5.0]), state, 0)
    tensor([1., 1.])
    """
    return Objective(_share_only, lambda loss, state, t: state["share"])


def kl_dro(mu: float | Schedule, loss_clip: float | None = None, weights: Weights = "as-written") -> Objective:
    """The paper's robust objective (eq. 6): `weight_i = K p_i h_i / mu` with `h_i = exp(loss_i / mu)`.

    `mu -> inf` is average risk, `mu -> 0` the worst case; it may be a schedule, `t -> mu_t`. `loss_clip` bounds the
    loss inside h (Assumption 4), not the gradient: `h_i = exp(min(loss_i, loss_clip) / mu)`. The weight is one
    exponential of `loss / mu - log mu`, so it overflows only where the weight itself is beyond the floats.

    `weights` "without-mu" are K p_i h_i. Those that are "normalized" are K p_i h_i / sum_j p_j h_j, about 1 on average,
    so that steps are as long as those of average risk: the gradient of eq. 5 instead of eq. 6. Every device estimates
    the sum by gossip of one number (see `_normalized`). For mu below about 0.1 the estimate stays behind losses that
    fall or jump, all weights go to 0, and training stalls: take a larger mu, or a schedule that begins with one, with
    `smoothed` losses and `capped` weights. Smoothing alone is not enough.

    >>> objective = kl_dro(mu=2.0)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.0, 2.0]), state, 0)
    tensor([0.5000, 1.3591])
    """
    mu_at = schedule_of("mu", mu, "the paper uses 2 to 9")
    if weights not in (known := get_args(Weights)):
        raise InputError(f"weights is {weights!r}: {unknown(str(weights), known)}")

    if weights == "normalized":
        objective = _normalized(lambda loss, t: loss / mu_at(t))
    else:

        def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
            log_scale = math.log(mu_at(t)) if weights == "as-written" else 0.0
            return state["share"] * torch.exp(loss / mu_at(t) - log_scale)

        objective = Objective(_share_only, weigh)
    return objective if loss_clip is None else clipped(objective, loss_clip)


def term(t: float) -> Objective:
    """Tilted risk over devices, `(1/t) log sum_i p_i exp(t f_i)`: eq. 5 with mu = 1 / t, so normalised `kl_dro`.

    T. Li, A. Beirami, M. Sanjabi and V. Smith, "Tilted Empirical Risk Minimization", ICLR 2021: group TERM, in which a
    device is a group; the tilt of single samples within a device is another problem.

    >>> term(-1.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: t must be a positive number: -1; 0 is average risk, 1 / t is mu
    """
    return kl_dro(1 / positive("t", t, "0 is average risk, 1 / t is mu"), weights="normalized")


def q_ffl(q: float, normalized: bool = True) -> Objective:
    """q-fair learning, `sum_i p_i f_i^(q+1) / (q+1)`: `weight_i = K p_i f_i^q`, by default over its gossiped mean.

    `q = 0` is average risk, `q -> inf` the worst case. T. Li, M. Sanjabi, A. Beirami and V. Smith, "Fair Resource
    Allocation in Federated Learning", ICLR 2020; normalising takes the place of their estimate of a Lipschitz constant.

    >>> objective = q_ffl(q=1.0, normalized=False)
    >>> objective.weigh(torch.tensor([0.5, 2.0]), objective.init(LocalDevices.all_of(torch.ones(2))), 0)
    tensor([0.5000, 2.0000])
    """
    if not (math.isfinite(q) and q >= 0):
        raise InputError(f"q must be 0 or more: {q:g}; 0 is average risk, 1 to 5 are usual")

    def log_h(loss: Tensor, t: int) -> Tensor:
        # of the smallest float rather than of 0, whose logarithm is no number to average
        return q * loss.clamp(min=torch.finfo(loss.dtype).tiny).log()

    if normalized:
        return _normalized(log_h)
    return Objective(_share_only, lambda loss, state, t: state["share"] * log_h(loss, t).exp())


def kl_ball(radius: float, mu: float = 1.0, least_mu: float = 0.1, step: float = 0.05) -> Objective:
    """The worst case over all mixtures of devices with `KL(lambda | p) <= radius`, mu found on the way.

    Its dual is `min over mu >= least_mu of mu log sum_i p_i h_i + mu radius` (appendix A.2), whose derivative in mu is
    `radius - KL(lambda(mu) | p)`: mu rises where the weights are further from the reference than the radius allows, and
    falls where they are nearer. Every device keeps a mu (from `mu` on) and estimates of log sum p h and of the
    divergence: three gossiped numbers. `step` is how far log mu moves in a round where the divergence is twice
    the radius, or beyond it, and the other way where there is none. It wants `capped` weights: mini-batches move
    losses by more than the mu of a small radius, and what they do to log sum p h is remembered (see `_normalized`).

    >>> objective = kl_ball(radius=0.1)
    >>> objective.init(LocalDevices.all_of(torch.ones(2)))["log_mu"]
    tensor([0., 0.])
    """
    positive("radius", radius, "log K allows everything, 0.1 is mild")
    start, low = (math.log(positive(name, value)) for name, value in (("mu", mu), ("least_mu", least_mu)))
    positive("step", step)

    def init(hosted: LocalDevices) -> ObjectiveState:
        share = hosted.share
        return {**_unseen(hosted), "log_mu": torch.full_like(share, start), "divergence": torch.zeros_like(share)}

    def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
        return _note(loss / state["log_mu"].exp(), state)

    def combine(state: ObjectiveState, mix: Mix) -> ObjectiveState:
        before, state = state, _gossiped(state, mix)
        weight, share = _within_cap(state["weight"], state), state["share"]
        # K (lambda_i log(lambda_i / p_i) - lambda_i + p_i): the last two cancel where weights average to 1, and where
        # they do not yet, weights that vanish are far from p, too
        own = weight * (weight / share).clamp(min=1e-30).log() - weight + share
        divergence, log_mu = mix(
            torch.stack([torch.lerp(state["divergence"], own, NEWEST), state["log_mu"]], dim=1)
        ).unbind(dim=1)
        # in parts of the radius, or mu would creep where that is small; a single loss that is far off moves it little
        log_mu = (log_mu + step * (divergence / radius - 1).clamp(max=1)).clamp(min=low)
        told = {"divergence": divergence, "log_mu": log_mu}
        state |= {name: torch.where(mix.isolated, before[name], value) for name, value in told.items()}
        # mu log sum p h is a loss and hardly depends on mu, but its part log sum p h does
        state["log_mean"] = state["log_mean"] * (before["log_mu"] - state["log_mu"]).exp()
        return state

    return Objective(init, weigh, combine)


def chi2_dro(mu: float) -> Objective:
    """The worst case, held back by mu / 2 times chi2(lambda | p): `weight_i = K p_i max(0, 1 + (f_i - e) / mu)`.

    e is the number that makes the weights average to 1. Every device keeps an estimate of it, which moves by
    `mu (weight - K p_i)` and is averaged with its neighbours': one gossiped number. No weight exceeds K, as none does
    that is exact. See H. Namkoong and J. Duchi, "Variance-based Regularization with Convex Objectives", NeurIPS 2017.

    >>> objective = chi2_dro(mu=1.0)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.5, 2.0]), state, 0)  # nobody knows the others' losses yet
    tensor([1., 1.])
    """
    positive("mu", mu, "losses further than mu below the rest get no weight")

    def weight(state: ObjectiveState, level: Tensor) -> Tensor:
        return state["share"] * (1 + (state["own"] - level) / mu).clamp(min=0)

    def init(hosted: LocalDevices) -> ObjectiveState:
        share = hosted.share
        return {"share": share, "weight": share.clone(), "own": torch.zeros_like(share),
                "level": torch.full_like(share, math.nan), "most": torch.full_like(share, hosted.K)}  # fmt: skip

    def combine(state: ObjectiveState, mix: Mix) -> ObjectiveState:
        level = torch.where(state["level"].isnan(), state["own"], state["level"])  # a first loss is taken whole
        level = mix(level + NEWEST * mu * (_within_cap(weight(state, level), state) - state["share"]))
        level = torch.where(mix.isolated, state["level"], level)
        # e is found round by round, and as long as it is too low the weights are too large
        now = torch.where(level.isnan(), state["share"], torch.minimum(weight(state, level), state["most"]))
        return {**state, "level": level, "weight": now}

    return Objective(init, lambda loss, state, t: _note(loss, state), combine)


def ad_gda(dual_eta: float = 0.01, dual_penalty: float = 0.01) -> Objective:
    """Dual ascent over a graph: every device keeps a mixture lambda_i [K] of devices, and `weight_i = K lambda_ii`.

        lambda_ii <- lambda_ii + dual_eta (loss_i - dual_penalty (lambda_ii - p_i))
        lambda_i  <- sum_j W_ij P(lambda_j),  P the projection on the simplex

    This is ascent on `sum_i lambda_i f_i - dual_penalty / 2 ||lambda - p||^2`. Where all p_i are 1 / K the penalty is
    dual_penalty / (2 K) times chi2(lambda | p); where they are not, it is no such divergence. K gossiped numbers.

    The factor K makes steps as long as those of average risk, as long as dual_eta is small: every device raises its own
    entry, before its neighbours know, so weights are above 1 on average, the more so the larger dual_eta times the loss
    is. M. Zecchin, M. Kountouris and D. Gesbert, "Communication-Efficient Distributionally Robust Decentralized
    Learning", TMLR 2022: with `choco` as optimizer it is their AD-GDA. The weight is that of before the update, where
    their program takes the one after it. All mixtures begin at 1 / K, and go to p by the penalty only: where devices
    have unequal numbers of samples, slowly.

    >>> objective = ad_gda(dual_eta=0.1)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.5, 2.0]), state, 0), state["dual"][1]
    (tensor([1., 1.]), tensor([0.4000, 0.6000]))
    """
    positive("dual_eta", dual_eta, "0.01 is usual")
    if not (math.isfinite(dual_penalty) and dual_penalty >= 0):
        raise InputError(f"dual_penalty must be 0 or more: {dual_penalty:g}; 0.01 to 10 are usual")

    def init(hosted: LocalDevices) -> ObjectiveState:
        K = hosted.K
        uniform = hosted.share.new_full((len(hosted.share), K), 1 / K)
        return {"share": hosted.share, "device": hosted.rows[:, None], "dual": uniform}

    def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
        dual, device = state["dual"], state["device"]
        K, own = dual.shape[1], dual.gather(1, device)[:, 0]
        dual.scatter_add_(1, device, (dual_eta * (loss - dual_penalty * (own - state["share"] / K)))[:, None])
        dual.copy_(project_on_simplex(dual))
        return K * own

    return Objective(init, weigh, lambda state, mix: {**state, "dual": mix(state["dual"])})


def project_on_simplex(x: Tensor) -> Tensor:
    """The nearest point to every row of x [n, K] whose entries are not negative and sum to 1.

    Duchi, Shalev-Shwartz, Singer and Chandra, ICML 2008.

    >>> project_on_simplex(torch.tensor([[0.5, 0.7, -1.0]]))
    tensor([[0.4000, 0.6000, 0.0000]])
    """
    # The same for x + any number; and what is more than 1 below the largest becomes 0 however far below it is. So
    # nothing is lost next to a number that is huge.
    x = (x - x.amax(dim=1, keepdim=True)).clamp(min=-1)
    sorted_, _ = x.sort(dim=1, descending=True)
    # how far all entries must fall if the k largest are those that stay positive
    k = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
    fall = (sorted_.cumsum(dim=1) - 1) / k
    stay = (sorted_ > fall).sum(dim=1, keepdim=True)
    projected = (x - fall.gather(1, stay.clamp(min=1) - 1)).clamp(min=0)  # none stays of what is no number
    return projected / projected.sum(dim=1, keepdim=True)  # to rounding it is 1 already


def smoothed(objective: Objective, beta: float) -> Objective:
    """The objective of a moving average of each device's loss, `u <- (1 - beta) u + beta loss`.

    Against the noise of mini-batches, and the bias that it gives to exp(loss / mu).

    >>> objective = smoothed(q_ffl(1.0, normalized=False), beta=0.5)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(1)))
    >>> [objective.weigh(torch.tensor([loss]), state, t).item() for t, loss in enumerate([1.0, 3.0])]
    [1.0, 2.0]
    """
    if not 0 < beta <= 1:
        raise InputError(f"beta must be in (0, 1]: {beta:g}; 1 is the last loss alone, 0.1 about the last ten")

    def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
        u = state["smoothed_loss"]
        u.copy_(torch.where(u.isnan(), loss, torch.lerp(u, loss, beta)))
        return objective.weigh(u, state, t)

    return Objective(
        lambda hosted: {**objective.init(hosted), "smoothed_loss": torch.full_like(hosted.share, math.nan)},
        weigh,
        objective.combine,
    )


def clipped(objective: Objective, loss_clip: float) -> Objective:
    """The objective of `min(loss, loss_clip)`: beyond it a device's weight grows no more; gradients are unchanged.

    >>> objective = clipped(kl_dro(mu=1.0), loss_clip=1.0)
    >>> objective.weigh(torch.tensor([1.0, 50.0]), objective.init(LocalDevices.all_of(torch.ones(2))), 0)
    tensor([2.7183, 2.7183])
    """
    positive("loss_clip", loss_clip, "log(classes) or more is sensible")
    return Objective(
        objective.init,
        lambda loss, state, t: objective.weigh(loss.clamp(max=loss_clip), state, t),
        objective.combine,
    )


def capped(objective: Objective, weight_cap: float) -> Objective:
    """The objective with weights of at most `weight_cap K p_i`: no device counts more than so many.

    Where weights are normalised, what a device adds to their mean is bounded likewise, `s_i h_i <= weight_cap s_i m_i`:
    so m is the number for which the capped weights average to 1, and a device whose loss can't be brought down takes
    nothing from the others but what it gets. Those are the maximising weights of eq. 4 with lambda_i <= weight_cap p_i.

    >>> objective = capped(kl_dro(mu=1.0), weight_cap=3.0)
    >>> objective.weigh(torch.tensor([1.0, 50.0]), objective.init(LocalDevices.all_of(torch.ones(2))), 0)
    tensor([2.7183, 3.0000])
    """
    positive("weight_cap", weight_cap, "2 to 5 are sensible where weights are normalised")
    if objective.gossips and weight_cap <= 1:
        raise InputError(
            f"weight_cap must be above 1: {weight_cap:g}; weights that are 1 on average would all be equal"
        )
    return Objective(
        lambda hosted: {**objective.init(hosted), "cap": weight_cap * hosted.share},
        lambda loss, state, t: _within_cap(objective.weigh(loss, state, t), state),
        objective.combine,
    )


def _within_cap(weight: Tensor, state: ObjectiveState) -> Tensor:
    """At most the cap, if there is one."""
    return torch.minimum(weight, state["cap"]) if "cap" in state else weight


def _share_only(hosted: LocalDevices) -> ObjectiveState:
    return {"share": hosted.share}


def _normalized(log_h: LogH) -> Objective:
    """`weight_i = s_i h_i / m_i`, s_i = K p_i, where m_i is device i's estimate of sum_j p_j h_j = mean_j s_j h_j.

        m_i <- sum_j W_ij ((1 - b) m_j + b s_j h_j)

    a moving average over rounds and neighbours, b = `NEWEST`, kept and sent as its logarithm: it stays positive, and
    no h is too large for it. As m_i >= W_ii b s_i h_i, no weight exceeds 1 / (b W_ii), and none may exceed K, which no
    exact one does. The first round's are K p_i.
    The estimate is exact where the losses do not change and the graph is complete. Else it lags behind, and it is that
    of a neighbourhood (some 1 / b links wide) rather than of all: with constant losses m tends to
    b (I - (1 - b) W)^-1 W s h, whose mean is right. So with unequal s_j equal losses do not get weights s_i on a sparse
    graph: who has small neighbours gets more. And m falls by 1 - b = 0.7 in a round at most: where losses fall by more
    than 0.36 mu in a round, or come down from a peak of noise, all h are small beside it, and so are all weights: a
    single loss that is S above the others holds the network up for about S / (0.36 mu) rounds. That is also a brake. An
    m that forgot it sooner, or never rose so far, was tried: then runs with long steps diverge that else recover. With
    `capped` weights nobody can raise m so far.
    A device that hears nobody in a round keeps its estimate: its own losses alone would make it believe that it is like
    all others.
    """
    return Objective(_unseen, lambda loss, state, t: _note(log_h(loss, t), state), _gossiped)


def _unseen(hosted: LocalDevices) -> ObjectiveState:
    """The state of normalised weights before any loss: the logarithm of nothing."""
    share = hosted.share
    nothing = torch.full_like(share, -math.inf)
    most = torch.full_like(share, hosted.K)
    return {"share": share, "most": most, "weight": share.clone(), "own": nothing, "log_mean": nothing.clone()}


def _note(own: Tensor, state: ObjectiveState) -> Tensor:
    """Note what this round's weights will be made from; those of the round before are this round's."""
    weight = state["weight"].clone()
    state["own"].copy_(own)
    return weight


def _gossiped(state: ObjectiveState, mix: Mix) -> ObjectiveState:
    """m_i and the weights after a round. Whoever has seen no loss takes its first one whole, not b of it."""
    before, own = state["log_mean"], state["share"].log() + state["own"]
    told = torch.minimum(own, before + state["cap"].log()) if "cap" in state else own
    moved = torch.logaddexp(before + math.log(1 - NEWEST), told + math.log(NEWEST))
    log_mean = torch.where(mix.isolated, before, mix.log_mean(torch.where(before == -math.inf, own, moved)))
    weight = torch.minimum((own - log_mean).exp(), state["most"])
    return {**state, "log_mean": log_mean, "weight": torch.where(log_mean == -math.inf, state["share"], weight)}
