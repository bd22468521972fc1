"""The paper's models: an MLP for Fashion-MNIST, a CNN for CIFAR-10, and logistic regression.

Each is a plain `nn.Module` that takes features [m, *shape] and gives class scores [m, classes].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from drdsgd.errors import InputError

__all__ = ["cnn", "logistic", "mlp"]


class MaxPool2d(nn.MaxPool2d):
    """2x2 max-pooling; without gradients it need not note where the largest number is, and is faster.

    >>> with torch.no_grad():
    ...     MaxPool2d(2)(torch.arange(12.0).view(1, 1, 3, 4))
    tensor([[[[5., 7.]]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            pooled: Tensor = super().forward(x)
            return pooled
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (128, 64)) -> nn.Sequential:
    """Fully connected layers with ReLU; the paper's MLP has 128 and 64 neurons.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
    109386
    """
    if any(width < 1 for width in hidden):
        raise InputError(f"the hidden layers of an mlp must have at least 1 neuron: {list(hidden)}")
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(
    shape: Sequence[int],
    classes: int,
    channels: Sequence[int] = (32, 64, 64),
    hidden: Sequence[int] = (500, 500),
) -> nn.Module:
    """Three convolutions (3x3, padding 1, ReLU, 2x2 max-pool), then two layers of 500 neurons.

    The paper states the number of layers and the 500 neurons; channels, kernels and pooling are our choice.

    >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
    824330
    """
    if len(shape) != 3:
        raise InputError(f"a cnn needs images [channels, height, width]: one sample is {tuple(shape)}; use mlp")
    depth, height, width = shape
    layers: list[nn.Module] = []
    for channel in channels:
        # pooling before the ReLU gives the same function with a quarter of the ReLU's work
        layers += [nn.Conv2d(depth, channel, kernel_size=3, padding=1), MaxPool2d(2), nn.ReLU()]
        depth, height, width = channel, height // 2, width // 2
    if height * width == 0:
        side = 2 ** len(channels)
        raise InputError(f"a cnn needs images of at least {side} x {side}: one sample is {tuple(shape)}; use mlp")
    return nn.Sequential(*layers, *mlp((depth, height, width), classes, hidden))


def logistic(shape: Sequence[int], classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer.

    >>> sum(p.numel() for p in logistic((20,), 10).parameters())
    210
    """
    return mlp(shape, classes, hidden=())
