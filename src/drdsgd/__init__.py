"""Train one model over a graph of devices, without a server, that is good for the worst-off device.

The public names are loaded at first use, so that `import drdsgd` and `drdsgd --help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drdsgd import baselines as servers
    from drdsgd import data, models
    from drdsgd.baselines.afl import afl
    from drdsgd.baselines.ditto import ditto
    from drdsgd.baselines.drfa import drfa
    from drdsgd.baselines.fed_term import fed_term
    from drdsgd.baselines.fedavg import fedavg
    from drdsgd.baselines.fedrobust import fedrobust
    from drdsgd.baselines.q_fedavg import q_fedavg
    from drdsgd.baselines.rfa import rfa
    from drdsgd.core import algorithms, compression, objectives, optimizers, schedules
    from drdsgd.core.algorithms import (
        Algorithm,
        ad_gda,
        choco_sgd,
        d2,
        dr_dsgd,
        dr_gt_adam,
        dr_qgm,
        dsgd,
        dsgdm,
        exact_diffusion,
        gradient_tracking,
        gt_adam,
        qg_dsgdm,
        sgp,
    )
    from drdsgd.core.objectives import erm, kl_dro
    from drdsgd.core.round import Info, State, make_round
    from drdsgd.data import partition
    from drdsgd.data import sources as datasets
    from drdsgd.errors import Diverged, InputError
    from drdsgd.experiments.config import Experiment
    from drdsgd.experiments.run import resume, run
    from drdsgd.topology import graphs, mixing
    from drdsgd.topology.mixing import Mixing, metropolis
    from drdsgd.training import metrics
    from drdsgd.training.algorithms import algorithm
    from drdsgd.training.loop import Result, train, trajectory

__version__ = "0.1.0"

# modules with public names, in the order in which they are searched: those that need no torch come first, and ad_gda is
# an algorithm before it is an objective
_HOMES = (
    "errors", "experiments.config", "core.algorithms", "core.objectives", "core.round", "baselines", "topology.mixing",
    "training.algorithms", "training.loop", "experiments.run",
)  # fmt: skip
_MODULES = {
    "algorithms": "core.algorithms",
    "compression": "core.compression",
    "data": "data",
    "datasets": "data.sources",
    "graphs": "topology.graphs",
    "metrics": "training.metrics",
    "mixing": "topology.mixing",
    "models": "models",
    "objectives": "core.objectives",
    "optimizers": "core.optimizers",
    "partition": "data.partition",
    "schedules": "core.schedules",
    "servers": "baselines",
}

__all__ = [
    "Algorithm", "Diverged", "Experiment", "Info", "InputError", "Mixing", "Result", "State", "ad_gda", "afl",
    "algorithm", "algorithms", "choco_sgd", "compression", "d2", "data", "datasets", "ditto", "dr_dsgd",
    "dr_gt_adam", "dr_qgm", "drfa", "dsgd", "dsgdm", "erm", "exact_diffusion", "fed_term", "fedavg", "fedrobust",
    "gradient_tracking", "graphs", "gt_adam", "kl_dro", "make_round", "metrics", "metropolis", "mixing", "models",
    "objectives", "optimizers", "partition", "q_fedavg", "qg_dsgdm", "resume", "rfa", "run", "schedules", "servers",
    "sgp", "train", "trajectory",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(f"drdsgd.{_MODULES[name]}")
    elif name in __all__:
        # none of these names is also a module of the package: importing that module would hide the name
        homes = (importlib.import_module(f"drdsgd.{home}") for home in _HOMES)
        value = next(getattr(home, name) for home in homes if name in home.__all__)
    else:
        raise AttributeError(f"module 'drdsgd' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
