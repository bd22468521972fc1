"""Named algorithms: an objective with an optimizer, one line each."""

from __future__ import annotations

from dataclasses import dataclass

from drdsgd.core import optimizers
from drdsgd.core.objectives import Objective, Weights, erm, kl_dro
from drdsgd.core.optimizers import GossipOptimizer
from drdsgd.core.schedules import Schedule, said
from drdsgd.topology.mixing import Mixing

__all__ = ["Algorithm", "dr_dsgd", "dsgd"]


@dataclass(frozen=True)
class Algorithm:
    """What to minimise, and how: any objective works with any optimizer.

    `name` and `eta` are texts for messages and the model card.

    >>> Algorithm(kl_dro(mu=6), optimizers.dsgd(0.1)).objective.weigh is not None
    True
    """

    objective: Objective
    optimizer: GossipOptimizer
    name: str = "your algorithm"
    weight_decay: float = 0.0
    eta: str = ""

    def check(self, mixing: Mixing) -> None:
        """Refuse a mixing that the optimizer or the objective cannot use."""
        self.optimizer.check(mixing)
        self.objective.check(mixing)


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
