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
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drdsgd.errors import InputError, one_line
from drdsgd.options import DATASETS, GRAPHS, OPTIONS, SCHEDULES, spelling, unknown

if TYPE_CHECKING:
    import networkx as nx
    from torch import nn

    from drdsgd.algorithms import Algorithm
    from drdsgd.data import Devices
    from drdsgd.optimizers import Schedule

__all__ = [
    "Experiment",
    "default_threads",
    "load",
    "make_algorithm",
    "make_data",
    "make_graph",
    "make_model",
    "make_schedule",
]

Positive = Annotated[float, Field(gt=0)]
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

    algorithm: Literal["dsgd", "dr-dsgd"] = "dr-dsgd"
    dataset: str = "digits"
    data_dir: str | None = None
    model: str
    devices: Annotated[int, Field(ge=2, lt=LIMIT)]
    rounds: Count = 300
    batch_size: Count
    eta: Annotated[float, Field(gt=0, le=1e6)]
    eta_schedule: str = "constant"
    mu: Positive | None = None
    loss_clip: Positive | None = None
    weights: Literal["as-written", "without-mu", "normalized"] | None = None
    graph: str = "erdos-renyi"
    p: Annotated[float, Field(gt=0, le=1)] | None = None
    partition: Literal["shards", "dirichlet", "iid"] | None = None
    shards: Count | None = None
    alpha: Positive | None = None
    heterogeneity: Annotated[float, Field(ge=0)] | None = None
    scaling: Literal["unit", "standard"] | None = None
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
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


# Fields that mean something only in some settings: (when, in words; whether; the default there)
_CONDITIONAL: dict[str, tuple[str, Callable[[dict[str, Any]], bool], Any]] = {
    "mu": ("--algorithm dr-dsgd", lambda e: e["algorithm"] == "dr-dsgd", 6.0),
    "loss_clip": ("--algorithm dr-dsgd", lambda e: e["algorithm"] == "dr-dsgd", None),
    "weights": ("--algorithm dr-dsgd", lambda e: e["algorithm"] == "dr-dsgd", "as-written"),
    "data_dir": ("a data set in files", lambda e: e["dataset"] in ("fashion-mnist", "cifar10"), None),
    "p": ("--graph erdos-renyi", lambda e: e["graph"] == "erdos-renyi", 0.3),
    "heterogeneity": ("--dataset synthetic", lambda e: e["dataset"] == "synthetic", 1.0),
    "scaling": ("a data set that is dealt to devices", lambda e: e["dataset"] in DATASETS[:3], "unit"),
    "validation": ("a data set that is dealt to devices", lambda e: e["dataset"] in DATASETS[:3], None),
    "partition": ("a data set that is dealt to devices", lambda e: e["dataset"] in DATASETS[:3], "shards"),
    "shards": ("--partition shards", lambda e: e.get("partition") == "shards", 2),
    "alpha": ("--partition dirichlet", lambda e: e.get("partition") == "dirichlet", 0.5),
}


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """All fields, with the defaults that depend on others; leaves wrong values to the validation."""
    fields = {name: f.default for name, f in Experiment.model_fields.items() if not f.is_required()}
    fields = {name: value for name, value in (fields | given).items() if value is not None}
    for name, (setting, applies, default) in _CONDITIONAL.items():
        if applies(fields):
            if default is not None:
                fields.setdefault(name, default)
        elif name in fields:
            _check_dataset(fields["dataset"])  # where the name is wrong, say that
            raise InputError(f"{spelling(name)} {fields[name]} does nothing here: it needs {setting}; leave it out")
    if "model" not in fields:
        fields["model"] = {"cifar10": "cnn", "synthetic": "logistic"}.get(str(fields["dataset"]), "mlp")
    if "devices" not in fields:
        fields["devices"] = _devices(fields)
    K, T = fields["devices"], fields["rounds"]
    if all(isinstance(value, int) and 0 < value < LIMIT for value in (K, T)):
        fields.setdefault("eta", math.sqrt(K / T))
        fields.setdefault("batch_size", round(math.sqrt(K * T)))
    fields.setdefault("threads", default_threads())
    return fields


def default_threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _devices(fields: dict[str, Any]) -> int:
    """K where nobody says it: as many as the graph file has nodes, or the data folder files, else 10."""
    graph, folder = str(fields["graph"]), str(fields["dataset"])
    if graph not in GRAPHS and Path(graph).exists():
        from drdsgd import graphs

        return int(graphs.from_file(graph).number_of_nodes())
    if folder not in DATASETS:
        return len(list(Path(folder).glob("*.npz"))) or 10
    return 10


def _check_dataset(name: object) -> None:
    """Refuse a name that is neither a known data set nor a folder."""
    if name not in DATASETS and not Path(str(name)).is_dir():
        raise InputError(f"--dataset {name}: {unknown(str(name), DATASETS)} and there is no such folder")


def _explain(error: ValidationError) -> InputError:
    """The first thing that is wrong, in one line: option, value, what is wrong, what it is for."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return InputError(f"the key '{name}' is {unknown(name, list(OPTIONS))}")
    # a default that could not be worked out is missing, but the field that it depends on is wrong and comes first
    assert first["type"] != "missing"
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
    kinds: dict[str, Callable[[int], nx.Graph]] = {
        "ring": graphs.ring,
        "grid": graphs.grid,
        "torus": graphs.torus,
        "complete": graphs.complete,
        "star": graphs.star,
    }
    if e.graph in kinds:
        return kinds[e.graph](e.devices)
    if not Path(e.graph).exists():
        raise InputError(f"--graph {e.graph}: {unknown(e.graph, GRAPHS)} and there is no such file")
    return graphs.check(graphs.from_file(Path(e.graph)), e.devices)


def make_data(e: Experiment) -> Devices:
    """What every device holds: the data set, dealt to the devices by the partition.

    With `validation` the samples to be scored are a part of each device's training samples, and the test set is not
    used at all.
    """
    from drdsgd import data, datasets, partition

    folder = Path(e.data_dir) if e.data_dir else None
    if e.dataset == "synthetic":
        assert e.heterogeneity is not None
        return data.synthetic(e.devices, heterogeneity=e.heterogeneity, seed=e.seed)
    if e.dataset not in DATASETS:
        _check_dataset(e.dataset)
        devices = data.from_folder(Path(e.dataset))
        if e.devices != devices.K:
            raise InputError(f"--devices {e.devices}: the folder {e.dataset} holds data for {devices.K} devices")
        return devices
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
        return data.deal(dataset, parts, partition.match(parts, labels, dataset.y_test.numpy()), e.scaling)
    # the statistics of a standard scaling stay those of the whole training set: eta, chosen here, is for that scale
    untested = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    return data.deal(untested, *partition.hold_out(parts, labels, e.validation, seed=e.seed), e.scaling)


def make_model(e: Experiment, data: Devices) -> nn.Module:
    """The model that all devices start from; its initial parameters come from the seed."""
    import torch

    from drdsgd import models

    kind, _, detail = e.model.partition(":")
    with torch.random.fork_rng(devices=[]):
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


def make_schedule(e: Experiment) -> float | Schedule:
    """eta, or eta as a function of the round: `linear:0.1` ends at a tenth of eta."""
    from drdsgd import optimizers

    kind, _, number = e.eta_schedule.partition(":")
    if kind not in SCHEDULES:
        raise InputError(f"--eta-schedule {e.eta_schedule}: {unknown(kind, SCHEDULES)}")
    try:
        value = float(number) if number else None
    except ValueError:
        raise InputError(f"--eta-schedule {e.eta_schedule}: '{number}' is not a number; write {kind}:0.1") from None
    if kind == "constant":
        if value is not None:
            raise InputError(f"--eta-schedule {e.eta_schedule}: constant takes no number; set --eta")
        return e.eta
    if kind == "exponential":
        if value is None:
            raise InputError("--eta-schedule exponential: say how fast, for example exponential:0.99 per round")
        return optimizers.exponential(e.eta, value)
    if value is not None and not 0 <= value <= 1:
        raise InputError(f"--eta-schedule {e.eta_schedule}: the end must be a part of eta, in [0, 1]")
    decay = optimizers.linear if kind == "linear" else optimizers.cosine
    return decay(e.eta, e.rounds, value or 0.0)


def make_algorithm(e: Experiment) -> Algorithm:
    """The algorithm with the experiment's eta, mu, clip and weights."""
    from drdsgd import algorithms

    if e.algorithm == "dsgd":
        return algorithms.dsgd(make_schedule(e))
    assert e.mu is not None
    assert e.weights is not None
    return algorithms.dr_dsgd(make_schedule(e), e.mu, e.loss_clip, e.weights)
