"""Many windows of one span in bounded memory: what one process counts by itself (contract 6.7).

Owns which windows are kept. None is dropped while anything in it counts: when there is no room,
newcomers share windows by the hash of their key until there is. How one window counts is
window.py's, whose limit it is the caller's.
"""

from collections.abc import Hashable
from typing import Final

from smartgw.admission.span import Span
from smartgw.admission.window import Window

SHARED: Final = 16_384
"""Windows that newcomers share when there is no room. A flood of millions of callers puts some
hundred into each, which a limit of 600 has room for."""
_TIDIED: Final = 5_000
"""Windows that one call of `tidy` frees at most: a millisecond."""


class Table:
    """Windows by key.

    A key that was not seen for a whole turn, which is at least the span, has an empty window: so
    all that were not seen go at once, and are freed in small parts.

    Attributes:
        span: of every window.
        capacity: windows kept at most, beside those that are shared.
        squeezed: how often a newcomer got a shared window.
    """

    __slots__ = ("_before", "_going", "_shared", "_since", "_young", "capacity", "span", "squeezed")

    def __init__(self, span: Span, capacity: int) -> None:
        self.span = span
        self.capacity = capacity
        self.squeezed = 0
        self._young: dict[Hashable, Window] = {}
        self._before: dict[Hashable, Window] = {}
        self._going: dict[Hashable, Window] = {}
        self._shared: dict[int, Window] = {}
        self._since = 0

    def __len__(self) -> int:
        """How many windows are in memory, whether or not anything in them counts."""
        return len(self._young) + len(self._before) + len(self._going) + len(self._shared)

    def find(self, key: Hashable, now: int) -> Window:
        """Return the window of a key, not settled."""
        window = self._young.get(key)
        return self._elsewhere(key, now) if window is None else window

    def known(self, key: Hashable) -> Window | None:
        """Return the window that a key would be charged in, if there is one, not settled."""
        window = self._young.get(key) or self._before.get(key)
        return window or self._shared.get(hash(key) % SHARED)

    def _elsewhere(self, key: Hashable, now: int) -> Window:
        """Return the window of a key that was not seen in this turn."""
        if now - self._since >= self.span.length:
            self._turn(now)
        window = self._before.pop(key, None)
        if window is None:
            self._free(2)
            place = hash(key) % SHARED
            shared = self._shared.get(place)
            if shared is not None:
                shared.settle(now, self.span)
                if shared.used:
                    # Whoever this is may have used it, so no window of its own until it is empty.
                    self.squeezed += 1
                    return shared
                del self._shared[place]
            window = Window()
            if len(self._young) + len(self._before) + len(self._going) >= self.capacity:
                self.squeezed += 1
                self._shared[place] = window
                return window
        self._young[key] = window
        return window

    def _turn(self, now: int) -> None:
        self._since = now
        # Nobody tidied, if there are any left: rather now than never.
        self._going.clear()
        self._going, self._before, self._young = self._before, self._young, {}

    def tidy(self, now: int) -> None:
        """Free what is not needed any more, a bounded part of it; call about once a second."""
        if now - self._since >= self.span.length:
            self._turn(now)
        self._free(_TIDIED)

    def _free(self, most: int) -> None:
        going = self._going
        for _ in range(min(most, len(going))):
            going.popitem()
