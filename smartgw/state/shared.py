"""The state that gateways share, as one of them has it: its connection, its store, what it says.

Owns in which order these start and end, and how a gateway stands that has not read the state or
cannot write it. What is in it is desired.py's, how it is kept store.py's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smartgw.config import Settings
from smartgw.metrics import Family, counter, gauge
from smartgw.routing.reserved import Reserved
from smartgw.state.decisions import Decisions
from smartgw.state.desired import Desired, Difference
from smartgw.state.last_desired import LastDesired
from smartgw.state.store import Store
from smartgw.state.view import OnChange
from smartgw_hosts.bus import Bus

MakeBus = Callable[[Callable[[bool], None]], Bus]


class SharedState:
    """Make it, `load`, then `start`. `make_bus(on_state)` gives a connection of its own.

    `on_change` is `view.View`'s; `on_loaded` is called once, when the bucket has been read.
    """

    def __init__(
        self,
        settings: Settings,
        bucket: str,
        make_bus: MakeBus,
        on_change: OnChange,
        on_loaded: Callable[[], None],
    ) -> None:
        self._bus = make_bus(self._on_bus)
        self.store = Store(
            self._bus,
            f"_INBOX.smartgw.{settings.cluster}.{settings.gateway}",
            bucket=bucket,
            replicas=settings.state.replicas,
            reconcile=settings.state.reconcile,
            reserved=reserved(settings),
            on_change=self._changed,
            on_loaded=on_loaded,
        )
        self._on_change = on_change
        self._restored: Decisions | None = None
        self._kept: LastDesired | None = None
        if settings.state.dir is not None:
            self._kept = LastDesired(
                settings.state.dir,
                settings.cluster,
                settings.identity.seed_file,
                lambda: self.store.desired,
            )

    async def load(self) -> Desired | None:
        """Put in force what was kept over a restart, if there is anything; never raises."""
        if self._kept is None:
            return None
        self._restored = await self._kept.load()
        if self._restored is None:
            return None
        self.store.restore(self._restored.desired, self._restored.time)
        return self._restored.desired

    async def start(self) -> None:
        """Begin to follow the bucket; returns at once, whether or not the bus answers."""
        self.store.start()
        if self._kept is not None:
            self._kept.start(lambda: self.store.loaded)
        await self._bus.start()

    async def stop(self) -> None:
        """End it; a second time nothing."""
        if self._kept is not None:
            await self._kept.stop()
        await self.store.stop()
        await self._bus.stop()

    async def hand_over(self) -> None:
        """Write what is not yet written, for the generation that comes to go on."""
        if self._kept is not None:
            await self._kept.stop()

    def reload(self, settings: Settings) -> None:
        """Put other base domains and own hostnames in force for what is claimed from now on."""
        self.store.reserved = reserved(settings)

    @property
    def known(self) -> bool:
        """Whether there is a state to serve by: of the bucket, or of before the restart."""
        return self.store.loaded or self._restored is not None

    def missing(self) -> Sequence[str]:
        """Why there is none, in lines."""
        if self.known:
            return ()
        kept = () if self._kept is None else (self._kept.missing(),)
        return (f"state: {self.store.fault}", *kept)

    def degraded(self) -> Sequence[str]:
        """What works less well than it could, in lines."""
        lines = list(self.store.degraded()) if self.known else []
        if self._kept is not None and self._kept.fault:
            lines.append(f"desired: {self._kept.fault}")
        return lines

    def summary(self) -> dict[str, Any]:
        """What `/readyz` shows, by which gateways are compared. `age` is in seconds."""
        desired, age = self.store.desired, self.store.age
        return {
            "digest": desired.digest,
            "revision": desired.revision,
            "age": None if age is None else round(age, 1),
        }

    def status(self) -> dict[str, Any]:
        """What status shows."""
        desired = self.store.desired
        return {
            **self.summary(),
            "records": len(desired.records),
            "skipped": desired.skipped,
            "contested": desired.contested,
            "fault": self.store.fault or None,
            "kept": None if self._kept is None else self._kept.status(),
            **self.store.counters,
        }

    def families(self) -> Iterable[Family]:
        """For /metrics."""
        desired, counters, age = self.store.desired, self.store.counters, self.store.age
        yield gauge("smartgw_state_records", "Records in force.", len(desired.records))
        yield gauge(
            "smartgw_state_skipped", "Records that this version cannot read.", desired.skipped
        )
        yield gauge("smartgw_state_revision", "Last write in force.", desired.revision)
        yield gauge("smartgw_state_followed", "1 while changes are heard of.", int(self.store.live))
        if age is not None:
            yield gauge("smartgw_state_age_seconds", "How old what is known may be.", age)
        for name, text in _COUNTED.items():
            yield counter(f"smartgw_state_{name}_total", text, counters[name])

    def _on_bus(self, connected: bool) -> None:
        self.store.on_bus(connected)

    def _changed(self, desired: Desired, difference: Difference) -> None:
        if self._kept is not None:
            self._kept.changed()
        self._on_change(desired, difference)


_COUNTED = {
    "changes": "Changes that came into force.",
    "sweeps": "Readings of the whole bucket.",
    "healed": "Changes that had been missed and were found.",
    "gaps": "Messages of the bucket that did not arrive, after which it is read on anew.",
    "writes": "Writes stored for this gateway.",
    "conflicts": "Writes refused for another's.",
    "unavailable": "Writes not stored, or not known to be.",
}


def reserved(settings: Settings) -> Reserved:
    """Return the names that no app can have."""
    return Reserved.of(settings.base_domains, settings.hostnames)
