"""How much memory a run needs, and how much there is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from drdsgd.core.round import State
from drdsgd.errors import InputError

__all__ = ["check", "free", "needed"]

# the limits of a container: control groups of version 2 and 1
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free() -> int | None:
    """The bytes of memory that this machine or container has left; None if it does not say."""
    found = []
    with suppress(OSError, ValueError, KeyError):
        lines = (line.partition(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        found.append(1024 * int({name: value for name, _, value in lines}["MemAvailable"].split()[0]))
    for limit, used in _LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number: there is no limit
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    return min(found, default=None)


def needed(one: State, K: int) -> int:
    """The bytes of the models and states of K devices, from those of `one` device.

    >>> import torch
    >>> needed(State(0, torch.zeros(1, 100), {}, {"momentum": torch.zeros(1, 100)}), 10)
    8000
    """
    tensors: list[Tensor] = [one.theta, *one.objective.values(), *one.optimizer.values()]
    return K * sum(tensor.nbytes for tensor in tensors if len(tensor) == 1)


def check(one: State, K: int) -> None:
    """Refuse a run of K devices whose models and states do not fit into memory."""
    # the processes that torchrun started on this machine share its memory
    here, there = needed(one, K) * int(os.environ.get("LOCAL_WORLD_SIZE", "1")), free()
    if there is not None and here > there:
        raise InputError(
            f"{K} models of {one.theta.shape[1]} parameters, with what the algorithm keeps for each, need "
            f"{here / 1e9:.1f} GB, and {there / 1e9:.1f} GB are free: use fewer devices, a smaller model, or an "
            "algorithm that keeps less, such as dsgd"
        )
