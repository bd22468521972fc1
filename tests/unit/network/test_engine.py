"""A network of devices ends with the same models as one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drdsgd.core.compression import no_compression
from drdsgd.engines.local import LocalEngine, SingleProcess
from drdsgd.experiments import run
from drdsgd.network.engine import NetworkEngine
from drdsgd.network.links import Links
from drdsgd.topology import graphs
from drdsgd.topology.mixing import Mixing, link_failures, metropolis, repeated
from drdsgd.training import checkpoint
from tests.support.deployments import all_at_once, deploy, joined_links, models, play
from tests.support.networks import of_every_kind
from tests.support.refusing import message

CPU = torch.device("cpu")


def gossip(mixing: Mixing, links: dict[int, Links], x: Tensor, rounds: int, log: bool = False) -> Tensor:
    """Every device mixes its row of x for `rounds` rounds, at the same time as the others."""

    def device(i: int) -> Tensor:
        engine, own = NetworkEngine(mixing, i, links[i], CPU), x[i : i + 1]
        for t in range(rounds):
            mix = engine.mix(t)
            own = mix.log_mean(own) if log else mix(own)
        return own

    return torch.cat(all_at_once([partial(device, i) for i in range(len(x))]))


@pytest.mark.parametrize("kind", ["erdos-renyi", "ring", "star", "complete"])
@pytest.mark.parametrize("log", [False, True])
def test_it_is_the_local_engine(kind: str, log: bool) -> None:
    graph = of_every_kind(9, seed=1)[kind]
    x = torch.randn(9, *([] if log else [4]), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for mixing in (metropolis(graph), link_failures(metropolis(graph), 0.4, seed=2), repeated(metropolis(graph), 2)):
        local, expected = LocalEngine(mixing, torch.float64), x
        for t in range(4):
            mix = local.mix(t)
            expected = mix.log_mean(expected) if log else mix(expected)
        found = gossip(mixing, joined_links(list(graph.edges)), x, 4, log)
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_lost_message_returns_the_weight_on_both_sides() -> None:
    """Then W stays doubly stochastic, and the mean stays the same."""
    graph = graphs.complete(5)
    lost = {(0, 1), (3, 2)}  # all messages from the first to the second
    links = joined_links(list(graph.edges), deadline=0.3)
    for i, one in links.items():
        one._send_bytes = partial(_unless, lost, i, one._send_bytes)
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = gossip(metropolis(graph), links, x, 1)
    W = torch.full((5, 5), 0.2, dtype=torch.float64)
    for i, j in lost:
        W[i, j] = W[j, i] = 0
        W[i, i] += 0.2
        W[j, j] += 0.2
    assert torch.allclose(found, W @ x) and torch.allclose(found.mean(0), x.mean(0))
    assert links[0].boxes[1].missed == links[1].boxes[0].missed == 1


def _unless(lost: set[tuple[int, int]], i: int, send: Any, j: int, header: bytes, payload: bytes) -> None:
    if (i, j) not in lost:
        send(j, header, payload)


def test_a_device_that_hears_nobody_is_alone_and_keeps_its_model() -> None:
    links = joined_links([(0, 1)])
    links[0].gone(1)
    mix = NetworkEngine(metropolis(graphs.complete(2)), 0, links[0], CPU).mix(0)
    x = torch.ones(1, 4, dtype=torch.float64)
    assert not mix.isolated
    assert mix(x).equal(x) and mix.isolated and mix.disagreement == 0.0
    assert mix.log_mean(x[:, 0]).equal(x[:, 0])


def test_what_a_device_sends_is_counted() -> None:
    graph = graphs.complete(3)
    links = joined_links(list(graph.edges), size=4)
    mixes = [NetworkEngine(metropolis(graph), i, links[i], CPU).mix(0) for i in range(3)]
    all_at_once([partial(mix, torch.full((1, 4), float(i), dtype=torch.float64)) for i, mix in enumerate(mixes)])
    assert [mix.floats_sent for mix in mixes] == [8, 8, 8]
    assert [mix.bytes_sent for mix in mixes] == [64, 64, 64]
    assert mixes[0].disagreement == pytest.approx((4 * 1 + 4 * 4) / 3) and mixes[0].exchange_seconds > 0


def test_messages_of_a_network_are_not_compressed() -> None:
    mix = NetworkEngine(metropolis(graphs.complete(2)), 0, joined_links([(0, 1)])[0], CPU).mix(0)
    x = torch.ones(1, 4)
    message(lambda: mix.compressed(x, x.clone(), x.clone(), no_compression(), 0), "lost", "compression='none'")


CASES: dict[str, dict[str, Any]] = {
    "dr-dsgd": {},
    "dr-qgm": {"algorithm": "dr-qgm", "compression": "none"},
    "ad-gda": {"objective": "ad-gda", "gossip_steps": 2},
    "kl-ball over links that fail": {"objective": "kl-ball", "link_failures": 0.3, "graph": "complete"},
}


@pytest.mark.parametrize("case", CASES)
def test_devices_end_with_the_models_of_a_local_run(tmp_path: Path, case: str) -> None:
    e = deploy(tmp_path / "net", **CASES[case])
    outcomes = play(tmp_path / "net")
    assert all(outcome is not None and outcome.status == "finished" for outcome in outcomes)
    run.run(e, tmp_path / "local")
    local = checkpoint.load(tmp_path / "local" / "checkpoint", SingleProcess(e.devices))
    assert local is not None and local.state.t == e.rounds
    assert torch.allclose(models(tmp_path / "net"), local.state.theta, rtol=1e-9, atol=1e-11)
