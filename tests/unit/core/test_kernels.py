"""Products of matrices: the library follows from the processor, and the caller's own settings are restored."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn

import drdsgd
from drdsgd import models
from drdsgd.core import kernels
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import make_forward
from drdsgd.errors import InputError
from drdsgd.experiments.config import Experiment, recorded

SETTING = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch has it, its types do not


@pytest.mark.parametrize(
    ("features", "library"),
    [
        ({"AuthenticAMD", "avx2", "avx512f"}, "onednn"),
        ({"AuthenticAMD", "avx2"}, "mkl"),
        ({"AuthenticAMD", "avx512f", "amx_tile"}, "mkl"),  # there oneDNN would round to bfloat16
        ({"GenuineIntel", "avx512f"}, "mkl"),
        (set(), "mkl"),
    ],
)
def test_the_library_follows_from_the_processor(features: set[str], library: str) -> None:
    assert kernels.by_processor(frozenset(features)) == library


@pytest.mark.parametrize("before", ["none", "ieee", "bf16"])
@pytest.mark.parametrize("matmul", ["mkl", "onednn"])
def test_the_callers_own_setting_is_restored(matmul: Any, before: str) -> None:
    SETTING.fp32_precision = before
    try:
        with kernels.products(matmul):
            assert kernels.onednn() == (matmul == "onednn")
        assert SETTING.fp32_precision == before
        with pytest.raises(ZeroDivisionError), kernels.products(matmul):
            raise ZeroDivisionError
        assert SETTING.fp32_precision == before
    finally:
        SETTING.fp32_precision = "none"


def trained(model: nn.Module | None = None, rounds: int = 3, **options: Any) -> drdsgd.Result:
    generator = torch.Generator().manual_seed(0)
    devices = [(torch.rand(40, 1, 8, 8, generator=generator), torch.arange(40) % 3) for _ in range(4)]
    torch.manual_seed(0)
    return drdsgd.train(
        model or models.mlp((1, 8, 8), 3, [32, 16]),
        devices,
        nx.cycle_graph(4),
        drdsgd.dsgd(eta=0.1),
        rounds=rounds,
        batch_size=20,
        eval_every=2,
        **options,
    )


def test_training_uses_the_library_and_restores_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    forward = torch.baddbmm

    def noting(*given: Any) -> torch.Tensor:
        seen.append(SETTING.fp32_precision)
        return forward(*given)

    monkeypatch.setattr(torch, "baddbmm", noting)
    for matmul, setting in (("onednn", "bf16"), ("mkl", "ieee")):
        seen.clear()
        trained(matmul=matmul, threads=1)
        # the first are those of the choice of kernels, before the run begins
        assert set(seen[-10:]) == {setting}
        assert SETTING.fp32_precision == "none"


@pytest.mark.skipif(kernels.error() > kernels.LARGEST_ERROR, reason="oneDNN rounds float32 products here")
def test_libraries_agree_up_to_rounding() -> None:
    by_mkl, by_onednn = (trained(matmul=matmul).theta for matmul in ("mkl", "onednn"))
    assert torch.allclose(by_mkl, by_onednn, rtol=0, atol=1e-6)


def test_a_library_that_rounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, why in ((1e-3, "rounds float32 products"), (float("inf"), "cannot be chosen in this torch")):
        monkeypatch.setattr(kernels, "error", lambda error=error: error)
        with pytest.raises(InputError, match=rf"^matmul='onednn': oneDNN {why} on this machine; use matmul='mkl'$"):
            trained(matmul="onednn")
        monkeypatch.setattr(kernels, "features", lambda: frozenset({"AuthenticAMD", "avx512f"}))
        kernels._fastest.cache_clear()
        assert kernels._fastest() == "mkl"
        kernels._fastest.cache_clear()


def test_the_self_test_sees_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of factors in bfloat16 are further off than the bound, those in float32 are not."""
    a, b = torch.rand(87, 784) - 0.5, torch.rand(784, 128) - 0.5
    exact = a.double() @ b.double()
    rounded = a.bfloat16().float() @ b.bfloat16().float()
    for found, fine in ((rounded, False), (a @ b, True)):
        assert (float((found - exact).abs().max() / exact.abs().max()) < kernels.LARGEST_ERROR) is fine


@pytest.mark.parametrize(
    "model", [None, nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
              nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3))],
    ids=["by hand", "loop", "vmap"],
)  # fmt: skip
def test_bfloat16_keeps_models_and_steps_in_float32(model: nn.Module | None) -> None:
    exact, rounded = (trained(model, precision=precision) for precision in ("float32", "bfloat16"))
    assert rounded.theta.dtype == torch.float32
    moved = (exact.theta - trained(model, rounds=1).theta).norm()
    apart = (exact.theta - rounded.theta).norm()
    assert 0 < apart < 0.02 * exact.theta.norm() and apart < 0.2 * moved
    # steps are not rounded: most parameters are no bfloat16 numbers
    assert (rounded.theta.bfloat16().float() != rounded.theta).float().mean() > 0.9
    assert torch.equal(rounded.theta, trained(model, precision="bfloat16").theta)


def test_gradients_of_rounded_products() -> None:
    """Written by hand or by autograd, they are those of float32 up to the rounding of bfloat16."""
    torch.manual_seed(0)
    model, x, y = models.mlp((64,), 5, [32, 16]), torch.rand(2, 20, 64), torch.randint(0, 5, (2, 20))
    theta = Flat(model).row().repeat(2, 1)
    found = {}
    for precision in ("float32", "bfloat16"):
        for loss in (nn.functional.cross_entropy, lambda out, y: nn.functional.cross_entropy(out, y)):
            losses, backward = make_forward(Flat(model, precision=precision), loss)(theta, x, y)
            backward(torch.ones(2), gradient := torch.zeros_like(theta))
            found[precision, loss is nn.functional.cross_entropy] = (losses, gradient)
    exact = found["float32", True][1]
    for losses, gradient in found.values():
        assert losses.dtype == gradient.dtype == torch.float32
        assert torch.allclose(losses, found["float32", True][0], rtol=1e-2)
        assert (gradient - exact).norm() < 0.02 * exact.norm()
    assert not torch.equal(found["bfloat16", True][1], exact)


def test_bfloat16_is_for_float32_models() -> None:
    with pytest.raises(
        InputError, match=r"^precision='bfloat16': it is for float32 models on a CPU, .* float64 on cpu"
    ):
        trained(models.mlp((1, 8, 8), 3, [4]).double(), precision="bfloat16")


def test_a_record_without_the_choice_was_made_with_mkl() -> None:
    e = Experiment(dataset="synthetic", matmul="onednn")
    assert Experiment(dataset="synthetic").matmul == kernels.fastest_matmul.of({})
    assert recorded({"dataset": "synthetic"}).matmul == "mkl"
    assert recorded(e.model_dump()).matmul == "onednn"
