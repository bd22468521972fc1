"""Choices of the distributed engine against their alternatives; medians over turns of two ranks.

    torchrun --standalone --nproc-per-node=2 -m drdsgd_benchmarks.post

Rows go to a rank of the same machine through shared memory, or as messages: the time of an exchange, and of a whole
round of the paper's MLP (K=25, B=87). The product of W with a rank's own rows and the others' is one product, or two of
which the first need not wait for messages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from drdsgd.core.algorithms import dr_dsgd
from drdsgd.core.flat import aligned
from drdsgd.engines import post
from drdsgd.engines.distributed import DistributedMix, World, join
from drdsgd.engines.placement import place
from drdsgd.engines.products import Product, column_blocks, product
from drdsgd.topology import graphs, mixing
from drdsgd.topology.mixing import metropolis
from drdsgd.training.loop import trajectory
from drdsgd_benchmarks.sides import problem

K, D = 100, 109_386
NEVER = 2**62  # more bytes than any exchange: everything goes as messages


def median_ms(world: World, what: Callable[[], object], times: int = 25) -> float:
    """The median time of something that all ranks begin together."""
    found = []
    for _ in range(times):
        world.texts("now")
        begun = time.perf_counter()
        what()
        found.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(found)


def exchange(mix: DistributedMix, rows: Tensor) -> None:
    """One round's messages."""
    with mix._others(rows):
        pass


def one(both: Product, rows: Tensor, foreign: Tensor, target: Tensor) -> None:
    """One product of all rows."""
    for some in column_blocks(rows, len(foreign)):
        target[:, some] = both(torch.cat([rows[:, some], foreign[:, some]]))


def two(own: Product, others: Product, rows: Tensor, foreign: Tensor, target: Tensor) -> None:
    """One of own rows, and then one of others'."""
    for some in column_blocks(rows):
        target[:, some] = own(rows[:, some])
    for some in column_blocks(rows):
        target[:, some] = others(foreign[:, some]).add_(target[:, some])


def rounds(world: World, turns: int = 9) -> float:
    """How many times as long a round takes with messages as with shared memory: the median over pairs of turns."""
    model, data, graph = problem("mlp", K=25)
    placement = place(graph, world.size)
    steps = trajectory(
        model, data.of(placement[world.rank].tolist()), metropolis(graph), dr_dsgd(0.01, 6.0),
        rounds=2**31, batch_size=87, eval_every=2**31, threads=1, ranks=world.hosting(placement),
    )  # fmt: skip
    next(steps)
    ratios, least = [], post.LEAST_BYTES
    for turn in range(turns + 1):
        shared = median_ms(world, lambda: next(steps))
        post.LEAST_BYTES = NEVER
        messages = median_ms(world, lambda: next(steps))
        post.LEAST_BYTES = least
        ratios += [messages / shared] if turn else []  # the first is the warm-up
    return statistics.median(ratios)


def main() -> None:
    """Time them."""
    torch.set_num_threads(1)
    world, cpu = join("gloo", "cpu", 60.0), torch.device("cpu")
    ratio = rounds(world)
    if world.rank == 0:
        print(f"a round takes {ratio:.2f} times as long with messages as with shared memory", flush=True)
    for name, graph in (("torus", graphs.torus(K)), ("erdos-renyi", graphs.erdos_renyi(K, 0.3, seed=0))):
        placement = place(graph, world.size)
        members, mine = world.hosting(placement), placement[world.rank]
        mix = members.engine(mixing.metropolis(graph), torch.float32, cpu, map).mix(0)
        rows, least = aligned(torch.randn(len(mine), D)), post.LEAST_BYTES
        shared = median_ms(world, partial(exchange, mix, rows))
        post.LEAST_BYTES = NEVER
        messages = median_ms(world, partial(exchange, mix, rows))
        post.LEAST_BYTES = least

        here = csr_array(mixing.metropolis_matrix(graph)[mine])
        coming = np.setdiff1d(np.unique(here.indices), mine)
        own, others, both = (
            product(csr_array(here[:, some]), torch.float32, cpu)
            for some in (mine, coming, np.concatenate([mine, coming]))
        )
        foreign, target = torch.randn(len(coming), D), torch.empty_like(rows)
        a = median_ms(world, partial(one, both, rows, foreign, target))
        b = median_ms(world, partial(two, own, others, rows, foreign, target))
        if world.rank == 0:
            print(f"{name}: messages take {messages / shared:.1f} times as long as shared memory ({shared:.1f} ms)")
            print(f"{name}: two products take {b / a:.2f} times as long as one ({a:.1f} ms)", flush=True)
    world.leave()


if __name__ == "__main__":
    main()
