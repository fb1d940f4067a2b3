"""The durable state as its users have it: read from memory, written to a JetStream bucket (7.5).

Owns that a write is stored as a whole or refused. A name is claimed by a write that the bucket
takes only if nothing at all was written since we looked, so two gateways never give it twice, and
there is no claim beside the record that could be left behind. Reading is follow.py's and view.py's.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from smartgw.routing.reserved import Reserved
from smartgw.state import jetstream
from smartgw.state.desired import Desired, Skipped, Stored, mark_of
from smartgw.state.durable import Conflict, NameTaken, Unavailable
from smartgw.state.follow import Follower, Lost
from smartgw.state.jetstream import Refused
from smartgw.state.records import App, Record, encode, key_of
from smartgw.state.view import OnChange, View
from smartgw_hosts.bus import Bus, BusAway
from smartgw_hosts.bus_requests import AnswerLost, BusRequests

PATIENCE: Final = 2.0
"""Seconds for the answer to one write."""
LONGEST: Final = 8.0
"""Seconds for one change with all its attempts, before it is refused as unavailable."""
UNDER_WAY: Final = 0.02
"""Seconds for somebody else's write of the same key to be stored, before ours is tried again."""
SHOWN: Final = 20
"""Looks for a write whose answer was lost, within another `PATIENCE`."""

T = TypeVar("T")


class _Way:
    """How far a change got. `sent`: it may be stored, whatever happens from here on."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = False


class Store:
    """A `durable.DurableState`; make it before `bus.start()`, and tell `on_bus` of its state.

    `bus` is a connection of its own, so that a large state does not stand in the way of
    heartbeats. `inbox`: subject of this gateway's own, below which answers come. `reconcile`:
    seconds between two readings of the whole. `on_change` and `on_loaded` are `view.View`'s.
    """

    def __init__(
        self,
        bus: Bus,
        inbox: str,
        *,
        bucket: str,
        replicas: int,
        reconcile: float,
        reserved: Reserved,
        on_change: OnChange,
        on_loaded: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.reserved = reserved
        self._name, self._replicas = bucket, replicas
        self._requests = BusRequests(bus, f"{inbox}.r")
        self._view = View(on_change, on_loaded, lambda: self._follower.behind)
        self._follower = Follower(
            bus, self._requests, f"{inbox}.p", bucket, replicas, self._view, reconcile=reconcile
        )
        self._wall = wall
        self._restored_at: float | None = None
        self._claiming = asyncio.Lock()
        self._write_fault = ""
        self._counters = dict.fromkeys(("writes", "conflicts", "unavailable"), 0)

    def restore(self, desired: Desired, at: float) -> None:
        """Put in force what was kept `at` (Unix seconds); before `start`."""
        self._view.restore(desired)
        self._restored_at = at

    def start(self) -> None:
        """Begin to follow the bucket; returns at once."""
        self._follower.start()

    async def stop(self) -> None:
        """End it; the bus is not ours to stop."""
        await self._follower.stop()
        self._view.stop()

    def on_bus(self, connected: bool) -> None:
        """The bus has, or lost, its connection."""
        if not connected:
            self._requests.lost()
            self._follower.disconnected()

    # ---- what others read ----

    @property
    def desired(self) -> Desired:
        """See `durable.DurableState`."""
        return self._view.desired

    @property
    def loaded(self) -> bool:
        """Whether the bucket was read since the start."""
        return self._view.loaded

    @property
    def live(self) -> bool:
        """Whether changes are heard of as they are made."""
        return not self._follower.fault

    @property
    def fault(self) -> str:
        """Why they are not; empty while they are."""
        return self._follower.fault

    @property
    def age(self) -> float | None:
        """See `durable.DurableState`."""
        if self.live:
            return 0.0
        if self._follower.lost_at is not None:
            return time.monotonic() - self._follower.lost_at
        return None if self._restored_at is None else max(0.0, self._wall() - self._restored_at)

    @property
    def counters(self) -> dict[str, int]:
        """Changes, readings and writes, for metrics."""
        return {**self._view.counters, **self._follower.counters, **self._counters}

    def degraded(self) -> list[str]:
        """What works less well than it could, in lines."""
        lines: list[str] = []
        desired, age, bucket = self.desired, self.age, self._follower.bucket
        if self.fault:
            old = "" if age is None else f"; what is known is {age:.0f} s old"
            lines.append(f"state: {self.fault}: writes are refused{old}")
        elif self._write_fault:
            lines.append(f"state: the last write was not stored: {self._write_fault}")
        if desired.skipped:
            lines.append(
                "state: records that this version cannot read, and leaves as they are: "
                f"{desired.skipped}"
            )
        if desired.contested:
            lines.append(
                "state: names that more than one app claims, and the first one has: "
                f"{desired.contested}"
            )
        if bucket is not None and bucket.replicas < self._replicas:
            lines.append(
                f"state: NATS servers that keep the bucket: {bucket.replicas}, not "
                f"{self._replicas}; nats stream edit KV_{self._name} --replicas {self._replicas}"
            )
        return lines

    # ---- writing ----

    async def look(self) -> None:
        """See `durable.DurableState`."""
        if self.fault:
            raise Unavailable(self.fault)
        try:
            async with asyncio.timeout(LONGEST):
                await self._look()
                # What was taken comes into force a moment later.
                await self._view.in_force(self._follower.seen, PATIENCE)
        except (TimeoutError, Lost, BusAway, Refused) as error:
            raise Unavailable(str(error) or f"not within {LONGEST:g} s") from None

    async def write(self, record: Record, expect: int | None = None) -> Stored:
        """See `durable.DurableState`."""
        return await self._counted(lambda way: self._write(record, expect, way))

    async def delete(self, key: str, expect: int | None = None) -> Stored | None:
        """See `durable.DurableState`."""
        return await self._counted(lambda way: self._delete(key, expect, way))

    async def _counted(self, change: Callable[[_Way], Awaitable[T]]) -> T:
        way = _Way()
        try:
            async with asyncio.timeout(LONGEST):
                stored = await change(way)
        except (Conflict, NameTaken):
            self._counters["conflicts"] += 1
            raise
        except (Unavailable, TimeoutError, Lost, BusAway, Refused) as error:
            self._counters["unavailable"] += 1
            self._write_fault = str(error) or f"not within {LONGEST:g} s"
            raise Unavailable(self._write_fault, sent=way.sent) from None
        self._write_fault = ""
        return stored

    async def _write(self, record: Record, expect: int | None, way: _Way) -> Stored:
        key, value = key_of(record), encode(record)
        deleted = 0
        claiming = fresh = False
        try:
            while True:
                try:
                    found = self._found(key, expect)
                    names = self._claims(record, found)
                except (Conflict, NameTaken):
                    if fresh:
                        raise
                    # Not for what another gateway has undone already.
                    fresh = await self._look()
                    continue
                if isinstance(found, Stored) and found.record == record:
                    if fresh:
                        return found
                    # Another gateway may have written something else meanwhile.
                    fresh = await self._look()
                    continue
                if names and not claiming:
                    await self._claiming.acquire()
                    claiming = True
                    continue  # what was true before we waited need not be now
                base = deleted if found is None else found.revision
                # Where nobody has written since we looked, nobody has claimed one of the names.
                headers = (
                    jetstream.put_headers(of_bucket=self._follower.seen)
                    if names
                    else jetstream.put_headers(of_key=base)
                )
                try:
                    revision = await self._send(key, value, headers, record, way)
                except Refused as refused:
                    # The last write of a key that is not there deleted it.
                    deleted = await self._catch_up(refused) or deleted
                else:
                    found = self._view.at(key)
                    if isinstance(found, Stored) and found.revision == revision:
                        return found
                    # Written over already, or not heard of yet.
                    mark = mark_of(key, revision, value)
                    return Stored(record, revision, self._wall(), mark)
        finally:
            if claiming:
                self._claiming.release()

    async def _delete(self, key: str, expect: int | None, way: _Way) -> Stored | None:
        await self._look()
        while True:
            found = self._found(key, expect)
            bucket = self._follower.bucket
            if found is None or bucket is None:
                return None
            headers = jetstream.delete_headers(bucket, of_key=found.revision)
            try:
                await self._send(key, b"", headers, None, way)
            except Refused as refused:
                await self._catch_up(refused)
            else:
                return found if isinstance(found, Stored) else None

    async def _send(
        self, key: str, value: bytes, headers: bytes, record: Record | None, way: _Way
    ) -> int:
        """Write, and return the revision when it is in force here."""
        before, bucket = self._view.at(key), self._follower.bucket
        assert bucket is not None, "it is followed"
        way.sent = True
        try:
            delivery = await self._requests.ask(
                f"{bucket.writes}{key}", value, headers=headers, patience=PATIENCE
            )
        except AnswerLost as lost:
            # Stored or not: that may show yet.
            revision = await self._shown(key, record, 0 if before is None else before.revision)
            if revision is None:
                raise Unavailable(str(lost), sent=True) from None
            return revision
        except BusAway:
            way.sent = False
            raise
        try:
            revision = jetstream.answer(delivery.payload).get("seq")
        except Refused as refused:
            # What is no answer of JetStream says nothing of what became of it.
            way.sent = not refused.code
            raise
        if type(revision) is not int:
            raise Refused(0, "an answer without a revision")
        self._counters["writes"] += 1
        await self._view.in_force(revision, PATIENCE)
        return revision

    async def _shown(self, key: str, record: Record | None, base: int) -> int | None:
        for _ in range(SHOWN):
            await asyncio.sleep(PATIENCE / SHOWN)
            found = self.desired.records.get(key)
            if record is None and found is None and self.live:
                return self.desired.revision
            if isinstance(found, Stored) and found.revision > base and found.record == record:
                return found.revision
        return None

    async def _look(self) -> bool:
        """Hear of all that was written until now. True, when it returns."""
        if not self.fault:
            await self._follower.reach(await self._follower.last())
        return True

    async def _catch_up(self, refused: Refused) -> int:
        """Hear of the write that came first; returns its revision, 0 when that is not told."""
        if refused.last is not None:
            await self._follower.reach(refused.last)
            return refused.last
        if refused.code not in jetstream.WRONG_SEQUENCE:
            raise refused
        # Several NATS servers name none while the other write is on its way among them.
        await asyncio.sleep(UNDER_WAY * random.uniform(0.5, 1.5))
        await self._look()
        return 0

    def _found(self, key: str, expect: int | None) -> Stored | Skipped | None:
        """Return what is to be replaced. Raises Conflict, Unavailable."""
        if self.fault:
            raise Unavailable(self.fault)
        if self._view.replaced:
            raise Unavailable("the bucket is read anew")
        found = self._view.at(key)
        revision = 0 if found is None else found.revision
        newer = isinstance(found, Skipped) and found.newer
        if newer or (expect is not None and expect != revision):
            raise Conflict(revision)
        return found

    def _claims(self, record: Record, found: Stored | Skipped | None) -> bool:
        """Tell whether a record claims names that are free. Raises NameTaken, Unavailable."""
        if not isinstance(record, App):
            return False
        before = found.record if isinstance(found, Stored) else None
        had = before.claims if isinstance(before, App) else ()
        label = record.served_label
        if label is not None and self.reserved.has_label(label):
            raise NameTaken(label, None)
        for name in record.hostnames:
            if self.reserved.has_hostname(name):
                below = (zone[1:] for zone in self.reserved.zones if name.endswith(zone))
                base = None if name in self.reserved.hostnames else next(below, None)
                raise NameTaken(name, None, base=base)
        for name in record.claims:
            for app_id in self._view.claimants(name):
                if app_id != record.app_id:
                    raise NameTaken(name, app_id)
        new = any(name not in had for name in record.claims)
        if new and (newer := self.desired.newer):
            raise Unavailable(
                "a later version of the gateway has written apps, and this one cannot see which "
                f"names they have ({newer}): upgrade it"
            )
        return new
