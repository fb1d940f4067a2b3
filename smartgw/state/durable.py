"""What the API asks of the durable state, and how that can fail (contract 7.5, 10.3).

Owns the words between the two: a write that was refused, one that cannot be stored, a name that
another app has. Does nothing itself; store.py does.
"""

from typing import Protocol

from smartgw.state.desired import Desired, Stored
from smartgw.state.records import Record


class Unavailable(Exception):
    """The change is not stored, or not known to be: to be answered 503. `reason` is for people.

    `sent`: it had left, so that it may be stored all the same; to send it again is safe.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Conflict(Exception):
    """The record is not at the revision that the change was for.

    `revision` is the one that it is at, 0 when there is none.
    """

    def __init__(self, revision: int) -> None:
        super().__init__(f"the record is at revision {revision}")
        self.revision = revision


class NameTaken(Exception):
    """One label, one app (contract 3.3): `name` is a label or a hostname.

    `holder` is the app that has it, None when no app can have it: it is the gateway's own or
    reserved, or a hostname below the base domain `base`.
    """

    def __init__(self, name: str, holder: str | None, *, base: str | None = None) -> None:
        if base is not None:
            why = f"below the base domain {base}: give what stands before that as label"
        else:
            why = "reserved for the gateway" if holder is None else "another app's"
        super().__init__(f"{name} is {why}")
        self.name = name
        self.holder = holder


class DurableState(Protocol):
    """The store as its users see it: reads from memory, writes that are stored or refused."""

    @property
    def desired(self) -> Desired:
        """What is in force here; reads cost a lookup and are there when the bus is not."""
        ...

    @property
    def age(self) -> float | None:
        """Seconds for which `desired` may be out of date; 0 while the store is followed.

        None when nothing was ever read.
        """
        ...

    async def look(self) -> None:
        """Hear of all that was written until now, so that `desired` is as new as the bucket.

        Raises Unavailable.
        """
        ...

    async def write(self, record: Record, expect: int | None = None) -> Stored:
        """Store a record; returns it as it is in force here, with its revision.

        `expect` is the revision that it must be at, 0 for one that must not exist yet, None for
        whatever is there. Other gateways have it within 2 s.

        Raises:
            Conflict: it is at another revision, or of a version that this gateway cannot read.
            NameTaken: its label or one of its hostnames is not free.
            Unavailable: it is not stored, or not known to be.
        """
        ...

    async def delete(self, key: str, expect: int | None = None) -> Stored | None:
        """Delete the record under a key; returns what it was, None when there was none.

        `expect` as in `write`. Raises Conflict, Unavailable.
        """
        ...
