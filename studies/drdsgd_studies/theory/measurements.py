"""Measurements of the paper's theory on a problem with known constants.

The runs use the project's own rounds (`round.make_round`), batches and engine, in float64. In sums over t = 1..T,
theta^t is the state after t rounds, as in Lemma 3, whose theta^0 is the common start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drdsgd.core.algorithms import dr_dsgd
from drdsgd.core.numerics import NUMERICS
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.parallel import one_thread
from drdsgd.core.round import init, make_round
from drdsgd.data.batches import Batches
from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.topology import graphs
from drdsgd.topology.mixing import constant, metropolis_matrix, rho
from drdsgd_studies.theory.bounds import corollary, largest_eta, lemma_1, lemma_3, theorem_1, theorem_1_as_proved
from drdsgd_studies.theory.problem import Problem, camps, constants, minimiser, waves

__all__ = ["HERE", "MadeWith", "Measurement", "Results", "Stored", "Trajectory", "measure", "ratio", "rows", "run"]

# a squared distance between models below this is rounding
NOTHING = 1e-24
# eta as a part of the largest allowed one; for the two camps so small that their disagreement is proportional to eta
BELOW, SMALL = 0.99, 0.3
# today's numerics of the parts that the runs use
HERE = {part: NUMERICS.get(part, 1) for part in ("training", "kernel mixing", "objective kl-dro", "optimizer dsgd")}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The mean models theta_bar^t [T, d] and the distances `1/K ||theta^t (I - J)||_F^2` [T], t = 1..T."""

    mean: Tensor
    distance: Tensor


def run(
    problem: Problem, graph: nx.Graph, mu: float, eta: float, B: int, T: int, seed: int, start: Tensor
) -> Trajectory:
    """DR-DSGD for T rounds from a common start [d]: `make_round` on the problem's samples.

    >>> path = run(waves(5), graphs.ring(5), 1.0, 0.1, B=4, T=3, seed=0, start=torch.zeros(2, dtype=torch.float64))
    >>> path.mean.shape, bool((path.distance > 0).all())
    (torch.Size([3, 2]), True)
    """
    algorithm = dr_dsgd(eta, mu)
    engine = LocalEngine(constant(metropolis_matrix(graph)), torch.float64)
    batches = Batches(problem.data(), B, seed, engine.rows, torch.float64)
    round = make_round(algorithm, problem.forward, batches, engine)
    hosted = LocalDevices.all_of(torch.ones(problem.K, dtype=torch.float64))
    state = init(algorithm, start.expand(problem.K, -1).clone(), hosted)
    theta = state.theta.new_empty(T, *state.theta.shape)  # [T, K, d], as rounds work in place
    with one_thread():
        for t in range(T):
            state, _ = round(state)
            theta[t] = state.theta
    mean = theta.mean(dim=1)
    return Trajectory(mean, (theta - mean[:, None]).square().sum(dim=2).mean(dim=1))


@dataclass(frozen=True)
class Measurement:
    """A number, the paper's bound on it, and the whole setting; None where a field does not apply.

    rate        1/T sum_t ||grad F(theta_bar^t)||^2 at the corollary's eta and B; the bound is Theorem 1's, if eta is
                small enough for it
    theorem 1   the same at an eta that Theorem 1 allows; `as_proved` is the bound with the proof's constants
    control     the rate of five devices at the corollary's eta and B for `of_K` devices
    lemma 1     the largest of ||A (W^n - J)||_F^2 / (rho^n ||A||_F^2) over some A and n
    lemma 3     1/(K T) sum_t ||theta^t (I - J)||_F^2
    """

    what: Literal["rate", "control", "theorem 1", "lemma 1", "lemma 3"]
    problem: str
    K: int
    T: int | None
    eta: float | None
    B: int | None
    mu: float | None
    graph: str
    p: float | None
    seed: int
    rho: float
    measured: float
    bound: float | None
    as_proved: float | None = None
    of_K: int | None = None

    @property
    def ratio(self) -> float:
        """`measured / bound`, nan without a bound; 0 where the measurement is only rounding."""
        return math.nan if self.bound is None else ratio(self.measured, self.bound)


def ratio(measured: float, bound: float) -> float:
    """`measured / bound`; 0 where the measurement is only rounding."""
    return 0.0 if measured < NOTHING else measured / bound


@dataclass(frozen=True)
class Results:
    """All measurements, in the order in which they were made."""

    measurements: tuple[Measurement, ...]

    def of(self, *what: str) -> list[Measurement]:
        """The measurements of these kinds."""
        return [m for m in self.measurements if m.what in what]


def rows(results: Results) -> list[dict[str, str | float | int]]:
    """The measurements as the rows of a table; empty where a field does not apply.

    >>> rows(Results((Measurement("lemma 1", "", 4, None, None, None, None, "ring", None, 0, 0.1, 0.9, 1.0),)))[0]["T"]
    ''
    """
    found = ({**asdict(m), "ratio": None if math.isnan(m.ratio) else m.ratio} for m in results.measurements)
    return [{name: "" if value is None else value for name, value in row.items()} for row in found]


@dataclass(frozen=True)
class MadeWith:
    """The head of results.json."""

    versions: dict[str, str]
    numerics: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """The rest of results.json."""

    results: Results


@dataclass(frozen=True)
class _Case:
    """Something to measure; `graph` is a kind of graph, p the probability of a link."""

    kind: Literal["rate", "bounds", "counterexample", "lemma 1"]
    K: int
    T: int
    B: int
    mu: float
    graph: str
    p: float | None
    seed: int
    of_K: int | None = None

    @property
    def work(self) -> float:
        """The approximate duration in microseconds."""
        return 3e4 if self.kind == "lemma 1" else self.T * (300 + 0.06 * self.K * self.B)


_BOUNDS_K = 20
_GRAPHS: tuple[tuple[str, float | None], ...] = (
    ("ring", None),
    ("grid", None),
    ("erdos-renyi", 0.3),
    ("erdos-renyi", 0.6),
    ("complete", None),
)


def _cases(quick: bool, seeds: Sequence[int]) -> list[_Case]:
    Ks, Ts = ((5, 10), [64, 256, 1024]) if quick else ((5, 10, 20, 40), [2**n for n in range(6, 14)])
    T = 64 if quick else 1024
    camps_T, mus = (2000, [9.0, 20.0]) if quick else (16384, [6.0, 9.0, 20.0, 50.0])
    sizes = [round(math.sqrt(_BOUNDS_K * T))] if quick else [1, round(math.sqrt(_BOUNDS_K * T))]
    found = [_Case("lemma 1", K, 0, 0, 0.0, g, p, seed) for seed in seeds for g, p in _GRAPHS for K in (6, 20)]
    found += [_Case("counterexample", 4, camps_T, 1, mu, "ring", None, seeds[0]) for mu in mus]
    found += [
        _Case("bounds", _BOUNDS_K, T, B, mu, graph, p, seed)
        for mu in (1.0, 6.0)
        for B in sizes
        for graph, p in _GRAPHS
        for seed in seeds
    ]
    found += [
        _Case("rate", Ks[0], Ts[-1], round(math.sqrt(K * Ts[-1])), 1.0, "erdos-renyi", 0.5, seed, of_K=K)
        for K in Ks
        if Ts[-1] >= K**3
        for seed in seeds
    ]
    return found + [
        _Case("rate", K, T, round(math.sqrt(K * T)), 1.0, "erdos-renyi", 0.5, seed)
        for K in Ks
        for T in Ts
        for seed in seeds
    ]


def measure(quick: bool, seeds: Sequence[int], watch: Callable[[float], None] = lambda done: None) -> Results:
    """Measure everything; `watch` gets the fraction done. Quick: shorter runs of fewer devices.

    A seed draws the Erdos-Renyi graph, the common start (the same for all K and T) and the mini-batches. The start is
    the steepest of some random points: near a saddle, a run would measure how long it takes to leave it. The two camps
    have no noise, so they need one run only.
    """
    if not seeds:
        raise InputError("seeds is empty: give at least one, and two or more for an error")
    cases = _cases(quick, seeds)
    total, done, found = sum(case.work for case in cases), 0.0, list[Measurement]()
    for case in cases:
        watch(done / total)
        found += _measure(case)
        done += case.work
    watch(1.0)
    return Results(tuple(found))


def _graph(kind: str, K: int, p: float | None, seed: int) -> nx.Graph:
    if kind == "erdos-renyi":
        assert p is not None
        return graphs.erdos_renyi(K, p, seed)
    return {"ring": graphs.ring, "grid": graphs.grid, "complete": graphs.complete}[kind](K)


def _measure(case: _Case) -> list[Measurement]:
    graph = _graph(case.graph, case.K, case.p, case.seed)
    W = metropolis_matrix(graph)
    r = rho(W)
    if case.kind == "lemma 1":
        highest = max(_lemma_1_ratios(W.toarray(), r, case.seed))
        place = (case.graph, case.p, case.seed, r)
        return [Measurement("lemma 1", "", case.K, None, None, None, None, *place, highest, 1.0)]
    problem = camps() if case.kind == "counterexample" else waves(case.K)
    k = constants(problem, case.mu)
    if case.kind == "rate":
        eta, _ = corollary(k.L, case.of_K or case.K, case.T)
    elif case.kind == "bounds":
        # the ring's step on all graphs, so that only rho differs; the ring has the largest rho
        slowest = max(r, rho(metropolis_matrix(graphs.ring(case.K))))
        eta = BELOW * largest_eta(k.L, k.G, case.mu, slowest)
    else:
        eta = SMALL * largest_eta(k.L, k.G, case.mu, r)
    # at the minimiser the first term of the bound is zero
    start = minimiser(problem, case.mu) if case.kind == "counterexample" else _start(problem, case.seed)
    path = run(problem, graph, case.mu, eta, case.B, case.T, case.seed, start)
    squares = float((problem.gradient(path.mean, case.mu) ** 2).sum(dim=1).mean())
    setting = (problem.name, case.K, case.T, eta, case.B, case.mu, case.graph, case.p, case.seed, r)
    F_1 = float(problem.F(path.mean[:1], case.mu))
    allowed = eta < largest_eta(k.L, k.G, case.mu, r)
    right = (k, case.mu, eta, case.B, case.T, r, F_1)
    printed, proved = (theorem_1(*right), theorem_1_as_proved(*right)) if allowed else (None, None)
    if case.of_K is not None:
        return [Measurement("control", *setting, squares, None, of_K=case.of_K)]
    if case.kind == "rate":
        return [Measurement("rate", *setting, squares, printed, proved)]
    apart = Measurement("lemma 3", *setting, float(path.distance.mean()), lemma_3(k, case.mu, eta, r))
    return [Measurement("theorem 1", *setting, squares, printed, proved), apart]


def _start(problem: Problem, seed: int) -> Tensor:
    places = torch.from_numpy(np.random.default_rng(seed).uniform(0, problem.period, (16, problem.a.shape[1])))
    return places[problem.gradient(places, 1.0).norm(dim=1).argmax()]


def _lemma_1_ratios(W: NDArray[np.float64], r: float, seed: int) -> Iterable[float]:
    """Ratios for random A, and for the slowest disagreement, for which the lemma is an equality."""
    random = np.random.default_rng(seed).standard_normal((20, 3, len(W)))
    eigenvalues, eigenvectors = np.linalg.eigh(W - 1 / len(W))
    slowest = eigenvectors[:, np.abs(eigenvalues).argmax()][None]
    for n in range(31):
        if r**n < 1e-16:  # the rest is rounding
            break
        yield from (lemma_1(W, A, n) for A in (*random, slowest))
