"""Experiment: a frozen, validated, complete description of a run, and how it becomes graph, data, model, algorithm.

`Experiment(...)` fills in every default, so that what is written down (config.toml) gives the same run again. A
field that does nothing in a setting (mu with DSGD) stays empty, and is refused if somebody sets it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drdsgd import methods
from drdsgd.errors import InputError, one_line
from drdsgd.options import ALGORITHMS, DATASETS, GRAPHS, MIXINGS, OPTIONS, spelling, unknown

if TYPE_CHECKING:
    import networkx as nx
    from torch import nn

    from drdsgd.algorithms import Algorithm
    from drdsgd.data import Devices
    from drdsgd.mixing import Mixing
    from drdsgd.servers import ServerAlgorithm

__all__ = [
    "Experiment",
    "default_threads",
    "has",
    "load",
    "make_algorithm",
    "make_data",
    "make_graph",
    "make_mixing",
    "make_model",
    "method_defaults",
    "title",
    "warning",
]

Positive = Annotated[float, Field(gt=0)]
# of numbers that meet those of a model: within float32, also times each other
MOST = 1e6
Bounded = Annotated[float, Field(gt=0, le=MOST)]
# the counters of the batches' generator have 32 bits
LIMIT = 2**32
Count = Annotated[int, Field(ge=1, lt=LIMIT)]


class Experiment(BaseModel):
    """One run. Fields left out get their default, which the run's config.toml then states.

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
        """The same experiment with some fields changed; defaults that depend on them stay as they are."""
        return Experiment(**{**self.model_dump(), **changes})


def load(path: Path) -> dict[str, Any]:
    """The fields in a TOML file, or in a record that `drdsgd reproduce` keeps, for `Experiment(**fields)`."""
    try:
        if path.suffix == ".json":
            return _of_record(path)
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {one_line(error)}") from None


def _of_record(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes())["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not the record of a run: {one_line(error)}") from None


# whether a field means something beside these others
Applies = Callable[[Mapping[str, Any]], bool]
_GOSSIPS: tuple[str, Applies, Any] = (
    "an algorithm without a server",
    lambda e: e["algorithm"] not in methods.SERVERS,
    None,
)
_IS_DEALT: tuple[str, Applies] = ("a data set that is dealt to devices", lambda e: e["dataset"] in DATASETS[:3])

# Fields that mean something only in some settings: (when, in words; whether; the default there). Those that only some
# algorithms have are in the tables of `methods`.
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
    for table in (methods.OBJECTIVES, methods.OPTIMIZERS, methods.SERVERS)
    for rule in table.values()
    for name in rule.options
}


def has(name: str, fields: Mapping[str, Any]) -> bool:
    """Whether the algorithm that these fields name has the field `name`; most of them all have.

    >>> has("mu", {"algorithm": "dsgd"}), has("mu", {"algorithm": "dsgd", "objective": "kl-dro"})
    (False, True)
    """
    if name in _OF_ALGORITHMS:
        return name in methods.own_options(fields["algorithm"], fields.get("objective"), fields.get("optimizer"))
    of_algorithm = _CONDITIONAL.get(name) in (_GOSSIPS, _CONDITIONAL["local_steps"])
    return not of_algorithm or _CONDITIONAL[name][1](fields)


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """All fields, with the defaults that depend on others; leaves wrong values to the validation."""
    fields = {name: f.default for name, f in Experiment.model_fields.items() if not f.is_required()}
    fields = {name: value for name, value in (fields | given).items() if value is not None}

    def does_nothing(name: str, setting: str) -> InputError:
        _check_dataset(fields["dataset"])  # where the name is wrong, say that
        return InputError(f"{spelling(name)} {fields[name]} does nothing here: it needs {setting}; leave it out")

    _check_algorithm(fields)
    for name, (setting, applies, default) in _CONDITIONAL.items():
        if applies(fields):
            if default is not None:
                fields.setdefault(name, default)
        elif name in fields:
            raise does_nothing(name, setting)
    own = methods.own_options(fields["algorithm"], fields.get("objective"), fields.get("optimizer"))
    if fields.get("compression", own.get("compression")) != own.get("compression"):
        own["gamma"] = None  # an algorithm's own is for its own messages
    for name in {*_OF_ALGORITHMS, *own}:
        if name in own:
            if own[name] is not None:
                fields.setdefault(name, own[name])
        elif name in fields:
            raise does_nothing(name, _needs(name, fields["algorithm"]))
    if "compression" in fields:
        fields.setdefault("gamma", methods.gamma_of(str(fields["compression"])))
    elif "gamma" in fields:
        raise does_nothing("gamma", "--compression")
    if "model" not in fields:
        fields["model"] = {"cifar10": "cnn", "synthetic": "logistic"}.get(str(fields["dataset"]), "mlp")
    if "devices" not in fields:
        fields["devices"] = _devices(fields)
    K, T = fields["devices"], fields["rounds"]
    if all(isinstance(value, int) and 0 < value < LIMIT for value in (K, T)):
        parts = (fields["algorithm"], fields.get("objective"), fields.get("optimizer"))
        fields.setdefault("eta", methods.default_eta(*parts, str(fields["model"])) or math.sqrt(K / T))
        fields.setdefault("batch_size", round(math.sqrt(K * T)))
    fields.setdefault("threads", default_threads())
    return fields


def method_defaults(e: Experiment) -> dict[str, Any]:
    """What the experiment's method has by default: its own options, step and batch size.

    >>> defaults = method_defaults(Experiment(algorithm="choco-sgd", eta=0.02, gamma=1, devices=10, rounds=40))
    >>> defaults["eta"], defaults["gamma"]
    (0.5, 0.8)
    """
    own = {*_OF_ALGORITHMS, "eta", "batch_size", "gossip_steps"}
    # but for its own options the same; gamma is by default what suits the messages that it has
    default = Experiment(**{name: value for name, value in e if name not in own or name == "compression"})
    compression = methods.own_options(e.algorithm, e.objective, e.optimizer).get("compression")
    return {**{name: getattr(default, name) for name in own}, "compression": compression}


def warning(e: Experiment) -> str:
    """What to say before a run that will hardly learn; empty where there is nothing.

    >>> warning(Experiment(devices=1000, rounds=50))
    '--eta: the default, sqrt(K / T) = 4.47, is above 1, a step with which few models learn; try --eta 0.5, or ...'
    """
    if e.eta <= 1 or e.eta != math.sqrt(e.devices / e.rounds):
        return ""
    return (
        f"--eta: the default, sqrt(K / T) = {e.eta:.3g}, is above 1, a step with which few models learn; try "
        f"--eta 0.5, or more --rounds than --devices ({e.devices})"
    )


def default_threads() -> int:
    """The cores that this process may use; it shares them with those that torchrun started beside it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _devices(fields: dict[str, Any]) -> int:
    """K where nobody says it: as many as the graph file has nodes, or the data folder files, else 10."""
    graph, folder = str(fields["graph"]), str(fields["dataset"])
    if graph not in GRAPHS and Path(graph).exists():
        from drdsgd import graphs

        return int(graphs.from_file(graph).number_of_nodes())
    if folder not in DATASETS:
        return len(list(folder_of(folder).glob("*.npz"))) or 10
    return 10


def folder_of(dataset: str, rank: int | None = None) -> Path:
    """The folder that a data set's name means; `{rank}` in it is this process's number among several.

    >>> folder_of("sites/{rank}", 2)
    PosixPath('sites/2')
    """
    return Path(dataset.replace("{rank}", os.environ.get("RANK", "{rank}") if rank is None else str(rank)))


def _check_dataset(name: object) -> None:
    """Refuse a name that is neither a known data set nor a folder."""
    if name not in DATASETS and not folder_of(str(name)).is_dir():
        raise InputError(f"--dataset {name}: no such folder, and {unknown(str(name), DATASETS)}")


def _check_algorithm(fields: dict[str, Any]) -> None:
    """Refuse names of algorithms, objectives and optimizers that there are not.

    A part that the algorithm has anyway is left out, so that an experiment has one description only.
    """
    tables: dict[str, Sequence[str]] = {
        "algorithm": ALGORITHMS, "objective": tuple(methods.OBJECTIVES), "optimizer": tuple(methods.OPTIMIZERS)
    }  # fmt: skip
    for field, known in tables.items():
        if field in fields and fields[field] not in known:
            raise InputError(f"{spelling(field)} {fields[field]}: {unknown(str(fields[field]), known)}")
    named = methods.ALGORITHMS.get(fields["algorithm"])
    for field in ("objective", "optimizer") if named is not None else ():
        if fields.get(field) == getattr(named, field):
            del fields[field]


def _needs(name: str, algorithm: str) -> str:
    """What one must choose for a field of some algorithms to do something.

    >>> _needs("q", "dsgd"), _needs("momentum", "afl")
    ('--objective q-ffl or --algorithm q-fedavg', 'a method without a server, with --optimizer momentum or ...')
    """
    tables = {
        "--objective": methods.OBJECTIVES,
        "--optimizer": methods.OPTIMIZERS,
        "--algorithm": methods.SERVERS,
    }
    having = {option: [rule for rule in table if name in table[rule].options] for option, table in tables.items()}
    needs = {option: f"{option} {' or '.join(some)}" for option, some in having.items() if some}
    if algorithm in methods.SERVERS:  # which has no parts that one could choose
        return needs.get("--algorithm", f"a method without a server, with {' or '.join(needs.values())}")
    return " or ".join(needs.values())


def _explain(error: ValidationError) -> InputError:
    """The first thing that is wrong, in one line: option, value, what is wrong, what it is for."""
    # a default that could not be worked out is missing, because a field that it depends on is wrong
    first = next(one for one in error.errors() if one["type"] != "missing")
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return InputError(f"the key '{name}' is {unknown(name, list(OPTIONS))}")
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(f"{spelling(name)} {first['input']}: {message} ({OPTIONS[name].help})")


def make_graph(e: Experiment) -> nx.Graph:
    """The experiment's graph: a kind, drawn from the seed where it is random, or a file."""
    from drdsgd import graphs

    if e.graph == "erdos-renyi":
        assert e.p is not None
        return graphs.erdos_renyi(e.devices, e.p, seed=e.seed)
    if e.graph == "geometric":
        return graphs.geometric(e.devices, seed=e.seed)
    if e.graph == "directed-erdos-renyi":
        assert e.p is not None
        return graphs.directed_erdos_renyi(e.devices, e.p, seed=e.seed)
    kinds: dict[str, Callable[[int], nx.Graph]] = {
        "ring": graphs.ring,
        "grid": graphs.grid,
        "torus": graphs.torus,
        "complete": graphs.complete,
        "star": graphs.star,
        "directed-ring": graphs.directed_ring,
    }
    if e.graph in kinds:
        return kinds[e.graph](e.devices)
    if not Path(e.graph).exists():
        raise InputError(f"--graph {e.graph}: no such file, and {unknown(e.graph, GRAPHS)}")
    return graphs.check(graphs.from_file(Path(e.graph)), e.devices)


def make_data(e: Experiment, rows: Sequence[int] | None = None) -> Devices:
    """What every device holds, or only those in `rows`, with the labels of some made random if that is asked for."""
    return with_random_labels(e, dealt(e, rows), rows)


def with_random_labels(e: Experiment, made: Devices, rows: Sequence[int] | None) -> Devices:
    """The data with random labels on as many devices as the experiment says."""
    from drdsgd import data

    if e.random_labels is None:
        return made
    if e.random_labels >= e.devices:
        raise InputError(f"--random-labels {e.random_labels}: fewer than all {e.devices} devices")
    return data.with_random_labels(made, e.random_labels, e.seed, rows)


def dealt(e: Experiment, rows: Sequence[int] | None) -> Devices:
    """The data set, dealt to the devices by the partition; nothing is kept of devices that are not in `rows`.

    With `validation` the samples to be scored are a part of each device's training samples, and the test set is not
    used at all.
    """
    from drdsgd import data, datasets, partition

    folder = Path(e.data_dir) if e.data_dir else None
    if e.dataset == "synthetic":
        assert e.heterogeneity is not None
        made = data.synthetic(e.devices, heterogeneity=e.heterogeneity, seed=e.seed)
        return made if rows is None else made.of(rows)
    if e.dataset not in DATASETS:
        _check_dataset(e.dataset)
        there = len(list(folder_of(e.dataset).glob("*.npz")))
        if there and e.devices != there:
            raise InputError(f"--devices {e.devices}: the folder {e.dataset} holds data for {there} devices")
        return data.from_folder(folder_of(e.dataset), devices=rows)
    dataset = {
        "digits": lambda: datasets.digits(),
        "fashion-mnist": lambda: datasets.fashion_mnist(folder),
        "cifar10": lambda: datasets.cifar10(folder),
    }[e.dataset]()
    labels = dataset.y_train.numpy()
    if e.partition == "shards":
        assert e.shards is not None
        parts = partition.shards(labels, e.devices, e.shards, seed=e.seed)
    elif e.partition == "dirichlet":
        assert e.alpha is not None
        parts = partition.dirichlet(labels, e.devices, e.alpha, seed=e.seed)
    else:
        parts = partition.iid(labels, e.devices, seed=e.seed)
    assert e.scaling is not None
    if e.validation is None:
        train, test = parts, partition.match(parts, labels, dataset.y_test.numpy())
    else:
        # the statistics of a standard scaling stay those of the whole training set: eta, chosen here, is for that scale
        dataset = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
        train, test = partition.hold_out(parts, labels, e.validation, seed=e.seed)
    if rows is not None:
        train, test = [train[i] for i in rows], [test[i] for i in rows]
    return data.deal(dataset, train, test, e.scaling)


# torch's generator is one for all threads
_SEEDING = threading.Lock()


def make_model(e: Experiment, data: Devices) -> nn.Module:
    """The model that all devices start from; its initial parameters come from the seed."""
    import torch

    from drdsgd import models

    if not data.classes:
        raise InputError(
            f"--dataset {e.dataset}: its y are floats, numbers to predict, which is for drdsgd.train in Python; write "
            "class numbers as integers, y=y.astype(int)"
        )
    kind, _, detail = e.model.partition(":")
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(e.seed)
        if kind == "mlp":
            try:
                hidden = [int(width) for width in detail.split(",")] if detail else [128, 64]
            except ValueError:
                raise InputError(f"--model {e.model}: write the hidden layers as mlp:64,32") from None
            model: nn.Module = models.mlp(data.shape, data.classes, hidden)
        elif e.model == "cnn":
            model = models.cnn(data.shape, data.classes)
        elif e.model == "logistic":
            model = models.logistic(data.shape, data.classes)
        else:
            model = _from_factory(e.model, data)
    return model.to(device=e.device, dtype=getattr(torch, e.dtype))


def _from_factory(name: str, data: Devices) -> nn.Module:
    """`package.module:factory` called as factory(shape, classes)."""
    from torch import nn

    module, _, factory = name.partition(":")
    if not factory:
        raise InputError(
            f"--model {name}: {unknown(name, ('mlp', 'cnn', 'logistic'))}; your own is package.module:factory"
        )
    try:
        model = getattr(importlib.import_module(module), factory)(tuple(data.shape), data.classes)
    except ModuleNotFoundError as error:
        raise InputError(f"--model {name}: {error}; the folder that holds it must be in PYTHONPATH") from error
    except Exception as error:  # whatever somebody's own code raises
        raise InputError(
            f"--model {name}: {type(error).__name__}: {error}; it is called as {factory}(shape, classes)"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"--model {name}: {factory}(shape, classes) gave a {type(model).__name__}, not an nn.Module")
    return model


def make_mixing(e: Experiment, graph: nx.Graph) -> Mixing:
    """How devices average over the graph: W_t of every round."""
    from drdsgd import mixing as mixings

    kind, _, number = (e.mixing or "metropolis").partition(":")
    if kind not in MIXINGS:
        raise InputError(f"--mixing {e.mixing}: {unknown(kind, MIXINGS)}")
    if number and kind != "matcha":
        raise InputError(f"--mixing {e.mixing}: {kind} takes no number")
    if graph.is_directed():
        if kind != "metropolis":
            raise InputError(f"--mixing {e.mixing}: not for a directed graph; leave it out")
        mixing = mixings.push_sum(graph)
    elif kind == "matcha":
        try:
            budget = float(number or "0.5")
        except ValueError:
            raise InputError(f"--mixing {e.mixing}: '{number}' is not a number; write matcha:0.5") from None
        if not 0 < budget <= 1:
            raise InputError(f"--mixing {e.mixing}: the budget is a part of the matchings, in (0, 1]; write matcha:0.5")
        mixing = mixings.matcha(graph, budget, e.seed)
    elif kind == "matchings":
        mixing = mixings.matchings(graph, e.seed)
    elif kind == "one-peer-exponential":
        if e.graph != "complete":
            raise InputError(f"--mixing {kind}: its links are none of --graph {e.graph}'s; write --graph complete")
        mixing = mixings.one_peer_exponential(e.devices)
    else:
        mixing = mixings.metropolis(graph)
    if e.link_failures is not None:
        mixing = mixings.link_failures(mixing, e.link_failures, e.seed)
    if e.dropouts is not None:
        mixing = mixings.dropouts(mixing, e.dropouts, e.seed)
    if e.gossip_steps is not None:
        if kind == "matchings" and e.gossip_steps > 1:
            raise InputError(
                f"--gossip-steps {e.gossip_steps}: a pair of --mixing matchings that has averaged once has the same "
                "models; leave it out, or take --mixing metropolis"
            )
        mixing = mixings.repeated(mixing, e.gossip_steps)
    if e.local_steps is not None and e.local_steps > e.rounds:
        raise InputError(
            f"--local-steps {e.local_steps}: there are only {e.rounds} rounds, so devices would never talk; take more "
            "--rounds"
        )
    return mixing if e.local_steps is None else mixings.local_steps(mixing, e.local_steps)


def make_algorithm(e: Experiment) -> Algorithm | ServerAlgorithm:
    """The algorithm with the experiment's options."""
    from drdsgd import objectives, optimizers, servers
    from drdsgd.algorithms import Algorithm

    # by Adam, whatever its size
    scaled = methods.default_eta(e.algorithm, e.objective, e.optimizer, e.model) is not None
    if e.weight_decay is not None and e.weight_decay * e.eta >= 1 and not scaled:
        raise InputError(
            f"--weight-decay {e.weight_decay}: with eta {e.eta:g} a round takes away all of a model; 0.0001 is usual"
        )
    if e.clients is not None and e.clients > e.devices:
        raise InputError(f"--clients {e.clients}: there are only {e.devices} devices; leave it out for all")
    if e.shift_eta is not None and e.shift_penalty is not None and e.shift_eta * e.shift_penalty >= 1:
        raise InputError(
            f"--shift-eta {e.shift_eta}: times --shift-penalty {e.shift_penalty} it must be below 1, or the shift runs "
            "away; 0.01 is usual"
        )
    if e.pull is not None and e.pull * e.eta >= 2:
        raise InputError(
            f"--pull {e.pull}: times eta {e.eta:g} it must be below 2, or personal models run away; 0.1 to 2 are usual"
        )
    if e.algorithm in methods.SERVERS:
        server: ServerAlgorithm = methods.SERVERS[e.algorithm].make(servers, e)
        return server
    loss, step = methods.parts_of(e.algorithm, e.objective, e.optimizer)
    objective = methods.OBJECTIVES[loss].make(objectives, e)
    # the cap is on what comes out of all, and noise is taken out before a loss is clipped
    if e.loss_clip is not None:
        objective = objectives.clipped(objective, e.loss_clip)
    if e.loss_smoothing is not None:
        objective = objectives.smoothed(objective, e.loss_smoothing)
    if e.weight_cap is not None:
        objective = objectives.capped(objective, e.weight_cap)
    optimizer = methods.OPTIMIZERS[step].make(optimizers, e)
    return Algorithm(objective, optimizer, title(e), e.weight_decay or 0.0)


def title(e: Experiment) -> str:
    """An algorithm with what it has of its own, in words; by its parts where one is exchanged.

    >>> title(Experiment(algorithm="dr-dsgd", mu=6.0)), title(Experiment(algorithm="dsgd", objective="q-ffl", q=2.0))
    ('DR-DSGD with mu = 6', 'q-ffl + dsgd with q = 2')
    """
    own, parts = methods.own_options(e.algorithm, e.objective, e.optimizer), []
    for name, default in own.items():
        value = getattr(e, name)
        if value is not None and (name == "mu" or value != default or e.objective or e.optimizer):
            parts.append(
                f"{name.replace('_', ' ')} = {value:g}"
                if isinstance(value, float)
                else f"{value} {name.replace('_', ' ')}"
            )
    named = None if e.objective or e.optimizer else methods.ALGORITHMS.get(e.algorithm)
    name = methods.name_of(e.algorithm, e.objective, e.optimizer) if named is None else named.title
    return name + (f" with {', '.join(parts)}" if parts else "")
