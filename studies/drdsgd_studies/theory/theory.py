"""The paper's theory, measured: Lemmas 1 and 2, Theorem 1 and its corollary, on a problem whose constants are known.

Device i's loss is a wave with two equally likely samples, xi = +1 and -1:

    l(theta, xi) = c_i (1 + sin(a_i . theta + b_i + s xi))          f_i = c_i (1 + cos(s) sin(a_i . theta + b_i))

It is smooth, not convex, and bounded for every sample, not only on average as Assumptions 2 and 4 ask: the proofs need
it so (docs/deviations.md). With c, |a| below for the largest, every constant follows from sin, cos <= 1 and
sin(x +- s) = sin x cos s +- cos x sin s:

    0 <= l <= M = 2 c,  |grad l| <= G_1 = c |a|,  |grad l(x) - grad l(y)| <= L_1 |x - y| with L_1 = c |a|^2
    sigma_1 = c |sin s|,  sigma_2 = c |a| |sin s|
    G_2 = L_2 = exp(M / mu), as exp(l / mu) and its slope in l / mu are at most that;  sigma_3 = L_2 sigma_1 / mu
    Hessian of F = 1/K sum_i w_i a_i a_i^T,  |w_i| <= exp(f_i / mu) (c_i cos(s) / mu + (c_i cos(s) / mu)^2),  hence L_F

Theorem 1 allows any valid constants; these are smaller than the formulas in the proof of Lemma 3, so that the test is
the stricter one. All the same on the waves the bounds are above what happens, Theorem 1's by a factor of 2 to 3000 and
Lemma 2's by 4 to 10 000: they add up norms where gradients cancel, and G >= 1 stands for gradients of a third of that.

The runs are the project's own rounds (`round.make_round`) in float64, with its own batches and engine. In sums over
t = 1..T, theta^t is the state after t rounds, as in Lemma 2, whose theta^0 is the common start.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from drdsgd.core.algorithms import dr_dsgd
from drdsgd.core.gradients import Backward
from drdsgd.core.objectives import LocalDevices
from drdsgd.core.parallel import one_thread
from drdsgd.core.round import init, make_round
from drdsgd.data.batches import Batches
from drdsgd.data.devices import Devices, Samples
from drdsgd.engines.local import LocalEngine
from drdsgd.errors import InputError
from drdsgd.report.palette import COLOURS
from drdsgd.report.statistics import Estimate
from drdsgd.topology import graphs
from drdsgd.topology.mixing import constant, metropolis_matrix, rho
from drdsgd.topology.spectrum import graph_factor
from drdsgd_studies.shared import spoilt
from drdsgd_studies.shared.claims import Claim, Finding, Verdict, less

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Constants",
    "Measurement",
    "Problem",
    "Results",
    "Trajectory",
    "camps",
    "claims",
    "constants",
    "corollary",
    "draw",
    "from_json",
    "judge_bound",
    "judge_rate",
    "judge_speed_up",
    "largest_eta",
    "lemma_1",
    "lemma_2",
    "measure",
    "minimiser",
    "rows",
    "run",
    "slopes",
    "speed_up",
    "theorem_1",
    "theorem_1_as_proved",
    "to_json",
    "waves",
]  # fmt: skip

# beyond these, a difference is rounding: of a ratio, and of a squared distance between models
ROUNDING, NOTHING = 1e-9, 1e-24
# a step below the largest one; and that of the two camps, so small that their disagreement grows with it in proportion
BELOW, SMALL = 0.99, 0.3


# ----------------------------------------------------------------- the problem


@dataclass(frozen=True, eq=False)
class Problem:
    """Waves on K devices: directions a [K, d], phases b [K], heights c [K], and the samples' shift s of the phase.

    Every a_i is `scale` times whole numbers, so that F has the period 2 pi / scale in every coordinate.
    """

    name: str
    a: Tensor
    b: Tensor
    c: Tensor
    s: float
    scale: float

    @property
    def K(self) -> int:
        """The number of devices."""
        return len(self.a)

    @property
    def period(self) -> float:
        """The period of F in every coordinate."""
        return 2 * math.pi / self.scale

    def data(self) -> Devices:
        """What the devices hold: two samples each, which are phases; a sample's label is its owner."""
        phases = (self.b[:, None] + self.s * torch.tensor([1.0, -1.0], dtype=torch.float64)).reshape(-1)
        samples = Samples(phases, torch.arange(self.K).repeat_interleave(2), torch.full((self.K,), 2))
        one = torch.ones((), dtype=torch.float64)
        return Devices(samples, samples, self.K, one, 0 * one)

    def forward(self, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
        """Mini-batch losses [n] of models theta [n, d] on phases x [n, B] of the devices y [n, B] (`gradients`)."""
        a, c = self.a[y[:, 0]], self.c[y[:, 0]]
        u = (theta * a).sum(dim=1, keepdim=True) + x
        slope = c * u.cos().mean(dim=1)

        def backward(scale: Tensor, into: Tensor) -> None:
            into.addcmul_(a, (scale * slope)[:, None])

        return c * (1 + u.sin().mean(dim=1)), backward

    def F(self, theta: Tensor, mu: float) -> Tensor:
        """`F = 1/K sum_i exp(f_i / mu)` (eq. 6) at theta [m, d], exactly: [m].

        >>> waves(5).F(torch.zeros(1, 2, dtype=torch.float64), mu=1.0) > 1
        tensor([True])
        """
        return self._parts(theta, mu)[1].mean(dim=1)

    def gradient(self, theta: Tensor, mu: float) -> Tensor:
        """`grad F = 1/(K mu) sum_i exp(f_i / mu) grad f_i` at theta [m, d], exactly: [m, d]."""
        u, h = self._parts(theta, mu)
        return (h * self.c * math.cos(self.s) * u.cos() / mu) @ self.a / self.K

    def hessian(self, theta: Tensor, mu: float) -> Tensor:
        """The second derivatives of F at theta [m, d], exactly: [m, d, d]."""
        u, h = self._parts(theta, mu)
        height = self.c * math.cos(self.s) / mu
        w = h * ((height * u.cos()) ** 2 - height * u.sin())
        return torch.einsum("mk,ki,kj->mij", w, self.a, self.a) / self.K

    def _parts(self, theta: Tensor, mu: float) -> tuple[Tensor, Tensor]:
        """`a_i . theta + b_i` and `exp(f_i(theta) / mu)`, both [m, K]."""
        u = theta @ self.a.T + self.b
        return u, torch.exp(self.c * (1 + math.cos(self.s) * u.sin()) / mu)


@functools.cache  # so that its constants are found once
def waves(K: int) -> Problem:
    """Five kinds of devices that disagree, one fifth of the network each, neighbours in number alike.

    F is the same function for every K that is a multiple of five, so that runs of different K can be compared; kinds
    side by side are the hard case for a ring or a grid, which average over distances slowly.

    >>> waves(10).a[:4].tolist()
    [[2.5, 0.0], [2.5, 0.0], [0.0, 2.5], [0.0, 2.5]]
    """
    scale, kind = 2.5, torch.arange(K) * 5 // K
    directions = torch.tensor([[1, 0], [0, 1], [1, 1], [1, -1], [1, 0]], dtype=torch.float64)[kind]
    phases = torch.tensor([0.0, 0.5, 2.0, -1.0, 1.5], dtype=torch.float64)[kind]
    return Problem("waves", scale * directions, phases, torch.full((K,), 0.1, dtype=torch.float64), 0.5, scale)


@functools.cache
def camps() -> Problem:
    """Two camps of two devices that pull one parameter in opposite directions, without noise (sigma = 0).

    Where the pulls cancel, one camp's loss is convex and the other's concave. So a disagreement delta, which is of
    the order eta / mu, moves the mean gradient by delta / mu, and `||grad F||^2` settles at the order
    eta^2 / mu^4: above the printed third term of Theorem 1, which is of the order eta^2 / mu^6.

    >>> camps().K, camps().s
    (4, 0.0)
    """
    c, r, turn, scale = 0.01, 0.9, math.radians(135), 100.0
    convex, concave = math.asin(r * math.sin(turn)) - math.pi / 2, -turn - math.pi / 2
    b = torch.tensor([convex, convex, concave, concave], dtype=torch.float64)
    heights = torch.tensor([c, c, r * c, r * c], dtype=torch.float64)
    return Problem("two camps", torch.full((4, 1), scale, dtype=torch.float64), b, heights, 0.0, scale)


def minimiser(problem: Problem, mu: float) -> Tensor:
    """A global minimiser of F, [d]: the lowest point of a grid over one period, and Newton's method from there.

    >>> problem = waves(5)
    >>> bool(problem.gradient(minimiser(problem, 1.0)[None], 1.0).abs().max() < 1e-14)
    True
    """
    d = problem.a.shape[1]
    line = torch.arange(200, dtype=torch.float64) * problem.period / 200
    grid = torch.cartesian_prod(*[line] * d).reshape(-1, d)
    theta = grid[problem.F(grid, mu).argmin()][None]
    for _ in range(20):
        theta = theta - torch.linalg.solve(problem.hessian(theta, mu), problem.gradient(theta, mu))
    return theta[0]


@dataclass(frozen=True)
class Constants:
    """What Assumptions 1 to 4 and Lemma 3 call by these names; L, G and sigma are the largest of each."""

    M: float
    G_1: float
    G_2: float
    L_F: float
    L_1: float
    L_2: float
    sigma_1: float
    sigma_2: float
    sigma_3: float
    F_inf: float

    @property
    def L(self) -> float:
        """`L_mu = max{L_F, L_1, L_2}`."""
        return max(self.L_F, self.L_1, self.L_2)

    @property
    def G(self) -> float:
        """`G_mu = max{G_1, G_2}`."""
        return max(self.G_1, self.G_2)

    @property
    def sigma(self) -> float:
        """`sigma_mu = max{sigma_1, sigma_2, sigma_3}`."""
        return max(self.sigma_1, self.sigma_2, self.sigma_3)


@functools.cache
def constants(problem: Problem, mu: float) -> Constants:
    """The constants of a problem at mu, by the derivation at the top of this module.

    >>> k = constants(waves(5), mu=1.0)
    >>> round(k.L, 2), round(k.G, 2), round(k.sigma, 2)
    (1.25, 1.22, 0.17)
    """
    size = problem.a.norm(dim=1)
    M, cos, sin = 2 * float(problem.c.max()), math.cos(problem.s), abs(math.sin(problem.s))
    G_2 = L_2 = math.exp(M / mu)
    height = problem.c * cos / mu
    w = torch.exp(problem.c * (1 + cos) / mu) * (height + height**2)
    L_F = torch.linalg.eigvalsh((w[:, None] * problem.a).T @ problem.a / problem.K).max()
    sigma_1 = float(problem.c.max()) * sin
    return Constants(
        M=M,
        G_1=float((problem.c * size).max()),
        G_2=G_2,
        L_F=float(L_F),
        L_1=float((problem.c * size**2).max()),
        L_2=L_2,
        sigma_1=sigma_1,
        sigma_2=float((problem.c * size).max()) * sin,
        sigma_3=L_2 * sigma_1 / mu,
        F_inf=float(problem.F(minimiser(problem, mu)[None], mu)),
    )


# ------------------------------------------------------------ what the paper says


def largest_eta(L: float, G: float, mu: float, rho: float) -> float:
    """The step below which Theorem 1 holds: `min{mu (1 - sqrt(rho)) / (8 G sqrt(rho)), 1} / L`.

    >>> round(largest_eta(L=2.0, G=1.5, mu=6.0, rho=0.64), 6), largest_eta(L=2.0, G=1.5, mu=6.0, rho=0.0)
    (0.0625, 0.5)
    """
    if not (0 <= rho < 1 and L > 0 and G > 0 and mu > 0):
        raise InputError(f"L, G and mu must be positive and rho in [0, 1): L={L:g}, G={G:g}, mu={mu:g}, rho={rho:g}")
    return min(graph_factor(mu, rho) / G, 1.0) / L


def corollary(L: float, K: int, T: int) -> tuple[float, int]:
    """Corollary 1's step and batch: `eta = 1 / (2 L + sqrt(T / K))`, `B = sqrt(K T)`, rounded.

    >>> corollary(L=2.0, K=4, T=144)
    (0.1, 24)
    """
    return 1 / (2 * L + math.sqrt(T / K)), round(math.sqrt(K * T))


def lemma_1(W: NDArray[np.float64], A: NDArray[np.float64], n: int) -> float:
    """`||A (W^n - J)||_F^2 / (rho^n ||A||_F^2)` for A [d, K], which Lemma 1 says is at most 1.

    >>> W = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> round(lemma_1(W, np.array([[1.0, -1.0]]), 3), 12), round(lemma_1(W, np.array([[1.0, 1.0]]), 3), 12)
    (1.0, 0.0)
    """
    left = np.linalg.norm(A @ (np.linalg.matrix_power(W, n) - 1 / len(W))) ** 2
    return float(left / (rho(W) ** n * np.linalg.norm(A) ** 2))


def lemma_2(k: Constants, mu: float, eta: float, rho: float) -> float:
    """Lemma 2's bound on `1/(K T) sum_t ||theta^t (I - J)||_F^2`; refuses an eta for which it does not hold.

    >>> k = constants(waves(5), mu=1.0)
    >>> round(lemma_2(k, 1.0, eta=0.01, rho=0.25), 6)
    0.000623
    """
    gamma = 16 * eta**2 * rho * k.L**2 * k.G**2 / (mu**2 * _gap(rho) ** 2)
    if not gamma < 1:
        raise InputError(f"Lemma 2 holds for eta below {2 * graph_factor(mu, rho) / (k.G * k.L):g}, got {eta:g}")
    return 2 * eta**2 * rho * k.G**2 * _spread(k) / (mu**2 * (1 - gamma) * _gap(rho) ** 2)


def theorem_1(k: Constants, mu: float, eta: float, B: int, T: int, rho: float, F_1: float) -> float:
    """The right side of Theorem 1 (eq. con_rate) as printed, with F_1 = F(theta_bar^1).

    >>> k = constants(waves(5), mu=1.0)
    >>> round(theorem_1(k, 1.0, eta=0.01, B=100, T=10_000, rho=0.25, F_1=k.F_inf + 0.1), 4)
    0.0106
    """
    third = 16 * rho * eta**2 * k.L**2 * k.G**2 * (k.G**2 + mu**2) * _spread(k) / (3 * mu**8 * _gap(rho) ** 2)
    return 2 * (F_1 - k.F_inf) / (eta * T) + 2 * _noise(k, mu, B) + third


def theorem_1_as_proved(k: Constants, mu: float, eta: float, B: int, T: int, rho: float, F_1: float) -> float:
    """The right side that the paper's own steps give: second term twice, third 2 G^2 mu^2 times the printed one.

    (main0) times 2 / eta has 4 where (main1) prints 2; and Lemma 2 put into it gives G^4 / mu^6, printed G^2 / mu^8.

    >>> k = constants(waves(5), mu=1.0)
    >>> round(theorem_1_as_proved(k, 1.0, eta=0.01, B=100, T=10_000, rho=0.25, F_1=k.F_inf + 0.1), 4)
    0.0256
    """
    third = 32 * rho * eta**2 * k.L**2 * k.G**4 * (k.G**2 + mu**2) * _spread(k) / (3 * mu**6 * _gap(rho) ** 2)
    return 2 * (F_1 - k.F_inf) / (eta * T) + 4 * _noise(k, mu, B) + third


def _gap(rho: float) -> float:
    return 1 - math.sqrt(rho)


def _noise(k: Constants, mu: float, B: int) -> float:
    return k.G**2 * k.sigma**2 * (k.L**2 + mu**2) / (mu**4 * B)


def _spread(k: Constants) -> float:
    """`8 sigma^2 (L^2 + 1) + G^2`: how far apart devices can pull."""
    return 8 * k.sigma**2 * (k.L**2 + 1) + k.G**2


# ------------------------------------------------------------------------- runs


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
    """A number, the bound that the paper gives for it, and the whole setting; what a setting has not is None.

    rate        1/T sum_t ||grad F(theta_bar^t)||^2 at the corollary's eta and B; its bound is that of Theorem 1,
                where eta is small enough for it
    theorem 1   the same at an eta of Theorem 1; `as_proved` is the bound with the constants that the proof gives
    control     the rate of five devices at the corollary's eta and B for `of_K` devices
    lemma 1     the largest of ||A (W^n - J)||_F^2 / (rho^n ||A||_F^2) over some A and n
    lemma 2     1/(K T) sum_t ||theta^t (I - J)||_F^2
    """

    what: Literal["rate", "control", "theorem 1", "lemma 1", "lemma 2"]
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
        """`measured / bound`, nan without a bound; 0 for what is nothing but rounding."""
        return math.nan if self.bound is None else _ratio(self.measured, self.bound)


def _ratio(measured: float, bound: float) -> float:
    return 0.0 if measured < NOTHING else measured / bound


@dataclass(frozen=True)
class Results:
    """All measurements, in the order in which they were made."""

    measurements: tuple[Measurement, ...]

    def of(self, *what: str) -> list[Measurement]:
        """The measurements of these kinds."""
        return [m for m in self.measurements if m.what in what]


def rows(results: Results) -> list[dict[str, str | float | int]]:
    """The measurements as the rows of a table; what a setting has not is an empty text.

    >>> rows(Results((Measurement("lemma 1", "", 4, None, None, None, None, "ring", None, 0, 0.1, 0.9, 1.0),)))[0]["T"]
    ''
    """
    return [
        {name: "" if value is None else value for name, value in asdict(m).items()} | {"ratio": _blank(m.ratio)}
        for m in results.measurements
    ]


def _blank(value: float) -> str | float:
    return "" if math.isnan(value) else value


def to_json(results: Results) -> dict[str, Any]:
    """As plain values; `from_json` reads them back.

    >>> to_json(Results(()))
    {'measurements': []}
    """
    return {"measurements": [asdict(m) for m in results.measurements]}


def from_json(values: dict[str, Any]) -> Results:
    """Results from plain values.

    >>> from_json({"measurements": []})
    Results(measurements=())
    """
    return spoilt.validated(_adapter(), values)


@functools.cache  # slow to make
def _adapter() -> TypeAdapter[Results]:
    return TypeAdapter(Results)


# -------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class _Case:
    """One thing to measure, before it is; `graph` is a kind, p its probability of a link."""

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
        """About how long it takes, in microseconds."""
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
    """Measure all of it; `watch` sees the part that is done, from 0 to 1. Quick: shorter runs of fewer devices.

    A seed draws the Erdos-Renyi graph, the common start (the same for all K and T) and the mini-batches. The start is
    the steepest of some random points: beside a saddle, a run would measure how long it takes to leave it. The two
    camps have no noise, so one run of them is all.
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
        # the same step on all graphs, so that only rho differs: that of the ring, the slowest of them
        slowest = max(r, rho(metropolis_matrix(graphs.ring(case.K))))
        eta = BELOW * largest_eta(k.L, k.G, case.mu, slowest)
    else:
        eta = SMALL * largest_eta(k.L, k.G, case.mu, r)
    # from the minimiser the camps' first term is zero
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
    apart = Measurement("lemma 2", *setting, float(path.distance.mean()), lemma_2(k, case.mu, eta, r))
    return [Measurement("theorem 1", *setting, squares, printed, proved), apart]


def _start(problem: Problem, seed: int) -> Tensor:
    places = torch.from_numpy(np.random.default_rng(seed).uniform(0, problem.period, (16, problem.a.shape[1])))
    return places[problem.gradient(places, 1.0).norm(dim=1).argmax()]


def _lemma_1_ratios(W: NDArray[np.float64], r: float, seed: int) -> Iterable[float]:
    """Ratios for random A, and for the disagreement that dies out slowest, for which the lemma is an equality."""
    random = np.random.default_rng(seed).standard_normal((20, 3, len(W)))
    eigenvalues, eigenvectors = np.linalg.eigh(W - 1 / len(W))
    slowest = eigenvectors[:, np.abs(eigenvalues).argmax()][None]
    for n in range(31):
        if r**n < 1e-16:  # what is left is rounding
            break
        yield from (lemma_1(W, A, n) for A in (*random, slowest))


# ------------------------------------------------------------------ what is judged


def slopes(results: Results) -> dict[int, Estimate]:
    """For each K the fitted slope of log(mean squared gradient norm) against log T, over seeds.

    >>> slopes(Results(()))
    {}
    """
    rate = results.of("rate")
    found: dict[int, Estimate] = {}
    for K in sorted({m.K for m in rate}):
        per_seed = [[m for m in rate if (m.K, m.seed) == (K, seed)] for seed in sorted({m.seed for m in rate})]
        found[K] = Estimate.over([_slope([(_T(m), m.measured) for m in one]) for one in per_seed])
    return found


def speed_up(results: Results) -> tuple[Estimate, list[int]]:
    """The fitted exponent of K at the largest T, over seeds, and its K: those with K^3 <= T.

    There the corollary's first term, 1 / sqrt(K T), is the larger one, and more devices are to help.

    >>> speed_up(Results(()))[1]
    []
    """
    rate = results.of("rate")
    T = max((_T(m) for m in rate), default=0)
    some = [m for m in rate if _T(m) == T and m.K**3 <= T]
    return _exponent([(m.K, m) for m in some]), sorted({m.K for m in some})


def only_the_step(results: Results) -> Estimate:
    """The same exponent for five devices that take the steps and batches of K: what more devices add is the rest."""
    return _exponent([(m.of_K, m) for m in results.of("control") if m.of_K is not None])


def _exponent(points: Sequence[tuple[int, Measurement]]) -> Estimate:
    if len({K for K, _ in points}) < 2:
        return Estimate.over([])
    seeds = sorted({m.seed for _, m in points})
    return Estimate.over([_slope([(K, m.measured) for K, m in points if m.seed == seed]) for seed in seeds])


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x, y = np.log(points).T
    return float(np.polyfit(x, y, 1)[0])


def _T(m: Measurement) -> int:
    assert m.T is not None
    return m.T


def judge_rate(slopes: Mapping[int, Estimate], number: float = -0.5) -> Verdict:
    """Of slopes in T, the worst K decides: not clearly above -1/2, or clearly below zero, or neither.

    >>> judge_rate({5: Estimate(-0.6, 0.02, 5)}), judge_rate({5: Estimate(-0.6, 0.02, 5), 10: Estimate(-0.3, 0.02, 5)})
    ('holds', 'holds in part')
    >>> judge_rate({5: Estimate(0.1, 0.02, 5)}), judge_rate({5: Estimate(-0.6, math.nan, 1)})
    ('does not hold', 'cannot be told')
    """
    if not slopes or any(slope.n < 2 for slope in slopes.values()):
        return "cannot be told"
    if not all(slope.mean < 0 and slope.clear for slope in slopes.values()):
        return "does not hold"
    above = [Estimate(slope.mean - number, slope.error, slope.n) for slope in slopes.values()]
    return "holds in part" if any(one.mean > 0 and one.clear for one in above) else "holds"


def judge_speed_up(exponent: Estimate) -> Verdict:
    """Of the exponent of K, whose number is -1/2: clearly below zero and at least half of it, or just below, or not.

    >>> [judge_speed_up(Estimate(e, 0.01, 5)) for e in (-0.4, -0.1, 0.1)]
    ['holds', 'holds in part', 'does not hold']
    """
    return less(exponent, 0.25)


def judge_bound(ratios: Mapping[str, Sequence[float]]) -> Verdict:
    """Of measured / bound, over seeds for each setting: a bound holds if no setting's mean is above 1.

    >>> judge_bound({"ring": [0.5, 1.1], "grid": [0.1]}), judge_bound({"ring": [0.5], "grid": [1.1]}), judge_bound({})
    ('holds', 'does not hold', 'cannot be told')
    """
    if not ratios:
        return "cannot be told"
    return "holds" if all(math.fsum(r) / len(r) <= 1 + ROUNDING for r in ratios.values()) else "does not hold"


def claims(results: Results) -> list[Claim]:
    """What the paper's theory says, and what came of it.

    >>> [claim.findings["measured"].verdict for claim in claims(Results(()))][:2]
    ['cannot be told', 'cannot be told']
    """
    slope, (exponent, Ks) = slopes(results), speed_up(results)
    theorem = [m for m in results.of("rate", "theorem 1") if m.bound is not None]
    bound_rule = (
        "measured / bound, its mean over seeds in every setting: holds if none is above 1, does not hold if one is "
        f"(by more than {ROUNDING:.0e}, which is rounding). "
        "The constants in the bound are those that the module derives for the problem."
    )
    return [
        Claim(
            "Corollary 1: the mean squared gradient norm of F at the average model falls as 1/sqrt(KT) + K/T.",
            "slope in T between -1/2 and -1",
            "slope of log(1/T sum ||grad F||^2) against log T for each K, over seeds: holds if for every K it is "
            "clearly below zero and not clearly above -1/2 (95 % intervals), in part if it is clearly below zero for "
            "every K, else not.",
            {"measured": Finding(_list(f"{_three(e)} (K = {K})" for K, e in slope.items()), judge_rate(slope))},
        ),
        Claim(
            "Corollary 1: with its eta and B, more devices are faster, as 1/sqrt(K), where T is large.",
            "exponent of K: -1/2",
            "slope of the same against log K at the largest T, over the K with K^3 <= T, where 1/sqrt(KT) is the "
            "larger term: holds if its 95 % interval is below zero and it is at most -1/4, in part if it is not, does "
            "not hold if the interval is above -1/4, else it cannot be told.",
            {"measured": Finding(_speed_words(exponent, Ks, only_the_step(results)), judge_speed_up(exponent))},
        ),
        _bound_claim(
            "Lemma 1: ||A (W^n - J)||_F^2 is at most rho^n ||A||_F^2.", bound_rule, results.of("lemma 1"), False
        ),
        _bound_claim("Lemma 2: a bound on the distance between the models.", bound_rule, results.of("lemma 2"), False),
        _bound_claim("Theorem 1, with the constants as printed.", bound_rule, theorem, False),
        _bound_claim("Theorem 1, with the constants that its proof gives.", bound_rule, theorem, True),
    ]


def _bound_claim(text: str, rule: str, some: Sequence[Measurement], as_proved: bool) -> Claim:
    ratios: dict[str, list[float]] = {}
    for m in some:
        bound = m.as_proved if as_proved else m.bound
        assert bound is not None
        ratios.setdefault(_setting(m), []).append(_ratio(m.measured, bound))
    means = {name: math.fsum(r) / len(r) for name, r in ratios.items()}
    above = {name: mean for name, mean in means.items() if mean > 1 + ROUNDING}
    shown = above or dict(sorted(means.items(), key=lambda item: -item[1])[:1])
    ours = f"{len(means) - len(above)} of {len(means)} settings within the bound; {'above it' if above else 'highest'} "
    ours = ours + _list(f"{mean:.3g} ({name})" for name, mean in shown.items()) if means else "nothing measured"
    return Claim(text, "measured / bound at most 1", rule, {"measured": Finding(ours, judge_bound(ratios))})


def _setting(m: Measurement) -> str:
    """A setting in words, without the seed, and without eta, which follows from the rest."""
    named = {"K": m.K, "p": m.p, "T": m.T, "B": m.B, "mu": m.mu}
    values = (f"{name} = {value:g}" for name, value in named.items() if value is not None)
    return ", ".join([*([m.problem] if m.problem else []), m.graph, *values])


def _three(estimate: Estimate) -> str:
    """With three decimals: slopes of a smooth problem have small errors."""
    error = f" ± {estimate.error:.3f}" if estimate.n > 1 else ""
    return f"{estimate.mean:.3f}{error}"


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "nothing measured"


def _speed_words(exponent: Estimate, Ks: Sequence[int], step: Estimate) -> str:
    if not exponent.n:
        return "too few K"
    alone = f"; five devices at the same eta and B: {_three(step)}" if step.n else ""
    return f"{_three(exponent)} over K = {_list(map(str, Ks))}{alone}"


# ------------------------------------------------------------------------ picture


SHOWN = (
    "Left: the mean over t = 1..T of the squared gradient norm of F at the average model, against T; bars are one "
    "standard error over seeds. Right: the squared distance of the devices' models theta (a column each) from their "
    "mean, theta J (all entries of J are 1/K), against rho of the graph; marks are single runs, lines the bound of "
    "Lemma 2. The complete graph, where rho = 0, is left out."
)


def draw(results: Results, path: Path) -> Path:
    """Draw the rate against T, and the distance between the models with Lemma 2's bound against rho."""
    from matplotlib.figure import Figure

    from drdsgd.report.plots import save, style

    with style():
        figure = Figure(figsize=(10.5, 4.6), layout="constrained")
        for axes, panel in zip(figure.subplots(1, 2), (_draw_rate, _draw_distance), strict=True):
            panel(axes, results)
            # plain numbers: labels are not read as formulas
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
            axes.yaxis.set_minor_formatter(lambda value, _: "")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=9)
        return save(figure, path)


def _draw_rate(axes: Axes, results: Results) -> None:
    rate = results.of("rate")
    Ts, top = sorted({_T(m) for m in rate}), 0.0
    for colour, (K, slope) in zip(itertools.cycle(COLOURS), slopes(results).items(), strict=False):
        T, values = _by((_T(m), m.measured) for m in rate if m.K == K)
        top = max(top, values[0].mean)
        axes.errorbar(
            T, [v.mean for v in values], [v.error if v.n > 1 else 0.0 for v in values],
            color=colour, marker="o", markersize=4, linewidth=1.9, capsize=3, label=f"K = {K}: slope {_three(slope)}",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", title="Corollary 1: rate", xlabel="rounds T")
    axes.set_ylabel("mean over t of ||grad F||²")
    if Ts:
        ends = np.array([Ts[0], Ts[-1]])
        axes.plot(ends, 1.3 * top * np.sqrt(ends[0] / ends), color="#777777", linestyle=":", label="slope -1/2")
        axes.set_xticks(Ts, [str(T) for T in Ts])
        axes.minorticks_off()


def _draw_distance(axes: Axes, results: Results) -> None:
    some = [m for m in results.of("lemma 2") if m.problem == "waves" and m.rho > ROUNDING]
    looks = ((COLOURS[0], "o", 3.5, 4), (COLOURS[1], "s", 6.5, 3))
    for (colour, mark, size, order), mu in zip(looks, sorted({m.mu for m in some if m.mu is not None}), strict=False):
        # the bound does not depend on B
        rhos, bounds = _by((m.rho, m.bound) for m in some if m.mu == mu and m.bound is not None)
        axes.plot(rhos, [b.mean for b in bounds], color=colour, linewidth=1.9, label=f"bound, mu = {mu:g}")
        # values are almost the same: the small on the large, and around them the open
        for fill, B in zip(("none", "full"), sorted({m.B for m in some if m.B is not None}), strict=False):
            shown = [m for m in some if (m.mu, m.B) == (mu, B)]
            label = f"measured, mu = {mu:g}, B = {B}"
            x, y = [m.rho for m in shown], [m.measured for m in shown]
            axes.plot(
                x, y, color=colour, marker=mark, markersize=size + 4 * (fill == "none"), fillstyle=fill, linestyle="",
                label=label, zorder=order,
            )  # fmt: skip
    axes.margins(x=0.04)  # else the open ones are cut off
    axes.set(yscale="log", title="Lemma 2: distance", xlabel="rho of the graph")
    axes.set_ylabel("mean over t of 1/K ||theta (I - J)||²")


def _by(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[Estimate]]:
    """Points (x, y) as sorted x, and an estimate of y for each."""
    found: dict[float, list[float]] = {}
    for x, y in points:
        found.setdefault(x, []).append(y)
    return sorted(found), [Estimate.over(found[x]) for x in sorted(found)]
