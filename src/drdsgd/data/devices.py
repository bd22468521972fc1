"""What each of K devices holds: all samples in one tensor, device after device.

Four functions make `Devices`: `deal` (from a data set and each device's rows, see `drdsgd.partition`), `synthetic`,
and for your own samples `from_pairs` and `from_folder`. Bytes stay bytes and integers stay integers. A model gets
`x * scale + shift`, or the integers themselves if it takes them (an embedding of words).

Targets are class numbers, or floats of any shape (regression).

The synthetic task follows Synthetic(alpha, beta) of Li et al. 2020 (FedProx).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.data.sources import Dataset
from drdsgd.errors import InputError, whole
from drdsgd.options import Heterogeneity, Scaling

__all__ = ["Devices", "Samples", "deal", "synthetic", "with_random_labels"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of all K devices in one tensor, device after device: x [N, *shape], y [N] or [N, ...], sizes [K].

    >>> s = Samples(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), torch.tensor([2, 3]))
    >>> s.K, s.starts.tolist()
    (2, [0, 2])
    """

    x: Tensor  # [N, *shape]
    y: Tensor  # [N] int64, class numbers; or [N, ...] floats
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
    """What K devices hold; a model gets `x * scale + shift` (broadcast over [*shape]).

    `classes` is 0 if targets are floats. `names` are optional: one line of printable text per device.

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
            raise InputError(f"names {self.names}: give each of the {self.K} devices one name, in printable text")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise InputError(
                f"a training sample has shape {list(self.shape)} but a test sample has "
                f"{list(self.test.x.shape[1:])}: they must be the same"
            )
        for y in (self.train.y, self.test.y):
            if y.is_floating_point() != (self.classes == 0):
                raise InputError(
                    f"there are {self.classes} classes but targets are {y.dtype}: give class numbers as integers, "
                    "y.astype(int); for floats (regression) set classes to 0"
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
        """The test samples as model input, [N, *shape]: `x * scale + shift`, or unscaled for an integer dtype.

        >>> synthetic(3, features=4).test_features(torch.float64).shape
        torch.Size([120, 4])
        """
        if not dtype.is_floating_point:
            return self.test.x.to(dtype)
        return self.test.x.to(dtype, copy=True).mul_(self.scale.to(dtype)).add_(self.shift.to(dtype))

    def checksums(self) -> Tensor:
        """SHA-256 of each device's samples, [K, 32] bytes; it does not depend on the other devices.

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
        """Only these devices, in this order.

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
        """A copy with all tensors on a torch device, and float targets in a dtype.

        >>> synthetic(3).to(torch.device("cpu")).K
        3
        """

        def moved(samples: Samples) -> Samples:
            y = samples.y.to(device, dtype if samples.y.is_floating_point() else None)
            return Samples(samples.x.to(device), y, samples.sizes.to(device))

        scale, shift = self.scale.to(device), self.shift.to(device)
        return replace(self, train=moved(self.train), test=moved(self.test), scale=scale, shift=shift)


# ---------------------------------------------------------------------------------------------- synthetic


def synthetic(
    K: int,
    *,
    heterogeneity: Heterogeneity = 1.0,
    seed: int = 0,
    samples: int = 100,
    test_samples: int = 40,
    features: int = 20,
    classes: int = 10,
) -> Devices:
    """A linear task that differs from device to device, for any K: x float32 [K * samples, features].

    Device i draws x ~ N(heterogeneity v_i, diag(j^-1.2)), v_i ~ N(0, I), and its labels are
    argmax (W + heterogeneity U_i) x + b. With heterogeneity 0 the data are IID and one linear model is exact. With 1
    each device has its own task and mostly its own few labels. A pure function of its arguments.

    >>> a, b = synthetic(2, seed=1), synthetic(2, seed=1)
    >>> torch.equal(a.train.x, b.train.x), tuple(a.train.x.shape), a.classes
    (True, (200, 20), 10)
    """
    sizes = {"K": K, "samples": samples, "test_samples": test_samples, "features": features}
    for name, value in sizes.items():
        whole(name, value)
    whole("seed", seed, 0)
    whole("classes", classes, 2)
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
    """(scale, shift) for scaling 'unit' or 'standard'."""
    if scaling == "unit":
        return torch.tensor(1.0 / dataset.unit), torch.tensor(0.0)
    if scaling != "standard":
        raise InputError(f"scaling is {scaling!r}: it must be 'unit' or 'standard'")
    mean, std = _moments(dataset.x_train)
    std = torch.where(std > 0, std, dataset.unit)  # a constant channel is only centred
    shape = (-1, *[1] * (dataset.x_train.ndim - 2))
    return (1 / std).float().view(shape), (-mean / std).float().view(shape)


def _taken(x: Tensor, y: Tensor, parts: Sequence[NDArray[Any]], kind: str) -> Samples:
    """The samples at each device's indices, device after device."""
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
    scaling: Scaling = "unit",
) -> Devices:
    """Deal a data set to K devices, with one array of indices per device.

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
    """A copy in which the first `devices` devices have random training labels; test labels stay correct.

    `rows` are the device numbers of `data`, if it holds only some of the devices.

    >>> before = synthetic(3)
    >>> after = with_random_labels(before, 1)
    >>> [bool((after.train.y != before.train.y)[part].any()) for part in (slice(0, 100), slice(100, 300))]
    [True, False]
    """
    if rows is None and not 1 <= devices < data.K:
        raise InputError(f"devices is {devices}: give 1 to {data.K - 1} of the {data.K} devices random labels")
    if not data.classes:
        raise InputError("targets are floats: only class numbers can be replaced by random labels")
    y = data.train.y.clone()
    for i, mine in zip(range(data.K) if rows is None else rows, y.split(data.train.sizes.tolist()), strict=True):
        if i < devices:
            # each device has its own generator: its labels do not depend on what others hold
            drawn = np.random.default_rng([seed, i]).integers(data.classes, size=len(mine))
            mine.copy_(torch.from_numpy(drawn))
    return replace(data, train=replace(data.train, y=y))
