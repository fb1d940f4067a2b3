"""When a worker that died is replaced, and when one that says nothing counts as stuck.

Owns the two rules. Starts, kills and clocks are seat.py's.
"""

FIRST_SECONDS = 0.25
MOST_SECONDS = 10.0
CALM_SECONDS = 10.0
"""A worker that ran for this long did not die of its start."""
SILENT_TICKS = 10
STARTING_TICKS = 30
"""A worker that starts says nothing for as long as an interpreter takes on a busy machine."""


class Restarts:
    """The back-off of one place among the workers.

    Attributes:
        count: how many workers of this place have died.
    """

    __slots__ = ("_delay", "count")

    def __init__(self) -> None:
        self.count = 0
        self._delay = 0.0

    def died(self, lived: float) -> float:
        """Return the seconds to wait, for a worker that lived so long: none after a good life."""
        self.count += 1
        if lived >= CALM_SECONDS:
            self._delay = 0.0
        delay = self._delay
        self._delay = min(MOST_SECONDS, max(FIRST_SECONDS, delay * 2))
        return delay


class Silence:
    """Counts our own ticks since a worker was last heard.

    Ticks and not seconds: while we did not run ourselves, nobody could be heard (contract 1.7).
    """

    __slots__ = ("_most", "_ticks")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Another worker starts."""
        self._ticks, self._most = 0, STARTING_TICKS

    def heard(self) -> None:
        """The worker has said something."""
        self._ticks, self._most = 0, SILENT_TICKS

    def tick(self) -> bool:
        """Another second of ours has passed; say whether the worker counts as stuck."""
        self._ticks += 1
        return self._ticks > self._most
