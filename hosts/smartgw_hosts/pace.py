"""How fast something may be begun that others would feel if it came all at once.

Owns the counting, a token bucket. All times are monotonic seconds and are given.
"""

# Whoever comes back after exactly the time that it was told must not be told another.
_ROUNDING = 1e-6


class Pace:
    """At most `rate` a second, and `burst` at the same moment."""

    __slots__ = ("_burst", "_left", "_rate", "_seen")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._seen = float("-inf")

    def take(self, now: float) -> float:
        """Begin one: returns 0, or the seconds after which there may be one."""
        if now > self._seen:
            self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
            self._seen = now
        if self._left >= 1 - _ROUNDING:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._rate
