"""The options of an experiment as the command line offers them; nothing heavy is imported."""

from __future__ import annotations

from drdsgd.errors import option as spelling
from drdsgd.experiments import registry
from drdsgd.experiments.registry import OPTIONS, parse

__all__ = ["ALGORITHMS", "DATASETS", "GRAPHS", "OPTIONS", "parse", "spelling"]

ALGORITHMS = (*registry.ALGORITHMS, *registry.SERVERS)
DATASETS = tuple(registry.DATASETS)
GRAPHS = tuple(registry.GRAPHS)
