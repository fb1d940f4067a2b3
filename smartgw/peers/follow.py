"""Follows the directory of clusters: asks its sources again and again, tells each new View (4.3).

Owns the order in which sources are asked (the first valid list counts, lists are never merged),
how often, and what is said while one of them fails. What a list that came means is directory.py's.
"""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smartgw.config_peers import Peers
from smartgw.metrics import Family, by_label, counter, gauge
from smartgw.peers.directory import Directory, Mode, Reason, View, worries
from smartgw.peers.sources import Failure, ListFile, Source, Validator
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.quiet_log import QuietLog

FILE_SECONDS = 0.5
"""How often a file is looked at, so that a change is in force within a second."""
AGAIN_SECONDS = 1.0
"""How soon after a poll `refresh` may cause the next: requests of strangers may ask for it."""
START_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Follower:
    """`view` is the clusters as of now; `changed` is told each other one, on the loop.

    `own_key`: this cluster's, which the directory should list.
    """

    def __init__(
        self,
        own_id: str,
        own_key: PublicKey | None,
        settings: Peers,
        changed: Callable[[View], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own_id = own_id
        self._own_key = own_key
        self._changed = changed
        self._clock = clock
        self._settings = Peers()
        self._directory: Directory | None = None
        self._sources: Sequence[Source] = ()
        self._source = ""
        self._faults: dict[str, Failure] = {}
        self._entered = dict.fromkeys(Mode, 0)
        self._quiet = QuietLog(60.0, _log)
        self._wake = asyncio.Event()
        self._polled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._follow(settings)
        self.view = self._current()
        self._entered[self.view.mode] = 1

    # ---- life ----

    async def start(self) -> None:
        """Begin; returns after the first poll, or when it takes too long. Never raises for it."""
        self._tasks = [
            asyncio.create_task(self._run(), name="directory"),
            asyncio.create_task(self._watch_grace(), name="directory's grace"),
        ]
        if self._sources:
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._polled.wait()
            except TimeoutError:
                _log.warning("the directory of clusters is slow: it is followed while we serve")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def configure(self, settings: Peers) -> None:
        """Put other settings in force; the list in force stays until another comes."""
        if settings != self._settings:
            self._follow(settings)
            self._tell()
            self._wake.set()

    def refresh(self) -> None:
        """Ask the sources soon: somebody knows of a newer list (4.8)."""
        self._wake.set()

    # ---- what others read ----

    @property
    def confirmed_ago(self) -> float | None:
        """Seconds since the list in force was confirmed at its origin, None without a list."""
        directory = self._directory
        if directory is None or directory.confirmed is None or directory.view.clusters is None:
            return None
        return max(0.0, self._clock() - directory.confirmed)

    def degraded(self) -> list[str]:
        """What works less well than it could, in lines."""
        lines = [] if self._own_key is None else worries(self.view, self._own_key)
        if self._faults and self.view.mode is not Mode.NONE:
            name, fault = next(iter(self._faults.items()))
            lines.append(f"peers: {name}: {fault.text}")
        return lines

    def status(self) -> dict[str, Any]:
        """The section `peers` of the status."""
        view, directory = self.view, self._directory
        listed = () if view.clusters is None else view.clusters.clusters
        age = self.confirmed_ago
        return {
            "mode": view.mode.value,
            "epoch": view.epoch,
            "affinity": view.affinity,
            "failover": view.failover,
            "source": self._source or None,
            "age_seconds": None if age is None else round(age, 3),
            "clusters": [
                {
                    "id": cluster.id,
                    "state": cluster.state.value,
                    "gateways": [gateway.url for gateway in cluster.gateways],
                }
                for cluster in listed
            ],
            "refused": {} if directory is None else _some(directory.counters),
            "faults": {name: fault.text for name, fault in self._faults.items()},
        }

    def families(self) -> Iterable[Family]:
        """The metrics of the directory (4.4)."""
        modes = {mode.value: int(mode is self.view.mode) for mode in Mode}
        yield by_label(
            "smartgw_directory_mode", "1 for the directory's mode.", "mode", modes, "gauge"
        )
        yield by_label(
            "smartgw_directory_modes_total",
            "How often the directory came into a mode.",
            "mode",
            {mode.value: count for mode, count in self._entered.items()},
        )
        directory = self._directory
        refused = dict.fromkeys(Reason, 0) if directory is None else directory.counters
        yield by_label(
            "smartgw_directory_refused_total",
            "Times that a source gave no list that was taken.",
            "reason",
            {reason.value: count for reason, count in refused.items()},
        )
        changes = 0 if directory is None else directory.changes
        yield counter("smartgw_directory_changes_total", "Lists that came into force.", changes)
        clusters = 0 if self.view.clusters is None else len(self.view.clusters.voters)
        yield gauge("smartgw_clusters", "Clusters that are active or draining.", clusters)

    # ---- following ----

    def _follow(self, settings: Peers) -> None:
        before, self._settings = self._settings, settings
        if _sources(settings) != _sources(before):
            self._faults.clear()
            if settings.file is not None:
                self._sources = (ListFile(settings.file),)
            else:
                ca = settings.tls_ca
                tls = None if ca is None else ssl.create_default_context(cafile=str(ca))
                self._sources = tuple(Validator(url, tls) for url in settings.validators)
        if not self._sources:
            self._directory = None
        elif self._directory is None:
            self._directory = Directory(self._own_id, settings.grace)
        else:
            self._directory.configure(settings.grace)

    async def _run(self) -> None:
        while True:
            try:
                await self._poll()
            except Exception:
                # Whatever it was, the next poll is another chance, and the grace goes on.
                _log.exception("the directory of clusters could not be followed; again soon")
            self._polled.set()
            began = self._clock()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await asyncio.sleep(max(0.0, began + self._least_pause() - self._clock()))

    def _pause(self) -> float:
        if self._settings.file is not None:
            return FILE_SECONDS
        # Gateways that were started together do not ask together for ever.
        return self._settings.interval * random.uniform(0.9, 1.0)

    def _least_pause(self) -> float:
        return min(AGAIN_SECONDS, self._pause())

    async def _poll(self) -> None:
        directory = self._directory
        if directory is None:
            return
        for source in self._sources:
            found = await source.read()
            if directory is not self._directory or source not in self._sources:
                return  # other settings came in meanwhile
            if not isinstance(found, Failure) and directory.too_old(found.age):
                text = f"its list was last confirmed {found.age:g} s ago"
                found = Failure(Reason.STALE, text)
            if isinstance(found, Failure):
                self._failed(directory, source, found)
                continue
            self._worked(source)
            directory.take(found.clusters, self._clock(), found.age)
            break
        else:
            directory.failed(self._clock())
        self._tell()

    def _failed(self, directory: Directory, source: Source, failure: Failure) -> None:
        if self._faults.get(source.name) is failure:
            return
        directory.refused(failure.reason)
        self._faults[source.name] = failure
        text = f"no list of clusters from {source.name}: {failure.text}"
        self._quiet(logging.WARNING, f"{source.name} {failure.reason}", text)

    def _worked(self, source: Source) -> None:
        self._source = source.name
        if self._faults.pop(source.name, None) is not None:
            text = f"{source.name} gives the list of clusters again"
            self._quiet(logging.INFO, source.name, text)

    async def _watch_grace(self) -> None:
        """End the grace in time, however long a poll takes."""
        while True:
            await asyncio.sleep(0.25)
            directory = self._directory
            if directory is not None and directory.due is not None:
                directory.tick(self._clock())
                self._tell()

    def _current(self) -> View:
        directory = self._directory
        return View(Mode.NONE, self._own_id) if directory is None else directory.view

    def _tell(self) -> None:
        """Tell of another view; again with the next poll if somebody cannot take it now."""
        view = self._current()
        if view == self.view:
            return
        self._changed(view)
        if view.mode is not self.view.mode:
            self._entered[view.mode] += 1
        if view.epoch != self.view.epoch:
            count = 0 if view.clusters is None else len(view.clusters.voters)
            _log.info("clusters: %d in force, epoch %s, %s", count, view.epoch, view.mode.value)
        self.view = view


def _sources(settings: Peers) -> tuple[object, ...]:
    return settings.file, settings.validators, settings.tls_ca


def _some(counters: Mapping[Reason, int]) -> dict[str, int]:
    return {reason.value: count for reason, count in counters.items() if count}
