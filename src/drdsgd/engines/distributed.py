"""Devices on several processes (ranks), which send each other what their devices need: `torch.distributed`.

A process hosts some devices, rows of theta. For its rows of W_t x it needs the rows of x of its devices' neighbours;
those that live elsewhere come from there, each once, however many devices here want it. Every process works out W_t,
and so who needs what, by itself. A round has messages between processes that share links, and nothing in which all
take part; that there is only for evaluations and checkpoints (`gather`, `total`, `texts`).

`World` is the connection to the other processes, before it is known who hosts which device.
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
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from drdsgd.core.compression import Compressor, Parts
from drdsgd.core.parallel import Each
from drdsgd.engines import ENVIRONMENT
from drdsgd.engines.post import Post, answering
from drdsgd.engines.products import Product, column_blocks, log_mean, product
from drdsgd.errors import Diverged, InputError, one_line
from drdsgd.topology.mixing import Mixing

__all__ = ["DistributedEngine", "DistributedMix", "Members", "World", "join"]

BACKENDS = ("gloo", "nccl", "mpi")


class World:
    """The connection to the other processes: what all can say and hear."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._store = store

    def speaks(self) -> bool:
        """Whether this process is the first with something to say that ends them all; the others keep silent."""
        try:
            said = self._store.compare_set("drdsgd/said", "", str(self.rank))
        except RuntimeError:  # the store is gone with the first process, so the second may speak
            return self.rank == 1
        return bool(said == str(self.rank).encode())

    def total(self, x: Tensor) -> Tensor:
        """The sum of x over all processes."""
        sum_ = x.to(self.device, copy=True)
        with answering():
            dist.all_reduce(sum_)
        return sum_.to(x.device)

    def everyones(self, x: Tensor) -> list[Tensor]:
        """The x of every process; all have the same shape."""
        x = x.to(self.device).contiguous()
        found = [torch.empty_like(x) for _ in range(self.size)]
        with answering():
            dist.all_gather(found, x)
        return found

    def texts(self, text: str) -> list[str]:
        """What every process says."""
        said = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        length = len(text.encode())
        lengths = [int(n) for n in self.everyones(torch.tensor([length]))]
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        padded[:length] = said[:length]
        return [bytes(one[:n].tolist()).decode() for one, n in zip(self.everyones(padded), lengths, strict=True)]

    def hosting(self, placement: Sequence[NDArray[np.int64]]) -> Members:
        """The same, now that it is known which devices each process hosts."""
        return Members(self, placement)

    def leave(self) -> None:
        """End the connection; else its threads would be at work while the process is taken down."""
        dist.destroy_process_group()


def join(backend: str | None, device: str, seconds: float) -> World:
    """Meet the other processes that were started with this one; whoever does not answer in so many seconds is lost."""
    if missing := [name for name in ENVIRONMENT if name not in os.environ]:
        raise InputError(
            f"--engine distributed: {', '.join(missing)} is not set: start it with torchrun --nproc-per-node=2 "
            "-m drdsgd train ..."
        )
    cuda = device.startswith("cuda")
    backend = backend or ("nccl" if cuda else "gloo")
    available = {
        "gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available
    }  # fmt: skip
    if backend not in available:
        raise InputError(f"--backend {backend}: unknown; known are {', '.join(BACKENDS)}")
    if not available[backend]():
        here = [name for name, there in available.items() if there()]
        raise InputError(f"--backend {backend}: this torch was built without it; it has {', '.join(here)}")
    if backend == "nccl" and not cuda:
        raise InputError(f"--backend nccl: it is for GPUs, not for --device {device}; use gloo")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--timeout {seconds:g}: a positive number of seconds; 300 is usual")
    if cuda:
        _take_gpu(device)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
        store.set_timeout(timedelta(seconds=seconds))
        store = PrefixStore(_word(store, rank, size, seconds), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the processes did not meet at {address}: {one_line(error)}") from error
    return World(store, rank, size, torch.device("cuda" if backend == "nccl" else "cpu"))


def _take_gpu(device: str) -> None:
    """A GPU for each process of a machine, which is then what `cuda` means."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if device != "cuda":
        raise InputError(f"--device {device}: every process takes a GPU of its own; write --device cuda")
    if number >= there:
        raise InputError(f"--device cuda: process {number} of this machine finds {there} GPUs; start fewer, or use cpu")
    torch.cuda.set_device(number)


def _word(store: Store, rank: int, size: int, seconds: float) -> str:
    """A word that these processes agree on, and that none before them had.

    Where torchrun starts processes again, they find what those before them left in the store, addresses among it that
    lead nowhere. So everyone says who it is; the first reads out the names, and a word; whoever hears its own name
    nods; and once all have, it is the word. Else the first reads out again.
    """
    me, until = uuid.uuid4().hex, time.monotonic() + seconds
    store.set(f"drdsgd/name/{rank}", me)
    nodded = ""
    while time.monotonic() < until:
        if rank == 0:
            names = [store.get(f"drdsgd/name/{other}").decode() for other in range(size)]
            word = uuid.uuid4().hex
            store.set("drdsgd/read out", json.dumps([word, names]))
            nods = [f"drdsgd/{word}/{other}" for other in range(1, size)]
            patience = time.monotonic() + 0.5
            while time.monotonic() < patience:
                if not nods or store.check(nods):
                    store.set(f"drdsgd/{word}", "agreed")
                    return word
                time.sleep(0.005)
        elif store.check(["drdsgd/read out"]):
            word, names = json.loads(store.get("drdsgd/read out"))
            if names[rank:] and names[rank] == me:
                if word != nodded:
                    store.set(f"drdsgd/{word}/{rank}", "")
                    nodded = word
                if store.check([f"drdsgd/{word}"]):
                    return str(word)
        time.sleep(0.005)
    raise RuntimeError(f"not all {size} came within {seconds:g} seconds")


class Members:
    """The processes of a world, each with the devices that it hosts."""

    def __init__(self, world: World, placement: Sequence[NDArray[np.int64]]) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self.post = Post(world.size, world.device, world.texts)
        self.placement = [torch.from_numpy(devices) for devices in placement]
        self.rows, self.K = self.placement[self.rank], sum(map(len, placement))

    def engine(self, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each) -> DistributedEngine:
        return DistributedEngine(self, mixing, dtype, device, each)

    def gather(self, x: Tensor) -> Tensor:
        # rows of different numbers: the longest list is the length of all
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
        said = self.texts("" if found is None else json.dumps([found.round, found.device, str(found)]))
        if not (all_found := [json.loads(text) for text in said if text]):
            return None
        t, device, message = min(all_found)
        return Diverged(message, round=t, device=device)


class Prepared(NamedTuple):
    """A matrix W as one process uses it: its rows, for its own rows of x and then those that come from others."""

    product: Product
    log_mean: Product
    send: list[tuple[int, Tensor]]
    """to which process which of its rows"""
    receive: list[tuple[int, int]]
    """from which process how many"""
    links: int
    """of the whole network"""
    repeats: int
    isolated: Tensor


class DistributedEngine:
    """Hosts the devices of one process."""

    def __init__(
        self, members: Members, mixing: Mixing, dtype: torch.dtype, device: torch.device, each: Each = map
    ) -> None:
        self.K = mixing.K
        self._members, self._mixing, self._dtype, self._device, self._each = members, mixing, dtype, device, each
        self._host = np.empty(self.K, dtype=np.int64)  # of every device
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
        # (device, process that needs its row), each once, by process and then by device
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
        here = W[mine]
        own_then_others = csr_array(here[:, np.concatenate([mine, coming])])
        diagonal = W.diagonal() != 0
        return Prepared(
            product=product(own_then_others, self._dtype, self._device),
            log_mean=log_mean(own_then_others, self._dtype, self._device),
            send=send,
            receive=receive,
            links=W.nnz - int(diagonal.sum()),
            repeats=self._mixing.repeats,
            isolated=torch.as_tensor(np.diff(here.indptr) == diagonal[mine], device=self._device),
        )


class DistributedMix:
    """Round t's gossip, as one process takes part in it: `mix(x [n, ...])` is its rows of W_t x."""

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
        if not self._W.links:  # nobody talks in this round
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

    def compressed(self, x: Tensor, compressor: Compressor, number: int, /) -> tuple[Tensor, Tensor]:
        parts = compressor.encode(x, number)
        own = compressor.decode(parts, x.shape[1], number)
        self.floats_sent += self._W.links * -(-sum(part[0].nbytes for part in parts) // x.element_size())
        message = torch.cat([part.contiguous().view(torch.uint8).flatten(1) for part in parts], dim=1)
        mixed = torch.empty_like(own)
        with self._others(message) as messages:
            others = [compressor.decode(_unpacked(some, parts), x.shape[1], number) for some in messages]
            self._multiply(own, others, mixed)
        return own, mixed

    def _count(self, numbers: int) -> None:
        self.floats_sent += self._W.links * self.repeats * numbers

    @contextmanager
    def _others(self, rows: Tensor) -> Iterator[list[Tensor]]:
        """Within it, the rows of other processes' devices that are needed here; they get theirs of rows [n, ...]."""
        begun = time.perf_counter()
        with self._post.exchange(rows, self._W.send, self._W.receive) as found:
            self.exchange_seconds += time.perf_counter() - begun
            yield found

    def _multiply(self, rows: Tensor, others: Sequence[Tensor], target: Tensor) -> None:
        """W (rows, others) into target, which may be rows."""

        def columns(some: slice) -> None:
            # put together here, where it stays in the cache: two products, one of which need not wait for messages,
            # were measured to take a quarter longer than this one (benchmarks/post.py)
            target[:, some] = self._W.product(torch.cat([rows[:, some], *(part[:, some] for part in others)]))

        for _ in self._each(columns, column_blocks(rows, sum(map(len, others)))):
            pass


def _unpacked(messages: Tensor, like: Parts) -> Parts:
    """Messages [m, bytes] as parts, of the shapes and types that these have."""
    sizes = [part[0].nbytes for part in like]
    return tuple(
        # cloned: of one message only, a part is contiguous, but need not be aligned as its type must be
        message.clone(memory_format=torch.contiguous_format).view(part.dtype).view(len(messages), *part.shape[1:])
        for message, part in zip(messages.split(sizes, dim=1), like, strict=True)
    )
