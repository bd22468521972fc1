"""What each of K devices holds: all samples in one tensor, device after device.

`Devices` are made by `deal` (a data set, and the rows per device from `drdsgd.partition`), by `synthetic`, or from
your own samples by `from_pairs` and `from_folder`. Bytes stay bytes, and whole numbers whole numbers; a model is fed
`x * scale + shift`, or the whole numbers themselves if it takes them (an embedding of words).

Targets are class numbers, or floats of any shape, which are numbers to predict (regression).

The synthetic task is in the manner of Synthetic(alpha, beta), Li et al. 2020 (FedProx).
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.data.sources import Dataset
from drdsgd.errors import InputError, one_line

__all__ = ["Devices", "Own", "Samples", "deal", "from_folder", "from_pairs", "synthetic", "with_random_labels"]

Array: TypeAlias = Tensor | NDArray[Any]
Pair: TypeAlias = tuple[Array, Array]


class MapStyle(Protocol):
    """Samples by their number: what torch calls a map-style data set, also those of other libraries."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Part: TypeAlias = Pair | MapStyle | torch.utils.data.Dataset[Any]
# what one device brings: its samples, or (training samples, test samples)
Own: TypeAlias = Part | tuple[Part, Part]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of all K devices in one tensor, device after device: x [N, *shape], y [N] or [N, ...], sizes [K].

    >>> s = Samples(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), torch.tensor([2, 3]))
    >>> s.K, s.starts.tolist()
    (2, [0, 2])
    """

    x: Tensor  # [N, *shape]
    y: Tensor  # [N] int64, class numbers; or [N, ...] floats, numbers to predict
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

    `classes` is 0 where targets are floats, numbers to predict. `names` are what devices are called beside their
    numbers, if anything: one line of printable text each.

    >>> d = synthetic(3, features=4)
    >>> d.K, d.shape, d.train.sizes.tolist(), d.test.sizes.tolist()
    (3, (4,), [100, 100, 100], [40, 40, 40])
    """

    train: Samples
    test: Samples
    classes: int
    scale: Tensor
    shift: Tensor
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.train.K != self.test.K:
            raise InputError(
                f"{self.train.K} devices have training samples but {self.test.K} have test samples: "
                "every device needs both"
            )
        if self.names and (len(self.names) != self.K or not all(map(str.isprintable, self.names))):
            raise InputError(f"names {self.names}: give each of the {self.K} devices one, in printable characters")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise InputError(
                f"a training sample has shape {list(self.shape)} but a test sample has "
                f"{list(self.test.x.shape[1:])}: they must be the same"
            )
        for y in (self.train.y, self.test.y):
            if y.is_floating_point() != (self.classes == 0):
                raise InputError(
                    f"there are {self.classes} classes but targets are {y.dtype}: give class numbers as integers, "
                    "y.astype(int), and numbers to predict as floats, with 0 classes"
                )

    @property
    def K(self) -> int:
        """The number of devices."""
        return self.train.K

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    def test_features(self, dtype: torch.dtype) -> Tensor:
        """The test samples as a model takes them: `x * scale + shift`, or as they are in an integer dtype; [N, *shape].

        >>> synthetic(3, features=4).test_features(torch.float64).shape
        torch.Size([120, 4])
        """
        if not dtype.is_floating_point:
            return self.test.x.to(dtype)
        return self.test.x.to(dtype, copy=True).mul_(self.scale.to(dtype)).add_(self.shift.to(dtype))

    def checksums(self) -> Tensor:
        """SHA-256 of what each device holds, [K, 32] bytes: a device's own does not depend on who else is there.

        >>> synthetic(3).checksums().shape
        torch.Size([3, 32])
        """
        digests = [hashlib.sha256() for _ in range(self.K)]
        for samples in (self.train, self.test):
            for tensor in (samples.x, samples.y):
                for digest, part in zip(digests, tensor.cpu().split(samples.sizes.tolist()), strict=True):
                    digest.update(f"{part.dtype} {list(part.shape)}".encode())
                    digest.update(part.contiguous().numpy().data)
        return torch.tensor([list(digest.digest()) for digest in digests], dtype=torch.uint8)

    def of(self, devices: Sequence[int]) -> Devices:
        """The same of some devices only, in this order.

        >>> synthetic(3).of([2, 0]).K
        2
        """

        def some(samples: Samples) -> Samples:
            x, y = (tensor.split(samples.sizes.tolist()) for tensor in (samples.x, samples.y))
            return Samples(
                torch.cat([x[i] for i in devices]), torch.cat([y[i] for i in devices]), samples.sizes[list(devices)]
            )

        names = tuple(self.names[i] for i in devices) if self.names else ()
        return replace(self, train=some(self.train), test=some(self.test), names=names)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Devices:
        """The same with all tensors on a torch device, and targets that are floats in a dtype.

        >>> synthetic(3).to(torch.device("cpu")).K
        3
        """

        def moved(samples: Samples) -> Samples:
            y = samples.y.to(device, dtype if samples.y.is_floating_point() else None)
            return Samples(samples.x.to(device), y, samples.sizes.to(device))

        scale, shift = self.scale.to(device), self.shift.to(device)
        return replace(self, train=moved(self.train), test=moved(self.test), scale=scale, shift=shift)


# ------------------------------------------------------------------------------------------------ made up


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
        raise InputError(f"{where} is no array ({one_line(error)}): give a tensor or a numpy array") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {array.dtype} values: give an array of real numbers")
    return array


def _finite(raw: NDArray[Any], where: str, what: str) -> NDArray[np.float32]:
    """The same as float32, all finite."""
    with np.errstate(over="ignore"):  # a float64 too big for float32 is told below, as inf
        x: NDArray[np.float32] = raw.astype(np.float32)
    if not np.isfinite(x).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise InputError(
            f"{where}{list(at)} is {raw[at]}: {what} must be finite float32 numbers; repair or drop that sample"
        )
    return x


def _features(value: object, where: str) -> NDArray[Any]:
    """x [n, *shape]: uint8 as it is, other whole numbers as int64, everything else as float32, all finite."""
    raw = _array(value, where)
    if raw.ndim < 2:
        raise InputError(f"{where} has shape {list(raw.shape)}: it must be [n, features] or [n, *shape]")
    if raw.dtype == np.uint8:
        return raw
    if raw.dtype.kind in "iu" and (raw.dtype != np.uint64 or raw.max(initial=0) < 2**63):
        return raw.astype(np.int64)
    return _finite(raw, where, "features")


def _targets(value: object, where: str, classes: int | None) -> NDArray[Any]:
    """y: class numbers [n], whole numbers from 0, or floats [n, ...]; with `classes` given, class numbers as floats."""
    raw = _array(value, where)
    if raw.dtype.kind == "f" and classes is None and raw.ndim > 0:
        return _finite(raw, where, "targets")
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


def _is_dataset(value: object) -> bool:
    """Whether samples come one by one; not an array, nor anything that numpy makes one of (a list, a table)."""
    if isinstance(value, torch.utils.data.Dataset):
        return True
    array_like = isinstance(value, Sequence | Mapping) or hasattr(value, "__array__")
    return not array_like and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _read(dataset: Any, owner: str, suffix: str, columns: tuple[str, str] | None) -> Pair:
    """The samples of a map-style data set, each a pair (x, y) or a dict of columns, as two arrays."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"{owner} is a {type(dataset).__name__}, whose samples have no numbers: read it into tensors (x, y), or "
            "give a data set with a length"
        )
    found: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    for i in range(len(dataset)):
        sample = dataset[i]
        if isinstance(sample, Mapping):
            sample = _columns(sample, f"{owner}: sample {i}", columns)
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise InputError(f"{owner}: sample {i} is a {type(sample).__name__}: give pairs (x{suffix}, y{suffix})")
        for name, value, values in zip("xy", sample, found, strict=True):
            values.append(_array(value, f"{owner}: {name}{suffix} of sample {i}"))
            if values[i].shape != values[0].shape:
                raise InputError(
                    f"{owner}: {name}{suffix} of sample {i} has shape {list(values[i].shape)}, that of sample 0 "
                    f"{list(values[0].shape)}: cut or fill them so that all are the same"
                )
    if not found[0]:
        raise InputError(f"{owner}: x{suffix} is empty: give the device at least one sample, or leave it out")
    return np.stack(found[0]), np.stack(found[1])


def _columns(sample: Mapping[Any, Any], where: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    """x and y of a sample that is a dict."""
    if columns is None or any(name not in sample for name in columns):
        names = list(sample) or ["x", "y"]
        raise InputError(
            f"{where} has the columns {', '.join(map(str, sample))}: say which of them are x and y, such as "
            f"drdsgd.data.from_pairs(devices, columns=({names[0]!r}, {names[-1]!r}))"
        )
    return sample[columns[0]], sample[columns[1]]


@dataclass(frozen=True)
class _Part:
    """One device's checked samples, with the names that messages call them by."""

    owner: str  # 'device 3' or 'site-a.npz'
    suffix: str  # '' or '_test'
    x: NDArray[Any]
    y: NDArray[Any]

    def name(self, array: str) -> str:
        return f"{self.owner}: {array}{self.suffix}"

    def only(self, mask: NDArray[np.bool_]) -> _Part:
        return replace(self, x=self.x[mask], y=self.y[mask])


def _part(
    pair: object, owner: str, suffix: str = "", classes: int | None = None, columns: tuple[str, str] | None = None
) -> _Part:
    if _is_dataset(pair):
        pair = _read(pair, owner, suffix, columns)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(f"{owner} is no pair of arrays and no map-style data set: give (x{suffix}, y{suffix})")
    where = f"{owner}: x{suffix}"
    x, y = _features(pair[0], where), _targets(pair[1], f"{owner}: y{suffix}", classes)
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


def _samples(parts: Sequence[_Part], dtype: np.dtype[Any]) -> Samples:
    x = np.concatenate([part.x for part in parts], dtype=dtype, casting="same_kind")
    y = np.concatenate([part.y for part in parts])
    return Samples(torch.from_numpy(x), torch.from_numpy(y), torch.tensor([len(part.y) for part in parts]))


def _check_alike(parts: Sequence[_Part]) -> None:
    """All features and targets have the shape of the first device's, and all targets are of its kind."""
    first = parts[0]
    for part in parts:
        if part.y.dtype != first.y.dtype:
            raise InputError(
                f"{part.name('y')} holds {_kind(part)} but {first.name('y')} {_kind(first)}: class numbers must be "
                "integers everywhere, y.astype(int), and numbers to predict floats everywhere"
            )
        for name, one, other in (("x", part.x, first.x), ("y", part.y, first.y)):
            if one.shape[1:] != other.shape[1:]:
                raise InputError(
                    f"{part.name(name)} has samples of shape {list(one.shape[1:])} but {first.name(name)} of "
                    f"{list(other.shape[1:])}: all devices must have the same"
                )


def _kind(part: _Part) -> str:
    return "floats" if part.y.dtype.kind == "f" else "integers"


def _check_classes(parts: Sequence[_Part], classes: int | None) -> int:
    """The number of classes: max label + 1, or the given one, which no label may reach; 0 for floats."""
    if parts[0].y.dtype.kind == "f":
        return 0
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
    owners: Sequence[str],
    pairs: Iterator[tuple[object, object | None]],
    classes: int | None,
    unit: float,
    columns: tuple[str, str] | None = None,
) -> Devices:
    """Devices of (train pair, test pair or None) in the order of their owners."""
    if not (math.isfinite(unit) and unit > 0):
        raise InputError(f"unit is {unit}: give the raw value that becomes 1.0, such as 255 for bytes")
    if classes is not None and classes < 1:
        raise InputError(f"classes is {classes}: it must be at least 1")
    both: list[tuple[_Part, _Part]] = []
    whole: list[_Part] = []  # as given, so that an index in a message is the user's
    for owner, (train, test) in zip(owners, pairs, strict=True):
        part = _part(train, owner, "", classes, columns)
        given = [part] if test is None else [part, _part(test, owner, "_test", classes, columns)]
        whole += given
        both.append(_held_out(part) if test is None else (given[0], given[1]))
    _check_alike(whole)
    common = np.result_type(*{part.x.dtype for part in whole})
    dtype = np.dtype(np.float32) if common.kind == "f" else common  # whole numbers and float32 are not float64
    return Devices(
        train=_samples([train for train, _ in both], dtype),
        test=_samples([test for _, test in both], dtype),
        classes=_check_classes(whole, classes),
        scale=torch.tensor(1.0 / unit),
        shift=torch.tensor(0.0),
    )


def from_pairs(
    train: Sequence[Own],
    test: Sequence[Part] | None = None,
    *,
    classes: int | None = None,
    unit: float = 1.0,
    columns: tuple[str, str] | None = None,
) -> Devices:
    """Your own data, one entry per device: a pair (x [n_i, *shape], y [n_i, ...]) of tensors or arrays; n_i may differ.

    Or a map-style data set (torch's, or anything with a length and numbered samples), which is read once; its samples
    are pairs, or dicts, of which `columns` names x and y. An entry may also be a pair of these, for training and for
    test: `((x, y), (x_test, y_test))`. A device without test samples, here or in `test`, has every fifth held out.

    Targets that are integers are class numbers, and `classes` is the greatest + 1 unless given; floats are numbers to
    predict (with `classes` given, class numbers). A model is fed x / unit; bytes are kept as bytes, and other integers
    as integers, which a model that takes them (`nn.Embedding`) gets as they are.

    >>> d = from_pairs([(torch.rand(10, 4), torch.arange(10) % 3), (torch.rand(5, 4), torch.arange(5) % 3)])
    >>> d.K, d.classes, d.train.sizes.tolist(), d.test.sizes.tolist()
    (2, 3, [8, 4], [2, 1])
    >>> from_pairs([(torch.rand(10, 4), torch.rand(10))]).classes  # floats: no classes
    0
    """
    if not isinstance(train, Sequence):
        raise InputError(f"devices is a {type(train).__name__}: give a list with one entry (x, y) per device")
    if len(train) == 0:
        raise InputError("no devices: give one pair (x, y) per device")
    if test is not None and len(test) != len(train):
        raise InputError(f"{len(train)} devices have training samples but {len(test)} have test samples")
    owners = [f"device {i}" for i in range(len(train))]
    both = map(_train_and_test, owners, train, [None] * len(train) if test is None else test)
    return _devices(owners, both, classes, unit, columns)


def _train_and_test(owner: str, entry: object, test: object | None) -> tuple[object, object | None]:
    """A device's training and test samples, wherever the latter were given."""
    if not (
        isinstance(entry, tuple | list)
        and len(entry) == 2
        and all(isinstance(part, tuple) or _is_dataset(part) for part in entry)
    ):
        return entry, test
    if test is not None:
        raise InputError(f"{owner} brings test samples, and `test` has others: give them in one place")
    return entry[0], entry[1]


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
        raise InputError(f"{path.name} is no readable .npz file ({one_line(error)}): {fix}") from error


def _npz_pairs(path: Path) -> tuple[object, object | None]:
    """(x, y) and (x_test, y_test) or None of one device's file."""
    arrays = _npz(path)
    for name, partner in (("x", "y"), ("y", "x"), ("x_test", "y_test"), ("y_test", "x_test")):
        if name not in arrays and (partner in arrays or name == "x"):
            raise InputError(f"{path.name} has no array {name!r}: write it with np.savez(file, x=x, y=y)")
    test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    return (arrays["x"], arrays["y"]), test


def from_folder(
    path: Path, *, classes: int | None = None, unit: float = 1.0, devices: Sequence[int] | None = None
) -> Devices:
    """Your own data, one .npz file per device (in the order of their names): x, y, perhaps x_test, y_test.

    Integers in y are class numbers and floats are numbers to predict. Where a file has no x_test, every fifth of its
    samples (at 4, 9, ...) is held out. Else as `from_pairs`. With `devices` only the files of these are read. A device
    is called as its file, without `.npz`.

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
    if devices is not None:
        files = [files[i] for i in devices]
    made = _devices([file.name for file in files], map(_npz_pairs, files), classes, unit)
    return replace(made, names=tuple(_printable(file.stem) for file in files))


def _printable(name: str) -> str:
    """A file's name as text for a page: at most 60 characters, and none that would move others about.

    >>> _printable("north\\u202e\\n")
    'north??'
    """
    return "".join(c if c.isprintable() else "?" for c in name[:60])


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

    >>> from drdsgd.data.sources import digits
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


def with_random_labels(data: Devices, devices: int, seed: int = 0, rows: Sequence[int] | None = None) -> Devices:
    """The same, but the training labels of so many devices, from the first on, are random; test labels stay right.

    `rows` are the numbers of the devices whose data these are, if they are not all.

    >>> before = synthetic(3)
    >>> after = with_random_labels(before, 1)
    >>> [bool((after.train.y != before.train.y)[part].any()) for part in (slice(0, 100), slice(100, 300))]
    [True, False]
    """
    if rows is None and not 1 <= devices < data.K:
        raise InputError(f"{devices} devices with random labels: at least 1, and fewer than all {data.K}")
    if not data.classes:
        raise InputError("targets are floats, not labels: only class numbers can be made random")
    y = data.train.y.clone()
    for i, mine in zip(range(data.K) if rows is None else rows, y.split(data.train.sizes.tolist()), strict=True):
        if i < devices:
            # drawn for each by itself, so that they do not depend on what others hold
            drawn = np.random.default_rng([seed, i]).integers(data.classes, size=len(mine))
            mine.copy_(torch.from_numpy(drawn))
    return replace(data, train=replace(data.train, y=y))
