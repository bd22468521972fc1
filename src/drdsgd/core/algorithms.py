"""Named algorithms: an objective with an optimizer, one line each."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from drdsgd.core import optimizers
from drdsgd.core.engine import Ranks
from drdsgd.core.method import Play, Site
from drdsgd.core.objectives import Objective, Weights, erm, kl_dro
from drdsgd.core.optimizers import COPIES, GossipOptimizer
from drdsgd.core.parallel import Each, column_sums
from drdsgd.core.round import State, init, make_round
from drdsgd.core.schedules import Schedule, said
from drdsgd.topology.mixing import Mixing

__all__ = ["Algorithm", "dr_dsgd", "dsgd"]


@dataclass(frozen=True)
class Algorithm:
    """What to minimise, and how: any objective works with any optimizer. It is a `Method` without a server.

    `name` and `eta` are texts for messages and the model card.

    >>> Algorithm(kl_dro(mu=6), optimizers.dsgd(0.1)).objective.weigh is not None
    True
    """

    objective: Objective
    optimizer: GossipOptimizer
    name: str = "your algorithm"
    weight_decay: float = 0.0
    eta: str = ""
    has_server: ClassVar[Literal[False]] = False

    @property
    def cures(self) -> str:
        """What to try if a run diverges."""
        smaller = "try a smaller eta or gamma" if COPIES in self.optimizer.keeps else "try a smaller eta"
        if self.objective.gossips:  # its weights are bounded, so the steps are too long
            return f"{smaller}, or --weight-cap 2, or a lower cap if there is one"
        return f"{smaller}, or for DR-DSGD a larger mu, --loss-clip or --weights normalized"

    def check(self, mixing: Mixing, processes: int = 1) -> None:
        """Refuse a mixing that the optimizer or the objective cannot use."""
        self.optimizer.check(mixing)
        self.objective.check(mixing)

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


def dsgd(eta: float | Schedule) -> Algorithm:
    """Decentralized SGD (Algorithm 1 of the paper; Lian et al., NeurIPS 2017; Yuan, Ling and Yin, 2016).

    >>> isinstance(dsgd(eta=0.1), Algorithm)
    True
    """
    return Algorithm(erm(), optimizers.dsgd(eta), "DSGD", eta=said(eta))


def dr_dsgd(
    eta: float | Schedule, mu: float, loss_clip: float | None = None, weights: Weights = "as-written"
) -> Algorithm:
    """Distributionally robust decentralized SGD (Algorithm 2; Ben Issaid, Elgabli and Bennis, TMLR 2022).

    >>> dr_dsgd(eta=0.1, mu=6.0).name, dr_dsgd(eta=0.1, mu=6.0, weights="normalized").name
    ('DR-DSGD with mu = 6', 'DR-DSGD with mu = 6, normalized weights')
    """
    own = [f"mu = {mu:g}"] + ([] if weights == "as-written" else [f"{weights} weights"])
    own += [] if loss_clip is None else [f"loss clip = {loss_clip:g}"]
    return Algorithm(
        kl_dro(mu, loss_clip, weights), optimizers.dsgd(eta), f"DR-DSGD with {', '.join(own)}", eta=said(eta)
    )
