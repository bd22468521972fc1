"""Objectives: a device's loss -> the weight of its gradient. Robustness enters here and nowhere else.

An objective is three functions. `init(hosted)` makes its state, whose tensors have one row per device.
`weigh(loss, state, t)` is each device's own part: it turns the mini-batch losses [n] of round t into weights [n], and
may change the device's rows of the state in place. `combine(state, mix)` is the part with its neighbours, once per
round, together with the exchange of models.

So weights that depend on other devices' losses use the losses of the round before, for the device itself too. If a
device compared its new loss with the others' old ones, all weights would rise whenever all losses rise, and so would
the steps.

`share [n]` = K p_i are the devices' reference weights: 1 for every device if all count equally (`p_i = 1/K`), and
n_i / mean n if they count by samples (`p_i = n_i / n`, eq. 1). With h_i = exp(f_i / mu):

    min_theta  sum_i p_i f_i(theta)                          erm          weight_i = K p_i
    min_theta  sum_i p_i exp(f_i(theta) / mu)    (eq. 8)     kl_dro       weight_i = K p_i h_i / mu
    min_theta  mu log sum_i p_i exp(f_i / mu)    (eq. 7)     kl_dro       weight_i = K p_i h_i / sum_j p_j h_j
    the same with mu such that KL(lambda | p) = radius       kl_ball      weight_i = K p_i h_i / sum_j p_j h_j
    min_theta  sum_i p_i f_i^(q + 1) / (q + 1)               q_ffl        weight_i = K p_i f_i^q
    min_theta  max_lambda  sum_i lambda_i f_i - mu / 2 chi2(lambda | p)                 chi2_dro
    min_theta  max_lambda  sum_i lambda_i f_i - dual_penalty / 2 ||lambda - p||^2       ad_gda

The second and third have the same minimisers, and their steps differ in length only. They minimise the worst case over
mixtures lambda of devices, regularised by the KL divergence from the reference (eq. 6). C. Ben Issaid, A. Elgabli and
M. Bennis, "DR-DSGD: A Distributionally Robust Decentralized Learning Algorithm over Graphs", TMLR 2022.

`smoothed`, `clipped` and `capped` take an objective and return one. They protect against mini-batch noise, and against
a device whose loss stays high and that would dominate the network.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from drdsgd.core.parts import Part, declare
from drdsgd.core.schedules import Schedule, schedule_of
from drdsgd.errors import InputError, named, positive
from drdsgd.options import (
    DualEta,
    DualPenalty,
    LossClip,
    LossSmoothing,
    Mu,
    Q,
    Radius,
    Tilt,
    WeightCap,
    Weights,
    checked,
    renamed,
)

if TYPE_CHECKING:
    from drdsgd.core.engine import Mix
    from drdsgd.topology.mixing import Mixing

__all__ = [
    "NEWEST", "OBJECTIVES", "LocalDevices", "Objective", "ObjectiveState", "Weights", "ad_gda", "capped", "chi2_dro",
    "clipped", "erm", "kl_ball", "kl_dro", "project_on_simplex", "protected", "q_ffl", "smoothed", "term",
]  # fmt: skip

OBJECTIVES: dict[str, Part] = {}
ObjectiveState = dict[str, Tensor]
# losses [n] and the round -> log h of every device
LogH = Callable[[Tensor, int], Tensor]

# The share of the last round in a gossiped mean. A smaller share would average over more devices of a sparse graph, but
# lag further behind the losses. Of 0.03, 0.1, 0.3 and 0.5, 0.3 had the smallest error on ER(25, 0.3), mu from 0.5 to 6.
NEWEST = 0.3


class LocalDevices(NamedTuple):
    """The n devices in this process: their reference weights [n], their numbers in the network [n], and its size K."""

    share: Tensor
    rows: Tensor
    K: int

    @staticmethod
    def all_of(share: Tensor) -> LocalDevices:
        """All devices of a network, in one process.

        >>> LocalDevices.all_of(torch.ones(3)).rows
        tensor([0, 1, 2])
        """
        return LocalDevices(share, torch.arange(len(share), device=share.device), len(share))


def _no_gossip(state: ObjectiveState, mix: Mix) -> ObjectiveState:
    return state


@dataclass(frozen=True)
class Objective:
    """`init(hosted) -> state`, `weigh(loss [n], state, t) -> weight [n]`, `combine(state, mix) -> state`.

    `weigh` works row by row and changes the state in place, so it may be called for some of the devices at a time.
    """

    init: Callable[[LocalDevices], ObjectiveState]
    weigh: Callable[[Tensor, ObjectiveState, int], Tensor]
    combine: Callable[[ObjectiveState, Mix], ObjectiveState] = _no_gossip

    @property
    def gossips(self) -> bool:
        """Whether weights depend on other devices' losses, as normalised weights do."""
        return self.combine is not _no_gossip

    def check(self, mixing: Mixing) -> None:
        """Refuse a W_t that would not keep the mean of gossiped numbers."""
        if self.gossips and not mixing.balanced:
            what, instead = mixing.unbalanced
            raise InputError(
                f"weights that need other devices' losses are gossiped, and {what} does not keep their mean: use "
                f"{named('objective', 'erm')}, kl-dro with {named('weights', 'as-written')}, or {instead}"
            )


@declare(OBJECTIVES, "average risk, sum_i p_i f_i", "", "McMahan et al., AISTATS 2017")
def erm() -> Objective:
    """Average risk, the objective of DSGD (eq. 1 and 2): `weight_i = K p_i`.

    >>> objective = erm()
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.1, 5.0]), state, 0)
    tensor([1., 1.])
    """
    return Objective(_share_only, lambda loss, state, t: state["share"])


@declare(
    OBJECTIVES, "worst mixture of devices, with the penalty mu KL (eq. 6 to 8 of the paper)", "1 if normalized",
    "Ben Issaid, Elgabli and Bennis, TMLR 2022",
)  # fmt: skip
def kl_dro(mu: Mu | Schedule = 6.0, weights: Weights = "as-written", loss_clip: float | None = None) -> Objective:
    """The paper's robust objective (eq. 8): `weight_i = K p_i h_i / mu` with `h_i = exp(loss_i / mu)`.

    `mu -> inf` is average risk, `mu -> 0` the worst case; mu may be a schedule, `t -> mu_t`. The weight is one
    exponential of `loss / mu - log mu`, so it overflows only if the weight itself is too large for a float.

    With `weights="without-mu"` the weights are K p_i h_i. With "normalized" they are K p_i h_i / sum_j p_j h_j, the
    gradient of eq. 7 instead of eq. 8: about 1 on average, so steps are as long as those of average risk. Every device
    estimates the sum by gossiping one number (see `_normalized`). For mu below about 0.1 the estimate lags behind
    losses that fall or jump, all weights go to 0, and training stalls. Then use a larger mu, or a schedule that starts
    with one, together with `smoothed` losses and `capped` weights; smoothing alone is not enough.

    >>> objective = kl_dro(mu=2.0)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.0, 2.0]), state, 0)
    tensor([0.5000, 1.3591])
    """
    if loss_clip is not None:
        warnings.warn(
            "kl_dro(loss_clip=...) is now clipped(kl_dro(...), loss_clip); the old way will be removed in the next "
            "release",
            DeprecationWarning,
            stacklevel=3,  # past the checks of options
        )
        return clipped(kl_dro(mu, weights), loss_clip)
    mu_at = schedule_of("mu", mu)
    if weights == "normalized":
        return _normalized(lambda loss, t: loss / mu_at(t))

    def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
        log_scale = math.log(mu_at(t)) if weights == "as-written" else 0.0
        return state["share"] * torch.exp(loss / mu_at(t) - log_scale)

    return Objective(_share_only, weigh)


@renamed(t="tilt")
@declare(
    OBJECTIVES, "tilted risk, (1/t) log sum_i p_i exp(t f_i): kl-dro with mu = 1 / t, normalized", "1",
    "Li, Beirami, Sanjabi and Smith, ICLR 2021",
)  # fmt: skip
def term(tilt: Tilt = 1.0) -> Objective:
    """Tilted risk over devices, `(1/t) log sum_i p_i exp(t f_i)`: eq. 7 with mu = 1 / t, so normalised `kl_dro`.

    This is group TERM with devices as groups: T. Li, A. Beirami, M. Sanjabi and V. Smith, "Tilted Empirical Risk
    Minimization", ICLR 2021. Tilting single samples within a device is a different problem.

    >>> term(-1.0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: tilt=-1.0: input should be greater than 0 (the tilt t = 1 / mu)
    """
    return kl_dro(1 / tilt, weights="normalized")


@declare(
    OBJECTIVES, "q-fair risk, sum_i p_i f_i^(q+1) / (q+1), normalized", "1",
    "Li, Sanjabi, Beirami and Smith, ICLR 2020",
)  # fmt: skip
def q_ffl(q: Q = 1.0, normalized: bool = True) -> Objective:
    """q-fair learning, `sum_i p_i f_i^(q+1) / (q+1)`: `weight_i = K p_i f_i^q`, by default over its gossiped mean.

    `q = 0` is average risk, `q -> inf` the worst case. T. Li, M. Sanjabi, A. Beirami and V. Smith, "Fair Resource
    Allocation in Federated Learning", ICLR 2020; normalising replaces their estimate of a Lipschitz constant.

    >>> objective = q_ffl(q=1.0, normalized=False)
    >>> objective.weigh(torch.tensor([0.5, 2.0]), objective.init(LocalDevices.all_of(torch.ones(2))), 0)
    tensor([0.5000, 2.0000])
    """

    def log_h(loss: Tensor, t: int) -> Tensor:
        # a loss of 0 becomes the smallest positive float, because log 0 cannot be averaged
        return q * loss.clamp(min=torch.finfo(loss.dtype).tiny).log()

    if normalized:
        return _normalized(log_h)
    return Objective(_share_only, lambda loss, state, t: state["share"] * log_h(loss, t).exp())


@declare(
    OBJECTIVES, "worst mixture of devices with KL(lambda | p) <= radius; adapts mu, from 1, at least 0.1 (A.2)", "3",
    "Ben Issaid, Elgabli and Bennis, TMLR 2022; Hu and Hong, 2013", weight_cap=3.0,
)  # fmt: skip
def kl_ball(radius: Radius = 0.1, mu: float = 1.0, least_mu: float = 0.1, step: float = 0.05) -> Objective:
    """The worst case over all mixtures of devices with `KL(lambda | p) <= radius`; mu adapts during training.

    The dual is `min over mu >= least_mu of mu log sum_i p_i h_i + mu radius` (appendix A.2), whose derivative in mu is
    `radius - KL(lambda(mu) | p)`. So mu rises while the weights are further from the reference than the radius, and
    falls while they are nearer. Every device keeps a mu, which starts at `mu`, and estimates of log sum p h and of the
    divergence: three gossiped numbers. In a round, log mu rises by at most `step` (divergence twice the radius or
    more), and falls by at most `step` (no divergence). Use it with `capped` weights: for a small radius, mini-batch
    noise in the losses exceeds mu, and the estimate of log sum p h recovers slowly (see `_normalized`).

    >>> objective = kl_ball(radius=0.1)
    >>> objective.init(LocalDevices.all_of(torch.ones(2)))["log_mu"]
    tensor([0., 0.])
    """
    start, low = (math.log(positive(name, value)) for name, value in (("mu", mu), ("least_mu", least_mu)))
    positive("step", step)

    def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
        return _note(loss / state["log_mu"].exp(), state)

    def combine(state: ObjectiveState, mix: Mix) -> ObjectiveState:
        before, state = state, _gossiped(state, mix)
        weight, share = _within_cap(state["weight"], state), state["share"]
        # K (lambda_i log(lambda_i / p_i) - lambda_i + p_i): the last two terms cancel once weights average to 1;
        # before that, they make vanishing weights count as far from p
        own = weight * (weight / share).clamp(min=1e-30).log() - weight + share
        divergence, log_mu = mix(
            torch.stack([torch.lerp(state["divergence"], own, NEWEST), state["log_mu"]], dim=1)
        ).unbind(dim=1)
        # relative to the radius, else mu would creep for a small one; the clamp limits the effect of a single outlier
        log_mu = (log_mu + step * (divergence / radius - 1).clamp(max=1)).clamp(min=low)
        told = {"divergence": divergence, "log_mu": log_mu}
        state |= {name: torch.where(mix.isolated, before[name], value) for name, value in told.items()}
        # mu log sum p h is a loss that hardly depends on mu, so log sum p h is rescaled for the new mu
        state["log_mean"] = state["log_mean"] * (before["log_mu"] - state["log_mu"]).exp()
        return state

    def init(hosted: LocalDevices) -> ObjectiveState:
        own = {"log_mu": torch.full_like(hosted.share, start), "divergence": torch.zeros_like(hosted.share)}
        return {**_unseen(hosted), **own}

    return Objective(init, weigh, combine)


@declare(
    OBJECTIVES, "worst mixture of devices, with the penalty mu / 2 chi-square", "1", "Namkoong and Duchi, NeurIPS 2017",
)  # fmt: skip
def chi2_dro(mu: Mu = 1.0) -> Objective:
    """The worst case regularised by mu / 2 chi2(lambda | p): `weight_i = K p_i max(0, 1 + (f_i - e) / mu)`.

    e is the number for which the weights average to 1. Every device keeps an estimate of it, which moves by
    `mu (weight - K p_i)` and is averaged with its neighbours: one gossiped number. Weights are limited to K, which no
    exact weight exceeds. H. Namkoong and J. Duchi, "Variance-based Regularization with Convex Objectives", 2017.

    >>> objective = chi2_dro(mu=1.0)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.5, 2.0]), state, 0)  # no device knows the others' losses yet
    tensor([1., 1.])
    """

    def weight(state: ObjectiveState, level: Tensor) -> Tensor:
        return state["share"] * (1 + (state["own"] - level) / mu).clamp(min=0)

    def combine(state: ObjectiveState, mix: Mix) -> ObjectiveState:
        level = torch.where(state["level"].isnan(), state["own"], state["level"])  # at first, the device's own loss
        level = mix(level + NEWEST * mu * (_within_cap(weight(state, level), state) - state["share"]))
        level = torch.where(mix.isolated, state["level"], level)
        # the estimate of e improves round by round; while it is too low, weights are too large
        now = torch.where(level.isnan(), state["share"], torch.minimum(weight(state, level), state["most"]))
        return {**state, "level": level, "weight": now}

    def init(hosted: LocalDevices) -> ObjectiveState:
        share = hosted.share
        return {"share": share, "weight": share.clone(), "own": torch.zeros_like(share),
                "level": torch.full_like(share, math.nan), "most": torch.full_like(share, hosted.K)}  # fmt: skip

    return Objective(init, lambda loss, state, t: _note(loss, state), combine)


@declare(
    OBJECTIVES, "worst mixture of devices, with the penalty dual_penalty / 2 ||lambda - p||^2, by dual ascent", "K",
    "Zecchin, Kountouris and Gesbert, TMLR 2022",
)  # fmt: skip
def ad_gda(dual_eta: DualEta = 0.01, dual_penalty: DualPenalty = 0.01) -> Objective:
    """Dual ascent over a graph: every device keeps a mixture lambda_i [K] of devices, and `weight_i = K lambda_ii`.

        lambda_ii <- lambda_ii + dual_eta (loss_i - dual_penalty (lambda_ii - p_i))
        lambda_i  <- sum_j W_ij P(lambda_j),  P the projection on the simplex

    This is ascent on `sum_i lambda_i f_i - dual_penalty / 2 ||lambda - p||^2`. If all p_i are 1 / K, the penalty is
    dual_penalty / (2 K) times chi2(lambda | p); otherwise it is no such divergence. K gossiped numbers.

    The factor K makes steps as long as those of average risk if dual_eta is small. Every device raises its own entry
    before its neighbours know, so weights are above 1 on average, and grow with dual_eta times the loss. All mixtures
    start at 1 / K and only the penalty moves them to p, which is slow if devices have unequal numbers of samples.

    M. Zecchin, M. Kountouris and D. Gesbert, "Communication-Efficient Distributionally Robust Decentralized Learning",
    TMLR 2022: with `choco` as optimizer this is their AD-GDA. The weight here is the one before the update; their
    program uses the one after it.

    >>> objective = ad_gda(dual_eta=0.1)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(2)))
    >>> objective.weigh(torch.tensor([0.5, 2.0]), state, 0), state["dual"][1]
    (tensor([1., 1.]), tensor([0.4000, 0.6000]))
    """

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
    """For every row of x [n, K], the nearest point whose entries are not negative and sum to 1.

    Duchi, Shalev-Shwartz, Singer and Chandra, ICML 2008.

    >>> project_on_simplex(torch.tensor([[0.5, 0.7, -1.0]]))
    tensor([[0.4000, 0.6000, 0.0000]])
    """
    # Adding a constant to x changes nothing, and an entry more than 1 below the largest becomes 0, however far below.
    # So shift and clamp first: then a huge entry costs no precision.
    x = (x - x.amax(dim=1, keepdim=True)).clamp(min=-1)
    sorted_, _ = x.sort(dim=1, descending=True)
    # how far all entries must fall if exactly the k largest stay positive
    k = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
    fall = (sorted_.cumsum(dim=1) - 1) / k
    stay = (sorted_ > fall).sum(dim=1, keepdim=True)
    projected = (x - fall.gather(1, stay.clamp(min=1) - 1)).clamp(min=0)  # for nan, none stays positive
    return projected / projected.sum(dim=1, keepdim=True)  # the sum is 1 up to rounding already


@renamed(beta="loss_smoothing")
@checked
def smoothed(objective: Objective, loss_smoothing: LossSmoothing) -> Objective:
    """The objective applied to a moving average of each device's loss, `u <- (1 - beta) u + beta loss`.

    beta is `loss_smoothing`: 1 uses the last loss only, 0.1 about the last ten. The average has less of the noise of
    mini-batches, and of the bias that this noise gives to exp(loss / mu).

    >>> objective = smoothed(q_ffl(1.0, normalized=False), loss_smoothing=0.5)
    >>> state = objective.init(LocalDevices.all_of(torch.ones(1)))
    >>> [objective.weigh(torch.tensor([loss]), state, t).item() for t, loss in enumerate([1.0, 3.0])]
    [1.0, 2.0]
    """

    def weigh(loss: Tensor, state: ObjectiveState, t: int) -> Tensor:
        u = state["smoothed_loss"]
        u.copy_(torch.where(u.isnan(), loss, torch.lerp(u, loss, loss_smoothing)))
        return objective.weigh(u, state, t)

    return Objective(
        lambda hosted: {**objective.init(hosted), "smoothed_loss": torch.full_like(hosted.share, math.nan)},
        weigh,
        objective.combine,
    )


@checked
def clipped(objective: Objective, loss_clip: LossClip) -> Objective:
    """The objective applied to `min(loss, loss_clip)`: above it weights stop growing; gradients are unchanged.

    >>> objective = clipped(kl_dro(mu=1.0), loss_clip=1.0)
    >>> objective.weigh(torch.tensor([1.0, 50.0]), objective.init(LocalDevices.all_of(torch.ones(2))), 0)
    tensor([2.7183, 2.7183])
    """
    return Objective(
        objective.init,
        lambda loss, state, t: objective.weigh(loss.clamp(max=loss_clip), state, t),
        objective.combine,
    )


@checked
def capped(objective: Objective, weight_cap: WeightCap) -> Objective:
    """The objective with weights of at most `weight_cap K p_i`.

    For normalised weights, a device's contribution to their mean is bounded in the same way,
    `s_i h_i <= weight_cap s_i m_i`. So m is the number for which the capped weights average to 1, and a device whose
    loss stays high takes no more from the others than its capped weight. These weights maximise eq. 6 under
    lambda_i <= weight_cap p_i. The cap is part of the state, where the objective finds it. The lower of two caps
    counts.

    >>> objective = capped(kl_dro(mu=1.0), weight_cap=3.0)
    >>> objective.weigh(torch.tensor([1.0, 50.0]), objective.init(LocalDevices.all_of(torch.ones(2))), 0)
    tensor([2.7183, 3.0000])
    """
    if objective.gossips and weight_cap <= 1:
        raise InputError(
            f"{named('weight_cap', weight_cap)}: must be above 1; weights that are 1 on average would all be equal"
        )

    def init(hosted: LocalDevices) -> ObjectiveState:
        state = objective.init(hosted)
        return {**state, "cap": _within_cap(weight_cap * hosted.share, state)}

    return Objective(
        init,
        lambda loss, state, t: _within_cap(objective.weigh(loss, state, t), state),
        objective.combine,
    )


def protected(
    objective: Objective,
    loss_clip: LossClip | None = None,
    loss_smoothing: LossSmoothing | None = None,
    weight_cap: WeightCap | None = None,
) -> Objective:
    """The objective with the protections that are set: `clipped`, `smoothed` and `capped`.

    A loss is smoothed before it is clipped, and the cap bounds the final weight.
    """
    if loss_clip is not None:
        objective = clipped(objective, loss_clip)
    if loss_smoothing is not None:
        objective = smoothed(objective, loss_smoothing)
    return objective if weight_cap is None else capped(objective, weight_cap)


def _within_cap(weight: Tensor, state: ObjectiveState) -> Tensor:
    """The weight, limited to the cap if there is one."""
    return torch.minimum(weight, state["cap"]) if "cap" in state else weight


def _share_only(hosted: LocalDevices) -> ObjectiveState:
    return {"share": hosted.share}


def _normalized(log_h: LogH) -> Objective:
    """`weight_i = s_i h_i / m_i`, s_i = K p_i, where m_i is device i's estimate of sum_j p_j h_j = mean_j s_j h_j.

        m_i <- sum_j W_ij ((1 - b) m_j + b s_j h_j)

    This is a moving average over rounds and neighbours with b = `NEWEST`. It is stored and sent as its logarithm, so it
    stays positive and no h overflows it. As m_i >= W_ii b s_i h_i, no weight exceeds 1 / (b W_ii). Weights are also
    limited to K, which no exact weight exceeds. Those of the first round are K p_i.

    The estimate is exact if losses are constant and the graph is complete. Otherwise it lags, and it averages over a
    neighbourhood about 1 / b links wide: with constant losses m tends to b (I - (1 - b) W)^-1 W s h, whose mean is
    right. So on a sparse graph with unequal s_j, equal losses do not give weights s_i: a device whose neighbours have
    small shares gets more.

    m falls at most by the factor 1 - b = 0.7 per round. If losses fall by more than 0.36 mu in a round, or return from
    a peak of noise, all weights are small: a single loss that is S above the others slows the network for about
    S / (0.36 mu) rounds. That is also a brake: with an m that forgot a peak sooner, or never rose so far, runs with
    long steps diverged that otherwise recover. `capped` weights limit how far one device can raise m.

    A device without neighbours in a round keeps its estimate: its own losses alone would give it weight K p_i.
    """
    return Objective(_unseen, lambda loss, state, t: _note(log_h(loss, t), state), _gossiped)


def _unseen(hosted: LocalDevices) -> ObjectiveState:
    """The state of normalised weights before the first loss; the means are log 0."""
    share = hosted.share
    nothing = torch.full_like(share, -math.inf)
    most = torch.full_like(share, hosted.K)
    return {"share": share, "most": most, "weight": share.clone(), "own": nothing, "log_mean": nothing.clone()}


def _note(own: Tensor, state: ObjectiveState) -> Tensor:
    """Store this round's value for `combine`, and return the weights that the round before made, within the cap."""
    weight = _within_cap(state["weight"].clone(), state)
    state["own"].copy_(own)
    return weight


def _gossiped(state: ObjectiveState, mix: Mix) -> ObjectiveState:
    """The next m_i and weights. A device's first loss sets its m_i at once, instead of moving it by b."""
    before, own = state["log_mean"], state["share"].log() + state["own"]
    told = torch.minimum(own, before + state["cap"].log()) if "cap" in state else own
    moved = torch.logaddexp(before + math.log(1 - NEWEST), told + math.log(NEWEST))
    log_mean = torch.where(mix.isolated, before, mix.log_mean(torch.where(before == -math.inf, own, moved)))
    weight = torch.minimum((own - log_mean).exp(), state["most"])
    return {**state, "log_mean": log_mean, "weight": torch.where(log_mean == -math.inf, state["share"], weight)}
