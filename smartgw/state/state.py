"""What outlives a restart, as the gateway's discovery sees it (contract 1.9, 11.2).

Owns what of it is switched on by the settings, and in which order it starts and ends. Decides
nothing of hosts. The snapshot is last_good.py's, the recording recording.py's.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smartgw.config import Settings
from smartgw.metrics import Family, gauge
from smartgw.state.last_good import LastGood
from smartgw.state.recording import Recording
from smartgw_hosts.listener import Listener
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import HostRecord, KnownHost, PoolSettings
from smartgw_hosts.tape import RecordedPool

LAGGING = 0.25
"""Seconds of event-loop lag that are told: a request then waits longer than a host takes."""


class State:
    """Make it first: `pool` is the one that discovery must use."""

    def __init__(self, settings: Settings, pool: PoolSettings) -> None:
        self._recording: Recording | None = None
        if settings.discovery.record is None:
            self.pool = Pool(settings.cluster, pool)
        else:
            record = Recording(settings.discovery.record, settings.discovery.record_bytes)
            self._recording = record
            self.pool = RecordedPool(settings.cluster, pool, record.note)
        self._last_good: LastGood | None = None
        if settings.state.dir is not None:
            self._last_good = LastGood(
                settings.state.dir, settings.cluster, settings.identity.seed_file
            )

    async def load(self) -> Iterable[KnownHost]:
        """Begin to record, and give the hosts of before the restart to `Listener.start`.

        Never raises.
        """
        if self._recording is not None:
            self._recording.start(self.pool)
        return () if self._last_good is None else await self._last_good.load()

    def start(self, complete: Callable[[], bool]) -> None:
        """Begin to keep the hosts, whenever `complete()` says that all have been heard of."""
        if self._last_good is not None:
            self._last_good.start(self.pool.records, complete)

    def changed(self, records: Iterable[HostRecord]) -> None:
        """These hosts, or others that are gone, have been told to whoever routes."""
        if self._last_good is not None:
            self._last_good.changed(records)

    async def stop(self) -> None:
        """Write what is not yet written; once, and safe when it was not started."""
        if self._last_good is not None:
            await self._last_good.stop()
        if self._recording is not None:
            await asyncio.to_thread(self._recording.stop)

    def serves(self) -> bool:
        """Tell whether hosts of before the restart serve, so that the bus need not be there."""
        return self._last_good is not None and self._last_good.serves(self.pool.record)

    def missing(self) -> Sequence[str]:
        """What a start without the bus would need, in lines; none when it is switched off."""
        return () if self._last_good is None else (self._last_good.missing(),)

    def degraded(self) -> Sequence[str]:
        """What works less well than it could, in lines."""
        lines = [] if self._last_good is None else list(self._last_good.degraded())
        if self._recording is not None and self._recording.fault:
            lines.append(f"recording: {self._recording.fault}")
        return lines

    def status(self) -> dict[str, Any]:
        """What status shows; None for what is switched off."""
        return {
            "snapshot": None if self._last_good is None else self._last_good.status(),
            "recording": None if self._recording is None else self._recording.status(),
        }


def lagging(listener: Listener | None, now: float) -> Sequence[str]:
    """Say that our own event loop runs late, which demotes no host (1.7)."""
    recent = 0.0 if listener is None else listener.lag.recent(now)
    return (f"loop: lagging {recent * 1000:.0f} ms",) if recent >= LAGGING else ()


def lag_families(listener: Listener | None, now: float) -> Iterable[Family]:
    """The lag of our own event loop, for /metrics."""
    if listener is not None:
        recent, most = listener.lag.recent(now), listener.lag.most
        yield gauge("smartgw_loop_lag_seconds", "The most the loop was late in 10 s.", recent)
        yield gauge("smartgw_loop_lag_max_seconds", "The most the loop was ever late.", most)
