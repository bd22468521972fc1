"""The exchange between neighbours: both ends of a link agree, even if some are late or hostile."""

from __future__ import annotations

import random
import time
import tracemalloc
from functools import partial
from operator import mul
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drdsgd.network.links import BEHIND, MORE_MESSAGES, Links
from drdsgd.network.mailbox import BAD_MESSAGES, WAITING
from drdsgd.network.messages import KIND_AT, Header, Kind, pack
from tests.support.deployments import all_at_once, hostile, joined_links
from tests.support.program import wait_for

pytestmark = pytest.mark.slow

FULL = [(0, 1), (0, 2), (1, 2)]


def x(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((1, size), value, dtype=torch.float64)


def exchanged(links: dict[int, Links], t: int = 0, k: int = 0) -> dict[int, set[int]]:
    """With whom each device exchanged, if all take part."""
    tasks = [partial(one.exchange, t, k, x(float(i)), list(one.boxes)) for i, one in links.items()]
    found = dict(zip(links, all_at_once(tasks), strict=True))
    for heard in found.values():
        assert all(numbers.equal(x(float(j))) for j, numbers in heard.items())
    return {i: set(heard) for i, heard in found.items()}


def tell(links: Links, message: Header, payload: bytes | None = None) -> None:
    """Deliver a message from its sender."""
    content = bytes(8 * message.numbers) if payload is None else payload
    links.receive(message.sender, pack(message, torch.float64), lambda: content, len(content))


def test_everybody_gets_everything() -> None:
    links = joined_links(FULL)
    for t, k in ((0, 0), (0, 1), (1, 0)):
        assert exchanged(links, t, k) == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
    assert all(box.missed == 0 and not box.dropped for one in links.values() for box in one.boxes.values())


@settings(max_examples=12)
@given(lost=st.sets(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2]), st.sampled_from([*Kind]))))
def test_both_ends_agree_unless_a_yes_is_lost(lost: set[tuple[int, int, Kind]]) -> None:
    on = [False]

    def deliver(i: int, j: int, header: bytes) -> bool:
        return not on[0] or (i, j, Kind(header[5])) not in lost

    links = joined_links(FULL, deliver=deliver, deadline=0.3)
    on[0] = True
    found = exchanged(links)
    for i, j in FULL:
        if (i, j, Kind.DATA) in lost or (j, i, Kind.DATA) in lost:
            assert j not in found[i] and i not in found[j]
        elif (i, j, Kind.YES) not in lost and (j, i, Kind.YES) not in lost:
            assert j in found[i] and i in found[j]
        else:  # a device that receives no YES leaves the link out, and the other may not know
            assert (j in found[i]) == ((j, i, Kind.YES) not in lost)
            assert (i in found[j]) == ((i, j, Kind.YES) not in lost)


def test_one_that_goes_on_without_a_no_has_used_the_link() -> None:
    lost = [True]

    def deliver(i: int, j: int, header: bytes) -> bool:
        return not (lost[0] and (i, j, header[5]) == (0, 1, Kind.YES))

    links = joined_links([(0, 1)], deliver=deliver, deadline=60.0)

    def first() -> list[set[int]]:
        found = [set(links[0].exchange(0, 0, x(0.0), [1]))]
        lost[0] = False
        return [*found, set(links[0].exchange(1, 0, x(0.0), [1]))]

    def second() -> list[set[int]]:
        return [set(links[1].exchange(t, 0, x(1.0), [0])) for t in (0, 1)]

    begun = time.monotonic()
    assert all_at_once([first, second]) == [[{1}, {1}], [{0}, {0}]]
    assert time.monotonic() - begun < 30


def test_after_a_lost_message_nobody_waits_for_the_deadline() -> None:
    """A device that misses numbers says so."""
    links = joined_links(FULL, deliver=lambda i, j, header: (i, j, header[5]) != (0, 1, Kind.DATA), deadline=60.0)
    begun = time.monotonic()
    assert exchanged(links) == {0: {2}, 1: {2}, 2: {0, 1}}
    assert time.monotonic() - begun < 30


def test_one_that_is_gone_is_not_waited_for() -> None:
    links = joined_links(FULL, deadline=60.0)
    links[0].gone(2)
    links[1].gone(2)
    del links[2]
    assert exchanged(links) == {0: {1}, 1: {0}}


def test_one_that_dies_in_an_exchange_ends_the_waiting() -> None:
    links = joined_links([(0, 1)], deadline=60.0)
    waiting = partial(links[0].exchange, 0, 0, x(0.0), [1])

    def die() -> None:
        time.sleep(0.1)
        links[0].gone(1)

    assert all_at_once([waiting, die])[0] == {}


def test_one_that_is_late_is_left_out_by_both() -> None:
    links = joined_links([(0, 1)], deadline=0.1)
    assert links[0].exchange(0, 0, x(0.0), [1]) == {}
    assert links[1].exchange(0, 0, x(1.0), [0]) == {}
    assert links[0].boxes[1].missed == links[1].boxes[0].missed == 1
    # numbers that came too late do not count for the next exchange
    assert exchanged(links, 1) == {0: {1}, 1: {0}}
    assert links[0].boxes[1].dropped.total() <= 1


def test_one_that_stays_late_is_waited_for_now_and_then_until_it_says_where_it_is() -> None:
    links = joined_links([(0, 1), (0, 2)], deadline=0.2)
    links[2].deadline = 60.0  # it waits for 0, which waits for 1
    lasted: list[bool] = []

    def go(i: int) -> None:
        for t in range(9):
            begun = time.monotonic()
            assert set(links[i].exchange(t, 0, x(0.0), list(links[i].boxes))) == {2 - i}
            if i == 0:
                lasted.append(time.monotonic() - begun >= 0.2)

    all_at_once([partial(go, i) for i in (0, 2)])  # 1 is there, but never sends
    assert [t for t in range(9) if lasted[t]] == [0, 1, 2, 4, 8]
    assert links[1].furthest(sure=True) == 8  # from which it knows where to continue
    links[1].leap(9)
    assert links[0].boxes[1].in_a_row == 0
    assert exchanged(links, 9) == {0: {1, 2}, 1: {0}, 2: {0}}
    assert links[0].boxes[1].missed == 9


def test_where_most_are_missing_it_does_not_run_ahead() -> None:
    links = joined_links([(0, 1), (0, 2)], deadline=0.1)
    begun = time.monotonic()
    for t in range(8):
        assert links[0].exchange(t, 0, x(0.0), [1, 2]) == {}
    assert time.monotonic() - begun >= 0.8


def test_who_leaps_still_has_what_was_sent_for_the_round_it_leaps_to() -> None:
    links = joined_links([(0, 1)], deadline=0.05)
    for t in range(9):
        links[1].exchange(t, 0, x(1.0), [0])
    assert {*links[0].boxes[1].data} == {(6, 0), (7, 0), (8, 0)} and links[0].boxes[1].dropped == {"too far ahead": 6}
    links[0].leap(8)
    assert {*links[0].boxes[1].data} == {(8, 0)}


def test_many_small_messages_take_no_room() -> None:
    links = joined_links([(0, 1)], size=100_000)
    for call in range(1, 8):
        tell(links[0], Header(Kind.DATA, 1, 50, call, 1))
    for t in range(51, 100):
        for call in range(8):
            tell(links[0], Header(Kind.DATA, 1, t, call, 1))
    assert len(links[0].boxes[1].data) == WAITING and links[0].boxes[1].bad == 0
    tell(links[0], Header(Kind.DATA, 1, 99, 8, 1))
    assert links[0].boxes[1].dropped["beyond the last exchange"] == links[0].boxes[1].bad == 1


def test_the_last_round_is_the_last_with_numbers() -> None:
    links = joined_links([(0, 1)], rounds=100)
    tell(links[0], Header(Kind.DATA, 1, 100, 0, 4))
    assert links[0].boxes[1].dropped == {"beyond the last round": 1} and links[0].boxes[1].newest is None
    links[1].leave(100, 0.0)  # a device that has finished says so
    assert links[0].boxes[1].round == 100 and links[0].furthest(sure=True) == 99


def test_who_is_to_stop_does_what_it_has_promised() -> None:
    """Although it waits for nothing else: its neighbour uses the link, and so must it."""
    stop = [False]
    links = joined_links([(0, 1)], deadline=5.0, latency=0.02)
    links[0]._stopping = lambda: stop[0]

    def other() -> set[int]:
        return set(links[1].exchange(0, 0, x(1.0), [0]))

    def stopped() -> set[int]:
        wait_for(lambda: (0, 0) in links[0].boxes[1].data)
        stop[0] = True
        return set(links[0].exchange(0, 0, x(0.0), [1]))

    assert all_at_once([stopped, other]) == [{1}, {0}]


def test_a_slow_device_does_not_make_others_miss_each_other() -> None:
    """Except in the first exchanges, in which its neighbour is late for the others."""
    links = joined_links([(0, 1), (1, 2), (2, 3)], deadline=0.3, latency=0.005)
    rounds = 24
    missed: list[int] = []

    def go(i: int) -> None:
        for t in range(rounds):
            found = links[i].exchange(t, 0, x(float(i)), list(links[i].boxes))
            if i == 2 and 1 not in found:
                missed.append(t)

    all_at_once([partial(go, i) for i in (1, 2, 3)])  # 0 is there, but never sends
    assert links[1].boxes[0].missed == rounds and len(missed) <= 5


def test_a_model_that_does_not_come_is_not_waited_for() -> None:
    links = joined_links([(0, 1), (0, 2)])
    tell(links[0], Header(Kind.DATA, 2, 40, 0, 4))
    tell(links[0], Header(Kind.HELLO, 1, 60), payload=b"d" * 32 + links[1]._start)
    assert links[0].furthest(sure=True) == 60
    found: list[tuple[int, torch.Tensor] | None] = []

    def later() -> None:
        time.sleep(0.1)
        links[0].gone(1)

    begun = time.monotonic()
    all_at_once([lambda: found.append(links[0].newest_model(60, 60.0)), later])
    assert found[0] is not None and found[0][0] == 40 and time.monotonic() - begun < 30


def test_a_new_process_is_known_by_its_hello() -> None:
    links = joined_links([(0, 1)])
    tell(links[0], Header(Kind.DATA, 1, 5, 0, 4))
    tell(links[0], Header(Kind.HELLO, 1, 3, 1), payload=b"d" * 32 + links[1]._start)  # the same: its hello was slow
    assert (5, 0) in links[0].boxes[1].data
    tell(links[0], Header(Kind.HELLO, 1, 5, 1), payload=b"d" * 40)
    assert not links[0].boxes[1].data and links[0].boxes[1].sent == (-1, -1)
    tell(links[0], Header(Kind.DATA, 1, 5, 0, 4))
    assert (5, 0) in links[0].boxes[1].data and links[0].boxes[1].bad == 0


def test_one_that_only_waits_has_left_nobody_behind() -> None:
    links = joined_links([(0, 1)])
    links[0].begin(15)
    tell(links[0], Header(Kind.HELLO, 1, 16), payload=b"d" * 32 + links[1]._start)
    tell(links[0], Header(Kind.DATA, 1, 15, 0, 4))  # it waits for this one now
    assert links[0].boxes[1].round == 16 and not links[0].left_behind()
    tell(links[0], Header(Kind.DATA, 1, 16, 0, 4))
    assert links[0].left_behind()


def test_a_neighbour_that_runs_something_else_is_never_heard() -> None:
    links = joined_links([(0, 1)])
    links[0].gone(1)
    links[1].gone(0)
    links[1]._digest = b"e" * 32
    links[0].here(1)
    links[1].here(0)
    assert links[0].meet(0.05) == ["device-1"]
    assert links[1].meet(0.05) == ["device-0"]
    assert links[0].boxes[1].dropped["runs something else"] >= 1 and links[0].boxes[1].bad == 0
    tell(links[0], Header(Kind.DATA, 1, 0, 0, 4))
    assert links[0].boxes[1].dropped["before its hello"] == 1


def test_meeting_tells_who_is_missing() -> None:
    links = joined_links([(0, 1), (0, 2)], meet=False)
    links[0].gone(2)
    links[1].meet(0.01)
    assert links[0].meet(0.05) == ["device-2"]


def test_stale_rounds_and_replays_are_dropped() -> None:
    links = joined_links([(0, 1)])
    links[0].begin(5)
    box = links[0].boxes[1]
    tell(links[0], Header(Kind.DATA, 1, 4, 0, 4))
    assert box.dropped == {"late": 1} and not box.data and box.bad == 0
    tell(links[0], Header(Kind.DATA, 1, 5, 0, 4))
    tell(links[0], Header(Kind.DATA, 1, 5, 0, 4), payload=b"\x01" * 32)
    assert box.dropped["came twice"] == 1 and box.data[5, 0].sum() == 0
    tell(links[0], Header(Kind.YES, 1, 5, 0))
    tell(links[0], Header(Kind.YES, 1, 5, 0))
    assert box.dropped["came twice"] == box.bad == 1 and box.answers[5, 0]
    tell(links[0], Header(Kind.NO, 1, 5, 0))
    assert box.dropped["came twice"] == 1 and not box.answers[5, 0]
    tell(links[0], Header(Kind.DATA, 1, 101, 0, 4))
    assert box.dropped["beyond the last round"] == 1 and box.round == 5


def test_numbers_of_another_shape_are_not_used() -> None:
    links = joined_links([(0, 1)])
    tell(links[0], Header(Kind.DATA, 1, 0, 0, 3))
    tell(links[0], Header(Kind.YES, 1, 0, 0))
    assert links[0].exchange(0, 0, x(0.0), [1]) == {}
    assert links[0].boxes[1].dropped == {"another number of numbers": 1}


@pytest.mark.parametrize("staleness", [0, 2])
def test_ten_thousand_hostile_messages(staleness: int) -> None:
    """No crash, bounded memory, exchanges with the others as usual, and the neighbour is cut off."""
    events: list[tuple[str, dict[str, Any]]] = []
    size = 1000
    links = joined_links(
        FULL, size=size, staleness=staleness, log=lambda event, /, **about: events.append((event, about)), deadline=5.0
    )
    victim = links[0]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    most = 0
    for n, (header, content, length) in enumerate(hostile(random.Random(1), 1, size, 10_000)):
        victim.receive(1, header, partial(mul, content, length // 8), length)
        if n % 50 == 0:
            victim.boxes[1].bad = min(victim.boxes[1].bad, BAD_MESSAGES - 60)  # so that it is not cut off too soon
        most = max(most, sum(map(len, victim.boxes[1].data.values())))
    assert 0 < most <= (1 + MORE_MESSAGES) * size
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 8 * size * (MORE_MESSAGES + 2) + 200_000
    box = victim.boxes[1]
    assert not box.cut and box.dropped.total() > 5000
    for _ in range(BAD_MESSAGES):
        victim.receive(1, b"", bytes, 0)
    assert box.cut and box.bad == BAD_MESSAGES and not box.data and box.newest is None
    assert [event for event, _ in events].count("neighbour is cut off") == 1
    assert len(events) < 40  # the log does not grow with the messages
    # the others exchange as usual
    del links[1]
    for t in (0, 1):
        tasks = [partial(links[i].exchange, t, 0, x(float(i), size), [j]) for i, j in ((0, 2), (2, 0))]
        assert [set(found) for found in all_at_once(tasks)] == [{2}, {0}]
    assert victim.exchange(2, 0, x(0.0, size), [1]) == {}


def test_with_staleness_the_newest_is_used_and_nobody_waits() -> None:
    links = joined_links([(0, 1)], staleness=2, deadline=0.2)
    assert links[0].exchange(0, 0, x(0.0), [1]) == {}  # nothing has come yet
    assert links[1].exchange(0, 0, x(1.0), [0])[0].equal(x(0.0))
    links[0].deadline = 60.0
    begun = time.monotonic()
    for t in (1, 2):  # as old as two rounds
        assert links[0].exchange(t, 0, x(0.0), [1])[1].equal(x(1.0))
    assert time.monotonic() - begun < 30
    links[0].deadline = 0.05
    assert links[0].exchange(3, 0, x(0.0), [1]) == {}
    assert links[1].exchange(5, 0, x(5.0), [0])[0].equal(x(0.0))
    assert links[0].exchange(4, 0, x(0.0), [1])[1].equal(x(5.0))  # newer than its own round
    tell(links[0], Header(Kind.DATA, 1, 3, 0, 4))
    assert links[0].boxes[1].dropped["came twice"] == 1


def test_with_staleness_every_exchange_of_a_round_counts() -> None:
    """No matter how many models a round exchanges."""
    links = joined_links([(0, 1)], staleness=1, repeats=5, deadline=0.2)
    for t in range(3):
        for k in range(5):
            exchanged(links, t, k)
    assert all(box.missed <= 5 and not box.dropped for one in links.values() for box in one.boxes.values())


def test_one_that_has_not_begun_lets_nobody_wait() -> None:
    links = joined_links([(0, 1)], deadline=60.0)
    links[1].running = False
    links[1].begin(2)
    begun = time.monotonic()
    assert links[0].exchange(9, 0, x(0.0), [1]) == {}
    assert time.monotonic() - begun < 30
    found = links[1].newest_model(9, 1.0)
    assert found is not None and found[0] == 9


def test_before_the_first_exchange_there_is_patience() -> None:
    """A neighbour may still wait for its own neighbours."""
    links = joined_links([(0, 1)], deadline=0.05, patience=60.0)

    def later() -> dict[int, torch.Tensor]:
        time.sleep(0.4)
        return links[1].exchange(0, 0, x(1.0), [0])

    assert [set(found) for found in all_at_once([partial(links[0].exchange, 0, 0, x(0.0), [1]), later])] == [{1}, {0}]


def test_who_is_left_behind_waits_for_nobody() -> None:
    """Not even in the first exchange, for a neighbour whose message was lost."""
    lost = {(1, 0), (0, 1)}
    links = joined_links(
        FULL, deadline=0.05, patience=60.0, deliver=lambda i, j, h: h[KIND_AT] != Kind.DATA or (i, j) not in lost
    )
    begun = time.monotonic()
    tasks = [partial(links[i].exchange, 0, 0, x(float(i)), [j for j in range(3) if j != i]) for i in range(2)]

    def run_ahead() -> None:
        for t in range(BEHIND + 2):
            links[2].exchange(t, 0, x(2.0), [0, 1])

    assert [set(found) for found in all_at_once([*tasks, run_ahead])[:2]] == [{2}, {2}]
    assert time.monotonic() - begun < 30


def test_who_is_to_stop_waits_for_nobody() -> None:
    stop = [False]
    links = joined_links([(0, 1)], deadline=60.0, stopping=lambda: stop[0])

    def ask() -> None:
        time.sleep(0.1)
        stop[0] = True

    begun = time.monotonic()
    assert all_at_once([partial(links[0].exchange, 0, 0, x(0.0), [1]), ask])[0] == {}
    assert time.monotonic() - begun < 30


def test_a_hello_of_another_version_or_type_is_a_mistake_and_not_hostile() -> None:
    links = joined_links([(0, 1)])
    other = bytearray(pack(Header(Kind.HELLO, 1, 0), torch.float32))
    for _ in range(2 * BAD_MESSAGES):
        links[0].receive(1, bytes(other), lambda: b"d" * 40, 40)
    assert not links[0].boxes[1].cut and links[0].boxes[1].bad == 0 and not links[0].boxes[1].introduced


def test_the_newest_model_of_one_that_is_ahead() -> None:
    links = joined_links([(0, 1)])
    assert links[0].newest_model(0, 0.01) is None
    tell(links[0], Header(Kind.DATA, 1, 7, 0, 1))
    tell(links[0], Header(Kind.DATA, 1, 7, 1, 4), payload=b"".join([x(3.0).numpy().tobytes()]))
    found = links[0].newest_model(7, 0.01)
    assert found is not None and found[0] == 7 and found[1].equal(x(3.0)[0])
    assert links[0].newest_model(8, 0.01) == found  # nobody is further
    links[0].begin(7)
    assert links[0].boxes[1].newest is None


def test_one_that_leaps_ahead_is_believed_after_a_moment() -> None:
    links = joined_links([(0, 1), (0, 2)])
    tell(links[0], Header(Kind.DATA, 1, BEHIND, 0, 4))
    tell(links[0], Header(Kind.DATA, 2, 90, 0, 4))
    assert links[0].furthest() == BEHIND
    assert links[0].furthest(sure=True) == 90 == links[0].furthest()
    for _ in range(BAD_MESSAGES):
        links[0].receive(2, b"", bytes, 0)
    assert links[0].furthest(sure=True) == BEHIND


def test_leaving_waits_for_the_others_to_be_done() -> None:
    links = joined_links([(0, 1)])

    def later() -> None:
        time.sleep(0.2)
        links[1].leave(100, 5.0)

    begun = time.monotonic()
    all_at_once([partial(links[0].leave, 100, 60.0), later])
    assert 0.1 < time.monotonic() - begun < 30


def test_one_that_comes_back_is_greeted_and_starts_afresh() -> None:
    links = joined_links([(0, 1)])
    exchanged(links, 3)
    links[0].gone(1)
    assert links[0].furthest() == -1
    links[0].gone(1)  # told twice
    links[1].gone(0)
    links[0].here(1)
    links[1].here(0)
    links[0].meet(0.01)
    assert links[1].meet(0.01) == [] and links[0].meet(0.01) == []
    assert links[0].furthest() == 3
    assert exchanged(links, 4) == {0: {1}, 1: {0}}
