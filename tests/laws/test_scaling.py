"""Work grows with devices and links, never with K^2, and no Python loop runs over devices: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Literal

import networkx as nx
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import drdsgd
from drdsgd import data, models
from drdsgd.engines.local import LocalEngine
from drdsgd.topology import graphs
from drdsgd.topology.mixing import metropolis

pytestmark = pytest.mark.slow


class Work(TorchDispatchMode):
    """Counts torch's operations, their arithmetic (multiplications, or numbers touched), and all Python calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.operations, self.arithmetic, self.calls = 0, 0, 0

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        result = operation(*arguments, **(options or {}))
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        name = operation.overloadpacket.__name__
        self.operations += 1
        if name in ("mm", "bmm"):
            self.arithmetic += tensors[0].numel() * tensors[1].shape[-1]
        elif name in ("addmm", "baddbmm", "addmm_", "baddbmm_"):
            self.arithmetic += tensors[1].numel() * tensors[2].shape[-1]
        elif name == "_embedding_bag_forward_only":
            self.arithmetic += tensors[1].numel() * tensors[0].shape[1]  # every neighbour's row once
        else:
            self.arithmetic += sum(tensor.numel() for tensor in tensors)
        return result


def work(step: Callable[[], object]) -> Work:
    counted = Work()

    def count(frame: FrameType, event: str, argument: object) -> None:
        counted.calls += event in ("call", "c_call")

    with counted:
        sys.setprofile(count)
        try:
            step()
        finally:
            sys.setprofile(None)
    return counted


def mixing(graph: nx.Graph) -> Work:
    engine = LocalEngine(metropolis(graph), torch.float32)
    theta = torch.ones(engine.K, 7)
    return work(lambda: engine.mix(0)(theta, donate=True))


@pytest.mark.parametrize("ring", [graphs.ring, lambda K: graphs.random_regular(K, 6)], ids=["ring", "regular"])
def test_mixing_grows_with_links(ring: Callable[[int], nx.Graph]) -> None:
    few, many = mixing(ring(300)), mixing(ring(1200))
    assert many.operations == few.operations
    assert many.arithmetic < 4.1 * few.arithmetic


def test_links_that_grow_as_k_squared_are_seen() -> None:
    assert mixing(graphs.complete(120)).arithmetic > 12 * mixing(graphs.complete(30)).arithmetic


def training(K: int, eval_every: int, execution: Literal["auto", "loop"] = "auto", objective: str = "dr-dsgd") -> Work:
    """A round of K devices with two test samples each."""
    algorithm = {
        "dsgd": drdsgd.dsgd(0.1),
        "dr-dsgd": drdsgd.dr_dsgd(0.1, 6.0),
        "normalized": drdsgd.dr_dsgd(0.1, 6.0, weights="normalized"),
    }[objective]
    devices = data.synthetic(K, features=4, classes=3, test_samples=2)
    steps = drdsgd.trajectory(
        models.mlp((4,), 3, hidden=[5]), devices, graphs.ring(K), algorithm,
        rounds=3, batch_size=8, eval_every=eval_every, execution=execution, threads=1,
    )  # fmt: skip
    next(steps)
    next(steps)  # work that is done only once is over
    return work(lambda: next(steps))


@pytest.mark.parametrize("objective", ["dsgd", "dr-dsgd", "normalized"])
def test_a_round_takes_the_same_operations_for_any_number_of_devices(objective: str) -> None:
    few, many = training(20, 100, objective=objective), training(160, 100, objective=objective)
    assert many.operations == few.operations
    assert many.calls < 1.1 * few.calls
    assert many.arithmetic < 8.2 * few.arithmetic


def test_an_evaluation_is_done_for_many_devices_at_once() -> None:
    few, many = training(20, 1), training(160, 1)
    assert many.operations == few.operations
    assert many.calls < 1.1 * few.calls
    assert many.arithmetic < 8.2 * few.arithmetic


def test_a_loop_over_devices_is_seen() -> None:
    few, many = training(20, 100, "loop"), training(160, 100, "loop")
    assert many.operations > 6 * few.operations and many.calls > 6 * few.calls
