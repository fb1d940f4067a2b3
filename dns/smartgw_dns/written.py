"""An answer as it stands in a packet behind the question, for all names that it is right for.

Owns which names share an answer, and what of it may be left out (RFC 9471). What is true of a name
is lookup.py's, what is sent to whom is respond.py's. Does not need dnspython, which takes ten times
as long to write a message: a flood of questions that all differ would be ten times the harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import dns.flags
import dns.rdataclass
import dns.rdatatype

from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import Answer, Owned
from smartgw_dns.names import starts
from smartgw_dns.query import HEADER, TYPE_AND_CLASS
from smartgw_dns.zone import CNAME, NS, SOA, Fit, Place, Zone

MOST_BYTES = 65_535
_AA, _TC = int(dns.flags.AA), int(dns.flags.TC)
_IN = int(dns.rdataclass.IN).to_bytes(2, "big")
_POINTER, _FARTHEST = 0xC000, 0x3FFF  # RFC 1035 4.1.4
_NOTHING = (0, 0, 0), b""
# Where names stand in the rdata that may be compressed, RFC 3597 4: octets before them, how many.
_NAMES_IN = {
    NS: (0, 1),
    CNAME: (0, 1),
    SOA: (0, 2),
    int(dns.rdatatype.PTR): (0, 1),
    int(dns.rdatatype.MX): (2, 1),
}


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as it stands behind the question.

    Attributes:
        flags: AA and the response code.
        counts, body: of answer, authority and additional section, without OPT.
        short_counts, short_body: the same without what may be left out.
        account: what like answers are counted by.
        zone: None where the answer is for one name alone; else for all names of its length that
            `place` decides about, and so for all that differ in their first label and that neither
            this zone has an entry for nor begin another zone.
    """

    flags: int
    counts: tuple[int, int, int]
    body: bytes
    short_counts: tuple[int, int, int]
    short_body: bytes
    account: object
    zone: Zone | None = None


def write_for(
    catalog: Catalog, zone: Zone, place: Place, qname: bytes, qtype: int
) -> tuple[Written, bool]:
    """Write the answer for a name that `place` of `zone` decides about, and for all others that it
    may hold for; the second value says whether it may be kept for this name's length and place.
    """
    account = (place.key, qtype)
    alike = _alike(qname, place)
    if alike is not None:
        answer = catalog.lookup_wire(alike, qtype)
        if _serves_all(answer, place):
            return write(answer, alike, account, zone), True
    own = write(catalog.lookup_wire(qname, qtype), qname, account)
    return own, len(place.key) == len(qname) and place.fit is not Fit.DNAME


def _alike(qname: bytes, place: Place) -> bytes | None:
    """Return a name of the same length that the same entry decides about, and of which nothing
    but the end stands anywhere in the answer: what is written for it holds for every such name.
    None: there is no other such name, or each has an answer of its own.
    """
    if place.fit is Fit.WILDCARD:
        end = place.key[2:]
    elif place.fit is Fit.MISSING or (place.fit is Fit.CUT and len(place.key) < len(qname)):
        end = place.key
    else:
        return None
    made, left = b"", len(qname) - len(end)
    while left:
        label = min(left - 1, 63)
        if left - 1 - label == 1:
            label -= 1  # the next label needs two octets
        made += bytes((label,)) + b"\xff" * label
        left -= label + 1
    return made + end


def _serves_all(answer: Answer, place: Place) -> bool:
    """Say whether an answer holds for every name that the same entry decides about: a chain that
    comes back to the entry ends at the name that it began with.
    """
    first, *others = (step.place for step in answer.steps)
    return (first.key, first.fit) == (place.key, place.fit) and all(
        other.key != place.key for other in others
    )


def write(answer: Answer, qname: bytes, account: object, zone: Zone | None = None) -> Written:
    """Write an answer, with compression, as it stands behind the question."""
    flags = answer.rcode | (_AA if answer.authoritative else 0)
    room = MOST_BYTES - HEADER - len(qname) - TYPE_AND_CLASS
    whole = short = _sections(qname, answer.answer, answer.authority, answer.additional)
    if answer.glue < len(answer.additional):
        needed = answer.additional[: answer.glue]
        short = _sections(qname, answer.answer, answer.authority, needed)
        whole = whole if len(whole[1]) <= room else short
    if len(whole[1]) > room:
        flags, whole, short = flags | _TC, _NOTHING, _NOTHING
    return Written(flags, *whole, *short, account, zone)


def _sections(
    qname: bytes, answer: Sequence[Owned], authority: Sequence[Owned], additional: Sequence[Owned]
) -> tuple[tuple[int, int, int], bytes]:
    """Return how many records there are in each section, and their wire form behind a question.

    Records of one rrset stand in the order of the zone.
    """
    records = _Records(qname)
    counts = records.add(answer), records.add(authority), records.add(additional)
    return counts, bytes(records.octets)


class _Records:
    """Records behind a question, in the making (RFC 1035 4.1.3, 4.1.4)."""

    __slots__ = ("_begin", "_places", "octets")

    def __init__(self, qname: bytes) -> None:
        self.octets = bytearray()
        self._begin = HEADER + len(qname) + TYPE_AND_CLASS
        # Names that were written, by key, with their places in the message.
        key = qname.lower()
        self._places = {key[at:]: HEADER + at for at in starts(key)}

    def add(self, section: Sequence[Owned]) -> int:
        """Write the records of a section; returns how many there are."""
        octets, count = self.octets, 0
        for owned in section:
            rrset = owned.rrset
            head = rrset.rdtype.to_bytes(2, "big") + _IN + rrset.ttl.to_bytes(4, "big")
            names = _NAMES_IN.get(rrset.rdtype)
            for rdata in rrset.rdatas:
                count += 1
                self._name(owned.owner)
                octets += head
                length_at = len(octets)
                octets += len(rdata).to_bytes(2, "big")
                if names is None:
                    octets += rdata
                    continue
                at, left = names
                octets += rdata[:at]
                for _ in range(left):
                    end = _name_end(rdata, at)
                    self._name(rdata[at:end])
                    at = end
                octets += rdata[at:]
                octets[length_at : length_at + 2] = (len(octets) - length_at - 2).to_bytes(2, "big")
        return count

    def _name(self, name: bytes) -> None:
        """Write a name, of what stands already a pointer."""
        octets, places = self.octets, self._places
        key = name.lower()
        at = 0
        while length := name[at]:
            place = places.get(key[at:])
            if place is not None:
                octets += (_POINTER | place).to_bytes(2, "big")
                return
            here = self._begin + len(octets)
            if here <= _FARTHEST:
                places[key[at:]] = here
            octets += name[at : at + length + 1]
            at += length + 1
        octets.append(0)


def _name_end(rdata: bytes, at: int) -> int:
    while length := rdata[at]:
        at += length + 1
    return at + 1
