"""Devices spread over several processes (ranks), which exchange rows of x by `torch.distributed`.

A process hosts some devices, which are rows of theta. For its rows of W_t x it needs the rows of x of its devices'
neighbours. A row that lives in another process is received once, however many devices here need it. Every process
computes W_t by itself, and so knows who needs what. In a round only processes that share links exchange messages.
Collective operations (`gather`, `total`, `texts`) are used only for evaluations and checkpoints.

`World` is the connection to the other processes before devices are placed; `Members` adds the placement.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from drdsgd.core.compression import Compressor, Parts
from drdsgd.core.engine import Combine
from drdsgd.core.parallel import Each
from drdsgd.engines import ENVIRONMENT
from drdsgd.engines.post import Post, answering
from drdsgd.engines.products import Prepared, column_blocks, prepare
from drdsgd.errors import Diverged, InputError, named, one_line, unknown
from drdsgd.topology.mixing import Mixing

__all__ = ["DistributedEngine", "DistributedMix", "Members", "World", "join"]


class World:
    """The connection to the other processes, and collective operations."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._store = store

    def speaks(self) -> bool:
        """Whether this process is the first to report an error that ends all; the others then print nothing."""
        try:
            said = self._store.compare_set("drdsgd/said", "", str(self.rank))
        except RuntimeError:  # the store ended with the first process, so the second may report
            return self.rank == 1
        return bool(said == str(self.rank).encode())

    def total(self, x: Tensor) -> Tensor:
        """The sum of x over all processes."""
        sum_ = x.to(self.device, copy=True)
        with answering():
            dist.all_reduce(sum_)
        return sum_.to(x.device)

    def everyones(self, x: Tensor) -> list[Tensor]:
        """x from every process; all have the same shape."""
        x = x.to(self.device).contiguous()
        found = [torch.empty_like(x) for _ in range(self.size)]
        with answering():
            dist.all_gather(found, x)
        return found

    def texts(self, text: str) -> list[str]:
        """The texts of all processes, in the order of their ranks."""
        said = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        length = len(text.encode())
        lengths = [int(n) for n in self.everyones(torch.tensor([length]))]
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        padded[:length] = said[:length]
        return [bytes(one[:n].tolist()).decode() for one, n in zip(self.everyones(padded), lengths, strict=True)]

    def hosting(self, placement: Sequence[NDArray[np.int64]]) -> Members:
        """The processes with the devices that each hosts."""
        return Members(self, placement)

    def leave(self) -> None:
        """End the connection; otherwise its threads would still run while the process exits."""
        dist.destroy_process_group()


def join(backend: str | None, device: str, timeout: float) -> World:
    """Connect to the processes that were started with this one; one that is silent for `timeout` s counts as dead."""
    if missing := [name for name in ENVIRONMENT if name not in os.environ]:
        raise InputError(
            f"{named('engine', 'distributed')}: {', '.join(missing)} not set in the environment: start it with "
            "torchrun --nproc-per-node=2 -m drdsgd train ..."
        )
    cuda = device.startswith("cuda")
    backend = backend or ("nccl" if cuda else "gloo")
    available = {
        "gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available
    }  # fmt: skip
    if backend not in available:
        raise InputError(f"{named('backend', backend)}: {unknown(backend, tuple(available))}")
    if not available[backend]():
        here = [name for name, there in available.items() if there()]
        raise InputError(f"{named('backend', backend)}: this torch was built without it; use {', '.join(here)}")
    if backend == "nccl" and not cuda:
        raise InputError(f"{named('backend', 'nccl')}: it needs GPUs, but {named('device')} is {device}; use gloo")
    if not (math.isfinite(timeout) and timeout > 0):
        given = int(timeout) if timeout.is_integer() else timeout
        raise InputError(f"{named('timeout', given)}: give a positive number of seconds; 300 is usual")
    if cuda:
        _take_gpu(device)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        store.set_timeout(timedelta(seconds=timeout))
        store = PrefixStore(_word(store, rank, size, timeout), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the processes could not connect at {address}: {one_line(error)}") from error
    return World(store, rank, size, torch.device("cuda" if backend == "nccl" else "cpu"))


def _take_gpu(device: str) -> None:
    """Give this process a GPU of its own, which `cuda` then refers to."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if device != "cuda":
        raise InputError(
            f"{named('device', device)}: every process uses a GPU of its own; write {named('device', 'cuda')}"
        )
    if number >= there:
        raise InputError(
            f"{named('device', device)}: process {number} of this machine finds {there} GPUs; start fewer processes, "
            "or use cpu"
        )
    torch.cuda.set_device(number)


def _word(store: Store, rank: int, size: int, seconds: float) -> str:
    """A fresh word that these processes agree on, as a prefix for their keys in the store.

    If torchrun restarts processes, they find the keys of their predecessors in the store, including addresses that are
    no longer valid. So every process publishes its name. The first process publishes all names with a new word. A
    process that finds its own name there confirms. When all have confirmed, the word is agreed; otherwise the first
    process tries again.
    """
    me, until = uuid.uuid4().hex, time.monotonic() + seconds
    store.set(f"drdsgd/name/{rank}", me)
    confirmed = ""
    while time.monotonic() < until:
        if rank == 0:
            names = [store.get(f"drdsgd/name/{other}").decode() for other in range(size)]
            word = uuid.uuid4().hex
            store.set("drdsgd/read out", json.dumps([word, names]))
            confirmations = [f"drdsgd/{word}/{other}" for other in range(1, size)]
            patience = time.monotonic() + 0.5
            while time.monotonic() < patience:
                if not confirmations or store.check(confirmations):
                    store.set(f"drdsgd/{word}", "agreed")
                    return word
                time.sleep(0.005)
        elif store.check(["drdsgd/read out"]):
            word, names = json.loads(store.get("drdsgd/read out"))
            if names[rank:] and names[rank] == me:
                if word != confirmed:
                    store.set(f"drdsgd/{word}/{rank}", "")
                    confirmed = word
                if store.check([f"drdsgd/{word}"]):
                    return str(word)
        time.sleep(0.005)
    raise RuntimeError(f"not all {size} processes came within {seconds:g} seconds")


class Members:
    """The processes, each with the devices that it hosts."""

    def __init__(self, world: World, placement: Sequence[NDArray[np.int64]]) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self.post = Post(world.size, world.device, world.texts)
        self.placement = [torch.from_numpy(devices) for devices in placement]
        self.rows, self.K = self.placement[self.rank], sum(map(len, placement))

    def engine(self, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each) -> DistributedEngine:
        return DistributedEngine(self, mixing, dtype, device, each)

    def gather(self, x: Tensor) -> Tensor:
        # processes may host different numbers of devices: pad to the largest
        padded = x.new_zeros(max(map(len, self.placement)), *x.shape[1:])
        padded[: len(x)] = x
        gathered = x.new_empty(self.K, *x.shape[1:])
        for devices, found in zip(self.placement, self.world.everyones(padded), strict=True):
            gathered[devices.to(x.device)] = found[: len(devices)].to(x.device)
        return gathered

    def total(self, x: Tensor) -> Tensor:
        return self.world.total(x)

    def texts(self, text: str) -> list[str]:
        return self.world.texts(text)

    def earliest(self, found: Diverged | None) -> Diverged | None:
        said = self.texts("" if found is None else json.dumps([found.round, found.device, found.marked]))
        if not (all_found := [json.loads(text) for text in said if text]):
            return None
        t, device, message = min(all_found)
        return Diverged(message, round=t, device=device)


class DistributedEngine:
    """Hosts the devices of one process."""

    def __init__(
        self, members: Members, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each = map
    ) -> None:
        self.K = mixing.K
        self._members, self._mixing, self._dtype, self._device, self._each = members, mixing, dtype, device, each
        self._host = np.empty(self.K, dtype=np.int64)  # the rank that hosts each device
        for rank, devices in enumerate(members.placement):
            self._host[devices.numpy()] = rank
        self._static = self._prepare(mixing.at(0)) if mixing.static else None

    @property
    def rows(self) -> Tensor:
        return self._members.rows.to(self._device)

    def mix(self, t: int) -> DistributedMix:
        return DistributedMix(self._static or self._prepare(self._mixing.at(t)), t, self._members.post, self._each)

    def _prepare(self, W: csr_array) -> Prepared:
        rank, mine = self._members.rank, self._members.rows.numpy()
        entries = W.tocoo()
        to, of = entries.row, entries.col
        # (rank that needs a row, the row's device), each pair once, sorted by rank and then by device
        wanted = np.unique(np.stack([self._host[to], of])[:, self._host[to] != self._host[of]], axis=1)
        sending = wanted[:, self._host[wanted[1]] == rank]
        coming = wanted[1][wanted[0] == rank]
        coming = coming[np.lexsort((coming, self._host[coming]))]
        place = np.full(self.K, -1)
        place[mine] = np.arange(len(mine))
        send = [
            (int(peer), torch.as_tensor(place[sending[1][sending[0] == peer]], device=self._device))
            for peer in np.unique(sending[0])
        ]
        peers, counts = np.unique(self._host[coming], return_counts=True)
        receive = [(int(peer), int(count)) for peer, count in zip(peers, counts, strict=True)]
        own_then_others = csr_array(W[mine][:, np.concatenate([mine, coming])])
        ready = prepare(W, own_then_others, mine, self._mixing.repeats, self._dtype, self._device)
        return ready._replace(send=send, receive=receive)


class DistributedMix:
    """Round t's gossip, as seen by one process: `mix(x [n, ...])` is its rows of W_t x."""

    def __init__(self, W: Prepared, t: int, post: Post, each: Each = map) -> None:
        self.t = t
        self.floats_sent, self.exchange_seconds = 0, 0.0
        self.repeats, self.isolated = W.repeats, W.isolated
        self._W, self._post, self._each, self._before = W, post, each, post.bytes_sent

    @property
    def bytes_sent(self) -> int:
        return self._post.bytes_sent - self._before

    def __call__(self, x: Tensor, /, *, donate: bool = False) -> Tensor:
        rows = x.reshape(len(x), -1)
        if not self._W.links:  # no messages in this round
            return x if donate else x.clone()
        self._count(rows.shape[1])
        mixed = rows if donate else torch.empty_like(rows)
        for _ in range(self.repeats):
            with self._others(rows) as others:
                self._multiply(rows, others, mixed)
            rows = mixed
        return mixed.view_as(x)

    def log_mean(self, x: Tensor, /) -> Tensor:
        self._count(1)
        for _ in range(self.repeats):
            with self._others(x) as others:
                x = self._W.log_mean(torch.cat([x, *others]))
        return x

    def by_columns(
        self, combine: Combine, theta: Tensor, state: dict[str, Tensor], together: int | None, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return combine(theta, state, self)

    def compressed(self, x: Tensor, hat: Tensor, mixed: Tensor, compressor: Compressor, number: int, /) -> None:
        parts = compressor.encode(x - hat, number)
        own = compressor.decode(parts, x.shape[1], number)
        self.floats_sent += self._W.links * -(-sum(part[0].nbytes for part in parts) // x.element_size())
        message = torch.cat([part.contiguous().view(torch.uint8).flatten(1) for part in parts], dim=1)
        received = torch.empty_like(own)
        with self._others(message) as messages:
            hat.add_(own)
            others = [compressor.decode(_unpacked(some, parts), x.shape[1], number) for some in messages]
            self._multiply(own, others, received)
        mixed.add_(received)

    def _count(self, numbers: int) -> None:
        self.floats_sent += self._W.links * self.repeats * numbers

    @contextmanager
    def _others(self, rows: Tensor) -> Iterator[list[Tensor]]:
        """Exchange rows [n, ...] with other processes; yields the rows of their devices that are needed here."""
        begun = time.perf_counter()
        with self._post.exchange(rows, self._W.send, self._W.receive) as found:
            self.exchange_seconds += time.perf_counter() - begun
            yield found

    def _multiply(self, rows: Tensor, others: Sequence[Tensor], target: Tensor) -> None:
        """Write W (rows, others) into target, which may be rows."""

        def columns(some: slice) -> None:
            # concatenated here, where it stays in the cache: two products, one of which need not wait for messages,
            # were measured to take 1.1 to 1.6 times as long (drdsgd_benchmarks.post)
            target[:, some] = self._W.product(torch.cat([rows[:, some], *(part[:, some] for part in others)]))

        for _ in self._each(columns, column_blocks(rows, sum(map(len, others)))):
            pass


def _unpacked(messages: Tensor, like: Parts) -> Parts:
    """Messages [m, bytes] as parts with the shapes and dtypes of `like`."""
    sizes = [part[0].nbytes for part in like]
    return tuple(
        # cloned: a part of a single message is contiguous, but may not be aligned for its dtype
        message.clone(memory_format=torch.contiguous_format).view(part.dtype).view(len(messages), *part.shape[1:])
        for message, part in zip(messages.split(sizes, dim=1), like, strict=True)
    )
