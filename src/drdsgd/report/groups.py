"""Groups of runs that differ only in the seed, each under a label that says how it differs from the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from drdsgd.errors import InputError
from drdsgd.experiments import config, registry
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Record
from drdsgd.experiments.registry import METHODS

__all__ = ["Groups", "groups"]

Groups = Mapping[str, Sequence[Record]]

# where a run was made and how often it was saved: no part of what was run
_INCIDENTAL = {"seed", "threads", "checkpoint_every", "data_dir"}


def groups(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Runs that differ only in the seed, under a label: the algorithm, and the settings in which groups differ.

    A label omits settings for which all groups of its algorithm have the default.
    Groups are sorted by algorithm, as `drdsgd algorithms` lists them, and then by first run. The first group is the one
    that the others are compared with. Within a group the runs are sorted by seed, and no seed occurs twice.
    """
    found: dict[frozenset[tuple[str, Any]], list[Record]] = {}
    for record in records:
        found.setdefault(frozenset(_settings(record.experiment).items()), []).append(record)
    members = sorted(found.values(), key=lambda group: METHODS.index(group[0].experiment.algorithm))
    named = zip(_labels([group[0].experiment for group in members]), members, strict=True)
    return {label: _by_seed(label, group) for label, group in named}


def _settings(e: Experiment) -> dict[str, Any]:
    """What was run; only an experiment with a user-defined function has the options of that function."""
    return {name: value for name, value in e.model_dump(exclude_none=True).items() if name not in _INCIDENTAL}


def _by_seed(label: str, group: list[Record]) -> list[Record]:
    """The runs sorted by seed; refuses a seed that occurs twice, because it would count as independent evidence."""
    runs: dict[int, Record] = {}
    for record in group:
        other = runs.setdefault(record.experiment.seed, record)
        if other is not record:
            raise InputError(
                f"{record.path} and {other.path} are the same experiment ({label}, seed {record.experiment.seed}); "
                "give only one of them"
            )
    return [runs[seed] for seed in sorted(runs)]


def _labels(experiments: list[Experiment]) -> list[str]:
    settings = [_settings(e) for e in experiments]
    names = [name for name in dict.fromkeys(name for e in experiments for name, _ in e) if _differs(name, settings)]
    special: dict[str, set[str]] = {}  # by algorithm: settings for which some of its groups do not have the default
    for e, each in zip(experiments, settings, strict=True):
        # with another objective or optimizer the label names the parts, which tells a reader nothing about defaults
        defaults = {} if e.objective or e.optimizer else config.method_defaults(e)
        others = {name for name in names if name not in defaults or each.get(name) != defaults[name]}
        special.setdefault(e.algorithm, set()).update(others)
    short = [
        _label(each, [name for name in names if name in special[each["algorithm"]]], exact=False) for each in settings
    ]
    return short if len(set(short)) == len(short) else [_label(each, names, exact=True) for each in settings]


def _differs(name: str, settings: list[dict[str, Any]]) -> bool:
    """Whether a setting tells groups apart: mu does if it has two values, but not if only one algorithm has it."""
    if name == "algorithm":
        return False
    if len({each[name] for each in settings if name in each}) > 1:
        return True
    values: dict[str, set[Any]] = {}
    for each in settings:
        values.setdefault(each["algorithm"], set()).add(each.get(name))
    return any(len(of_one) > 1 for of_one in values.values())


def _label(settings: dict[str, Any], names: list[str], *, exact: bool) -> str:
    """The method and the settings that differ; `exact` writes the given options, as two may have the same parts."""
    parts = ("objective", "optimizer")
    method = settings["algorithm"] if exact else registry.name_of(settings["algorithm"], *map(settings.get, parts))
    others = [name for name in names if name not in parts]
    shown = [name for name in ([*parts, *others] if exact else others) if name in settings]
    return " ".join([method, *(f"{name}={_value(settings[name], exact)}" for name in shown)])


def _value(value: object, exact: bool) -> str:
    if exact:
        return str(value)
    # for a data folder or a graph file the name is enough
    return f"{value:.4g}" if isinstance(value, float) else PurePath(str(value)).name
