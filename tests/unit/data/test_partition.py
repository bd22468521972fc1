"""Partitions are disjoint and complete, as even as promised, and the test split follows the training split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drdsgd.data import partition
from tests.support.refusing import message

few = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32)
label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=80)

Indices = npt.NDArray[np.int64]

EVERY: dict[str, Callable[[Sequence[int], int, int], list[Indices]]] = {
    "shards": lambda labels, K, seed: partition.shards(labels, K, 2, seed),
    "dirichlet": lambda labels, K, seed: partition.dirichlet(labels, K, 0.5, seed),
    "iid": lambda labels, K, seed: partition.iid(labels, K, seed),
}


def assert_partition(parts: list[Indices], N: int, K: int) -> None:
    assert len(parts) == K
    for part in parts:
        assert part.dtype == np.int64
        assert part.ndim == 1
        assert np.all(np.diff(part) > 0)  # sorted, no index twice
    assert sorted(np.concatenate(parts).tolist()) == list(range(N))


def same(one: list[Indices], other: list[Indices]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


# ------------------------------------------------------------- training splits


@few
@given(label_lists, st.integers(1, 8), st.integers(1, 4), seeds)
def test_shards(labels: list[int], K: int, shards: int, seed: int) -> None:
    assume(K * shards <= len(labels))
    parts = partition.shards(labels, K, shards, seed)
    assert_partition(parts, len(labels), K)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards
    assert same(parts, partition.shards(np.array(labels, dtype=np.uint8), K, shards, seed))
    # every shard is one run of the stable order by label, and goes to one device
    owner = {int(i): k for k, part in enumerate(parts) for i in part}
    for piece in np.array_split(np.argsort(labels, kind="stable"), K * shards):
        assert len({owner[int(i)] for i in piece}) == 1


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_device_holds_few_labels(shards: int) -> None:
    labels = np.arange(6000) % 10
    for part in partition.shards(labels, 10, shards, seed=4):
        assert len(set(labels[part].tolist())) <= shards  # here every shard has one label
        assert len(part) == 600


@few
@given(label_lists, st.integers(1, 8), seeds)
def test_iid(labels: list[int], K: int, seed: int) -> None:
    assume(len(labels) >= K)
    parts = partition.iid(labels, K, seed)
    assert_partition(parts, len(labels), K)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert same(parts, partition.iid(labels, K, seed))


@few
@given(st.lists(st.integers(0, 5), min_size=40, max_size=80), st.integers(1, 6), seeds, st.integers(1, 3))
def test_dirichlet(labels: list[int], K: int, seed: int, min_samples: int) -> None:
    parts = partition.dirichlet(labels, K, 1.0, seed, min_samples)
    assert_partition(parts, len(labels), K)
    assert min(len(part) for part in parts) >= min_samples
    assert same(parts, partition.dirichlet(labels, K, 1.0, seed, min_samples))


def test_alpha_is_evenness() -> None:
    labels = np.arange(10_000) % 10

    def spread(alpha: float) -> float:
        parts = partition.dirichlet(labels, 5, alpha, seed=1)
        return float(np.std([np.bincount(labels[part], minlength=10) for part in parts], axis=0).mean())

    assert spread(1e9) < 1 < spread(100) < spread(1) < spread(0.1)


@pytest.mark.parametrize("kind", EVERY)
def test_other_seed_other_split(kind: str) -> None:
    labels = [i % 5 for i in range(200)]
    splits = [EVERY[kind](labels, 5, seed) for seed in range(4)]
    assert not any(same(splits[i], splits[j]) for i in range(4) for j in range(i))


# ------------------------------------------------------------------------ match


def counts_of(parts: list[Indices], labels: Indices) -> Indices:
    return np.stack([np.bincount(labels[part], minlength=6) for part in parts]).astype(np.int64)


def by_largest_remainder(held: Indices, size: int) -> list[int]:
    """Hamilton's method: first the whole parts, then one each in order of the remainders."""
    total = max(int(held.sum()), 1)
    shares = [size * int(h) // total for h in held]
    rests = sorted(range(len(held)), key=lambda i: (-(size * int(held[i]) % total), i))
    for i in rests[: size - sum(shares)]:
        shares[i] += 1
    return shares


def servable(held: Indices, sizes: Indices) -> bool:
    """Whether each device can have one test sample of a label it holds: a bipartite matching, by networkx."""
    K = len(held)
    graph = nx.Graph()
    graph.add_nodes_from(range(K))
    for i, c in np.argwhere(held > 0).tolist():
        graph.add_edges_from((i, (c, copy)) for copy in range(sizes[c]))
    matching = nx.bipartite.maximum_matching(graph, top_nodes=range(K))
    return all(i in matching for i in range(K))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[Indices], Indices, Indices]:
    labels = np.array(draw(label_lists), dtype=np.int64)
    test = np.array(draw(st.lists(st.sampled_from(labels.tolist()), min_size=1, max_size=60)), dtype=np.int64)
    K = draw(st.integers(1, min(8, len(labels))))
    if draw(st.booleans()):
        return partition.shards(labels, K, 1, draw(seeds)), labels, test
    return partition.iid(labels, K, draw(seeds)), labels, test


@settings(max_examples=200, deadline=None)
@given(cuts())
def test_match(cut: tuple[list[Indices], Indices, Indices]) -> None:
    parts, labels, test = cut
    held, sizes = counts_of(parts, labels), np.bincount(test, minlength=6)
    if not servable(held, sizes):
        message(lambda: partition.match(parts, labels, test), "device", "fewer devices or more test samples")
        return
    matched = partition.match(parts, labels, test)
    assert_partition(matched, len(test), len(parts))
    assert min(len(part) for part in matched) >= 1
    assert same(matched, partition.match(parts, labels, test))
    counts = counts_of(matched, test)
    assert not np.any((counts > 0) & (held == 0))
    plain = np.array([by_largest_remainder(held[:, c], int(sizes[c])) for c in range(6)]).T
    assert np.all(np.abs(plain - sizes * held / np.maximum(held.sum(axis=0), 1)) < 1)
    if plain.sum(axis=1).min() > 0:
        assert np.array_equal(counts, plain)
    else:  # a chain of transfers changes only the totals of its two ends
        change = counts.sum(axis=1) - plain.sum(axis=1)
        assert np.array_equal(change > 0, plain.sum(axis=1) == 0)
        assert change.max() == 1
    # within a class, lower devices have the earlier samples
    for c in np.unique(test):
        dealt = np.concatenate([part[test[part] == c] for part in matched])
        assert np.all(np.diff(dealt) > 0)


def test_match_keeps_proportions() -> None:
    labels, test = np.arange(1000) % 10, np.arange(500) % 10
    parts = partition.shards(labels, 10, 2, seed=3)
    matched = partition.match(parts, labels, test)
    assert np.array_equal(
        2 * np.stack([np.bincount(test[part], minlength=10) for part in matched]),
        np.stack([np.bincount(labels[part], minlength=10) for part in parts]),
    )


def test_match_rounds_by_largest_remainder() -> None:
    # 5 test samples in proportion 5 : 3 : 2 of 10 -> 2.5, 1.5, 1.0: the tie of remainders goes to device 0
    parts = [np.arange(5), np.arange(5, 8), np.arange(8, 10)]
    matched = partition.match(parts, [0] * 10, [0] * 5)
    assert [part.tolist() for part in matched] == [[0, 1, 2], [3], [4]]


def test_hungry_device_is_fed_by_the_richest() -> None:
    # device 2 holds 1 of 21 samples, and 4 test samples round to 2, 2, 0: device 0 gives one, as the first
    parts = [np.arange(10), np.arange(10, 20), np.array([20])]
    matched = partition.match(parts, [0] * 21, [0] * 4)
    assert [part.tolist() for part in matched] == [[0], [1, 2], [3]]


def test_hungry_device_is_fed_through_a_chain() -> None:
    # class 0: devices 0 (hungry: 1 of 3 samples) and 1 (has the one test sample, and no other);
    # class 1: devices 1 (1 of 11) and 2 (has both test samples). So 2 gives to 1, and 1 gives to 0.
    labels = [0] + [0, 0, 1] + [1] * 10
    parts = [np.array([0]), np.array([1, 2, 3]), np.arange(4, 14)]
    matched = partition.match(parts, labels, [0, 1, 1])
    assert [part.tolist() for part in matched] == [[0], [1], [2]]


def test_match_cannot_serve_everyone() -> None:
    parts = [np.array([0, 1]), np.array([2])]
    message(
        lambda: partition.match(parts, [0, 0, 0], [0]),
        "device 1",
        "training labels: 0",
        "fewer devices or more test samples",
    )
    # no device can give a label without test samples
    message(lambda: partition.match(parts, [0, 0, 7], [0, 0, 0]), "device 1", "training labels: 7")
    many = [np.arange(6), np.array([6])]
    message(lambda: partition.match(many, [1, 2, 3, 4, 5, 6, 0], [0]), "device 0", "1, 2, 3, 4, 5, ...")


# --------------------------------------------------------------------- hold out


@few
@given(cuts(), st.floats(0.001, 0.999), seeds)
def test_hold_out(cut: tuple[list[Indices], Indices, Indices], part: float, seed: int) -> None:
    parts, labels, _ = cut
    assume(min(len(rows) for rows in parts) > 1)
    train, kept = partition.hold_out(parts, labels, part, seed)
    assert_partition([np.union1d(*both) for both in zip(train, kept, strict=True)], len(labels), len(parts))
    assert_partition([*train, *kept], len(labels), 2 * len(parts))  # so no row is in both
    for rows, mine in zip(parts, kept, strict=True):
        assert set(mine) < set(rows)
        assert len(mine) == np.clip(round(part * len(rows)), 1, len(rows) - 1)
        of_each = np.bincount(labels[rows], minlength=6) * len(mine) / len(rows)
        assert np.all(np.abs(np.bincount(labels[mine], minlength=6) - of_each) < 1)
    again = partition.hold_out(parts, labels, part, seed)
    assert same(train, again[0]) and same(kept, again[1])


def test_every_sample_is_as_likely_to_be_held_out() -> None:
    labels, draws = np.array([0] * 5 + [1] * 2), 4000
    kept = np.concatenate([partition.hold_out([np.arange(7)], labels, 0.4, seed)[1][0] for seed in range(draws)])
    times = np.bincount(kept, minlength=7)
    assert times.sum() == 3 * draws
    # five standard deviations of a count: also within a label, and by the seed alone
    assert np.all(np.abs(times - draws * 3 / 7) < 5 * np.sqrt(draws * 3 / 7 * 4 / 7))


# ---------------------------------------------------------------- bad arguments


@pytest.mark.parametrize("kind", EVERY)
def test_bad_common_arguments(kind: str) -> None:
    make = EVERY[kind]
    good = [0, 1] * 20
    wrong: list[Any] = [0, -1, 2.5, True]
    for K in wrong:
        message(partial(make, good, K, 0), "K must", repr(K))
    message(lambda: make(good, 41, 0), "K", "41", "40 samples", "lower K")
    message(lambda: make(good, 2, -1), "seed", "-1")
    message(lambda: make([0, 1, -7, 2], 2, 0), "labels[2]", "-7")
    halves: Any = [0.5, 1.0]
    table: Any = [[0, 1], [1, 0]]
    message(lambda: make(halves, 2, 0), "integers", "float64")
    message(lambda: make(table, 2, 0), "one dimension", "(2, 2)")
    message(lambda: make([], 1, 0), "labels is empty")


def test_bad_shards() -> None:
    message(lambda: partition.shards([0, 1, 2], 2, 2), "2 * 2 = 4", "3 samples")
    message(lambda: partition.shards([0, 1, 2], 2, 0), "shards must", "0")


def test_bad_dirichlet() -> None:
    for alpha in (0, -1.0, float("nan"), float("inf")):
        message(partial(partition.dirichlet, [0, 1], 2, alpha), "alpha", repr(alpha))
    message(lambda: partition.dirichlet([0, 1] * 5, 5, 1.0, 0, 3), "5 * 3", "10 samples")
    message(lambda: partition.dirichlet([0, 1], 2, 1.0, 0, 0), "min_samples", "0")
    message(lambda: partition.dirichlet([0, 1] * 50, 10, 1e-6), "K=10", "alpha=1e-06", "raise alpha")


def test_bad_match() -> None:
    message(lambda: partition.match([[0], [1]], [0, 1], [0, 1, 5]), "test_labels[2]", "is 5")
    message(lambda: partition.match([[0], [1]], [0, 1], [0, -1]), "test_labels[1]", "-1")
    message(lambda: partition.match([[0], [1]], [0, -1], [0, 1]), "labels[1]", "-1")
    message(lambda: partition.match([[0], []], [0, 1], [0, 1]), "device 1", "no training samples")
    message(lambda: partition.match([], [0, 1], [0, 1]), "parts is empty")
    message(lambda: partition.match([[0], [2]], [0, 1], [0, 1]), "parts[1]", "0 to 1")
    message(lambda: partition.match([[0], [0.5]], [0, 1], [0, 1]), "parts[1]")


def test_bad_hold_out() -> None:
    for part in (0.0, 1.0, -0.5, float("nan")):
        message(partial(partition.hold_out, [[0, 1]], [0, 1], part), "part", repr(part))
    message(lambda: partition.hold_out([[0, 1], [2]], [0, 1, 1], 0.5), "device 1", "1 training sample")
    message(lambda: partition.hold_out([[0, 1], []], [0, 1, 1], 0.5), "device 1", "no training samples")
    message(lambda: partition.hold_out([[0, 3]], [0, 1, 1], 0.5), "parts[0]", "0 to 2")
    message(lambda: partition.hold_out([[0, 1]], [0, 1], 0.5, seed=-1), "seed", "-1")
