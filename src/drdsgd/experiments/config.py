"""Experiment: a frozen, validated, complete description of a run.

`Experiment(...)` fills in every default, so that its config.toml gives the same run again. A field that does nothing in
a setting (mu with DSGD) stays empty, and is refused if it is set. The fields are the options that the library's
functions declare (`drdsgd.options`), and those in `fields` that only an experiment has.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drdsgd.errors import InputError, named, one_line, unknown
from drdsgd.experiments import registry
from drdsgd.experiments.fields import FIELDS, Fields, folder_of
from drdsgd.experiments.registry import DATASETS, METHODS, OPTIONS
from drdsgd.options import Rule, all_cores, defaults

__all__ = [
    "BEFORE",
    "Experiment",
    "check_dataset",
    "default_threads",
    "folder_of",
    "has",
    "load",
    "method_defaults",
    "recorded",
]

# options that are newer than some records, with the values that these were made with
BEFORE: dict[str, Any] = {"eval_every": 10, "local_every": 1, "matmul": "mkl"}
# the end of the name of a file with the records of a study
PACKED = ".jsonl.xz"


class Experiment(Fields):
    """One run. Fields that are left out get their default, which config.toml then states.

    >>> experiment = Experiment(algorithm="dr-dsgd", devices=25, rounds=300)
    >>> round(experiment.eta, 4), experiment.batch_size, experiment.mu
    (0.2887, 87, 6.0)
    >>> Experiment(rounds=0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: rounds=0: input should be greater than or equal to 1 (communication rounds T; ...)
    """

    def __init__(self, /, **fields: Any) -> None:
        super().__init__(**_completed({key: value for key, value in fields.items() if value is not None}))

    if TYPE_CHECKING:  # the options that functions declare

        def __getattr__(self, name: str) -> Any: ...

    def to_toml(self) -> str:
        """The complete config as TOML; `load` reads it back."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def replace(self, **changes: Any) -> Experiment:
        """The same experiment with some fields changed; defaults that were derived from them do not change."""
        return Experiment(**{**self.model_dump(), **changes})


def recorded(fields: Mapping[str, Any]) -> Experiment:
    """The experiment with the fields of a record, which need no user-defined code: they are complete."""
    fields = {**BEFORE, **fields}
    if any(":" in str(fields.get(kind, "")) for kind in ("objective", "optimizer")):
        return Experiment.model_construct(**{**dict.fromkeys(OPTIONS), **fields})
    return Experiment(**fields)


def load(path: Path) -> dict[str, Any]:
    """The fields in a TOML file, or in a record that `drdsgd reproduce` keeps, for `Experiment(**fields)`.

    A record is a file NAME.json, or one of many in a packed file: STUDY.jsonl.xz:NAME.
    """
    stem, packed, name = str(path).partition(PACKED)
    file = Path(stem + packed) if packed else path
    try:
        if packed or file.suffix == ".json":
            return _of_record(file, name.removeprefix(":") if packed else None)
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not TOML: {one_line(error)}") from None


def _of_record(file: Path, name: str | None) -> dict[str, Any]:
    """The config in a record: the one with this name in a packed file, or else the only one in the file."""
    import lzma

    try:
        with file.open("rb") if name is None else lzma.open(file) as lines:
            for line in [lines.read()] if name is None else lines:
                record = json.loads(line)
                if name is None or record["name"] == name:
                    return {**BEFORE, **record["config"]}
    except (ValueError, KeyError, TypeError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"{file} is not the record of a run: {one_line(error)}") from None
    raise InputError(
        f"{file} has no record '{name}': write {file}:NAME, with a name from the column run of fig1/curves.csv or "
        "another CSV file"
    )


def applicable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The options with an effect in the setting that these fields describe, with their defaults."""
    algorithm = fields["algorithm"]
    found = {
        **registry.TRAINING,
        **registry.own_options(algorithm, fields.get("objective"), fields.get("optimizer")),
        **({} if algorithm in registry.SERVERS else registry.GOSSIP),
        **registry.GRAPHS.get(str(fields["graph"]), {}),
        **registry.DATASETS.get(str(fields["dataset"]), {}),
    }
    if "partition" in found:
        found |= registry.PARTITIONS.get(str(fields.get("partition", found["partition"])), {})
    if "compression" in found and fields.get("compression", found["compression"]) is None:
        del found["gamma"]
    return found


def has(name: str, fields: Mapping[str, Any]) -> bool:
    """Whether the algorithm that these fields name has the field `name`; all algorithms have most fields.

    >>> has("mu", {"algorithm": "dsgd"}), has("mu", {"algorithm": "dsgd", "objective": "kl-dro"})
    (False, True)
    """
    if name in FIELDS or name in registry.TRAINING or name in _OF_DATA:
        return True
    if name in registry.GOSSIP:
        return fields["algorithm"] not in registry.SERVERS
    return name in registry.own_options(fields["algorithm"], fields.get("objective"), fields.get("optimizer"))


_OF_DATA = {
    name
    for table in (registry.GRAPHS, registry.DATASETS, registry.PARTITIONS)
    for options in table.values()
    for name in options
}


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """All fields: those given, which are checked, and the defaults of the others; None for those without effect."""
    fields: dict[str, Any] = {name: one.default for name, one in FIELDS.items() if one.default is not None} | given
    _check_algorithm(fields)
    known, options = registry.known(fields.get("objective"), fields.get("optimizer")), applicable(fields)
    for name in given:
        if name not in known:
            raise InputError(f"the key '{name}' is {unknown(name, list(known))}")
        if name in fields and name not in options and name not in FIELDS:
            check_dataset(fields["dataset"])  # a wrong name is the first mistake to report
            compressed = name == "gamma" and "compression" in options
            needs = named("compression") if compressed else registry.needed_by(name, fields["algorithm"])
            raise InputError(f"{named(name, fields[name])} does nothing here: it needs {needs}; leave it out")
    for name in given.keys() & fields.keys():
        known[name].check(name, fields[name])
        kind = known[name].kind
        fields[name] = kind(fields[name]) if kind in (int, float) else fields[name]
    for name, default in defaults(options, fields).items():
        if default is not None:
            fields.setdefault(name, default)
    for name, value in fields.items():  # the rules of FIELDS come first: others depend on devices and model
        if isinstance(value, Rule):
            fields[name] = value.of(fields)
    return {**dict.fromkeys(OPTIONS), **fields}


def _check_algorithm(fields: dict[str, Any]) -> None:
    """Refuse unknown algorithms, objectives and optimizers.

    A part that the algorithm has anyway is removed, so that an experiment has only one description.
    """
    algorithm = fields["algorithm"]
    if algorithm not in METHODS:
        raise InputError(f"{named('algorithm', algorithm)}: {unknown(str(algorithm), METHODS)}")
    made = registry.ALGORITHMS.get(algorithm)
    for kind in ("objective", "optimizer"):
        if kind in fields:
            registry.entry(kind, fields[kind])
            if made is not None and fields[kind] == getattr(made, kind):
                del fields[kind]


def method_defaults(e: Experiment) -> dict[str, Any]:
    """The defaults of the experiment's method: its own options, step size and batch size.

    >>> defaults = method_defaults(Experiment(algorithm="choco-sgd", eta=0.02, gamma=1, devices=10, rounds=40))
    >>> defaults["eta"], defaults["gamma"]
    (0.5, 0.8)
    """
    own = registry.own_options(e.algorithm, e.objective, e.optimizer)
    names = (_OF_METHODS | own.keys()) - _USES
    # the same experiment without its own options; the default of gamma depends on the compression
    default = Experiment(**{name: value for name, value in e if name not in names or name == "compression"})
    return {**{name: getattr(default, name) for name in names}, "compression": own.get("compression")}


_OF_METHODS = {"batch_size", *registry.SHARED} | {
    name
    for table in (registry.OBJECTIVES, registry.OPTIMIZERS, registry.SERVERS)
    for one in table.values()
    for name in one.options
}
# these say how a method is used, and a reader wants to see them
_USES = {"eta_schedule", "weight_decay", "local_steps"}


def default_threads() -> int:
    """The number of cores for this process; processes that torchrun started on this machine share the cores."""
    return int(all_cores.of({}))


def check_dataset(name: object) -> None:
    """Refuse a name that is neither a known data set nor a folder."""
    if name not in DATASETS and not folder_of(str(name)).is_dir():
        raise InputError(f"{named('dataset', name)}: no such folder, and {unknown(str(name), tuple(DATASETS))}")
