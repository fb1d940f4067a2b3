"""One zone as an immutable value: the rrsets at each name, and which name serves a question.

Owns the data and `Zone.place`: the walk of RFC 1034 4.3.2 step 3 from the apex down, with cuts,
DNAME, wildcards (RFC 4592) and empty non-terminals. Does not compose answers (lookup.py), change
zones by rules (edits.py), sign or transfer: an rrset holds its rdata in wire form for all of them.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

import dns.rdata
import dns.rdataclass
import dns.rdatatype

from smartgw_dns.names import ASTERISK, order
from smartgw_dns.table import Table

_RUN = 4_096
# As plain integers, which compare faster than the members of an IntEnum.
NS, SOA = int(dns.rdatatype.NS), int(dns.rdatatype.SOA)
CNAME, DNAME = int(dns.rdatatype.CNAME), int(dns.rdatatype.DNAME)


@dataclass(frozen=True, slots=True)
class RRset:
    """The records of one type at a name, which is not part of it; class IN.

    Attributes:
        rdtype: type code.
        ttl: seconds.
        rdatas: rdata of each record in wire form, uncompressed, the case of names kept.
    """

    rdtype: int
    ttl: int
    rdatas: tuple[bytes, ...]

    def to_dnspython(self) -> list[dns.rdata.Rdata]:
        """Return the rdata of its records as dnspython has it, to show or to render."""
        rdtype = dns.rdatatype.RdataType.make(self.rdtype)
        return [
            dns.rdata.from_wire(dns.rdataclass.IN, rdtype, wire, 0, len(wire))
            for wire in self.rdatas
        ]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a zone has at one name; without rrsets it is an empty non-terminal (RFC 4592 2.2.2).

    Attributes:
        owner: the name in wire form, its case kept.
        rrsets: in the order of their types.
        children: how many names with an entry are one label below.
    """

    owner: bytes
    rrsets: tuple[RRset, ...]
    children: int

    def get(self, rdtype: int) -> RRset | None:
        """Return the rrset of a type, or None."""
        for rrset in self.rrsets:
            if rrset.rdtype == rdtype:
                return rrset
        return None


class Fit(Enum):
    """How a name lies in a zone."""

    EXACT = "exact"  # the entry is at the name
    WILDCARD = "wildcard"  # the entry is a wildcard's, below the closest encloser
    MISSING = "missing"  # no such name; the entry is the closest encloser's
    CUT = "cut"  # delegated: the entry is at the cut
    DNAME = "dname"  # redirected: the entry owns the DNAME


@dataclass(frozen=True, slots=True)
class Place:
    """Which entry decides about a name. All names of one place that are not EXACT are answered
    alike but for their own name, so an answer may be kept by place (see docs/dns.md).

    Attributes:
        fit: how the name lies.
        entry: the entry that decides.
        key: where that entry is.
    """

    fit: Fit
    entry: Entry
    key: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """A zone; equal only to itself: each version is its own. Made by edits.py and `Zone.of`.

    Attributes:
        origin: key of its apex.
        entries: all its names, empty non-terminals too.
        apex: the entry at the origin.
        negative: the SOA as it stands in negative answers, its TTL the lower of the SOA's own and
            its MINIMUM (RFC 2308 3).
        serial: of the SOA.
        records: how many it has.
    """

    origin: bytes
    entries: Table[Entry]
    apex: Entry
    negative: RRset
    serial: int
    records: int

    @classmethod
    def of(cls, origin: bytes, entries: Table[Entry], records: int) -> "Zone":
        """Return the zone of these entries; ValueError without one SOA at the origin."""
        apex = entries.get(origin)
        soa = apex.get(SOA) if apex else None
        if apex is None or soa is None or len(soa.rdatas) != 1:
            raise ValueError("a zone has exactly one SOA record at its origin")
        rdata = soa.rdatas[0]
        ttl = min(soa.ttl, int.from_bytes(rdata[-4:], "big"))
        serial = int.from_bytes(rdata[-20:-16], "big")
        return cls(origin, entries, apex, RRset(SOA, ttl, soa.rdatas), serial, records)

    @classmethod
    def unknown(cls, origin: bytes) -> "Zone":
        """Return a zone that is ours, and of which nobody knows what it has: all is SERVFAIL."""
        return cls(origin, Table(), Entry(origin, (), 0), RRset(SOA, 0, ()), 0, 0)

    @property
    def known(self) -> bool:
        """Whether it is known what the zone has."""
        return bool(self.apex.rrsets)

    def place(self, key: bytes) -> Place:
        """Return which entry decides about a name, by its key; it is the origin or below."""
        starts, at, end = [], 0, len(key) - len(self.origin)
        while at < end:
            starts.append(at)
            at += key[at] + 1
        get = self.entries.get
        entry, encloser = self.apex, self.origin
        for start in reversed(starts):
            if entry.get(DNAME):
                return Place(Fit.DNAME, entry, encloser)
            below = key[start:]
            found = get(below)
            if found is None:
                wildcard = get(ASTERISK + encloser)
                if wildcard is None:
                    return Place(Fit.MISSING, entry, encloser)
                return Place(Fit.WILDCARD, wildcard, ASTERISK + encloser)
            if found.get(NS):
                return Place(Fit.CUT, found, below)
            entry, encloser = found, below
        return Place(Fit.EXACT, entry, key)

    def sorted(self) -> Iterator[tuple[bytes, Entry]]:
        """Walk all entries in the canonical order of their names (RFC 4034 6.1)."""
        items = [(order(key), key, entry) for key, entry in self.entries.items()]
        # A sort of 100,000 names in one piece keeps other threads waiting for 100 ms.
        runs = (sorted(items[at : at + _RUN]) for at in range(0, len(items), _RUN))
        return ((key, entry) for _, key, entry in heapq.merge(*runs))


@cache
def type_text(rdtype: int) -> str:
    """Return the mnemonic of a type, `TYPE65280` where it has none."""
    return dns.rdatatype.to_text(dns.rdatatype.RdataType.make(rdtype))
