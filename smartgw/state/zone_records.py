"""Zones as the store has them: a head for each, and for a large one parts (contract 8.6).

Owns these two forms and their keys. The head says which parts the zone is made of, so a change is
in force by the one write of the head, and a part is never written twice. What stands in them is
smartgw_dns.packed's; a content that is no zone is found when the zone is made (zones.py).
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from smartgw_dns.names import text_of
from smartgw_dns.packed import MOST_PLACES
from smartgw_dns.records import RecordRefused, read_name

HEADS: Final = "zones"
PARTS: Final = "zoneparts"
MOST_CONTENT: Final = 42_000
"""Octets of one value; what lies in one place may take several parts."""
ID_BYTES: Final = 10
"""Of the name of a part, which chance makes: never that of another."""

_ID = re.compile(r"[0-9a-v]{16}\Z")
_HEAD_MEMBERS = frozenset(("v", "zone", "serial", "records", "size", "content", "places"))
_PART_MEMBERS = frozenset(("v", "zone", "part", "content"))
_COUNTS = range(1 << 32)


@dataclass(frozen=True, slots=True)
class ZoneHead:
    """What a zone is made of.

    Attributes:
        origin: key of its apex.
        serial, records: of the zone, so that they are known without making it.
        size: octets of the whole content.
        content: the SOA, or the whole of a zone without places.
        places: for each place the names of its parts, in order.
    """

    origin: bytes
    serial: int
    records: int
    size: int
    content: bytes
    places: tuple[tuple[str, ...], ...] = ()

    @property
    def parts(self) -> frozenset[str]:
        """The names of all its parts."""
        return frozenset(name for place in self.places for name in place)


@dataclass(frozen=True, slots=True)
class ZonePart:
    """A part of the content of a place."""

    origin: bytes
    name: str
    content: bytes


@lru_cache(65_536)
def head_key(origin: bytes) -> str:
    """Return the key of a zone; keys sort as the names of the zones do."""
    # Kept, for a list of 10,000 zones in their order needs all, at 10 us each.
    return f"{HEADS}.{_coded(origin)}"


def part_key(origin: bytes, name: str) -> str:
    """Return the key of a part."""
    return f"{PARTS}.{_coded(origin)}.{name}"


def part_name(nonce: bytes) -> str:
    """Return a name made of `ID_BYTES` random bytes."""
    return _base32(nonce)


def head_members(head: ZoneHead) -> dict[str, Any]:
    """Return what is stored of a head beside the version."""
    return {
        "zone": text_of(head.origin),
        "serial": head.serial,
        "records": head.records,
        "size": head.size,
        "content": base64.b64encode(head.content).decode(),
        "places": head.places,
    }


def part_members(part: ZonePart) -> dict[str, Any]:
    """Return what is stored of a part beside the version."""
    return {
        "zone": text_of(part.origin),
        "part": part.name,
        "content": base64.b64encode(part.content).decode(),
    }


def head_of(members: Mapping[str, Any]) -> ZoneHead:
    """Read what `head_members` gave; raises ValueError."""
    _complete(members, _HEAD_MEMBERS)
    serial, records, size = counts = [members[n] for n in ("serial", "records", "size")]
    if any(type(count) is not int or count not in _COUNTS for count in counts):
        raise ValueError("serial, records, size: must be 0 to 4294967295")
    places = members["places"]
    if not isinstance(places, list) or len(places) > MOST_PLACES or len(places).bit_count() > 1:
        raise ValueError(f"places: must be lists, a power of two of them, {MOST_PLACES} at most")
    return ZoneHead(
        _origin(members), serial, records, size, _content(members), tuple(map(_names, places))
    )


def part_of(members: Mapping[str, Any]) -> ZonePart:
    """Read what `part_members` gave; raises ValueError."""
    _complete(members, _PART_MEMBERS)
    name, *_ = _names([members["part"]])
    return ZonePart(_origin(members), name, _content(members))


def _names(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or len(set(map(str, values))) != len(values):
        raise ValueError("places: must be lists of parts, each once")
    if not all(isinstance(value, str) and _ID.match(value) for value in values):
        raise ValueError("a part must be named by 16 digits of base32")
    return tuple(values)


def _origin(members: Mapping[str, Any]) -> bytes:
    text = members["zone"]
    try:
        origin = read_name(text)
    except RecordRefused as error:
        raise ValueError(f"zone: {error}") from None
    if text_of(origin) != text or origin != origin.lower():
        raise ValueError("zone: must be in lower case, escaped where it has to be only")
    return origin


def _content(members: Mapping[str, Any]) -> bytes:
    text = members["content"]
    if not isinstance(text, str):
        raise ValueError("content: must be text")
    content = base64.b64decode(text, validate=True)
    if len(content) > MOST_CONTENT:
        raise ValueError(f"content: more than {MOST_CONTENT} octets")
    return content


def _complete(members: Mapping[str, Any], known: frozenset[str]) -> None:
    if members.keys() != known:
        wrong = sorted(members.keys() ^ known)[0]
        what = "missing" if wrong in known else "not a member of this version"
        raise ValueError(f"{wrong[:40]!a}: {what}")


def _coded(origin: bytes) -> str:
    return _base32(text_of(origin).encode())


def _base32(data: bytes) -> str:
    """Return base32hex (RFC 4648 7) in lower case, which sorts as the bytes do."""
    return base64.b32hexencode(data).decode().rstrip("=").lower()
