"""The models have the paper's sizes, and refuse wrong shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drdsgd import models
from drdsgd.errors import InputError


def test_sizes_and_outputs() -> None:
    assert sum(p.numel() for p in models.mlp((1, 28, 28), 10).parameters()) == 785 * 128 + 129 * 64 + 65 * 10
    cnn = models.cnn((3, 32, 32), 10)
    convolutions = 28 * 32 + (32 * 9 + 1) * 64 + (64 * 9 + 1) * 64
    assert sum(p.numel() for p in cnn.parameters()) == convolutions + 1025 * 500 + 501 * 500 + 501 * 10
    assert cnn(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert models.logistic((20,), 7)(torch.zeros(3, 20)).shape == (3, 7)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="at least 8 x 8"):
        models.cnn((1, 4, 4), 10)
    with pytest.raises(InputError, match="needs images"):
        models.cnn((20,), 10)
    with pytest.raises(InputError, match="at least 1 neuron"):
        models.mlp((4,), 2, [3, 0])


@pytest.mark.parametrize("side", [2, 3, 8, 9])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_pooling_is_torchs_with_and_without_gradients(side: int, memory_format: torch.memory_format) -> None:
    x = torch.randn(4, 3, side, side + 1).contiguous(memory_format=memory_format)
    x[0, 0, 0, 0] = float("nan")
    expected = nn.MaxPool2d(2)(x)
    with torch.no_grad():
        found = models.MaxPool2d(2)(x)
    for one in (found, models.MaxPool2d(2)(x)):
        assert torch.equal(one.nan_to_num(9), expected.nan_to_num(9))
    assert found.is_contiguous(memory_format=memory_format)
