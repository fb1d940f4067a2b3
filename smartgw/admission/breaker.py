"""When a store that failed is tried again, and until when its counts may lack something.

Owns the circuit breaker between app traffic and the shared counters (contract 6.6): one failure
opens it, a trial charge that is answered in time closes it. Pure; times are seconds.
"""

from enum import StrEnum
from typing import Final

_FIRST: Final = 0.1
_LAST: Final = 0.6
"""With the time that a trial may take, well within 2 s of the store's return."""


class Fault(StrEnum):
    """Why the store could not be asked; stands in metrics and status."""

    REFUSED = "refused"
    NAME = "name"
    TLS = "tls"
    AUTH = "auth"
    CLOSED = "closed"
    LATE = "late"
    LOADING = "loading"
    READONLY = "readonly"
    MEMORY = "memory"
    MOVED = "moved"
    ANSWER = "answer"
    CLOCK = "clock"


ERRORS: Final = {
    "LOADING": Fault.LOADING,
    "READONLY": Fault.READONLY,
    "MASTERDOWN": Fault.READONLY,
    "NOREPLICAS": Fault.READONLY,
    "OOM": Fault.MEMORY,
    "MISCONF": Fault.MEMORY,
    "MOVED": Fault.MOVED,
    "ASK": Fault.MOVED,
    "TRYAGAIN": Fault.MOVED,
    "CLUSTERDOWN": Fault.MOVED,
    "NOAUTH": Fault.AUTH,
    "WRONGPASS": Fault.AUTH,
    "NOPERM": Fault.AUTH,
}
"""The first word of an error answer -> what it means; all others are answers of no use."""


def fault_of(error: str) -> Fault:
    """Return what an error answer means; older servers tell what stopped a script further on."""
    for word in error.split():
        fault = ERRORS.get(word.lstrip("-"))
        if fault is not None:
            return fault
    return Fault.ANSWER


class Breaker:
    """Open at first: nobody is asked before a trial was answered.

    Attributes:
        closed: the store is asked. `since`: from when on it is, or is not.
        missed: something was charged that the store was not told of.
        fault: why it is not, or was not last.
        doubted_until: what it says is not the whole truth until then, for it does not know what
            was charged while it was away; so this process's own counts hold beside it.
    """

    __slots__ = ("_delay", "_term", "closed", "doubted_until", "fault", "missed", "since")

    def __init__(self, term: float) -> None:
        """`term`: seconds of a window, after which nothing of an outage counts any more."""
        self._term = term
        self._delay = _FIRST
        self.closed = False
        self.missed = False
        self.fault: Fault | None = None
        self.since = 0.0
        self.doubted_until = 0.0

    def open(self, fault: Fault, now: float) -> None:
        """The store, or a trial, has failed."""
        if self.closed:
            self.since = now
            self.missed = True
        self.closed = False
        self.fault = fault

    def delay(self) -> float:
        """Return how long to wait before the next trial; longer with each that fails."""
        delay, self._delay = self._delay, min(_LAST, 2 * self._delay)
        return delay

    def close(self, now: float) -> None:
        """A trial was answered in time."""
        if self.missed:
            self.doubt(now)
        self.closed, self.missed = True, False
        self._delay = _FIRST
        self.since = now

    def doubt(self, now: float) -> None:
        """The store may have lost what it knew."""
        self.doubted_until = now + self._term
