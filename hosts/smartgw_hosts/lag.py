"""How late our own event loop runs (contract 1.7).

Owns the figures: the most ever, and the most of the last seconds. Does not measure; whoever
sleeps says by how much it was woken too late.
"""

from collections import deque
from typing import Final

RECENT: Final = 10.0
"""Seconds for which a lag is recent: long enough to be seen by a scrape or two."""


class Lag:
    """All times are seconds; `now` is monotonic."""

    __slots__ = ("_falling", "most")

    def __init__(self) -> None:
        self.most = 0.0
        # Only what nothing later surpasses, so the first is the most: times rise, lags fall.
        self._falling: deque[tuple[float, float]] = deque()

    def note(self, seconds: float, now: float) -> None:
        """We were woken `seconds` too late."""
        self.most = max(self.most, seconds)
        while self._falling and self._falling[-1][1] <= seconds:
            self._falling.pop()
        self._falling.append((now, seconds))
        self._drop_old(now)

    def recent(self, now: float) -> float:
        """The most within the last `RECENT` seconds; 0 when nothing was noted."""
        self._drop_old(now)
        return self._falling[0][1] if self._falling else 0.0

    def _drop_old(self, now: float) -> None:
        while self._falling and self._falling[0][0] < now - RECENT:
            self._falling.popleft()
