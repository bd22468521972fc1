"""Choices of the distributed engine, against what they were chosen over; medians of what two ranks need.

    torchrun --standalone --nproc-per-node=2 -m drdsgd_benchmarks.post

Rows go to a rank of the same machine through memory that both see, or as messages; and the product of W with a rank's
own rows and the others' is one, or two of which the first need not wait for messages.
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

from drdsgd.core.flat import aligned
from drdsgd.engines import post
from drdsgd.engines.distributed import DistributedMix, World, join
from drdsgd.engines.placement import place
from drdsgd.engines.products import Product, column_blocks, product
from drdsgd.topology import graphs, mixing

K, D = 100, 109_386


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


def main() -> None:
    """Time them."""
    torch.set_num_threads(1)
    world, cpu = join("gloo", "cpu", 60.0), torch.device("cpu")
    for name, graph in (("torus", graphs.torus(K)), ("erdos-renyi", graphs.erdos_renyi(K, 0.3, seed=0))):
        placement = place(graph, world.size)
        members, mine = world.hosting(placement), placement[world.rank]
        mix = members.engine(mixing.metropolis(graph), torch.float32, cpu, map).mix(0)
        rows, least = aligned(torch.randn(len(mine), D)), post.LEAST_BYTES
        shared = median_ms(world, partial(exchange, mix, rows))
        post.LEAST_BYTES = 2**62
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
