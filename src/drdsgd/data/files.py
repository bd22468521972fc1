"""Your own files as `Devices`: a folder with one .npz file per device."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drdsgd.data.devices import Devices
from drdsgd.data.pairs import joined
from drdsgd.errors import InputError, one_line

__all__ = ["from_folder"]


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    """Those of the arrays x, y, x_test, y_test that a .npz file holds; never unpickles anything."""
    fix = "write it again with np.savez(file, x=x, y=y)"
    try:
        # opened here because np.load does not close a file that it can't read
        with path.open("rb") as raw:
            if not zipfile.is_zipfile(raw):
                raise zipfile.BadZipFile("not a zip archive, or truncated")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in ("x", "y", "x_test", "y_test") if name in file}
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):
            raise InputError(
                f"{path.name} holds pickled objects, refused because they can run code: {fix}, with arrays of numbers"
            ) from error
        raise InputError(f"{path.name} is not a readable .npz file ({one_line(error)}): {fix}") from error


def _npz_pairs(path: Path) -> tuple[object, object | None]:
    """(x, y), and (x_test, y_test) or None, from one device's file."""
    arrays = _npz(path)
    for name, partner in (("x", "y"), ("y", "x"), ("x_test", "y_test"), ("y_test", "x_test")):
        if name not in arrays and (partner in arrays or name == "x"):
            raise InputError(f"{path.name} has no array {name!r}: write it with np.savez(file, x=x, y=y)")
    test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    return (arrays["x"], arrays["y"]), test


def from_folder(
    path: Path, *, classes: int | None = None, unit: float = 1.0, devices: Sequence[int] | None = None
) -> Devices:
    """Your own data, one .npz file per device, in the order of the file names.

    A file holds the arrays x and y, and optionally x_test and y_test. Without these, every fifth sample (4, 9, ...) is
    held out. Integers in y are class numbers, floats are numbers to predict; everything else is as in `from_pairs`.
    With `devices`, only the files of these devices are read. A device's name is its file's name without `.npz`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for site in "ab":
    ...         np.savez(Path(folder, f"{site}.npz"), x=np.ones((10, 4)), y=np.arange(10) % 2)
    ...     from_folder(Path(folder)).train.sizes
    tensor([8, 8])
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the folder that holds one .npz file per device")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise InputError(f"no .npz files in {folder}: write one per device with np.savez(file, x=x, y=y)")
    if devices is not None:
        files = [files[i] for i in devices]
    made = joined([file.name for file in files], map(_npz_pairs, files), classes, unit)
    return replace(made, names=tuple(_printable(file.stem) for file in files))


def _printable(name: str) -> str:
    """A file's name for display: at most 60 characters, all printable.

    >>> _printable("north\\u202e\\n")
    'north??'
    """
    return "".join(c if c.isprintable() else "?" for c in name[:60])
