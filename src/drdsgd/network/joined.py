"""The records of a network's devices as the folder of one run, for the report and all other readers.

Nobody on a network sees the mean of all models, so `consensus` is the same as `local`: the devices' own models. The
consensus distance is the part of it that devices can see, `sum_j W_ij |x_i - x_j|^2` over the models that they
exchanged. A device that was away in a round counts with its last record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from drdsgd.errors import InputError
from drdsgd.experiments import records
from drdsgd.experiments.build import make_graph, make_mixing
from drdsgd.experiments.records import Folder, Network
from drdsgd.network import deployment
from drdsgd.topology.graphs import layout
from drdsgd.topology.mixing import rho_over_time
from drdsgd.training.metrics import Metrics, Spread

__all__ = ["About", "is_deployment", "join", "read_about"]


@dataclass(frozen=True)
class About:
    """The content of a device.json."""

    deployment: str
    number: int
    name: str
    label_counts: list[int]
    data_sha256: str


def read_about(path: Path) -> About:
    """The device.json at `path`."""
    try:
        return TypeAdapter(About).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no {path}; copy the device's whole folder run/ here") from None
    except ValidationError as error:
        raise InputError(f"{path} is corrupt: {error.errors()[0]['msg']}; remove the folder to begin again") from None


def is_deployment(path: Path) -> bool:
    """Whether a path is the folder of a deployment."""
    return path.is_dir() and any(path.glob(f"*/{deployment.FILE}"))


def join(folder: Path) -> Path:
    """Write the records of a deployment's devices as one run to `folder`/joined; returns that path."""
    found: dict[int, tuple[Folder, About]] = {}
    paths = deployment.devices(folder)
    for path in paths:
        device = deployment.load(path)
        record = Folder(path.parent / device.out)
        if not record.config.exists():
            raise InputError(
                f"{device.name} has not run: there is no {record.config}; start it, or copy config.toml, device.json, "
                f"metrics.jsonl and summary.json of its folder {device.out} here"
            )
        here = read_about(record.path / "device.json")
        if (here.deployment, here.number, here.name) != (device.deployment, device.number, device.name):
            raise InputError(
                f"{record.path} has the record of {here.name}, number {here.number} of deployment {here.deployment}, "
                f"not of {device.name}, number {device.number} of {device.deployment}: copy its own"
            )
        found[device.number] = record, here
    # not from config.toml, which may have been written on another host: the graph's file is beside device.toml
    first = deployment.experiment_of(deployment.load(paths[0]), paths[0].parent.resolve(), threads=1)
    if sorted(found) != list(range(first.devices)):
        lost = min({*range(first.devices)} - {*found})
        raise InputError(f"{folder} has no record of device {lost}; copy its folder here")
    graph = make_graph(first)
    positions = layout(graph)
    target = Folder(folder / deployment.JOINED)
    about = [found[i][1] for i in range(first.devices)]
    network = Network(
        edges=[(int(i), int(j)) for i, j in graph.edges],
        positions=[(float(positions[i][0]), float(positions[i][1])) for i in range(first.devices)],
        label_counts=[one.label_counts for one in about],
        rho=rho_over_time(make_mixing(first, graph)),
        data_sha256=hashlib.sha256("".join(one.data_sha256 for one in about).encode()).hexdigest(),
        names=[one.name for one in about],
    )
    joined = _joined([records.read_metrics(found[i][0].metrics) for i in range(first.devices)])
    if not joined:
        raise InputError(f"no round of all devices of {folder} has been evaluated yet; wait a little")
    target.path.mkdir(exist_ok=True)
    target.start(first, network)
    target.metrics.unlink(missing_ok=True)
    for metrics in joined:
        target.append(metrics)
    states = {found[i][0].status for i in range(first.devices)}
    target.summary.unlink(missing_ok=True)
    if "diverged" in states:
        target.finish("diverged", "a device diverged")
    elif states == {"finished"}:
        target.finish("finished", "")
    return target.path


def _joined(devices: Sequence[Sequence[Metrics]]) -> list[Metrics]:
    """One line per round that any device has evaluated, from when all have a line."""
    lines = []
    for t in sorted({m.round for one in devices for m in one}):
        so_far = [[m for m in one if m.round <= t] for one in devices]
        if all(so_far):
            lines.append(_together(t, [some[-1] for some in so_far]))
    return lines


def _together(t: int, seen: Sequence[Metrics]) -> Metrics:
    # a process with one device has one model: its own is the mean of all models that it sees
    accuracy = Spread.over([m.consensus.per_device[0] for m in seen])
    classes = zip(*(m.per_class for m in seen), strict=True)
    per_class = [[value for value in some if value is not None] for some in classes]
    return Metrics(
        round=t,
        consensus=accuracy,
        local=accuracy,
        per_class=[sum(some) / len(some) if some else None for some in per_class],
        consensus_distance=sum(m.consensus_distance for m in seen) / len(seen),
        train_loss=sum(m.train_loss for m in seen) / len(seen),
        weights=[m.weights[0] for m in seen],
        floats_sent=sum(m.floats_sent for m in seen),
        seconds=max(m.seconds for m in seen),
        losses=[m.train_loss for m in seen],
    )
