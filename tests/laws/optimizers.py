"""The table of optimizers for the laws: each with the same method in plain loops, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.core.compression import Compressor, no_compression, quantized, random_k, top_k
from drdsgd.core.optimizers import (
    GossipOptimizer,
    choco,
    compressed,
    d2,
    dsgd,
    exact_diffusion,
    gradient_tracking,
    gt_adam,
    momentum,
    push,
    quasi_global_momentum,
)
from drdsgd.core.schedules import Schedule
from drdsgd.topology.mixing import Mixing
from tests import reference
from tests.reference import Plain
from tests.support.networks import of_every_kind

Make = Callable[[float | Schedule], GossipOptimizer]


class Row(NamedTuple):
    """An optimizer's constructor, the same method in plain loops, and what it promises."""

    make: Make
    plain: Plain
    exact: bool = False
    """With a constant step it reaches the minimiser exactly, even if devices differ; else up to a bias."""
    agrees: bool = True
    """On the complete graph all devices have the same model, so there is no bias."""
    any_time: bool = True
    """W may change from round to round."""
    any_graph: bool = True
    """It works on every undirected graph."""
    linear: bool = True
    """Its steps are linear in the gradients; else their length is fixed, and only a decaying step size converges."""


def compressing(compressor: Compressor, plain: reference.Compress, gamma: float) -> Row:
    return Row(
        lambda eta: choco(eta, compressor, gamma),
        reference.sgd(reference.compressed(plain, gamma)),
        agrees=gamma == 1,
        any_time=compressor.spelled == "none" and gamma == 1,
    )


def drawn(x: Tensor, t: int) -> Tensor:
    """Takes from `random_k` which entries it draws, but not that it keeps exactly these."""
    Q = random_k(0.5, seed=3)
    return x * Q.decode(Q.encode(torch.ones_like(x)[None], t), len(x), t)[0]


OPTIMIZERS: dict[str, Row] = {
    "dsgd": Row(dsgd, reference.sgd(reference.as_they_are)),
    "momentum": Row(lambda eta: momentum(eta, momentum=0.6), reference.momentum(0.6, reference.as_they_are)),
    "quasi-global momentum": Row(
        lambda eta: quasi_global_momentum(eta, momentum=0.6),
        reference.quasi_global_momentum(0.6, reference.as_they_are),
    ),
    "gradient tracking": Row(gradient_tracking, reference.gradient_tracking, exact=True),
    "gt-adam": Row(
        lambda eta: gt_adam(eta, momentum=0.6, second_momentum=0.9),
        reference.gt_adam(0.6, 0.9, reference.as_they_are),
        linear=False,
    ),
    "gt-adam, top k": Row(
        lambda eta: gt_adam(eta, 0.6, 0.9, compressed(top_k(0.5), 0.6)),
        reference.gt_adam(0.6, 0.9, reference.compressed(reference.top_k(2), 0.6)),
        agrees=False,
        any_time=False,
        linear=False,
    ),
    "d2": Row(d2, reference.d2, exact=True, any_time=False, any_graph=False),
    "exact diffusion": Row(exact_diffusion, reference.exact_diffusion, exact=True, any_time=False),
    "choco": compressing(no_compression(), lambda x, t: x, gamma=1.0),
    "choco, top k": compressing(top_k(0.5), reference.top_k(2), gamma=0.6),
    "choco, random k": compressing(random_k(0.5, seed=3), drawn, gamma=0.5),
    "choco, 4 bits": compressing(quantized(4), reference.quantized(4), gamma=0.9),
    "momentum, top k": Row(
        lambda eta: momentum(eta, 0.2, compressed(top_k(0.5), 0.6)),
        reference.momentum(0.2, reference.compressed(reference.top_k(2), 0.6)),
        agrees=False,
        any_time=False,
    ),
    "quasi-global momentum, top k": Row(
        lambda eta: quasi_global_momentum(eta, 0.6, compressed(top_k(0.5), 0.6)),
        reference.quasi_global_momentum(0.6, reference.compressed(reference.top_k(2), 0.6)),
        agrees=False,
        any_time=False,
    ),
    "push": Row(push, reference.push),
}
N, D = 12, 4
GRAPHS = of_every_kind(N, seed=1)


def changing(K: int, seed: int = 0) -> Mixing:
    """A new doubly stochastic W_t in every round: not symmetric, and of a graph that is seldom connected."""

    def at(t: int) -> csr_array:
        rng = np.random.default_rng([seed, t])
        permutations = [np.eye(K)[rng.permutation(K)] for _ in range(2)]
        return csr_array(np.einsum("k,kij->ij", rng.dirichlet(np.ones(3)), [np.eye(K), *permutations]))

    return Mixing(K, at)


def directed(K: int) -> Mixing:
    """Device j sends equal parts to itself, to the next one and, if j is even, to device 0, where more gathers."""
    P = np.eye(K)
    for j in range(K):
        P[(j + 1) % K, j] = 1
        if j % 2 == 0:
            P[0, j] = 1
    P /= P.sum(axis=0)
    return Mixing(K, lambda t: csr_array(P), static=True, balanced=False)
