"""All zones of one server as an immutable value.

Owns which zone answers: the one with the longest origin that a name lies in (RFC 1034 4.3.2 step
2), except that the parent answers for the DS of a cut (RFC 4035 3.1.4.1). Does not answer itself
(lookup.py), load zones or follow changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import dns.name

from smartgw_dns.lookup import DS, Answer, answer
from smartgw_dns.names import parent, starts, wire_of
from smartgw_dns.table import Table
from smartgw_dns.zone import Zone


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """The zones by origin; equal only to itself: each version is its own.

    Attributes:
        zones: by the key of their origin.
        deepest: no origin has more labels than this.
    """

    zones: Table[Zone] = field(default_factory=Table)
    deepest: int = 0

    @classmethod
    def of(cls, zones: Iterable[Zone]) -> "Catalog":
        """Return the catalog of these zones."""
        return cls().changed(zones)

    def changed(self, zones: Iterable[Zone] = (), gone: Iterable[bytes] = ()) -> "Catalog":
        """Return the catalog with these zones in place, and without those of the origins `gone`."""
        changes: dict[bytes, Zone | None] = dict.fromkeys(gone)
        changes.update((zone.origin, zone) for zone in zones)
        deepest = max((len(starts(origin)) for origin in changes), default=0)
        return Catalog(self.zones.changed(changes), max(self.deepest, deepest))

    def __iter__(self) -> Iterator[Zone]:
        return (zone for _, zone in self.zones.items())

    def find(self, key: bytes, rdtype: int) -> Zone | None:
        """Return the zone that answers for a name and type, or None: refused."""
        labels = starts(key)
        get = self.zones.get
        for at in (*labels[max(0, len(labels) - self.deepest) :], len(key) - 1):
            zone = get(key[at:])
            if zone is not None:
                break
        else:
            return None
        if rdtype == DS and len(zone.origin) == len(key) and labels:
            return self.find(parent(key), 0) or zone
        return zone

    def lookup(self, qname: dns.name.Name, rdtype: int) -> Answer:
        """Answer a question of class IN; the owner names of the answer keep the case of `qname`.

        Args:
            qname: an absolute name.
            rdtype: type code; one of lookup.NOT_ASKED is refused.
        """
        return answer(self.find, wire_of(qname), rdtype)

    def lookup_wire(self, qname: bytes, rdtype: int) -> Answer:
        """Answer as `lookup` does, for a name in wire form."""
        return answer(self.find, qname, rdtype)
