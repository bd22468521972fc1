"""The entrants of the league: server-free methods, methods with a server, and training on pooled data as the limit.

An entrant is a set of fields of an experiment, and the values of its own settings that tuning may choose from, in the
order of tuning. Step size and schedule are tuned for all. Tuning begins at the first value of each setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ENTRANTS", "LIMIT", "OURS", "PLAIN", "POOLED", "Entrant", "Kind"]

Kind = Literal["without a server", "ours", "with a server", "another problem", "pooled"]


@dataclass(frozen=True)
class Entrant:
    """A method, and the settings that are tuned beside the step size."""

    name: str
    kind: Kind
    fields: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def start(self) -> dict[str, Any]:
        """Where its tuning begins, apart from the step size."""
        return {name: values[0] for name, values in self.all_axes.items()}

    @property
    def all_axes(self) -> dict[str, Sequence[Any]]:
        """Its own settings, and the schedule, which all have."""
        return {"eta_schedule": SCHEDULES, **self.axes}


# step sizes that decay to zero, at once or after a warm-up; the paper's constant ones are worse for all
SCHEDULES = ("linear", "warmup")
_NORMALIZED = {"weights": "normalized"}
_FOUR_BITS = {"compression": "quantize:4", "gamma": 1.0}
_MOMENTUM: Mapping[str, Sequence[Any]] = {"momentum": (0.9, 0.8, 0.5)}
# for weights that are normalised by gossip; the KL ball always has a cap
_CAP: Mapping[str, Sequence[Any]] = {"weight_cap": (None, 3.0)}
# our own method, the same with uniform weights, the limit, and our method on pooled data
OURS, PLAIN = "DR-GTAdam", "GTAdam, 4 bits"
LIMIT, POOLED = "pooled data, group DRO", "pooled data, as DR-GTAdam"
_OWN: Mapping[str, Sequence[Any]] = {"mu": (0.3, 0.1, 1.0), "loss_smoothing": (0.1, 0.03)}
_QGM: Mapping[str, Sequence[Any]] = {"mu": (1.0, 3.0, 0.3), "loss_smoothing": (0.03, 0.1)}
_ADAM: Mapping[str, Sequence[Any]] = {"momentum": (0.9, 0.8), "second_momentum": (0.99, 0.95)}


def _gossip(name: str, axes: Mapping[str, Sequence[Any]] | None = None, **fields: Any) -> Entrant:
    return Entrant(name, "without a server", fields, axes or {})


def _server(
    name: str,
    algorithm: str,
    axes: Mapping[str, Sequence[Any]] | None = None,
    kind: Kind = "with a server",
    **fields: Any,
) -> Entrant:
    # with a server the graph has no effect: the same runs in every arena
    return Entrant(name, kind, {"algorithm": algorithm, "graph": "complete", **fields}, axes or {})


ENTRANTS: tuple[Entrant, ...] = (
    _gossip("DSGD", algorithm="dsgd"),
    _gossip("DR-DSGD", {"mu": (6.0, 3.0, 9.0)}, algorithm="dr-dsgd"),
    _gossip("DR-DSGD, normalized", {"mu": (3.0, 1.0, 10.0), **_CAP}, algorithm="dr-dsgd", **_NORMALIZED),
    _gossip("q-FFL by DSGD", {"q": (1.0, 0.5, 2.0), **_CAP}, algorithm="dsgd", objective="q-ffl"),
    _gossip("chi-square DRO by DSGD", {"mu": (1.0, 0.3, 3.0), **_CAP}, algorithm="dsgd", objective="chi2-dro"),
    _gossip("KL ball by DSGD", {"radius": (0.1, 0.03, 0.3)}, algorithm="dsgd", objective="kl-ball"),
    _gossip("AD-GDA", {"dual_eta": (0.01, 0.003, 0.03), "gamma": (1.0, 0.8)}, algorithm="ad-gda"),
    _gossip("AD-GDA, not compressed", {"dual_eta": (0.01, 0.003, 0.03)}, algorithm="dsgd", objective="ad-gda"),
    _gossip("DSGDm", {"momentum": (0.9, 0.5)}, algorithm="dsgdm"),
    _gossip("QG-DSGDm", _MOMENTUM, algorithm="qg-dsgdm"),
    _gossip("QG-DSGDm, 4 bits", _MOMENTUM, algorithm="qg-dsgdm", **_FOUR_BITS),
    # DR-QGM with uniform weights
    _gossip("QG-DSGDm, 4 bits, averaged twice", _MOMENTUM, algorithm="qg-dsgdm", gossip_steps=2, **_FOUR_BITS),
    _gossip("gradient tracking", algorithm="gradient-tracking"),
    _gossip("GTAdam", _ADAM, algorithm="gt-adam"),
    # ours with uniform weights
    _gossip(PLAIN, _ADAM, algorithm="gt-adam", **_FOUR_BITS),
    _gossip("D2", algorithm="d2"),
    _gossip("exact diffusion", algorithm="exact-diffusion"),
    _gossip("CHOCO-SGD, 4 bits", {"gamma": (1.0, 0.8, 0.4)}, algorithm="choco-sgd"),
    _gossip("CHOCO-SGD, top 10 %", {"gamma": (0.2, 0.1, 0.4)}, algorithm="choco-sgd", compression="top:0.1"),
    _gossip("CHOCO-SGD, random 10 %", {"gamma": (0.05, 0.02, 0.1)}, algorithm="choco-sgd", compression="random:0.1"),
    _gossip("MATCHA, half of the links", algorithm="dsgd", mixing="matcha:0.5"),
    _gossip("random matchings", algorithm="dsgd", mixing="matchings"),
    _gossip("5 local steps", algorithm="dsgd", local_steps=5),
    Entrant("DR-QGM", "ours", {"algorithm": "dr-qgm"}, _QGM),
    Entrant(OURS, "ours", {"algorithm": "dr-gt-adam"}, _OWN),
    _server("FedAvg", "fedavg"),
    _server("AFL", "afl", {"dual_eta": (0.01, 0.003, 0.03)}),
    _server("DRFA", "drfa", {"dual_eta": (0.01, 0.003, 0.03)}),
    _server("q-FedAvg", "q-fedavg", {"q": (1.0, 0.5, 2.0)}),
    _server("TERM", "fed-term", {"tilt": (1.0, 3.0, 0.3)}),
    _server("FedRobust", "fedrobust", {"shift_penalty": (1.0, 10.0)}, "another problem", shift="diagonal"),
    _server("Ditto", "ditto", kind="another problem"),
    _server("RFA", "rfa", kind="another problem"),
    Entrant("pooled data, average risk", "pooled", {"algorithm": "qg-dsgdm", "graph": "complete"}),
    Entrant(
        LIMIT, "pooled",
        {"algorithm": "qg-dsgdm", "objective": "kl-dro", "graph": "complete", **_NORMALIZED},
        {"mu": (0.3, 0.1, 1.0, 0.03), "loss_smoothing": (0.03, 0.1), "weight_cap": (3.0, 25.0)},
    ),
    Entrant(POOLED, "pooled", {"algorithm": "dr-gt-adam", "graph": "complete", "compression": "none"}, _OWN),
)  # fmt: skip
