"""Checkpoints: one safetensors file, replaced atomically, checked when read, and exact.

The file holds the tensors of `State` and, as text in its header, where the run was and a checksum. It is written
beside its final name and then moved, so a run killed at any moment has either the old or the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from drdsgd.errors import InputError, one_line
from drdsgd.files import replacing
from drdsgd.round import State
from drdsgd.training import Progress

__all__ = ["load", "save"]

FORMAT = "drdsgd checkpoint 1"


def save(path: Path, progress: Progress) -> None:
    """Write the run's state to `path`, atomically.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> save(path, Progress(State(3, torch.ones(2, 4), {"share": torch.ones(2)}, {}), 80, 0.5, None))
    >>> load(path).state.t
    3
    """
    state = progress.state
    tensors = {"theta": state.theta.contiguous()}
    tensors |= {f"objective.{name}": value.contiguous() for name, value in state.objective.items()}
    tensors |= {f"optimizer.{name}": value.contiguous() for name, value in state.optimizer.items()}
    about = {
        "format": FORMAT,
        "round": str(state.t),
        "floats_sent": str(progress.floats_sent),
        "seconds": repr(progress.seconds),
    }
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, {**about, "sha256": _digest(tensors, about)})
        except SafetensorError as error:  # a full disk, for one
            raise OSError(f"can't write {path}: {error}") from error


def load(path: Path, device: str = "cpu") -> Progress:
    """The run's state from `path`; an `InputError` if the file is not a whole checkpoint."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            header = dict(file.metadata() or {})
            # cloned: a tensor at the file's own offset is not aligned as torch's are, and products may round otherwise
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise InputError(_corrupt(path, one_line(error))) from error
    if header.get("format") != FORMAT:
        raise InputError(_corrupt(path, f"its format is {header.get('format')!r}, not {FORMAT!r}"))
    if header.pop("sha256", None) != _digest(tensors, header):
        raise InputError(_corrupt(path, "its checksum is wrong"))
    states: dict[str, dict[str, Tensor]] = {"objective": {}, "optimizer": {}}
    theta = tensors.pop("theta")
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        states[kind][name] = value
    state = State(int(header["round"]), theta, states["objective"], states["optimizer"])
    return Progress(state, int(header["floats_sent"]), float(header["seconds"]), None)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """SHA-256 over everything that a checkpoint says."""
    digest = hashlib.sha256()
    for key in sorted(about):
        digest.update(f"{key}={about[key]}\n".encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _corrupt(path: Path, why: str) -> str:
    return f"the checkpoint {path} is corrupt: {why}; remove it to start the run again from round 0"
