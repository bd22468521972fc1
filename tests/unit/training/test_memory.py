"""A run that does not fit into memory is refused beforehand, with the numbers."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import torch

import drdsgd
from drdsgd import models
from drdsgd.errors import InputError
from drdsgd.training import memory


def run(algorithm: str, K: int = 5) -> drdsgd.Result:
    devices = [(torch.rand(10, 1, 4, 4), torch.arange(10) % 3) for _ in range(K)]
    return drdsgd.train(models.mlp((1, 4, 4), 3, [8]), devices, nx.cycle_graph(K), algorithm, rounds=1, batch_size=4)


@pytest.mark.parametrize(("algorithm", "models"), [("dsgd", 1), ("qg-dsgdm", 3), ("dr-gt-adam", 9), ("fedavg", 1)])
def test_what_does_not_fit_is_refused(algorithm: str, models: int, monkeypatch: pytest.MonkeyPatch) -> None:
    d = 163
    need = 5 * 4 * d * models
    monkeypatch.setattr(memory, "free", lambda: need - 1)
    with pytest.raises(InputError, match=rf"^5 models of {d} parameters, .* need {need / 1e9:.1f} GB, and"):
        run(algorithm)
    for enough in (need + 5 * 64, None):  # an objective keeps a few numbers for each device
        monkeypatch.setattr(memory, "free", lambda enough=enough: enough)
        assert run(algorithm).final.round == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(memory, "free", lambda: 2 * need - 1)
    with pytest.raises(InputError, match="models of"):
        run(algorithm)


def test_the_memory_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of what the machine and the container have; a limit that is not there does not count."""
    machine = memory.free()
    assert machine is not None and machine > 2**20
    limit, used = tmp_path / "limit", tmp_path / "used"
    monkeypatch.setattr(memory, "_LIMITS", [(str(limit), str(used))])
    for text, least in (("max", None), ("5000", 2000)):
        limit.write_text(text)
        used.write_text("3000")
        assert (memory.free() == 2000) is (least == 2000)
