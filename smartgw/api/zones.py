"""Control of zones and their records: what is read, and what a write makes of a zone (8.6).

Owns what each operation is for a zone. How a change is made and told is zone_writes.py's, the JSON
zone_forms.py's, the words of the operations are zone_operations.py's, the rules smartgw_dns's.
"""

import heapq
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from smartgw.api import models, models_zones
from smartgw.api import zone_operations as operations
from smartgw.api.answers import ApiError, Faults
from smartgw.api.audit import Audit
from smartgw.api.operations import Bound, Call, Reply
from smartgw.api.records import etag_of
from smartgw.api.versions import unchanged
from smartgw.api.zone_forms import (
    SOA_TIMES,
    addresses_of,
    apex,
    brief,
    change_of,
    contact_of,
    cursor_of,
    following,
    is_dry,
    master_file,
    origin_of,
    page_of,
    parameter,
    place_behind,
    place_of,
    rrset_of,
    rrsets_json,
    servers_of,
    subject_of,
    unknown_rrset,
    unknown_zone,
    zone_json,
    zone_of_file,
)
from smartgw.api.zone_writes import LARGE, Plan, ZoneWrites, edited, tags_of
from smartgw.nameserver import Nameserver
from smartgw.state.zone_records import HEADS, head_key
from smartgw.state.zones import Version
from smartgw_dns.edits import Change, build
from smartgw_dns.lint import Finding
from smartgw_dns.names import text_of
from smartgw_dns.records import absolute, read_name, read_type
from smartgw_dns.zone import SOA, RRset, Zone, type_text

_LARGE_TEXT = 20_000
"""Octets of rdata that are shown in text beside the event loop."""
_LARGE_FILE = 5_000
"""Octets of a master file from which on it is read there: some 100 records, each of which takes up
to 350 us to read and to advise on.
"""
_LARGE_WRITE = 500
"""Octets of the names that are written, from which on it is done there: each label of each may be a
name whose answers change, and to compare a hundred takes 50 ms.
"""


class Zones:
    """`bounds` are the operations with what they do. `dns` gives the zones of the gateway,
    `base_domains` those that apps have hostnames below.
    """

    def __init__(
        self,
        dns: Callable[[], Nameserver],
        audit: Audit,
        base_domains: Callable[[], tuple[str, ...]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._writes = ZoneWrites(dns, audit)
        self._base_domains = base_domains
        self._wall = wall
        self.bounds: tuple[Bound, ...] = (
            (operations.LIST_ZONES, self._list),
            (operations.READ_ZONE, self._read),
            (operations.PUT_ZONE, self._put),
            (operations.CHANGE_ZONE, self._change),
            (operations.DELETE_ZONE, self._delete),
            (operations.LIST_RRSETS, self._list_rrsets),
            (operations.READ_RRSET, self._read_rrset),
            (operations.PUT_RRSET, self._put_rrset),
            (operations.DELETE_RRSET, self._delete_rrset),
            (operations.EXPORT_ZONE, self._export),
            (operations.IMPORT_ZONE, self._import),
            (operations.PUT_APP_WILDCARDS, self._put_app_wildcards),
        )

    # ---- zones ----

    async def _list(self, call: Call) -> Reply:
        page: models.Page = call.query
        dns = self._writes.known()
        assert dns.store is not None
        durable = dns.store.durable
        after = f"{HEADS}.{page.cursor}"
        heads = [(head_key(zone.origin), zone.origin) for zone in dns.zones.catalog if zone.known]
        found = heapq.nsmallest(page.limit + 1, (head for head in heads if head[0] > after))
        more = len(found) > page.limit
        versions = (dns.zones.version(origin) for _, origin in found[: page.limit])
        return Reply(
            {
                "zones": [brief(version) for version in versions if version is not None],
                "next_cursor": found[page.limit - 1][0].partition(".")[2] if more else None,
                "age_seconds": round(durable.age or 0.0, 3),
            },
            fields={"Age": str(int(durable.age or 0))},
        )

    async def _read(self, call: Call) -> Reply:
        version = self._version(origin_of(call))
        etag = etag_of(version.head)
        if unchanged(tags_of(call, "If-None-Match"), etag):
            return Reply(None, 304, etag)
        return Reply(zone_json(version), 200, etag)

    async def _put(self, call: Call) -> Reply:
        origin, wanted = origin_of(call), call.body
        faults = Faults()
        with faults:
            servers = servers_of(wanted.nameservers)
        with faults:
            contact = contact_of(wanted.contact, origin)
        faults.tell()
        times = [getattr(wanted, name) for name in SOA_TIMES]

        def make(before: Version | None) -> Plan:
            if before is None:
                changes = apex(origin, servers, contact, wanted.ttl, times, self._first_serial())
                return Plan(build(origin, changes), None)
            serial = before.zone.serial
            return edited(before, apex(origin, servers, contact, wanted.ttl, times, serial))

        return await self._writes.change(
            call, origin, make, action="zone.put", dry_run=is_dry(call)
        )

    async def _change(self, call: Call) -> Reply:
        origin = origin_of(call)
        wanted: models_zones.Changes = call.body
        faults = Faults()
        changes: list[Change] = []
        for number, each in enumerate(wanted.changes):
            with faults:
                changes.append(change_of(each, f"/changes/{number}"))
        faults.tell()
        return await self._edit(call, origin, changes, "zone.change", {})

    async def _delete(self, call: Call) -> Reply:
        origin = origin_of(call)

        def make(before: Version | None) -> Plan:
            if before is None:
                raise unknown_zone(origin)
            return Plan(None, None)

        return await self._writes.change(
            call, origin, make, action="zone.delete", dry_run=is_dry(call)
        )

    # ---- rrsets ----

    async def _list_rrsets(self, call: Call) -> Reply:
        page: models_zones.RRsetsPage = call.query
        version = self._version(origin_of(call))
        name = None if page.name is None else parameter(read_name, absolute(page.name), "name")
        rdtype = None if page.type is None else parameter(read_type, page.type, "type")
        ask = (version.zone, name, rdtype, place_behind(page.cursor), page.limit)
        if version.zone.records > LARGE and name is None:
            found, more = await self._writes.known().aside.run(page_of, *ask)
        else:
            found, more = page_of(*ask)
        body = {
            "rrsets": await self._shown(found),
            "next_cursor": cursor_of(*found[-1]) if more else None,
            "serial": version.zone.serial,
            "etag": etag_of(version.head),
        }
        return Reply(body)

    async def _read_rrset(self, call: Call) -> Reply:
        version = self._version(origin_of(call))
        owner, rdtype = place_of(call)
        entry = version.zone.entries.get(owner.lower())
        rrset = None if entry is None else entry.get(rdtype)
        if entry is None or rrset is None:
            raise unknown_rrset(owner, rdtype)
        etag = etag_of(version.head)
        if unchanged(tags_of(call, "If-None-Match"), etag):
            return Reply(None, 304, etag)
        (shown,) = await self._shown([(entry.owner, rrset)])
        return Reply(shown, 200, etag)

    async def _shown(self, found: Sequence[tuple[bytes, RRset]]) -> list[dict[str, Any]]:
        """Return rrsets as they are shown; dnspython takes a millisecond for 1,000 octets."""
        if sum(len(rdata) for _, rrset in found for rdata in rrset.rdatas) > _LARGE_TEXT:
            return await self._writes.known().aside.run(rrsets_json, found)
        return rrsets_json(found)

    async def _put_rrset(self, call: Call) -> Reply:
        origin = origin_of(call)
        owner, rdtype = place_of(call)
        wanted: models_zones.RRsetWrite = call.body
        change = rrset_of(text_of(owner), type_text(rdtype), wanted.ttl, wanted.rdata, "")
        return await self._edit(call, origin, [change], "rrset.put", subject_of(owner, rdtype))

    async def _delete_rrset(self, call: Call) -> Reply:
        origin = origin_of(call)
        owner, rdtype = place_of(call)
        change = Change(owner, rdtype, None)
        return await self._edit(call, origin, [change], "rrset.delete", subject_of(owner, rdtype))

    async def _edit(
        self,
        call: Call,
        origin: bytes,
        changes: Sequence[Change],
        action: str,
        what: dict[str, str],
    ) -> Reply:
        single = changes[0] if what else None

        def there(before: Version | None) -> bool:
            if single is None or before is None:
                return before is not None
            entry = before.zone.entries.get(single.owner.lower())
            return entry is not None and entry.get(single.rdtype) is not None

        def make(before: Version | None) -> Plan:
            if before is None:
                raise unknown_zone(origin)
            if single is not None and single.rrset is None and not there(before):
                raise unknown_rrset(single.owner, single.rdtype)
            return edited(before, changes)

        return await self._writes.change(
            call,
            origin,
            make,
            action=action,
            dry_run=is_dry(call),
            subject=what,
            exists=there,
            large=sum(len(change.owner) for change in changes) > _LARGE_WRITE,
        )

    # ---- whole files ----

    async def _export(self, call: Call) -> Reply | web.Response:
        version = self._version(origin_of(call))
        etag = etag_of(version.head)
        if unchanged(tags_of(call, "If-None-Match"), etag):
            return Reply(None, 304, etag)
        # Parts has a zone of many octets, also in few records.
        if version.zone.records > LARGE or version.contents:
            text = await self._writes.known().aside.run(master_file, version.zone)
        else:
            text = master_file(version.zone)
        fields = {"ETag": f'"{etag}"'}
        return web.Response(body=text, content_type=operations.MASTER, headers=fields)

    async def _import(self, call: Call) -> Reply:
        origin, data = origin_of(call), call.body.removeprefix(BOM_UTF8)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            message = f"line {line}: not UTF-8"
            raise ApiError(400, "bad_zone_file", message, more={"line": line}) from None
        # Once, however often others change the zone meanwhile.
        read: list[tuple[Zone, list[Finding]]] = []

        def make(before: Version | None) -> Plan:
            if not read:
                read.append(zone_of_file(text, origin))
            zone, advice = read[0]
            if before is not None:
                zone = following(before.zone, zone)
            return Plan(zone, None, advice)

        return await self._writes.change(
            call,
            origin,
            make,
            action="zone.import",
            dry_run=is_dry(call),
            # A line with $GENERATE stands for up to 65,536.
            large=len(data) > _LARGE_FILE or b"$generate" in data.lower(),
        )

    # ---- apps ----

    async def _put_app_wildcards(self, call: Call) -> Reply:
        wanted: models_zones.AppWildcards = call.body
        faults, given = Faults(), None
        with faults:
            addresses = addresses_of(wanted.addresses)
        with faults:
            given = None if wanted.nameservers is None else servers_of(wanted.nameservers)
        faults.tell()
        written: list[dict[str, Any]] = []
        for base in self._base_domains():
            try:
                key = read_name(f"{base}.")
                written.append(await self._wildcard(call, key, addresses, given))
            except ApiError as error:
                done = [each["zone"] for each in written if each["changed"] and not is_dry(call)]
                if not done:
                    raise
                told = f"{base}: {error.message} ({', '.join(done)} is changed already)"
                raise error.saying(told) from None
        return Reply({"zones": written})

    async def _wildcard(
        self,
        call: Call,
        base: bytes,
        addresses: dict[int, tuple[bytes, ...]],
        given: list[bytes] | None,
    ) -> Any:
        """Set the wildcard of one base domain; returns what that changes."""
        above = (await self._writes.newest(dry_run=is_dry(call))).find(base, SOA)
        origin = base if above is None else above.origin
        ttl = call.body.ttl
        servers = [b"\x02ns" + base] if given is None else given

        def records(owner: bytes) -> list[Change]:
            return [
                Change(owner, rdtype, RRset(rdtype, ttl, found) if found else None)
                for rdtype, found in addresses.items()
            ]

        def make(before: Version | None) -> Plan:
            wildcard = records(b"\x01*" + base)
            if before is not None:
                return edited(before, wildcard)
            soa = models_zones.ZoneWrite(nameservers=["."])
            times = [getattr(soa, name) for name in SOA_TIMES]
            contact = contact_of(soa.contact, base)
            made = apex(base, servers, contact, soa.ttl, times, self._first_serial())
            if given is None:
                made += records(servers[0])
            return Plan(build(base, made + wildcard), None)

        reply = await self._writes.change(
            call,
            origin,
            make,
            action="zone.wildcard",
            dry_run=is_dry(call),
            subject={"base_domain": text_of(base)},
        )
        return reply.body

    # ---- what is there ----

    def _version(self, origin: bytes) -> Version:
        version = self._writes.known().zones.version(origin)
        if version is None:
            raise unknown_zone(origin)
        return version

    def _first_serial(self) -> int:
        """Above that of a zone of this name that was deleted before."""
        return int(self._wall()) & 0xFFFF_FFFF or 1
