"""A saved model comes back as it was, and its card has every device's number."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import nn

import drdsgd
from drdsgd import baselines, data, models
from drdsgd.core import schedules
from drdsgd.errors import InputError
from drdsgd.experiments.build import make_data, make_model
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import run
from drdsgd.topology import graphs
from drdsgd.training.card import WORST_DEVICES
from tests.support.program import saved, small


def trained(K: int = 5, **options: Any) -> drdsgd.Result:
    torch.manual_seed(0)
    devices = data.synthetic(K, features=6, classes=3, samples=20, test_samples=9)
    settings = {"algorithm": drdsgd.dr_dsgd(0.2, mu=3.0), "graph": graphs.ring(K), "rounds": 8, **options}
    return drdsgd.train(models.logistic((6,), 3), devices, **settings)


def rows(card: str) -> list[tuple[int, str]]:
    """The devices in a card's table, with their results."""
    return [(int(i), value) for i, value in re.findall(r"^\| (\d+) \| \d+ \| \d+ \| (.+) \|$", card, re.MULTILINE)]


def test_a_saved_model_is_the_model(tmp_path: Path) -> None:
    result = trained()
    folder = result.save(tmp_path / "deep" / "model")
    again = models.logistic((6,), 3)
    load_model(again, folder / "model.safetensors")
    x = torch.randn(7, 6)
    assert torch.equal(again(x), result.model(x))
    assert {path.name for path in folder.iterdir()} == {"README.md", "model.safetensors"}
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert checksum in (folder / "README.md").read_text()
    other = trained(rounds=3)
    other.save(folder)  # replaces the first
    load_model(again, folder / "model.safetensors")
    assert torch.equal(again(x), other.model(x)) and checksum not in (folder / "README.md").read_text()


def test_weights_that_layers_share_are_saved_once(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = self.a

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.b(torch.tanh(self.a(x))))

    pairs = [(torch.randn(10, 3), torch.arange(10) % 3) for _ in range(3)]
    result = drdsgd.train(Shared(), pairs, nx.path_graph(3), drdsgd.dsgd(0.1), rounds=2)
    load_model(again := Shared(), result.save(tmp_path) / "model.safetensors")
    assert torch.equal(again(pairs[0][0]), result.model(pairs[0][0]))


def test_the_card_has_every_device(tmp_path: Path) -> None:
    result = trained()
    card = (result.save(tmp_path) / "README.md").read_text()
    final = result.final.consensus
    worst = final.per_device.index(final.worst)
    said = [f"{value:.1f} %" + (" (worst)" if i == worst else "") for i, value in enumerate(final.per_device)]
    assert rows(card) == list(enumerate(said))
    assert f"Device {worst} is the worst-off device: accuracy {final.worst:.1f} %" in card
    for line in (
        "DR-DSGD with mu = 3",
        "step size eta: 0.2\n",
        "rounds: 8, each with 6",
        "5 nodes, 5 links; rho = ",
        "loss: cross entropy",
    ):
        assert line in card
    assert card.startswith("---\nlibrary_name: pytorch\n") and "metrics:\n- accuracy\n---\n" in card


def test_the_card_says_what_was_run(tmp_path: Path) -> None:
    algorithm = drdsgd.dr_dsgd(schedules.linear(0.2, T=8), mu=3.0, loss_clip=2.3)
    python = (trained(algorithm=algorithm).save(tmp_path / "python") / "README.md").read_text()
    e = small(algorithm="dr-dsgd", mu=3.0, loss_clip=2.3, eta=0.2, eta_schedule="linear", rounds=8)
    run(e, tmp_path / "run")
    for card in (python, Folder(tmp_path / "run").card.read_text()):
        assert "- algorithm: DR-DSGD with mu = 3, loss clip = 2.3\n" in card
        assert "- step size eta: 0.2, linear to 0 in 8 rounds\n" in card


def test_a_folders_names_are_in_the_card_and_harmless(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for name in ("north", "a|b <img>_`x`"):
        np.savez(
            tmp_path / "sites" / f"{name}.npz", x=np.random.default_rng(0).normal(size=(20, 4)), y=np.arange(20) % 2
        )
    devices = data.from_folder(tmp_path / "sites")
    assert devices.names == ("a|b <img>_`x`", "north") and devices.of([1]).names == ("north",)
    result = drdsgd.train(models.logistic((4,), 2), devices, nx.path_graph(2), drdsgd.dsgd(0.1), rounds=2)
    card = (result.save(tmp_path / "python") / "README.md").read_text()
    assert "| 1 (north) | 16 | 4 |" in card and r"| 0 (a\|b \<img\>\_\`x\`) | 16 |" in card
    e = small(dataset=str(tmp_path / "sites"), devices=2, graph="complete", model="logistic")
    record = run(e, tmp_path / "run")
    assert record.network.names == list(devices.names) and "| 1 (north) | 16" in Folder(record.path).card.read_text()


def test_of_many_devices_the_card_has_the_worst(tmp_path: Path) -> None:
    result = trained(60)
    found = rows((result.save(tmp_path) / "README.md").read_text())
    per_device = result.final.consensus.per_device
    assert [per_device[i] for i, _ in found] == sorted(per_device)[:WORST_DEVICES]
    assert f"These are the {WORST_DEVICES} worst of 60 devices." in (tmp_path / "README.md").read_text()


def test_the_card_of_an_error_and_of_a_server(tmp_path: Path) -> None:
    pairs = [(torch.randn(10, 3), torch.full((10, 1), float(i))) for i in range(4)]
    metric = drdsgd.metrics.absolute_error("mm")
    result = drdsgd.train(nn.Linear(3, 1), pairs, nx.path_graph(4), baselines.fedavg(0.1), rounds=20, metric=metric)
    card = (result.save(tmp_path) / "README.md").read_text()
    worst = max(result.final.consensus.per_device)
    assert f"absolute error {worst:.4g} mm" in card and "above the average" in card
    assert "every device communicates with the server" in card and "loss: mse loss" in card and "- mae" in card


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="file is not a folder"):
        trained().save(tmp_path / "file")


def test_a_run_leaves_its_model_and_card(tmp_path: Path) -> None:
    e = small()
    record = run(e, tmp_path / "run")
    devices = make_data(e)
    load_model(model := make_model(e, devices), tmp_path / "run" / "model.safetensors")
    theta = saved(tmp_path / "run").state.theta
    assert torch.allclose(nn.utils.parameters_to_vector(model.parameters()), theta.mean(dim=0), atol=1e-6)
    card = (tmp_path / "run" / "model.md").read_text()
    assert len(rows(card)) == e.devices and f"accuracy {record.final.consensus.worst:.1f} %" in card
