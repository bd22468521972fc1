"""Every algorithm by name, with and without a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from drdsgd.baselines.server import SERVERS
from drdsgd.core.algorithms import ALGORITHMS, SHARED, of_objective, of_optimizer, with_parts
from drdsgd.core.composition import Constructor, Setting
from drdsgd.core.method import Method
from drdsgd.core.objectives import OBJECTIVES, Objective
from drdsgd.core.optimizers import OPTIMIZERS, GossipOptimizer
from drdsgd.core.parts import Part
from drdsgd.errors import InputError, named, unknown
from drdsgd.options import ObjectiveName, OptimizerName
from drdsgd.training import outside

__all__ = ["algorithm", "check_names", "constructor"]

Parts = str | Part | Callable[..., Objective] | Callable[..., GossipOptimizer] | None


def algorithm(name: str, /, *, objective: Parts = None, optimizer: Parts = None, **options: Any) -> Method:
    """An algorithm by name, with its options: `algorithm("dr-gt-adam", mu=1.0)` is `dr_gt_adam(mu=1.0)`.

    `objective` and `optimizer` replace a part of it: a name, or your own function that makes one. The function may be
    given as a text, `package.module:function`. Its parameters are options as well.

    >>> algorithm("dr-dsgd", mu=3.0).name, algorithm("dsgd", objective="q-ffl", q=2.0).name
    ('DR-DSGD with mu = 3', 'q-ffl + dsgd with q = 2')
    """
    made: Method = constructor(name, objective, optimizer)(**options)
    return made


def constructor(
    name: str, objective: ObjectiveName | Parts = None, optimizer: OptimizerName | Parts = None
) -> Constructor[Any]:
    """The function that makes an algorithm, with all its options and their defaults."""
    known = (*ALGORITHMS, *SERVERS)
    if name not in known:
        raise InputError(f"{named('algorithm', name)}: {unknown(name, known)}")
    if name not in SERVERS:
        loss, step = _part("objective", objective, OBJECTIVES), _part("optimizer", optimizer, OPTIMIZERS)
        check_names(loss, step)
        return with_parts(name, loss, step)
    for kind, part in (("objective", objective), ("optimizer", optimizer)):
        if part is not None:
            raise InputError(f"{named(kind)}: {name} has a server, and no {kind} to replace; leave it out")
    return SERVERS[name]


def _part(kind: str, part: Parts, table: dict[str, Part]) -> Part | None:
    if part is None or isinstance(part, Part):
        return part
    if isinstance(part, str):
        if part not in table and ":" in part:
            return outside.part(kind, part)
        if part not in table:
            raise InputError(f"{named(kind, part)}: {unknown(part, tuple(table))}, or give a function that makes one")
        return table[part]
    if not callable(part):
        raise InputError(f"{kind} is {part!r}: give a name, or a function that makes one")
    found = next((known for known in table.values() if inspect.unwrap(known.make) is inspect.unwrap(part)), None)
    return found or Part(getattr(part, "__name__", "your own"), part, part.__doc__ or "", foreign=True)


def check_names(objective: Part | None = None, optimizer: Part | None = None, taken: Collection[str] = ()) -> None:
    """Refuse user-defined functions with a parameter that has the name of another option, or a name in `taken`."""
    of_parts = [of_objective(part) for part in OBJECTIVES.values()] + [of_optimizer(p) for p in OPTIMIZERS.values()]
    known = {*taken, *SHARED, *Setting._fields, "objective", "optimizer"}.union(*of_parts)
    for kind, part, table in (("objective", objective, OBJECTIVES), ("optimizer", optimizer, OPTIMIZERS)):
        if part is not None and part.foreign:
            own = {name for one in table.values() for name in one.parameters}  # these mean the same in every function
            for name in part.parameters:
                if name.startswith("_") or name in known - own:
                    raise InputError(
                        f"{named(kind, part.name)}: the parameter {name} has the name of another option; rename it"
                    )
    if objective is not None and optimizer is not None:
        for name in objective.parameters.keys() & optimizer.parameters.keys():
            raise InputError(
                f"{named('objective', objective.name)}, {named('optimizer', optimizer.name)}: both have a parameter "
                f"{name}; rename one"
            )
