"""The links of one device: the messages from its neighbours, and the exchange of numbers with them.

In exchange k of round t, a device sends its numbers to its neighbours and waits for theirs until a deadline.
`network.exchange` decides which links count. A neighbour that is dead, cut off or too far behind is not waited for.

With `staleness` s > 0 there are no answers. A device takes the newest numbers that each neighbour sent in its round
t - s or later, and waits only for neighbours that have sent none.

Nothing here knows how messages travel: `send` is given, and the transport calls `receive`, `here` and `gone` on
threads of its own.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Condition
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from drdsgd.network.exchange import Exchange, patient
from drdsgd.network.mailbox import BAD_MESSAGES, Key, Mailbox
from drdsgd.network.messages import KIND_AT, START_BYTES, Header, Kind, Refused, Unlike, pack, unpack, values

__all__ = ["BEHIND", "Links", "Log"]

A = TypeVar("A")

# a device that is more than this many rounds behind a neighbour continues at the neighbour's round,
BEHIND = 3
# once the neighbour has been that far ahead for this many seconds
LEAP = 1.0
# seconds between two attempts to introduce oneself
AGAIN = 1.0
# a neighbour's numbers that may wait beside those of one round, in the largest messages
MORE_MESSAGES = 2
# the most exchanges in a round, for each application of W
EXCHANGES = 8
# seconds after which a waiting device checks whether to stop
LOOK = 0.5
# the part of the deadline for a neighbour that was late before, and for an answer once the deadline has passed
GRACE = 0.2
UNFIT = "another number of numbers"

Send = Callable[[int, bytes, bytes | bytearray], None]


class Log(Protocol):
    """Takes events: `log("what", neighbour="who", ...)`."""

    def __call__(self, event: str, /, **about: Any) -> None: ...


class Links:
    """The links of the device `number` to neighbours with these numbers and names."""

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
        log: Log = lambda event, /, **about: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """A model has `size` numbers, a message at most `most`; `digest` must be equal on all devices.

        The run has `rounds` rounds, a round has `repeats` exchanges of models, and an exchange lasts at most `deadline`
        seconds. The very first lasts up to `patience` seconds, because neighbours may wait for theirs. Once `stopping`
        is true, nothing is waited for.
        """
        self.number, self.deadline, self.patience, self.staleness = number, deadline, patience, staleness
        self.running = False
        """whether this device has begun its rounds; before that, it lets nobody wait"""
        room = (repeats + MORE_MESSAGES) * most
        self.boxes = {j: Mailbox(name, size, room, staleness) for j, name in neighbours.items()}
        self.bytes_sent = 0
        self.behind = BEHIND
        """how many rounds behind a neighbour this device may be before it leaps to the neighbour's round"""
        self._send_bytes, self._digest, self._dtype, self._start = send, digest, dtype, secrets.token_bytes(START_BYTES)
        self._most, self._rounds, self._log = most, rounds, log
        self._calls, self._stopping = EXCHANGES * repeats, stopping
        self._changed = Condition()
        self._now: Key = (0, 0)  # the exchange that this device is at
        self._open: Exchange | None = None
        self._buffer = bytearray()

    # ------------------------------------------------------------ messages come in, on other threads

    def here(self, j: int) -> None:
        """The neighbour j can be reached."""
        with self._changed:
            self.boxes[j].alive = True
        self._log("neighbour is here", neighbour=self.boxes[j].name)
        self._greet(j)

    def gone(self, j: int) -> None:
        """The neighbour j can no longer be reached."""
        box = self.boxes[j]
        with self._changed:
            if not box.alive:
                return
            # its messages stay: it may have sent them before it went
            box.alive = box.introduced = False
            box.in_a_row, box.round, box.newest = 0, -1, None
            self._changed.notify_all()
        self._log("neighbour is gone", neighbour=box.name)
        self._advance([j])

    def receive(self, j: int, header: bytes, payload: Callable[[], bytes], length: int) -> None:
        """A message with a payload of `length` bytes has come from j; the payload is read only if it is used."""
        box = self.boxes[j]
        if box.cut:
            return None
        try:
            message = unpack(header, length, j, self._dtype, self._most)
            if message.round > self._rounds - (message.kind is not Kind.HELLO):  # a finished device says so in a hello
                raise Refused("beyond the last round")
            if message.call >= self._calls:
                raise Refused("beyond the last exchange")
            if message.kind is Kind.HELLO:
                return self._introduced(j, message, payload())
            if not box.introduced:
                return self._drop(box, "before its hello")
            numbers = None
            if message.kind is Kind.DATA:
                key = (message.round, message.call)
                if key <= box.sent:
                    raise Refused("came twice")
                box.sent = key
                if key < box.oldest(self._now):
                    return self._drop(box, "late", message.round)
                numbers = values(payload(), self._dtype)
            with self._changed:
                box.keep(message, numbers, self._now)
                if self._open is None:  # otherwise a waiting exchange is notified once it is settled
                    self._changed.notify_all()
        except Refused as refused:
            if isinstance(refused, Unlike) and header[KIND_AT] == Kind.HELLO:
                return self._another(box)
            self._refuse(box, str(refused))
        else:
            if not self.running and message.kind is Kind.DATA and message.round > self._now[0]:
                self._send(j, Header(Kind.NO, self.number, message.round, message.call))
        self._advance([j])
        return None

    def _introduced(self, j: int, message: Header, said: bytes) -> None:
        """The neighbour j has sent the digest of its run, and its round."""
        box = self.boxes[j]
        if said[:-START_BYTES] != self._digest:
            return self._another(box)
        # a neighbour that does not know this device yet gets a hello before anything else, but not as often as it asks
        if message.call == 0 and time.monotonic() > box.greeted + AGAIN / 2:
            self._greet(j, known=True)
        with self._changed:
            known = box.introduced
            if box.start != said[-START_BYTES:]:
                box.restarted(said[-START_BYTES:])
            box.alive = box.introduced = True
            box.round, box.in_a_row = max(box.round, message.round), 0
            self._changed.notify_all()
        if not known:
            self._log("neighbour has introduced itself", neighbour=box.name, round=message.round)
        return self._advance([j])

    def _another(self, box: Mailbox) -> None:
        """A neighbour runs another experiment: an honest mistake, which can be corrected."""
        self._drop(box, "runs something else")
        box.introduced = False
        if box.dropped["runs something else"] == 1:
            self._log("neighbour runs something else", neighbour=box.name, cure="compare the two device.toml files")

    def _drop(self, box: Mailbox, why: str, round: int = -1) -> None:
        with self._changed:
            box.dropped[why] += 1
            box.round = max(box.round, round)

    def _refuse(self, box: Mailbox, why: str) -> None:
        """Count a message that no neighbour should send; after many of them the neighbour is cut off."""
        with self._changed:
            box.dropped[why] += 1
            box.bad += 1
            first, last = box.dropped[why] == 1, box.bad == BAD_MESSAGES
            if last:
                box.cut = True
                box.empty()
                self._changed.notify_all()
        if first:
            self._log("message refused", neighbour=box.name, why=why)
        if last:
            self._log("neighbour is cut off", neighbour=box.name, bad=BAD_MESSAGES, why=dict(box.dropped))

    # ------------------------------------------------------------ this device's rounds

    def begin(self, t: int, k: int = 0) -> None:
        """This device is now at exchange k of round t."""
        with self._changed:
            self._now = (t, k)
            for box in self.boxes.values():
                box.forget(self._now)

    def leap(self, t: int) -> None:
        """Continue at a later round, and tell the neighbours, which wait for this device again."""
        self.begin(t)
        self._greet_all()

    def leave(self, t: int, seconds: float) -> None:
        """Tell the neighbours that this device has done t rounds; wait up to `seconds` until they have, or are gone."""
        with self._changed:
            self._now = (t, 0)
        self._greet_all()
        with self._changed:
            self._changed.wait_for(lambda: all(b.round >= t for b in self.boxes.values() if b.reachable), seconds)

    def meet(self, seconds: float) -> list[str]:
        """Wait up to `seconds` until all neighbours have introduced themselves; the names of those that have not."""

        def missing() -> list[str]:
            return [box.name for box in self.boxes.values() if not box.introduced and not box.cut]

        return self._greet_until(missing, lambda names: not names, seconds)

    def furthest(self, *, sure: bool = False) -> int:
        """The latest round that a neighbour has reached, -1 if none is known.

        A neighbour that is too far ahead is believed only after a moment: one that sends nonsense is cut off by then.
        With `sure` this method waits for that moment.
        """
        while True:
            with self._changed:
                now, known = time.monotonic(), [-1]
                for box in self.boxes.values():
                    there = min(box.round, self._rounds - 1) if box.reachable else -1
                    box.ahead_since = min(box.ahead_since, now) if there > self._now[0] + self.behind else math.inf
                    if not now - LEAP < box.ahead_since <= now:
                        known.append(there)
                if len(known) > len(self.boxes) or not sure or self._stopping():
                    return max(known)
                self._changed.wait(LOOK)

    def left_behind(self) -> bool:
        """Whether a neighbour is at work in a later round, and so has not waited for this device."""
        with self._changed:
            return any(box.at[0] > self._now[0] for box in self.boxes.values() if box.reachable)

    def newest_model(self, least: int, seconds: float) -> tuple[int, Tensor] | None:
        """The newest model that a neighbour has sent, with its round; waits for one of round `least` or later."""

        def newest() -> tuple[int, Tensor] | None:
            models = [box.newest for box in self.boxes.values() if box.newest is not None]
            return max(models, key=lambda one: one[0], default=None)

        def enough(found: tuple[int, Tensor] | None) -> bool:
            return self.furthest() < least or (found is not None and found[0] >= least)

        return self._greet_until(newest, enough, seconds)

    def _greet_until(self, look: Callable[[], A], enough: Callable[[A], bool], seconds: float) -> A:
        """What `look` finds, when it is enough or after `seconds`; repeats hellos that may have been lost."""
        until = time.monotonic() + seconds
        while True:
            self._greet_again()
            with self._changed:
                found, left = look(), until - time.monotonic()
                if enough(found) or left <= 0 or self._stopping():
                    return found
                self._changed.wait(min(left, LOOK))

    def exchange(self, t: int, k: int, x: Tensor, peers: Iterable[int]) -> dict[int, Tensor]:
        """Send x to these neighbours in exchange k of round t; the numbers of those whose link counts."""
        peers = list(peers)
        self.begin(t, k)
        self._greet_again()
        numbers = self._bytes(x)
        header = Header(Kind.DATA, self.number, t, k, x.numel())
        for j in peers:
            if self.boxes[j].reachable:
                self._send(j, header, numbers)
                self.bytes_sent += len(numbers)
        found = (self._newest if self.staleness else self._agreed)((t, k), x.numel(), peers)
        with self._changed:
            for j in set(peers) - found.keys():
                self.boxes[j].missed += 1
                self.boxes[j].in_a_row += 1
        return {j: numbers.view_as(x) for j, numbers in found.items()}

    def _bytes(self, x: Tensor) -> bytearray:
        """The numbers as bytes, in memory that the next exchange uses again: sending copies them."""
        if len(self._buffer) != x.nbytes:
            self._buffer = bytearray(x.nbytes)
        torch.frombuffer(self._buffer, dtype=x.dtype).copy_(x.detach().reshape(-1))
        return self._buffer

    def _agreed(self, key: Key, size: int, peers: list[int]) -> dict[int, Tensor]:
        """The numbers of the neighbours with which this device agrees that the link counts."""
        begun = time.monotonic()
        with self._changed:
            self._open = exchange = Exchange(key, size, len(peers), set(peers))
        self._advance(peers)
        self._wait(lambda: self._ends(begun, key, exchange.waiting_for, len(peers)))
        with self._changed:
            exchange.late = True
        self._advance(peers)
        # a device that is to stop waits, too: what a neighbour promised may be on its way
        ends = time.monotonic() + GRACE * self.deadline
        self._wait(lambda: ends if exchange.waiting_for else -math.inf)
        with self._changed:
            self._open = None
        for j in exchange.waiting_for:
            self._send(j, Header(Kind.NO, self.number, *key))
        return exchange.found

    def _advance(self, peers: Iterable[int]) -> None:
        """Go as far as possible with these neighbours in the open exchange; also called as messages come."""
        answers, unfit = [], []
        with self._changed:
            if (exchange := self._open) is None:
                return
            for j in exchange.waiting_for.intersection(peers):
                box = self.boxes[j]
                if exchange.key in box.data and len(box.data[exchange.key]) != exchange.size:
                    del box.data[exchange.key]
                    unfit.append(box)
                if (answer := exchange.advance(j, box)) is not None:
                    answers.append((j, answer))
            if not patient([self.boxes[j].in_a_row for j in exchange.waiting_for], exchange.peers):
                self._changed.notify_all()
        for box in unfit:
            self._refuse(box, UNFIT)
        for j, answer in answers:
            self._send(j, Header(answer, self.number, *exchange.key))

    def _newest(self, key: Key, size: int, peers: list[int]) -> dict[int, Tensor]:
        """The newest numbers of each neighbour that are not too old."""
        begun = time.monotonic()

        def there(j: int) -> list[Key]:
            box = self.boxes[j]
            return [one for one in box.data if one[1] == key[1] and one >= box.oldest(key)]

        def missing() -> list[int]:
            return [j for j in peers if not there(j) and self.boxes[j].may_come(key)]

        self._wait(lambda: self._ends(begun, key, missing(), len(peers)))
        with self._changed:
            found = {j: self.boxes[j].data[max(there(j))] for j in peers if there(j)}
        for j in [j for j, numbers in found.items() if len(numbers) != size]:
            del found[j]
            self._refuse(self.boxes[j], UNFIT)
        return found

    def _wait(self, until: Callable[[], float]) -> None:
        """Wait until the time that `until` returns, which is asked again whenever something changes."""
        with self._changed:
            while (left := until() - time.monotonic()) > 0:
                self._changed.wait(min(left, LOOK))

    def _ends(self, begun: float, key: Key, waiting_for: Collection[int], peers: int) -> float:
        """Until when an exchange with `peers` neighbours waits for these of them."""
        # a device that others have left behind does not wait for one more
        if not waiting_for or self._stopping() or self.furthest() > key[0] + self.behind:
            return -math.inf
        if key == (0, 0) and self.patience > self.deadline:
            return begun + self.patience
        whole = patient([self.boxes[j].in_a_row for j in waiting_for], peers)
        return begun + (self.deadline if whole else GRACE * self.deadline)

    def _greet(self, j: int, known: bool = False) -> None:
        box = self.boxes[j]
        with self._changed:
            box.greeted = time.monotonic()
            hello = Header(Kind.HELLO, self.number, self._now[0], int(known or box.introduced))
        self._send(j, hello, self._digest + self._start)

    def _greet_all(self) -> None:
        for j, box in self.boxes.items():
            if box.reachable:
                self._greet(j)

    def _greet_again(self) -> None:
        """Repeat the hello to neighbours that have not answered: it may have been lost."""
        now = time.monotonic()
        for j, box in self.boxes.items():
            if box.alive and not box.introduced and not box.cut and now > box.greeted + AGAIN:
                self._greet(j)

    def _send(self, j: int, header: Header, payload: bytes | bytearray = b"") -> None:
        self._send_bytes(j, pack(header, self._dtype), payload)
