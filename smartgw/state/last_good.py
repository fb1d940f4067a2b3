"""The last good hosts, and how a start from them stands (contract 11.2).

Owns which hosts are kept, and what is said while the gateway lives on what it kept. When they are
written is keeping.py's, the bytes are snapshot.py's, the files disk.py's.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from smartgw.state import snapshot
from smartgw.state.disk import Encode, Kind, StateFolder
from smartgw.state.keeping import Keeping
from smartgw.state.sealed import Stamp
from smartgw.state.snapshot import Contents, encode_host
from smartgw_hosts.identity import Identity
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
KIND: Final = Kind(
    "snapshot",
    "",
    snapshot.FORM.most,
    snapshot.decode,
    "hosts will be known when the bus tells of them",
)

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
        self._keeping = Keeping(
            StateFolder(folder, cluster, KIND, seed_file),
            self._make,
            interval=interval,
            refresh=REFRESH,
            wall=wall,
        )
        self._wall = wall
        self._clock = clock
        self._restored: Contents | None = None
        self._started = clock()
        self._proven = False
        self._encoded: dict[str, tuple[HostRecord, str]] = {}
        self._records: Callable[[], Iterable[HostRecord]] = tuple
        self._complete: Callable[[], bool] = lambda: False

    async def load(self) -> tuple[KnownHost, ...]:
        """The hosts that were kept, none when there is nothing usable; never raises."""
        self._restored = await self._keeping.load()
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
        self._keeping.start(complete)

    def changed(self, records: Iterable[HostRecord]) -> None:
        """These hosts, or others that are gone, are told to be routed otherwise: written soon."""
        self._keeping.changed()
        if not self._proven:
            self._proven = any(record.state is HostState.HEALTHY for record in records)

    async def stop(self) -> None:
        """Write what is not yet written, then let another process write; a second time nothing."""
        await self._keeping.stop()

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
        if self._keeping.fault:
            return f"snapshot: {self._keeping.fault}"
        if self._keeping.folder.refused is not None:
            return f"snapshot: refused ({self._keeping.folder.refused})"
        if self._restored is None:
            return "snapshot: none yet"
        return "snapshot: no host of it has proven itself"

    def degraded(self) -> Sequence[str]:
        """What works less well than it could, in lines."""
        lines: list[str] = []
        if self._restored is not None and not self._complete():
            age = max(0.0, self._wall() - self._restored.time)
            lines.append(f"hosts: from the snapshot of {age:.0f} s ago, verified anew")
        if self._keeping.fault:
            lines.append(f"snapshot: {self._keeping.fault}")
        return lines

    def status(self) -> dict[str, Any]:
        """What status shows; ages are in seconds."""
        now, restored = self._wall(), self._restored
        return {
            **self._keeping.status(),
            "restored": None
            if restored is None
            else {"hosts": len(restored.hosts), "age": round(now - restored.time, 1)},
        }

    def _make(self) -> Encode:
        # Records never change, so a thread may read them.
        records = [record for record in self._records() if _was_good(record)]
        return lambda stamp, identity: self._encode(records, stamp, identity)

    def _encode(self, records: Sequence[HostRecord], stamp: Stamp, identity: Identity) -> bytes:
        before, self._encoded = self._encoded, {}
        for number, record in enumerate(records):
            kept = before.get(record.host_id)
            if kept is None or kept[0] is not record:
                kept = record, encode_host(_known(record))
            self._encoded[record.host_id] = kept
            if number % SLICE == SLICE - 1:
                time.sleep(0)
        return snapshot.encode(
            [text for _, text in self._encoded.values()],
            cluster=stamp.cluster,
            generation=stamp.generation,
            time=stamp.time,
            identity=identity,
        )


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
