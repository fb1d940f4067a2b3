"""A zone as bytes in places, so that a store of small values keeps it and a change costs little.

Owns the form of a packed rrset, which place it lies in and how many places there are. The SOA,
which every change raises, is in the `lead`; a small zone is there as a whole. Does not know where
the bytes are kept.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import dns.exception
import dns.rdata
import dns.rdataclass
import dns.rdatatype

from smartgw_dns.edits import Change
from smartgw_dns.lookup import AAAA, A
from smartgw_dns.names import LONGEST
from smartgw_dns.zone import SOA, RRset, Zone

MOST_LEAD = 40_000
"""Octets of a zone that has no places."""
_FULL, _USUAL, _EMPTY = 36_000, 18_000, 6_000
"""Octets of a place on average: above and below the others the zone is spread anew."""
MOST_PLACES = 2_048
_HEAD = struct.Struct("!HIH")
_SIZES = {A: 4, AAAA: 16}

Item = tuple[bytes, int]
"""What names an rrset in a zone: its owner's key and its type."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A zone, or what of it is otherwise.

    Attributes:
        lead: the SOA, or all of a zone without places.
        places: the content of each by its number; of a change those that are otherwise.
        count: how many places there are; a power of two, or 0.
        size: octets of the whole.
    """

    lead: bytes
    places: Mapping[int, bytes] = field(default_factory=dict)
    count: int = 0
    size: int = 0


def pack(zone: Zone) -> Packed:
    """Return a whole zone."""
    lead, rest, size = b"", [], 0
    for key, entry in zone.entries.items():
        for rrset in entry.rrsets:
            packed = _pack(entry.owner, rrset)
            size += len(packed)
            if rrset.rdtype == SOA:
                lead = packed
            else:
                rest.append((key, packed))
    if size <= MOST_LEAD:
        return Packed(lead + b"".join(packed for _, packed in rest), size=size)
    count = 1
    while count * _USUAL < size and count < MOST_PLACES:
        count *= 2
    places: list[list[bytes]] = [[] for _ in range(count)]
    for key, packed in rest:
        places[place_of(key, count)].append(packed)
    contents = {number: b"".join(place) for number, place in enumerate(places)}
    return Packed(lead, contents, count, size)


def repack(
    before: Packed, place: Callable[[int], bytes], zone: Zone, touched: Iterable[bytes]
) -> Packed:
    """Return what of a packed zone becomes otherwise; with another `count` all of it.

    Args:
        before: the zone before, with no places.
        place: gives the content of one.
        touched: keys of the names that are otherwise in `zone`.
    """
    if not before.count:
        return pack(zone)
    lead, size = before.lead, before.size
    items: dict[int, dict[Item, bytes]] = {}
    for key in touched:
        entry = zone.entries.get(key)
        number = place_of(key, before.count)
        if number not in items:
            items[number] = parts(place(number))
            size -= sum(map(len, items[number].values()))
        here = items[number]
        for item in [item for item in here if item[0] == key]:
            del here[item]
        for rrset in entry.rrsets if entry else ():
            packed = _pack(entry.owner if entry else b"", rrset)
            if rrset.rdtype == SOA:
                size += len(packed) - len(lead)
                lead = packed
            else:
                here[key, rrset.rdtype] = packed
    contents = {number: b"".join(here.values()) for number, here in items.items()}
    size += sum(map(len, contents.values()))
    average = size / before.count
    if average < _EMPTY or (average > _FULL and before.count < MOST_PLACES):
        return pack(zone)
    return Packed(lead, contents, before.count, size)


def place_of(key: bytes, count: int) -> int:
    """Return in which of so many places a name's rrsets lie."""
    return int.from_bytes(blake2b(key, digest_size=4).digest(), "big") % count


def parts(content: bytes) -> dict[Item, bytes]:
    """Return the packed rrsets of a content; ValueError where it is not whole."""
    found: dict[Item, bytes] = {}
    at = 0
    while at < len(content):
        start, owner_end = at, at + 1 + content[at]
        at = owner_end + _HEAD.size
        if at > len(content):
            raise ValueError("cut off within an rrset")
        rdtype, _, count = _HEAD.unpack_from(content, owner_end)
        for _ in range(count):
            at += 2 + int.from_bytes(content[at : at + 2], "big")
        if at > len(content):
            raise ValueError("cut off within a record")
        item = content[start + 1 : owner_end].lower(), rdtype
        if item in found:
            raise ValueError("an rrset is there twice")
        found[item] = content[start:at]
    return found


def unpack(packed: bytes) -> Change:
    """Return the rrset that one of `parts` holds, checked; ValueError where it is none."""
    at = 1 + packed[0]
    owner = packed[1:at]
    rdtype, ttl, count = _HEAD.unpack_from(packed, at)
    _check_name(owner)
    if ttl >> 31 or not count:
        raise ValueError("a TTL above 2147483647, or no record")
    at += _HEAD.size
    rdatas = []
    for _ in range(count):
        end = at + 2 + int.from_bytes(packed[at : at + 2], "big")
        rdata = packed[at + 2 : end]
        _check(rdtype, rdata)
        rdatas.append(rdata)
        at = end
    return Change(owner, rdtype, RRset(rdtype, _same(ttl), tuple(rdatas)))


def difference(before: bytes, after: bytes) -> list[Change]:
    """Return what makes one content the other; raises ValueError.

    Deletions come first, so that of a name that is written otherwise nothing of the old is left.
    """
    old, new = parts(before), parts(after)
    changed = [item for item, packed in new.items() if old.get(item) != packed]
    gone = [item for item, packed in old.items() if new.get(item) != packed]
    deletions = [Change(key, rdtype, None) for key, rdtype in gone]
    return deletions + [unpack(new[item]) for item in changed]


def _pack(owner: bytes, rrset: RRset) -> bytes:
    chunks = [bytes((len(owner),)), owner]
    chunks.append(_HEAD.pack(rrset.rdtype, rrset.ttl, len(rrset.rdatas)))
    for rdata in rrset.rdatas:
        chunks += (len(rdata).to_bytes(2, "big"), rdata)
    return b"".join(chunks)


def _check_name(wire: bytes) -> None:
    at = 0
    while at < len(wire) and wire[at]:
        if wire[at] > 63:
            raise ValueError("a label of more than 63 octets")
        at += wire[at] + 1
    if at != len(wire) - 1 or len(wire) > LONGEST:
        raise ValueError("a name that is not one")


def _check(rdtype: int, rdata: bytes) -> None:
    """Refuse rdata that would fail when it is answered with."""
    size = _SIZES.get(rdtype)
    if size is not None:
        # dnspython takes 20 us to find that out, of which most zones have most.
        if len(rdata) != size:
            raise ValueError("an address of another length")
        return
    try:
        code = dns.rdatatype.RdataType.make(rdtype)
        read = dns.rdata.from_wire(dns.rdataclass.IN, code, rdata, 0, len(rdata))
        same = read.to_wire() == rdata
    except (dns.exception.DNSException, ValueError) as error:
        raise ValueError(f"rdata of type {rdtype} that is none") from error
    if not same:
        raise ValueError(f"rdata of type {rdtype} in another form")


_TTLS: dict[int, int] = {}


def _same(ttl: int) -> int:
    """Return one object for each TTL, of which a zone has few."""
    if len(_TTLS) > 1_000:
        _TTLS.clear()
    return _TTLS.setdefault(ttl, ttl)
