"""Modules and rows of theta convert without loss; models that cannot be trained so are refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drdsgd import models
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import predict
from drdsgd.errors import InputError


def test_views_share_memory_and_rows_round_trip() -> None:
    flat = Flat(models.mlp((1, 4, 4), 3, [5]))
    theta = torch.randn(6, flat.d)
    weight = flat.views(theta)["1.weight"]
    assert weight.untyped_storage().data_ptr() == theta.untyped_storage().data_ptr()
    weight[2, 0, 0] = 7.0
    assert theta[2, 0] == 7.0
    module = flat.to_module(theta[4])
    assert torch.equal(Flat(module).row(), theta[4])
    assert not torch.equal(flat.row(), theta[4])  # the given module stays as it was


def test_frozen_parameters_and_constant_buffers_are_shared() -> None:
    class Scaled(nn.Linear):
        factor: Tensor

        def __init__(self) -> None:
            super().__init__(2, 3)
            self.bias.requires_grad_(False)
            self.register_buffer("factor", torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * super().forward(x)

    module = Scaled()
    flat = Flat(module)
    assert flat.d == 6
    flat.check(torch.zeros(4, 2))
    assert torch.equal(predict(flat, torch.zeros(2, 6), torch.ones(2, 1, 2))[0, 0], 2 * module.bias)


def test_batch_norm_is_refused_and_group_norm_named() -> None:
    with pytest.raises(InputError, match=r"'1' \(BatchNorm1d\).*GroupNorm"):
        Flat(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))).check(torch.randn(4, 2))
    Flat(nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4))).check(torch.randn(4, 2))


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (lambda x: x[:, :2], r"scores \[6, 3\] for 6 samples and 3 classes: its output has shape \[6, 2\]"),
        (lambda x: (x, x), "must give one output per sample"),
        (lambda x: x.mean(), "must give one output per sample"),
        (lambda x: x[:, None], r"its output has shape \[6, 1, 3\]"),
        (lambda x: x.mean(dim=0), "must give one output per sample"),
    ],
)
def test_outputs_must_be_scores(output: Callable[[Tensor], object], says: str) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return output(super().forward(x))

    with pytest.raises(InputError, match=says):
        Flat(Wrong(2, 3)).check(torch.randn(6, 2), classes=3)


COINS: dict[str, Callable[[Any], float]] = {
    "torch's": lambda model: float(torch.rand(())),
    "Python's": lambda model: random.random(),
    "numpy's": lambda model: float(np.random.rand()),
    "its own": lambda model: float(torch.rand((), generator=model.own)),
}


class Coin(nn.Linear):
    """Flips the sign of its whole batch by one coin; with `idle` the coin has no effect."""

    idle, kind, own = False, "torch's", torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        heads = COINS[self.kind](self) < 0.5
        return -super().forward(x) if heads and not self.idle else super().forward(x)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("kind", COINS)
def test_a_model_that_draws_is_refused_whatever_it_draws(kind: str, idle: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Coin(2, 3), torch.randn(4, 2)
    model.idle, model.kind, model.own = idle, kind, torch.Generator().manual_seed(seed)
    with pytest.raises(InputError, match="remove the layer that draws random numbers"):
        Flat(model).check(x)


def test_draws_from_other_generators_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numpy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + np.random.default_rng().random()

    with pytest.raises(InputError, match="is random"):
        Flat(Numpy(2, 3)).check(torch.randn(4, 2))
    flat, draws = Flat(nn.Linear(2, 3)), itertools.count()
    flat.check(torch.randn(4, 2))
    flat.device = torch.device("cuda")  # no GPU is needed
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([next(draws)], dtype=torch.uint8))
    with pytest.raises(InputError, match="is random"):
        flat.check(torch.randn(4, 2))


def test_other_models_that_can_not_be_trained_are_refused() -> None:
    with pytest.raises(InputError, match=r"is random \(Dropout\?\)"):
        Flat(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))).check(torch.randn(4, 2))
    with pytest.raises(InputError, match=r"does not take the data \(one sample is \(5,\)\)"):
        Flat(nn.Linear(2, 3)).check(torch.randn(4, 5))

    class Functional(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x), 0.5)

    model, x = Functional(2, 3), torch.randn(8, 2)
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="is random"):
        Flat(model).check(x)
    assert torch.equal(torch.get_rng_state(), before)
    batch_statistics = nn.BatchNorm1d(3, track_running_stats=False)
    with pytest.raises(InputError, match="another output when its batch changes"):
        Flat(nn.Sequential(nn.Linear(2, 3), batch_statistics)).check(torch.randn(8, 2))
    with pytest.raises(InputError, match="no parameter to train"):
        Flat(nn.ReLU())
    with pytest.raises(InputError, match=r"one float type: 0.weight is torch.float32, 1.weight is torch.float64"):
        Flat(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2).double()))
