"""A run's folder: the experiment, its results, and the state to continue from.

config.toml      the complete experiment: running it again gives the same run
network.json     the graph's edges, and what each device holds
metrics.jsonl    one line per evaluation, appended
summary.json     written at the end: status, versions, numerics, the last metrics under `final`
model.safetensors, model.md   written at the end: the consensus model, and its card
checkpoint/      the state to continue from
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from drdsgd.core.numerics import NUMERICS
from drdsgd.errors import InputError, InUse, flag, one_line
from drdsgd.experiments import config, registry
from drdsgd.experiments.config import Experiment
from drdsgd.files import write_text
from drdsgd.training.metrics import Metrics
from drdsgd.versions import versions

if TYPE_CHECKING:
    import networkx as nx

    from drdsgd.core.engine import Ranks
    from drdsgd.data.devices import Devices
    from drdsgd.topology.mixing import Mixing

__all__ = ["Folder", "Network", "Record", "Status", "Summary", "numerics_of", "read"]

Status = Literal["finished", "diverged", "unfinished"]  # unfinished: there is no summary


@dataclass(frozen=True)
class Network:
    """The graph as a list of edges, the number of training samples per device and class [K][C], a checksum of all data.

    `names` are the devices' names; empty if they have only numbers. With a server there are no edges and no rho.
    """

    edges: list[tuple[int, int]]
    positions: list[tuple[float, float]]
    label_counts: list[list[int]]
    rho: float | None
    data_sha256: str
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Summary:
    """How a run ended, with which versions and numerics."""

    status: Status
    message: str
    versions: dict[str, str]
    numerics: dict[str, int] = field(default_factory=dict)  # empty in older runs, which have numerics 1


@dataclass(frozen=True)
class Record:
    """A run as its folder records it."""

    path: Path
    experiment: Experiment
    network: Network
    metrics: list[Metrics]
    status: Status
    message: str
    versions: dict[str, str]
    numerics: dict[str, int] = field(default_factory=dict)

    @property
    def final(self) -> Metrics:
        """The last evaluation."""
        return self.metrics[-1]


class Folder:
    """The paths and the writing side of a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.network = path / "config.toml", path / "network.json"
        self.metrics, self.summary = path / "metrics.jsonl", path / "summary.json"
        self.checkpoint, self.report = path / "checkpoint", path / "report.html"
        self.model, self.card = path / "model.safetensors", path / "model.md"

    @property
    def status(self) -> Status:
        """finished, diverged or unfinished."""
        return _summary(self.summary).status

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against a second process; the system releases the lock when this process ends."""
        new = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(f"another process is working in {self.path}; wait for it, or use another folder") from None
            yield
        finally:
            os.close(handle)
            with suppress(OSError):  # a refused run leaves no empty folder behind, nor parents that were made for it
                for path in new or [self.path]:
                    path.rmdir()

    def start(self, e: Experiment, network: Network) -> None:
        """Write the experiment and its network, before the first round."""
        write_text(self.config, e.to_toml())
        write_text(self.network, json.dumps(network.__dict__))

    def append(self, metrics: Metrics) -> None:
        """Append a line to metrics.jsonl and sync it to disk, because the next checkpoint relies on it."""
        line = json.dumps(metrics.to_json(), allow_nan=False) + "\n"
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def check_network(self, network: Network) -> None:
        """Refuse to continue if the graph or the data have changed since the run began."""
        before = read_network(self.network)
        for what, same in (
            # older versions recorded the graph of a run with a server, too
            ("graph", network.rho is None or before.edges == network.edges),
            ("data", before.data_sha256 == network.data_sha256),
        ):
            if not same:
                raise InputError(
                    f"the {what} changed since the run in {self.path} began; start another in another folder"
                )

    def rewind(self, t: int, e: Experiment, gaps: bool = False) -> None:
        """Remove what a killed run left: evaluations after round t, a half-written line, temporary files.

        With `gaps`, evaluations may be missing.
        """
        kept = [m for m in read_metrics(self.metrics) if m.round <= t]
        due = {*range(0, t + 1, e.eval_every)} | ({t} if t == e.rounds else set())
        missing = due - {m.round for m in kept}
        if missing and not gaps:
            raise InputError(
                f"{self.metrics} lacks the evaluation of round {min(missing)}, but the checkpoint is at round {t}; "
                f"remove {self.checkpoint} to start the run again from round 0"
            )
        written = (self.config, self.network, self.metrics, self.summary, self.model, self.card)
        for path in (*written, self.checkpoint / "*.safetensors"):
            for stray in path.parent.glob(f".{path.name}.*"):
                stray.unlink()
        write_text(self.metrics, "".join(json.dumps(m.to_json(), allow_nan=False) + "\n" for m in kept))

    def finish(self, status: Status, message: str) -> None:
        """Write the summary at the end of the run; `final` is its last evaluation."""
        metrics = read_metrics(self.metrics)
        summary = {
            "status": status,
            "message": message,
            "versions": versions(),
            "numerics": numerics_of(read_config(self.config)),
            "final": metrics[-1].to_json() if metrics else None,
        }
        write_text(self.summary, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def read(path: Path) -> Record:
    """The record in a run's folder; an `InputError` names the file and line that cannot be read."""
    folder = Folder(path)
    if not folder.config.exists():
        raise InputError(f"{path} is not a run's folder: it has no config.toml")
    e = read_config(folder.config)
    network, summary, metrics = read_network(folder.network), _summary(folder.summary), read_metrics(folder.metrics)
    if not metrics:
        raise InputError(f"{folder.metrics} has no evaluation yet; continue the run with {flag('resume')}")
    return Record(path, e, network, metrics, summary.status, summary.message, summary.versions, summary.numerics)


def numerics_of(e: Experiment) -> dict[str, int]:
    """The numerics of the parts that an experiment uses (`core.numerics`).

    >>> list(numerics_of(Experiment(algorithm="dr-dsgd")))
    ['training', 'kernel mlp', 'kernel mixing', 'objective kl-dro', 'optimizer dsgd']
    """
    model = e.model.partition(":")[0]
    if e.execution == "loop" or (e.execution, model, e.device) == ("auto", "cnn", "cpu"):
        kernels = ["loop"]
    elif model in ("mlp", "logistic"):
        kernels = ["mlp"]
    else:  # for other models "auto" tries which kernel works
        kernels = ["batched"] if e.execution == "batched" else ["batched", "loop"]
    parts = ["training", *(f"kernel {kernel}" for kernel in kernels)]
    if e.algorithm in registry.SERVERS:
        parts.append(f"baseline {e.algorithm}")
    else:
        objective, optimizer = registry.parts_of(e.algorithm, e.objective, e.optimizer)
        parts += ["kernel mixing", f"objective {objective}", f"optimizer {optimizer}"]
    parts += [name for name in ("loss-clip", "loss-smoothing", "weight-cap") if getattr(e, name.replace("-", "_"))]
    compressor = (e.compression or "none").partition(":")[0]
    parts += [] if compressor == "none" else [f"compressor {compressor}"]
    return {part: NUMERICS.get(part, 1) for part in parts}


def read_config(path: Path) -> Experiment:
    """The experiment in a config.toml."""
    try:
        return config.recorded(config.load(path))
    except InputError as error:
        raise InputError(f"{path}: {error.marked}") from None


def read_metrics(path: Path) -> list[Metrics]:
    """All complete lines of a metrics.jsonl; an incomplete last line is from a run that was killed."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    metrics = []
    for number, line in enumerate(lines, start=1):
        try:
            metrics.append(Metrics.from_json(json.loads(line)))
        except ValidationError as error:
            raise InputError(f"{path} line {number} is corrupt ({_first(error)}); repair it, or {_AGAIN}") from None
        except ValueError as error:
            raise InputError(f"{path} line {number} is corrupt ({one_line(error)}); repair it, or {_AGAIN}") from error
    return metrics


def read_network(path: Path) -> Network:
    """The graph and the devices' samples, from a network.json."""
    try:
        network = _networks().validate_python(_json(path))
    except ValidationError as error:
        raise InputError(f"{path} is corrupt: {_first(error)}; {_AGAIN}") from None
    K = len(network.positions)
    if (
        len(network.label_counts) != K
        or len(network.names) not in (0, K)
        or not all(0 <= i < K for edge in network.edges for i in edge)
        or (network.rho is None and network.edges)
    ):
        raise InputError(
            f"{path} is corrupt: its edges, positions, label_counts, rho and names do not fit together; {_AGAIN}"
        )
    return network


def network(graph: nx.Graph, data: Devices, mixing: Mixing | None, ranks: Ranks) -> Network | None:
    """The graph and the devices' data, over all processes; only the first process gets it, the others get None.

    With a server there is no mixing: the graph is not used, and its layout and rho would take seconds for many devices.
    """
    import torch

    from drdsgd.topology.graphs import layout
    from drdsgd.topology.mixing import rho_over_time

    owner = torch.repeat_interleave(torch.arange(data.K), data.train.sizes.cpu())
    counts = torch.bincount(owner * data.classes + data.train.y.cpu(), minlength=data.K * data.classes)
    label_counts, checksums = ranks.gather(counts.view(data.K, data.classes)), ranks.gather(data.checksums())
    # as one text per process, because only tensors can be gathered
    said = ranks.texts(json.dumps(dict(zip(map(int, ranks.rows), data.names, strict=False))))
    names: dict[str, str] = dict(one for text in said for one in json.loads(text).items())
    if ranks.rank > 0:  # only the first writes
        return None
    positions: Mapping[int, Sequence[float]] = dict(enumerate(_disc(ranks.K))) if mixing is None else layout(graph)
    return Network(
        edges=[] if mixing is None else [(int(i), int(j)) for i, j in graph.edges],
        positions=[(float(positions[i][0]), float(positions[i][1])) for i in range(ranks.K)],
        label_counts=label_counts.tolist(),
        rho=None if mixing is None else rho_over_time(mixing),
        data_sha256=hashlib.sha256(checksums.numpy().tobytes()).hexdigest(),
        names=[names[str(i)] for i in range(ranks.K)] if names else [],
    )


def _disc(K: int) -> list[tuple[float, float]]:
    """K points that fill a disc evenly, as the seeds of a sunflower do."""
    turn = math.pi * (3 - math.sqrt(5))
    polar = [(math.sqrt((i + 0.5) / K), i * turn) for i in range(K)]
    return [(far * math.cos(angle), far * math.sin(angle)) for far, angle in polar]


_AGAIN = "run the experiment again into another folder"


def _summary(path: Path) -> Summary:
    """The summary in a summary.json; without the file the run is unfinished."""
    if not path.exists():
        return Summary("unfinished", "", {})
    try:
        return _summaries().validate_python(_json(path))
    except ValidationError as error:
        raise InputError(f"{path} is corrupt: {_first(error)}; {_AGAIN}") from None


@functools.cache  # slow to make
def _networks() -> TypeAdapter[Network]:
    return TypeAdapter(Network)


@functools.cache  # slow to make
def _summaries() -> TypeAdapter[Summary]:
    return TypeAdapter(Summary)


def _first(error: ValidationError) -> str:
    """The first mistake in a record, in a few words."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {_AGAIN}") from None
    except ValueError as error:
        raise InputError(f"{path} is corrupt: {error}; {_AGAIN}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is corrupt: it is not a JSON object; {_AGAIN}")
    return value


# ------------------------------------------------------------------- many runs


def find_runs(paths: Sequence[Path]) -> list[Record]:
    """All runs at or below the paths, each once; in the order of the paths, and below a path in natural order.

    Runs without an evaluation are omitted, unless there is no other run. A run that ended without one is damaged.
    """
    folders = list({folder.resolve(): folder for path in paths for folder in _run_folders(path)}.values())
    begun = [folder for folder in folders if read_metrics(Folder(folder).metrics)]
    for folder in folders:
        if folder not in begun and Folder(folder).status != "unfinished":
            raise InputError(
                f"{folder} is damaged: its run ended, but metrics.jsonl is empty; remove it, or do the run again"
            )
    return [read(folder) for folder in begun or folders[:1]]


def _run_folders(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"there is no folder {path}; give the folder of a run, or of several")
    if _is_run(path):
        return [path]
    # a config.toml alone may be somebody's input to a run
    found = [config.parent for config in path.rglob("config.toml") if _is_run(config.parent)]
    if not found:
        raise InputError(f"no run in or below {path}: a run's folder has a config.toml and a network.json")
    return sorted(found, key=_natural)


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file() and (path / "network.json").is_file()


def _natural(path: Path) -> list[list[tuple[int, str]]]:
    """A key that sorts seed-2 before seed-10."""
    return [
        [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", part)]
        for part in path.parts
    ]
