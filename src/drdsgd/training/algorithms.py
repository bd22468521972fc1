"""Every algorithm by name, with and without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drdsgd.baselines.server import SERVERS
from drdsgd.core.algorithms import ALGORITHMS, with_parts
from drdsgd.core.composition import Constructor
from drdsgd.core.method import Method
from drdsgd.core.objectives import OBJECTIVES, Objective
from drdsgd.core.optimizers import OPTIMIZERS, GossipOptimizer
from drdsgd.core.parts import Part
from drdsgd.errors import InputError, named, unknown

__all__ = ["algorithm", "constructor"]

Parts = str | Part | Callable[..., Objective] | Callable[..., GossipOptimizer] | None


def algorithm(name: str, *, objective: Parts = None, optimizer: Parts = None, **options: Any) -> Method:
    """An algorithm by name, with its options: `algorithm("dr-gt-adam", mu=1.0)` is `dr_gt_adam(mu=1.0)`.

    `objective` and `optimizer` replace a part of it: a name, or a function of your own that makes one. The parameters
    of such a function are options as well.

    >>> algorithm("dr-dsgd", mu=3.0).name, algorithm("dsgd", objective="q-ffl", q=2.0).name
    ('DR-DSGD with mu = 3', 'q-ffl + dsgd with q = 2')
    """
    made: Method = constructor(name, objective, optimizer)(**options)
    return made


def constructor(name: str, objective: Parts = None, optimizer: Parts = None) -> Constructor[Any]:
    """The function that makes an algorithm, with all its options and their defaults."""
    known = (*ALGORITHMS, *SERVERS)
    if name not in known:
        raise InputError(f"{named('algorithm', name)}: {unknown(name, known)}")
    if name not in SERVERS:
        loss = _part("objective", objective, OBJECTIVES)
        return with_parts(name, loss, _part("optimizer", optimizer, OPTIMIZERS))
    for kind, part in (("objective", objective), ("optimizer", optimizer)):
        if part is not None:
            raise InputError(f"{named(kind)}: {name} has a server, and no {kind} to replace; leave it out")
    return SERVERS[name]


def _part(kind: str, part: Parts, table: dict[str, Part]) -> Part | None:
    if part is None or isinstance(part, Part):
        return part
    if isinstance(part, str):
        if part not in table:
            raise InputError(f"{named(kind, part)}: {unknown(part, tuple(table))}, or give a function that makes one")
        return table[part]
    if not callable(part):
        raise InputError(f"{kind} is {part!r}: give a name, or a function that makes one")
    found = next((known for known in table.values() if known.make is part), None)
    return found or Part(getattr(part, "__name__", "your own"), part, part.__doc__ or "", foreign=True)
