"""Build what an experiment names: graph, data, model, mixing, algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import networkx as nx
import torch
from torch import nn

from drdsgd import models
from drdsgd.core.composition import Setting
from drdsgd.core.method import Method
from drdsgd.data import devices, sources
from drdsgd.data.dealing import dealt as deal_by_name
from drdsgd.data.devices import Devices
from drdsgd.data.files import from_folder
from drdsgd.data.partition import PARTITIONS
from drdsgd.errors import InputError, named, unknown
from drdsgd.experiments import registry
from drdsgd.experiments.config import Experiment, check_dataset, folder_of
from drdsgd.options import parameters
from drdsgd.random import one_generator
from drdsgd.topology.graphs import GRAPHS, check, from_file
from drdsgd.topology.mixing import Mixing, mixing_of, with_steps
from drdsgd.training import outside
from drdsgd.training.algorithms import constructor

__all__ = [
    "dealt", "gossip_of", "make_algorithm", "make_data", "make_graph", "make_mixing", "make_model", "options_of",
    "reusing_data", "with_random_labels",
]  # fmt: skip

T = TypeVar("T")


def options_of(e: Experiment, function: Callable[..., Any]) -> dict[str, Any]:
    """The experiment's values for the options of a function, and its seed if the function takes one."""
    chosen = {name: getattr(e, name) for name in parameters(function)}
    seed = {"seed": e.seed} if "seed" in inspect.signature(function).parameters else {}
    return {name: value for name, value in chosen.items() if value is not None} | seed


def make_graph(e: Experiment) -> nx.Graph:
    """The experiment's graph: of a kind, drawn from the seed if it is random, or from a file."""
    _check_devices(e)  # first: a graph of a million devices takes minutes
    if e.graph in GRAPHS:
        if e.algorithm in registry.SERVERS:  # only its size matters: a random graph of many devices takes long
            return nx.path_graph(e.devices)
        return GRAPHS[e.graph](e.devices, **options_of(e, GRAPHS[e.graph]))
    if not Path(e.graph).exists():
        raise InputError(f"{named('graph', e.graph)}: no such file, and {unknown(e.graph, tuple(GRAPHS))}")
    return check(from_file(Path(e.graph)), e.devices)


def _check_devices(e: Experiment) -> None:
    """Refuse more devices than the samples of a data set that is dealt to devices can serve."""
    if (sizes := sources.sizes(e.dataset)) is None:
        return
    train, test = sizes
    # a device needs a sample to train on, and one to be evaluated on
    most, why = min(train, test), f"{train} training and {test} test samples"
    if e.validation is not None:
        most, why = train // 2, f"{train} training samples, two per device with {named('validation')}"
    if e.devices > most:
        raise InputError(
            f"{named('devices', e.devices)}: {e.dataset} is enough for {most} devices ({why}); use fewer devices"
        )


def make_data(e: Experiment, rows: Sequence[int] | None = None) -> Devices:
    """The data of every device, or only of those in `rows`; with `random_labels`, some devices' labels are random."""
    return with_random_labels(e, dealt(e, rows), rows)


# the newest data that was loaded, by what it depends on; None outside `reusing_data`
_newest: dict[Hashable, Any] | None = None


@contextmanager
def reusing_data() -> Iterator[None]:
    """Within the block, runs that follow each other load the data set that they share only once.

    Only the newest is kept, because a single run needs no second copy in memory.
    """
    global _newest
    before = _newest
    _newest = {} if before is None else before
    try:
        yield
    finally:
        _newest = before


def _once(key: Hashable, load: Callable[[], T]) -> T:
    """What `load` gives; within `reusing_data` it is loaded only if the newest has another key."""
    if _newest is None:
        return load()
    if key not in _newest:
        _newest.clear()  # first: both may not fit into memory
        _newest[key] = load()
    found: T = _newest[key]
    return found


def _stamps(files: Iterable[Path]) -> tuple[Hashable, ...]:
    """What changes when one of these files does."""
    return tuple((str(path), (about := path.stat()).st_size, about.st_mtime_ns, about.st_ino) for path in files)


def with_random_labels(e: Experiment, made: Devices, rows: Sequence[int] | None) -> Devices:
    """The data with random labels on the first `random_labels` devices."""
    if e.random_labels is None:
        return made
    if e.random_labels >= e.devices:
        raise InputError(f"{named('random_labels', e.random_labels)}: must be below the number of devices, {e.devices}")
    return devices.with_random_labels(made, e.random_labels, e.seed, rows)


def dealt(e: Experiment, rows: Sequence[int] | None) -> Devices:
    """The data set, dealt to the devices by the partition; only the data of the devices in `rows` are kept."""
    if e.dataset == "synthetic":
        made = devices.synthetic(e.devices, **options_of(e, devices.synthetic))
        return made if rows is None else made.of(rows)
    if e.dataset in sources.SOURCES:
        load = sources.SOURCES[e.dataset]
        own = options_of(e, deal_by_name) | options_of(e, PARTITIONS[e.partition])
        of_load = options_of(e, load)
        files = _stamps(sources.find(e.dataset, **of_load).values()) if e.dataset in sources.KNOWN else ()
        dataset = _once((e.dataset, files), lambda: load(**of_load))
        return deal_by_name(dataset, e.devices, rows=rows, **own)
    check_dataset(e.dataset)
    folder = folder_of(e.dataset)
    there = sorted(folder.glob("*.npz"))
    if there and e.devices != len(there):
        raise InputError(f"{named('devices', e.devices)}: the folder {e.dataset} holds data for {len(there)} devices")
    key = (*_stamps(there), None if rows is None else tuple(rows))
    return _once(key, lambda: from_folder(folder, devices=rows))


def make_model(e: Experiment, data: Devices) -> nn.Module:
    """The model that all devices start from; its initial parameters come from the seed."""
    if not data.classes:
        raise InputError(
            f"{named('dataset', e.dataset)}: its y are floats, and regression is only for drdsgd.train in Python; "
            "store class numbers as integers, y=y.astype(int)"
        )
    kind, _, detail = e.model.partition(":")
    with one_generator(e.seed):
        if kind == "mlp":
            try:
                hidden = [int(width) for width in detail.split(",")] if detail else [128, 64]
            except ValueError:
                raise InputError(f"{named('model', e.model)}: write the hidden layers as mlp:64,32") from None
            model: nn.Module = models.mlp(data.shape, data.classes, hidden)
        elif e.model == "cnn":
            model = models.cnn(data.shape, data.classes)
        elif e.model == "logistic":
            model = models.logistic(data.shape, data.classes)
        else:
            model = _from_factory(e.model, data)
    return model.to(device=e.device, dtype=getattr(torch, e.dtype))


def _from_factory(name: str, data: Devices) -> nn.Module:
    """The model that `package.module:factory` makes, called as factory(shape, classes)."""
    _, _, factory = name.partition(":")
    if not factory:
        raise InputError(
            f"{named('model', name)}: {unknown(name, ('mlp', 'cnn', 'logistic'))}; your own is package.module:factory"
        )
    try:
        model = outside.load("model", name)(tuple(data.shape), data.classes)
    except InputError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise InputError(
            f"{named('model', name)}: {type(error).__name__}: {error}; it is called as {factory}(shape, classes)"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{named('model', name)}: {factory}(shape, classes) gave a {type(model).__name__}, not an nn.Module"
        )
    return model


def make_mixing(e: Experiment, graph: nx.Graph) -> Mixing:
    """How devices average over the graph, W_t in every round; the algorithm adds its own steps of gossip (`over`)."""
    if e.gossip_steps is not None and e.gossip_steps > 1 and e.mixing == "matchings":
        raise InputError(
            f"{named('gossip_steps', e.gossip_steps)}: after one averaging a pair of {named('mixing', 'matchings')} "
            f"has equal models; leave it out, or use {named('mixing', 'metropolis')}"
        )
    if e.local_steps is not None and e.local_steps > e.rounds:
        raise InputError(
            f"{named('local_steps', e.local_steps)}: with {e.rounds} rounds, devices never exchange models; use more "
            f"{named('rounds')}"
        )
    return mixing_of(graph, **options_of(e, mixing_of))


def gossip_of(e: Experiment, graph: nx.Graph) -> Mixing:
    """The mixing with the steps of gossip that the algorithm adds to it."""
    return with_steps(make_mixing(e, graph), e.gossip_steps, e.local_steps)


def make_algorithm(e: Experiment) -> Method:
    """The algorithm with the experiment's options."""
    fields = dict(e)
    parts = {kind: fields[kind] for kind in ("objective", "optimizer")}
    made = constructor(e.algorithm, **parts)
    if e.clients is not None and e.clients > e.devices:
        raise InputError(f"{named('clients', e.clients)}: there are only {e.devices} devices; leave it out for all")
    chosen = {name: value for name in made.options if (value := fields.get(name)) is not None}
    algorithm: Method = made(**chosen).resolve(Setting(e.devices, e.rounds, e.seed, e.model))
    return algorithm
