"""The links of one device: what its neighbours sent, and the exchange of numbers with them.

In the exchange (t, k), the k-th of round t, a device sends its numbers to its neighbours and waits for theirs, to a
deadline. A link counts if both ends have the other's numbers: each says YES as soon as it has them, and uses them when
it hears the other's YES. A neighbour that is dead, cut off or too far behind is not waited for. So after a lost message
both ends leave the link out. What remains: a YES that is lost itself, or comes after the deadline, leaves one end that
uses the link and one that does not. Each still takes a weighted mean; the mean over all devices moves, by
`W_ij |x_i - x_j| / K`.

With `staleness` s > 0 nobody says YES. A device takes the newest numbers that each neighbour sent in its round t - s or
later, and waits only where there are none.

Nothing here knows how messages travel: `send` is given, and `receive`, `here` and `gone` are called by whoever carries
them, on threads of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Protocol

import torch
from torch import Tensor

from drdsgd.network.messages import Header, Kind, Refused, pack, unpack, values

__all__ = ["BAD_MESSAGES", "BEHIND", "Box", "Links", "Log"]

# a neighbour that has missed more exchanges in a row than this is not waited for, until it is there again; and a
# device that has fallen further behind its neighbours goes on at their round
BEHIND = 3
# so many that are malformed, or come twice, and a neighbour is cut off
BAD_MESSAGES = 100
# what of a neighbour's may wait to be used: answers, and numbers in multiples of the largest message
WAITING_ANSWERS, WAITING_MESSAGES = 64, 3
# beyond the deadline, for the answer of a neighbour whose numbers have come
GRACE = 0.2

Send = Callable[[int, bytes, bytes], None]


class Log(Protocol):
    """Something noteworthy: `log("what", neighbour="who", ...)`."""

    def __call__(self, event: str, /, **about: Any) -> None: ...


def _silent(event: str, /, **about: Any) -> None:
    """Say nothing."""


@dataclass
class Box:
    """A neighbour, and what has come from it."""

    name: str
    alive: bool = False
    introduced: bool = False
    cut: bool = False
    round: int = -1
    """the newest that it said it is at"""
    at: tuple[int, int] = (-1, -1)
    """its newest exchange"""
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
    """those of them since it last sent what was still wanted"""


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
        staleness: int = 0,
        log: Log = _silent,
    ) -> None:
        """`size` numbers are a model, and no message has more than `most`; `digest` is what all must run alike.

        The run has so many rounds, and an exchange so many seconds (`deadline`).
        """
        self.number, self.deadline, self.staleness = number, deadline, staleness
        self.boxes = {j: Box(name) for j, name in neighbours.items()}
        self.bytes_sent = 0
        self._send_bytes, self._digest, self._dtype = send, digest, dtype
        self._size, self._most, self._rounds, self._log = size, most, rounds, log
        self._changed = Condition()
        self._now = (0, 0)  # the exchange that this device is at
        self._to_greet: set[int] = set()

    # ------------------------------------------------------------ what comes, on other threads

    def here(self, j: int) -> None:
        """The neighbour j can be reached."""
        with self._changed:
            self.boxes[j].alive = True
            self._to_greet.add(j)
            self._changed.notify_all()
        self._log("neighbour is here", neighbour=self.boxes[j].name)

    def gone(self, j: int) -> None:
        """The neighbour j can't be reached any more."""
        box = self.boxes[j]
        with self._changed:
            if not box.alive:
                return
            box.alive = box.introduced = False
            box.in_a_row = 0
            box.round, box.at, box.newest = -1, (-1, -1), None
            box.data.clear()
            box.answers.clear()
            self._to_greet.discard(j)
            self._changed.notify_all()
        self._log("neighbour is gone", neighbour=box.name)

    def receive(self, j: int, header: bytes, payload: Callable[[], bytes], length: int) -> None:
        """A message has come over the link to j, with a payload of so many bytes; it is read only if it is used."""
        box = self.boxes[j]
        if box.cut:
            return None
        try:
            message = unpack(header, length, j, self._dtype, self._most)
            if message.round > self._rounds:
                raise Refused("beyond the last round")
            numbers = None
            if message.kind is Kind.HELLO:
                if payload() != self._digest:
                    raise Refused("runs something else")
            elif not box.introduced:
                return self._drop(box, "before its hello")
            elif message.kind is Kind.DATA:
                if self._too_late(message):
                    return self._drop(box, "late")
                numbers = values(payload(), self._dtype)
            with self._changed:
                self._keep(box, message, numbers)
                self._changed.notify_all()
        except Refused as refused:
            self._refuse(box, str(refused))
        return None

    def _too_late(self, message: Header) -> bool:
        t, k = self._now
        if self.staleness:
            return message.round < t - self.staleness
        return (message.round, message.call) < (t, k)

    def _keep(self, box: Box, message: Header, numbers: Tensor | None) -> None:
        key = (message.round, message.call)
        box.round = max(box.round, message.round)
        if message.kind is Kind.HELLO:
            if not box.introduced:
                self._log("neighbour has introduced itself", neighbour=box.name, round=message.round)
            box.introduced = True
            return
        box.at = max(box.at, key)
        if numbers is None:
            if key in box.answers:
                raise Refused("came twice")
            if key >= self._now and len(box.answers) < WAITING_ANSWERS:
                box.answers[key] = message.kind is Kind.YES
            return
        if key in box.data:
            raise Refused("came twice")
        if len(numbers) == self._size and message.round > self._now[0]:
            box.newest = (message.round, numbers)
        if self.staleness:
            others = [one for one in box.data if one[1] == message.call]
            if max(others, default=key) > key:
                box.dropped["late"] += 1
                return
            for older in others:
                del box.data[older]
        waiting = sum(map(len, box.data.values())) + len(numbers)
        # without this device a neighbour gets as far as its next exchange with it; more come only when it is behind
        if waiting > WAITING_MESSAGES * self._most:
            box.dropped["early"] += 1
        else:
            box.data[key] = numbers
            box.in_a_row = 0

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

    def meet(self, seconds: float, watch: Callable[[list[str]], None] = lambda missing: None) -> list[str]:
        """Wait until all neighbours have introduced themselves, for so many seconds; the names of those that have not.

        `watch` sees them about once a second.
        """
        until = time.monotonic() + seconds
        while True:
            self._greet()
            with self._changed:
                missing = [box.name for box in self.boxes.values() if not box.introduced and not box.cut]
                left = until - time.monotonic()
                if not missing or left <= 0:
                    return missing
                if not self._to_greet:
                    self._changed.wait(min(left, 1.0))
            watch(missing)

    def furthest(self) -> int:
        """The latest round at which a neighbour is, -1 if there is none."""
        with self._changed:
            return max((box.round for box in self.boxes.values() if box.introduced and not box.cut), default=-1)

    def newest_model(self, least: int, seconds: float) -> tuple[int, Tensor] | None:
        """The newest model that a neighbour has sent in round `least` or later, with the round; waits for it."""
        until = time.monotonic() + seconds
        while True:
            self._greet()
            with self._changed:
                found = [box.newest for box in self.boxes.values() if box.newest is not None]
                found = [one for one in found if one[0] >= least]
                if found:
                    return max(found, key=lambda one: one[0])
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, 0.5))

    def exchange(self, t: int, k: int, x: Tensor, peers: Iterable[int]) -> dict[int, Tensor]:
        """Send x to these neighbours in the k-th exchange of round t; what has come of theirs, from where it counts."""
        peers = list(peers)
        with self._changed:
            self._now = (t, k)
            self._forget()
        self._greet()
        numbers = x.detach().cpu().numpy().tobytes()
        header = Header(Kind.DATA, self.number, t, k, x.numel())
        for j in peers:
            if self._reachable(self.boxes[j]):
                self._send(j, header, numbers)
        found = (self._newest if self.staleness else self._agreed)(t, k, peers)
        found = {j: numbers for j, numbers in found.items() if self._fits(j, numbers, x)}
        for j in peers:
            if j not in found:
                self.boxes[j].missed += 1
                self.boxes[j].in_a_row += 1
        return {j: numbers.view_as(x) for j, numbers in found.items()}

    def _agreed(self, t: int, k: int, peers: list[int]) -> dict[int, Tensor]:
        key, until = (t, k), time.monotonic() + self.deadline
        found: dict[int, Tensor] = {}
        open_, promised = set(peers), set[int]()
        late = False
        while open_:
            self._greet()
            with self._changed:
                promise, decline = [], []
                for j in list(open_):
                    box = self.boxes[j]
                    if j not in promised and not late and key in box.data:
                        promised.add(j)
                        promise.append(j)
                    if j in promised and key in box.answers:
                        open_.discard(j)
                        if box.answers[key] and key in box.data:
                            found[j] = box.data[key]
                    elif not self._may_come(box, key, promised=j in promised):
                        open_.discard(j)
                        if j not in promised and self._reachable(box):
                            decline.append(j)
                if not (promise or decline) and open_:
                    left = until - time.monotonic()
                    if left > 0:
                        self._changed.wait(left)
                    elif late:
                        break
                    else:
                        late = True
                        until += GRACE * self.deadline
            for j in promise:
                self._send(j, Header(Kind.YES, self.number, t, k))
            if late:
                decline += open_ - promised
                open_ &= promised
            for j in decline:
                self._send(j, Header(Kind.NO, self.number, t, k))
        return found

    def _newest(self, t: int, k: int, peers: list[int]) -> dict[int, Tensor]:
        until = time.monotonic() + self.deadline
        while True:
            self._greet()
            with self._changed:
                found, waiting = {}, False
                for j in peers:
                    box = self.boxes[j]
                    there = [one for one in box.data if one[1] == k and one[0] >= t - self.staleness]
                    if there:
                        found[j] = box.data[max(there)]
                    elif self._reachable(box) and box.in_a_row <= BEHIND:
                        waiting = True
                left = until - time.monotonic()
                if not waiting or left <= 0:
                    return found
                self._changed.wait(left)

    def _may_come(self, box: Box, key: tuple[int, int], promised: bool) -> bool:
        """Whether what is missing of a neighbour may still come: it comes before whatever else it sends."""
        if promised:
            return self._reachable(box) and box.at <= key
        return self._reachable(box) and box.at < key and box.in_a_row <= BEHIND

    def _reachable(self, box: Box) -> bool:
        return box.alive and box.introduced and not box.cut

    def _fits(self, j: int, numbers: Tensor, x: Tensor) -> bool:
        if len(numbers) == x.numel():
            return True
        self._refuse(self.boxes[j], "another number of numbers")
        return False

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

    def _greet(self) -> None:
        with self._changed:
            waiting, self._to_greet = self._to_greet, set()
            t = self._now[0]
        for j in waiting:
            self._send(j, Header(Kind.HELLO, self.number, t), self._digest)

    def leave(self, t: int, seconds: float) -> None:
        """Say that this device is done with t rounds; wait until its neighbours are, or gone, for so many seconds."""
        with self._changed:
            self._now = (t, 0)
            self._to_greet = {j for j, box in self.boxes.items() if self._reachable(box)}
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._greet()
            with self._changed:
                if all(box.round >= t for box in self.boxes.values() if self._reachable(box)):
                    return
                self._changed.wait(min(left, 0.5))

    def _send(self, j: int, header: Header, payload: bytes = b"") -> None:
        self.bytes_sent += len(payload)
        self._send_bytes(j, pack(header, self._dtype), payload)
