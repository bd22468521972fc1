"""Named algorithms: an objective with an optimizer, one line each.

dr_gt_adam(mu=1.0)    an `Algorithm`; options that are left out have the defaults that the line below states, or
                      those of its parts
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from drdsgd.core.composition import Constructor, Make, Setting, with_schedules
from drdsgd.core.engine import Ranks
from drdsgd.core.method import Play, Site
from drdsgd.core.objectives import OBJECTIVES, Objective, protected
from drdsgd.core.optimizers import COPIES, OPTIMIZERS, GossipOptimizer
from drdsgd.core.parallel import Each, column_sums
from drdsgd.core.parts import Part
from drdsgd.core.round import State, init, make_round
from drdsgd.core.schedules import highest
from drdsgd.errors import InputError, a, named
from drdsgd.options import GossipSteps, LocalSteps, Parameter, WeightDecay, parameters
from drdsgd.topology.mixing import Mixing, with_steps

__all__ = [
    "ALGORITHMS", "Algorithm", "ad_gda", "choco_sgd", "compose", "d2", "dr_dsgd", "dr_gt_adam", "dr_qgm", "dsgd",
    "dsgdm", "exact_diffusion", "gradient_tracking", "gt_adam", "qg_dsgdm", "sgp",
]  # fmt: skip


@dataclass(frozen=True)
class Algorithm:
    """What to minimise, and how: any objective works with any optimizer. It is a `Method` without a server.

    `name` and `eta` are texts for messages and the model card. Devices average with their neighbours `gossip_steps`
    times in a round, and only in every `local_steps`-th round. `resolve` makes the same algorithm with all defaults
    resolved (see `composition`).

    >>> from drdsgd.core import objectives, optimizers
    >>> Algorithm(objectives.kl_dro(mu=6), optimizers.dsgd(0.1)).has_server
    False
    """

    objective: Objective
    optimizer: GossipOptimizer
    name: str = "your algorithm"
    weight_decay: WeightDecay = 0.0
    eta: str = ""
    local_steps: LocalSteps | None = None
    gossip_steps: GossipSteps | None = None
    resolve: Callable[[Setting], Algorithm] | None = None
    has_server: ClassVar[Literal[False]] = False

    @property
    def cures(self) -> str:
        """What to try if a run diverges."""
        smaller = "try a smaller eta or gamma" if COPIES in self.keeps else "try a smaller eta"
        if self.objective.gossips:  # its weights are bounded, so the steps are too long
            return f"{smaller}, or {named('weight_cap', 2)}, or a lower cap if there is one"
        normalized = named("weights", "normalized")
        return f"{smaller}, or for DR-DSGD a larger mu, {named('loss_clip')} or {normalized}"

    @property
    def keeps(self) -> str:
        """What a lost message would destroy."""
        return self.optimizer.keeps

    def check(self, mixing: Mixing, processes: int = 1) -> None:
        """Refuse a mixing that the optimizer or the objective cannot use."""
        self.optimizer.check(mixing)
        self.objective.check(mixing)

    def over(self, mixing: Mixing) -> Mixing:
        """The mixing with this algorithm's gossip steps and local steps."""
        return with_steps(mixing, self.gossip_steps, self.local_steps)

    def start(self, site: Site) -> Play:
        """Gossip among the devices of this process and all others."""
        parts = site.parts_of(len(site.hosted.rows))
        return Play(
            lambda theta: init(self, theta, site.hosted),
            make_round(self, site.forward, site.batches, site.engine, parts, site.each),
            lambda state, loss: self.objective.weigh(loss, copy.deepcopy(state.objective), 0),
        )

    def consensus(self, state: State, ranks: Ranks, each: Each = map) -> Tensor:
        """The mean of all devices' models, [d]."""
        return ranks.total(column_sums(state.theta, each)) / ranks.K


ALGORITHMS: dict[str, Constructor[Algorithm]] = {}
# these are off if they are None
SHARED = {name: one._replace(default=None) for name, one in parameters(Algorithm).items()}
_PROTECTED = parameters(protected)


def of_objective(part: Part) -> dict[str, Parameter]:
    """All options of an objective: its own, those of `protected`, and its schedules."""
    # weights that do not depend on losses need no protection
    guards = {} if part is OBJECTIVES["erm"] else _PROTECTED
    guards = {key: one._replace(default=part.own.get(key, one.default)) for key, one in guards.items()}
    return with_schedules({**part.parameters, **guards})


def of_optimizer(part: Part) -> dict[str, Parameter]:
    """All options of an optimizer: its own, and its schedules."""
    return with_schedules(part.parameters)


def compose(
    title: str, objective: Part, optimizer: Part, source: str = "", *, name: str = "", all_in_title: bool = False,
    **own: Any,
) -> Constructor[Algorithm]:  # fmt: skip
    """The constructor of an objective with an optimizer; `own` are its defaults that differ from those of its parts."""
    weighs, steps = of_objective(objective), of_optimizer(optimizer)
    guards = [key for key in _PROTECTED if key in weighs]

    def build(chosen: Mapping[str, Any]) -> Algorithm:
        def taken(known: Iterable[str]) -> dict[str, Any]:
            return {key: chosen[key] for key in known}

        weigh = protected(_made(objective, Objective, taken(objective.parameters)), **taken(guards))
        step = _made(optimizer, GossipOptimizer, taken(optimizer.parameters))
        # Adam scales its steps, whatever the size of eta
        if chosen["weight_decay"] is not None and "second_momentum" not in steps:
            _check_decay(chosen["weight_decay"], highest(chosen["eta"]) if "eta" in chosen else None)
        return Algorithm(weigh, step, **{key: value for key, value in taken(SHARED).items() if value is not None})

    first = {key: steps[key] for key in ("eta",) if key in steps}
    known = {**first, **weighs, **steps, **SHARED}
    return Constructor(name, title, source, (objective, optimizer), build, known, own, all_in_title)


def _made(part: Part, kind: type[Any], options: dict[str, Any]) -> Any:
    """The objective or optimizer of a part, which may be a user-defined function."""
    made = part.make(**options)
    if not isinstance(made, kind):
        argument = named("objective" if kind is Objective else "optimizer", part.name)
        home = kind.__module__.replace(".core.", ".")
        raise InputError(f"{argument}: it returned {a(type(made))}, and must return {a(kind)} ({home})")
    return made


def _check_decay(decay: float, eta: float | None) -> None:
    if eta is not None and decay * eta >= 1:
        raise InputError(
            f"{named('weight_decay', decay)}: times eta {eta:g} it must be below 1, or a step erases the model; "
            "0.0001 is usual"
        )


def with_parts(algorithm: str, objective: Part | None = None, optimizer: Part | None = None) -> Constructor[Algorithm]:
    """A named algorithm with another objective or optimizer; its own defaults stay for the options that are left."""
    made = ALGORITHMS[algorithm]
    loss, step = objective or made.parts[0], optimizer or made.parts[1]
    if (loss, step) == made.parts:
        return made
    name = f"{loss.name} + {step.name}"
    return compose(name, loss, step, name=name, all_in_title=True, **made.own)


def _named(name: str, title: str, objective: str, optimizer: str, source: str, **own: Any) -> Make[Algorithm]:
    loss, step = OBJECTIVES[objective], OPTIMIZERS[optimizer]
    made = ALGORITHMS[name] = compose(title, loss, step, source, name=name, **own)
    about = f"{title}: {loss.what}. The objective is {objective}, the optimizer {optimizer}. Source: {source}."
    return made.function(__name__, about)


dsgd = _named("dsgd", "DSGD", "erm", "dsgd", "Lian et al., NeurIPS 2017; Algorithm 1 of the paper")
dr_dsgd = _named("dr-dsgd", "DR-DSGD", "kl-dro", "dsgd", "Ben Issaid, Elgabli and Bennis, TMLR 2022; Algorithm 2")
dsgdm = _named("dsgdm", "DSGDm", "erm", "momentum", "Yu, Jin and Yang, ICML 2019")
qg_dsgdm = _named(
    "qg-dsgdm", "QG-DSGDm", "erm", "quasi-global-momentum", "Lin, Karimireddy, Stich and Jaggi, ICML 2021"
)
gradient_tracking = _named("gradient-tracking", "gradient tracking", "erm", "gradient-tracking", "Pu and Nedic, 2021")
gt_adam = _named(
    "gt-adam", "GTAdam", "erm", "gt-adam", "Carnevale, Farina, Notarnicola and Notarstefano, IEEE TCNS 2023"
)
d2 = _named("d2", "D2", "erm", "d2", "Tang, Lian, Yan, Zhang and Liu, ICML 2018")
exact_diffusion = _named(
    "exact-diffusion", "exact diffusion", "erm", "exact-diffusion", "Yuan, Ying, Zhao and Sayed, 2019"
)
choco_sgd = _named("choco-sgd", "CHOCO-SGD", "erm", "choco", "Koloskova, Lin, Stich and Jaggi, ICLR 2020")
sgp = _named("sgp", "SGP", "erm", "push", "Assran, Loizou, Ballas and Rabbat, ICML 2019")
ad_gda = _named("ad-gda", "AD-GDA", "ad-gda", "choco", "Zecchin, Kountouris and Gesbert, TMLR 2022")
# mu decays: while losses are far apart, a small mu would let a few devices make long steps. Two averagings of short
# messages: weights help only if the models are close to each other
dr_qgm = _named(
    "dr-qgm", "DR-QGM", "kl-dro", "quasi-global-momentum", "this project",
    mu=1.0, mu_schedule="linear:0.1", weights="normalized", loss_smoothing=0.03, weight_cap=3.0,
    compression="quantize:4", gamma=1.0, gossip_steps=2,
)  # fmt: skip
dr_gt_adam = _named(
    "dr-gt-adam", "DR-GTAdam", "kl-dro", "gt-adam", "this project",
    mu=0.3, weights="normalized", loss_smoothing=0.1, weight_cap=3.0, compression="quantize:4", gamma=1.0,
)  # fmt: skip
