"""All three implementations give autograd's gradient, device by device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import drdsgd
from drdsgd import data, models
from drdsgd.core.flat import Flat, aligned
from drdsgd.core.gradients import (
    Execution,
    Gradient,
    Loss,
    choose_execution,
    choose_memory_format,
    make_forward,
    predict,
)
from drdsgd.topology import graphs

CROSS_ENTROPY = nn.functional.cross_entropy


def smoothed(output: Tensor, y: Tensor) -> Tensor:
    return CROSS_ENTROPY(output, y, label_smoothing=0.1)


class Tied(nn.Module):
    """One linear layer used twice: not a plain sequence, so without a gradient by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x.flatten(1)[:, :5])))))
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp((3, 8, 8), 4, [6, 5]),
    "logistic": lambda: models.logistic((3, 8, 8), 4),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 6, bias=False), nn.ReLU(), nn.Linear(6, 4)),
    "linear after linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(192, 6), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4)
    ),
    "cnn": lambda: models.cnn((3, 8, 8), 4, (2, 3, 2), (5, 5)),
    "tied": Tied,
    "frozen": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 4)),
    "relu at the end": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU()),
}


@pytest.mark.parametrize("loss", [CROSS_ENTROPY, smoothed])
@pytest.mark.parametrize("execution", ["batched", "loop"])
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_autograds(kind: str, execution: Execution, loss: Loss) -> None:
    torch.manual_seed(0)
    flat = Flat(MODELS[kind]().double())
    theta = torch.randn(3, flat.d, dtype=torch.float64) / 4
    x, y = torch.randn(3, 7, 3, 8, 8, dtype=torch.float64), torch.randint(4, (3, 7))
    losses, backward = make_forward(flat, loss, execution)(theta, x, y)
    scale, g = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.ones_like(theta)
    backward(scale, g)
    for i in range(3):
        module = flat.to_module(theta[i])
        expected = loss(module(x[i]), y[i])
        parameters = [p for p in module.parameters() if p.requires_grad]
        gradient = torch.cat([p.flatten() for p in torch.autograd.grad(expected, parameters)])
        assert losses[i] == pytest.approx(float(expected.detach()), rel=1e-12)
        assert torch.allclose(g[i], 1 + scale[i] * gradient, rtol=1e-10, atol=1e-14)
    assert torch.allclose(predict(flat, theta, x, execution)[1], flat.to_module(theta[1])(x[1]), rtol=1e-12, atol=1e-14)
    assert not losses.requires_grad


@pytest.mark.parametrize("execution", ["batched", "loop"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_step_in_place_is_the_step(kind: str, execution: Execution) -> None:
    """Gradients may be added to theta itself: they are those at theta before the step."""
    torch.manual_seed(0)
    flat = Flat(MODELS[kind]().double())
    theta = torch.randn(3, flat.d, dtype=torch.float64) / 4
    x, y = torch.randn(3, 7, 3, 8, 8, dtype=torch.float64), torch.randint(4, (3, 7))
    weight = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    forward = make_forward(flat, CROSS_ENTROPY, execution)
    Gradient(weight, forward(theta, x, y)[1], theta).add_to(g := torch.zeros_like(theta), 1.0)
    moved = theta.clone()
    Gradient(weight, forward(moved, x, y)[1], moved).add_to(moved, -0.1)
    assert torch.allclose(moved, theta - 0.1 * g, rtol=1e-12, atol=1e-14)
    assert torch.equal(moved[2], theta[2])


@pytest.mark.parametrize("factor", [-0.1, torch.tensor([-0.1, 0.3, -2.0], dtype=torch.float64)], ids=["one", "each"])
@pytest.mark.parametrize("execution", ["batched", "loop"])
@pytest.mark.parametrize("kind", ["mlp", "tied"])
def test_weight_decay_is_added(kind: str, execution: Execution, factor: float | Tensor) -> None:
    """tensor_i += factor_i (weight_i g_i + decay theta_i), if the tensor is theta itself and if it is not."""
    torch.manual_seed(0)
    flat, decay = Flat(MODELS[kind]().double()), 0.7
    theta = torch.randn(3, flat.d, dtype=torch.float64) / 4
    x, y = torch.randn(3, 7, 3, 8, 8, dtype=torch.float64), torch.randint(4, (3, 7))
    weight = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    forward = make_forward(flat, CROSS_ENTROPY, execution)
    forward(theta, x, y)[1](torch.ones(3, dtype=torch.float64), g := torch.zeros_like(theta))
    each = torch.as_tensor(factor, dtype=torch.float64).expand(3)[:, None]
    change = each * (weight[:, None] * g + decay * theta)
    before = theta.clone()

    other = torch.randn_like(theta)
    expected = other + change
    Gradient(weight, forward(theta, x, y)[1], theta, decay).add_to(other, factor)
    assert torch.allclose(other, expected, rtol=1e-12, atol=1e-14) and torch.equal(theta, before)

    Gradient(weight, forward(theta, x, y)[1], theta, decay).add_to(theta, factor)
    assert torch.allclose(theta, before + change, rtol=1e-12, atol=1e-14)
    assert float((theta - before - each * weight[:, None] * g).norm()) > 0.1  # so this test could fail


def test_a_parameter_that_the_loss_ignores_has_gradient_zero() -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.spare = nn.Parameter(torch.ones(4))

    for execution in ("batched", "loop"):
        forward = make_forward(Flat(Spare()), CROSS_ENTROPY, execution)
        _, backward = forward(torch.zeros(2, 13), torch.ones(2, 5, 2), torch.zeros(2, 5, dtype=torch.int64))
        backward(torch.ones(2), g := torch.zeros(2, 13))
        assert g.abs().sum() > 0 and (Flat(Spare()).views(g)["spare"] == 0).all()


def test_execution_is_chosen_by_what_works() -> None:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) >= 0 else super().forward(-x)  # vmap cannot branch on values

    y, images = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4, 1, 8, 8)
    assert choose_execution(Flat(Branching(2, 3)), CROSS_ENTROPY, torch.ones(2, 4, 2), y) == "loop"
    assert choose_execution(Flat(models.cnn((1, 8, 8), 2)), CROSS_ENTROPY, images, y) == "loop"
    assert choose_execution(Flat(models.mlp((1, 8, 8), 2)), CROSS_ENTROPY, images, y) == "batched"


class Viewing(nn.Module):
    """Convolutions as often written: `view` fails unless images are contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.convolution(x).relu().view(len(x), -1))
        return out


def test_the_memory_format_is_one_that_the_model_accepts() -> None:
    x, y = torch.randn(3, 4, 3, 6, 6), torch.randint(5, (3, 4))
    reading = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    assert choose_memory_format(Flat(Viewing()), x[0]) == torch.contiguous_format
    assert choose_memory_format(Flat(nn.Linear(6, 5)), x[0]) == torch.contiguous_format
    assert choose_memory_format(Flat(reading), x[0]) == torch.channels_last
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        flat = Flat(reading.double(), memory_format)
        theta = aligned(flat.row().repeat(3, 1))
        losses, backward = make_forward(flat, nn.functional.cross_entropy, "loop")(theta, x.double(), y)
        backward(torch.ones(3, dtype=torch.float64), theta)
        results.append((losses, theta, predict(flat, theta, x.double(), "loop")))
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", [Viewing(), models.cnn((3, 8, 8), 5)], ids=["view", "flatten"])
def test_convolutions_are_trained_however_they_are_written(model: nn.Module) -> None:
    side = 6 if isinstance(model, Viewing) else 8
    pairs = [(torch.randn(9, 3, side, side), torch.randint(5, (9,))) for _ in range(3)]
    devices = data.from_pairs(pairs, classes=5)
    final = drdsgd.train(model, devices, graphs.ring(3), drdsgd.dsgd(0.1), rounds=2, batch_size=4, threads=1).final
    assert final.round == 2
