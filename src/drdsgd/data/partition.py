"""Which rows of a data set each device holds: labels -> K sorted, disjoint arrays of indices that cover all.

`shards` is the pathological non-IID split of the paper (and of McMahan et al., "Communication-efficient learning of
deep networks from decentralized data", 2017). `dirichlet` is that of Hsu, Qi and Brown, "Measuring the effects of
non-identical data distribution", 2019. `iid` gives all devices the same distribution. `match` splits the test set by
the same label proportions, so that a device is tested on labels it holds. `hold_out` sets a part of each device's rows
aside for validation, so that settings can be chosen without the test set.

All are pure functions of their arguments, including the seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from drdsgd.errors import InputError, named, whole
from drdsgd.options import Alpha, Shards

__all__ = ["PARTITIONS", "dirichlet", "hold_out", "iid", "match", "shards"]

Indices = npt.NDArray[np.int64]

_TRIES = 1000


def shards(labels: npt.ArrayLike, K: int, shards: Shards = 2, seed: int = 0) -> list[Indices]:
    """The paper's split: sort by label, cut into K * shards pieces (sizes differ by at most one), deal them out.

    >>> parts = shards([0, 1, 2, 3] * 3, K=2, shards=2, seed=0)
    >>> [part.tolist() for part in parts]
    [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    """
    y = _checked("labels", labels)
    K, shards = whole("K", K), whole("shards", shards)
    if K * shards > len(y):
        raise InputError(
            f"K * shards = {K} * {shards} = {K * shards} is more than the {len(y)} samples: lower K "
            f"({named('devices')}) or shards"
        )
    pieces = np.array_split(np.argsort(y, kind="stable"), K * shards)
    deal = _generator(seed).permutation(K * shards).reshape(K, shards)
    return [np.sort(np.concatenate([pieces[piece] for piece in hand])) for hand in deal]


def dirichlet(labels: npt.ArrayLike, K: int, alpha: Alpha = 0.5, seed: int = 0, min_samples: int = 1) -> list[Indices]:
    """For every class, the devices' shares are ~ Dir(alpha); redrawn until every device has `min_samples`.

    With a small alpha each class is on few devices; with a large alpha the split is like `iid`.

    >>> parts = dirichlet([0, 1] * 50, K=4, alpha=0.5, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 1
    (100, True)
    """
    y = _checked("labels", labels)
    K, min_samples = whole("K", K), whole("min_samples", min_samples)
    # far above 1e9 the draws overflow; the shares are equal long before that
    if not 0 < alpha <= 1e9:
        raise InputError(f"alpha must lie in (0, 1e9], got {alpha!r}: 0.1 is very uneven, 100 nearly even")
    if K * min_samples > len(y):
        raise InputError(
            f"K * min_samples = {K} * {min_samples} is more than the {len(y)} samples: lower K or min_samples"
        )
    rng = _generator(seed)
    sizes = np.unique(y, return_counts=True)[1]  # [C]
    for _ in range(_TRIES):
        counts = _rounded(rng.dirichlet(np.full(K, alpha), size=len(sizes)), sizes)  # [K, C]
        if counts.sum(axis=1).min() >= min_samples:
            shuffled = rng.permutation(len(y))
            return _cut(shuffled[np.argsort(y[shuffled], kind="stable")], counts)
    raise InputError(
        f"no Dirichlet split with K={K}, alpha={alpha} gave every device {min_samples} samples "
        f"in {_TRIES} tries: raise alpha, or lower K or min_samples"
    )


def iid(labels: npt.ArrayLike, K: int, seed: int = 0) -> list[Indices]:
    """A random permutation in K equal parts (sizes differ by at most one).

    >>> [part.tolist() for part in iid([0, 0, 1, 1, 2], K=2, seed=0)]
    [[2, 3, 4], [0, 1]]
    """
    y = _checked("labels", labels)
    K = whole("K", K)
    if len(y) < K:
        raise InputError(f"K = {K} is more than the {len(y)} samples: lower K")
    return [np.sort(part) for part in np.array_split(_generator(seed).permutation(len(y)), K)]


# the ways to deal samples to devices, by name
PARTITIONS: dict[str, Callable[..., list[Indices]]] = {"shards": shards, "dirichlet": dirichlet, "iid": iid}


def match(parts: Sequence[npt.ArrayLike], labels: npt.ArrayLike, test_labels: npt.ArrayLike) -> list[Indices]:
    """Split the test set like the training set: device i gets the share n_ic / n_c of class c.

    Here n_ic of the n_c training samples of class c are on device i. Shares are rounded by largest remainder (ties go
    to the lower device), so each is within one sample of exact, and a device is tested only on labels it holds. A
    device left without test samples gets one of a class it holds, from the device that has most of it. If no device
    can spare one, it comes through a shortest chain of such transfers. Within a class the test samples are handed out
    in order of their index: the first to device 0, the next to device 1, and so on.

    >>> train, test = [0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0]
    >>> [part.tolist() for part in match([[0, 1, 2, 3], [4, 5]], train, test)]
    [[0, 1, 3, 5], [2, 4]]
    """
    y, test = _checked("labels", labels), _checked("test_labels", test_labels)
    classes, sizes = np.unique(test, return_counts=True)  # [C], [C]
    held = _held(parts, y, classes)  # [K, C]
    for c in np.flatnonzero(held.sum(axis=0) == 0):
        at = int(np.flatnonzero(test == classes[c])[0])
        raise InputError(
            f"test_labels[{at}] is {classes[c]}, a label no device has in training: "
            f"drop the test samples with label {classes[c]} or add training samples"
        )
    counts = np.zeros_like(held)
    for j, size in enumerate(sizes.tolist()):
        counts[:, j] = _largest_remainder(held[:, j], size)
    for device in np.flatnonzero(counts.sum(axis=1) == 0).tolist():
        if not _feed(device, counts, held):
            labels_here = _few(y[np.asarray(parts[device])])
            raise InputError(
                f"device {device} (training labels: {labels_here}) gets no test sample: "
                "use fewer devices or more test samples"
            )
    return _cut(np.argsort(test, kind="stable"), counts)


def hold_out(
    parts: Sequence[npt.ArrayLike], labels: npt.ArrayLike, part: float, seed: int = 0
) -> tuple[list[Indices], list[Indices]]:
    """(train, validation): of every device's n rows, m = `part` * n are set aside, at least one and not all.

    Systematic sampling: the rows are shuffled, then sorted by label, and every (n/m)th is taken from a random start.
    So every row is equally likely, and each label keeps its share on the device up to one sample.

    >>> train, validation = hold_out([[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2], part=0.25)
    >>> [rows.tolist() for rows in train], [rows.tolist() for rows in validation]
    ([[0, 1, 3, 4, 6, 7], [8]], [[2, 5], [9]])
    """
    y = _checked("labels", labels)
    if not 0 < part < 1:
        raise InputError(f"part must lie in (0, 1), got {part!r}: 0.2 sets a fifth of each device's samples aside")
    # a separate stream: the partition draws from the seed itself
    rng = np.random.default_rng([whole("seed", seed, 0), 1])
    train, validation = [], []
    for i, rows in enumerate(_rows(parts, y)):
        n = len(rows)
        if n < 2:
            raise InputError(
                f"device {i} has {n} training sample and can't keep one for validation: "
                "use fewer devices, or a partition that gives it more"
            )
        line = rng.permutation(rows)
        line = line[np.argsort(y[line], kind="stable")]
        m = min(max(round(part * n), 1), n - 1)
        # in integers: every k n + start below m n is equally likely, and so is every place in the line
        kept = (np.arange(m) * n + rng.integers(n)) // m
        validation.append(np.sort(line[kept]))
        train.append(np.sort(np.delete(line, kept)))
    return train, validation


# ------------------------------------------------------------ shares and counts


def _rounded(shares: npt.NDArray[np.float64], sizes: Indices) -> Indices:
    """shares [C, K], whose rows sum to 1 -> integer counts [K, C] with column sums `sizes`."""
    ends = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
    ends[:, -1] = sizes  # a sum of floats is only nearly 1
    return np.diff(np.minimum(ends, sizes[:, None]), axis=1, prepend=0).T


def _largest_remainder(held: Indices, size: int) -> Indices:
    """Divide `size` in proportion to held [K]; in integers, so that a device with none gets exactly none."""
    counts, remainders = np.divmod(size * held, held.sum())
    lucky = np.argsort(-remainders, kind="stable")[: size - counts.sum()]
    counts[lucky] += 1
    return counts


def _held(parts: Sequence[npt.ArrayLike], y: Indices, classes: Indices) -> Indices:
    """How many training samples of each class each device has: [K, C]."""
    held = np.zeros((len(parts), len(classes)), dtype=np.int64)
    for i, rows in enumerate(_rows(parts, y)):
        mine, numbers = np.unique(y[rows], return_counts=True)
        _, at, of = np.intersect1d(classes, mine, assume_unique=True, return_indices=True)
        held[i, at] = numbers[of]  # classes outside the test set have no column
    return held


def _feed(hungry: int, counts: Indices, held: Indices) -> bool:
    """Bring device `hungry` one test sample along a shortest chain of transfers; False if there is no chain.

    A giver with only one sample needs one in turn, so the chain ends at a device with two or more. If the search finds
    none, the devices it reached hold all samples of their labels and outnumber these samples. Then no split gives
    every device a sample (Hall's theorem).
    """
    totals = counts.sum(axis=1)
    gift: dict[int, tuple[int, int]] = {}  # giver -> (taker, class)
    queue = deque([hungry])
    while queue:
        taker = queue.popleft()
        offers = np.where(held[taker] > 0, counts, 0)  # [K, C]
        most = offers.max(axis=1, initial=0)
        for giver in np.argsort(-most, kind="stable").tolist():
            if most[giver] == 0 or giver in gift or giver == hungry:
                continue
            gift[giver] = (taker, int(offers[giver].argmax()))
            if totals[giver] > 1:
                _hand_on(giver, gift, hungry, counts)
                return True
            queue.append(giver)
    return False


def _hand_on(giver: int, gift: dict[int, tuple[int, int]], hungry: int, counts: Indices) -> None:
    while giver != hungry:
        taker, c = gift[giver]
        counts[giver, c] -= 1
        counts[taker, c] += 1
        giver = taker


def _cut(by_class: Indices, counts: Indices) -> list[Indices]:
    """Indices sorted by class, and how many of each class every device gets [K, C] -> rows per device."""
    K, C = counts.shape
    owner = np.repeat(np.tile(np.arange(K), C), counts.T.ravel())
    by_device = by_class[np.argsort(owner, kind="stable")]
    return [np.sort(part) for part in np.split(by_device, np.cumsum(counts.sum(axis=1))[:-1])]


# --------------------------------------------------------------------- checks


def _checked(argument: str, labels: npt.ArrayLike) -> Indices:
    y = np.asarray(labels)
    if y.ndim != 1:
        raise InputError(f"{argument} must have one dimension, got shape {y.shape}: give one integer per sample")
    if not len(y):
        raise InputError(f"{argument} is empty: give at least one sample")
    if y.dtype.kind not in "iu":
        raise InputError(f"{argument} must be integers, got {y.dtype}: number the classes 0, 1, 2, ...")
    bad = np.flatnonzero(y < 0)
    if len(bad):
        raise InputError(f"{argument}[{bad[0]}] is {y[bad[0]]}, but labels must not be negative: number classes from 0")
    return y.astype(np.int64)


def _rows(parts: Sequence[npt.ArrayLike], y: Indices) -> list[Indices]:
    """The parts as arrays, checked against the labels."""
    if not len(parts):
        raise InputError("parts is empty: give one array of training indices per device")
    checked = []
    for i, part in enumerate(parts):
        rows = np.asarray(part)
        if rows.size == 0:
            raise InputError(f"device {i} has no training samples: give it some, or use fewer devices")
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(y):
            raise InputError(f"parts[{i}] must be indices from 0 to {len(y) - 1}: split these labels")
        checked.append(rows.astype(np.int64))
    return checked


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(whole("seed", seed, 0))


def _few(labels: Indices) -> str:
    names = [str(label) for label in np.unique(labels)]
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
