"""Zones and records as the API's JSON, and the other way round (contract 8.6, 10.3).

Owns what is said of a part of a request that is wrong, and which member or parameter that is. What
may stand in a zone is smartgw_dns's to say, what is done with it zones.py's.
"""

import base64
import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

from smartgw.api import models_zones
from smartgw.api.answers import ApiError, BadBody, Fault, Faults
from smartgw.api.operations import Call
from smartgw.api.records import etag_of, updated_at
from smartgw.state.zones import Version
from smartgw_dns import master
from smartgw_dns.edits import Change, difference, edit_serial, is_higher, next_serial
from smartgw_dns.lint import Finding, lint
from smartgw_dns.lookup import AAAA, A
from smartgw_dns.master import MasterRefused, rdata_text
from smartgw_dns.names import LONGEST, ROOT, order, text_of, within
from smartgw_dns.records import (
    RecordRefused,
    absolute,
    distinct,
    read_name,
    read_rdata,
    read_rrset,
    read_type,
)
from smartgw_dns.zone import NS, SOA, RRset, Zone, type_text

T = TypeVar("T")

MOST_ADVICE: Final = 100
MOST_PAGE: Final = 256 << 10
"""Octets of rdata behind which a page of records ends, however many were asked for."""
SOA_TIMES: Final = ("refresh", "retry", "expire", "minimum")
Place = tuple[tuple[bytes, ...], int]
"""Where an rrset stands in the order of a zone: by name, then by type."""


# ---- what a caller wrote ----


def origin_of(call: Call) -> bytes:
    """Return the key of the zone that the path names. Raises ApiError."""
    return parameter(read_name, absolute(call.path["zone"]), "zone").lower()


def place_of(call: Call) -> tuple[bytes, int]:
    """Return the name and type of the rrset that is meant."""
    owner = parameter(read_name, absolute(call.path["name"]), "name")
    return owner, parameter(read_type, call.path["type"], "type")


def parameter(read: Callable[[str], T], text: str, name: str) -> T:
    """Return what a parameter says. Raises ApiError, which names it."""
    try:
        return read(text)
    except RecordRefused as error:
        raise ApiError(400, "bad_parameter", str(error), parameter=name) from None


def name_of(text: str, pointer: str) -> bytes:
    """Return the name that a member of the body says. Raises ApiError."""
    return _read(read_name, text, pointer)


def servers_of(names: Iterable[str]) -> list[bytes]:
    """Return the name servers that a body names. Raises BadBody."""
    faults, found = Faults(), []
    for number, name in enumerate(names):
        with faults:
            found.append(name_of(name, f"/nameservers/{number}"))
    faults.tell()
    return found


def type_of(text: str, pointer: str) -> int:
    """Return the type that a member of the body says. Raises ApiError."""
    return _read(read_type, text, pointer)


def _read(read: Callable[[str], T], text: str, pointer: str) -> T:
    try:
        return read(text)
    except RecordRefused as error:
        raise BadBody((pointer, str(error))) from None


def change_of(wanted: models_zones.Change, pointer: str) -> Change:
    """Return one change of several. Raises BadBody."""
    if wanted.rdata is None:
        faults = Faults()
        with faults:
            owner = name_of(wanted.name, f"{pointer}/name")
        with faults:
            rdtype = type_of(wanted.type, f"{pointer}/type")
        faults.tell()
        return Change(owner, rdtype, None)
    if wanted.ttl is None:
        others = _each_fault(wanted.name, wanted.type, wanted.rdata, pointer)
        raise BadBody((f"{pointer}/ttl", "needed with rdata"), *others)
    return rrset_of(wanted.name, wanted.type, wanted.ttl, wanted.rdata, pointer)


def rrset_of(name: str, rdtype: str, ttl: int, rdata: Sequence[str], pointer: str) -> Change:
    """Return the change that sets these records. Raises BadBody."""
    try:
        return read_rrset(name, rdtype, ttl, rdata)
    except RecordRefused as error:
        found = _each_fault(name, rdtype, rdata, pointer)
        raise BadBody(*found or [(f"{pointer}/{error.field}", str(error))]) from None


def _each_fault(name: str, rdtype: str, rdata: Sequence[str], pointer: str) -> list[Fault]:
    """Return what is wrong with each part of an rrset by itself."""
    found: list[Fault] = []

    def look(read: Callable[[str], object], text: str, where: str) -> None:
        try:
            read(text)
        except RecordRefused as error:
            found.append((f"{pointer}/{where}", str(error)))

    look(read_name, name, "name")
    try:
        code = read_type(rdtype)
    except RecordRefused as error:
        return [*found, (f"{pointer}/type", str(error))]
    for number, text in enumerate(rdata):
        look(partial(read_rdata, code), text, f"rdata/{number}")
    return found


def contact_of(text: str | None, origin: bytes) -> bytes:
    """Return whom a zone's SOA names: a mailbox, or its form as a domain name (RFC 1035 8)."""
    if text is None:
        return b"\x0ahostmaster" + origin if len(origin) + 11 <= LONGEST else origin
    local, at, domain = text.rpartition("@")
    if at:
        text = f"{local.replace('.', chr(92) + '.')}.{absolute(domain)}"
    return name_of(text, "/contact")


def addresses_of(texts: Sequence[str]) -> dict[int, tuple[bytes, ...]]:
    """Return rdata of A and AAAA records, each once. Raises ApiError."""
    found: dict[int, list[bytes]] = {A: [], AAAA: []}
    faults = Faults()
    for number, text in enumerate(texts):
        rdtype = AAAA if ":" in text else A
        with faults:
            rdata = _read(partial(read_rdata, rdtype), text, f"/addresses/{number}")
            if rdata not in found[rdtype]:
                found[rdtype].append(rdata)
    faults.tell()
    return {rdtype: tuple(rdatas) for rdtype, rdatas in found.items()}


def is_dry(call: Call) -> bool:
    """Say whether nothing is to be stored."""
    query: models_zones.DryRun = call.query
    return query.dry_run in ("1", "true")


# ---- what a zone becomes ----


def apex(
    origin: bytes,
    servers: Iterable[bytes],
    contact: bytes,
    ttl: int,
    times: Sequence[int],
    serial: int,
) -> list[Change]:
    """Return the SOA and NS records of a zone."""
    servers = distinct(NS, servers)
    numbers = b"".join(number.to_bytes(4, "big") for number in (serial, *times))
    return [
        Change(origin, SOA, RRset(SOA, ttl, (servers[0] + contact + numbers,))),
        Change(origin, NS, RRset(NS, ttl, servers)),
    ]


def zone_of_file(text: str, origin: bytes) -> tuple[Zone, list[Finding]]:
    """Return the zone of a master file, and advice on it. Raises ApiError."""
    try:
        zone = master.read(text, origin)
    except MasterRefused as error:
        more: dict[str, object] = {"line": error.line}
        if error.why is not None:
            more["rule"] = error.why.value
        raise ApiError(400, "bad_zone_file", str(error), more=more) from None
    advice = []
    for finding in lint(zone):
        advice.append(finding)
        if len(advice) == MOST_ADVICE:
            break
    return zone, advice


def following(before: Zone, wanted: Zone) -> Zone:
    """Return a zone as it follows another: with a serial that is higher, its own or the next one;
    that other zone where nothing changes.
    """
    if is_higher(wanted.serial, before.serial):
        return wanted
    if not difference(before, edit_serial(wanted, before.serial)):
        return before
    return edit_serial(wanted, next_serial(before.serial))


def master_file(zone: Zone) -> bytes:
    """Return a zone as its master file."""
    return "".join(master.write(zone)).encode()


# ---- what is shown ----


def brief(version: Version) -> dict[str, Any]:
    """Return a zone as lists show it."""
    zone = version.zone
    return {
        "zone": text_of(zone.origin),
        "serial": zone.serial,
        "records": zone.records,
        "etag": etag_of(version.head),
        "updated_at": updated_at(version.head),
    }


def zone_json(version: Version) -> dict[str, Any]:
    """Return a zone as its own page shows it."""
    apex = version.zone.apex
    soa, servers = apex.get(SOA), apex.get(NS)
    assert soa is not None
    assert servers is not None
    words = rdata_text(SOA, soa.rdatas[0]).split(" ")
    return {
        **brief(version),
        "nameservers": [rdata_text(NS, rdata) for rdata in servers.rdatas],
        "contact": words[1],
        "ttl": soa.ttl,
        **dict(zip(SOA_TIMES, map(int, words[3:]), strict=True)),
    }


def rrsets_json(found: Iterable[tuple[bytes, RRset]]) -> list[dict[str, Any]]:
    """Return rrsets as they are shown."""
    return [rrset_json(owner, rrset) for owner, rrset in found]


def rrset_json(owner: bytes, rrset: RRset) -> dict[str, Any]:
    """Return an rrset as it is shown."""
    return {
        "name": text_of(owner),
        "type": type_text(rrset.rdtype),
        "ttl": rrset.ttl,
        "rdata": [rdata_text(rrset.rdtype, rdata) for rdata in rrset.rdatas],
    }


def page_of(
    zone: Zone, name: bytes | None, rdtype: int | None, after: Place | None, limit: int
) -> tuple[list[tuple[bytes, RRset]], bool]:
    """Return the next rrsets behind a place, in canonical order, and whether there are more."""
    if name is not None:
        entry = zone.entries.get(name.lower())
        entries = [] if entry is None else [(name.lower(), entry)]
    else:
        entries = list(zone.entries.items())
    found = (
        ((order(key), rrset.rdtype), entry.owner, rrset)
        for key, entry in entries
        for rrset in entry.rrsets
        if rdtype in (None, rrset.rdtype)
    )
    behind = (one for one in found if after is None or one[0] > after)
    page = [
        (owner, rrset)
        for _, owner, rrset in heapq.nsmallest(limit + 1, behind, key=lambda one: one[0])
    ]
    octets = accumulate(sum(map(len, rrset.rdatas)) for _, rrset in page)
    fitting = max(1, sum(size <= MOST_PAGE for size in octets))
    shown = page[: min(limit, fitting)]
    return shown, len(shown) < len(page)


def cursor_of(owner: bytes, rrset: RRset) -> str:
    """Return the cursor of the page behind an rrset."""
    name = base64.b32hexencode(owner.lower()).decode().rstrip("=").lower()
    return f"{name}.{rrset.rdtype}"


def place_behind(text: str) -> Place | None:
    """Return the place that a cursor names. Raises ApiError."""
    if not text:
        return None
    name, _, rdtype = text.partition(".")
    try:
        key = base64.b32hexdecode(name.upper() + "=" * (-len(name) % 8))
        if not (rdtype.isdigit() and key.endswith(ROOT) and within(key, ROOT)):
            raise ValueError("no place in a zone")
        return order(key), int(rdtype)
    except (ValueError, IndexError):
        message = "cursor is none that a page of these records has given"
        raise ApiError(400, "bad_parameter", message, parameter="cursor") from None


def subject_of(owner: bytes, rdtype: int) -> dict[str, str]:
    """Return what the audit log names an rrset by."""
    return {"name": text_of(owner), "type": type_text(rdtype)}


def unknown_zone(origin: bytes) -> ApiError:
    """The refusal of a zone that is not there."""
    return ApiError(404, "unknown_zone", f"no zone {text_of(origin)} is there")


def unknown_rrset(owner: bytes, rdtype: int) -> ApiError:
    """The refusal of an rrset that is not there."""
    return ApiError(404, "unknown_rrset", f"{text_of(owner)} has no {type_text(rdtype)} records")
