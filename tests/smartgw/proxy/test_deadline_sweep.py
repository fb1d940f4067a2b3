"""deadlines.py on a clock of its own: nothing expires early, late, twice or after the end."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartgw.proxy.deadlines import NEVER, Deadlines

EARLY = 0.001
"""A timer of the loop may fire this much before its time."""


class Clock:
    """The part of an event loop that the sweeps use; time passes when it is told to."""

    def __init__(self, late: Callable[[], float] = lambda: 0.0) -> None:
        self.now = 1000.0
        self.timers = 0
        self._late = late
        self._queue: list[tuple[float, int, list[object]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: object, *arguments: object) -> Clock.Handle:
        entry: list[object] = [callback, arguments]
        heapq.heappush(self._queue, (when, next(self._numbers), entry))
        self.timers += 1
        return Clock.Handle(entry)

    def call_later(self, delay: float, callback: object, *arguments: object) -> Clock.Handle:
        return self.call_at(self.now + delay, callback, *arguments)

    class Handle:
        """A timer that can be cancelled."""

        def __init__(self, entry: list[object]) -> None:
            self._entry = entry

        def cancel(self) -> None:
            self._entry.clear()

    def run(self, seconds: float) -> None:
        """Let time pass and fire what is due, each as late as `late` says."""
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            when, _, entry = heapq.heappop(self._queue)
            self.now = max(self.now, when) + self._late()
            if entry:
                callback, arguments = entry
                cast("Callable[..., None]", callback)(*cast("tuple[object, ...]", arguments))
        self.now = max(self.now, until)


class Item:
    """Something that expires; it notes when, and waits for what it is told to wait for next."""

    def __init__(self, clock: Clock, deadline: float, then: float = NEVER) -> None:
        self.clock = clock
        self.deadline = deadline
        self.then = then
        self.expired: list[float] = []

    def expire(self, now: float) -> None:
        assert now == self.clock.now
        self.expired.append(now)
        self.deadline = now + self.then


def watch(clock: Clock, shortest: float = 5.0) -> Deadlines:
    """Sweeps that have begun."""
    deadlines = Deadlines(cast("asyncio.AbstractEventLoop", clock), shortest)
    deadlines.start()
    return deadlines


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.5, 20.0), min_size=1, max_size=30), st.floats(0.5, 5.0), st.floats(0, 2)
)
def test_each_in_its_time(delays: list[float], shortest: float, before: float) -> None:
    """3.11: a deadline is kept to the loop's precision, whenever in a round it was set."""
    clock = Clock()
    deadlines = watch(clock, shortest)
    clock.run(before)
    items = [Item(clock, clock.now + max(delay, shortest)) for delay in delays]
    wanted = [item.deadline for item in items]
    for item in items:
        deadlines.add(item)
    assert len(deadlines) == len(items)
    clock.run(30)
    for item, when in zip(items, wanted, strict=True):
        assert item.expired == [pytest.approx(when, abs=EARLY)]


def test_a_moved_deadline() -> None:
    """3.11: progress moves a deadline by an assignment; the old one never fires."""
    clock = Clock()
    deadlines = watch(clock, 1.0)
    item = Item(clock, clock.now + 1.0)
    deadlines.add(item)
    for _ in range(40):
        clock.run(0.5)
        item.deadline = clock.now + 1.0
    assert item.expired == []
    clock.run(5)
    assert len(item.expired) == 1


def test_an_expired_item_may_expire_again() -> None:
    """3.11: who sets a new deadline on expiry is told once for each."""
    clock = Clock()
    deadlines = watch(clock, 2.0)
    item = Item(clock, clock.now + 3.0, then=2.0)
    begun = clock.now
    deadlines.add(item)
    clock.run(12)
    assert item.expired == pytest.approx([begun + when for when in (3, 5, 7, 9, 11)], abs=EARLY)


def test_discarded() -> None:
    """3.11: what has ended is not told, not even by a timer that was set before; nor is it held."""
    clock = Clock()
    deadlines = watch(clock, 1.0)
    early, late = Item(clock, clock.now + 1.0), Item(clock, clock.now + 1.0)
    for item in (early, late):
        deadlines.add(item)
    deadlines.discard(early)
    clock.run(0.9)
    deadlines.discard(late)
    deadlines.discard(late)
    clock.run(5)
    assert early.expired == late.expired == []
    assert len(deadlines) == 0


def test_stopped() -> None:
    """11.1: after the end nothing expires, not even what had its timer already."""
    clock = Clock()
    deadlines = watch(clock, 1.0)
    item = Item(clock, clock.now + 1.0)
    deadlines.add(item)
    clock.run(0.9)
    deadlines.stop()
    deadlines.stop()
    clock.run(5)
    assert item.expired == []


def test_never() -> None:
    """3.11: what has no deadline is never told and costs no timer."""
    clock = Clock()
    deadlines = watch(clock)
    items = [Item(clock, NEVER) for _ in range(1000)]
    for item in items:
        deadlines.add(item)
    before = clock.timers
    clock.run(100)
    # Ten slots, each looked at about once a second.
    assert clock.timers - before <= 1001
    assert not any(item.expired for item in items)


def test_many_cost_few_timers() -> None:
    """3.11: 10,000 connections whose deadlines keep moving cost the sweeps and nothing else."""
    clock = Clock()
    deadlines = watch(clock, 10.0)
    items = [Item(clock, clock.now + 75.0) for _ in range(10_000)]
    for item in items:
        deadlines.add(item)
    before = clock.timers
    for _ in range(10):
        clock.run(5)
        for item in items:
            item.deadline = clock.now + 75.0
    assert clock.timers - before < 600
    assert not any(item.expired for item in items)


@settings(max_examples=40)
@given(st.lists(st.floats(0, 0.03), min_size=1, max_size=50), st.floats(1.0, 4.0))
def test_on_a_busy_loop(lateness: list[float], delay: float) -> None:
    """3.11: a loop that is late makes deadlines no later than itself, and none is lost."""
    clock = Clock(itertools.cycle(lateness).__next__)
    deadlines = watch(clock, 1.0)
    item = Item(clock, clock.now + delay)
    wanted = item.deadline
    deadlines.add(item)
    clock.run(10)
    assert len(item.expired) == 1
    assert wanted - EARLY <= item.expired[0] <= wanted + 0.5


def test_after_a_stall() -> None:
    """1.7: what became due while the loop stood still is told at the next sweep."""
    clock = Clock()
    deadlines = watch(clock, 1.0)
    item = Item(clock, clock.now + 6.0)
    deadlines.add(item)
    clock.run(1)
    clock.now += 12
    clock.run(1)
    assert len(item.expired) == 1
