"""The algorithms in plain Python loops, device by device: every engine must give the same models.

First come the paper's two algorithm boxes, on models. They share only the models' forward pass and the batches with the
package: which samples a device sees in a round is part of the problem, not of the algorithm. Gradients come from plain
autograd on one ordinary module per device, mixing weights from the formula in the text, one entry at a time.

Then come the other gossip optimizers, on one vector per device. Each follows its authors' text, not the package's
rearrangement of it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import networkx as nx
import torch
from torch import Tensor, nn

Batch = Callable[[int, int], tuple[Tensor, Tensor]]  # (device, round) -> features [B, ...], labels [B]


def metropolis(graph: nx.Graph) -> list[list[float]]:
    """W_ij = 1 / (1 + max(d_i, d_j)) on edges, W_ii = 1 - sum of the rest, 0 elsewhere."""
    K = graph.number_of_nodes()
    W = [[0.0] * K for _ in range(K)]
    for i in range(K):
        for j in range(K):
            if i != j and graph.has_edge(i, j):
                W[i][j] = 1 / (1 + max(graph.degree(i), graph.degree(j)))
        W[i][i] = 1 - sum(W[i])
    return W


def dsgd(
    model: nn.Module, W: list[list[float]], batch: Batch, eta: Callable[[int], float], T: int, share: list[float]
) -> list[nn.Module]:
    """Algorithm 1. `share` is K n_i / n (all ones if devices have equal numbers of samples)."""
    return _run(model, W, batch, eta, T, lambda losses: share)


def dr_dsgd(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    share: list[float],
    mu: float,
    loss_clip: float = math.inf,
) -> list[nn.Module]:
    """Algorithm 2, with h = exp(loss / mu)."""

    def weights(losses: list[float]) -> list[float]:
        return [share[i] * math.exp(min(loss, loss_clip) / mu) / mu for i, loss in enumerate(losses)]

    return _run(model, W, batch, eta, T, weights)


def normalized_dr_dsgd(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    share: list[float],
    mu: float,
    loss_clip: float = math.inf,
    b: float = 0.3,
) -> list[nn.Module]:
    """Algorithm 2 with weights h_i / m_i, where m is a gossiped moving average of h (not of its logarithm).

    Both h and m are those of the round before, because m travels with the models. The first weights are the shares.
    """
    K = len(W)
    m: list[float] = []
    weight_next = share

    def weights(losses: list[float]) -> list[float]:
        nonlocal m, weight_next
        h = [share[i] * math.exp(min(losses[i], loss_clip) / mu) for i in range(K)]
        sent = [(1 - b) * m[i] + b * h[i] for i in range(K)] if m else h
        m = [sum(W[i][j] * sent[j] for j in range(K)) for i in range(K)]
        weight, weight_next = weight_next, [min(h[i] / m[i], K) for i in range(K)]
        return weight

    return _run(model, W, batch, eta, T, weights)


def _run(
    model: nn.Module,
    W: list[list[float]],
    batch: Batch,
    eta: Callable[[int], float],
    T: int,
    weights: Callable[[list[float]], list[float]],
) -> list[nn.Module]:
    K = len(W)
    devices = [copy.deepcopy(model) for _ in range(K)]
    for t in range(T):
        # line 2: a gradient on a mini-batch
        losses: list[float] = []
        for i in range(K):
            x, y = batch(i, t)
            devices[i].zero_grad()
            loss = nn.functional.cross_entropy(devices[i](x), y)
            loss.backward()
            losses.append(float(loss.detach()))
        # line 3: a half-step
        w = weights(losses)
        halves: list[list[Tensor]] = []
        for i in range(K):
            half = []
            for p in devices[i].parameters():
                assert p.grad is not None
                half.append(p.detach() - eta(t) * w[i] * p.grad)
            halves.append(half)
        # lines 4 and 5: send to the neighbours, and average
        for i in range(K):
            for number, p in enumerate(devices[i].parameters()):
                mixed = torch.zeros_like(p)
                for j in range(K):
                    if W[i][j] != 0:
                        mixed += W[i][j] * halves[j][number]
                with torch.no_grad():
                    p.copy_(mixed)
    return devices


# ------------------------------------------------------------------ optimizers

Vectors = list[Tensor]  # one [d] per device
GradientAt = Callable[[int, Tensor, int], Tensor]  # (device, its model, round) -> [d]
Matrix = Callable[[int], list[list[float]]]  # round -> W
Step = Callable[[int], float]
Plain = Callable[[Vectors, GradientAt, Matrix, Step, int], Vectors]  # the models after T rounds
Compress = Callable[[Tensor, int], Tensor]  # (vector, round) -> vector


def mixed(W: list[list[float]], x: Vectors) -> Vectors:
    """sum_j W_ij x_j for every i."""
    result = []
    for row in W:
        total = torch.zeros_like(x[0])
        for w, xj in zip(row, x, strict=True):
            if w != 0:
                total = total + w * xj
        result.append(total)
    return result


# the initial models -> how to average a round's models: (models, W, round) -> models
Averaging = Callable[[Vectors], Callable[[Vectors, list[list[float]], int], Vectors]]


def as_they_are(start: Vectors) -> Callable[[Vectors, list[list[float]], int], Vectors]:
    return lambda x, W, t: mixed(W, x)


def compressed(Q: Compress, gamma: float) -> Averaging:
    """Algorithm 1 of Koloskova et al. (2020): i keeps a copy of every neighbour's x_hat and adds each message to it."""

    def begin(start: Vectors) -> Callable[[Vectors, list[list[float]], int], Vectors]:
        K = len(start)
        copies = [[start[j] for j in range(K)] for _ in range(K)]  # copies[i][j]: what i knows of j

        def average(half: Vectors, W: list[list[float]], t: int) -> Vectors:
            sent = [Q(half[i] - copies[i][i], t) for i in range(K)]
            x = []
            for i in range(K):
                copies[i] = [copies[i][j] + sent[j] for j in range(K)]
                pull = torch.zeros_like(half[i])
                for j in range(K):
                    pull = pull + W[i][j] * (copies[i][j] - copies[i][i])
                x.append(half[i] + gamma * pull)
            return x

        return average

    return begin


def repeated(averaging: Averaging, n: int) -> Averaging:
    """n times in a round; for random messages, each time counts as a round of its own."""

    def begin(start: Vectors) -> Callable[[Vectors, list[list[float]], int], Vectors]:
        once = averaging(start)

        def average(half: Vectors, W: list[list[float]], t: int) -> Vectors:
            for again in range(n):
                half = once(half, W, t * n + again)
            return half

        return average

    return begin


def sgd(averaging: Averaging) -> Plain:
    """x_i <- sum_j W_ij (x_j - eta g_j), or another average."""

    def run(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
        average = averaging(x)
        for t in range(T):
            x = average([xi - eta(t) * g(i, xi, t) for i, xi in enumerate(x)], W(t), t)
        return x

    return run


def momentum(beta: float, averaging: Averaging) -> Plain:
    """m_i <- beta m_i + g_i, x_i <- sum_j W_ij (x_j - eta m_j)."""

    def run(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
        average, m = averaging(x), [torch.zeros_like(xi) for xi in x]
        for t in range(T):
            m = [beta * m[i] + g(i, x[i], t) for i in range(len(x))]
            x = average([x[i] - eta(t) * m[i] for i in range(len(x))], W(t), t)
        return x

    return run


def quasi_global_momentum(beta: float, averaging: Averaging) -> Plain:
    """Algorithm 1 of Lin et al.: m = beta m_hat + g; x moves by it and gossips; d = (x_before - x_after) / eta."""

    def run(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
        average, m_hat = averaging(x), [torch.zeros_like(xi) for xi in x]
        for t in range(T):
            m = [beta * m_hat[i] + g(i, x[i], t) for i in range(len(x))]
            after = average([x[i] - eta(t) * m[i] for i in range(len(x))], W(t), t)
            m_hat = [beta * m_hat[i] + (1 - beta) * (x[i] - after[i]) / eta(t) for i in range(len(x))]
            x = after
        return x

    return run


def gradient_tracking(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
    """y^0 = g^0; x^{t+1} = W^t (x^t - eta y^t), y^{t+1} = W^t y^t + g^{t+1} - g^t."""
    last = [g(i, xi, 0) for i, xi in enumerate(x)]
    y = last
    for t in range(T):
        x = mixed(W(t), [x[i] - eta(t) * y[i] for i in range(len(x))])
        new = [g(i, xi, t + 1) for i, xi in enumerate(x)]
        through = mixed(W(t), y)
        y = [through[i] + new[i] - last[i] for i in range(len(x))]
        last = new
    return x


def gt_adam(beta: float, beta2: float, averaging: Averaging) -> Plain:
    """Algorithm 1 of Carnevale et al., with Adam's corrections, and with every new value averaged at once."""

    def run(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
        zeros = [torch.zeros_like(xi) for xi in x]
        last = y = m = v = zeros
        average_y, average_x = averaging(zeros), averaging(x)
        for t in range(T):
            new = [g(i, xi, t) for i, xi in enumerate(x)]
            y = average_y([y[i] + new[i] - last[i] for i in range(len(x))], W(t), t)
            last = new
            m = [beta * m[i] + (1 - beta) * y[i] for i in range(len(x))]
            v = [beta2 * v[i] + (1 - beta2) * y[i] ** 2 for i in range(len(x))]
            c, c2 = 1 - beta ** (t + 1), 1 - beta2 ** (t + 1)
            moved = [x[i] - eta(t) * (m[i] / c) / ((v[i] / c2) ** 0.5 + 1e-8) for i in range(len(x))]
            x = average_x(moved, W(t), t)
        return x

    return run


def d2(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
    """Algorithm 1 of Tang et al.: x^{t+1} = W (2 x^t - x^{t-1} - eta_t g^t + eta_{t-1} g^{t-1}), after a DSGD step."""
    before, gradients_before = x, [g(i, xi, 0) for i, xi in enumerate(x)]
    x = mixed(W(0), [xi - eta(0) * gi for xi, gi in zip(x, gradients_before, strict=True)])
    for t in range(1, T):
        gradients = [g(i, xi, t) for i, xi in enumerate(x)]
        half = [2 * x[i] - before[i] - eta(t) * gradients[i] + eta(t - 1) * gradients_before[i] for i in range(len(x))]
        before, gradients_before = x, gradients
        x = mixed(W(t), half)
    return x


def exact_diffusion(x: Vectors, g: GradientAt, W: Matrix, eta: Step, T: int) -> Vectors:
    """Adapt, correct, combine (Yuan et al., Algorithm 1), with (I + W) / 2 and psi = x at the start."""
    psi = x
    for t in range(T):
        adapted = [xi - eta(t) * g(i, xi, t) for i, xi in enumerate(x)]
        corrected = [adapted[i] + x[i] - psi[i] for i in range(len(x))]
        psi = adapted
        x = [(own + others) / 2 for own, others in zip(corrected, mixed(W(t), corrected), strict=True)]
    return x


def push(z: Vectors, g: GradientAt, P: Matrix, eta: Step, T: int) -> Vectors:
    """Algorithm 1 of Assran et al.: a step along the gradient at z = x / w, then x and w gossip."""
    x, w = z, [torch.ones(1, dtype=zi.dtype) for zi in z]
    for t in range(T):
        x = mixed(P(t), [x[i] - eta(t) * g(i, z[i], t) for i in range(len(x))])
        w = mixed(P(t), w)
        z = [x[i] / w[i] for i in range(len(x))]
    return z


def top_k(k: int) -> Compress:
    """The k entries with the largest absolute values."""

    def compress(x: Tensor, t: int) -> Tensor:
        values = x.tolist()
        kept = sorted(range(len(values)), key=lambda j: -abs(values[j]))[:k]
        return torch.tensor([v if j in kept else 0.0 for j, v in enumerate(values)], dtype=x.dtype)

    return compress


def quantized(bits: int) -> Compress:
    """Every entry rounded to one of 2^bits - 1 levels, from minus to plus the largest of its block of 32."""
    levels = 2 ** (bits - 1) - 1

    def compress(x: Tensor, t: int) -> Tensor:
        values, result = x.tolist(), []
        for start in range(0, len(values), 32):
            block = values[start : start + 32]
            scale = max(abs(v) for v in block)
            result += [scale * round(v / scale * levels) / levels if scale else 0.0 for v in block]
        return torch.tensor(result, dtype=x.dtype)

    return compress
