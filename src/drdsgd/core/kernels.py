"""Which library computes products of matrices, and how exactly.

`matmul` names the library for float32 products. Torch computes them with MKL, which takes its AVX2 path on AMD's
processors; there oneDNN, which comes with torch as well, uses AVX-512 and is about twice as fast. Torch gives float32
products to oneDNN if these may be rounded to bfloat16. oneDNN does that only on processors with AMX instructions, on
which this module refuses it. So the choice follows from the processor, never from a timing: two runs on one machine
have the same bits. The choice is a field of a run's config, so that all its processes and its continuation have it.

`precision` is what a product rounds its factors to. With bfloat16, models, sums and steps stay float32.

Torch is imported where it is needed: `drdsgd --help` reads the options' defaults, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drdsgd.errors import InputError, named
from drdsgd.options import Rule

if TYPE_CHECKING:
    from drdsgd.options import Matmul, Precision

__all__ = ["check", "error", "fastest_matmul", "features", "onednn", "products"]

# the largest error of a float32 product, relative to the largest entry; rounding to bfloat16 gives about 1e-3
LARGEST_ERROR = 1e-5


@functools.cache
def features() -> frozenset[str]:
    """The processor's maker and instructions, as Linux names them; empty on other systems.

    >>> isinstance(features(), frozenset)
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    fields = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    return frozenset([fields.get("vendor_id", "").strip(), *fields.get("flags", "").split()])


def by_processor(has: frozenset[str]) -> Matmul:
    """The faster library on a processor with these features.

    >>> by_processor(frozenset({"AuthenticAMD", "avx512f"})), by_processor(frozenset({"GenuineIntel", "avx512f"}))
    ('onednn', 'mkl')
    """
    return "onednn" if {"AuthenticAMD", "avx512f"} <= has and not any(one.startswith("amx") for one in has) else "mkl"


@functools.cache
def _fastest() -> Matmul:
    return "onednn" if by_processor(features()) == "onednn" and error() < LARGEST_ERROR else "mkl"


fastest_matmul: Any = Rule("onednn on AMD with AVX-512, else mkl", lambda e: _fastest())


@functools.cache
def error() -> float:
    """The largest error of oneDNN's float32 products on this machine, relative to the largest entry.

    It is infinite if this torch cannot give float32 products to oneDNN.
    """
    import torch

    if not hasattr(torch.backends.mkldnn, "matmul") or not torch.backends.mkldnn.is_available():
        return float("inf")
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for n, m, k in ((87, 128, 784), (32, 64, 128), (25, 500, 25)):
        a, b = (torch.rand(2, *shape, generator=generator) - 0.5 for shape in ((n, k), (k, m)))
        exact = a.double() @ b.double()
        with products("onednn"):
            found = a @ b
        largest = max(largest, float((found - exact).abs().max() / exact.abs().max()))
    return largest


def check(matmul: Matmul, precision: Precision, dtype: str, device: str) -> None:
    """Refuse a library that is not exact here, and rounding of models that are not float32 or not on a CPU."""
    if matmul == "onednn" and error() >= LARGEST_ERROR:
        why = "rounds float32 products" if error() < float("inf") else "cannot be chosen in this torch"
        raise InputError(f"{named('matmul', matmul)}: oneDNN {why} on this machine; use {named('matmul', 'mkl')}")
    if precision == "bfloat16" and (dtype, device) != ("float32", "cpu"):
        raise InputError(
            f"{named('precision', precision)}: it is for float32 models on a CPU, and these are {dtype} on {device}; "
            f"use {named('precision', 'float32')}"
        )


@contextmanager
def products(matmul: Matmul) -> Iterator[None]:
    """Within the block this library computes float32 products; the caller's own setting is restored.

    >>> with products("mkl"):
    ...     onednn()
    False
    """
    import torch

    if not hasattr(torch.backends.mkldnn, "matmul"):  # an older torch: there is MKL only
        yield
        return
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16" if matmul == "onednn" else "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before


def onednn() -> bool:
    """Whether oneDNN computes float32 products now."""
    import torch

    return getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", "") == "bf16"
