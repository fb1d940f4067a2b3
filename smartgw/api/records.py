"""Control of what is stored: the steps that all kinds of record share (contract 10.1, 10.3).

Owns how a request's conditions, the store's answers and the audit log meet: a change is applied in
full and told, or refused with 409, 412 or 503. What a record may be is smartgw.state.records' to
say, where it is kept smartgw.state.store's.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Any, Final

from smartgw.api.answers import ApiError, BadBody, rfc3339
from smartgw.api.audit import Audit
from smartgw.api.operations import Call, Reply
from smartgw.api.versions import BadCondition, Tags, holds, tags, unchanged
from smartgw.state.desired import Desired, Stored
from smartgw.state.durable import Conflict, DurableState, NameTaken, Unavailable
from smartgw.state.records import FieldError, Kind, Record, key_of

_ATTEMPTS: Final = 6
_CATCH_UP: Final = 0.05
"""Seconds for a change that somebody else made to be in force here, before the next attempt."""
_AT_ONCE: Final = 2_000
"""More records than this are looked through in a thread, so that traffic has its turns."""
_UNKNOWN: Final = "the state is not known yet, for the bus has not been there"
Shown = Callable[[Desired, Stored], dict[str, Any]]
Place = Callable[[str], str]


class Records:
    """Reads and changes for one kind. `durable` gives the store, None while there is none.

    `kind` of record, `name` of one in errors and in the audit log, `shown` makes its JSON.
    """

    def __init__(
        self,
        durable: Callable[[], DurableState | None],
        audit: Audit,
        kind: Kind,
        name: str,
        shown: Shown,
    ) -> None:
        self._durable = durable
        self._audit = audit
        self._kind = kind
        self._name = name
        self._shown = shown

    def read(self, call: Call, key: str, subject: str) -> Reply:
        """The record under a key; 304 where the caller has it already."""
        durable = self._known()
        stored = durable.desired.stored(key)
        if stored is None:
            raise self._unknown(subject)
        etag = etag_of(stored)
        fields = self._age(durable)
        if unchanged(_tags(call, "If-None-Match"), etag):
            return Reply(None, 304, etag, fields)
        return Reply(self._shown(durable.desired, stored), 200, etag, fields)

    async def page(
        self, members: str, cursor: str, limit: int, wanted: Callable[[Record], bool]
    ) -> Reply:
        """A page of the records that are `wanted`, by key; `members` names the list."""
        durable = self._known()
        desired = durable.desired
        ask = (desired, self._kind, cursor, limit + 1, wanted)
        many = len(desired.records) > _AT_ONCE
        found = await asyncio.to_thread(_page, *ask) if many else _page(*ask)
        more = len(found) > limit
        found = found[:limit]
        body = {
            members: [self._shown(desired, stored) for _, stored in found],
            "next_cursor": found[-1][0].partition(".")[2] if more else None,
            "age_seconds": round(durable.age or 0.0, 3),
        }
        return Reply(body, 200, None, self._age(durable))

    async def put(
        self, call: Call, record: Record, subject: dict[str, str], place: Place = str
    ) -> Reply:
        """Store a record, new or in the place of another; the same one again changes nothing.

        `place` says where in the body a name stands.
        """
        key = key_of(record)
        match, none_match = _tags(call, "If-Match"), _tags(call, "If-None-Match")
        fresh = False
        for attempt in range(_ATTEMPTS):
            durable = self._writable()
            before = durable.desired.stored(key)
            same = before is not None and before.record == record
            if not fresh and (same or not self._holds(match, none_match, before)):
                # Not by what another gateway may have changed a moment ago.
                fresh = await self._look(durable)
                before = durable.desired.stored(key)
                same = before is not None and before.record == record
            self._check(match, none_match, before)
            if before is not None and same:
                return self._written(durable, before, 200)
            try:
                after = await durable.write(record, 0 if before is None else before.revision)
            except Conflict as conflict:
                await self._again(match or none_match, durable, key, conflict, attempt)
                continue
            except NameTaken as error:
                raise _taken(error, place(error.name)) from None
            except Unavailable as error:
                raise not_stored(error) from None
            action = f"{self._name}.{'create' if before is None else 'replace'}"
            await self._note(call, action, subject, durable.desired, before, after)
            return self._written(durable, after, 201 if before is None else 200)
        raise _conflict()

    async def delete(self, call: Call, key: str, subject: dict[str, str]) -> Reply:
        """Delete a record."""
        match = _tags(call, "If-Match")
        fresh = False
        for attempt in range(_ATTEMPTS):
            durable = self._writable()
            before = durable.desired.stored(key)
            if not fresh and (before is None or not self._holds(match, None, before)):
                fresh = await self._look(durable)
                before = durable.desired.stored(key)
            self._check(match, None, before)
            if before is None:
                raise self._unknown(next(iter(subject.values())))
            try:
                gone = await durable.delete(key, before.revision)
            except Conflict as conflict:
                await self._again(match, durable, key, conflict, attempt)
                continue
            except Unavailable as error:
                raise not_stored(error) from None
            action = f"{self._name}.delete"
            await self._note(call, action, subject, durable.desired, gone or before, None)
            return Reply(None, 204)
        raise _conflict()

    # ---- steps ----

    def _known(self) -> DurableState:
        durable = self._durable()
        if durable is None:
            raise no_state()
        if durable.age is None:
            raise unavailable(f"{_UNKNOWN}; ask again")
        return durable

    def _writable(self) -> DurableState:
        durable = self._durable()
        if durable is not None and durable.age is None:
            raise not_stored(Unavailable(_UNKNOWN))
        return self._known()

    async def _look(self, durable: DurableState) -> bool:
        """Hear of what other gateways wrote. True, when it returns."""
        try:
            await durable.look()
        except Unavailable as error:
            raise not_stored(error) from None
        return True

    def _holds(self, match: Tags | None, none_match: Tags | None, now: Stored | None) -> bool:
        return holds(match, none_match, None if now is None else etag_of(now))

    def _check(self, match: Tags | None, none_match: Tags | None, now: Stored | None) -> None:
        if not self._holds(match, none_match, now):
            there = "does not exist" if now is None else f"is at {etag_of(now)}"
            message = f"the {self._name} {there}; read it again"
            raise ApiError(412, "precondition_failed", message)

    async def _again(
        self, condition: Tags | None, durable: DurableState, key: str, conflict: Conflict, done: int
    ) -> None:
        """Wait until the change of somebody else is in force here; with a condition it is over."""
        if condition is not None:
            message = f"somebody else changed the {self._name} at this moment; read it again"
            raise ApiError(412, "precondition_failed", message)
        until = time.monotonic() + _CATCH_UP * (done + 1)
        while time.monotonic() < until:
            now = durable.desired.stored(key)
            if (0 if now is None else now.revision) == conflict.revision:
                return
            await asyncio.sleep(_CATCH_UP / 5)

    def _written(self, durable: DurableState, stored: Stored, status: int) -> Reply:
        return Reply(self._shown(durable.desired, stored), status, etag_of(stored))

    async def _note(
        self,
        call: Call,
        action: str,
        subject: dict[str, str],
        desired: Desired,
        before: Stored | None,
        after: Stored | None,
    ) -> None:
        old, new = (None if s is None else self._shown(desired, s) for s in (before, after))
        await self._audit.note(call.service, call.request_id, action, subject, old, new)

    def _unknown(self, subject: str) -> ApiError:
        message = f"no {self._name} {subject} is there"
        return ApiError(404, f"unknown_{self._name}", message)

    def _age(self, durable: DurableState) -> dict[str, str]:
        return {"Age": str(int(durable.age or 0))}


def etag_of(stored: Stored) -> str:
    """Name one write, also when the bucket was made anew and counts from the beginning."""
    return f"{stored.revision}-{int(stored.time * 1000):x}"


def updated_at(stored: Stored) -> str:
    """When it was written."""
    return rfc3339(stored.time)


def bad_field(error: FieldError) -> ApiError:
    """The refusal of a value that no record may have."""
    return BadBody((error.pointer, str(error)))


def _page(
    desired: Desired, kind: Kind, cursor: str, limit: int, wanted: Callable[[Record], bool]
) -> list[tuple[str, Stored]]:
    prefix = f"{kind}."
    after = f"{prefix}{cursor}"
    found = (
        (key, stored)
        for key, stored in desired.records.items()
        if key.startswith(prefix)
        and key > after
        and isinstance(stored, Stored)
        and wanted(stored.record)
    )
    return heapq.nsmallest(limit, found, key=lambda pair: pair[0])


def _tags(call: Call, name: str) -> Tags | None:
    try:
        return tags(call.request.headers.getall(name, ()))
    except BadCondition as error:
        raise ApiError(400, "bad_parameter", f"{name}: {error}", parameter=name) from None


def _taken(error: NameTaken, place: str) -> ApiError:
    holder = {} if error.holder is None else {"holder": error.holder}
    more = {"name": error.name, **holder}
    return ApiError(409, "name_taken", f"{place}: {error}", pointer=place, more=more)


def not_stored(error: Unavailable) -> ApiError:
    """The refusal of a change that is not stored, or not known to be; it says which."""
    if error.sent:
        become = "it may be stored all the same: read it, or send it again"
    else:
        become = "nothing of it is stored: try again"
    return unavailable(f"{error.reason}; {become}")


def no_state() -> ApiError:
    """The refusal of a gateway that was given no place to keep anything."""
    return unavailable("this gateway keeps no state: its settings have no state.bucket")


def unavailable(message: str) -> ApiError:
    """The refusal of what the store is needed for. `message` ends with what to do."""
    return ApiError(503, "state_unavailable", message, fields={"Retry-After": "1"})


def _conflict() -> ApiError:
    message = "others changed it at the same time, again and again; nothing of yours is stored"
    return ApiError(409, "conflict", message)
