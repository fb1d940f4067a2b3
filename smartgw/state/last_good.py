"""When the last good hosts are kept, and how a start from them stands (contract 11.2).

Owns which hosts are kept, how often they are written, and what is said while that fails or while
the gateway lives on what it kept. Traffic never waits for it: a thread writes. The bytes are
snapshot.py's, the files disk.py's.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from smartgw.state.disk import StateFolder
from smartgw.state.snapshot import Contents, encode_host
from smartgw_hosts.keyfile import KeyFileError
from smartgw_hosts.quiet_log import QuietLog
from smartgw_hosts.records import HostRecord, HostState, KnownHost
from smartgw_hosts.wire import Description

INTERVAL: Final = 3.0
"""Seconds between two writes, when something changed."""
REFRESH: Final = 60.0
"""Seconds after which a snapshot is written though nothing changed, so that its age is true."""
SETTLE: Final = 10.0
"""Seconds after which a start no longer waits for the verdict on every host that it kept."""
SLICE: Final = 64
"""Hosts that are encoded before the event loop can have the interpreter again."""

_log = logging.getLogger(__name__)


class LastGood:
    """Keeps the healthy hosts of `records` in `folder` while `complete()` says that the table is
    whole. `wall` is Unix seconds, `clock` monotonic.
    """

    def __init__(
        self,
        folder: Path,
        cluster: str,
        seed_file: Path | None,
        *,
        interval: float = INTERVAL,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = StateFolder(folder, cluster, seed_file)
        self._interval = interval
        self._wall = wall
        self._clock = clock
        self._say = QuietLog(60.0, _log)
        self._restored: Contents | None = None
        self._started = clock()
        self._fault = ""
        self._dirty = True
        self._proven = False
        self._written_at: float | None = None
        self._encoded: dict[str, tuple[HostRecord, str]] = {}
        self._one_write = threading.Lock()
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._records: Callable[[], Iterable[HostRecord]] = tuple
        self._complete: Callable[[], bool] = lambda: False

    async def load(self) -> tuple[KnownHost, ...]:
        """The hosts that were kept, none when there is nothing usable; never raises."""
        try:
            self._restored = await asyncio.to_thread(self._folder.load)
        except (OSError, KeyFileError) as error:
            self._failed(error)
        self._started = self._clock()
        if self._restored is None:
            return ()
        hosts = self._restored.hosts
        age = self._wall() - self._restored.time
        _log.info("state: %d hosts of %.0f s ago, to be verified", len(hosts), age)
        return hosts

    def start(
        self, records: Callable[[], Iterable[HostRecord]], complete: Callable[[], bool]
    ) -> None:
        """Begin to keep what `records` gives."""
        self._records, self._complete = records, complete
        self._task = asyncio.create_task(self._run(), name="last good hosts")

    def changed(self, records: Iterable[HostRecord]) -> None:
        """These hosts, or others that are gone, are told to be routed otherwise: written soon."""
        self._dirty = True
        if not self._proven:
            self._proven = any(record.state is HostState.HEALTHY for record in records)

    async def stop(self) -> None:
        """Write what is not yet written, then let another process write; a second time nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self._dirty and self._complete():
                await self._write()
        self._folder.close()

    def serves(self, record: Callable[[str], HostRecord | None]) -> bool:
        """Tell whether hosts that were kept have proven themselves, so that traffic may come."""
        if self._restored is None or not self._proven:
            return False
        known = [record(host.host_id) for host in self._restored.hosts]
        waiting = any(host is not None and host.reason == "restored" for host in known)
        if waiting and self._clock() < self._started + SETTLE:
            return False
        return any(host is not None and host.state is HostState.HEALTHY for host in known)

    def missing(self) -> str:
        """Why there is nothing to start from, in a line."""
        if self._fault:
            return f"snapshot: {self._fault}"
        if self._folder.refused is not None:
            return f"snapshot: refused ({self._folder.refused})"
        if self._restored is None:
            return "snapshot: none yet"
        return "snapshot: no host of it has proven itself"

    def degraded(self) -> Sequence[str]:
        """What works less well than it could, in lines."""
        lines: list[str] = []
        if self._restored is not None and not self._complete():
            age = max(0.0, self._wall() - self._restored.time)
            lines.append(f"hosts: from the snapshot of {age:.0f} s ago, verified anew")
        if self._fault:
            lines.append(f"snapshot: {self._fault}")
        return lines

    def status(self) -> dict[str, Any]:
        """What status shows; ages are in seconds."""
        now, restored = self._wall(), self._restored
        return {
            "dir": str(self._folder.path),
            "generation": self._folder.generation,
            "written_age": None if self._written_at is None else round(now - self._written_at, 1),
            "fault": self._fault or None,
            "refused": self._folder.refused,
            "restored": None
            if restored is None
            else {"hosts": len(restored.hosts), "age": round(now - restored.time, 1)},
        }

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            written = self._written_at
            stale = written is None or not 0 <= self._wall() - written < REFRESH
            if (self._dirty or stale) and self._complete():
                await self._write()

    async def _write(self) -> None:
        self._dirty = False
        # Records never change, so a thread may read them.
        records = [record for record in self._records() if _was_good(record)]
        wall = self._wall()
        try:
            await asyncio.to_thread(self._encode_and_write, records, wall)
        except (OSError, KeyFileError) as error:
            self._dirty = True
            self._failed(error)
        except Exception as error:
            self._dirty = True
            self._fault = "internal error"
            self._say(logging.ERROR, "internal", "state: not written", error=error)
        else:
            if self._fault:
                _log.info("state: written again")
            self._fault = ""
            self._written_at = wall

    def _encode_and_write(self, records: Sequence[HostRecord], wall: float) -> None:
        with self._one_write:
            before, self._encoded = self._encoded, {}
            for number, record in enumerate(records):
                kept = before.get(record.host_id)
                if kept is None or kept[0] is not record:
                    kept = record, encode_host(_known(record))
                self._encoded[record.host_id] = kept
                if number % SLICE == SLICE - 1:
                    time.sleep(0)
            self._folder.write([text for _, text in self._encoded.values()], wall)

    def _failed(self, error: OSError | KeyFileError) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self._fault = f"cannot be kept in {self._folder.path} ({reason})"
        self._say(logging.ERROR, str(reason), f"state: {self._fault}; traffic goes on")


def _was_good(record: HostRecord) -> bool:
    """A host that could not be reached just now is kept: it serves only after a challenge anyway.
    One that left, fell silent or lost its trust is not."""
    return record.state is HostState.HEALTHY or (
        record.state is HostState.UNHEALTHY
        and record.verified_at is not None
        and record.reason.startswith("verification:")
    )


def _known(record: HostRecord) -> KnownHost:
    described = Description(
        record.address, record.apps, record.key, record.weight, record.region, record.version
    )
    return KnownHost(record.host_id, record.boot, described)
