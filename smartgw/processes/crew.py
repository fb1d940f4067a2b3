"""The workers: started, told of every change, heard, and replaced when they die (11.1).

Owns what they are told and how their counters become one. A worker that does not read or says
nothing is ended; when to replace it is restarts.py's to say. Nothing here waits for a worker
but the start, the stop and a scrape, and these not for long.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smartgw.config import Settings
from smartgw.peers.directory import View
from smartgw.processes.drain import Step
from smartgw.processes.seat import Seat, Setup
from smartgw.processes.sockets import Listener
from smartgw.processes.tally import add
from smartgw.processes.traffic import Endpoints
from smartgw.proxy.counters import Counters
from smartgw.proxy.explain import Question
from smartgw.routing.table import HostUpdate
from smartgw.state.desired import Desired

START_SECONDS = 60.0
SCRAPE_SECONDS = 0.5
EXPLAIN_SECONDS = 1.0
STOP_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker as status shows it; `memory` in bytes and `cpu` in seconds, of the last report."""

    number: int
    pid: int | None
    serving: bool
    restarts: int
    memory: int
    cpu: float
    connections: int


class Crew:
    """As many workers as the settings say, as one thing."""

    def __init__(
        self,
        settings: Settings,
        listeners: Sequence[Listener],
        own: Endpoints,
        api: str | None,
        on_suspect: Callable[[str], None],
        on_stale: Callable[[], None],
        *,
        as_json: bool,
    ) -> None:
        self._setup = Setup(settings, tuple(listeners), own, api, as_json, on_suspect, on_stale)
        self._seats = tuple(
            Seat(number, self._setup) for number in range(1, settings.processes.workers + 1)
        )
        self._ticks: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all; returns when they are `there`."""
        for seat in self._seats:
            seat.start()
        self._ticks = asyncio.create_task(self._tick(), name="workers")
        await self.there()

    async def there(self) -> None:
        """Wait until all have started, at one moment. OSError: not within `START_SECONDS`."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not all(seat.serving.is_set() for seat in self._seats):
                    await asyncio.gather(*(seat.serving.wait() for seat in self._seats))
        except TimeoutError:
            raise OSError(0, f"the workers did not start within {START_SECONDS:g} s") from None

    async def stop(self) -> None:
        """End all workers, with what they carry."""
        if self._ticks is not None:
            self._ticks.cancel()
        await asyncio.gather(*(seat.stop(STOP_SECONDS) for seat in self._seats))

    # ---- what they are told ----

    def apply(self, updates: Sequence[HostUpdate], removed: Sequence[str]) -> None:
        """Changed and removed hosts; costs each worker the change."""
        hosts = self._setup.hosts
        for host in updates:
            hosts[host.host_id] = host
        for host_id in removed:
            hosts.pop(host_id, None)
        changed = [*(host.host_id for host in updates), *removed]
        for seat in self._seats:
            seat.hosts_changed(changed)

    def declare(self, apps: Collection[str], complete: bool) -> None:
        """The apps that exist whether or not a host announces them."""
        self._setup.apps, self._setup.complete = frozenset(apps), complete
        for seat in self._seats:
            seat.apps_changed()

    def register(self, desired: Desired, apps: Collection[str]) -> None:
        """Registered apps that are otherwise, or no longer; costs each worker the change.

        See `traffic.Traffic.register`.
        """
        self._setup.desired = desired
        for seat in self._seats:
            seat.registered_changed(apps)

    def follow_clusters(self, view: View) -> None:
        """The clusters, for the requests that come from now on."""
        self._setup.view = view
        for seat in self._seats:
            seat.clusters_changed()

    def reload(self, settings: Settings, api: str | None) -> None:
        """Put settings in force in all."""
        self._setup.settings, self._setup.api = settings, api
        for seat in self._seats:
            seat.send(self._setup.message())

    async def order(self, step: Step) -> None:
        """One step of a drain, for those that are there and those that come."""
        self._setup.order(step)
        for seat in self._seats:
            if step is Step.RESUME:
                seat.start()
            seat.order(step)

    # ---- what they say ----

    async def refresh(self) -> None:
        """Have each worker count up to now; one that does not answer has its last report."""
        waiting = [seat.ask() for seat in self._seats if seat.serving.is_set()]
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCRAPE_SECONDS):
                    await asyncio.gather(*waiting)

    async def explain(self, question: Question) -> dict[str, Any] | None:
        """Have one of the workers that serve say what it would do with a request."""
        for seat in self._seats:
            if seat.serving.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EXPLAIN_SECONDS):
                        answer = await seat.explain(question)
                    if answer is not None:
                        return answer
        return None

    def counters(self, own: Mapping[str, Any]) -> Counters:
        """The sum of `own`, of all workers, and of what those that died had counted."""
        total = Counters()
        add(total, own)
        for seat in self._seats:
            add(total, seat.counted, ended=True)
            if seat.counters is not None:
                add(total, seat.counters)
        return total

    def log_lines(self) -> tuple[int, int]:
        """Lines of the access log that were written, and that were dropped."""
        return sum(s.log[0] for s in self._seats), sum(s.log[1] for s in self._seats)

    @property
    def settled(self) -> bool:
        """Whether no worker that serves has still to be told of registered apps."""
        told = self._setup.desired is not None or self._setup.settings.state.bucket is None
        return told and all(s.registered_told for s in self._seats if s.serving.is_set())

    @property
    def connections(self) -> int:
        """Connections of clients that are open, by the last reports."""
        return sum(facts.connections for facts in self.workers())

    def workers(self) -> list[WorkerFacts]:
        """Each worker, for status and metrics."""
        return [
            WorkerFacts(
                number=seat.number,
                pid=seat.pid,
                serving=seat.serving.is_set(),
                restarts=seat.restarts.count,
                memory=seat.memory,
                cpu=seat.cpu,
                connections=0 if seat.counters is None else seat.counters["connections"],
            )
            for seat in self._seats
        ]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for seat in self._seats:
                seat.tick()
