"""A problem whose constants are known, for the paper's theory.

Device i's loss is a wave with two equally likely samples, xi = +1 and -1:

    l(theta, xi) = c_i (1 + sin(a_i . theta + b_i + s xi))          f_i = c_i (1 + cos(s) sin(a_i . theta + b_i))

It is smooth, not convex, and bounded for every sample. Assumptions 2 and 4 ask for bounds only on average, but the
proofs need them for every sample (docs/deviations.md). Let c and |a| be the largest of each. Every constant follows
from sin, cos <= 1 and sin(x +- s) = sin x cos s +- cos x sin s:

    0 <= l <= M = 2 c,  |grad l| <= G_1 = c |a|,  |grad l(x) - grad l(y)| <= L_1 |x - y| with L_1 = c |a|^2
    sigma_1 = c |sin s|,  sigma_2 = c |a| |sin s|
    G_2 = L_2 = exp(M / mu), as exp(l / mu) and its slope in l / mu are at most that;  sigma_3 = L_2 sigma_1 / mu
    Hessian of F = 1/K sum_i w_i a_i a_i^T,  |w_i| <= exp(f_i / mu) (c_i cos(s) / mu + (c_i cos(s) / mu)^2),  hence L_F

Theorem 1 allows any valid constants. These are smaller than the formulas in the proof of Lemma 2, which makes the test
stricter. Even so, the bounds lie far above the measurements on the waves: Theorem 1's by a factor of 2 to 3000, Lemma
3's by 4 to 10 000. They add up norms where gradients cancel, and G >= 1 stands for gradients of a third of that.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from drdsgd.core.gradients import Backward
from drdsgd.data.devices import Devices, Samples

__all__ = ["Constants", "Problem", "camps", "constants", "minimiser", "waves"]


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
        """The devices' data: two samples each, which are phases; a sample's label is its device."""
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
        """`F = 1/K sum_i exp(f_i / mu)` (eq. 8) at theta [m, d], exactly: [m].

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


@functools.cache  # its constants are found only once
def waves(K: int) -> Problem:
    """Five kinds of devices that disagree; each kind is a fifth of the network, with consecutive numbers.

    F is the same function for every K that is a multiple of five, so runs with different K can be compared. Kinds in
    blocks are the hard case for a ring or a grid, which average slowly over distances.

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

    Where the pulls cancel, one camp's loss is convex and the other's concave. A disagreement delta of order eta / mu
    moves the mean gradient by delta / mu, so `||grad F||^2` settles at order eta^2 / mu^4. This is above the printed
    third term of Theorem 1, which is of order eta^2 / mu^6.

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
    """The constants of Assumptions 1 to 4 and Lemma 2; L, G and sigma are the largest of each."""

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
    """The constants of a problem at mu, derived at the top of this module.

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
