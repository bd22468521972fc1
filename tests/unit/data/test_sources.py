"""Data sets: files in the official layouts round-trip; errors are one line."""

from __future__ import annotations

import gzip
import hashlib
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from drdsgd import data
from drdsgd.data import sources
from tests.support.datasets import genuine_as
from tests.support.refusing import message, says

IMAGES, LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"


# ------------------------------------------------------------------------------ files in the official layouts


def idx(array: NDArray[Any]) -> bytes:
    dims = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + dims + array.astype(np.uint8).tobytes()


def fashion_files(train: int = 7, test: int = 3, seed: int = 0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    files = {}
    for part, n in (("train", train), ("t10k", test)):
        files[IMAGES.format(part)] = idx(rng.integers(0, 256, (n, 28, 28)))
        files[LABELS.format(part)] = idx(rng.integers(0, 10, n))
    return files


def cifar_files(each: int = 2, seed: int = 0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    files = {}
    for name in sources.KNOWN["cifar10"].files:
        rows = rng.integers(0, 256, (each, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        files[name] = rows.tobytes()
    return files


def write(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(raw, 1))
        else:
            (folder / name).write_bytes(raw)
    return folder


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set is found unless the test puts it into a folder under the returned one."""
    monkeypatch.setenv("DRDSGD_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_DEBIAN", tmp_path / "debian")
    return tmp_path


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(deadline=None)
def test_idx_round_trip(shape: list[int], seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(sources.parse_idx(idx(array)), array)


@given(cut=st.integers(0, 26))
def test_idx_of_any_other_length_is_refused(cut: int) -> None:
    raw = idx(np.arange(15).reshape(3, 5))
    assert len(raw) == 27
    with says():
        sources.parse_idx(raw[:cut])
    with says("header"):
        sources.parse_idx(raw + bytes(cut + 1))


@given(n=st.integers(1, 4), seed=st.integers(0, 99))
@settings(deadline=None)
def test_cifar_round_trip(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (n, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, n).astype(np.uint8)
    raw = b"".join(bytes([y[i]]) + x[i].tobytes() for i in range(n))  # as the format's own page describes it
    got_x, got_y = sources.parse_cifar(raw)
    assert np.array_equal(got_x, x) and np.array_equal(got_y, y)


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_loads_what_was_written(tmp_path: Path, packed: bool) -> None:
    files = fashion_files(7, 3)
    d = sources.fashion_mnist(write(tmp_path, files, packed))
    assert (d.name, d.classes, d.unit) == ("fashion-mnist", 10, 255.0)
    assert d.x_train.shape == (7, 1, 28, 28) and d.x_test.shape == (3, 1, 28, 28)
    assert d.x_train.dtype == torch.uint8 and d.y_train.dtype == torch.int64
    assert d.x_train.numpy().tobytes() == files[IMAGES.format("train")][16:]
    assert d.y_test.tolist() == list(files[LABELS.format("t10k")][8:])


@pytest.mark.parametrize("sub", ["", "cifar-10-batches-bin", "cifar10", "cifar10/cifar-10-batches-bin"])
def test_cifar10_loads_what_was_written(tmp_path: Path, sub: str) -> None:
    files = cifar_files(2)
    write(tmp_path / sub, files)
    d = sources.cifar10(tmp_path)
    assert d.x_train.shape == (10, 3, 32, 32) and d.x_test.shape == (2, 3, 32, 32)
    assert d.x_train.dtype == torch.uint8 and d.unit == 255.0
    third = files["data_batch_2.bin"][:3073]  # the third training sample: batches keep their order
    assert d.y_train[2] == third[0] and d.x_train[2].numpy().tobytes() == third[1:]


def test_places_are_searched_in_order(nowhere: Path) -> None:
    places = ["debian", "cache/drdsgd", "env"]  # each is searched before those on its left
    for n, place in enumerate(places, start=1):
        write(nowhere / place / "fashion-mnist", fashion_files(train=n), packed=True)
        assert len(sources.fashion_mnist().y_train) == n
    own = write(nowhere / "own", fashion_files(train=9))
    assert len(sources.fashion_mnist(own).y_train) == 9


def test_not_found_tells_where_it_was_looked_for_and_the_command(nowhere: Path) -> None:
    with says(
        str(nowhere / "env"), str(nowhere / "cache"), str(nowhere / "debian"), "get cifar10`, or name its folder"
    ):
        sources.cifar10()


def test_a_named_folder_is_the_only_one(nowhere: Path) -> None:
    write(nowhere / "env" / "fashion-mnist", fashion_files())
    with says(str(nowhere / "mine"), "train-images-idx3-ubyte.gz", "drdsgd data get fashion-mnist"):
        sources.fashion_mnist(nowhere / "mine")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, cifar_files())
    (tmp_path / "data_batch_3.bin").unlink()
    with says("data_batch_3.bin", str(tmp_path)):
        sources.cifar10(tmp_path)


def test_an_incomplete_place_does_not_hide_a_complete_one(nowhere: Path) -> None:
    write(nowhere / "env" / "cifar10", {"test_batch.bin": b"?"})
    write(nowhere / "debian" / "cifar10", cifar_files(3))
    assert len(sources.cifar10().y_test) == 3


SPOILT: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "truncated": ("train-images-idx3-ubyte", lambda raw: raw[:-5], "header announces"),
    "too long": ("t10k-images-idx3-ubyte", lambda raw: raw + b"!", "header announces"),
    "within the header": ("t10k-images-idx3-ubyte", lambda raw: raw[:9], "header"),
    "empty": ("t10k-labels-idx1-ubyte", lambda raw: b"", "magic"),
    "wrong magic": ("train-labels-idx1-ubyte", lambda raw: b"\x00\x00\x0d\x01" + raw[4:], "00000d01"),
    "wrong shape": ("train-images-idx3-ubyte", lambda raw: idx(np.zeros((7, 27, 28))), "[7, 27, 28]"),
    "no images": ("t10k-images-idx3-ubyte", lambda raw: idx(np.zeros((0, 28, 28))), "[0, 28, 28]"),
    "matrix of labels": ("train-labels-idx1-ubyte", lambda raw: idx(np.zeros((7, 1))), "[7, 1]"),
    "counts differ": ("train-labels-idx1-ubyte", lambda raw: idx(np.zeros(6)), "6 labels for 7 images"),
    "label 10": ("t10k-labels-idx1-ubyte", lambda raw: idx(np.array([1, 10, 2])), "label 1 is 10"),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_fashion_mnist_is_told_with_file_and_fix(tmp_path: Path, case: str, packed: bool) -> None:
    name, spoil, why = SPOILT[case]
    files = fashion_files()
    write(tmp_path, files | {name: spoil(files[name])}, packed)
    with says(name, why, "drdsgd data get fashion-mnist"):
        sources.fashion_mnist(tmp_path)


@given(cut=st.floats(0, 0.999), flip=st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_spoilt_gzip_never_gets_through(tmp_path_factory: pytest.TempPathFactory, cut: float, flip: bool) -> None:
    files = fashion_files()
    folder = write(tmp_path_factory.mktemp("gz"), files, packed=True)
    path = folder / "train-images-idx3-ubyte.gz"
    raw = path.read_bytes()
    at = 10 + int(cut * (len(raw) - 10))  # beyond the header, whose date is not checked
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :] if flip else raw[:at])
    with says(str(path), "drdsgd data get fashion-mnist"):
        sources.fashion_mnist(folder)


@pytest.mark.parametrize(
    ("raw", "why"), [(b"", "0 bytes"), (bytes(3072), "3072 bytes"), (b"\x0b" + bytes(3072), "label 0 is 11")]
)
def test_spoilt_cifar10_is_told_with_file_and_fix(tmp_path: Path, raw: bytes, why: str) -> None:
    write(tmp_path, cifar_files() | {"data_batch_4.bin": raw})
    with says("data_batch_4.bin", why, "drdsgd data get cifar10"):
        sources.cifar10(tmp_path)


def test_an_unreadable_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, cifar_files())

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # not by file modes: root may read everything
    with says("data_batch_1.bin", "Permission denied"):
        sources.cifar10(tmp_path)


# ------------------------------------------------------------------------------------------------ available


def test_available_tells_the_state_of_every_set(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(a.name, a.state) for a in sources.available()] == [
        ("digits", "embedded"),
        ("fashion-mnist", "not here"),
        ("cifar10", "not here"),
    ]
    fashion, cifar = fashion_files(), cifar_files()
    genuine_as(monkeypatch, "fashion-mnist", fashion)
    folder = write(nowhere / "cache/drdsgd/fashion-mnist", fashion, packed=True)
    write(nowhere / "env/cifar10/cifar-10-batches-bin", cifar)  # well formed, but not the known bytes
    _, f, c = sources.available()
    assert (f.state, f.where) == ("ok", folder)
    assert f.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert (c.state, c.where) == ("differs", nowhere / "env/cifar10/cifar-10-batches-bin")
    assert c.bytes == sum(map(len, cifar.values()))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:-9],
        lambda b: b"no gzip",
        lambda b: gzip.compress(gzip.decompress(b) + b"!"),
        lambda b: gzip.compress(gzip.decompress(b)[:-1] + b"!"),
    ],
)
def test_available_says_differs_of_spoilt_files(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[bytes], bytes]
) -> None:
    files = fashion_files()
    genuine_as(monkeypatch, "fashion-mnist", files)
    folder = write(nowhere / "here", files, packed=True)
    assert sources.state_of("fashion-mnist", folder) == ("ok", folder)
    path = folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    assert sources.state_of("fashion-mnist", folder) == ("differs", folder)
    path.unlink()
    assert sources.state_of("fashion-mnist", folder) == ("differs", folder)


def test_known_tables_are_the_sets_as_published() -> None:
    fashion, cifar = sources.KNOWN["fashion-mnist"], sources.KNOWN["cifar10"]
    assert [length for length, _ in fashion.files.values()] == [
        16 + 60_000 * 784,
        8 + 60_000,
        16 + 10_000 * 784,
        8 + 10_000,
    ]
    assert all(length == 10_000 * 3073 for length, _ in cifar.files.values()) and len(cifar.files) == 6
    for known in (fashion, cifar):
        digest = hashlib.new(known.algorithm).digest_size * 2
        assert all(len(checksum) == digest for _, checksum in known.files.values())


def published_moments(d: sources.Dataset) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel in units, as commonly used to normalise."""
    part = [np.arange(5)]
    devices = data.deal(d, part, part, "standard")
    std = 1 / devices.scale.flatten() / d.unit
    return (-devices.shift.flatten() * std).tolist(), std.tolist()


def test_the_real_fashion_mnist_if_it_is_here() -> None:
    if sources.state_of("fashion-mnist")[0] != "ok":
        pytest.skip("Fashion-MNIST is not here")
    d = sources.fashion_mnist()
    assert torch.bincount(d.y_train).tolist() == [6000] * 10 and torch.bincount(d.y_test).tolist() == [1000] * 10
    mean, std = published_moments(d)
    assert mean == pytest.approx([0.2860], abs=5e-5) and std == pytest.approx([0.3530], abs=5e-5)


def test_the_real_cifar10_if_it_is_here() -> None:
    if sources.state_of("cifar10")[0] != "ok":
        pytest.skip("CIFAR-10 is not here")
    d = sources.cifar10()
    assert torch.bincount(d.y_train).tolist() == [5000] * 10 and torch.bincount(d.y_test).tolist() == [1000] * 10
    mean, std = published_moments(d)
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert std == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)


# ---------------------------------------------------------------------------------------- digits, synthetic


def test_digits_are_split_three_to_one_in_every_class() -> None:
    a, b = sources.digits(), sources.digits()
    assert torch.equal(a.x_train, b.x_train) and torch.equal(a.y_test, b.y_test)
    train, test = torch.bincount(a.y_train), torch.bincount(a.y_test)
    assert torch.equal(test, (train + test) // 4)
    assert int(train.sum() + test.sum()) == 1797
    assert a.x_train.dtype == torch.uint8 and int(a.x_train.max()) == a.unit == 16


def test_the_numbers_of_samples_are_known_without_loading() -> None:
    digits = sources.digits()
    assert sources.sizes("digits") == (len(digits.y_train), len(digits.y_test))
    assert sources.sizes("my/folder") is None


def test_digits_are_those_that_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits

    d, theirs, seen = sources.digits(), load_digits(), dict[int, int]()
    ours = {"train": zip(d.x_train, d.y_train, strict=True), "test": zip(d.x_test, d.y_test, strict=True)}
    for image, target in zip(theirs.images, theirs.target, strict=True):
        seen[target] = seen.get(target, 0) + 1
        x, y = next(ours["train" if seen[target] % 4 else "test"])
        assert x[0].tolist() == image.tolist() and int(y) == target
    assert not [*ours["train"], *ours["test"]]


def test_reading_digits_does_not_import_scikit_learn() -> None:
    code = "from drdsgd.data.sources import digits; digits(); import sys; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "it can't be read (No such file or directory)"),
        (b"no gzip", "it is corrupt or truncated"),
        (gzip.compress(b"0,0,5\n1,2\n"), "the number of columns changed"),
        (gzip.compress(b"1,2\n" * 1797), "it does not hold 1797 images with their labels"),
        (gzip.compress((b"17," + b"0," * 63 + b"1\n") * 1797), "it does not hold 1797 images with their labels"),
        (gzip.compress((b"0," * 64 + b"10\n") * 1797), "it does not hold 1797 images with their labels"),
        (gzip.compress((b"0," * 64 + b"300\n") * 1797), "300"),
    ],
    ids=["not there", "no gzip", "columns", "narrow", "17", "label 10", "label 300"],
)
def test_a_corrupt_file_of_digits_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    folder = tmp_path / "datasets" / "data"
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "digits.csv.gz").write_bytes(content)
    found = importlib.machinery.ModuleSpec("sklearn", None)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    message(sources.digits, f"{folder / 'digits.csv.gz'}: ", why, "pip install --force-reinstall scikit-learn")


def test_without_scikit_learn_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message(sources.digits, "scikit-learn, which has the digits, is not installed: pip install scikit-learn")
