"""Your own data, as arrays, data sets or files: every sample is kept once; errors are one line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from drdsgd import data
from tests.support.refusing import says

Case = tuple[dict[str, Any], tuple[str, ...]]


def good(n: int = 10) -> dict[str, Any]:
    return {"x": np.arange(n * 4.0).reshape(n, 4), "y": np.arange(n) % 3}


def with_value(array: NDArray[Any], at: Any, value: float) -> NDArray[Any]:
    array = array.astype(np.float64)
    array[at] = value
    return array


# what device 1 of three gets wrong -> words that the message must have
WRONG: dict[str, Case] = {
    "lengths differ": ({"y": np.zeros(9, int)}, ("x has 10", "y has 9")),
    "nan": ({"x": with_value(good()["x"], (7, 2), np.nan)}, ("x[7, 2]", "nan")),
    "inf": ({"x": with_value(good()["x"], (0, 3), -np.inf)}, ("x[0, 3]", "-inf")),
    "too big for float32": ({"x": with_value(good()["x"], (4, 0), 1e300)}, ("x[4, 0]", "1e+300")),
    "negative label": ({"y": with_value(good()["y"], 5, -2).astype(int)}, ("y[5]", "-2")),
    "labels as floats": ({"y": good()["y"] + 0.0}, ("y holds floats", "y integers", "y.astype(int)")),
    "label nan": ({"y": with_value(good()["y"], 3, np.nan)}, ("y[3]", "nan")),
    "label huge": ({"y": with_value(good()["y"], 3, 1e300)}, ("y[3]", "1e+300")),
    "labels one-hot": ({"y": np.eye(10, dtype=int)}, ("y", "[10, 10]")),
    "labels words": ({"y": np.array(["cat"] * 10)}, ("y", "<U3")),
    "other shape": ({"x": np.zeros((10, 5))}, ("x", "[5]", "[4]")),
    "flat": ({"x": np.zeros(10)}, ("x", "[10]")),
    "empty": ({"x": np.zeros((0, 4)), "y": np.zeros(0, int)}, ("x", "empty")),
    "too few to hold out": (good(4), ("4 samples", "x_test")),
    "complex": ({"x": np.zeros((10, 4), complex)}, ("x", "complex128")),
    "test nan": (
        {"x_test": with_value(good()["x"], (1, 1), np.nan), "y_test": good()["y"]},
        ("x_test[1, 1]",),
    ),
    "test label": ({"x_test": good()["x"], "y_test": np.arange(10) - 1}, ("y_test[0]", "-1")),
    "test shape": ({"x_test": np.zeros((10, 3)), "y_test": good()["y"]}, ("x_test", "[3]")),
    "test empty": ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)}, ("x_test", "empty")),
    "test lengths": ({"x_test": np.zeros((9, 4)), "y_test": good()["y"]}, ("x_test has 9", "y_test has 10")),
}


def save(folder: Path, **devices: dict[str, Any]) -> Path:
    for name, arrays in devices.items():
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_told(tmp_path: Path, case: str) -> None:
    wrong, words = WRONG[case]
    save(tmp_path, a=good(), b=good() | wrong, c=good())
    with says("b.npz", *words):
        data.from_folder(tmp_path)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("case", [case for case in WRONG if case != "labels words"])  # torch has no strings
def test_a_wrong_pair_is_told(case: str, convert: Callable[[Any], Any]) -> None:
    arrays, words = WRONG[case]
    wrong = {name: convert(array) for name, array in arrays.items()}
    devices = [good(), good() | wrong, good()]
    train = [(d["x"], d["y"]) for d in devices]
    tests = any("x_test" in d for d in devices)
    test = [(d.get("x_test", d["x"]), d.get("y_test", d["y"])) for d in devices] if tests else None
    with says("device 1", *words):
        data.from_pairs(train, test)


def test_a_label_beyond_the_given_classes_is_told(tmp_path: Path) -> None:
    save(tmp_path, a=good(), b=good())
    assert data.from_folder(tmp_path).classes == 3
    assert data.from_folder(tmp_path, classes=7).classes == 7
    with says("a.npz: y[2] is 2", "classes is 2"):
        data.from_folder(tmp_path, classes=2)
    with says("classes is 0"):
        data.from_folder(tmp_path, classes=0)
    save(tmp_path, a=good() | {"y": good()["y"] + 0.5}, b=good())  # if classes is given, floats are class numbers
    with says("a.npz: y[0] is 0.5", "whole numbers"):
        data.from_folder(tmp_path, classes=3)


@pytest.mark.parametrize("missing", ["x", "y", "x_test", "y_test"])
def test_a_missing_array_is_told(tmp_path: Path, missing: str) -> None:
    arrays = good() | {"x_test": good()["x"], "y_test": good()["y"]}
    del arrays[missing]
    save(tmp_path, a=good(), site=arrays)
    with says("site.npz", repr(missing)):
        data.from_folder(tmp_path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    save(tmp_path, a=good(), b=good() | {"x": np.array([{"an": "object"}] * 10)})
    with says("b.npz", "refused"):
        data.from_folder(tmp_path)


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    save(tmp_path, a=good(), b=good())
    path = tmp_path / "b.npz"
    whole = path.read_bytes()
    np.save(tmp_path / "lone.npy", np.zeros(3))
    lone = (tmp_path / "lone.npy").read_bytes()
    spoilt = bytearray(whole)
    spoilt[len(whole) // 3] ^= 0xFF  # within an array: the archive's checksum catches it
    for raw in (
        b"",
        b"hello",
        pickle.dumps({"x": 1}),
        whole[: len(whole) // 2],
        whole[:-30],
        lone,
        bytes(spoilt),
    ):
        path.write_bytes(raw)
        with says("b.npz"):
            data.from_folder(tmp_path)


def test_a_folder_without_files_is_told(tmp_path: Path) -> None:
    with says("no .npz", str(tmp_path)):
        data.from_folder(tmp_path)
    with says("not a folder", str(tmp_path / "x")):
        data.from_folder(tmp_path / "x")


def test_wrong_pairs_are_told() -> None:
    pair = (np.zeros((5, 2)), np.zeros(5, int))
    with says("no devices"):
        data.from_pairs([])
    with says("2 devices", "1 have test"):
        data.from_pairs([pair, pair], [pair])
    with says("device 1", "pair"):
        data.from_pairs([pair, np.zeros(3)])
    with says("device 0: x", "not an array"):
        data.from_pairs([([[1, 2], [3]], [0, 1])])
    with says("unit is 0"):
        data.from_pairs([pair], unit=0)


@given(
    sizes=st.lists(st.integers(5, 23), min_size=1, max_size=6),
    shape=st.sampled_from([(3,), (1, 4, 4), (2, 3)]),
    dtype=st.sampled_from([np.uint8, np.float16, np.float64, np.int32, np.bool_]),
    tensors=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_every_sample_is_kept_once(sizes: list[int], shape: tuple[int, ...], dtype: type, tensors: bool) -> None:
    rng = np.random.default_rng(sum(sizes))
    pairs: list[tuple[Any, Any]] = [
        (rng.integers(0, 200, (n, *shape)).astype(dtype), rng.integers(0, 4, n)) for n in sizes
    ]
    d = data.from_pairs([(torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs] if tensors else pairs)
    assert len(sizes) == d.K and d.shape == shape
    assert d.train.x.dtype == {"uint8": torch.uint8, "int32": torch.int64}.get(np.dtype(dtype).name, torch.float32)
    assert d.test.sizes.tolist() == [n // 5 for n in sizes]
    for i, (x, y) in enumerate(pairs):
        for part, rows in ((d.train, np.arange(len(y)) % 5 != 4), (d.test, np.arange(len(y)) % 5 == 4)):
            here = slice(int(part.starts[i]), int(part.starts[i] + part.sizes[i]))
            assert np.array_equal(part.x[here].numpy(), x[rows]) and np.array_equal(part.y[here].numpy(), y[rows])


def test_from_folder_equals_from_pairs(tmp_path: Path) -> None:
    tests = [{"x_test": np.full((i + 1, 4), i), "y_test": np.full(i + 1, i)} for i in range(3)]
    save(tmp_path, b=good(8) | tests[1], a=good(6) | tests[0], c=good(9) | tests[2])  # order is by name
    a = data.from_folder(tmp_path, unit=4.0)
    pairs = [good(n) for n in (6, 8, 9)]
    b = data.from_pairs([(p["x"], p["y"]) for p in pairs], [(t["x_test"], t["y_test"]) for t in tests], unit=4.0)
    for one, other in ((a.train, b.train), (a.test, b.test)):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
        assert torch.equal(one.sizes, other.sizes)
    assert a.classes == b.classes == 3 and float(a.scale) == float(b.scale) == 0.25
    assert a.train.sizes.tolist() == [6, 8, 9] and a.test.sizes.tolist() == [1, 2, 3]


def test_files_with_and_without_test_sets_mix(tmp_path: Path) -> None:
    save(tmp_path, a=good(10), b=good(3) | {"x_test": np.ones((2, 4)), "y_test": np.array([5.0, 0.0])})
    d = data.from_folder(tmp_path, classes=6)
    assert d.train.sizes.tolist() == [8, 3] and d.test.sizes.tolist() == [2, 2]
    assert d.test.y.tolist()[2:] == [5, 0]  # if classes is given, floats are class numbers
    save(tmp_path, b=good(3) | {"x_test": np.ones((2, 4)), "y_test": np.array([5, 0])})
    assert data.from_folder(tmp_path).classes == 6  # the largest label is in a test set


def test_tensors_that_numpy_does_not_know_are_taken() -> None:
    x = torch.rand(5, 2, dtype=torch.bfloat16, requires_grad=True)
    d = data.from_pairs([(x, torch.zeros(5, dtype=torch.int64))])
    assert d.train.x.dtype == torch.float32 and torch.equal(d.train.x, x.detach().float()[:4])


def pair(n: int = 10, shift: float = 0.0) -> tuple[NDArray[Any], NDArray[Any]]:
    return good(n)["x"] + shift, good(n)["y"]


class Rows(torch.utils.data.Dataset[Any]):
    """A map-style data set of torch."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def rows(x: NDArray[Any], y: NDArray[Any]) -> Rows:
    return Rows([(torch.from_numpy(one), int(label)) for one, label in zip(x, y, strict=True)])


def table(x: NDArray[Any], y: NDArray[Any]) -> Rows:
    return Rows([{"id": i, "image": x[i].tolist(), "label": y[i]} for i in range(len(y))])


def test_all_ways_to_bring_samples_are_one() -> None:
    train, test = [pair(10), pair(7, 0.5)], [pair(3, 1.5), pair(4, 2.5)]
    expected = data.from_pairs(train, test)
    both = list(zip(train, test, strict=True))
    for other in (
        data.from_pairs(both),
        data.from_pairs([list(one) for one in both]),
        data.from_pairs([(rows(*one), rows(*held)) for one, held in both]),
        data.from_pairs([(rows(*one), held) for one, held in both]),
        data.from_pairs([table(*one) for one in train], [table(*one) for one in test], columns=("image", "label")),
        data.from_pairs([torch.utils.data.TensorDataset(*map(torch.from_numpy, one)) for one in train], test),
    ):
        assert torch.equal(other.checksums(), expected.checksums())
    held_out = data.from_pairs([rows(*one) for one in train])
    assert torch.equal(held_out.checksums(), data.from_pairs(train).checksums())


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Rows([]), ("device 1: x", "empty")),
        (Stream(), ("device 1", "Stream", "read it into tensors")),
        (Rows([3.0] * 9), ("device 1: sample 0", "float", "pairs (x, y)")),
        (table(*pair()), ("device 1: sample 0", "id, image, label", "columns=('id', 'label')")),
        (Rows([([1.0], 0), ([1.0, 2.0], 1)]), ("device 1: x of sample 1", "[2]", "[1]")),
        (Rows([("a cat", 0)]), ("device 1: x of sample 0", "<U5")),
        ({"x": 1}, ("device 1", "neither a pair")),
        ((pair(), pair(), pair()), ("device 1", "neither a pair")),
        ((pair(), (np.zeros((3, 4)), np.zeros(2, int))), ("device 1: x_test has 3", "y_test has 2")),
    ],
)
def test_a_wrong_entry_is_told(entry: Any, words: tuple[str, ...]) -> None:
    with says(*words):
        data.from_pairs([pair(), entry, pair()])


def test_columns_that_are_not_there_and_test_samples_twice_are_told() -> None:
    with says("id, image, label", "columns="):
        data.from_pairs([table(*pair())], columns=("img", "label"))
    with says("device 0 has test samples in its entry and in `test`"):
        data.from_pairs([(pair(), pair())], [pair()])
    by_name: Any = {"a": pair()}
    with says("devices is a dict"):
        data.from_pairs(by_name)


def test_floats_are_numbers_to_predict(tmp_path: Path) -> None:
    x, y = good()["x"], np.linspace(0, 1, 20).reshape(10, 2)
    d = data.from_pairs([(x, y), (x[:5], y[:5])])
    assert d.classes == 0 and d.train.y.dtype == torch.float32 and d.train.y.shape == (12, 2)
    assert torch.equal(d.test.y, torch.from_numpy(y[[4, 9, 4]]).float())
    save(tmp_path, a={"x": x, "y": y}, b={"x": x[:5], "y": y[:5]})
    assert torch.equal(data.from_folder(tmp_path).checksums(), d.checksums())
    assert d.to(torch.device("cpu"), torch.float64).train.y.dtype == torch.float64
    with says("device 1: y has samples of shape []", "[2]"):
        data.from_pairs([(x, y), (x, y[:, 0])])
    with says("device 1: y[2, 1] is inf", "targets"):
        data.from_pairs([(x, y), (x, with_value(y, (2, 1), np.inf))])
    with says("3 classes", "float32", "astype(int)"):
        replace(d, classes=3)
    with says("targets are floats"):
        data.with_random_labels(d, 1)


def test_whole_numbers_stay_whole_numbers_unless_one_device_has_others() -> None:
    x, y = np.arange(40).reshape(10, 4), good()["y"]
    assert data.from_pairs([(x, y), (x.astype(np.int16), y)]).train.x.dtype == torch.int64
    mixed = data.from_pairs([(x, y), (x + 0.5, y)])
    assert mixed.train.x.dtype == mixed.test.x.dtype == torch.float32
    whole = data.from_pairs([(x, y)])
    assert torch.equal(whole.test_features(torch.int64), torch.from_numpy(x[4::5]))
