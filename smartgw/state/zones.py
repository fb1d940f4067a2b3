"""The zones in force, made of what the store holds: one catalog after another (contract 8.4, 8.6).

Owns when a version of a zone comes into force: when its head and all its parts are there and make
the zone that the head says. Until then, and where that can never be, the version before stays, and
a zone without one is unknown: nobody is told that its names are not ours or not there. A
large zone is made beside the event loop, and a change to it costs the change. Writing is
zone_store.py's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from smartgw import memory
from smartgw.aside import Aside
from smartgw.state.desired import Desired, Stored
from smartgw.state.zone_records import ZoneHead, ZonePart, head_key, part_key
from smartgw_dns.catalog import Catalog
from smartgw_dns.edits import Change, apply, build
from smartgw_dns.names import text_of
from smartgw_dns.packed import difference
from smartgw_dns.zone import Zone
from smartgw_hosts.quiet_log import QuietLog

TURN: Final = 0.001
"""Seconds of making zones before others have their turn."""
GATHER: Final = 0.1
"""Seconds after which what is made comes into force though more is to be made."""
LARGE: Final = 60_000
"""Octets of content from which on a zone is made beside the event loop."""
TOLD: Final = 5.0
"""Seconds between two lines in the log about a load that takes long."""
MANY: Final = 20_000
"""Records after which the collector is told to leave what there is alone."""

_log = logging.getLogger(__name__)

Contents = tuple[tuple[bytes, ...], ...]
"""For each place of a zone what its parts hold."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a large zone is to be made of."""

    head: Stored
    record: ZoneHead
    contents: Contents


@dataclass(frozen=True, slots=True)
class Version:
    """A zone as it is in force, with the record and the contents that it was made of."""

    zone: Zone
    head: Stored
    contents: Contents

    @property
    def record(self) -> ZoneHead:
        """What the head says."""
        record = self.head.record
        assert isinstance(record, ZoneHead)
        return record


class Zones:
    """Make it in its loop, `start`, tell it of each change, `stop`.

    `on_change(catalog)` is called when other zones are in force.

    Attributes:
        catalog: the zones in force, and those of which no version can be made, as unknown.
        known: the state has been read and its zones made, so that a name without a zone has none.
        faults: why the newest version of a zone is not in force, by origin.
        records: how many all zones have.
    """

    def __init__(self, on_change: Callable[[Catalog], None], aside: Aside) -> None:
        self.catalog = Catalog()
        self.known = False
        self.faults: dict[bytes, str] = {}
        self.records = 0
        self._on_change = on_change
        self._aside = aside
        self._versions: dict[bytes, Version] = {}
        self._desired = Desired()
        self._due: dict[bytes, None] = {}
        self._made: dict[bytes, Version | None] = {}
        self._large: dict[bytes, asyncio.Task[None]] = {}
        self._again: set[bytes] = set()
        self._unknown: set[bytes] = set()
        self._settled = 0
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._say = QuietLog(60.0, _log)

    def start(self) -> None:
        """Begin to make zones."""
        self._task = asyncio.create_task(self._run(), name="zones")

    async def stop(self) -> None:
        """Make no more."""
        tasks = [*self._large.values(), *(() if self._task is None else (self._task,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, desired: Desired, origins: Iterable[bytes]) -> None:
        """Of these zones something is otherwise in `desired`, which is whole."""
        self._desired = desired
        self._due.update(dict.fromkeys(origins))
        self._wake.set()

    @property
    def waiting(self) -> int:
        """How many zones are still to be made."""
        return len(self._due) + len(self._large)

    @property
    def count(self) -> int:
        """How many zones are in force."""
        return len(self._versions)

    def version(self, origin: bytes) -> Version | None:
        """Return a zone as it is in force."""
        return self._versions.get(origin)

    async def reach(self, origin: bytes, revision: int) -> None:
        """Wait until what was written of a zone at a revision is in force, or cannot be.

        Waits for ever, so put a timeout around it.
        """
        while self._desired.revision < revision or any(
            origin in some for some in (self._due, self._made, self._large)
        ):
            self._moved.clear()
            await self._moved.wait()

    # ---- making ----

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._make_all()
            except Exception as error:  # what failed now must not keep the next change away
                self._say(logging.ERROR, "internal", "zones: could not be made", error=error)
                self._publish()

    async def _make_all(self) -> None:
        since = told = turn = time.monotonic()
        while self._due:
            origin = next(iter(self._due))
            del self._due[origin]
            if origin in self._large:
                self._again.add(origin)  # when that is done
                continue
            try:
                made = self._make(origin)
                if isinstance(made, _Whole):
                    making = self._make_large(origin, made)
                    self._large[origin] = asyncio.create_task(making, name="large zone")
                else:
                    self._made[origin] = made
                    self.faults.pop(origin, None)
            except Exception as error:
                self._failed(origin, _words(error))
            now = time.monotonic()
            if self.known and now - since > GATHER:
                self._publish()
                since = now
            elif now - told > TOLD:
                told = now
                _log.info("zones: %d made, %d to go", len(self._made), self.waiting)
            if now - turn > TURN:
                await asyncio.sleep(0)
                turn = time.monotonic()
        if self.known or not self._large:
            self._publish()

    async def _make_large(self, origin: bytes, whole: _Whole) -> None:
        """Make a zone while others come into force."""
        try:
            zone = await self._aside.run(_whole, whole.record, whole.contents)
            self._made[origin] = Version(zone, whole.head, whole.contents)
            self.faults.pop(origin, None)
        except Exception as error:
            self._failed(origin, _words(error))
        finally:
            del self._large[origin]
            if origin in self._again:
                # Something newer came meanwhile; what failed is not tried again without that.
                self._again.remove(origin)
                self._due[origin] = None
            self._wake.set()

    def _publish(self) -> None:
        """Put in force what was made since the last time."""
        made, self._made = self._made, {}
        changed: list[Zone] = []
        gone: list[bytes] = []
        for origin, version in made.items():
            before = self._versions.get(origin)
            if before is version:
                continue
            if before is not None:
                self.records -= before.zone.records
            if version is None:
                gone.append(origin)
                del self._versions[origin]
            else:
                changed.append(version.zone)
                self._versions[origin] = version
                self.records += version.zone.records
        unknown = self.faults.keys() - self._versions.keys()
        changed += map(Zone.unknown, unknown - self._unknown)
        gone += self._unknown - unknown - self._versions.keys()
        self._unknown = unknown
        if changed or gone or not self.known:
            self.known = True
            self.catalog = self.catalog.changed(changed, gone)
            self._on_change(self.catalog)
        if self.records - self._settled > MANY:
            self._settled = self.records
            memory.settle()
        self._moved.set()

    def _make(self, origin: bytes) -> Version | _Whole | None:
        """Return the newest version of a zone, or what a large one is to be made of, None where it
        is no more; ValueError: the one that is in force has to stay.
        """
        before = self._made.get(origin) or self._versions.get(origin)
        desired = self._desired
        stored = desired.records.get(head_key(origin))
        if stored is None:
            return None
        if not isinstance(stored, Stored) or not isinstance(stored.record, ZoneHead):
            raise ValueError("its head cannot be read by this version")
        if before is not None and before.head is stored:
            return before
        head = stored.record
        contents = _contents(desired, head)
        zone = None
        if before is not None and len(before.contents) == len(contents):
            zone = _followed(before, head, contents)
        if zone is None and head.size > LARGE:
            return _Whole(stored, head, contents)
        return Version(zone or _whole(head, contents), stored, contents)

    def _failed(self, origin: bytes, fault: str) -> None:
        self.faults[origin] = fault
        name = text_of(origin)
        text = f"zones: {name} is not in force as it was last written: {fault}"
        self._say(logging.WARNING, f"{name} {fault}", text)


def _words(error: Exception) -> str:
    """Return why a zone could not be made; what is no ValueError is a fault of ours."""
    if isinstance(error, ValueError):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"


def _contents(desired: Desired, head: ZoneHead) -> Contents:
    """Return what the parts of a zone hold; raises ValueError."""

    def content(name: str) -> bytes:
        stored = desired.stored(part_key(head.origin, name))
        if stored is None or not isinstance(stored.record, ZonePart):
            raise ValueError("a part of it is not there")
        return stored.record.content

    return tuple(tuple(map(content, place)) for place in head.places)


def _followed(before: Version, head: ZoneHead, contents: Contents) -> Zone | None:
    """Return the zone by what is otherwise in its contents; None: better make it as a whole."""
    changes: list[Change] = difference(before.record.content, head.content)
    for old, new in zip(before.contents, contents, strict=True):
        if old != new:
            changes += difference(b"".join(old), b"".join(new))
    try:
        return _checked(apply(before.zone, changes), head)
    except ValueError:
        return None


def _whole(head: ZoneHead, contents: Contents) -> Zone:
    """Return the zone of a head and its contents; raises ValueError."""

    def changes() -> Iterable[Change]:
        yield from difference(b"", head.content)
        for place in contents:
            yield from difference(b"", b"".join(place))
            if len(contents) > 1:
                # The event loop can have the interpreter.
                time.sleep(0)

    return _checked(build(head.origin, changes()), head)


def _checked(zone: Zone, head: ZoneHead) -> Zone:
    if (zone.serial, zone.records) != (head.serial, head.records):
        raise ValueError("its parts do not make what its head says")
    return zone
