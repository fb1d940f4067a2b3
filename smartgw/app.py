"""The composition root: builds one gateway, starts and stops its parts in order.

The only module that knows all the others. Decides nothing about hosts, routes or requests; it
wires what decides to what does I/O. With one worker this process carries the traffic itself,
with several it tells a crew what to carry (contract 11.1).
"""

import asyncio
import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from smartgw import native
from smartgw.admission.meter import Meter
from smartgw.api.api import Api
from smartgw.api.audit import Audit
from smartgw.api.credentials import Credentials
from smartgw.api.doors import Doors
from smartgw.api.facts import Facts, families, sections
from smartgw.api.operator import Operator
from smartgw.config import Settings, split_host_port
from smartgw.config_limits import Rates
from smartgw.metrics import Family
from smartgw.nameserver import Nameserver
from smartgw.peers.directory import View
from smartgw.peers.follow import Follower
from smartgw.processes import handover, sockets
from smartgw.processes.carrier import Carrier
from smartgw.processes.counting import Counting
from smartgw.processes.crew import Crew
from smartgw.processes.drain import Step
from smartgw.processes.leaving import Leaving
from smartgw.processes.reload import merge
from smartgw.processes.sockets import Listener as Bound
from smartgw.processes.sockets import Listeners
from smartgw.processes.tally import exported
from smartgw.processes.traffic import Traffic, own_endpoints
from smartgw.proxy.counters import Counters
from smartgw.proxy.explain import Question
from smartgw.readiness import Readiness, judge
from smartgw.state.desired import Desired, Difference
from smartgw.state.durable import DurableState
from smartgw.state.shared import SharedState
from smartgw.state.state import State, lag_families, lagging
from smartgw.trust import Trust
from smartgw.wiring import host_update, identity_of, make_bus, pool_settings, shown
from smartgw_hosts.bus import Bus
from smartgw_hosts.listener import Listener
from smartgw_hosts.records import HostRecord, HostState

_SETTLE_MARGIN = 1.0
_REFUSE_AFTER = 0.5
_log = logging.getLogger(__name__)


class Gateway:
    """One gateway. Make it, `start`, and `stop` it in the same event loop.

    `activated`: sockets that a service manager passed. `as_json`: how workers write their log.
    """

    def __init__(
        self, settings: Settings, *, activated: Sequence[Bound] = (), as_json: bool = False
    ) -> None:
        self.settings = settings
        self.started_at = time.time()
        self.drained_hosts: set[str] = set()
        processes = settings.processes
        self.leaving = Leaving(
            processes.unready_wait, processes.drain, self._order, self._connections
        )
        self._activated = activated
        self._as_json = as_json
        self._apps: Collection[str] = ()
        self._listened = False
        self._settling: asyncio.TimerHandle | None = None
        self._state = State(settings, pool_settings(settings))
        self._pool = self._state.pool
        self._shared: SharedState | None = None
        self._dns: Nameserver | None = None
        self._trust: Trust | None = None
        self._peers: Follower | None = None
        self._bus: Bus | None = None
        self._discovery: Listener | None = None
        self._listeners: Listeners | None = None
        self._counting = Counting(settings)
        self._traffic: Traffic | None = None
        self._crew: Crew | None = None
        self._offer: handover.Offer | None = None
        self._credentials = Credentials(settings.auth, Operator())
        self._audit = Audit(settings.log.audit, settings.gateway, settings.cluster)
        self._doors = Doors(
            Api(self, self._credentials, self._audit),
            self._credentials.operator,
            split_host_port(settings.listen.internal)[0],
            settings.state.dir,
        )
        self._refusing: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Take the sockets, then serve; the bus may come later.

        A gateway that runs already and hands over is told to end when this one has its hosts.

        Raises:
            OSError: an address cannot be bound, the access log not be opened, or a running
                gateway does not hand over.
            EnrolmentError: the enrolment file is refused.
        """
        settings = self.settings
        path = settings.processes.handover
        taking = None if path is None else await handover.ask(path)
        try:
            handed = () if taking is None else taking.listeners
            self._listeners = sockets.acquire(settings, self._activated, handed)
            await self._start_parts(self._listeners)
            if taking is not None:
                await self._wait_for(taking.hosts)
                if self._crew is not None:
                    # The one before ends for us: not for workers that have died meanwhile.
                    await self._crew.there()
                await self._carrier.order(Step.RESUME)
                await self._doors.open_internal(self._listeners.internal.socket)
                await taking.take()
                _log.info("took over from the generation before")
            else:
                await self._doors.open_internal(self._listeners.internal.socket)
                if self._activated:
                    # Clients wait in a queue that was there before us: better than a refusal.
                    await self._wait_for(())
                await self._carrier.order(Step.RESUME)
        finally:
            if taking is not None:
                taking.close()
        if path is not None:
            self._offer = handover.Offer(path, self._listeners, self._routed, self._taken_over)
            self._offer.open(needed=taking is None)

    async def _start_parts(self, listeners: Listeners) -> None:
        await self._counting.start()
        settings = self._counting.told(self.settings)
        own = own_endpoints(listener.socket for listener in listeners.all)
        self._credentials.start()
        api = await self._own_api()
        several = settings.processes.workers > 1
        self._traffic = Traffic(
            settings,
            () if several else listeners.public,
            own,
            api,
            self._suspect,
            self._stale,
        )
        self._traffic.start()
        if several:
            self._crew = Crew(
                settings,
                listeners.public,
                own,
                api,
                self._suspect,
                self._stale,
                as_json=self._as_json,
            )
        identity = identity_of(settings)
        key = None if identity is None else identity.public_key
        self._peers = Follower(settings.cluster, key, settings.peers, self._clusters_changed)
        self._clusters_changed(self._peers.view)
        await self._peers.start()
        if settings.trust.mode == "enrolment":
            self._trust = Trust(settings.trust.file, settings.cluster, self._declare)
        if settings.state.bucket is not None:
            self._shared = SharedState(
                settings,
                settings.state.bucket,
                partial(make_bus, settings, "state", self._traffic.write_out),
                self._decided,
                self._completed,
            )
        self._dns = Nameserver(settings, listeners.dns, self.durable, identity)
        self._dns.start()
        self._bus = make_bus(settings, "discovery", self._traffic.write_out, self._bus_state)
        self._discovery = Listener(
            self._bus, self._pool, self._trust, self._traffic.pools, self._changed
        )
        known = await self._state.load()
        if self._shared is not None and (desired := await self._shared.load()) is not None:
            # Before any host: of some it says who they are, of some apps that they are suspended.
            self._decided(desired, desired.whole())
        await self._discovery.start(known)
        self._state.start(lambda: self._listened)
        await self._bus.start()
        if self._shared is not None:
            await self._shared.start()
        if self._crew is not None:
            await self._crew.start()

    async def stop(self) -> None:
        """Close everything; safe after a failed start. To lose nothing, drain first."""
        await self.leaving.stop()
        for timer in (self._settling, self._refusing):
            if timer is not None:
                timer.cancel()
        if self._offer is not None:
            await self._offer.close()
        if self._crew is not None:
            await self._crew.stop()
        if self._discovery is not None:
            await self._discovery.stop()
        await self._state.stop()
        if self._dns is not None:
            await self._dns.stop()
        if self._shared is not None:
            await self._shared.stop()
        if self._peers is not None:
            await self._peers.stop()
        if self._bus is not None:
            await self._bus.stop()
        if self._traffic is not None:
            await self._traffic.stop()
        await self._counting.stop()
        await self._doors.close()
        await self._credentials.stop()
        self._audit.close()
        if self._listeners is not None:
            self._listeners.close()

    # ---- drain, handover, reload ----

    async def drain_host(self, host_id: str, *, undo: bool) -> bool:
        """Take a host out of choice for new requests, or back in; False: it is not known."""
        record = self._pool.record(host_id)
        if record is None:
            return False
        (self.drained_hosts.discard if undo else self.drained_hosts.add)(host_id)
        self._changed([record], [])
        return True

    async def reload(self, wanted: Settings) -> None:
        """Put other settings in force as far as a running gateway can, and name the others.

        Raises:
            EnrolmentError: the enrolment file is refused; nothing has changed.
        """
        values, kept = merge(self.settings.model_dump(), wanted.model_dump())
        settings = Settings.model_validate(values)
        if self._trust is not None:
            self._trust.follow(settings.trust.file)
        if self._shared is not None:
            self._shared.reload(settings)
        self.settings = settings
        logging.getLogger().setLevel(settings.log.level.upper())
        self.leaving.configure(settings.processes.unready_wait, settings.processes.drain)
        if self._peers is not None:
            self._peers.configure(settings.peers)
        await self._credentials.configure(settings.auth)
        api = await self._own_api()
        for carrier in (self._traffic, self._crew):
            if carrier is not None:
                carrier.reload(self._counting.told(settings), api)
        _log.info("the configuration was read again and is in force")
        if kept:
            _log.warning("in force only after the next start: %s", ", ".join(kept))

    async def _order(self, step: Step) -> None:
        assert self._listeners is not None
        if self._refusing is not None:
            self._refusing.cancel()
            self._refusing = None
        _log.info("%s", step.told)
        await self._carrier.order(step)
        if step is Step.STOP and not self.leaving.final:
            # A little later, when no worker looks at the sockets any more. Closing them would
            # give the addresses away, and no undo could bring them back.
            loop = asyncio.get_running_loop()
            self._refusing = loop.call_later(
                _REFUSE_AFTER, sockets.refuse_clients, self._listeners.public
            )
        elif step is Step.RELEASE:
            for sock in self._listeners.public:
                sock.close()

    async def _connections(self) -> int:
        if self._crew is None:
            return self._own.counters.connections
        await self._crew.refresh()
        return self._crew.connections

    def _routed(self) -> list[str]:
        return [r.host_id for r in self._pool.records() if r.state is HostState.HEALTHY]

    async def _wait_for(self, hosts: Collection[str]) -> None:
        """Wait until the table is complete, with these hosts of the generation before, but not
        longer than a lease: those that are missing then will not come.
        """
        discovery = self.settings.discovery
        loop = asyncio.get_running_loop()
        until = loop.time() + discovery.heartbeat * discovery.missed + _SETTLE_MARGIN
        carrier = self._carrier
        while not (self._complete and carrier.settled and self.dns.known) or (
            not set(hosts) <= set(self._routed())
        ):
            if not hosts and self._state.serves() and carrier.settled:
                return
            if loop.time() > until:
                _log.warning("accepting before every host of the generation before is here")
                return
            await asyncio.sleep(0.05)

    async def _taken_over(self) -> None:
        """The next generation serves: whoever asks from now on is its."""
        await self.leaving.begin(wait=False, final=True)
        await self._doors.close_internal()
        await self.dns.release()
        # What outlives a restart is the next generation's to keep.
        await self._state.stop()
        if self._shared is not None:
            await self._shared.hand_over()

    # ---- what the APIs read ----

    async def refresh(self) -> None:
        """Bring the counters of all processes up to now."""
        if self._crew is not None:
            await self._crew.refresh()

    def status(self) -> Mapping[str, Any]:
        """See `smartgw.api.internal.Gateway`."""
        settings = self.settings
        return {
            "gateway": {
                "id": settings.gateway,
                "cluster": settings.cluster,
                "version": version("smart-gateway"),
                "compiled": native.active(),
                "pid": os.getpid(),
                "started_at": self.started_at,
                "base_domains": list(settings.base_domains),
                "http": list(settings.listen.http),
                "internal": settings.listen.internal,
                "phase": self.leaving.phase.value,
                "drained_hosts": sorted(self.drained_hosts),
            },
            "state": self._state.status(),
            "shared": None if self._shared is None else self._shared.status(),
            "peers": None if self._peers is None else self._peers.status(),
            "dns": None if self._dns is None else self._dns.status(),
            "store": self._counting.status(self._counted()),
            **sections(self._facts()),
        }

    def readiness(self) -> Readiness:
        """Say what is missing for traffic, and what works less well than it could."""
        workers = None if self._crew is None else self._crew.workers()
        return judge(
            phase=self.leaving.phase,
            ending=self.leaving.final,
            known=self._listened or self._state.serves(),
            connected=self._bus is not None and self._bus.connected,
            first_use=self.settings.trust.mode == "first-use",
            workers=None if workers is None else (sum(w.serving for w in workers), len(workers)),
            without_table=self._state.missing(),
            undecided=self._undecided(),
            degraded=[
                *([] if self._trust is None else self._trust.degraded()),
                *self._state.degraded(),
                *([] if self._shared is None else self._shared.degraded()),
                *([] if self._peers is None else self._peers.degraded()),
                *([] if self._dns is None else self._dns.degraded()),
                *lagging(self._discovery, time.monotonic()),
                *self._credentials.degraded(),
                *([] if self._traffic is None else self._counting.degraded(self._counted())),
            ],
            state=None if self._shared is None else self._shared.summary(),
        )

    def _undecided(self) -> Sequence[str]:
        if self._shared is None:
            return ()
        if missing := self._shared.missing():
            return missing
        return () if self._carrier.settled else ("state: the apps that it names are taken in",)

    @property
    def directory(self) -> Follower | None:
        """The directory of clusters."""
        return self._peers

    @property
    def durable(self) -> DurableState | None:
        """What the platform has decided, None where nothing is kept."""
        return None if self._shared is None else self._shared.store

    @property
    def meter(self) -> Meter:
        """Charges budgets where the data path counts."""
        return self._own.meter

    @property
    def dns(self) -> Nameserver:
        """The zones, and whoever answers from them."""
        assert self._dns is not None, "not started"
        return self._dns

    @property
    def base_domains(self) -> tuple[str, ...]:
        """The domains below which apps have their labels."""
        return self.settings.base_domains

    @property
    def rates(self) -> Rates:
        """How many requests of one caller pass."""
        return self.settings.rates

    def hosts(self) -> Sequence[HostRecord]:
        """All hosts that are known, with their states; the drained ones as such."""
        return [shown(record, self.drained_hosts) for record in self._pool.records()]

    def host(self, host_id: str) -> HostRecord | None:
        """One of them, None when it is not known."""
        record = self._pool.record(host_id)
        return None if record is None else shown(record, self.drained_hosts)

    async def explain(self, question: Question) -> dict[str, Any] | None:
        """What would be done with a request; None: no process that carries traffic answers."""
        return await self._carrier.explain(question)

    def metrics(self) -> Iterable[Family]:
        """The gateway's own counters (contract 11.3)."""
        yield from families(self._facts())
        if self._peers is not None:
            yield from self._peers.families()
        yield from lag_families(self._discovery, time.monotonic())
        if self._shared is not None:
            yield from self._shared.families()
        if self._dns is not None:
            yield from self._dns.families()

    def _counted(self) -> Counters:
        own, crew = self._own.counters, self._crew
        return own if crew is None else crew.counters(exported(own))

    def _facts(self) -> Facts:
        own, crew, bus = self._own, self._crew, self._bus
        log = own.log.written, own.log.dropped
        return Facts(
            counters=self._counted(),
            connected=bus is not None and bus.connected,
            servers=len(self.settings.bus.servers),
            bus={} if bus is None else bus.counters,
            discovery={} if self._discovery is None else self._discovery.counters,
            refused={str(reason): count for reason, count in self._pool.counters.items()},
            log=log if crew is None else crew.log_lines(),
            workers=() if crew is None else crew.workers(),
            tasks=len(asyncio.all_tasks()),
        )

    # ---- wiring ----

    @property
    def _own(self) -> Traffic:
        assert self._traffic is not None, "not started"
        return self._traffic

    @property
    def _carrier(self) -> Carrier:
        return self._own if self._crew is None else self._crew

    def _declare(self, apps: Collection[str]) -> None:
        self._apps = apps
        self._carrier.declare(apps, self._complete)

    def _decided(self, desired: Desired, difference: Difference) -> None:
        if difference.apps or not difference.zones:
            self._carrier.register(desired, difference.apps)
        if difference.enrolments and self._trust is not None:
            self._trust.enrol(desired.enrolments())
        self.dns.follow(desired, difference.zones)

    def _changed(self, updates: Sequence[HostRecord], removed: Sequence[str]) -> None:
        self.drained_hosts.difference_update(removed)
        drained = self.drained_hosts
        self._carrier.apply([host_update(record, drained) for record in updates], removed)
        self._state.changed(updates)

    def _clusters_changed(self, view: View) -> None:
        for carrier in (self._traffic, self._crew):
            if carrier is not None:
                carrier.follow_clusters(view)

    def _stale(self) -> None:
        if self._peers is not None:
            self._peers.refresh()

    def _suspect(self, host_id: str) -> None:
        if self._discovery is not None:
            self._discovery.suspect(host_id)

    def _bus_state(self, connected: bool) -> None:
        if self._listened:
            return
        if self._settling is not None:
            # What was said while the bus was away, nobody has heard.
            self._settling.cancel()
            self._settling = None
        if connected:
            # After one whole interval every live host has been heard, by its heartbeat (1.3).
            delay = self.settings.discovery.heartbeat + _SETTLE_MARGIN
            self._settling = asyncio.get_running_loop().call_later(delay, self._heard_all)

    def _heard_all(self) -> None:
        self._listened = True
        self._completed()

    def _completed(self) -> None:
        """The bus has been listened to, or the state been read."""
        if self._shared is not None and self._shared.known:
            # Also where nothing is registered: that is known now.
            self._carrier.register(self._shared.store.desired, ())
            self.dns.follow(self._shared.store.desired, ())
        self._carrier.declare(self._apps, self._complete)

    @property
    def _complete(self) -> bool:
        return self._listened and (self._shared is None or self._shared.store.loaded)

    async def _own_api(self) -> str | None:
        if not self.settings.hostnames:
            return None
        return await self._doors.open_public(control=self.settings.auth.control_on_hostnames)
