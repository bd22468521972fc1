"""What the library's functions declare, as the table `catalogue.json`, so that `drdsgd --help` need not load torch.

`python -m drdsgd.experiments.catalogue` writes it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drdsgd import options
from drdsgd.baselines import SERVERS
from drdsgd.core.algorithms import ALGORITHMS, SHARED, of_objective, of_optimizer
from drdsgd.core.objectives import OBJECTIVES
from drdsgd.core.optimizers import OPTIMIZERS
from drdsgd.core.parts import Part
from drdsgd.data.dealing import dealt
from drdsgd.data.devices import synthetic
from drdsgd.data.partition import PARTITIONS
from drdsgd.data.sources import SOURCES
from drdsgd.errors import InputError
from drdsgd.experiments.fields import FIELDS
from drdsgd.files import write_text
from drdsgd.options import GROUPS, IN_PYTHON, Option, Parameter, Rule, all_cores, parameters
from drdsgd.topology.graphs import GRAPHS
from drdsgd.topology.mixing import mixing_of
from drdsgd.training.algorithms import constructor
from drdsgd.training.preparation import Settings

__all__ = ["main", "text"]

FILE = Path(__file__).with_name("catalogue.json")
Declared = Mapping[str, Parameter]
# name the methods in the help if at most FEW_METHODS have the option; graphs and data sets if at most FEW_KINDS
FEW_METHODS, FEW_KINDS = 3, 2


def text() -> str:
    """The content of `catalogue.json`."""
    methods: dict[str, dict[str, tuple[Part, Declared]]] = {
        "objectives": {name: (part, of_objective(part)) for name, part in OBJECTIVES.items()},
        "optimizers": {name: (part, of_optimizer(part)) for name, part in OPTIMIZERS.items()},
        "servers": {name: (made.parts[0], made.parameters) for name, made in SERVERS.items()},
    }
    # samples are dealt in the same way, whatever the data set
    datasets = {name: {**parameters(make), **parameters(dealt)} for name, make in SOURCES.items()}
    kinds = {
        "graphs": {name: parameters(make) for name, make in GRAPHS.items()},
        "datasets": {**datasets, "synthetic": parameters(synthetic)},
        "partitions": {name: parameters(make) for name, make in PARTITIONS.items()},
    }
    common = {
        "shared": SHARED,
        "gossip": {**parameters(constructor), **parameters(mixing_of)},
        "training": parameters(Settings),
    }
    # other than in Python, where torch may have been told how many threads to use
    common["training"]["threads"] = common["training"]["threads"]._replace(default=all_cores)
    return json.dumps(
        {
            "options": _options(methods, kinds, common),
            "algorithms": {
                name: {
                    "title": made.title, "objective": made.parts[0].name, "optimizer": made.parts[1].name,
                    "source": made.source, "options": dict(made.own),
                }
                for name, made in ALGORITHMS.items()
            },
            **{kind: {name: _entry(*one) for name, one in table.items()} for kind, table in methods.items()},
            **{kind: _defaults(table) for kind, table in common.items()},
            **{kind: {name: _defaults(own) for name, own in table.items()} for kind, table in kinds.items()},
        },
        indent=1, ensure_ascii=False,
    ) + "\n"  # fmt: skip


def _entry(part: Part, declared: Declared) -> dict[str, Any]:
    about = {"what": part.what, "sends": part.sends, "source": part.source, "options": _defaults(declared)}
    return {**about, "averaged": True} if part.averaged else about


def _defaults(declared: Declared) -> dict[str, Any]:
    return {
        name: {"rule": one.default.words} if isinstance(one.default, Rule) else one.default
        for name, one in declared.items()
        if one.option.group != IN_PYTHON
    }


def _options(
    methods: Mapping[str, Mapping[str, tuple[Part, Declared]]],
    kinds: Mapping[str, Mapping[str, Declared]],
    common: Mapping[str, Declared],
) -> dict[str, dict[str, Any]]:
    """Every option in the order of --help: its kind, its bounds, its group and its help with the default."""
    of_methods = {name: declared for table in methods.values() for name, (_, declared) in table.items()}
    of_kinds = {name: declared for table in kinds.values() for name, declared in table.items()}
    found: dict[str, dict[str, Parameter]] = {}
    for who, declared in (("", FIELDS), *common.items(), *of_methods.items(), *of_kinds.items()):
        for name, one in declared.items():
            if one.option.group not in (*GROUPS, IN_PYTHON) or one.default is inspect.Parameter.empty:
                raise InputError(f"{who}: the option {name} needs a default, and a group of drdsgd.options")
            if one.option.group != IN_PYTHON:
                found.setdefault(name, {})[who] = one
    listed = {name: ", ".join(table) for name, table in {**methods, **kinds}.items()}

    def place(name: str) -> tuple[int, int, int]:
        option = next(iter(found[name].values())).option
        types = [about for kind in vars(options).values() for about in getattr(kind, "__metadata__", ())]
        where = [*FIELDS].index(name) if name in FIELDS else types.index(option) if option in types else len(types)
        return GROUPS.index(option.group), name not in FIELDS, where

    def shown(name: str) -> dict[str, Any]:
        by = found[name]
        one = next(iter(by.values()))
        text = one.option.help
        for what, names in listed.items():
            text = text.replace(f"{{{what}}}", names)
        having = [who for who in by if who in of_methods] or [who for who in by if who in of_kinds]
        few = FEW_METHODS if having and having[0] in of_methods else FEW_KINDS
        if len(having) == len(by) <= few:
            text = f"{', '.join(having)}: {text}"
        own = {who: made.own[name] for who, made in ALGORITHMS.items() if name in made.own}
        default = _default(one, {**{who: other.default for who, other in by.items()}, **own})
        usual = Option("")._asdict()
        bounds = {key: value for key, value in one.option._asdict().items() if value != usual[key]}
        kind = list(one.kind) if isinstance(one.kind, tuple) else one.kind.__name__
        return {"kind": kind, **bounds, "help": f"{text}; default {default}" if default else text}

    return {name: shown(name) for name in sorted(found, key=place)}


def _default(one: Parameter, values: Mapping[str, Any]) -> str:
    """The default in words, and in brackets the methods with another one."""

    def words(value: Any) -> str:
        if value is None:
            return one.option.unset
        return value.words if isinstance(value, Rule) else f"{value:g}" if isinstance(value, float) else str(value)

    main, others = words(one.default), dict[str, list[str]]()
    for who, value in values.items():
        if words(value) != main:
            others.setdefault(words(value), []).append(who)
    said = "; ".join(f"{', '.join(some)}: {value}" for value, some in others.items())
    if not said:
        return main
    return f"{main[:-1]}; {said})" if main.endswith(")") and " (" in main else f"{main} ({said})"


def main() -> None:
    """Write `catalogue.json`."""
    write_text(FILE, text())


if __name__ == "__main__":
    main()
