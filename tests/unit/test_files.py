"""Files are complete or absent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from drdsgd.files import replacing, write_text


@pytest.mark.parametrize("old", [None, "old"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, old: str | None) -> None:
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_text(old)
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if old is None else [old])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_the_name_never_shows_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("ne")
        assert path.read_text() == "old" and temporary.parent == path.parent
        temporary.write_text("new")
    assert path.read_text() == "new" and not temporary.exists()


def test_folders_are_made_and_the_text_is_utf8(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "a.txt"
    write_text(path, "Rényi ± ε\n")
    assert path.read_bytes() == "Rényi ± ε\n".encode()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_any_new_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "a.txt", "")
    finally:
        assert os.umask(before) == umask
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """As root, a rename would replace /dev/null for the whole system."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FileExistsError, match="Not a regular file"):
            write_text(tmp_path / name, "new")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "folder").is_dir()
