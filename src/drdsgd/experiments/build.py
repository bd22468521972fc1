"""Build what an experiment names: graph, data, model, mixing, algorithm."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import torch
from torch import nn

from drdsgd import baselines, models
from drdsgd.baselines import ServerAlgorithm
from drdsgd.core import objectives, optimizers
from drdsgd.core.algorithms import Algorithm
from drdsgd.data import devices, files, partition, sources
from drdsgd.data.devices import Devices
from drdsgd.errors import InputError, named, unknown
from drdsgd.experiments import registry
from drdsgd.experiments.config import Experiment, check_dataset, folder_of, title
from drdsgd.experiments.options import DATASETS, GRAPHS, MIXINGS
from drdsgd.random import one_generator
from drdsgd.topology import graphs
from drdsgd.topology import mixing as mixings
from drdsgd.topology.mixing import Mixing

__all__ = ["dealt", "make_algorithm", "make_data", "make_graph", "make_mixing", "make_model", "with_random_labels"]


def make_graph(e: Experiment) -> nx.Graph:
    """The experiment's graph: of a kind, drawn from the seed if it is random, or from a file."""
    _check_devices(e)  # first: a graph of a million devices takes minutes
    if e.graph in GRAPHS:  # the functions have the names of the kinds
        random = {"p": e.p, "seed": e.seed} if e.p is not None else {"seed": e.seed} if e.graph == "geometric" else {}
        graph: nx.Graph = getattr(graphs, e.graph.replace("-", "_"))(e.devices, **random)
        return graph
    if not Path(e.graph).exists():
        raise InputError(f"{named('graph', e.graph)}: no such file, and {unknown(e.graph, GRAPHS)}")
    return graphs.check(graphs.from_file(Path(e.graph)), e.devices)


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


def with_random_labels(e: Experiment, made: Devices, rows: Sequence[int] | None) -> Devices:
    """The data with random labels on the first `random_labels` devices."""
    if e.random_labels is None:
        return made
    if e.random_labels >= e.devices:
        raise InputError(f"{named('random_labels', e.random_labels)}: must be below the number of devices, {e.devices}")
    return devices.with_random_labels(made, e.random_labels, e.seed, rows)


def dealt(e: Experiment, rows: Sequence[int] | None) -> Devices:
    """The data set, dealt to the devices by the partition; only the data of the devices in `rows` are kept.

    With `validation`, evaluation is on a part of each device's training samples, and the test set is not used at all.
    """
    folder = Path(e.data_dir) if e.data_dir else None
    if e.dataset == "synthetic":
        assert e.heterogeneity is not None
        made = devices.synthetic(e.devices, heterogeneity=e.heterogeneity, seed=e.seed)
        return made if rows is None else made.of(rows)
    if e.dataset not in DATASETS:
        check_dataset(e.dataset)
        there = len(list(folder_of(e.dataset).glob("*.npz")))
        if there and e.devices != there:
            raise InputError(f"{named('devices', e.devices)}: the folder {e.dataset} holds data for {there} devices")
        return files.from_folder(folder_of(e.dataset), devices=rows)
    dataset = {
        "digits": lambda: sources.digits(),
        "fashion-mnist": lambda: sources.fashion_mnist(folder),
        "cifar10": lambda: sources.cifar10(folder),
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
        # standard scaling still uses the whole training set: an eta that is chosen here will be used at that scale
        dataset = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
        train, test = partition.hold_out(parts, labels, e.validation, seed=e.seed)
    if rows is not None:
        train, test = [train[i] for i in rows], [test[i] for i in rows]
    return devices.deal(dataset, train, test, e.scaling)


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
    module, _, factory = name.partition(":")
    if not factory:
        raise InputError(
            f"{named('model', name)}: {unknown(name, ('mlp', 'cnn', 'logistic'))}; your own is package.module:factory"
        )
    try:
        model = getattr(importlib.import_module(module), factory)(tuple(data.shape), data.classes)
    except ModuleNotFoundError as error:
        raise InputError(f"{named('model', name)}: {error}; the folder that holds it must be in PYTHONPATH") from error
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
    """How devices average over the graph: W_t in every round."""
    kind, _, number = (e.mixing or "metropolis").partition(":")
    if kind not in MIXINGS:
        raise InputError(f"{named('mixing', e.mixing)}: {unknown(kind, MIXINGS)}")
    if number and kind != "matcha":
        raise InputError(f"{named('mixing', e.mixing)}: {kind} takes no number")
    if graph.is_directed():
        if kind != "metropolis":
            raise InputError(f"{named('mixing', e.mixing)}: does not work on a directed graph; leave it out")
        mixing = mixings.push_sum(graph)
    elif kind == "matcha":
        try:
            budget = float(number or "0.5")
        except ValueError:
            raise InputError(f"{named('mixing', e.mixing)}: '{number}' is not a number; write matcha:0.5") from None
        if not 0 < budget <= 1:
            raise InputError(
                f"{named('mixing', e.mixing)}: the budget is a fraction of the matchings, in (0, 1]; write matcha:0.5"
            )
        mixing = mixings.matcha(graph, budget, e.seed)
    elif kind == "matchings":
        mixing = mixings.matchings(graph, e.seed)
    elif kind == "one-peer-exponential":
        if e.graph != "complete":
            raise InputError(
                f"{named('mixing', kind)}: needs links that {named('graph', e.graph)} may lack; write "
                f"{named('graph', 'complete')}"
            )
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
                f"{named('gossip_steps', e.gossip_steps)}: after one averaging a pair of "
                f"{named('mixing', 'matchings')} has equal models; leave it out, or use {named('mixing', 'metropolis')}"
            )
        mixing = mixings.repeated(mixing, e.gossip_steps)
    if e.local_steps is not None and e.local_steps > e.rounds:
        raise InputError(
            f"{named('local_steps', e.local_steps)}: with {e.rounds} rounds, devices never exchange models; use "
            f"more {named('rounds')}"
        )
    return mixing if e.local_steps is None else mixings.local_steps(mixing, e.local_steps)


def make_algorithm(e: Experiment) -> Algorithm | ServerAlgorithm:
    """The algorithm with the experiment's options."""
    # Adam scales its steps, whatever the size of eta
    scaled = registry.default_eta(e.algorithm, e.objective, e.optimizer, e.model) is not None
    if e.weight_decay is not None and e.weight_decay * e.eta >= 1 and not scaled:
        raise InputError(
            f"{named('weight_decay', e.weight_decay)}: times eta {e.eta:g} it must be below 1, or a step erases the "
            "model; 0.0001 is usual"
        )
    if e.clients is not None and e.clients > e.devices:
        raise InputError(f"{named('clients', e.clients)}: there are only {e.devices} devices; leave it out for all")
    if e.shift_eta is not None and e.shift_penalty is not None and e.shift_eta * e.shift_penalty >= 1:
        raise InputError(
            f"{named('shift_eta', e.shift_eta)}: times {named('shift_penalty', e.shift_penalty)} it must be below 1, "
            "or the shift diverges; 0.01 is usual"
        )
    if e.pull is not None and e.pull * e.eta >= 2:
        raise InputError(
            f"{named('pull', e.pull)}: times eta {e.eta:g} it must be below 2, or personal models diverge; "
            "0.1 to 2 are usual"
        )
    if e.algorithm in registry.SERVERS:
        server: ServerAlgorithm = registry.SERVERS[e.algorithm].make(baselines, e)
        return server
    loss, step = registry.parts_of(e.algorithm, e.objective, e.optimizer)
    objective = registry.OBJECTIVES[loss].make(objectives, e)
    # a loss is smoothed before it is clipped, and the cap bounds the final weight
    if e.loss_clip is not None:
        objective = objectives.clipped(objective, e.loss_clip)
    if e.loss_smoothing is not None:
        objective = objectives.smoothed(objective, e.loss_smoothing)
    if e.weight_cap is not None:
        objective = objectives.capped(objective, e.weight_cap)
    optimizer = registry.OPTIMIZERS[step].make(optimizers, e)
    return Algorithm(objective, optimizer, title(e), e.weight_decay or 0.0)
