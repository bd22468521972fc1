"""How rows of x get from one process to another: as messages or, on one machine, through shared memory.

A message between two processes on one machine is copied through a socket. This was measured to take 1.4 to 6.7 times
as long as a copy in memory, and makes a whole round of the paper's MLP on two ranks 1.1 to 1.2 times as long
(`drdsgd_benchmarks.post`, seven and four runs). So a process writes the rows for a neighbour on its machine into one of
two shared buffers, in turn, and sends only a notice. The neighbour sends a notice back when it is done with the buffer.
The memory has no name in any folder (`memfd`), and disappears with the last process that uses it.
"""

from __future__ import annotations

import mmap
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from drdsgd.core.flat import LINE_BYTES
from drdsgd.errors import Died, one_line

__all__ = ["Post", "answering"]

LEFT, DONE = 1, 2  # tags of notices; messages with rows have tag 0
# below this, a message is faster than shared memory with its two notices
LEAST_BYTES = 2**16
NAME = "drdsgd"  # of the memory, as tools that inspect the process show it


class Post:
    """The exchange of rows between one process and the others.

    `texts` sends a text to all processes and returns the texts of all; it is used to find those on the same machine.
    """

    def __init__(self, size: int, device: torch.device, texts: Callable[[str], list[str]]) -> None:
        self.device, self.bytes_sent = device, 0
        self._pids: dict[int, int] = {}
        self._out, self._in = dict[int, _Outgoing](), dict[int, _Incoming]()
        if device.type == "cpu" and size > 1 and hasattr(os, "memfd_create"):
            self._pids = _neighbours(texts)

    @contextmanager
    def exchange(
        self, rows: Tensor, send: Sequence[tuple[int, Tensor]], receive: Sequence[tuple[int, int]]
    ) -> Iterator[list[Tensor]]:
        """Send some of rows [n, ...], each `(rank, which rows)`; yields those received, per `(rank, how many)`."""

        def near(peer: int, number: int) -> bool:
            return peer in self._pids and rows.device.type == "cpu" and number * rows[0].nbytes >= LEAST_BYTES

        operations, kept, found = list[dist.P2POp](), list[Tensor](), dict[int, Tensor]()
        for peer, number in receive:
            if near(peer, number):
                found[peer] = torch.empty(2, dtype=torch.int64)
                operations.append(dist.P2POp(dist.irecv, found[peer], peer, tag=LEFT))
            else:
                found[peer] = torch.empty(number, *rows.shape[1:], dtype=rows.dtype, device=self.device)
                operations.append(dist.P2POp(dist.irecv, found[peer], peer))
        for peer, which in send:
            if near(peer, len(which)):
                message = self._out.setdefault(peer, _Outgoing(peer)).put(rows, which)
                operations.append(dist.P2POp(dist.isend, message, peer, tag=LEFT))
            else:
                message = rows.index_select(0, which).to(self.device)
                operations.append(dist.P2POp(dist.isend, message, peer))
            kept.append(message)
            self.bytes_sent += len(which) * rows[0].nbytes
        with answering():
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
        boxes = list[_Incoming]()
        for peer, number in receive:
            if near(peer, number):
                boxes.append(self._in.setdefault(peer, _Incoming(peer, self._pids[peer])))
                found[peer] = boxes[-1].look(found[peer], number, rows)
        yield [found[peer].to(rows.device) for peer, _ in receive]
        for box in boxes:
            box.release()

    def close(self) -> None:
        """Wait for pending notices, and release the memory."""
        for incoming in self._in.values():
            incoming.wait()
        for outgoing in self._out.values():
            outgoing.close()


class _Outgoing:
    """Two buffers in which one process leaves rows for another."""

    def __init__(self, peer: int) -> None:
        self.peer, self.turn, self.capacity = peer, 0, 0
        self.handle, self.memory = -1, torch.empty(0)
        self.in_use = deque[tuple[dist.Work, Tensor]]()

    def put(self, rows: Tensor, which: Tensor) -> Tensor:
        """Write some rows into a buffer that is no longer in use; the notice to send."""
        needed = len(which) * rows[0].nbytes
        while len(self.in_use) >= (2 if needed <= self.capacity else 1):
            with answering():
                self.in_use.popleft()[0].wait()
        if needed > self.capacity:
            if self.handle >= 0:
                os.close(self.handle)
            # whole cache lines, because numbers of any type must be aligned in both buffers
            self.handle, self.capacity = os.memfd_create(NAME), -(-needed // LINE_BYTES) * LINE_BYTES
            os.ftruncate(self.handle, 2 * self.capacity)
            self.memory = _mapped(self.handle, 2 * self.capacity)
        begin = self.turn * self.capacity
        place = self.memory[begin : begin + needed].view(rows.dtype).view(len(which), *rows.shape[1:])
        torch.index_select(rows, 0, which, out=place)
        self.turn = 1 - self.turn
        done = torch.empty(1, dtype=torch.int64)
        work = dist.irecv(done, self.peer, tag=DONE)
        assert work is not None
        self.in_use.append((work, done))
        return torch.tensor([self.handle, self.capacity])

    def close(self) -> None:
        with answering():
            while self.in_use:
                self.in_use.popleft()[0].wait()
        os.close(self.handle)


class _Incoming:
    """The same two buffers, at the receiving end."""

    def __init__(self, peer: int, pid: int) -> None:
        self.peer, self.pid, self.turn = peer, pid, 0
        self.known, self.memory = (-1, 0), torch.empty(0)
        self.said: tuple[dist.Work, Tensor] | None = None

    def look(self, word: Tensor, number: int, like: Tensor) -> Tensor:
        """`number` rows, shaped like those of `like`, from the buffer."""
        handle, capacity = word.tolist()
        if (handle, capacity) != self.known:
            opened = os.open(f"/proc/{self.pid}/fd/{handle}", os.O_RDWR)
            self.memory, self.known = _mapped(opened, 2 * capacity), (handle, capacity)
            os.close(opened)
        begin, size = self.turn * capacity, number * like[0].nbytes
        self.turn = 1 - self.turn
        return self.memory[begin : begin + size].view(like.dtype).view(number, *like.shape[1:])

    def release(self) -> None:
        """Send the notice that the buffer is no longer needed."""
        self.wait()
        done = torch.ones(1, dtype=torch.int64)
        work = dist.isend(done, self.peer, tag=DONE)
        assert work is not None
        self.said = work, done

    def wait(self) -> None:
        """Wait until the last notice is sent."""
        if self.said is not None:
            with answering():
                self.said[0].wait()


@contextmanager
def answering() -> Iterator[None]:
    """Within it, waiting for a process that has ended or is too slow raises `Died`."""
    try:
        yield
    except RuntimeError as error:
        # without torch's source location and advice
        why = re.sub(r"^\[[^]]*\] *", "", one_line(error)).partition(". ")[0]
        raise Died(f"another process ended, or did not answer in time ({why})") from error


def _mapped(handle: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)


def _neighbours(texts: Callable[[str], list[str]]) -> dict[int, int]:
    """rank -> process id of those whose memory this process can open, if they can open its memory too."""
    name = uuid.uuid4().hex
    handle = os.memfd_create(NAME)
    os.write(handle, name.encode())
    told = [text.split() for text in texts(f"{os.getpid()} {handle} {name}")]
    found = []
    for pid, fd, expected in told:
        path = Path(f"/proc/{pid}/fd/{fd}")
        try:
            # a process id of another machine may belong to another program here, which must not be read
            ours = str(path.readlink()).startswith(f"/memfd:{NAME}")
            found.append(ours and path.read_bytes() == expected.encode())
        except OSError:
            found.append(False)
    views = texts("".join("1" if one else "0" for one in found))
    os.close(handle)  # all processes have looked
    me = next(rank for rank, (_, _, expected) in enumerate(told) if expected == name)
    return {
        rank: int(told[rank][0])
        for rank in range(len(told))
        if rank != me and views[me][rank] == views[rank][me] == "1"
    }
