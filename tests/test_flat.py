"""Modules are rows of theta, without loss; and models that can't be are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drdsgd import models
from drdsgd.errors import InputError
from drdsgd.flat import Execution, Flat, choose_execution, loss_and_grad

CROSS_ENTROPY = nn.functional.cross_entropy


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


@pytest.mark.parametrize("execution", ["batched", "loop"])
@pytest.mark.parametrize("model", [models.mlp((3, 8, 8), 4, [6]), models.cnn((3, 8, 8), 4, (2, 3, 2), (5, 5))])
def test_gradients_are_autograds(model: nn.Module, execution: Execution) -> None:
    flat = Flat(model.double())
    theta = torch.randn(3, flat.d, dtype=torch.float64) / 4
    x, y = torch.randn(3, 7, 3, 8, 8, dtype=torch.float64), torch.randint(4, (3, 7))
    g, loss = loss_and_grad(flat, CROSS_ENTROPY, execution)(theta, x, y)
    for i in range(3):
        module = flat.to_module(theta[i])
        expected = CROSS_ENTROPY(module(x[i]), y[i])
        gradients = torch.autograd.grad(expected, list(module.parameters()))
        assert loss[i] == pytest.approx(float(expected.detach()), rel=1e-12)
        assert torch.allclose(g[i], torch.cat([p.flatten() for p in gradients]), rtol=1e-10, atol=1e-14)
    assert torch.allclose(flat.forward(theta, x, execution)[1], flat.to_module(theta[1])(x[1]), rtol=1e-12, atol=1e-14)


def test_a_parameter_that_the_loss_ignores_has_gradient_zero() -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.spare = nn.Parameter(torch.ones(4))

    for execution in ("batched", "loop"):
        gradient = loss_and_grad(Flat(Spare()), CROSS_ENTROPY, execution)
        g, _ = gradient(torch.zeros(2, 13), torch.ones(2, 5, 2), torch.zeros(2, 5, dtype=torch.int64))
        assert g.abs().sum() > 0 and (Flat(Spare()).views(g)["spare"] == 0).all()


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
    assert torch.equal(flat.forward(torch.zeros(2, 6), torch.ones(2, 1, 2))[0, 0], 2 * module.bias)


def test_batch_norm_is_refused_and_group_norm_named() -> None:
    with pytest.raises(InputError, match=r"'1' \(BatchNorm1d\).*GroupNorm"):
        Flat(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))).check(torch.randn(4, 2))
    Flat(nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4))).check(torch.randn(4, 2))


def test_other_models_that_can_not_be_trained_are_refused() -> None:
    with pytest.raises(InputError, match=r"'1' \(Dropout\) is random"):
        Flat(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))).check(torch.randn(4, 2))
    with pytest.raises(InputError, match=r"does not take the data \(one sample is \(5,\)\)"):
        Flat(nn.Linear(2, 3)).check(torch.randn(4, 5))
    with pytest.raises(InputError, match="no parameter to train"):
        Flat(nn.ReLU())
    with pytest.raises(InputError, match=r"one float type: 0.weight is torch.float32, 1.weight is torch.float64"):
        Flat(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2).double()))


def test_execution_is_chosen_by_what_works() -> None:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) >= 0 else super().forward(-x)  # vmap can't look at values

    assert choose_execution(Flat(Branching(2, 3)), torch.ones(2, 4, 2)) == "loop"
    assert choose_execution(Flat(models.cnn((1, 8, 8), 2)), torch.ones(2, 4, 1, 8, 8)) == "loop"
    assert choose_execution(Flat(models.mlp((1, 8, 8), 2)), torch.ones(2, 4, 1, 8, 8)) == "batched"
