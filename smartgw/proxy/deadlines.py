"""When a connection has waited long enough, for many connections at the price of few timers.

A connection carries `deadline`, moved by a plain assignment on the hot path. A sweep looks at
each about once a second and sets a timer for those that are due before it comes again, so a
deadline is kept to the loop's precision. Which deadline applies is the connection's decision.
"""

import asyncio
from typing import Protocol

NEVER = float("inf")
_SLOTS = 10


class Expiring(Protocol):
    """Something with a deadline: monotonic seconds of the loop's clock."""

    deadline: float

    def expire(self, now: float) -> None:
        """The deadline has passed."""


class Deadlines:
    """Watches the deadlines of everything that was added to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shortest: float) -> None:
        """`shortest` is the shortest deadline that will be set, in seconds."""
        self._loop = loop
        self.configure(shortest)
        self._slots: list[set[Expiring]] = [set() for _ in range(_SLOTS)]
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def configure(self, shortest: float) -> None:
        """Set the shortest deadline that will be set from now on, in seconds."""
        # Anything set now is seen before it is due, if it is seen twice within its time.
        self._round = min(1.0, shortest / 2)

    def start(self) -> None:
        """Begin to sweep; needs the running loop."""
        self._timer = self._loop.call_later(self._round / _SLOTS, self._sweep)

    def stop(self) -> None:
        """Stop sweeping; nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add(self, item: Expiring) -> None:
        """Watch the item until it is discarded."""
        self._slots[id(item) // 64 % _SLOTS].add(item)

    def hasten(self, item: Expiring) -> None:
        """See to a deadline that is nearer than the shortest that a sweep would see in time."""
        if item.deadline < self._loop.time() + 2.2 * self._round:
            self._loop.call_at(item.deadline, self._check, item)

    def discard(self, item: Expiring) -> None:
        """Stop watching the item; no harm if it was not watched."""
        self._slots[id(item) // 64 % _SLOTS].discard(item)

    def __len__(self) -> int:
        return sum(map(len, self._slots))

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(self._round / _SLOTS, self._sweep)
        self._next = (self._next + 1) % _SLOTS
        horizon = self._loop.time() + self._round * 1.2
        for item in [item for item in self._slots[self._next] if item.deadline <= horizon]:
            self._loop.call_at(item.deadline, self._check, item)

    def _check(self, item: Expiring) -> None:
        now = self._loop.time()
        # The loop may wake a little early; a deadline that moved since is seen by a later sweep.
        due = self._timer is not None and item.deadline <= now + 0.001
        if due and item in self._slots[id(item) // 64 % _SLOTS]:
            item.expire(now)
