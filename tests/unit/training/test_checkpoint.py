"""Checkpoints are exact and complete, and a corrupt one is noticed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from drdsgd.core.round import State
from drdsgd.engines.local import SingleProcess
from drdsgd.errors import InputError
from drdsgd.training import checkpoint
from drdsgd.training.loop import Progress
from tests.support.program import begun, contents, drdsgd, refused


def progress(dtype: torch.dtype = torch.float32) -> Progress:
    theta = torch.tensor([[0.1, -0.0, math.pi], [1e-38, 3e38, 1.0]], dtype=dtype)
    state = State(7, theta, {"share": torch.ones(2, dtype=dtype)}, {"momentum": theta * 3})
    return Progress(state, 12345678901234, 1 / 3, None)


def save(path: Path, progress: Progress) -> None:
    checkpoint.save(path.parent, progress, SingleProcess(len(progress.state.theta)))


def load(path: Path, K: int = 2) -> Progress:
    found = checkpoint.load(path.parent, SingleProcess(K))
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint" / "round-7-part-1-of-1.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_loaded_is_what_was_saved_bit_by_bit(path: Path, dtype: torch.dtype) -> None:
    before = progress(dtype)
    save(path, before)
    after = load(path)
    assert after._replace(state=before.state) == before
    assert after.state.t == before.state.t
    assert after.state.theta.numpy().tobytes() == before.state.theta.numpy().tobytes()
    for a, b in ((after.state.objective, before.state.objective), (after.state.optimizer, before.state.optimizer)):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) and a[name].dtype == dtype for name in a)


def test_states_of_any_shape_and_kind_of_number(path: Path) -> None:
    """Device numbers, mixtures of all devices, and values that are not known yet: -inf and nan."""
    objective = {
        "device": torch.tensor([[3], [2**40]]),
        "dual": torch.rand(2, 7, dtype=torch.float64),
        "log_mean": torch.tensor([-math.inf, math.inf]),
        "level": torch.tensor([math.nan, 1.0]),
    }
    save(path, progress()._replace(state=State(0, torch.ones(2, 3), objective, {"mass": torch.ones(2)})))
    found = load(path).state
    assert found.objective.keys() == objective.keys() and found.optimizer.keys() == {"mass"}
    for name, value in objective.items():
        assert found.objective[name].dtype == value.dtype and found.objective[name].shape == value.shape
        assert found.objective[name].numpy().tobytes() == value.numpy().tobytes()


def test_models_that_share_memory_are_saved_as_they_are(path: Path) -> None:
    """All devices start from one row, expanded; a view is not a contiguous tensor."""
    theta = torch.arange(3.0).expand(4, 3)
    save(path, progress()._replace(state=State(0, theta, {}, {})))
    assert torch.equal(load(path, 4).state.theta, theta)


def test_any_flipped_byte_is_noticed(path: Path) -> None:
    save(path, progress())
    whole = path.read_bytes()
    for k in range(len(whole)):
        flipped = bytearray(whole)
        flipped[k] ^= 0x55
        path.write_bytes(flipped)
        with pytest.raises(InputError, match=r"corrupt.*remove it to restart the run") as caught:
            load(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@given(k=st.integers(0, 700), byte=st.integers(0, 255))
def test_any_other_byte_is_noticed_or_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, k: int, byte: int
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "round-7-part-1-of-1.safetensors"
    save(path, progress())
    whole = bytearray(path.read_bytes())
    whole[k % len(whole)] = byte
    path.write_bytes(whole)
    try:
        after = load(path)
    except InputError:
        return
    assert torch.equal(after.state.theta, progress().state.theta)
    assert (after.state.t, *after[1:]) == (7, *progress()[1:])


def test_any_truncation_is_noticed(path: Path) -> None:
    save(path, progress())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="corrupt"):
            load(path)


def test_some_other_safetensors_file_is_no_checkpoint(path: Path) -> None:
    path.parent.mkdir()
    save_file({"theta": torch.ones(2, 3)}, path)
    with pytest.raises(InputError, match="its format is None, not 'drdsgd checkpoint 2'"):
        load(path)


def test_a_corrupt_checkpoint_is_refused_in_one_line_and_its_cure_works(tmp_path: Path) -> None:
    state = checkpoint.parts(begun(tmp_path) / "checkpoint")[0].path
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    before = contents(tmp_path)
    line = refused("train", "--resume", "--out", tmp_path)
    assert f"the checkpoint {state} is corrupt: its checksum is wrong; remove it" in line
    assert contents(tmp_path) == before
    state.write_bytes(data[:100])
    assert "is corrupt" in refused("train", "--resume", "--out", tmp_path)
    state.unlink()
    assert drdsgd("train", "--resume", "--out", tmp_path).status == 0


def test_a_checkpoint_that_cant_be_written_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path, progress())
    before = contents(path.parent)
    new = progress()._replace(state=progress().state._replace(t=8))
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint, "save_file", lambda tensors, file, about: save_file(tensors, "/proc/nowhere/x", about)
        )
        with pytest.raises(OSError, match=r"can't write .*round-8-part-1-of-1"):
            save(path, new)
    assert contents(path.parent) == before
    save(path, new)
    assert load(path).state.t == 8


def test_tensors_are_aligned_as_torchs_own_are(tmp_path: Path) -> None:
    """Otherwise products may round differently after a resume."""
    path = tmp_path / "round"
    for size in range(1, 12):
        state = State(size, torch.randn(3, size), {"share": torch.ones(3)}, {})
        save(path, Progress(state, 0, 0.0, None))
        loaded = load(path, 3).state
        assert loaded.theta.data_ptr() % 64 == 0 and loaded.objective["share"].data_ptr() % 64 == 0
