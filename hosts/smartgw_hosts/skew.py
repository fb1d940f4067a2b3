"""What time it is, though our own clock may jump (contract 1.2, 1.7, 2.1).

Owns what the gateway believes the time to be: the wall clock as it stood at first, carried on
by the monotonic one, until hosts show that the wall clock was right to step. A step alone makes
no host's messages stale, nor our challenges. Does not read clocks, nor decide who may give
evidence.
"""

WITNESSES = 8
"""Messages in a row, by trusted keys, that only the stepped wall clock can explain: then it was
set right and not wrong. One host whose clock is as wrong as ours never has so many in a row
among others."""

APART = 1.0
"""Seconds by which two clocks differ so much that it is worth trying the other one."""


class WallClock:
    """Unix seconds, believed. `skew` is how far a message may be from it, in seconds."""

    __slots__ = ("_doubts", "_offset", "_skew")

    def __init__(self, skew: float) -> None:
        self._skew = skew
        self._offset: float | None = None
        self._doubts = 0

    def dump(self) -> tuple[float | None, int]:
        """What is believed, for `load`."""
        return self._offset, self._doubts

    def load(self, data: tuple[float | None, int]) -> None:
        """Take what `dump` gave."""
        self._offset, self._doubts = data

    def guess(self, now: float, wall: float) -> float:
        """As `believed`, and nothing is remembered of it."""
        return wall if self._offset is None else now + self._offset

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


class IssueClock:
    """The time that our challenges bear: a step of the wall clock alone makes no host refuse them.

    Takes the wall clock's word when a host doubts the time kept so far, and goes back when that
    was wrong; so a host that lies costs itself a second challenge and nobody a place.
    """

    __slots__ = ("_before", "_offset")

    def __init__(self) -> None:
        self._offset: float | None = None
        self._before: float | None = None

    def offset(self, now: float, wall: float) -> float:
        """What is added to a monotonic time; `now` is one, `wall` what the clock says, seconds."""
        if self._offset is None:
            self._offset = wall - now
        return self._offset

    def now_ms(self, now: float, wall: float) -> int:
        """Milliseconds since the epoch, as a challenge of this moment bears them."""
        return int((now + self.offset(now, wall)) * 1000)

    def doubted(self, issued: float, now: float, wall: float) -> bool:
        """A host says that the time is wrong: tell whether there is another one to try.

        `issued` is the offset that its challenge was made with.
        """
        if issued != self._offset:
            # Another host was there before: taking back what it had changed would let every
            # second of the proofs that are under way fail.
            return True
        others = (wall - now, self._before)
        for other in others:
            if other is not None and abs(other - self._offset) > APART:
                self._before, self._offset = self._offset, other
                return True
        return False
