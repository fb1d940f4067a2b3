"""Whether a message is of our time, though our own clock may jump (contract 1.2, 1.7).

Owns what the gateway believes the time to be: the wall clock as it stood at first, carried on
by the monotonic one, until messages show that the wall clock was right to step. A step alone
makes no host's messages stale. Does not read clocks, nor decide who may give evidence.
"""

WITNESSES = 8
"""Messages in a row, by trusted keys, that only the stepped wall clock can explain: then it was
set right and not wrong. One host whose clock is as wrong as ours never has so many in a row
among others."""


class WallClock:
    """Unix seconds, believed. `skew` is how far a message may be from it, in seconds."""

    __slots__ = ("_doubts", "_offset", "_skew")

    def __init__(self, skew: float) -> None:
        self._skew = skew
        self._offset: float | None = None
        self._doubts = 0

    def believed(self, now: float, wall: float) -> float:
        """The time it is, by all that we know; `now` is monotonic, `wall` what the clock says."""
        if self._offset is None:
            self._offset = wall - now
        return now + self._offset

    def accepts(self, said: float, now: float, wall: float, *, trusted: bool) -> bool:
        """Judge the time that a message carries; only a `trusted` one counts as evidence."""
        near_belief = abs(said - self.believed(now, wall)) <= self._skew
        near_wall = abs(said - wall) <= self._skew
        if trusted:
            self._doubts = self._doubts + 1 if near_wall and not near_belief else 0
            if self._doubts >= WITNESSES:
                self._offset = wall - now
                self._doubts = 0
        return near_belief or near_wall
