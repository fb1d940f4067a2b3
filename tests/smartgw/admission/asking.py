"""Shared counters of one process for tests, against a real store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from smartgw.admission.shared_counters import Check, SharedCounters
from smartgw.admission.store_places import Address, Places
from smartgw.proxy.counters import Counters
from tests.relays import Relay
from tests.servers import Valkey

MINUTE = 60_000_000
Verdict = tuple[int, Sequence[int]]


class Asker:
    """One process's shared counters, with what they answered."""

    def __init__(self, places: Places, budget: float) -> None:
        self.counters = Counters()
        self.shared = SharedCounters(places, "c1", budget, 60.0, self.counters)
        self.verdicts: list[Verdict] = []

    @property
    def up(self) -> bool:
        return self.shared.breaker.closed

    def check(self, key: str, limit: int = 600, units: int = 1) -> Check:
        return f"{self.shared.prefix}{key}", limit, MINUTE, units

    def ask(self, key: str, limit: int = 600, units: int = 1) -> bool:
        def then(context: object, wait: int, results: Sequence[int]) -> None:
            self.verdicts.append((wait, results))

        return self.shared.ask([self.check(key, limit, units)], then, None)

    async def answers(self, count: int) -> list[Verdict]:
        """Wait for so many verdicts and take them."""
        await until(lambda: len(self.verdicts) >= count)
        taken, self.verdicts = self.verdicts, []
        return taken


async def until(condition: Callable[[], object], within: float = 10.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def asking(places: Places, *, up: bool = True, budget: float = 1.0) -> AsyncIterator[Asker]:
    asker = Asker(places, budget)
    asker.shared.start()
    try:
        if up:
            await until(lambda: asker.up)
        yield asker
    finally:
        await asker.shared.stop()


def at(server: Valkey, **options: object) -> Places:
    return Places("server", (Address("127.0.0.1", server.port),), **options)  # type: ignore[arg-type]


def through(relay: Relay) -> Places:
    return Places("server", (Address("127.0.0.1", relay.port),))
