"""Zones written to the store, each change as one (contract 8.6).

Owns the order of writes: the parts first, then the head, which puts them in force everywhere, then
what nobody needs any more is deleted. Of two that change one zone the second is refused. What a
zone becomes is the caller's.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from smartgw.aside import Aside
from smartgw.state.desired import Stored
from smartgw.state.durable import Conflict, DurableState, Unavailable
from smartgw.state.jetstream import LARGEST
from smartgw.state.records import encode
from smartgw.state.zone_records import (
    ID_BYTES,
    MOST_CONTENT,
    PARTS,
    ZoneHead,
    ZonePart,
    head_key,
    part_key,
    part_name,
)
from smartgw.state.zones import Version, Zones
from smartgw_dns.edits import EditRefused, Why
from smartgw_dns.packed import Packed, pack, repack
from smartgw_dns.zone import Zone

AT_ONCE: Final = 16
"""Parts on their way to the store at a time."""
ABANDONED: Final = 3_600.0
"""Seconds after which a part that no head names was left behind by a writer that is no more."""
IN_FORCE: Final = 5.0
"""Seconds for what is stored to be in force here, before that is no longer waited for."""
LARGE: Final = 5_000
"""Records of a zone that is packed beside the event loop."""

_log = logging.getLogger(__name__)


class ZoneStore:
    """Writes to `durable` what `zones` then has in force. Make it in its loop."""

    def __init__(
        self,
        durable: DurableState,
        zones: Zones,
        aside: Aside,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.zones = zones
        self.durable = durable
        self._aside = aside
        self._wall = wall
        self._sweeping: set[asyncio.Task[None]] = set()

    async def put(
        self, before: Version | None, zone: Zone, touched: Collection[bytes] | None = None
    ) -> Stored:
        """Store a zone in the place of `before`, None for one that must not exist yet.

        Args:
            touched: keys of the names that are otherwise, the apex among them; None for all.

        Returns the head as it is in force here.
        Raises Conflict: it is not `before` any more; Unavailable: it is not known to be stored;
        EditRefused: it has too many parts for a head to name, some 80 MB.
        """
        old = None if before is None else before.record
        packed = await self._pack(before, zone, touched)
        kept = packed.count and old is not None and len(old.places) == packed.count
        names = dict(enumerate(old.places)) if kept and old is not None else {}
        parts: list[ZonePart] = []
        for number, content in packed.places.items():
            names[number] = tuple(part_name(secrets.token_bytes(ID_BYTES)) for _ in _cut(content))
            pieces = zip(names[number], _cut(content), strict=True)
            parts += [ZonePart(zone.origin, name, piece) for name, piece in pieces]
        head = ZoneHead(
            zone.origin,
            zone.serial,
            zone.records,
            packed.size,
            packed.lead,
            tuple(names[number] for number in range(packed.count)),
        )
        if len(encode(head)) > LARGEST:
            raise EditRefused(Why.ZONE_TOO_LARGE, zone.origin)
        written = await self._write(parts)
        try:
            stored = await self.durable.write(head, 0 if before is None else before.head.revision)
        except (Conflict, Unavailable) as error:
            # Where it may be stored, or we are ended meanwhile, its parts may be needed.
            if not (isinstance(error, Unavailable) and error.sent):
                self._delete_soon(written)
            raise
        if old is not None:
            self._delete_soon(part_key(zone.origin, name) for name in old.parts - head.parts)
        if touched is None:
            self._delete_soon(self._abandoned(zone.origin))
        await self._in_force(zone.origin, stored.revision)
        return stored

    async def delete(self, before: Version) -> None:
        """Delete a zone. Raises Conflict, Unavailable."""
        origin = before.zone.origin
        await self.durable.delete(head_key(origin), before.head.revision)
        self._delete_soon(part_key(origin, name) for name in before.record.parts)
        self._delete_soon(self._abandoned(origin))
        await self._in_force(origin, before.head.revision)

    async def stop(self) -> None:
        """Delete no more; what is left goes with a later change."""
        for task in self._sweeping:
            task.cancel()
        await asyncio.gather(*self._sweeping, return_exceptions=True)

    # ---- steps ----

    async def _pack(
        self, before: Version | None, zone: Zone, touched: Collection[bytes] | None
    ) -> Packed:
        if before is None or touched is None or not before.contents:
            if zone.records > LARGE:
                return await self._aside.run(pack, zone)
            return pack(zone)
        head, contents = before.record, before.contents
        known = Packed(head.content, count=len(contents), size=head.size)
        return repack(known, lambda number: b"".join(contents[number]), zone, touched)

    async def _write(self, parts: Iterable[ZonePart]) -> list[str]:
        """Store parts, a few at a time; returns their keys."""
        written: list[str] = []
        free = asyncio.Semaphore(AT_ONCE)
        failed: list[Exception] = []

        async def write(part: ZonePart) -> None:
            async with free:
                if failed:
                    return
                written.append(part_key(part.origin, part.name))
                try:
                    await self.durable.write(part, 0)
                except (Conflict, Unavailable) as error:
                    failed.append(error)

        await asyncio.gather(*map(write, parts))
        if failed:
            self._delete_soon(written)
            error = failed[0]
            # A part may be stored all the same, but without its head it is nothing.
            raise Unavailable(error.reason) if isinstance(error, Unavailable) else error
        return written

    def _abandoned(self, origin: bytes) -> list[str]:
        """Return the keys of parts that no version of a zone names, and that are old."""
        desired = self.durable.desired
        named = desired.stored(head_key(origin))
        head = None if named is None else named.record
        needed = head.parts if isinstance(head, ZoneHead) else frozenset()
        return [
            key
            for key, stored in desired.records.items()
            if key.startswith(f"{PARTS}.")
            and isinstance(stored, Stored)
            and isinstance(stored.record, ZonePart)
            and stored.record.origin == origin
            and stored.record.name not in needed
            and self._wall() - stored.time > ABANDONED
        ]

    def _delete_soon(self, keys: Iterable[str]) -> None:
        """Delete parts, without anybody waiting for it."""
        task = asyncio.create_task(self._delete(list(keys)), name="zone parts")
        self._sweeping.add(task)
        task.add_done_callback(self._sweeping.discard)

    async def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                await self.durable.delete(key)
            except (Conflict, Unavailable) as error:
                _log.info("zones: a part that is not needed stays for now: %s", error)
                return

    async def _in_force(self, origin: bytes, revision: int) -> None:
        try:
            async with asyncio.timeout(IN_FORCE):
                await self.zones.reach(origin, revision)
        except TimeoutError:
            # It is stored, and comes into force by itself.
            _log.warning("zones: what is stored is not in force here after %g s", IN_FORCE)


def _cut(content: bytes) -> list[bytes]:
    """Return a content in pieces that a value can hold; none of an empty one."""
    return [content[at : at + MOST_CONTENT] for at in range(0, len(content), MOST_CONTENT)]
