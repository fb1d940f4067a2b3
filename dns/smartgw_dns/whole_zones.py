"""What the beginning or end of a whole zone changes: its own answers, and those of the zone above.

Owns which names are looked at: those of the zone itself, and those that the zone above has below
its origin, which a new zone takes over and an old one leaves to it. A change within a zone is
changes.py's.
"""

from collections.abc import Iterator
from itertools import islice

from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import MOST_LISTED, MOST_NAMES, Difference, Differences, Effect
from smartgw_dns.names import ROOT, within
from smartgw_dns.zone import SOA, Zone


def compare_whole(catalog: Catalog, before: Zone | None, after: Zone | None) -> Differences:
    """Return what differs when a zone is there that was not, or the other way round.

    Args:
        catalog: all zones, with or without this one.
        before, after: the zone; one of them is None.
    """
    zone = before or after
    assert zone is not None
    origin = zone.origin
    old = catalog.changed([before]) if before else catalog.changed([], [origin])
    new = catalog.changed([after]) if after else catalog.changed([], [origin])
    own = _differences(old, new, _questions(zone, origin), None, origin)
    above = (old if after else new).find(origin, SOA) if origin != ROOT else None
    others: list[Difference] = []
    if above is not None:
        there = {(name.lower(), rdtype) for name, rdtype in _questions(zone, origin)}
        asked = (one for one in _questions(above, origin) if (one[0].lower(), one[1]) not in there)
        others = _differences(old, new, asked, Effect.MOVED, above.origin)
    complete = max(len(own), len(others)) <= MOST_LISTED
    return Differences(tuple(own[:MOST_LISTED]), tuple(others[:MOST_LISTED]), complete)


def _questions(zone: Zone, origin: bytes) -> Iterator[tuple[bytes, int]]:
    """Walk the names of a zone at or below an origin, each with the types that it has."""
    below = ((key, entry) for key, entry in zone.sorted() if within(key, origin))
    for _, entry in islice(below, MOST_NAMES):
        for rrset in entry.rrsets:
            yield entry.owner, rrset.rdtype


def _differences(
    old: Catalog,
    new: Catalog,
    questions: Iterator[tuple[bytes, int]],
    effect: Effect | None,
    by: bytes,
) -> list[Difference]:
    found: list[Difference] = []
    for name, rdtype in questions:
        one, two = old.lookup_wire(name, rdtype), new.lookup_wire(name, rdtype)
        if (one.rcode, one.answer) != (two.rcode, two.answer):
            found.append(Difference(name, rdtype, one, two, effect, by))
        if len(found) > MOST_LISTED:
            break
    return found
