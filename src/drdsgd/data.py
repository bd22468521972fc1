"""Data sets, and what each of K devices holds of them.

Two kinds of values. A `Dataset` is a labelled data set before it is dealt: `digits` (embedded in
scikit-learn, no download), `fashion_mnist`, `cifar10`. `Devices` is what K devices hold, all samples in one
tensor, device after device: made by `deal` (a Dataset and index arrays from `drdsgd.partition`), by
`synthetic`, or from your own data by `from_pairs` and `from_folder`.

Bytes stay bytes: images are kept as uint8, and a model is fed `x * scale + shift`.

This module never touches the network; `drdsgd.fetch` does.

Sources: Fashion-MNIST, Xiao et al. 2017; CIFAR-10, Krizhevsky 2009; the synthetic task is in the manner of
Synthetic(alpha, beta), Li et al. 2020 (FedProx).
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.errors import InputError

__all__ = [
    "KNOWN",
    "Available",
    "Dataset",
    "Devices",
    "Known",
    "Samples",
    "available",
    "cache_folder",
    "cifar10",
    "deal",
    "digits",
    "fashion_mnist",
    "find",
    "find_file",
    "from_folder",
    "from_pairs",
    "genuine",
    "parse_cifar",
    "parse_idx",
    "state_of",
    "synthetic",
]

Array: TypeAlias = Tensor | NDArray[Any]
Pair: TypeAlias = tuple[Array, Array]
T = TypeVar("T")
State: TypeAlias = Literal["ok", "differs", "not here", "embedded"]


# ---------------------------------------------------------------------------------------- the three values


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


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of all K devices in one tensor, device after device: x [N, *shape], y [N], sizes [K].

    >>> s = Samples(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), torch.tensor([2, 3]))
    >>> s.K, s.starts.tolist()
    (2, [0, 2])
    """

    x: Tensor  # [N, *shape]
    y: Tensor  # [N] int64
    sizes: Tensor  # [K] int64, sums to N

    def __post_init__(self) -> None:
        if self.sizes.ndim != 1 or len(self.sizes) == 0:
            raise InputError(f"sizes has shape {list(self.sizes.shape)}: give one size per device, [K]")
        if int(self.sizes.min()) < 1:
            device = int((self.sizes < 1).nonzero()[0])
            raise InputError(f"device {device} has no samples: give every device at least one, or leave it out")
        total = int(self.sizes.sum())
        if not len(self.x) == len(self.y) == total:
            raise InputError(
                f"x has {len(self.x)} samples, y has {len(self.y)}, sizes sum to {total}: they must be equal"
            )

    @property
    def K(self) -> int:
        """The number of devices."""
        return len(self.sizes)

    @property
    def starts(self) -> Tensor:
        """Where each device's samples begin, [K]."""
        return self.sizes.cumsum(0) - self.sizes


@dataclass(frozen=True, eq=False)
class Devices:
    """What K devices hold; a model is fed `x * scale + shift` (broadcast over [*shape]).

    >>> d = synthetic(3, features=4)
    >>> d.K, d.shape, d.train.sizes.tolist(), d.test.sizes.tolist()
    (3, (4,), [100, 100, 100], [40, 40, 40])
    """

    train: Samples
    test: Samples
    classes: int
    scale: Tensor
    shift: Tensor

    def __post_init__(self) -> None:
        if self.train.K != self.test.K:
            raise InputError(
                f"{self.train.K} devices have training samples but {self.test.K} have test samples: "
                "every device needs both"
            )
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise InputError(
                f"a training sample has shape {list(self.shape)} but a test sample has "
                f"{list(self.test.x.shape[1:])}: they must be the same"
            )

    @property
    def K(self) -> int:
        """The number of devices."""
        return self.train.K

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    def to(self, device: torch.device) -> Devices:
        """The same with all tensors on a torch device.

        >>> synthetic(3).to(torch.device("cpu")).K
        3
        """

        def moved(samples: Samples) -> Samples:
            return Samples(samples.x.to(device), samples.y.to(device), samples.sizes.to(device))

        scale, shift = self.scale.to(device), self.shift.to(device)
        return Devices(moved(self.train), moved(self.test), self.classes, scale, shift)


# ------------------------------------------------------------------------ known data sets, where they are


@dataclass(frozen=True)
class Known:
    """A data set that lives in files: their unpacked names, lengths in bytes and checksums.

    >>> KNOWN["cifar10"].files["test_batch.bin"]
    (30730000, '803d5f7f4d78ea53de84dbe85f74fb6d')
    """

    name: str
    title: str
    algorithm: str  # of the checksums, which are over the unpacked bytes: distributors re-pack the gzips
    files: Mapping[str, tuple[int, str]]  # unpacked name -> (length, checksum)
    train: int  # samples of the genuine set
    test: int
    folder: str = ""  # a sub-folder the files may be in
    packed: bool = False  # files are usually .gz

    def shown(self) -> str:
        """The files' names as a user should see them, in one line."""
        return ", ".join(f"{name}.gz" if self.packed else name for name in self.files)


KNOWN: dict[str, Known] = {
    "fashion-mnist": Known(
        name="fashion-mnist",
        title="Fashion-MNIST",
        algorithm="sha256",
        files={
            "train-images-idx3-ubyte": (
                47_040_016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1-ubyte": (
                60_008,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3-ubyte": (
                7_840_016,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1-ubyte": (
                10_008,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
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

_DEBIAN = Path("/usr/share/datasets")  # where Debian's dataset-* packages put their files


def cache_folder(name: str) -> Path:
    """The folder of a data set in the user's cache: where `drdsgd data get` puts it.

    >>> cache_folder("cifar10").parts[-2:]
    ('drdsgd', 'cifar10')
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "drdsgd" / name


def _places(known: Known, data_dir: Path | None) -> list[Path]:
    """Folders to look in, in order; a folder the user named is the only one."""
    if data_dir is not None:
        return [Path(data_dir), Path(data_dir) / known.name]
    root = os.environ.get("DRDSGD_DATA")
    named = [Path(root) / known.name] if root else []
    return [*named, cache_folder(known.name), _DEBIAN / known.name]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder we may not enter holds nothing for us
        return False


def find_file(folder: Path, name: str) -> Path | None:
    """The file of this unpacked name in a folder, packed as .gz or not; None if there is neither.

    >>> find_file(Path("nowhere"), "test_batch.bin") is None
    True
    """
    return next((path for path in (folder / f"{name}.gz", folder / name) if _is_file(path)), None)


def _files_in(known: Known, folder: Path) -> dict[str, Path]:
    """The files of a data set that are in a folder: unpacked name -> path."""
    paths = {name: find_file(folder, name) for name in known.files}
    return {name: path for name, path in paths.items() if path is not None}


def _look(known: Known, data_dir: Path | None) -> tuple[Path | None, dict[str, Path]]:
    """The first folder that has all files; else the first that has some; else None."""
    best: tuple[Path | None, dict[str, Path]] = (None, {})
    for place in _places(known, data_dir):
        for folder in [place, place / known.folder] if known.folder else [place]:
            files = _files_in(known, folder)
            if len(files) == len(known.files):
                return folder, files
            if files and not best[1]:
                best = (folder, files)
    return best


def find(name: str, data_dir: Path | None = None) -> dict[str, Path]:
    """The files of a known data set: unpacked name -> path (of the file, or of the file packed as .gz).

    Looked for in `data_dir` (itself, or its sub-folder `name`), and only there if it is given; else in
    `$DRDSGD_DATA/name`, the user's cache, and where Debian's package puts them.

    >>> find("cifar10", Path("nowhere"))
    Traceback (most recent call last):
    drdsgd.errors.InputError: no CIFAR-10 in nowhere: put data_batch_1.bin, ...
    """
    known = KNOWN[name]
    folder, files = _look(known, data_dir)
    if len(files) == len(known.files):
        return files
    get = f"run `drdsgd data get {name}`"
    if folder is not None:
        missing = next(file for file in known.files if file not in files)
        raise InputError(f"{known.title} in {folder} is not complete, {missing} is missing: add it, or {get}")
    if data_dir is not None:
        raise InputError(
            f"no {known.title} in {data_dir}: put {known.shown()} there, or leave the folder out and {get}"
        )
    places = ", ".join(str(place) for place in _places(known, None))
    raise InputError(f"{known.title} is not here (looked in {places}): {get}, or name its folder")


def _read(path: Path, most: int = -1) -> bytes:
    """The unpacked bytes of a file, at most `most`; InputError if it can't be read or unpacked."""
    try:
        if path.suffix != ".gz":
            with path.open("rb") as plain:
                return plain.read(most)
        with gzip.open(path, "rb") as packed:
            return packed.read(most)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"it is corrupt or truncated ({_line(error)})") from error
    except OSError as error:
        raise InputError(f"it can't be read ({error.strerror or _line(error)})") from error


def _line(error: BaseException) -> str:
    """An exception's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def genuine(known: Known, name: str, path: Path) -> bool:
    """Whether a file's unpacked bytes have the known length and checksum.

    >>> genuine(KNOWN["cifar10"], "test_batch.bin", Path("nowhere"))
    False
    """
    length, checksum = known.files[name]
    try:
        raw = _read(path, length + 1)  # bounded: a packed file may unpack to anything
    except InputError:
        return False
    return len(raw) == length and hashlib.new(known.algorithm, raw, usedforsecurity=False).hexdigest() == checksum


def state_of(name: str, data_dir: Path | None = None) -> tuple[State, Path | None]:
    """Whether a known data set is here with the right checksums ('ok', 'differs', 'not here'), and where.

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
    """One line of `drdsgd data`: a data set, where it is, its size on disk, its checksums' state.

    >>> available(Path("nowhere"))[1]
    Available(name='fashion-mnist', where=None, bytes=0, train=60000, test=10000, state='not here')
    """

    name: str
    where: Path | None
    bytes: int  # on disk
    train: int  # samples of the genuine set
    test: int
    state: State


def available(data_dir: Path | None = None) -> list[Available]:
    """Every known data set: is it here, how big is it, are its checksums right (reads all its files).

    >>> [(a.name, a.state) for a in available(Path("nowhere"))]
    [('digits', 'embedded'), ('fashion-mnist', 'not here'), ('cifar10', 'not here')]
    """
    d = digits()
    size = d.x_train.nbytes + d.x_test.nbytes
    found = [Available(d.name, None, size, len(d.y_train), len(d.y_test), "embedded")]
    for known in KNOWN.values():
        state, where = state_of(known.name, data_dir)
        files = _look(known, data_dir)[1].values()
        size = sum(path.stat().st_size for path in files)
        found.append(Available(known.name, where, size, known.train, known.test, state))
    return found


# ---------------------------------------------------------------------------------------- reading files


def parse_idx(raw: bytes) -> NDArray[np.uint8]:
    """The array in an idx file of bytes: 0, 0, 8, ndim, the dims as big-endian int32, then the values.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or raw[3] == 0:
        raise InputError(f"it begins with {raw[:4].hex() or 'nothing'}, not with the magic 000008nn of an idx file")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise InputError(f"it ends after {len(raw)} bytes, within its header of {start}")
    dims = [int(n) for n in np.frombuffer(raw, ">u4", count=raw[3], offset=4)]
    expected = start + math.prod(dims)
    if len(raw) != expected:
        raise InputError(f"it has {len(raw)} bytes but its header tells of {expected}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(dims)


_CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes


def parse_cifar(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images [N, 3, 32, 32] and labels [N] in a file of CIFAR-10's binary version, any N.

    >>> x, y = parse_cifar(bytes([6]) + bytes(3072))
    >>> x.shape, y.tolist()
    ((1, 3, 32, 32), [6])
    """
    if len(raw) == 0 or len(raw) % _CIFAR_RECORD:
        raise InputError(f"it has {len(raw)} bytes, which is no multiple of {_CIFAR_RECORD} (label + 3 x 32 x 32)")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _spoilt(path: Path, why: object, name: str) -> InputError:
    # 'delete it' first: a spoilt file in a place that comes earlier would hide the one that is fetched
    return InputError(f"{path}: {why}; delete it and run `drdsgd data get {name}`")


def _parsed(path: Path, parse: Callable[[bytes], T], name: str) -> T:
    """A file, read and parsed; what goes wrong is told with the file's name and the fix."""
    try:
        return parse(_read(path))
    except InputError as error:
        raise _spoilt(path, error, name) from error


def _labels(path: Path, y: NDArray[np.uint8], name: str) -> Tensor:
    """Labels of a known data set, all of which have ten classes."""
    if len(y) and y.max() > 9:
        i = int(np.argmax(y > 9))
        raise _spoilt(path, f"label {i} is {y[i]}, not in 0..9", name)
    return torch.from_numpy(y.astype(np.int64))


def _idx_pair(images: Path, labels: Path, name: str) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 1, 28, 28] and y [N] of two idx files."""
    x, y = _parsed(images, parse_idx, name), _parsed(labels, parse_idx, name)
    if x.ndim != 3 or x.shape[1:] != (28, 28) or len(x) == 0:
        raise _spoilt(images, f"its array has shape {list(x.shape)}, not [N, 28, 28]", name)
    if y.ndim != 1:
        raise _spoilt(labels, f"its array has shape {list(y.shape)}, not [N]", name)
    if len(x) != len(y):
        raise _spoilt(labels, f"it has {len(y)} labels for {len(x)} images", name)
    # a copy, because torch wants memory that it may write to
    return torch.from_numpy(x[:, None].copy()), _labels(labels, y, name)


def fashion_mnist(data_dir: Path | None = None) -> Dataset:
    """Fashion-MNIST from its four idx files (.gz or unpacked): x uint8 [N, 1, 28, 28], unit 255.

    Looked for as `find` says; `drdsgd data get fashion-mnist` fetches it.

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
    """x uint8 [N, 3, 32, 32] and y [N] of some CIFAR files, one after the other."""
    parts = [_parsed(path, parse_cifar, name) for path in paths]
    x = torch.from_numpy(np.concatenate([x for x, _ in parts]))
    return x, torch.cat([_labels(path, y, name) for path, (_, y) in zip(paths, parts, strict=True)])


def cifar10(data_dir: Path | None = None) -> Dataset:
    """CIFAR-10 from the six files of its binary version: x uint8 [N, 3, 32, 32], unit 255.

    Looked for as `find` says, in the folder or in its `cifar-10-batches-bin`; `drdsgd data get cifar10`
    fetches it.

    >>> cifar10(Path("nowhere"))
    Traceback (most recent call last):
    drdsgd.errors.InputError: no CIFAR-10 in nowhere: put data_batch_1.bin, ...
    """
    files = find("cifar10", data_dir)
    train = _cifar_parts([path for name, path in files.items() if name.startswith("data")], "cifar10")
    test = _cifar_parts([files["test_batch.bin"]], "cifar10")
    return Dataset("cifar10", *train, *test, classes=10, unit=255.0)


# ------------------------------------------------------------------------------------- without any file


def digits() -> Dataset:
    """scikit-learn's embedded digits: x uint8 [N, 1, 8, 8], unit 16; of each class every fourth is test.

    >>> d = digits()
    >>> len(d.y_train), len(d.y_test), int(d.x_train.max())
    (1352, 445, 16)
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bunch = load_digits()
    x = torch.from_numpy(bunch.images.astype(np.uint8)[:, None])
    y = torch.from_numpy(bunch.target.astype(np.int64))
    # rank[n]: how many samples of n's class stand before n; so the split is stratified and has no seed
    rank = torch.nn.functional.one_hot(y).cumsum(0).gather(1, y[:, None])[:, 0] - 1
    test = rank % 4 == 3
    return Dataset("digits", x[~test], y[~test], x[test], y[test], classes=10, unit=16.0)


def synthetic(
    K: int,
    *,
    heterogeneity: float = 1.0,
    seed: int = 0,
    samples: int = 100,
    test_samples: int = 40,
    features: int = 20,
    classes: int = 10,
) -> Devices:
    """A linear task that differs from device to device, for any K: x float32 [K * samples, features].

    Device i draws x ~ N(heterogeneity v_i, diag(j^-1.2)), v_i ~ N(0, I), and its labels are
    argmax (W + heterogeneity U_i) x + b. So 0 is IID, and one linear model is then exact; at 1 each device
    has its own task and mostly its own few labels. A pure function of its arguments.

    >>> a, b = synthetic(2, seed=1), synthetic(2, seed=1)
    >>> torch.equal(a.train.x, b.train.x), tuple(a.train.x.shape), a.classes
    (True, (200, 20), 10)
    """
    for what, value, least in (
        ("K", K, 1),
        ("seed", seed, 0),
        ("samples", samples, 1),
        ("test_samples", test_samples, 1),
        ("features", features, 1),
        ("classes", classes, 2),
    ):
        if value < least:
            raise InputError(f"{what} is {value}: it must be at least {least}")
    if not (math.isfinite(heterogeneity) and heterogeneity >= 0):
        raise InputError(f"heterogeneity is {heterogeneity}: give a number from 0 (IID) upwards, such as 1.0")
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    h, f32 = np.float32(heterogeneity), np.float32
    spread = np.arange(1, features + 1, dtype=f32) ** f32(-0.6)  # its square is j^-1.2
    W = rng.standard_normal((classes, features), f32)
    b = f32(0.5) * rng.standard_normal(classes, f32)
    U = rng.standard_normal((K, classes, features), f32)
    v = rng.standard_normal((K, 1, features), f32)
    x = rng.standard_normal((K, samples + test_samples, features), f32)  # [K, n, F]
    x *= spread
    x += h * v
    y = (x @ (W + h * U).transpose(0, 2, 1) + b).argmax(-1)  # [K, n]

    def part(columns: slice, size: int) -> Samples:
        xs = torch.from_numpy(x[:, columns].reshape(-1, features))
        return Samples(xs, torch.from_numpy(y[:, columns].reshape(-1)), torch.full((K,), size))

    train, test = part(slice(samples), samples), part(slice(samples, None), test_samples)
    return Devices(train, test, classes, torch.tensor(1.0), torch.tensor(0.0))


# ------------------------------------------------------------------------------------- your own samples


def _array(value: object, where: str) -> NDArray[Any]:
    """Anything array-like as a numpy array of numbers."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # numpy has no bfloat16
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{where} is no array ({_line(error)}): give a tensor or a numpy array") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {array.dtype} values: give an array of real numbers")
    return array


def _features(value: object, where: str) -> NDArray[Any]:
    """x [n, *shape]: uint8 as it is, everything else as float32, all finite."""
    raw = _array(value, where)
    if raw.ndim < 2:
        raise InputError(f"{where} has shape {list(raw.shape)}: it must be [n, features] or [n, *shape]")
    if raw.dtype == np.uint8:
        return raw
    with np.errstate(over="ignore"):  # a float64 too big for float32 is told below, as inf
        x = raw.astype(np.float32)
    if not np.isfinite(x).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise InputError(
            f"{where}{list(at)} is {raw[at]}: features must be finite float32 numbers; repair or drop that sample"
        )
    return x


def _targets(value: object, where: str) -> NDArray[np.int64]:
    """y [n]: whole numbers from 0, in any dtype."""
    raw = _array(value, where)
    if raw.ndim != 1:
        raise InputError(f"{where} has shape {list(raw.shape)}: it must be [n], one class number per sample")
    # 2^31: more classes than any model has, and a float beyond int64 must not be cast
    good = (raw >= 0) & (raw < 2**31)
    if raw.dtype.kind == "f":
        good &= np.floor(raw) == raw
    if not good.all():
        i = int(np.argmin(good))
        raise InputError(f"{where}[{i}] is {raw[i]}: labels must be whole numbers 0, 1, 2, ...")
    return raw.astype(np.int64)


@dataclass(frozen=True)
class _Part:
    """One device's checked samples, with the names that messages call them by."""

    owner: str  # 'device 3' or 'site-a.npz'
    suffix: str  # '' or '_test'
    x: NDArray[Any]
    y: NDArray[np.int64]

    def name(self, array: str) -> str:
        return f"{self.owner}: {array}{self.suffix}"

    def only(self, mask: NDArray[np.bool_]) -> _Part:
        return replace(self, x=self.x[mask], y=self.y[mask])


def _part(pair: object, owner: str, suffix: str = "") -> _Part:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(f"{owner} is no pair of arrays: give (x{suffix}, y{suffix})")
    where = f"{owner}: x{suffix}"
    x, y = _features(pair[0], where), _targets(pair[1], f"{owner}: y{suffix}")
    if len(x) != len(y):
        raise InputError(f"{where} has {len(x)} samples but y{suffix} has {len(y)}: they must be equal")
    if len(x) == 0:
        raise InputError(f"{where} is empty: give the device at least one sample, or leave it out")
    return _Part(owner, suffix, x, y)


def _held_out(part: _Part) -> tuple[_Part, _Part]:
    """Every fifth sample becomes test: the ones at 4, 9, 14, ..."""
    if len(part.y) < 5:
        raise InputError(
            f"{part.name('x')} has {len(part.y)} samples, too few to hold out every fifth: "
            "give x_test and y_test, or at least 5 samples"
        )
    test = np.arange(len(part.y)) % 5 == 4
    return part.only(~test), part.only(test)


def _samples(parts: Sequence[_Part]) -> Samples:
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    return Samples(torch.from_numpy(x), torch.from_numpy(y), torch.tensor([len(part.y) for part in parts]))


def _check_alike(parts: Sequence[_Part]) -> None:
    """All features have the shape of the first device's."""
    first = parts[0]
    for part in parts:
        if part.x.shape[1:] != first.x.shape[1:]:
            raise InputError(
                f"{part.name('x')} has samples of shape {list(part.x.shape[1:])} but {first.name('x')} of "
                f"{list(first.x.shape[1:])}: all devices must have the same"
            )


def _check_classes(parts: Sequence[_Part], classes: int | None) -> int:
    """The number of classes: max label + 1, or the given one, which no label may reach."""
    if classes is None:
        return 1 + max(int(part.y.max()) for part in parts)
    for part in parts:
        if part.y.max() >= classes:
            i = int(np.argmax(part.y >= classes))
            raise InputError(
                f"{part.name('y')}[{i}] is {part.y[i]} but classes is {classes}: labels must be 0..{classes - 1}"
            )
    return classes


def _devices(
    owners: Sequence[str], pairs: Iterator[tuple[object, object | None]], classes: int | None, unit: float
) -> Devices:
    """Devices of (train pair, test pair or None) in the order of their owners."""
    if not (math.isfinite(unit) and unit > 0):
        raise InputError(f"unit is {unit}: give the raw value that becomes 1.0, such as 255 for bytes")
    if classes is not None and classes < 1:
        raise InputError(f"classes is {classes}: it must be at least 1")
    both: list[tuple[_Part, _Part]] = []
    whole: list[_Part] = []  # as given, so that an index in a message is the user's
    for owner, (train, test) in zip(owners, pairs, strict=True):
        part = _part(train, owner)
        given = [part] if test is None else [part, _part(test, owner, "_test")]
        whole += given
        both.append(_held_out(part) if test is None else (given[0], given[1]))
    _check_alike(whole)
    return Devices(
        train=_samples([train for train, _ in both]),
        test=_samples([test for _, test in both]),
        classes=_check_classes(whole, classes),
        scale=torch.tensor(1.0 / unit),
        shift=torch.tensor(0.0),
    )


def from_pairs(
    train: Sequence[Pair],
    test: Sequence[Pair] | None = None,
    *,
    classes: int | None = None,
    unit: float = 1.0,
) -> Devices:
    """Your own data, one pair (x [n_i, *shape], y [n_i]) of tensors or arrays per device, sizes may differ.

    Without `test`, every fifth sample of a device is held out as its test set. `classes` is the greatest
    label + 1 unless given. A model is fed x / unit; uint8 features are kept as bytes.

    >>> d = from_pairs([(torch.rand(10, 4), torch.arange(10) % 3), (torch.rand(5, 4), torch.zeros(5))])
    >>> d.K, d.classes, d.train.sizes.tolist(), d.test.sizes.tolist()
    (2, 3, [8, 4], [2, 1])
    """
    if len(train) == 0:
        raise InputError("no devices: give one pair (x, y) per device")
    if test is not None and len(test) != len(train):
        raise InputError(f"{len(train)} devices have training samples but {len(test)} have test samples")
    owners = [f"device {i}" for i in range(len(train))]
    tests: Sequence[Pair | None] = [None] * len(train) if test is None else test
    return _devices(owners, zip(train, tests, strict=True), classes, unit)


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays x, y, x_test, y_test that a .npz file has; never unpickles anything."""
    fix = "write it again with np.savez(file, x=x, y=y)"
    try:
        # opened here, because np.load leaves a file that it can't read open
        with path.open("rb") as raw:
            if not zipfile.is_zipfile(raw):
                raise zipfile.BadZipFile("not a zip archive, or truncated")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in ("x", "y", "x_test", "y_test") if name in file}
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):
            raise InputError(
                f"{path.name} holds pickled objects, refused because they can run code: {fix} of numbers"
            ) from error
        raise InputError(f"{path.name} is no readable .npz file ({_line(error)}): {fix}") from error


def _npz_pairs(path: Path) -> tuple[object, object | None]:
    """(x, y) and (x_test, y_test) or None of one device's file."""
    arrays = _npz(path)
    for name, partner in (("x", "y"), ("y", "x"), ("x_test", "y_test"), ("y_test", "x_test")):
        if name not in arrays and (partner in arrays or name == "x"):
            raise InputError(f"{path.name} has no array {name!r}: write it with np.savez(file, x=x, y=y)")
    test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    return (arrays["x"], arrays["y"]), test


def from_folder(path: Path, *, classes: int | None = None, unit: float = 1.0) -> Devices:
    """Your own data, one .npz file per device (in the order of their names): x, y, perhaps x_test, y_test.

    Where a file has no x_test, every fifth of its samples (at 4, 9, ...) is held out. Else as `from_pairs`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for site in "ab":
    ...         np.savez(Path(folder, f"{site}.npz"), x=np.ones((10, 4)), y=np.arange(10) % 2)
    ...     from_folder(Path(folder)).train.sizes
    tensor([8, 8])
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name the folder that holds one .npz file per device")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise InputError(f"no .npz files in {folder}: write one per device with np.savez(file, x=x, y=y)")
    return _devices([file.name for file in files], map(_npz_pairs, files), classes, unit)


# ---------------------------------------------------------------------------------------------- dealing


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel (dim 1 of x [N, C, ...]), float64 [C]."""
    if x.dtype != torch.uint8:
        flat = x.double().transpose(0, 1).flatten(1)
        return flat.mean(1), flat.std(1, correction=0)
    # bytes by their histogram: exact, and CIFAR-10 in float64 would be 1.2 GB
    counts = [torch.bincount(channel.reshape(-1), minlength=256) for channel in x.transpose(0, 1)]
    p = torch.stack(counts).double() / counts[0].sum()  # [C, 256]
    value = torch.arange(256, dtype=torch.float64)
    mean = p @ value
    return mean, (p * (value - mean[:, None]).square()).sum(1).sqrt()


def _scaling(dataset: Dataset, scaling: str) -> tuple[Tensor, Tensor]:
    """(scale, shift) of a named scaling."""
    if scaling == "unit":
        return torch.tensor(1.0 / dataset.unit), torch.tensor(0.0)
    if scaling != "standard":
        raise InputError(f"scaling is {scaling!r}: it must be 'unit' or 'standard'")
    mean, std = _moments(dataset.x_train)
    std = torch.where(std > 0, std, dataset.unit)  # a channel that never changes is only centred
    shape = (-1, *[1] * (dataset.x_train.ndim - 2))
    return (1 / std).float().view(shape), (-mean / std).float().view(shape)


def _taken(x: Tensor, y: Tensor, parts: Sequence[NDArray[Any]], kind: str) -> Samples:
    """The samples that the index arrays name, device after device."""
    for i, part in enumerate(parts):
        if len(part) == 0:
            raise InputError(f"device {i} has no {kind} samples: use fewer devices, or a partition that gives it some")
        if np.min(part) < 0 or np.max(part) >= len(y):
            wrong = next(n for n in part if not 0 <= n < len(y))
            raise InputError(f"device {i}: {kind} index {wrong} is outside 0..{len(y) - 1}")
    rows = torch.from_numpy(np.concatenate(parts).astype(np.int64))
    return Samples(x[rows], y[rows], torch.tensor([len(part) for part in parts]))


def deal(
    dataset: Dataset,
    train_parts: Sequence[NDArray[Any]],
    test_parts: Sequence[NDArray[Any]],
    scaling: str = "unit",
) -> Devices:
    """Deal a data set to K devices, by one array of indices per device.

    Scaling 'unit' divides by the data set's unit; 'standard' gives every channel (dim 0 of a sample) mean 0
    and standard deviation 1 over the whole training set.

    >>> d = deal(digits(), [np.arange(9), np.arange(9, 12)], [np.arange(2), np.arange(2)])
    >>> d.K, d.shape, d.train.sizes.tolist(), float(d.scale)
    (2, (1, 8, 8), [9, 3], 0.0625)
    """
    if len(train_parts) != len(test_parts) or len(train_parts) == 0:
        raise InputError(
            f"{len(train_parts)} training parts and {len(test_parts)} test parts: give one of each per device"
        )
    for kind, y in (("training", dataset.y_train), ("test", dataset.y_test)):
        wrong = (y < 0) | (y >= dataset.classes)
        if wrong.any():
            i = int(wrong.nonzero()[0])
            raise InputError(f"{dataset.name}: {kind} label {i} is {int(y[i])}, outside 0..{dataset.classes - 1}")
    train = _taken(dataset.x_train, dataset.y_train, train_parts, "training")
    test = _taken(dataset.x_test, dataset.y_test, test_parts, "test")
    return Devices(train, test, dataset.classes, *_scaling(dataset, scaling))
