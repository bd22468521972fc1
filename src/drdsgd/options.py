"""The fields of an experiment as a user meets them: spelling, type and meaning, in one table.

`Experiment` validates them, the command line offers them, and neither says anything twice. This module imports
nothing heavy, so that `drdsgd --help` answers at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from drdsgd.errors import InputError

__all__ = ["ALGORITHMS", "DATASETS", "GRAPHS", "OPTIONS", "SCHEDULES", "Option", "parse", "spelling", "unknown"]

ALGORITHMS = ("dsgd", "dr-dsgd")
DATASETS = ("digits", "fashion-mnist", "cifar10", "synthetic")
GRAPHS = ("erdos-renyi", "geometric", "ring", "grid", "torus", "complete", "star")
SCHEDULES = ("constant", "linear", "cosine", "exponential")


class Option(NamedTuple):
    """The type of a field and what it is for."""

    type: type[str] | type[int] | type[float]
    help: str


OPTIONS: dict[str, Option] = {
    "algorithm": Option(str, " or ".join(ALGORITHMS)),
    "dataset": Option(str, f"{', '.join(DATASETS)}, or a folder with one .npz file per device"),
    "data_dir": Option(str, "folder with the data set's files, if not where they are looked for"),
    "model": Option(str, "mlp, mlp:64,32, cnn, logistic, or your own as package.module:factory"),
    "devices": Option(int, "number of devices K, 2 or more; default 10"),
    "rounds": Option(int, "communication rounds T; default 300"),
    "batch_size": Option(int, "samples per device and round, B; default sqrt(K T)"),
    "eta": Option(float, "step size; default sqrt(K / T)"),
    "eta_schedule": Option(str, "constant, linear[:END], cosine[:END] (END is a part of eta) or exponential:DECAY"),
    "mu": Option(float, "robustness of dr-dsgd: small is worst case, large is average; default 6"),
    "loss_clip": Option(float, "bound on the loss inside h = exp(loss / mu) of dr-dsgd; default none"),
    "weights": Option(
        str, "of dr-dsgd: as-written (h / mu), without-mu (h) or normalized (h / mean h, by gossip); default as-written"
    ),
    "graph": Option(str, f"{', '.join(GRAPHS)}, or a file (edge list, .graphml, adjacency .npy)"),
    "p": Option(float, "edge probability of the erdos-renyi graph, in (0, 1]; default 0.3"),
    "partition": Option(str, "how samples are dealt to devices: shards, dirichlet or iid; default shards"),
    "shards": Option(int, "shards per device of the shards partition; default 2"),
    "alpha": Option(float, "concentration of the dirichlet partition: small is uneven; default 0.5"),
    "heterogeneity": Option(float, "how much the devices of the synthetic data differ; 0 is IID; default 1"),
    "scaling": Option(str, "features: unit (in [0, 1]) or standard (mean 0, deviation 1); default unit"),
    "validation": Option(
        float, "part of each device's training samples, in (0, 1), to score in place of test samples; default none"
    ),
    "reference": Option(str, "how much a device counts: samples (n_i / n) or uniform (1 / K); default samples"),
    "seed": Option(int, "seed of graph, partition, initial model and batches; default 0"),
    "eval_every": Option(int, "rounds between evaluations; default 10"),
    "checkpoint_every": Option(int, "rounds between checkpoints; default 50"),
    "execution": Option(str, "how one process runs its devices: auto, batched or loop; default auto"),
    "dtype": Option(str, "float32 or float64; default float32"),
    "device": Option(str, "where tensors live: cpu, cuda, cuda:1; default cpu"),
    "threads": Option(int, "compute threads; default all cores"),
}


def spelling(field: str) -> str:
    """A field's spelling on the command line.

    >>> spelling("batch_size")
    '--batch-size'
    """
    return "--" + field.replace("_", "-")


def parse(field: str, text: str) -> str | int | float:
    """The value that a text gives a field.

    >>> parse("mu", "six")
    Traceback (most recent call last):
    drdsgd.errors.InputError: --mu six: not a number (robustness of dr-dsgd: ...)
    """
    option = OPTIONS[field]
    try:
        return option.type(text)
    except ValueError:
        kind = "a whole number" if option.type is int else "a number"
        raise InputError(f"{spelling(field)} {text}: not {kind} ({option.help})") from None


def unknown(name: str, known: Sequence[str]) -> str:
    """What to say of a name that is not known: the nearest right one, or all.

    >>> unknown("digit", DATASETS)
    'unknown, did you mean digits?'
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown, did you mean {near[0]}?" if near else f"unknown; known are {', '.join(known)}"
