"""One host as the pool remembers it: what all may know of it, and what is remembered beside that.

Owns no decision: pool.py makes them. Pure.
"""

from typing import Any, Self

from smartgw_hosts.plain import description_of, record_of
from smartgw_hosts.records import HostRecord
from smartgw_hosts.wire import Description


class Host:
    """A record, and what is remembered beside it.

    `description` and `sequence` are of the message that was heard last, at `heard` (monotonic).
    `cost` are the bytes for which it counts against the provisional caps, 0 when it does not.
    """

    __slots__ = ("cost", "description", "heard", "record", "sequence", "trusted")

    def __init__(self, record: HostRecord, described: Description, sequence: int) -> None:
        self.record = record
        self.description = described
        self.sequence = sequence
        self.heard = record.since
        self.trusted = False
        self.cost = 0

    def dump(self) -> tuple[object, ...]:
        """All of it, for `load`."""
        record, described = self.record, self.description
        return record, described, self.sequence, self.heard, self.trusted, self.cost

    @classmethod
    def load(cls, data: Any) -> Self:
        """The host that `dump` gave, after JSON or not."""
        record, described, sequence, heard, trusted, cost = data
        host = cls(record_of(record), description_of(described), sequence)
        host.heard, host.trusted, host.cost = heard, trusted, cost
        return host
