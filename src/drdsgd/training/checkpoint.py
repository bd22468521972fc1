"""Checkpoints: safetensors files, written atomically, checked when read, and exact.

    checkpoint/round-50-part-1-of-2.safetensors     the devices of the first of two processes, after round 50
    checkpoint/round-50-part-2-of-2.safetensors

A run in one process writes one part. A part holds its devices' rows of the tensors of `State`. Its header holds, as
text, the device numbers, the round and the cost so far, and a checksum. The previous parts are removed only when all
new ones are on disk, so a run that is killed at any moment has a complete set. A run may continue with its devices on
other processes, or all in one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from drdsgd.core.engine import Ranks
from drdsgd.core.round import State
from drdsgd.errors import InputError, flag, one_line
from drdsgd.files import replacing
from drdsgd.training.progress import Progress

__all__ = ["Part", "load", "parts", "save"]

FORMAT = "drdsgd checkpoint 2"


class Part(NamedTuple):
    """A checkpoint file, as its name describes it: part `number` of `size` after round `t`."""

    t: int
    size: int
    number: int
    path: Path


def parts(folder: Path) -> list[Part]:
    """The checkpoint parts in a folder, newest first."""
    pattern = re.compile(r"round-(\d+)-part-(\d+)-of-(\d+)\.safetensors")
    matches = [(pattern.fullmatch(path.name), path) for path in folder.glob("*.safetensors")]
    found = [Part(int(m[1]), int(m[3]), int(m[2]), path) for m, path in matches if m is not None]
    return sorted(found, key=lambda part: (-part.t, part.size, part.number))


def save(folder: Path, progress: Progress, ranks: Ranks) -> None:
    """Write this process's part of the run's state; when all parts are written, remove the previous ones.

    >>> import tempfile
    >>> from drdsgd.engines.local import SingleProcess
    >>> folder, here = Path(tempfile.mkdtemp()), SingleProcess(2)
    >>> save(folder, Progress(State(3, torch.ones(2, 4), {"share": torch.ones(2)}, {}), 80, 0.5, None), here)
    >>> load(folder, here).state.t
    3
    """
    state, rank = progress.state, ranks.rank + 1
    tensors = {"theta": state.theta.contiguous()}
    tensors |= {f"objective.{name}": value.contiguous() for name, value in state.objective.items()}
    tensors |= {f"optimizer.{name}": value.contiguous() for name, value in state.optimizer.items()}
    own = torch.tensor([progress.bytes_sent, progress.exchange_seconds], dtype=torch.float64, device=state.theta.device)
    sent, busy = ranks.total(own).tolist()
    about = {
        "format": FORMAT,
        "rows": json.dumps(ranks.rows.tolist()),
        "round": str(state.t),
        "floats_sent": str(progress.floats_sent),
        "seconds": repr(progress.seconds),
        "bytes_sent": str(int(sent)),
        "exchange_seconds": repr(busy / ranks.size),
    }
    path = folder / f"round-{state.t}-part-{rank}-of-{ranks.size}.safetensors"
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, {**about, "sha256": _digest(tensors, about)})
        except SafetensorError as error:  # for example a full disk
            raise OSError(f"can't write {path}: {error}") from error
    ranks.texts("saved")  # wait for all processes
    for part in parts(folder):
        if (part.t, part.size) != (state.t, ranks.size):
            part.path.unlink(missing_ok=True)


def load(folder: Path, ranks: Ranks, device: str = "cpu", regroup: bool = False) -> Progress | None:
    """The state of this process's devices after the last round for which all processes find a complete checkpoint.

    None if there is no such round. Raises `InputError` if a file is corrupt, or if another number of processes wrote
    the checkpoint and `regroup` is not set.
    """
    seen = parts(folder)
    if strange := sorted({*folder.glob("*.safetensors")} - {part.path for part in seen}):
        raise InputError(f"{strange[0]} is not a checkpoint of this version: remove it to restart the run from round 0")
    sets = dict(_whole(seen, ranks.rows))
    said = [json.loads(text) for text in ranks.texts(json.dumps([list(sets), [part.size for part in seen]]))]
    common = set.intersection(*({tuple(one) for one in whole} for whole, _ in said))
    if not common:
        others = {size for _, sizes in said for size in sizes} - {ranks.size}
        if others:  # an incomplete set of this size may come from a killed run; a set of another size does not
            raise InputError(
                f"{folder} has parts of a checkpoint of {_processes(max(others))}, but needed parts are missing: "
                "start as many processes, or copy all parts into a folder that all can read"
            )
        return None
    t, size = max(common, key=lambda one: (one[0], one[1] == ranks.size))
    if size != ranks.size and not regroup:
        raise InputError(
            f"the checkpoint in {folder} was written by {_processes(size)}, not by {ranks.size}: "
            f"{flag('regroup')} moves the devices"
        )
    return _put_together([_read(part.path, device) for part in sets[t, size]], ranks, device)


def _whole(found: Sequence[Part], rows: Tensor) -> Iterator[tuple[tuple[int, int], list[Part]]]:
    """Each (round, size) whose parts in this folder hold all devices `rows`, with the parts that hold them."""
    wanted = set(rows.tolist())
    for key in dict.fromkeys((part.t, part.size) for part in found):
        held = {part: wanted.intersection(_header(part.path)[1]) for part in found if (part.t, part.size) == key}
        lost = wanted.difference(*held.values())
        if lost and len(held) == key[1]:
            raise InputError(_corrupt(next(iter(held)).path, f"device {min(lost)} is in none of its parts"))
        if not lost:
            yield key, [part for part, mine in held.items() if mine]


def _header(path: Path) -> tuple[dict[str, str], list[int]]:
    """A part's header, and its device numbers."""
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InputError(_corrupt(path, one_line(error))) from error
    if header.get("format") != FORMAT:
        raise InputError(_corrupt(path, f"its format is {header.get('format')!r}, not {FORMAT!r}"))
    try:
        rows = [int(row) for row in json.loads(header["rows"])]
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(_corrupt(path, "its header has no device numbers")) from error
    return header, rows


class _Content(NamedTuple):
    header: dict[str, str]
    rows: list[int]
    tensors: dict[str, Tensor]


def _read(path: Path, device: str) -> _Content:
    header, rows = _header(path)
    try:
        with safe_open(path, framework="pt", device=device) as file:
            # cloned: a tensor at its file offset is not aligned like torch's own, and products may round differently
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, OSError) as error:
        raise InputError(_corrupt(path, one_line(error))) from error
    if header.pop("sha256", None) != _digest(tensors, header):
        raise InputError(_corrupt(path, "its checksum is wrong"))
    return _Content(header, rows, tensors)


def _put_together(found: Sequence[_Content], ranks: Ranks, device: str) -> Progress:
    """The rows of this process's devices, from all parts that hold some of them."""
    header, mine = found[0].header, ranks.rows.tolist()
    if found[0].rows == mine:  # unchanged; a server's state may have tensors without one row per device
        tensors = found[0].tensors
    else:
        where = {row: i for i, row in enumerate(row for one in found for row in one.rows)}
        order = torch.tensor([where[row] for row in mine], device=device)
        tensors = {name: torch.cat([one.tensors[name] for one in found])[order] for name in found[0].tensors}
    states: dict[str, dict[str, Tensor]] = {"objective": {}, "optimizer": {}}
    theta = tensors.pop("theta")
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        states[kind][name] = value
    state = State(int(header["round"]), theta, states["objective"], states["optimizer"])
    progress = Progress(state, int(header["floats_sent"]), float(header["seconds"]), None)
    if ranks.rank > 0:
        return progress
    # the first process carries on what all had sent, and how long each was busy on average
    busy = float(header["exchange_seconds"]) * ranks.size
    return progress._replace(bytes_sent=int(header["bytes_sent"]), exchange_seconds=busy)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """SHA-256 over a part's tensors and header."""
    digest = hashlib.sha256()
    for key in sorted(about):
        digest.update(f"{key}={about[key]}\n".encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _processes(size: int) -> str:
    return "one process" if size == 1 else f"{size} processes"


def _corrupt(path: Path, why: str) -> str:
    return f"the checkpoint {path} is corrupt: {why}; remove it to restart the run from round 0"
