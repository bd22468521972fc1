"""Deal a data set to devices by the name of a partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from drdsgd.data.devices import Devices, deal
from drdsgd.data.partition import PARTITIONS, hold_out, match
from drdsgd.data.sources import Dataset
from drdsgd.options import PartitionKind, Scaling, Validation

__all__ = ["dealt"]


def dealt(
    dataset: Dataset,
    K: int,
    partition: PartitionKind = "shards",
    scaling: Scaling = "unit",
    validation: Validation | None = None,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    **of_partition: Any,
) -> Devices:
    """The data of K devices, or only of those in `rows`; further options belong to the partition.

    With `validation`, evaluation is on that part of each device's training samples, and the test set is not used.

    >>> from drdsgd.data.sources import digits
    >>> dealt(digits(), 4, partition="dirichlet", alpha=0.5, rows=[0, 3]).K
    2
    """
    labels = dataset.y_train.numpy()
    parts = PARTITIONS[partition](labels, K, **of_partition, seed=seed)
    if validation is None:
        train, test = parts, match(parts, labels, dataset.y_test.numpy())
    else:
        # standard scaling still uses the whole training set: an eta that is chosen here will be used at that scale
        dataset = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
        train, test = hold_out(parts, labels, validation, seed=seed)
    if rows is not None:
        train, test = [train[i] for i in rows], [test[i] for i in rows]
    return deal(dataset, train, test, scaling)
