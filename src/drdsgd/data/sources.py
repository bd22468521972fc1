"""Data sets before they are dealt to devices: find their files, verify them and read them.

`digits` is embedded in scikit-learn and needs no file. `fashion_mnist` and `cifar10` are read from files, which
`drdsgd.data.download` fetches. This module never uses the network. Images are kept as bytes.

References: Fashion-MNIST, Xiao et al. 2017; CIFAR-10, Krizhevsky 2009.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.errors import InputError, one_line
from drdsgd.options import DataDir

__all__ = [
    "EMBEDDED", "KNOWN", "SOURCES", "Available", "Dataset", "Known",
    "available", "cache_folder", "cifar10", "digits", "fashion_mnist", "find", "find_file", "genuine",
    "parse_cifar", "parse_idx", "sizes", "state_of",
]  # fmt: skip

T = TypeVar("T")
State: TypeAlias = Literal["ok", "differs", "not here", "embedded"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled data set before it is dealt to devices: x [N, *shape], y [N] in 0..classes-1.

    >>> d = digits()
    >>> d.name, d.classes, d.unit, d.x_train.dtype, tuple(d.x_train.shape[1:])
    ('digits', 10, 16.0, torch.uint8, (1, 8, 8))
    """

    name: str
    x_train: Tensor  # [N, *shape], uint8 for images, else float32
    y_train: Tensor  # [N] int64
    x_test: Tensor
    y_test: Tensor
    classes: int
    unit: float = 1.0  # the raw value that becomes 1.0: 255 for bytes, 16 for digits


# ---------------------------------------------------------------------- known data sets and their folders


@dataclass(frozen=True)
class Known:
    """A data set in files: their unpacked names, lengths in bytes and checksums.

    >>> KNOWN["cifar10"].files["test_batch.bin"]
    (30730000, '803d5f7f4d78ea53de84dbe85f74fb6d')
    """

    name: str
    title: str
    algorithm: str  # of the checksums; these cover the unpacked bytes because distributors re-pack the gzips
    files: Mapping[str, tuple[int, str]]  # unpacked name -> (length, checksum)
    train: int  # number of samples in the published set
    test: int
    folder: str = ""  # a sub-folder that may hold the files
    packed: bool = False  # files are usually .gz

    def shown(self) -> str:
        """The file names for error messages, in one line."""
        return ", ".join(f"{name}.gz" if self.packed else name for name in self.files)


KNOWN: dict[str, Known] = {
    "fashion-mnist": Known(
        name="fashion-mnist",
        title="Fashion-MNIST",
        algorithm="sha256",
        files={
            "train-images-idx3-ubyte": (47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            "train-labels-idx1-ubyte": (60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            "t10k-images-idx3-ubyte": (7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            "t10k-labels-idx1-ubyte": (10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        },
        train=60_000,
        test=10_000,
        packed=True,
    ),
    "cifar10": Known(
        name="cifar10",
        title="CIFAR-10",
        algorithm="md5",  # the checksums its authors publish
        files={
            "data_batch_1.bin": (30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            "data_batch_2.bin": (30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            "data_batch_3.bin": (30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            "data_batch_4.bin": (30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            "data_batch_5.bin": (30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
            "test_batch.bin": (30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
        },
        train=50_000,
        test=10_000,
        folder="cifar-10-batches-bin",
    ),
}

_DEBIAN = Path("/usr/share/datasets")  # the folder of Debian's dataset-* packages
# data sets that need no file: their numbers of training and test samples
EMBEDDED = {"digits": (1352, 445)}


def sizes(name: str) -> tuple[int, int] | None:
    """The numbers of training and test samples in a known data set, without loading it; None for other names.

    >>> sizes("digits"), sizes("cifar10"), sizes("synthetic")
    ((1352, 445), (50000, 10000), None)
    """
    if name in EMBEDDED:
        return EMBEDDED[name]
    return (KNOWN[name].train, KNOWN[name].test) if name in KNOWN else None


def cache_folder(name: str) -> Path:
    """A data set's folder in the user's cache, where `drdsgd data get` puts it.

    >>> cache_folder("cifar10").parts[-2:]
    ('drdsgd', 'cifar10')
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "drdsgd" / name


def _places(known: Known, data_dir: Path | None) -> list[Path]:
    """Folders to search, in order; if the user gives `data_dir`, no other."""
    if data_dir is not None:
        return [Path(data_dir), Path(data_dir) / known.name]
    root = os.environ.get("DRDSGD_DATA")
    named = [Path(root) / known.name] if root else []
    return [*named, cache_folder(known.name), _DEBIAN / known.name]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no permission to enter the folder
        return False


def find_file(folder: Path, name: str) -> Path | None:
    """The file with this unpacked name in a folder, packed as .gz or not; None if there is neither.

    >>> find_file(Path("nowhere"), "test_batch.bin") is None
    True
    """
    return next((path for path in (folder / f"{name}.gz", folder / name) if _is_file(path)), None)


def _files_in(known: Known, folder: Path) -> dict[str, Path]:
    """Those files of a data set that a folder holds: unpacked name -> path."""
    paths = {name: find_file(folder, name) for name in known.files}
    return {name: path for name, path in paths.items() if path is not None}


def _look(known: Known, data_dir: Path | None) -> tuple[Path | None, dict[str, Path]]:
    """The first folder with all files, else the first with some, else None; and the files in it."""
    best: tuple[Path | None, dict[str, Path]] = (None, {})
    for place in _places(known, data_dir):
        for folder in [place, place / known.folder] if known.folder else [place]:
            files = _files_in(known, folder)
            if len(files) == len(known.files):
                return folder, files
            if files and not best[1]:
                best = (folder, files)
    return best


def find(name: str, data_dir: Path | str | None = None) -> dict[str, Path]:
    """The files of a known data set: unpacked name -> path of the file, packed as .gz or not.

    If `data_dir` is given, only it and its sub-folder `name` are searched. Otherwise the search covers
    `$DRDSGD_DATA/name`, the user's cache, and the folder of Debian's package.

    >>> find("cifar10", Path("nowhere"))
    Traceback (most recent call last):
    drdsgd.errors.InputError: no CIFAR-10 in nowhere: put data_batch_1.bin, ...
    """
    known = KNOWN[name]
    data_dir = None if data_dir is None else Path(data_dir)
    folder, files = _look(known, data_dir)
    if len(files) == len(known.files):
        return files
    get = f"run `drdsgd data get {name}`"
    if folder is not None:
        missing = next(file for file in known.files if file not in files)
        raise InputError(f"{known.title} in {folder} is incomplete, {missing} is missing: add it, or {get}")
    if data_dir is not None:
        raise InputError(
            f"no {known.title} in {data_dir}: put {known.shown()} there, or leave the folder out and {get}"
        )
    places = ", ".join(str(place) for place in _places(known, None))
    raise InputError(f"{known.title} was not found (searched {places}): {get}, or name its folder")


def _read(path: Path, most: int = -1) -> bytes:
    """The unpacked bytes of a file, at most `most`; `InputError` if it can't be read or unpacked."""
    try:
        if path.suffix != ".gz":
            with path.open("rb") as plain:
                return plain.read(most)
        with gzip.open(path, "rb") as packed:
            return packed.read(most)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"it is corrupt or truncated ({one_line(error)})") from error
    except OSError as error:
        raise InputError(f"it can't be read ({error.strerror or one_line(error)})") from error


def genuine(known: Known, name: str, path: Path) -> bool:
    """Whether a file's unpacked bytes have the known length and checksum.

    >>> genuine(KNOWN["cifar10"], "test_batch.bin", Path("nowhere"))
    False
    """
    length, checksum = known.files[name]
    try:
        raw = _read(path, length + 1)  # bounded: a small packed file may unpack to a huge one
    except InputError:
        return False
    return len(raw) == length and hashlib.new(known.algorithm, raw, usedforsecurity=False).hexdigest() == checksum


def state_of(name: str, data_dir: Path | None = None) -> tuple[State, Path | None]:
    """Whether a known data set is present with the right checksums ('ok', 'differs', 'not here'), and its folder.

    >>> state_of("cifar10", Path("nowhere"))
    ('not here', None)
    """
    known = KNOWN[name]
    folder, files = _look(known, data_dir)
    if len(files) < len(known.files):
        return ("differs" if files else "not here"), folder
    return ("ok" if all(genuine(known, *item) for item in files.items()) else "differs"), folder


@dataclass(frozen=True)
class Available:
    """One line of `drdsgd data`: a data set, its folder, its size on disk, and whether its checksums are right.

    >>> available(Path("nowhere"))[1]
    Available(name='fashion-mnist', where=None, bytes=0, train=60000, test=10000, state='not here')
    """

    name: str
    where: Path | None
    bytes: int  # on disk
    train: int  # number of samples in the published set
    test: int
    state: State


def available(data_dir: Path | None = None) -> list[Available]:
    """The state of every known data set; reads all its files.

    >>> [(a.name, a.state) for a in available(Path("nowhere"))]
    [('digits', 'embedded'), ('fashion-mnist', 'not here'), ('cifar10', 'not here')]
    """
    embedded = [SOURCES[name]() for name in EMBEDDED]
    found = [
        Available(d.name, None, d.x_train.nbytes + d.x_test.nbytes, len(d.y_train), len(d.y_test), "embedded")
        for d in embedded
    ]
    for known in KNOWN.values():
        state, where = state_of(known.name, data_dir)
        files = _look(known, data_dir)[1].values()
        size = sum(path.stat().st_size for path in files)
        found.append(Available(known.name, where, size, known.train, known.test, state))
    return found


# ---------------------------------------------------------------------------------------- reading files


def parse_idx(raw: bytes) -> NDArray[np.uint8]:
    """The array in an idx file with unsigned bytes: 0, 0, 8, ndim, the dims as big-endian int32, then the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or raw[3] == 0:
        raise InputError(
            f"it begins with {raw[:4].hex() or 'nothing'}, not with the magic number 000008nn of an idx file"
        )
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise InputError(f"it ends after {len(raw)} bytes, within its header of {start} bytes")
    dims = [int(n) for n in np.frombuffer(raw, ">u4", count=raw[3], offset=4)]
    expected = start + math.prod(dims)
    if len(raw) != expected:
        raise InputError(f"it has {len(raw)} bytes but its header announces {expected}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(dims)


CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes: a label, then the red, green and blue planes


def parse_cifar(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images [N, 3, 32, 32] and labels [N] from a file of CIFAR-10's binary version, any N.

    >>> x, y = parse_cifar(bytes([6]) + bytes(3072))
    >>> x.shape, y.tolist()
    ((1, 3, 32, 32), [6])
    """
    if len(raw) == 0 or len(raw) % CIFAR_RECORD:
        raise InputError(f"it has {len(raw)} bytes, not a multiple of {CIFAR_RECORD} (label + 3 x 32 x 32)")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, CIFAR_RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _corrupt(path: Path, why: str, name: str) -> InputError:
    # 'delete it' first: a corrupt file in a folder that is searched earlier would hide the fetched one
    return InputError(f"{path}: {why}; delete it and run `drdsgd data get {name}`")


def _parsed(path: Path, parse: Callable[[bytes], T], name: str) -> T:
    """Read and parse a file; errors name the file and the fix."""
    try:
        return parse(_read(path))
    except InputError as error:
        raise _corrupt(path, error.marked, name) from error


def _labels(path: Path, y: NDArray[np.uint8], name: str) -> Tensor:
    """Labels as a tensor; every known data set has ten classes."""
    if len(y) and y.max() > 9:
        i = int(np.argmax(y > 9))
        raise _corrupt(path, f"label {i} is {y[i]}, not in 0..9", name)
    return torch.from_numpy(y.astype(np.int64))


def _idx_pair(images: Path, labels: Path, name: str) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 1, 28, 28] and y [N] from two idx files."""
    x, y = _parsed(images, parse_idx, name), _parsed(labels, parse_idx, name)
    if x.ndim != 3 or x.shape[1:] != (28, 28) or len(x) == 0:
        raise _corrupt(images, f"its array has shape {list(x.shape)}, not [N, 28, 28]", name)
    if y.ndim != 1:
        raise _corrupt(labels, f"its array has shape {list(y.shape)}, not [N]", name)
    if len(x) != len(y):
        raise _corrupt(labels, f"it has {len(y)} labels for {len(x)} images", name)
    # a copy, because torch needs writable memory
    return torch.from_numpy(x[:, None].copy()), _labels(labels, y, name)


def fashion_mnist(data_dir: DataDir | Path | None = None) -> Dataset:
    """Fashion-MNIST from its four idx files (.gz or unpacked): x uint8 [N, 1, 28, 28], unit 255.

    `find` searches for the files; `drdsgd data get fashion-mnist` fetches them.

    >>> fashion_mnist(Path("nowhere"))
    Traceback (most recent call last):
    drdsgd.errors.InputError: no Fashion-MNIST in nowhere: put train-images-idx3-ubyte.gz, ...
    """
    name = "fashion-mnist"
    files = find(name, data_dir)
    train = _idx_pair(files["train-images-idx3-ubyte"], files["train-labels-idx1-ubyte"], name)
    test = _idx_pair(files["t10k-images-idx3-ubyte"], files["t10k-labels-idx1-ubyte"], name)
    return Dataset(name, *train, *test, classes=10, unit=255.0)


def _cifar_parts(paths: Sequence[Path], name: str) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y [N] from CIFAR files, one after another."""
    parts = [_parsed(path, parse_cifar, name) for path in paths]
    x = torch.from_numpy(np.concatenate([x for x, _ in parts]))
    return x, torch.cat([_labels(path, y, name) for path, (_, y) in zip(paths, parts, strict=True)])


def cifar10(data_dir: DataDir | Path | None = None) -> Dataset:
    """CIFAR-10 from the six files of its binary version: x uint8 [N, 3, 32, 32], unit 255.

    `find` searches for the files, in a folder or in its `cifar-10-batches-bin`; `drdsgd data get cifar10` fetches them.

    >>> cifar10(Path("nowhere"))
    Traceback (most recent call last):
    drdsgd.errors.InputError: no CIFAR-10 in nowhere: put data_batch_1.bin, ...
    """
    files = find("cifar10", data_dir)
    train = _cifar_parts([path for name, path in files.items() if name.startswith("data")], "cifar10")
    test = _cifar_parts([files["test_batch.bin"]], "cifar10")
    return Dataset("cifar10", *train, *test, classes=10, unit=255.0)


# ---------------------------------------------------------------------------------------- embedded


def _digits_file() -> NDArray[np.uint8]:
    """The lines of scikit-learn's file, [1797, 65]: the pixels of an image row by row, then its label."""
    spec = importlib.util.find_spec("sklearn")  # only found, because importing scikit-learn takes seconds
    if spec is None or not spec.submodule_search_locations:
        raise InputError("scikit-learn, which has the digits, is not installed: pip install scikit-learn")
    path, n = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"), sum(EMBEDDED["digits"])
    try:
        rows = np.loadtxt(_read(path).decode("ascii").splitlines(), dtype=np.uint8, delimiter=",", ndmin=2)
        if rows.shape == (n, 65) and rows[:, :64].max() <= 16 and rows[:, 64].max() <= 9:
            return rows
        why = f"it does not hold {n} images with their labels"
    except InputError as error:
        why = error.marked
    except ValueError as error:
        why = one_line(error)
    raise InputError(f"{path}: {why}; install it again: pip install --force-reinstall scikit-learn")


def digits() -> Dataset:
    """scikit-learn's embedded digits: x uint8 [N, 1, 8, 8], unit 16; every fourth of each class is a test sample.

    >>> d = digits()
    >>> len(d.y_train), len(d.y_test), int(d.x_train.max())
    (1352, 445, 16)
    """
    rows = _digits_file()
    # copies, because torch needs memory of its own
    x = torch.from_numpy(rows[:, :64].reshape(-1, 1, 8, 8).copy())
    y = torch.from_numpy(rows[:, 64].astype(np.int64))
    # rank[n]: how many samples of n's class come before n; so the split is stratified and needs no seed
    rank = torch.nn.functional.one_hot(y).cumsum(0).gather(1, y[:, None])[:, 0] - 1
    test = rank % 4 == 3
    return Dataset("digits", x[~test], y[~test], x[test], y[test], classes=10, unit=16.0)


# the data sets that are dealt to devices, by name
SOURCES: dict[str, Callable[..., Dataset]] = {"digits": digits, "fashion-mnist": fashion_mnist, "cifar10": cifar10}
