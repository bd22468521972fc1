"""The links of one device: what its neighbours sent, and the exchange of numbers with them.

In the exchange (t, k), the k-th of round t, a device sends its numbers to its neighbours and waits for theirs, to a
deadline. A link counts if both ends have the other's numbers: each says YES as soon as it has them, and uses them when
it hears the other's YES, or sees it go on to its next exchange without a NO, which it says when it gives up. One that
is dead, cut off or too far behind is not waited for. So after a lost message both ends leave the link out, or both use
it. What remains: where the last word before the deadline is lost, one end uses the link and the other does not. Each
still takes a weighted mean; the mean over all devices moves, by `W_ij |x_i - x_j| / K`.

With `staleness` s > 0 nobody says YES. A device takes the newest numbers that each neighbour sent in its round t - s or
later, and waits only where there are none.

Nothing here knows how messages travel: `send` is given, and `receive`, `here` and `gone` are called by whoever carries
them, on threads of its own.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Protocol

import torch
from torch import Tensor

from drdsgd.network.messages import KIND_AT, START_BYTES, Header, Kind, Refused, Unlike, pack, unpack, values

__all__ = ["BAD_MESSAGES", "BEHIND", "Box", "Links", "Log"]

# a device that has fallen further behind its neighbours than this goes on at their round,
BEHIND = 3
# once they have been further for so many seconds
LEAP = 1.0
# seconds between two attempts to introduce oneself
AGAIN = 1.0
# so many that are malformed, or come twice, and a neighbour is cut off
BAD_MESSAGES = 100
# messages of a neighbour that may wait to be used, answers and numbers each; and numbers beside those of a round, in
# the largest messages
WAITING, MORE_MESSAGES = 64, 2
# exchanges that a round has at most, for each application of W
EXCHANGES = 8
# seconds after which somebody who waits looks whether to stop
LOOK = 0.5
# of the deadline: for the answer of a neighbour whose numbers have come, and for one that was late before
GRACE = 0.2
UNFIT = "another number of numbers"

Send = Callable[[int, bytes, bytes | bytearray], None]


class Log(Protocol):
    """Something noteworthy: `log("what", neighbour="who", ...)`."""

    def __call__(self, event: str, /, **about: Any) -> None: ...


def _silent(event: str, /, **about: Any) -> None:
    """Say nothing."""


@dataclass
class Box:
    """A neighbour, and what has come from it."""

    name: str
    start: bytes = b""
    """tells its process from the one before"""
    alive: bool = False
    introduced: bool = False
    cut: bool = False
    round: int = -1
    """the newest that it said it is at"""
    at: tuple[int, int] = (-1, -1)
    """its newest exchange"""
    sent: tuple[int, int] = (-1, -1)
    """the newest in which it sent numbers: they come in order"""
    data: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    answers: dict[tuple[int, int], bool] = field(default_factory=dict)
    newest: tuple[int, Tensor] | None = None
    """its newest model, with the round; kept while it is ahead"""
    dropped: Counter[str] = field(default_factory=Counter)
    """messages that were not used, by the reason"""
    bad: int = 0
    missed: int = 0
    """exchanges in which the link did not count"""
    in_a_row: int = 0
    """those of them since it last sent numbers in time, or said hello"""
    greeted: float = -math.inf
    """when this device last said hello to it"""
    ahead_since: float = math.inf
    """when it was first seen to be too far ahead"""


@dataclass
class _Exchange:
    """One that is going on: with whom it is not settled yet, to whom a YES was sent, and what has come where it counts.

    After the deadline (`late`) only answers are waited for.
    """

    key: tuple[int, int]
    size: int
    peers: int
    waiting_for: set[int]
    promised: set[int] = field(default_factory=set)
    found: dict[int, Tensor] = field(default_factory=dict)
    late: bool = False


class Links:
    """The links of the device `number`, to neighbours with these numbers and names."""

    def __init__(
        self,
        number: int,
        neighbours: Mapping[int, str],
        *,
        send: Send,
        digest: bytes,
        dtype: torch.dtype,
        size: int,
        most: int,
        rounds: int,
        deadline: float,
        patience: float = 0.0,
        staleness: int = 0,
        repeats: int = 1,
        log: Log = _silent,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`size` numbers are a model, and no message has more than `most`; `digest` is what all must run alike.

        The run has so many rounds, a round so many exchanges of models (`repeats`), and an exchange so many seconds
        (`deadline`). The first of all has `patience`, as neighbours may wait for theirs. Once `stopping` says so,
        nothing is waited for.
        """
        self.number, self.deadline, self.patience, self.staleness = number, deadline, patience, staleness
        self.running = False
        """whether this device has begun its rounds; before, it lets nobody wait"""
        self.boxes = {j: Box(name) for j, name in neighbours.items()}
        self.bytes_sent = 0
        self.behind = BEHIND
        """rounds that a neighbour may be behind and still be near"""
        self._send_bytes, self._digest, self._dtype, self._start = send, digest, dtype, secrets.token_bytes(START_BYTES)
        self._size, self._most, self._rounds, self._log = size, most, rounds, log
        self._room, self._calls, self._stopping = (repeats + MORE_MESSAGES) * most, EXCHANGES * repeats, stopping
        self._changed = Condition()
        self._now = (0, 0)  # the exchange that this device is at
        self._open: _Exchange | None = None
        self._buffer = bytearray()

    # ------------------------------------------------------------ what comes, on other threads

    def here(self, j: int) -> None:
        """The neighbour j can be reached."""
        with self._changed:
            self.boxes[j].alive = True
        self._log("neighbour is here", neighbour=self.boxes[j].name)
        self._greet(j)

    def gone(self, j: int) -> None:
        """The neighbour j can't be reached any more."""
        box = self.boxes[j]
        with self._changed:
            if not box.alive:
                return
            # what has come stays: it may have been sent before it went
            box.alive = box.introduced = False
            box.in_a_row, box.round, box.newest = 0, -1, None
            self._changed.notify_all()
        self._log("neighbour is gone", neighbour=box.name)
        self._go_on([j])

    def receive(self, j: int, header: bytes, payload: Callable[[], bytes], length: int) -> None:
        """A message has come over the link to j, with a payload of so many bytes; it is read only if it is used."""
        box = self.boxes[j]
        if box.cut:
            return None
        try:
            message = unpack(header, length, j, self._dtype, self._most)
            if message.round > self._rounds - (message.kind is not Kind.HELLO):  # one that is done says so in its hello
                raise Refused("beyond the last round")
            if message.call >= self._calls:
                raise Refused("beyond the last exchange")
            if message.kind is Kind.HELLO:
                return self._introduced(j, message, payload())
            if not box.introduced:
                return self._drop(box, "before its hello")
            numbers = None
            if message.kind is Kind.DATA:
                if (message.round, message.call) <= box.sent:
                    raise Refused("came twice")
                box.sent = (message.round, message.call)
                if self._too_late(message):
                    return self._late(box, message)
                numbers = values(payload(), self._dtype)
            with self._changed:
                self._keep(box, message, numbers)
                if self._open is None:  # else whoever waits is told when there is nothing left to wait for
                    self._changed.notify_all()
        except Refused as refused:
            if isinstance(refused, Unlike) and header[KIND_AT] == Kind.HELLO:
                return self._another(box)
            self._refuse(box, str(refused))
        else:
            if not self.running and message.kind is Kind.DATA and message.round > self._now[0]:
                self._send(j, Header(Kind.NO, self.number, message.round, message.call))
        self._go_on([j])
        return None

    def _introduced(self, j: int, message: Header, said: bytes) -> None:
        """The neighbour j says what it runs, and where it is."""
        box = self.boxes[j]
        digest, start = said[:-START_BYTES], said[-START_BYTES:]
        if digest != self._digest:
            return self._another(box)
        # to one that does not know this device yet, before anything else is sent to it; not as often as it likes to ask
        if message.call == 0 and time.monotonic() > box.greeted + AGAIN / 2:
            self._greet(j, known=True)
        with self._changed:
            known = box.introduced
            if start != box.start:  # a new process, which begins anew
                box.start, box.round, box.newest = start, -1, None
                box.at = box.sent = (-1, -1)
                box.data.clear()
                box.answers.clear()
            box.alive = box.introduced = True
            box.round, box.in_a_row = max(box.round, message.round), 0
            self._changed.notify_all()
        if not known:
            self._log("neighbour has introduced itself", neighbour=box.name, round=message.round)
        return self._go_on([j])

    def _too_late(self, message: Header) -> bool:
        t, k = self._now
        if self.staleness:
            return message.round < t - self.staleness
        return (message.round, message.call) < (t, k)

    def _keep(self, box: Box, message: Header, numbers: Tensor | None) -> None:
        key = (message.round, message.call)
        box.round, box.at = max(box.round, message.round), max(box.at, key)
        if numbers is None:
            # who has said YES may still give up; else a second answer, which an honest one may send, says nothing new
            new = key not in box.answers or (box.answers[key] and message.kind is Kind.NO)
            if new and key >= self._now and len(box.answers) < WAITING:
                box.answers[key] = message.kind is Kind.YES
            return
        if len(numbers) == self._size and message.round > self._now[0]:
            box.newest = (message.round, numbers)
        if self.staleness:
            for older in [one for one in box.data if one[1] == message.call]:
                del box.data[older]
        box.data[key], box.in_a_row = numbers, 0
        # without this device a neighbour gets as far as its next exchange with it; more come only when this one is
        # behind, and then the exchanges before are over for the other
        while len(box.data) > WAITING or sum(map(len, box.data.values())) > self._room:
            del box.data[min(box.data)]
            box.dropped["too far ahead"] += 1

    def _late(self, box: Box, message: Header) -> None:
        with self._changed:
            box.dropped["late"] += 1
            box.round = max(box.round, message.round)

    def _another(self, box: Box) -> None:
        """A neighbour runs another experiment: an honest mistake, which can be put right."""
        self._drop(box, "runs something else")
        box.introduced = False
        if box.dropped["runs something else"] == 1:
            self._log("neighbour runs something else", neighbour=box.name, cure="compare the two device.toml files")

    def _drop(self, box: Box, why: str) -> None:
        with self._changed:
            box.dropped[why] += 1

    def _refuse(self, box: Box, why: str) -> None:
        """A message that no neighbour should send: after many of them it is cut off."""
        with self._changed:
            box.dropped[why] += 1
            box.bad += 1
            first, last = box.dropped[why] == 1, box.bad == BAD_MESSAGES
            if last:
                box.cut = True
                box.data.clear()
                box.answers.clear()
                box.newest = None
                self._changed.notify_all()
        if first:
            self._log("message refused", neighbour=box.name, why=why)
        if last:
            self._log("neighbour is cut off", neighbour=box.name, bad=BAD_MESSAGES, why=dict(box.dropped))

    # ------------------------------------------------------------ what this device does

    def begin(self, t: int) -> None:
        """This device is at round t now."""
        with self._changed:
            self._now = (t, 0)
            self._forget()

    def leap(self, t: int) -> None:
        """This device goes on at a later round; neighbours that no longer wait for it should do so again."""
        self.begin(t)
        for j, box in self.boxes.items():
            if self._reachable(box):
                self._greet(j)

    def meet(self, seconds: float) -> list[str]:
        """Wait so many seconds for all neighbours to introduce themselves; the names of those who have not."""
        until = time.monotonic() + seconds
        while True:
            self._greet_again()
            with self._changed:
                missing = [box.name for box in self.boxes.values() if not box.introduced and not box.cut]
                left = until - time.monotonic()
                if not missing or left <= 0 or self._stopping():
                    return missing
                self._changed.wait(min(left, LOOK))

    def furthest(self, *, sure: bool = False) -> int:
        """The latest round at which a neighbour is, -1 if there is none.

        One that is too far ahead is believed only after a moment: what sends nonsense is cut off by then. With `sure`
        that moment is waited for.
        """
        while True:
            with self._changed:
                now, known = time.monotonic(), [-1]
                for box in self.boxes.values():
                    there = min(box.round, self._rounds - 1) if self._reachable(box) else -1
                    box.ahead_since = min(box.ahead_since, now) if there > self._now[0] + self.behind else math.inf
                    if not now - LEAP < box.ahead_since <= now:
                        known.append(there)
                if len(known) > len(self.boxes) or not sure or self._stopping():
                    return max(known)
                self._changed.wait(LOOK)

    def left_behind(self) -> bool:
        """Whether a neighbour is at work in a later round: it has not waited for this device."""
        with self._changed:
            return any(box.at[0] > self._now[0] for box in self.boxes.values() if self._reachable(box))

    def newest_model(self, least: int, seconds: float) -> tuple[int, Tensor] | None:
        """The newest model that a neighbour has sent, with the round; waits for one of round `least` or later."""
        until = time.monotonic() + seconds
        while True:
            self._greet_again()
            with self._changed:
                models = [box.newest for box in self.boxes.values() if box.newest is not None]
                newest = max(models, key=lambda one: one[0], default=None)
                left = until - time.monotonic()
                if self.furthest() < least or left <= 0 or self._stopping():
                    return newest
                if newest is not None and newest[0] >= least:
                    return newest
                self._changed.wait(min(left, LOOK))

    def exchange(self, t: int, k: int, x: Tensor, peers: Iterable[int]) -> dict[int, Tensor]:
        """Send x to these neighbours in the k-th exchange of round t; what has come of theirs, from where it counts."""
        peers = list(peers)
        with self._changed:
            self._now = (t, k)
            self._forget()
        self._greet_again()
        numbers = self._bytes(x)
        header = Header(Kind.DATA, self.number, t, k, x.numel())
        for j in peers:
            if self._reachable(self.boxes[j]):
                self._send(j, header, numbers)
                self.bytes_sent += len(numbers)
        found = (self._newest if self.staleness else self._agreed)((t, k), x.numel(), peers)
        with self._changed:
            for j in set(peers) - found.keys():
                self.boxes[j].missed += 1
                self.boxes[j].in_a_row += 1
        return {j: numbers.view_as(x) for j, numbers in found.items()}

    def _bytes(self, x: Tensor) -> bytearray:
        """The numbers as they are sent, in memory that is used again: what is sent is copied from there."""
        if len(self._buffer) != x.nbytes:
            self._buffer = bytearray(x.nbytes)
        torch.frombuffer(self._buffer, dtype=x.dtype).copy_(x.detach().reshape(-1))
        return self._buffer

    def _agreed(self, key: tuple[int, int], size: int, peers: list[int]) -> dict[int, Tensor]:
        begun = time.monotonic()
        with self._changed:
            self._open = open_ = _Exchange(key, size, len(peers), set(peers))
        self._go_on(peers)
        self._wait(lambda: self._ends(begun, key, open_.waiting_for, len(peers)))
        with self._changed:
            open_.late = True
        self._go_on(peers)
        # also by one that is to stop: what was promised may be on its way
        ends = time.monotonic() + GRACE * self.deadline
        self._wait(lambda: ends if open_.waiting_for else -math.inf)
        with self._changed:
            self._open = None
        for j in open_.waiting_for:
            self._send(j, Header(Kind.NO, self.number, *key))
        return open_.found

    def _wait(self, until: Callable[[], float]) -> None:
        """Until the time that `until` says, which is asked again whenever something has changed."""
        with self._changed:
            while (left := until() - time.monotonic()) > 0:
                self._changed.wait(min(left, LOOK))

    def _ends(self, begun: float, key: tuple[int, int], waiting_for: Collection[int], peers: int) -> float:
        """Until when these neighbours are waited for, in an exchange with so many that began then."""
        # who is left behind by others need not wait for one more
        if not waiting_for or self._stopping() or self.furthest() > key[0] + self.behind:
            return -math.inf
        if key == (0, 0) and self.patience > self.deadline:
            return begun + self.patience
        return begun + (self.deadline if self._patient(waiting_for, peers) else GRACE * self.deadline)

    def _patient(self, waiting_for: Collection[int], peers: int) -> bool:
        """Whether there is one among these, of so many, that gets all the time there is.

        One that was late before gets it only now and then, after 1, 2, 4, 8, ... misses: else one slow device would
        make its neighbours late for theirs in every exchange. But where most are missing it is this device that is
        fast, and must not run ahead of all.
        """
        late = [self.boxes[j].in_a_row for j in waiting_for]
        return 2 * len(late) > peers or any(n & (n - 1) == 0 for n in late)

    def _go_on(self, peers: Iterable[int]) -> None:
        """Take the exchange that is open as far as it goes with these neighbours; also called as messages come."""
        answers, unfit = [], []
        with self._changed:
            open_ = self._open
            if open_ is None:
                return
            for j in open_.waiting_for.intersection(peers):
                box, key = self.boxes[j], open_.key
                if key in box.data and len(box.data[key]) != open_.size:
                    del box.data[key]
                    unfit.append(box)
                if j not in open_.promised and key in box.data and not open_.late:
                    open_.promised.add(j)
                    answers.append((j, Kind.YES))
                if j in open_.promised:
                    if key in box.answers or box.at > key:
                        # one that goes on without a NO has used what it got
                        if box.answers.get(key, True) and key in box.data:
                            open_.found[j] = box.data[key]
                        open_.waiting_for.discard(j)
                    elif not self._reachable(box):
                        open_.waiting_for.discard(j)
                # what is missing of a neighbour comes before whatever else it sends
                elif not self._may_come(box, key) or box.at >= key or open_.late:
                    open_.waiting_for.discard(j)
                    if self._reachable(box):
                        answers.append((j, Kind.NO))
            if not self._patient(open_.waiting_for, open_.peers):
                self._changed.notify_all()
        for box in unfit:
            self._refuse(box, UNFIT)
        for j, kind in answers:
            self._send(j, Header(kind, self.number, *open_.key))

    def _newest(self, key: tuple[int, int], size: int, peers: list[int]) -> dict[int, Tensor]:
        (t, k), begun = key, time.monotonic()

        def there(j: int) -> list[tuple[int, int]]:
            return [one for one in self.boxes[j].data if one[1] == k and one[0] >= t - self.staleness]

        def missing() -> list[int]:
            return [j for j in peers if not there(j) and self._may_come(self.boxes[j], key)]

        self._wait(lambda: self._ends(begun, key, missing(), len(peers)))
        with self._changed:
            found = {j: self.boxes[j].data[max(there(j))] for j in peers if there(j)}
        for j in [j for j, numbers in found.items() if len(numbers) != size]:
            del found[j]
            self._refuse(self.boxes[j], UNFIT)
        return found

    def _may_come(self, box: Box, key: tuple[int, int]) -> bool:
        """Whether the numbers of a neighbour may still come."""
        return self._reachable(box) and box.answers.get(key) is not False

    def _reachable(self, box: Box) -> bool:
        return box.alive and box.introduced and not box.cut

    def _forget(self) -> None:
        """Drop what is of exchanges that are over."""
        t, k = self._now
        least = (t - self.staleness, 0) if self.staleness else (t, k)
        for box in self.boxes.values():
            for kept in (box.data, box.answers):
                for key in [one for one in kept if one < least]:
                    del kept[key]
            if box.newest is not None and box.newest[0] <= t:
                box.newest = None

    def _greet(self, j: int, known: bool = False) -> None:
        box = self.boxes[j]
        with self._changed:
            box.greeted = time.monotonic()
            hello = Header(Kind.HELLO, self.number, self._now[0], int(known or box.introduced))
        self._send(j, hello, self._digest + self._start)

    def _greet_again(self) -> None:
        """A hello may have been lost."""
        now = time.monotonic()
        for j, box in self.boxes.items():
            if box.alive and not box.introduced and not box.cut and now > box.greeted + AGAIN:
                self._greet(j)

    def leave(self, t: int, seconds: float) -> None:
        """Say that this device is done with t rounds; wait until its neighbours are, or gone, for so many seconds."""
        with self._changed:
            self._now = (t, 0)
        for j, box in self.boxes.items():
            if self._reachable(box):
                self._greet(j)
        with self._changed:
            self._changed.wait_for(
                lambda: all(box.round >= t for box in self.boxes.values() if self._reachable(box)), seconds
            )

    def _send(self, j: int, header: Header, payload: bytes | bytearray = b"") -> None:
        self._send_bytes(j, pack(header, self._dtype), payload)
