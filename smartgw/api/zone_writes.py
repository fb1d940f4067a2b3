"""How a change of a zone is made: the steps that all writes share (contract 8.6, 10.3).

Owns how conditions, the rules of zones, the store's answers and the audit log meet: a change is
stored as a whole and told with all that it changes, or refused with 400, 409, 412 or 503. What the
zone becomes is zones.py's, what may stand in it smartgw_dns's.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from smartgw.api.answers import ApiError
from smartgw.api.audit import Audit
from smartgw.api.operations import Call, Reply
from smartgw.api.records import etag_of, no_state, not_stored, unavailable
from smartgw.api.versions import BadCondition, Tags, holds, tags
from smartgw.nameserver import Nameserver
from smartgw.state.durable import Conflict, Unavailable
from smartgw.state.zone_store import ZoneStore
from smartgw.state.zones import Version
from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import Differences, compare
from smartgw_dns.edits import Change, EditRefused, difference, edit
from smartgw_dns.lint import Finding
from smartgw_dns.names import text_of
from smartgw_dns.shown import differences_json, octets_of
from smartgw_dns.whole_zones import compare_whole
from smartgw_dns.zone import Zone

P = ParamSpec("P")
T = TypeVar("T")

LARGE: Final = 2_000
"""Records of a zone that is worked on beside the event loop."""
_MANY: Final = 50
"""Answers that change, at 100 us to show each, from which on they are shown there."""
_LONG: Final = 20_000
"""Octets of rdata, at a millisecond to show 1,000, from which on as well."""
_ATTEMPTS: Final = 6
_CATCH_UP: Final = 2.0
"""Seconds for a change that somebody else made to be in force here, before the next attempt."""
_TURN: Final = 5.0
"""Seconds that a write waits for those of this gateway to the same zone that came before it."""
_UNKNOWN: Final = "the zones are not known yet, for the bus has not been there"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a zone is to become.

    Attributes:
        zone: None where it is to go.
        changes: what is written of it; None for all of it.
        advice: what is likely not meant.
    """

    zone: Zone | None
    changes: Sequence[Change] | None
    advice: Sequence[Finding] = ()


Make = Callable[[Version | None], Plan]
"""Makes a plan of the zone as it is; raises EditRefused or ApiError. May be called in a thread."""


class ZoneWrites:
    """`dns` gives the zones of the gateway."""

    def __init__(self, dns: Callable[[], Nameserver], audit: Audit) -> None:
        self._dns = dns
        self._audit = audit
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    def known(self) -> Nameserver:
        """The zones, when they are known. Raises ApiError."""
        dns = self._dns()
        if dns.store is None:
            raise no_state()
        if not dns.known:
            raise unavailable(f"{_UNKNOWN}; ask again")
        return dns

    def _writable(self) -> Nameserver:
        dns = self._dns()
        if dns.store is not None and not dns.known:
            raise not_stored(Unavailable(_UNKNOWN))
        return self.known()

    async def change(
        self,
        call: Call,
        origin: bytes,
        make: Make,
        *,
        action: str,
        dry_run: bool,
        subject: Mapping[str, str] | None = None,
        exists: Callable[[Version | None], bool] | None = None,
        large: bool = False,
    ) -> Reply:
        """Make what `make` plans, on the conditions of the call.

        `exists` tells whether the thing is there that is written; by default the zone. `large`:
        what is sent is, whatever the zone.
        """
        async with self._turn(origin) if not dry_run else contextlib.nullcontext():
            return await self._change(
                *(call, origin, make, action),
                dry_run=dry_run,
                subject=subject,
                exists=exists,
                large=large,
            )

    async def _change(
        self,
        call: Call,
        origin: bytes,
        make: Make,
        action: str,
        *,
        dry_run: bool,
        subject: Mapping[str, str] | None,
        exists: Callable[[Version | None], bool] | None,
        large: bool,
    ) -> Reply:
        match, none_match = tags_of(call, "If-Match"), tags_of(call, "If-None-Match")
        for _ in range(_ATTEMPTS):
            dns = self._writable()
            before = await self._newest(dns, origin, dry_run=dry_run)
            if (fault := dns.zones.faults.get(origin)) and not dry_run:
                raise not_stored(Unavailable(f"the zone cannot be read as it was written: {fault}"))
            there = before is not None if exists is None else exists(before)
            _check(match, none_match, before, there=there)
            plan = await self._work(large or _is_large(before, None), make, before)
            if before is not None and plan.zone is before.zone:
                return _reply(origin, before, plan, _NOTHING, dry_run=dry_run)
            large = large or _is_large(before, plan.zone)
            told = await self._work(large, _compared, dns.zones.catalog, before, plan)
            if dry_run:
                return await self._told(large, origin, before, plan, told, dry_run=True)
            try:
                after = await _store(dns, before, plan)
            except Conflict:
                if match is not None or none_match is not None:
                    message = "somebody else changed the zone at this moment; read it again"
                    raise ApiError(412, "precondition_failed", message) from None
                continue
            except Unavailable as error:
                raise not_stored(error) from None
            except EditRefused as error:
                raise _refused(error) from None
            whole = {"zone": text_of(origin), **(subject or {})}
            states = [None if zone is None else _summary(zone) for zone in (before, after)]
            await self._audit.note(call.service, call.request_id, action, whole, *states)
            status = 200 if there or plan.zone is None else 201
            return await self._told(large, origin, after, plan, told, dry_run=False, status=status)
        message = "others changed the zone at the same time, again and again; nothing is stored"
        raise ApiError(409, "conflict", message)

    async def _told(
        self,
        large: bool,
        origin: bytes,
        now: Version | None,
        plan: Plan,
        told: Differences,
        *,
        dry_run: bool,
        status: int = 200,
    ) -> Reply:
        """Make a reply beside the loop where there is much to tell."""
        shown = (*told.own, *told.others)
        large = large or len(shown) > _MANY or sum(map(octets_of, shown)) > _LONG
        return await self._work(
            large, _reply, origin, now, plan, told, dry_run=dry_run, status=status
        )

    @contextlib.asynccontextmanager
    async def _turn(self, origin: bytes) -> AsyncIterator[None]:
        """Have writes to a zone wait for one another, for a while: at once each but the first would
        find the zone another than it was read, and be tried in vain.
        """
        turn = self._turns.get(origin)
        if turn is None:
            turn = self._turns[origin] = asyncio.Lock()
        try:
            async with asyncio.timeout(_TURN):
                await turn.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            turn.release()

    async def newest(self, *, dry_run: bool) -> Catalog:
        """Return all zones, with what other gateways have written a moment ago. Raises ApiError."""
        dns = self._writable()
        assert dns.store is not None
        await _look(dns.store, dry_run=dry_run)
        return dns.zones.catalog

    async def _newest(self, dns: Nameserver, origin: bytes, *, dry_run: bool) -> Version | None:
        """Return a zone as other gateways, too, may have written it a moment ago."""
        store = dns.store
        assert store is not None
        await _look(store, dry_run=dry_run)
        try:
            async with asyncio.timeout(_CATCH_UP):
                await dns.zones.reach(origin, store.durable.desired.revision)
        except TimeoutError:
            raise not_stored(Unavailable("the zone as it is now is still being made")) from None
        return dns.zones.version(origin)

    async def _work(self, large: bool, work: Callable[P, T], *args: P.args, **kw: P.kwargs) -> T:
        """Do what takes long beside the loop. Raises ApiError for what zones do not allow."""
        try:
            if large:
                return await self._dns().aside.run(work, *args, **kw)
            return work(*args, **kw)
        except EditRefused as error:
            raise _refused(error) from None


async def _look(store: ZoneStore, *, dry_run: bool) -> None:
    """Hear of what other gateways have written; a dry run goes by what is known without it."""
    try:
        await store.durable.look()
    except Unavailable as error:
        if not dry_run:
            raise not_stored(error) from None


def _refused(error: EditRefused) -> ApiError:
    more = {"rule": error.why.value, "name": text_of(error.owner)}
    return ApiError(409, "zone_rule", str(error), more=more)


def edited(before: Version | None, changes: Sequence[Change]) -> Plan:
    """Return the plan to make these changes to a zone. Raises EditRefused."""
    assert before is not None, "a zone that is there is edited"
    return Plan(edit(before.zone, changes), changes)


def _is_large(before: Version | None, after: Zone | None) -> bool:
    # Parts has a zone of many octets, also in few records.
    if before is not None and (before.contents or before.zone.records > LARGE):
        return True
    return after is not None and after.records > LARGE


async def _store(dns: Nameserver, before: Version | None, plan: Plan) -> Version | None:
    store: ZoneStore | None = dns.store
    assert store is not None
    if plan.zone is None:
        assert before is not None
        await store.delete(before)
        return None
    touched: Collection[bytes] | None = None
    if plan.changes is not None:
        touched = {change.owner.lower() for change in plan.changes} | {plan.zone.origin}
    head = await store.put(before, plan.zone, touched)
    return Version(plan.zone, head, ())


def _compared(catalog: Catalog, before: Version | None, plan: Plan) -> Differences:
    """Return the answers that a plan changes."""
    if before is None or plan.zone is None:
        return compare_whole(catalog, None if before is None else before.zone, plan.zone)
    changes = plan.changes
    if changes is None:
        changes = difference(before.zone, plan.zone)
    return compare(before.zone, plan.zone, changes, catalog)


def _reply(
    origin: bytes,
    now: Version | None,
    plan: Plan,
    told: Differences,
    *,
    dry_run: bool,
    status: int = 200,
) -> Reply:
    """`now`: what is in force after it, or before where nothing was stored."""
    etag = None if now is None else etag_of(now.head)
    zone = plan.zone
    own, others = differences_json(told.own), differences_json(told.others)
    body = {
        "zone": text_of(origin),
        "serial": None if zone is None else zone.serial,
        "records": 0 if zone is None else zone.records,
        "etag": etag,
        "dry_run": dry_run,
        "changed": told is not _NOTHING,
        "own": own,
        "others": others,
        "complete": told.complete and (len(own), len(others)) == (len(told.own), len(told.others)),
        "advice": [
            {"advice": one.advice.value, "name": text_of(one.name), "message": one.message}
            for one in plan.advice
        ],
    }
    return Reply(body, status, etag)


_NOTHING: Final = Differences((), (), complete=True)


def _summary(version: Version) -> dict[str, Any]:
    return {
        "serial": version.zone.serial,
        "records": version.zone.records,
        "etag": etag_of(version.head),
    }


def _check(
    match: Tags | None, none_match: Tags | None, now: Version | None, *, there: bool
) -> None:
    etag = None if now is None else etag_of(now.head)
    if not holds(match, None, etag):
        shown = "does not exist" if etag is None else f"is at {etag}"
        raise ApiError(412, "precondition_failed", f"the zone {shown}; read it again")
    if not holds(None, none_match, etag if there else None):
        raise ApiError(412, "precondition_failed", "it is there already; read it again")


def tags_of(call: Call, name: str) -> Tags | None:
    try:
        return tags(call.request.headers.getall(name, ()))
    except BadCondition as error:
        raise ApiError(400, "bad_parameter", f"{name}: {error}", parameter=name) from None
