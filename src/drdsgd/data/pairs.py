"""Your own samples as `Devices`: one pair (x, y) of arrays or one data set per device, checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.data.devices import Devices, Samples
from drdsgd.errors import InputError, one_line

__all__ = ["OwnData", "from_pairs", "joined"]

Array: TypeAlias = Tensor | NDArray[Any]
Pair: TypeAlias = tuple[Array, Array]


class MapStyle(Protocol):
    """A map-style data set, of torch or of another library: it has a length and numbered samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Part: TypeAlias = Pair | MapStyle | torch.utils.data.Dataset[Any]
# one device's data: its samples, or (training samples, test samples)
OwnData: TypeAlias = Part | tuple[Part, Part]


def _array(value: object, where: str) -> NDArray[Any]:
    """Anything array-like as a numpy array of numbers."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # numpy has no bfloat16
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{where} is not an array ({one_line(error)}): give a tensor or a numpy array") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {array.dtype} values: give an array of real numbers")
    return array


def _finite(raw: NDArray[Any], where: str, what: str) -> NDArray[np.float32]:
    """The values as float32, all finite."""
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes inf, which is refused below
        x: NDArray[np.float32] = raw.astype(np.float32)
    if not np.isfinite(x).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise InputError(
            f"{where}{list(at)} is {raw[at]}: {what} must be finite float32 numbers; correct or remove that sample"
        )
    return x


def _features(value: object, where: str) -> NDArray[Any]:
    """x [n, *shape]: uint8 stays, other integers become int64, everything else finite float32."""
    raw = _array(value, where)
    if raw.ndim < 2:
        raise InputError(f"{where} has shape {list(raw.shape)}: it must be [n, features] or [n, *shape]")
    if raw.dtype == np.uint8:
        return raw
    if raw.dtype.kind in "iu" and (raw.dtype != np.uint64 or raw.max(initial=0) < 2**63):
        return raw.astype(np.int64)
    return _finite(raw, where, "features")


def _targets(value: object, where: str, classes: int | None) -> NDArray[Any]:
    """y: class numbers [n], integers from 0, or floats [n, ...]; if `classes` is given, floats are class numbers."""
    raw = _array(value, where)
    if raw.dtype.kind == "f" and classes is None and raw.ndim > 0:
        return _finite(raw, where, "targets")
    if raw.ndim != 1:
        raise InputError(f"{where} has shape {list(raw.shape)}: it must be [n], one class number per sample")
    # 2^31 is more classes than any model has; a float beyond int64 must not be cast
    good = (raw >= 0) & (raw < 2**31)
    if raw.dtype.kind == "f":
        good &= np.floor(raw) == raw
    if not good.all():
        i = int(np.argmin(good))
        raise InputError(f"{where}[{i}] is {raw[i]}: labels must be whole numbers 0, 1, 2, ...")
    return raw.astype(np.int64)


def _is_dataset(value: object) -> bool:
    """Whether it has numbered samples and is not array-like (an array, a list, a table)."""
    if isinstance(value, torch.utils.data.Dataset):
        return True
    array_like = isinstance(value, Sequence | Mapping) or hasattr(value, "__array__")
    return not array_like and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _read(dataset: Any, owner: str, suffix: str, columns: tuple[str, str] | None) -> Pair:
    """The samples of a map-style data set as two arrays; each sample is a pair (x, y) or a dict of columns."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"{owner} is a {type(dataset).__name__}, whose samples are not numbered: read it into tensors (x, y), or "
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
                    f"{owner}: {name}{suffix} of sample {i} has shape {list(values[i].shape)} but that of sample 0 has "
                    f"{list(values[0].shape)}: crop or pad the samples to one shape"
                )
    if not found[0]:
        raise InputError(f"{owner}: x{suffix} is empty: give the device at least one sample, or leave it out")
    return np.stack(found[0]), np.stack(found[1])


def _columns(sample: Mapping[Any, Any], where: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    """x and y from a sample that is a dict."""
    if columns is None or any(name not in sample for name in columns):
        names = list(sample) or ["x", "y"]
        raise InputError(
            f"{where} has the columns {', '.join(map(str, sample))}: name those of x and y, as in "
            f"drdsgd.data.from_pairs(devices, columns=({names[0]!r}, {names[-1]!r}))"
        )
    return sample[columns[0]], sample[columns[1]]


@dataclass(frozen=True)
class _Part:
    """One device's checked samples, and how error messages name them."""

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
        raise InputError(f"{owner} is neither a pair of arrays nor a map-style data set: give (x{suffix}, y{suffix})")
    where = f"{owner}: x{suffix}"
    x, y = _features(pair[0], where), _targets(pair[1], f"{owner}: y{suffix}", classes)
    if len(x) != len(y):
        raise InputError(f"{where} has {len(x)} samples but y{suffix} has {len(y)}: they must be equal")
    if len(x) == 0:
        raise InputError(f"{where} is empty: give the device at least one sample, or leave it out")
    return _Part(owner, suffix, x, y)


def _held_out(part: _Part) -> tuple[_Part, _Part]:
    """Every fifth sample becomes a test sample: 4, 9, 14, ..."""
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
    """Check that all devices have features and targets of one shape, and targets of one kind."""
    first = parts[0]
    for part in parts:
        if part.y.dtype != first.y.dtype:
            raise InputError(
                f"{part.name('y')} holds {_kind(part)} but {first.name('y')} {_kind(first)}: give integers everywhere "
                "(class numbers, y.astype(int)) or floats everywhere (regression)"
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
    """The number of classes: `classes`, which no label may reach, or the largest label + 1; 0 for floats."""
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


def joined(
    owners: Sequence[str],
    pairs: Iterator[tuple[object, object | None]],
    classes: int | None,
    unit: float,
    columns: tuple[str, str] | None = None,
) -> Devices:
    """Devices from one (training samples, test samples or None) per owner, in this order."""
    if not (math.isfinite(unit) and unit > 0):
        raise InputError(f"unit is {unit}: give the raw value that becomes 1.0, such as 255 for bytes")
    if classes is not None and classes < 1:
        raise InputError(f"classes is {classes}: it must be at least 1")
    both: list[tuple[_Part, _Part]] = []
    whole: list[_Part] = []  # before the split, so that an index in an error message is the user's
    for owner, (train, test) in zip(owners, pairs, strict=True):
        part = _part(train, owner, "", classes, columns)
        given = [part] if test is None else [part, _part(test, owner, "_test", classes, columns)]
        whole += given
        both.append(_held_out(part) if test is None else (given[0], given[1]))
    _check_alike(whole)
    common = np.result_type(*{part.x.dtype for part in whole})
    dtype = np.dtype(np.float32) if common.kind == "f" else common  # integers with float32 would be float64
    return Devices(
        train=_samples([train for train, _ in both], dtype),
        test=_samples([test for _, test in both], dtype),
        classes=_check_classes(whole, classes),
        scale=torch.tensor(1.0 / unit),
        shift=torch.tensor(0.0),
    )


def from_pairs(
    train: Sequence[OwnData],
    test: Sequence[Part] | None = None,
    *,
    classes: int | None = None,
    unit: float = 1.0,
    columns: tuple[str, str] | None = None,
) -> Devices:
    """Your own data, one entry per device: a pair (x [n_i, *shape], y [n_i, ...]) of tensors or arrays; n_i may differ.

    An entry may also be a map-style data set (torch's, or anything with a length and numbered samples). It is read
    once. Its samples are pairs, or dicts, whose columns for x and y are named by `columns`. For test samples of its
    own, an entry is a pair of these, `((x, y), (x_test, y_test))`. If a device has no test samples, here or in `test`,
    every fifth of its samples is held out.

    Integer targets are class numbers; `classes` defaults to the largest + 1. Float targets are numbers to predict
    (class numbers if `classes` is given). A model gets x / unit. Bytes stay bytes and other integers stay integers:
    a model that takes integers (`nn.Embedding`) gets them unscaled.

    >>> d = from_pairs([(torch.rand(10, 4), torch.arange(10) % 3), (torch.rand(5, 4), torch.arange(5) % 3)])
    >>> d.K, d.classes, d.train.sizes.tolist(), d.test.sizes.tolist()
    (2, 3, [8, 4], [2, 1])
    >>> from_pairs([(torch.rand(10, 4), torch.rand(10))]).classes  # floats have no classes
    0
    """
    if not isinstance(train, Sequence):
        raise InputError(f"devices is a {type(train).__name__}: give a list with one entry (x, y) per device")
    if len(train) == 0:
        raise InputError("no devices: give one pair (x, y) per device")
    if test is not None and len(test) != len(train):
        raise InputError(
            f"{len(train)} devices have training samples but {len(test)} have test samples: give one entry of each per "
            "device"
        )
    owners = [f"device {i}" for i in range(len(train))]
    both = map(_train_and_test, owners, train, [None] * len(train) if test is None else test)
    return joined(owners, both, classes, unit, columns)


def _train_and_test(owner: str, entry: object, test: object | None) -> tuple[object, object | None]:
    """A device's training samples, and its test samples from its own entry or from `test`."""
    if not (
        isinstance(entry, tuple | list)
        and len(entry) == 2
        and all(isinstance(part, tuple) or _is_dataset(part) for part in entry)
    ):
        return entry, test
    if test is not None:
        raise InputError(f"{owner} has test samples in its entry and in `test`: give them in one place")
    return entry[0], entry[1]
