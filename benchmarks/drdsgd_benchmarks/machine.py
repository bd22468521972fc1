"""The machine that something was measured on: results of one are not compared with results of another."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drdsgd import __version__
from drdsgd.experiments.config import default_threads

__all__ = ["FEATURES", "caption", "features", "machine"]

# what torch's libraries choose their kernels by
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


def machine() -> dict[str, Any]:
    """Cores, processor, its features, and the versions of what computes."""
    import torch

    return {
        "cores": default_threads(),
        "processor": _processor(),
        "features": features(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "drdsgd": __version__,
    }


def caption(machine: Mapping[str, Any]) -> str:
    """The machine in words.

    >>> caption({"cores": 2, "processor": "AMD EPYC", "features": ["avx2"], "torch": "2.13.0+cpu"})
    '2 cores of an AMD EPYC (avx2), torch 2.13.0+cpu'
    >>> caption({"cores": 1, "processor": "x86_64", "torch": "2.13.0"})  # older files name no features
    '1 core of x86_64, torch 2.13.0'
    """
    name = machine["processor"]
    article = "" if name.islower() else "an " if name[:1] in "AEIO" else "a "
    known = f" ({', '.join(machine['features'])})" if machine.get("features") else ""
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    return f"{cores} of {article}{name}{known}, torch {machine['torch']}"


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Those of `FEATURES` that the processor has; none where the system does not say."""
    flags = _line(cpuinfo, "flags").split()
    return [name for name in FEATURES if name in flags]


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture where the system does not say."""
    return _line(cpuinfo, "model name") or platform.machine()


def _line(cpuinfo: Path, name: str) -> str:
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
