"""Train one model over a graph of devices, without a server, good for the worst-off device.

The public names are loaded when they are first used, so that `import drdsgd` and `drdsgd --help` do not wait for
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drdsgd import (
        algorithms,
        compression,
        data,
        datasets,
        graphs,
        metrics,
        mixing,
        models,
        objectives,
        optimizers,
        partition,
        schedules,
        servers,
    )  # fmt: skip
    from drdsgd.algorithms import Algorithm, dr_dsgd, dsgd
    from drdsgd.errors import Diverged, InputError
    from drdsgd.experiment import Experiment
    from drdsgd.mixing import Mixing, metropolis
    from drdsgd.objectives import erm, kl_dro
    from drdsgd.round import Info, State, make_round
    from drdsgd.runs import run
    from drdsgd.training import Result, train, trajectory

__version__ = "0.1.0"

_HOMES = {
    "algorithms": ("Algorithm", "dr_dsgd", "dsgd"),
    "errors": ("Diverged", "InputError"),
    "experiment": ("Experiment",),
    "mixing": ("Mixing", "metropolis"),
    "objectives": ("erm", "kl_dro"),
    "round": ("Info", "State", "make_round"),
    "runs": ("run",),
    "training": ("Result", "train", "trajectory"),
}
_MODULES = (
    "algorithms", "compression", "data", "datasets", "graphs", "metrics", "mixing", "models", "objectives",
    "optimizers", "partition", "schedules", "servers",
)  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Algorithm", "Diverged", "Experiment", "Info", "InputError", "Mixing", "Result", "State",
    "algorithms", "compression", "data", "datasets", "dr_dsgd", "dsgd", "erm", "graphs", "kl_dro", "make_round",
    "metrics", "metropolis", "mixing", "models", "objectives", "optimizers", "partition", "run", "schedules", "servers",
    "train", "trajectory",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        # no module is named like one of these: importing it would hide the name
        value = getattr(importlib.import_module(f"drdsgd.{_HOME_OF[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"drdsgd.{name}")
    else:
        raise AttributeError(f"module 'drdsgd' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
