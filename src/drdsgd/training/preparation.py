"""Before the first round: check that everything fits together, and choose how to compute it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import networkx as nx
import torch
from torch import Tensor, nn

from drdsgd.core import gradients, kernels
from drdsgd.core.composition import Setting
from drdsgd.core.engine import Ranks
from drdsgd.core.flat import Flat
from drdsgd.core.gradients import Loss
from drdsgd.core.kernels import fastest_matmul
from drdsgd.core.method import Method, Play, Site
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.parallel import blocks, each_of, one_thread
from drdsgd.core.round import State
from drdsgd.data.batches import Batches
from drdsgd.data.devices import Devices
from drdsgd.data.pairs import OwnData, from_pairs
from drdsgd.engines.local import SingleProcess
from drdsgd.errors import InputError, named
from drdsgd.options import (
    BatchSize,
    EvalEvery,
    Execution,
    LocalEvery,
    Matmul,
    Precision,
    Reference,
    Rounds,
    Rule,
    Seed,
    Threads,
    evaluations,
    local_evaluations,
    paper_batch,
    parameters,
)
from drdsgd.topology.mixing import Mixing, metropolis
from drdsgd.training import memory
from drdsgd.training.algorithms import algorithm as by_name
from drdsgd.training.metrics import Metric, absolute_error, accuracy
from drdsgd.training.progress import Progress

__all__ = ["Prepared", "Settings", "prepare"]

# how many threads a Python program gets is torch's to say; the command line has all cores
torch_threads: Any = Rule("torch.get_num_threads()", lambda e: torch.get_num_threads())
# models and batches of the devices that are processed together: a thread's part of a last-level cache
BLOCK_BYTES = 16 * 2**20
# Models and batches for which a second thread is worth waking: with less, both wait for Python's lock most of the time.
LEAST_BYTES = 2**19


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train, with the defaults of `drdsgd.train`, which describes each."""

    rounds: Rounds = 300
    batch_size: BatchSize = paper_batch
    seed: Seed = 0
    eval_every: EvalEvery = evaluations
    local_every: LocalEvery = local_evaluations
    reference: Reference | float = "samples"
    loss: Loss | None = None
    metric: Metric | None = None
    execution: Execution = "auto"
    matmul: Matmul = fastest_matmul
    precision: Precision = "float32"
    threads: Threads = torch_threads

    def __post_init__(self) -> None:
        for name, one in parameters(Settings).items():
            value = getattr(self, name)
            if name == "reference" and isinstance(value, Real) and not isinstance(value, bool):
                if not 0 < float(value) < math.inf:
                    raise InputError(f"{named(name, value)}: the mean number of samples per device must be above 0")
            elif not isinstance(value, Rule):
                one.check(name, value)

    def completed(self, K: int, model: str) -> Settings:
        """The settings for K devices and a kind of model, with their rules worked out."""
        known = {"devices": K, "rounds": self.rounds, "model": model}
        rules = {name: value for name, value in vars(self).items() if isinstance(value, Rule)}
        return replace(self, **{name: rule.of(known) for name, rule in rules.items()})


@dataclass(frozen=True)
class Prepared:
    """A run whose parts fit together: the devices of this process, and the algorithm that is started on them."""

    settings: Settings
    algorithm: Method
    mixing: Mixing
    data: Devices
    ranks: Ranks
    metric: Metric
    site: Site
    play: Play

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within the block, torch computes as this run does; the caller's own settings are restored."""
        with one_thread(), kernels.products(self.settings.matmul):
            yield

    def consensus(self, state: State) -> nn.Module:
        """The common model, as a separate module; a collective operation if there are several processes."""
        return self.site.flat.to_module(self.algorithm.consensus(state, self.ranks)).eval()

    def resumed(self, start: Progress) -> Progress:
        """A copy of `start`, from which this run can continue; refuses the state of a different run."""
        state, d = start.state, self.site.flat.d
        if state.theta.shape != (self.data.K, d):
            raise InputError(
                f"the model has {d} parameters on {self.data.K} devices, but the run to continue has "
                f"{list(state.theta.shape)}: the model's code changed; start a new run"
            )
        fresh = self.play.begin(state.theta[:1])
        for kind, now, before in (
            ("objective", fresh.objective, state.objective),
            ("optimizer", fresh.optimizer, state.optimizer),
        ):
            if now.keys() != before.keys():
                raise InputError(
                    f"the run to continue has {', '.join(sorted(before)) or 'nothing'} as its {kind}'s state, which is "
                    f"now {', '.join(sorted(now)) or 'nothing'}: another version started it; start a new run"
                )
        return start._replace(state=state.copy())


def prepare(
    model: nn.Module,
    devices: Devices | Sequence[OwnData],
    graph: nx.Graph | Mixing,
    algorithm: Method | str,
    settings: Settings,
    ranks: Ranks | None = None,
) -> Prepared:
    """A run that is ready to begin; arguments that do not fit together are refused."""
    if isinstance(algorithm, str):
        algorithm = by_name(algorithm)
    if isinstance(algorithm, type) or not isinstance(algorithm, Method):
        raise InputError(
            f"algorithm is {algorithm!r}: give a value such as drdsgd.dr_dsgd(mu=1.0), or a name such as 'dr-dsgd'"
        )
    data = devices if isinstance(devices, Devices) else from_pairs(devices)
    mixing = graph if isinstance(graph, Mixing) else metropolis(graph)
    settings = settings.completed(mixing.K, _kind(model))
    if algorithm.resolve is not None:
        algorithm = algorithm.resolve(Setting(mixing.K, settings.rounds, settings.seed, _kind(model)))
    mixing = algorithm.over(mixing)
    ranks = ranks or SingleProcess(mixing.K)
    if len(ranks.rows) != data.K:
        raise InputError(
            f"the graph has {len(ranks.rows)} nodes but there are data for {data.K} devices: give one entry per node"
        )
    algorithm.check(mixing, ranks.size)
    flat = Flat(model, precision=settings.precision)
    kernels.check(settings.matmul, settings.precision, str(flat.dtype).removeprefix("torch."), flat.device.type)
    data = data.to(flat.device, flat.dtype)
    metric = settings.metric or (accuracy() if data.classes else absolute_error())
    site = _site(flat, data, mixing, ranks, metric, settings)
    play = algorithm.start(site)
    if flat.device.type == "cpu":
        memory.check(play.begin(flat.row()[None]), data.K)
    return Prepared(settings, algorithm, mixing, data, ranks, metric, site, play)


def _kind(model: nn.Module) -> str:
    """`mlp` if all parameters are in linear layers, else `other`; for default values."""
    linear = all(isinstance(layer, nn.Linear) or not [*layer.parameters(recurse=False)] for layer in model.modules())
    return "mlp" if linear else "other"


def _site(flat: Flat, data: Devices, mixing: Mixing, ranks: Ranks, metric: Metric, settings: Settings) -> Site:
    """How this process computes: its threads, its engine, and the fastest kernels for the model and the loss."""
    workers = settings.threads if flat.device.type == "cpu" else 1
    each = each_of(workers)
    engine = ranks.engine(mixing, flat.dtype, flat.device, each)
    loss = settings.loss or (nn.functional.cross_entropy if data.classes else nn.functional.mse_loss)
    batches = Batches(data, settings.batch_size, settings.seed, engine.rows, _features(flat, data))
    x, y = batches(0, slice(0, 2))
    scored = loss is nn.functional.cross_entropy or metric == accuracy()
    outputs = flat.check(x.flatten(0, 1), data.classes if scored else None)
    gradients.check_loss(loss, outputs, y.flatten(0, 1))
    metric.check(outputs, y.flatten(0, 1))
    execution = gradients.choose_execution(flat, loss, x, y) if settings.execution == "auto" else settings.execution
    if execution == "loop":
        flat = Flat(flat.module, gradients.choose_memory_format(flat, x.flatten(0, 1)), settings.precision)
    size = x.element_size() * (flat.d + x[0].numel())  # of a device's model and batch
    most = 1 if execution == "loop" else max(1, BLOCK_BYTES // size)

    def parts_of(n: int) -> list[slice]:
        at_once = workers if execution == "loop" else max(1, min(workers, n * size // LEAST_BYTES))
        in_turn = -(-n // (at_once * most))  # blocks per thread: equally many, so that none waits
        return blocks(n, -(-n // (at_once * in_turn)))

    hosted = LocalDevices(_share(data, ranks, settings.reference).to(flat.dtype), engine.rows, mixing.K)
    forward = gradients.make_forward(flat, loss, execution)
    return Site(hosted, batches, flat, forward, loss, execution, engine, parts_of, each)


def _features(flat: Flat, data: Devices) -> torch.dtype:
    """The type in which the model takes the samples: integers stay integers if it takes them, as an embedding does."""
    plain = data.train.x.dtype == torch.int64 and bool(data.scale == 1) and not data.shift.any()
    taken = gradients.choose_features(flat, data.train.x[:2]) if plain else flat.dtype
    if not taken.is_floating_point:
        for samples in (data.train, data.test):
            gradients.check_numbers(flat, samples.x)
    return taken


def _share(data: Devices, ranks: Ranks, reference: Reference | float) -> Tensor:
    """The reference weights K p_i of this process's devices, [n]."""
    mean = ranks.gather(data.train.sizes).double().mean() if isinstance(reference, str) else reference
    share = data.train.sizes.double() / mean
    return torch.ones_like(share) if reference == "uniform" else share
