"""When a link counts: both ends of it agree on whether they use each other's numbers.

Each end sends YES as soon as it has the other's numbers. It uses them when it receives the other's YES, or when the
other moves on to its next exchange without a NO. An end that gives up sends NO. So after a lost message both ends leave
the link out, or both use it. One case remains: if the last message before the deadline is lost, one end uses the link
and the other does not. Each still takes a weighted mean, but the mean over all K devices moves by
`W_ij |x_i - x_j| / K`.

Nothing here waits or sends: `network.links` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from drdsgd.network.mailbox import Key, Mailbox
from drdsgd.network.messages import Kind

__all__ = ["Exchange", "patient"]


@dataclass
class Exchange:
    """An exchange under way with `peers` neighbours; after the deadline (`late`) only answers are waited for."""

    key: Key
    size: int
    peers: int
    waiting_for: set[int]
    """neighbours with which it is not settled yet"""
    promised: set[int] = field(default_factory=set)
    """neighbours that were sent a YES"""
    found: dict[int, Tensor] = field(default_factory=dict)
    """the numbers of the links that count"""
    late: bool = False

    def advance(self, j: int, box: Mailbox) -> Kind | None:
        """Go as far with the neighbour j as its messages allow; the answer to send to it, if any."""
        key = self.key
        answer = None
        if j not in self.promised and key in box.data and not self.late:
            self.promised.add(j)
            answer = Kind.YES
        if j in self.promised:
            if key in box.answers or box.at > key:
                # a neighbour that moves on without a NO has used the numbers
                if box.answers.get(key, True) and key in box.data:
                    self.found[j] = box.data[key]
                self.waiting_for.discard(j)
            elif not box.reachable:
                self.waiting_for.discard(j)
        # messages come in order: numbers that are missing now will not come any more
        elif not box.may_come(key) or box.at >= key or self.late:
            self.waiting_for.discard(j)
            answer = Kind.NO if box.reachable else None
        return answer


def patient(missed_in_a_row: Sequence[int], peers: int) -> bool:
    """Whether to wait for the whole deadline, given the past misses of the neighbours that are still missing.

    A neighbour that was late before gets the whole deadline only after 1, 2, 4, 8, ... misses. Otherwise one slow
    device would make its neighbours late for theirs in every exchange. But where most of the `peers` are missing, this
    device is the fast one, and must not run ahead of all.

    >>> patient([3], peers=4), patient([4], peers=4), patient([3, 3, 3], peers=4)
    (False, True, True)
    """
    return 2 * len(missed_in_a_row) > peers or any(n & (n - 1) == 0 for n in missed_in_a_row)
