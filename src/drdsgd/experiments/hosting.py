"""Which process hosts which devices: a process loads the data of its own devices, and no others.

If all processes see the same data, devices are placed so that few links cross between processes (`placement`). If each
process has its own folder with the files of its own devices, these devices stay there: all files together, sorted by
name, are the devices of the network, as if they were in one folder.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from drdsgd.data.devices import Devices
from drdsgd.data.files import from_folder
from drdsgd.engines.placement import place
from drdsgd.errors import InputError, named
from drdsgd.experiments.build import dealt, with_random_labels
from drdsgd.experiments.config import Experiment, folder_of
from drdsgd.experiments.registry import DATASETS

if TYPE_CHECKING:
    from drdsgd.engines.distributed import Members, World

__all__ = ["host"]


def host(e: Experiment, graph: nx.Graph, world: World) -> tuple[Members, Devices]:
    """This process among all processes, the devices that it hosts, and their data."""
    names = _names(e, world)
    if names is None:
        placement = place(graph, world.size)
        members = world.hosting(placement)
        data = dealt(e, placement[world.rank].tolist())
    else:
        order = {name: device for device, name in enumerate(sorted(name for some in names for name in some))}
        if len(order) < sum(map(len, names)):
            twice = next(name for name in order if sum(name in some for some in names) > 1)
            raise InputError(f"{named('dataset', e.dataset)}: several ranks have the file {twice}; keep it on one rank")
        if len(order) != e.devices:
            raise InputError(
                f"{named('devices', e.devices)}: the folders of all ranks hold data for {len(order)} devices"
            )
        members = world.hosting([np.array([order[name] for name in some], dtype=np.int64) for some in names])
        data = from_folder(folder_of(e.dataset))
    return members, with_random_labels(e, _alike(data, world), members.rows.tolist())


def _names(e: Experiment, world: World) -> list[list[str]] | None:
    """The sorted files in the data folder of every process; None for data that all processes see."""
    if e.dataset in DATASETS:
        return None
    here = {path.name: path.stat().st_size for path in sorted(folder_of(e.dataset).glob("*.npz"))}
    found: list[dict[str, int]] = [json.loads(text) for text in world.texts(json.dumps(here))]
    for rank, some in enumerate(found):
        if not some:
            raise InputError(
                f"{named('dataset', e.dataset)}: rank {rank} has no .npz files there; give it the data of some devices"
            )
    if all(some == found[0] for some in found) and folder_of(e.dataset, 0) == folder_of(e.dataset, 1):
        return None
    return [list(some) for some in found]


def _alike(data: Devices, world: World) -> Devices:
    """The data with the number of classes over all processes; samples must have the same shape everywhere."""
    found = [json.loads(text) for text in world.texts(json.dumps([list(data.shape), data.classes]))]
    for rank, (shape, _) in enumerate(found):
        if shape != found[0][0]:
            raise InputError(
                f"a sample has shape {found[0][0]} on rank 0 but {shape} on rank {rank}; give all the same"
            )
    return dataclasses.replace(data, classes=max(classes for _, classes in found))
