"""The options that only an experiment has: which algorithm, graph, data set and model, and how a run is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from drdsgd.options import LIMIT, Option, Rule, parameters

__all__ = ["FIELDS", "Fields", "folder_of"]

_ALGORITHM, _NETWORK, _DATA, _RUN = "Algorithm", "Network", "Data and model", "Run"


def folder_of(dataset: str, rank: int | None = None) -> Path:
    """The folder that a data set's name means; `{rank}` in it stands for the rank of this process.

    >>> folder_of("sites/{rank}", 2)
    PosixPath('sites/2')
    """
    return Path(dataset.replace("{rank}", os.environ.get("RANK", "{rank}") if rank is None else str(rank)))


def _devices(fields: Mapping[str, Any]) -> int:
    """The number of nodes in the graph file or of files in the data folder, else 10."""
    from drdsgd.experiments.registry import DATASETS, GRAPHS

    graph, dataset = str(fields["graph"]), str(fields["dataset"])
    if graph not in GRAPHS and Path(graph).exists():
        from drdsgd.topology import graphs

        return int(graphs.from_file(graph).number_of_nodes())
    return (0 if dataset in DATASETS else len(list(folder_of(dataset).glob("*.npz")))) or 10


# typed Any, so that the fields have the type of their values
_AS_FILES: Any = Rule("10 (graph file or data folder: its size)", _devices)
_AS_DATA: Any = Rule(
    "mlp (cifar10: cnn; synthetic: logistic)",
    lambda e: {"cifar10": "cnn", "synthetic": "logistic"}.get(str(e["dataset"]), "mlp"),
)


class Fields(BaseModel):
    """The fields of an experiment that belong to no other function."""

    model_config = ConfigDict(frozen=True, extra="allow")

    algorithm: Annotated[str, Option("name of the algorithm, see drdsgd algorithms", _ALGORITHM)] = "dr-dsgd"
    devices: Annotated[int, Option("number of devices K, 2 or more", _NETWORK, least=2, below=LIMIT)] = _AS_FILES
    graph: Annotated[
        str,
        Option("{graphs}, or a file (edge list, .graphml, .npy); with a server only its size matters", _NETWORK),
    ] = "erdos-renyi"
    dataset: Annotated[str, Option("{datasets}, or a folder with one .npz file per device", _DATA)] = "digits"
    model: Annotated[str, Option("mlp, mlp:64,32, cnn, logistic, or your own as package.module:factory", _DATA)] = (
        _AS_DATA
    )
    random_labels: (
        Annotated[
            int,
            Option("number of devices, from the first, whose training labels are random", _DATA, least=1, below=LIMIT),
        ]
        | None
    ) = None
    checkpoint_every: Annotated[int, Option("rounds between checkpoints", _RUN, least=1, below=LIMIT)] = 50
    dtype: Annotated[Literal["float32", "float64"], Option("float32 or float64", _RUN)] = "float32"
    device: Annotated[str, Option("device of the tensors: cpu, cuda, cuda:1", _RUN)] = "cpu"


FIELDS = parameters(Fields)
