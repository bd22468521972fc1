"""A neighbour as a device knows it: whether it is reachable, its round, and its messages that wait to be used."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from drdsgd.network.messages import Header, Kind

__all__ = ["BAD_MESSAGES", "Key", "Mailbox"]

# a neighbour is cut off after this many messages that are malformed or come twice
BAD_MESSAGES = 100
# the most messages of a neighbour that wait to be used, answers and numbers each
WAITING = 64

Key = tuple[int, int]
"""an exchange: the round, and the number of the exchange within the round"""


@dataclass
class Mailbox:
    """A neighbour, and what it has sent.

    A model has `size` numbers. At most `room` numbers wait to be used; with `staleness` they may be that many rounds
    old.
    """

    name: str
    size: int
    room: int
    staleness: int
    start: bytes = b""
    """identifies its process: a restarted one has another"""
    alive: bool = False
    introduced: bool = False
    cut: bool = False
    round: int = -1
    """the newest round that it reported"""
    at: Key = (-1, -1)
    """its newest exchange"""
    sent: Key = (-1, -1)
    """the newest exchange in which it sent numbers: they come in order"""
    data: dict[Key, Tensor] = field(default_factory=dict)
    answers: dict[Key, bool] = field(default_factory=dict)
    newest: tuple[int, Tensor] | None = None
    """its newest model, with the round; kept while the neighbour is ahead"""
    dropped: Counter[str] = field(default_factory=Counter)
    """messages that were not used, by reason"""
    bad: int = 0
    missed: int = 0
    """exchanges in which the link did not count"""
    in_a_row: int = 0
    """missed exchanges since it last sent numbers in time, or a hello"""
    greeted: float = -math.inf
    """when this device last sent it a hello"""
    ahead_since: float = math.inf
    """when it was first seen to be too far ahead"""

    @property
    def reachable(self) -> bool:
        """Whether it is connected, runs the same experiment, and is not cut off."""
        return self.alive and self.introduced and not self.cut

    def oldest(self, now: Key) -> Key:
        """The oldest exchange whose numbers a device that is at `now` can still use."""
        return (now[0] - self.staleness, 0) if self.staleness else now

    def may_come(self, key: Key) -> bool:
        """Whether its numbers for this exchange may still come."""
        return self.reachable and self.answers.get(key) is not False

    def keep(self, message: Header, numbers: Tensor | None, now: Key) -> None:
        """Store a message with numbers, or an answer (None), for a device that is at `now`."""
        key = (message.round, message.call)
        self.round, self.at = max(self.round, message.round), max(self.at, key)
        if numbers is None:
            # a NO may follow a YES; any other second answer, which an honest neighbour may send, says nothing new
            new = key not in self.answers or (self.answers[key] and message.kind is Kind.NO)
            if new and key >= now and len(self.answers) < WAITING:
                self.answers[key] = message.kind is Kind.YES
            return
        if len(numbers) == self.size and message.round > now[0]:
            self.newest = (message.round, numbers)
        if self.staleness:
            for older in [one for one in self.data if one[1] == message.call]:
                del self.data[older]
        self.data[key], self.in_a_row = numbers, 0
        # without this device, a neighbour gets no further than its next exchange with it; more numbers come only
        # when this device is behind, and then the earlier exchanges are over for the neighbour
        while len(self.data) > WAITING or sum(map(len, self.data.values())) > self.room:
            del self.data[min(self.data)]
            self.dropped["too far ahead"] += 1

    def forget(self, now: Key) -> None:
        """Drop the messages of exchanges that are over for a device that is at `now`."""
        for kept in (self.data, self.answers):
            for key in [one for one in kept if one < self.oldest(now)]:
                del kept[key]
        if self.newest is not None and self.newest[0] <= now[0]:
            self.newest = None

    def empty(self) -> None:
        """Drop all messages."""
        self.data.clear()
        self.answers.clear()
        self.newest = None

    def restarted(self, start: bytes) -> None:
        """A new process of this neighbour begins from nothing."""
        self.empty()
        self.start, self.round, self.at, self.sent = start, -1, (-1, -1), (-1, -1)
