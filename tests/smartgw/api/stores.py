"""A store in memory with the same answers as the real one, for tests of the API's own shapes.

What the bus does to a write is tests/smartgw/state's to show.
"""

import asyncio
import time

from smartgw.state.desired import Desired, Draft, Entry, Stored
from smartgw.state.durable import Conflict, NameTaken, Unavailable
from smartgw.state.records import App, Record, encode, key_of


class MemoryStore:
    """A `smartgw.state.durable.DurableState`. `away`: writes are refused, and reads grow old."""

    def __init__(self) -> None:
        self.desired = Desired()
        self.age: float | None = 0.0
        self.away = False
        self.reserved = {"verify": None}
        self.writes = self.looks = 0

    async def look(self) -> None:
        if self.away:
            raise Unavailable("the bus is away")
        self.looks += 1

    async def write(self, record: Record, expect: int | None = None) -> Stored:
        await asyncio.sleep(0)
        self._meet(key_of(record), expect)
        if isinstance(record, App):
            for name in record.claims:
                holder = self.desired.holder(name)
                if name in self.reserved or holder not in (None, record.app_id):
                    raise NameTaken(name, None if name in self.reserved else holder)
        return self._take(key_of(record), encode(record))

    async def delete(self, key: str, expect: int | None = None) -> Stored | None:
        await asyncio.sleep(0)
        self._meet(key, expect)
        before = self.desired.stored(key)
        if before is not None:
            draft = Draft(self.desired)
            revision = self.desired.revision + 1
            draft.take(Entry(key, None, revision, time.time()))
            self.desired, _ = draft.done(revision, "b")
        return before

    def _meet(self, key: str, expect: int | None) -> None:
        if self.away:
            raise Unavailable("the bus is away")
        stored = self.desired.stored(key)
        revision = 0 if stored is None else stored.revision
        if expect is not None and expect != revision:
            raise Conflict(revision)

    def _take(self, key: str, value: bytes) -> Stored:
        self.writes += 1
        revision = self.desired.revision + 1
        draft = Draft(self.desired)
        draft.take(Entry(key, value, revision, time.time()))
        self.desired, _ = draft.done(revision, "b")
        stored = self.desired.stored(key)
        assert stored is not None
        return stored
