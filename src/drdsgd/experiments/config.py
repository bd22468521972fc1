"""Experiment: a frozen, validated, complete description of a run.

`Experiment(...)` fills in every default, so that its config.toml gives the same run again. A field that does nothing in
a setting (mu with DSGD) stays empty, and is refused if it is set.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drdsgd.errors import InputError, one_line, unknown
from drdsgd.experiments import registry
from drdsgd.experiments.options import ALGORITHMS, DATASETS, GRAPHS, OPTIONS, spelling

__all__ = ["Experiment", "default_threads", "has", "load", "method_defaults", "title", "warning"]

Positive = Annotated[float, Field(gt=0)]
# bound on numbers that are multiplied with parameters and with each other in float32
MOST = 1e6
Bounded = Annotated[float, Field(gt=0, le=MOST)]
# the counters of the batch generator have 32 bits
LIMIT = 2**32
# the end of the name of a file with the records of a study
PACKED = ".jsonl.xz"
Count = Annotated[int, Field(ge=1, lt=LIMIT)]


class Experiment(BaseModel):
    """One run. Fields that are left out get their default, which config.toml then states.

    >>> experiment = Experiment(algorithm="dr-dsgd", devices=25, rounds=300)
    >>> round(experiment.eta, 4), experiment.batch_size, experiment.mu
    (0.2887, 87, 6.0)
    >>> Experiment(rounds=0)
    Traceback (most recent call last):
    drdsgd.errors.InputError: --rounds 0: input should be greater than or equal to 1 (communication rounds T; ...)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    algorithm: str = "dr-dsgd"
    objective: str | None = None
    optimizer: str | None = None
    rounds: Count = 300
    batch_size: Count
    eta: Bounded
    eta_schedule: str = "constant"
    weight_decay: Positive | None = None
    local_steps: Count | None = None
    mu: Positive | None = None
    mu_schedule: str | None = None
    weights: Literal["as-written", "without-mu", "normalized"] | None = None
    radius: Positive | None = None
    tilt: Bounded | None = None
    q: Annotated[float, Field(ge=0, le=MOST)] | None = None
    dual_eta: Positive | None = None
    dual_penalty: Annotated[float, Field(ge=0)] | None = None
    loss_clip: Bounded | None = None
    loss_smoothing: Annotated[float, Field(gt=0, le=1)] | None = None
    weight_cap: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    second_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    compression: str | None = None
    gamma: Annotated[float, Field(gt=0, le=1)] | None = None
    clients: Count | None = None
    pull: Annotated[float, Field(ge=0, le=MOST)] | None = None
    shift_penalty: Positive | None = None
    shift_eta: Positive | None = None
    shift: Literal["matrix", "diagonal"] | None = None
    devices: Annotated[int, Field(ge=2, lt=LIMIT)]
    graph: str = "erdos-renyi"
    p: Annotated[float, Field(gt=0, le=1)] | None = None
    mixing: str | None = None
    gossip_steps: Count | None = None
    link_failures: Annotated[float, Field(gt=0, lt=1)] | None = None
    dropouts: Annotated[float, Field(gt=0, lt=1)] | None = None
    dataset: str = "digits"
    data_dir: str | None = None
    model: str
    partition: Literal["shards", "dirichlet", "iid"] | None = None
    shards: Count | None = None
    alpha: Positive | None = None
    heterogeneity: Annotated[float, Field(ge=0, le=MOST)] | None = None
    scaling: Literal["unit", "standard"] | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    random_labels: Count | None = None
    reference: Literal["samples", "uniform"] = "samples"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    eval_every: Count = 10
    checkpoint_every: Count = 50
    execution: Literal["auto", "batched", "loop"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    threads: Count

    def __init__(self, /, **fields: Any) -> None:
        given = {key: value for key, value in fields.items() if value is not None}
        try:
            super().__init__(**_with_defaults(given))
        except ValidationError as error:
            raise _explain(error) from None

    def to_toml(self) -> str:
        """The complete config as TOML; `load` reads it back."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def replace(self, **changes: Any) -> Experiment:
        """The same experiment with some fields changed; defaults that were derived from them do not change."""
        return Experiment(**{**self.model_dump(), **changes})


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
                    return dict(record["config"])
    except (ValueError, KeyError, TypeError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"{file} is not the record of a run: {one_line(error)}") from None
    raise InputError(
        f"{file} has no record '{name}': write {file}:NAME, with a name from the column run of fig1/curves.csv or "
        "another CSV file"
    )


# whether a field has an effect together with these other fields
Applies = Callable[[Mapping[str, Any]], bool]
_GOSSIPS: tuple[str, Applies, Any] = (
    "an algorithm without a server",
    lambda e: e["algorithm"] not in registry.SERVERS,
    None,
)
_IS_DEALT: tuple[str, Applies] = ("a data set that is dealt to devices", lambda e: e["dataset"] in DATASETS[:3])

# Fields that have an effect only in some settings: (the setting in words, the test for it, the default there). The
# fields of single algorithms are in the tables of `registry`.
_CONDITIONAL: dict[str, tuple[str, Applies, Any]] = {
    "objective": _GOSSIPS,
    "optimizer": _GOSSIPS,
    "weight_decay": _GOSSIPS,
    "local_steps": (
        "an algorithm other than afl, which takes one step per round",
        lambda e: e["algorithm"] != "afl",
        None,
    ),
    "mixing": _GOSSIPS,
    "gossip_steps": _GOSSIPS,
    "link_failures": _GOSSIPS,
    "dropouts": _GOSSIPS,
    "data_dir": ("a data set in files", lambda e: e["dataset"] in ("fashion-mnist", "cifar10"), None),
    "p": ("--graph erdos-renyi", lambda e: str(e["graph"]).endswith("erdos-renyi"), 0.3),
    "heterogeneity": ("--dataset synthetic", lambda e: e["dataset"] == "synthetic", 1.0),
    "scaling": (*_IS_DEALT, "unit"),
    "validation": (*_IS_DEALT, None),
    "partition": (*_IS_DEALT, "shards"),
    "shards": ("--partition shards", lambda e: e.get("partition") == "shards", 2),
    "alpha": ("--partition dirichlet", lambda e: e.get("partition") == "dirichlet", 0.5),
}
_OF_ALGORITHMS = {
    name
    for table in (registry.OBJECTIVES, registry.OPTIMIZERS, registry.SERVERS)
    for rule in table.values()
    for name in rule.options
}


def has(name: str, fields: Mapping[str, Any]) -> bool:
    """Whether the algorithm that these fields name has the field `name`; all algorithms have most fields.

    >>> has("mu", {"algorithm": "dsgd"}), has("mu", {"algorithm": "dsgd", "objective": "kl-dro"})
    (False, True)
    """
    if name in _OF_ALGORITHMS:
        return name in registry.own_options(fields["algorithm"], fields.get("objective"), fields.get("optimizer"))
    of_algorithm = _CONDITIONAL.get(name) in (_GOSSIPS, _CONDITIONAL["local_steps"])
    return not of_algorithm or _CONDITIONAL[name][1](fields)


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """All fields, including defaults that depend on others; wrong values are left to the validation."""
    fields = {name: f.default for name, f in Experiment.model_fields.items() if not f.is_required()}
    fields = {name: value for name, value in (fields | given).items() if value is not None}

    def does_nothing(name: str, setting: str) -> InputError:
        check_dataset(fields["dataset"])  # a wrong name is the first mistake to report
        return InputError(f"{spelling(name)} {fields[name]} does nothing here: it needs {setting}; leave it out")

    _check_algorithm(fields)
    for name, (setting, applies, default) in _CONDITIONAL.items():
        if applies(fields):
            if default is not None:
                fields.setdefault(name, default)
        elif name in fields:
            raise does_nothing(name, setting)
    own = registry.own_options(fields["algorithm"], fields.get("objective"), fields.get("optimizer"))
    if fields.get("compression", own.get("compression")) != own.get("compression"):
        own["gamma"] = None  # the algorithm's default is for its own compression
    for name in {*_OF_ALGORITHMS, *own}:
        if name in own:
            if own[name] is not None:
                fields.setdefault(name, own[name])
        elif name in fields:
            raise does_nothing(name, _needs(name, fields["algorithm"]))
    if "compression" in fields:
        fields.setdefault("gamma", registry.gamma_of(str(fields["compression"])))
    elif "gamma" in fields:
        raise does_nothing("gamma", "--compression")
    if "model" not in fields:
        fields["model"] = {"cifar10": "cnn", "synthetic": "logistic"}.get(str(fields["dataset"]), "mlp")
    if "devices" not in fields:
        fields["devices"] = _devices(fields)
    K, T = fields["devices"], fields["rounds"]
    if all(isinstance(value, int) and 0 < value < LIMIT for value in (K, T)):
        parts = (fields["algorithm"], fields.get("objective"), fields.get("optimizer"))
        fields.setdefault("eta", registry.default_eta(*parts, str(fields["model"])) or math.sqrt(K / T))
        fields.setdefault("batch_size", round(math.sqrt(K * T)))
    fields.setdefault("threads", default_threads())
    return fields


def method_defaults(e: Experiment) -> dict[str, Any]:
    """The defaults of the experiment's method: its own options, step size and batch size.

    >>> defaults = method_defaults(Experiment(algorithm="choco-sgd", eta=0.02, gamma=1, devices=10, rounds=40))
    >>> defaults["eta"], defaults["gamma"]
    (0.5, 0.8)
    """
    own = {*_OF_ALGORITHMS, "eta", "batch_size", "gossip_steps"}
    # the same experiment without its own options; the default of gamma depends on the compression
    default = Experiment(**{name: value for name, value in e if name not in own or name == "compression"})
    compression = registry.own_options(e.algorithm, e.objective, e.optimizer).get("compression")
    return {**{name: getattr(default, name) for name in own}, "compression": compression}


def warning(e: Experiment) -> str:
    """A warning about a run that will hardly learn; empty if there is none.

    >>> warning(Experiment(devices=1000, rounds=50))
    '--eta: the default, sqrt(K / T) = 4.47, is above 1, and few models learn with such steps; try --eta 0.5, or ...'
    """
    if e.eta <= 1 or e.eta != math.sqrt(e.devices / e.rounds):
        return ""
    return (
        f"--eta: the default, sqrt(K / T) = {e.eta:.3g}, is above 1, and few models learn with such steps; try "
        f"--eta 0.5, or more --rounds than --devices ({e.devices})"
    )


def default_threads() -> int:
    """The number of cores for this process; processes that torchrun started on this machine share the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _devices(fields: dict[str, Any]) -> int:
    """The default of K: the number of nodes in the graph file or of files in the data folder, else 10."""
    graph, folder = str(fields["graph"]), str(fields["dataset"])
    if graph not in GRAPHS and Path(graph).exists():
        from drdsgd.topology import graphs

        return int(graphs.from_file(graph).number_of_nodes())
    if folder not in DATASETS:
        return len(list(folder_of(folder).glob("*.npz"))) or 10
    return 10


def folder_of(dataset: str, rank: int | None = None) -> Path:
    """The folder that a data set's name means; `{rank}` in it stands for the rank of this process.

    >>> folder_of("sites/{rank}", 2)
    PosixPath('sites/2')
    """
    return Path(dataset.replace("{rank}", os.environ.get("RANK", "{rank}") if rank is None else str(rank)))


def check_dataset(name: object) -> None:
    """Refuse a name that is neither a known data set nor a folder."""
    if name not in DATASETS and not folder_of(str(name)).is_dir():
        raise InputError(f"--dataset {name}: no such folder, and {unknown(str(name), DATASETS)}")


def _check_algorithm(fields: dict[str, Any]) -> None:
    """Refuse unknown algorithms, objectives and optimizers.

    A part that the algorithm has anyway is removed, so that an experiment has only one description.
    """
    tables: dict[str, Sequence[str]] = {
        "algorithm": ALGORITHMS, "objective": tuple(registry.OBJECTIVES), "optimizer": tuple(registry.OPTIMIZERS)
    }  # fmt: skip
    for field, known in tables.items():
        if field in fields and fields[field] not in known:
            raise InputError(f"{spelling(field)} {fields[field]}: {unknown(str(fields[field]), known)}")
    named = registry.ALGORITHMS.get(fields["algorithm"])
    for field in ("objective", "optimizer") if named is not None else ():
        if fields.get(field) == getattr(named, field):
            del fields[field]


def _needs(name: str, algorithm: str) -> str:
    """The options with which a field of some algorithms has an effect.

    >>> _needs("q", "dsgd"), _needs("momentum", "afl")
    ('--objective q-ffl or --algorithm q-fedavg', 'a method without a server, with --optimizer momentum or ...')
    """
    tables = {
        "--objective": registry.OBJECTIVES,
        "--optimizer": registry.OPTIMIZERS,
        "--algorithm": registry.SERVERS,
    }
    having = {option: [rule for rule in table if name in table[rule].options] for option, table in tables.items()}
    needs = {option: f"{option} {' or '.join(some)}" for option, some in having.items() if some}
    if algorithm in registry.SERVERS:  # it has no parts to choose
        return needs.get("--algorithm", f"a method without a server, with {' or '.join(needs.values())}")
    return " or ".join(needs.values())


def _explain(error: ValidationError) -> InputError:
    """The first mistake in one line: option, value, reason, help text."""
    # a default is missing only because a field that it depends on is wrong
    first = next(one for one in error.errors() if one["type"] != "missing")
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return InputError(f"the key '{name}' is {unknown(name, list(OPTIONS))}")
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(f"{spelling(name)} {first['input']}: {message} ({OPTIONS[name].help})")


def title(e: Experiment) -> str:
    """The algorithm and its own options in words; named by its parts if one of them is overridden.

    >>> title(Experiment(algorithm="dr-dsgd", mu=6.0)), title(Experiment(algorithm="dsgd", objective="q-ffl", q=2.0))
    ('DR-DSGD with mu = 6', 'q-ffl + dsgd with q = 2')
    """
    own, parts = registry.own_options(e.algorithm, e.objective, e.optimizer), []
    for name, default in own.items():
        value = getattr(e, name)
        if value is not None and (name == "mu" or value != default or e.objective or e.optimizer):
            parts.append(
                f"{name.replace('_', ' ')} = {value:g}"
                if isinstance(value, float)
                else f"{value} {name.replace('_', ' ')}"
            )
    named = None if e.objective or e.optimizer else registry.ALGORITHMS.get(e.algorithm)
    name = registry.name_of(e.algorithm, e.objective, e.optimizer) if named is None else named.title
    return name + (f" with {', '.join(parts)}" if parts else "")
