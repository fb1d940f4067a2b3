"""The composition root: builds one gateway, starts and stops its parts in order.

The only module that knows all the others. Decides nothing about hosts, routes or requests; it
wires what decides to what does I/O.
"""

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiohttp import web

from smartgw.accesslog import AccessLog
from smartgw.api import internal, public
from smartgw.config import Settings, split_host_port
from smartgw.metrics import Family, by_label, counter, gauge
from smartgw.proxy import listener as proxy_listener
from smartgw.proxy.counters import Counters
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.path import Path as RequestPath
from smartgw.proxy.pools import UNIX, Pools
from smartgw.routing.table import HostEntry, Route, RoutingTable, Snapshot
from smartgw.state.state import State, lag_families, lagging
from smartgw_hosts.bus import Bus
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.enrolment_file import EnrolmentFile
from smartgw_hosts.http1 import Bounds
from smartgw_hosts.listener import EnrolmentSource, Listener
from smartgw_hosts.records import HostRecord, PoolSettings
from smartgw_hosts.wire import Reason as Refusal

DRAIN_SECONDS = 20.0
"""How long requests in flight have to end when the gateway stops (contract 11.1)."""

_SETTLE_MARGIN = 1.0
# Reasons of an unhealthy host that nobody may speak to any more (contract 1.4).
_UNTRUSTED = frozenset(
    (
        Refusal.NOT_ENROLLED,
        Refusal.EXPIRED_ENROLMENT,
        Refusal.WRONG_CLUSTER,
        Refusal.KEY_CHANGED,
    )
)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether traffic may come (contract 11.3)."""

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...]


class _DeclaringTrust:
    """Tells the routing table of the apps that enrolments name, before the pool hears of them."""

    def __init__(self, source: EnrolmentSource, declare: Callable[[set[str]], None]) -> None:
        self._source = source
        self._declare = declare
        self._tell(source.current)

    @property
    def current(self) -> tuple[Enrolment, ...]:
        return self._source.current

    async def watch(self, changed: Callable[[tuple[Enrolment, ...]], None]) -> None:
        def both(enrolments: tuple[Enrolment, ...]) -> None:
            self._tell(enrolments)
            changed(enrolments)

        await self._source.watch(both)

    def _tell(self, enrolments: Iterable[Enrolment]) -> None:
        self._declare({app for enrolment in enrolments for app in enrolment.exact_apps})


class Gateway:
    """One gateway process. Make it, `start`, and `stop` it in the same event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.started_at = time.time()
        self._table = RoutingTable(settings.base_domains, settings.hostnames)
        self._apps: set[str] = set()
        self._complete_at: float | None = None
        self._log = AccessLog(settings.log.access)
        self._bus: Bus | None = None
        self._state = State(settings, _pool_settings(settings))
        self._pool = self._state.pool
        self._discovery: Listener | None = None
        self._pools: Pools | None = None
        self._path: RequestPath | None = None
        self._listening: proxy_listener.Listening | None = None
        self._watch: Deadlines | None = None
        self._runners: list[web.AppRunner] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    async def start(self) -> None:
        """Bind, then serve; the bus may come later.

        Raises:
            OSError: an address cannot be bound, or the access log not be opened.
            EnrolmentError: the enrolment file is refused.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        http = [split_host_port(address) for address in settings.listen.http]
        sockets = proxy_listener.bind(http)
        try:
            trust = self._trust()
            internal_host, internal_port = split_host_port(settings.listen.internal)
            self._runners.append(
                await internal.serve(internal.build(self), internal_host, internal_port)
            )
            self._log.start()
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        bounds = Bounds(
            settings.limits.head_bytes,
            settings.limits.fields,
            settings.limits.field_line_bytes,
            settings.limits.target_bytes,
        )
        self._watch = Deadlines(loop, _shortest(settings))
        self._watch.start()
        self._pools = Pools(settings, loop, self._watch, bounds, self._suspect)
        self._pools.own = frozenset(
            (host, port)
            for host, port in (
                *(sock.getsockname()[:2] for sock in sockets),
                *(address[:2] for runner in self._runners for address in runner.addresses),
            )
        )
        own_route = await self._own_api() if settings.hostnames else None
        self._path = RequestPath(settings, self._pools, self.counters, self._log, own_route)
        self._pools.path = self._path
        self._path.snapshot = self._table.snapshot
        self._listening = proxy_listener.Listening(settings, self._path, loop, self._watch, bounds)
        self._bus = Bus(
            settings.bus.servers,
            name=f"smartgw {settings.cluster} {settings.gateway}",
            nkey_seed=_secret(settings.bus.nkey_seed_file),
            tls=_tls(settings.bus.tls_ca),
            on_state=self._bus_state,
        )
        self._discovery = Listener(self._bus, self._pool, trust, self._pools, self._changed)
        await self._discovery.start(await self._state.load())
        self._state.start(lambda: self._table.snapshot.complete)
        await self._bus.start()
        await self._listening.listen(sockets)

    async def stop(self) -> None:
        """Let what is in flight end, then close everything; safe after a failed start."""
        for timer in self._timers:
            timer.cancel()
        if self._listening is not None:
            await self._listening.close(DRAIN_SECONDS)
        if self._discovery is not None:
            await self._discovery.stop()
        await self._state.stop()
        if self._bus is not None:
            await self._bus.stop()
        if self._pools is not None:
            await self._pools.close()
        for runner in self._runners:
            await runner.cleanup()
        if self._watch is not None:
            self._watch.stop()
        if self._folder is not None:
            self._folder.cleanup()
        await self._log.stop()

    # ---- what the APIs read ----

    def status(self) -> Mapping[str, Any]:
        """See `smartgw.api.internal.Gateway`."""
        settings, counters, bus = self.settings, self.counters, self._bus
        return {
            "gateway": {
                "id": settings.gateway,
                "cluster": settings.cluster,
                "version": version("smart-gateway"),
                "pid": os.getpid(),
                "started_at": self.started_at,
                "base_domains": list(settings.base_domains),
                "http": list(settings.listen.http),
                "internal": settings.listen.internal,
            },
            "bus": {
                "connected": bus is not None and bus.connected,
                "servers": len(settings.bus.servers),
                "reconnects": 0 if bus is None else max(0, bus.counters["generations"] - 1),
                "drops": 0 if bus is None else bus.counters["drops"],
            },
            "traffic": {
                "requests": sum(counters.requests),
                "in_flight": counters.in_flight,
                "connections": counters.connections,
                "upstream_connections": counters.upstream_connections,
                "by_status": {f"{n}xx": count for n, count in enumerate(counters.requests) if n},
                "own_errors": {
                    reason.value: count for reason, count in counters.own_errors.items() if count
                },
            },
            "discovery": {
                "messages": 0 if bus is None else bus.counters["messages"],
                "refused": {
                    str(reason): count for reason, count in self._pool.counters.items() if count
                },
            },
            "state": self._state.status(),
            "access_log": {"written": self._log.written, "dropped": self._log.dropped},
        }

    def readiness(self) -> Readiness:
        """Say what is missing for traffic, and what works less well than it could."""
        missing: list[str] = []
        degraded: list[str] = []
        known = self._table.snapshot.complete or self._state.serves()
        if not known:
            missing.append("table: a heartbeat interval has not been listened to yet")
            missing += self._state.missing()
        if self._bus is None or not self._bus.connected:
            (degraded if known else missing).append("bus: not connected")
        degraded += self._state.degraded()
        degraded += lagging(self._discovery, time.monotonic())
        if self.settings.trust.mode == "first-use":
            degraded.append("trust: first use, for development only")
        return Readiness(not missing, tuple(missing), tuple(degraded))

    def hosts(self) -> Sequence[HostRecord]:
        """All hosts that are known, with their states."""
        return self._pool.records()

    def metrics(self) -> Iterable[Family]:
        """The gateway's own counters (contract 11.3)."""
        counters = self.counters
        yield by_label(
            "smartgw_requests_total",
            "Requests that are over, by the class of their status; 0xx: the client went away.",
            "class",
            {f"{n}xx": count for n, count in enumerate(counters.requests)},
        )
        yield by_label(
            "smartgw_own_errors_total",
            "Answers that the gateway gave by itself.",
            "reason",
            {reason.value: count for reason, count in counters.own_errors.items()},
        )
        yield Family(
            "smartgw_request_duration_seconds",
            "From the end of a request's head to the last byte of its answer.",
            "histogram",
            {(): counters.duration},
        )
        for name, text in _COUNTERS.items():
            yield counter(f"smartgw_{name}_total", text, getattr(counters, name))
        yield counter(
            "smartgw_connections_total", "Connections of clients.", counters.connections_total
        )
        yield counter(
            "smartgw_upstream_connections_total",
            "Connections to hosts.",
            counters.upstream_connections_total,
        )
        for name, text in _GAUGES.items():
            yield gauge(f"smartgw_{name}", text, getattr(counters, name))
        yield by_label(
            "smartgw_discovery_refused_total",
            "Messages of the bus that were refused.",
            "reason",
            {str(reason): count for reason, count in self._pool.counters.items()},
        )
        bus = self._bus
        if bus is not None:
            yield gauge("smartgw_bus_connected", "1 while the bus is there.", int(bus.connected))
            yield counter(
                "smartgw_bus_messages_total",
                "Messages taken from the bus.",
                bus.counters["messages"],
            )
            yield counter(
                "smartgw_bus_drops_total", "Messages that came too fast.", bus.counters["drops"]
            )
        if self._discovery is not None:
            proofs = self._discovery.counters
            yield counter("smartgw_proofs_total", "Verifications of hosts.", proofs["proofs"])
            yield counter(
                "smartgw_proofs_failed_total", "Those that failed.", proofs["proofs_failed"]
            )
            yield counter("smartgw_stalls_total", "Times we did not run.", proofs["stalls"])
        yield from lag_families(self._discovery, time.monotonic())
        yield counter("smartgw_access_log_lines_total", "Lines written.", self._log.written)
        yield counter("smartgw_access_log_dropped_total", "Lines lost.", self._log.dropped)

    # ---- wiring ----

    def _trust(self) -> EnrolmentSource | None:
        if self.settings.trust.mode == "first-use":
            return None
        assert self.settings.trust.file is not None
        return _DeclaringTrust(EnrolmentFile(self.settings.trust.file), self._declare)

    def _declare(self, apps: set[str]) -> None:
        self._apps = apps
        self._publish(self._table.declare(apps, self._table.snapshot.complete))

    def _changed(self, updates: Sequence[HostRecord], removed: Sequence[str]) -> None:
        self._publish(self._table.apply(updates, removed))
        self._state.changed(updates)
        pools = self._pools
        assert pools is not None
        for host_id in removed:
            pools.retire(host_id, None, cut=False)
        for record in updates:
            pools.retire(
                record.host_id, self._table.entry(record.host_id), record.reason in _UNTRUSTED
            )

    def _publish(self, snapshot: Snapshot) -> None:
        if self._path is not None:
            self._path.snapshot = snapshot

    def _suspect(self, host_id: str) -> None:
        if self._discovery is not None:
            self._discovery.suspect(host_id)

    def _bus_state(self, connected: bool) -> None:
        if connected and self._complete_at is None:
            # After one interval every live host has been heard, by its heartbeat (contract 1.3).
            delay = self.settings.discovery.heartbeat + _SETTLE_MARGIN
            loop = asyncio.get_running_loop()
            self._complete_at = loop.time() + delay
            self._timers.append(loop.call_later(delay, self._complete))

    def _complete(self) -> None:
        self._publish(self._table.declare(self._apps, True))

    async def _own_api(self) -> Route:
        """Serve the public API on a socket that only we can reach; return the route to it."""
        self._folder = tempfile.TemporaryDirectory(prefix="smartgw-")
        path = str(Path(self._folder.name) / "api.sock")
        runner = web.AppRunner(public.build(self), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.UnixSite(runner, path).start()
        self._runners.append(runner)
        return Route("", (HostEntry("api", UNIX + path, None, 1),))


_COUNTERS = {
    "received": "Bytes of request bodies.",
    "sent": "Bytes of answers' bodies.",
    "connections_refused": "Connections of clients that were one too many.",
    "attempts_failed": "Attempts to reach a host before anything was sent.",
    "downstream_aborts": "Requests whose client went away.",
    "upgrades": "Upgrades to WebSocket.",
    "upstream_failures": "Connections to hosts that failed.",
}
_GAUGES = {
    "connections": "Connections of clients that are open.",
    "in_flight": "Requests that are not over.",
    "tunnels": "Upgraded connections.",
    "upstream_connections": "Connections to hosts that are open.",
}


def _pool_settings(settings: Settings) -> PoolSettings:
    discovery = settings.discovery
    return PoolSettings(
        heartbeat=discovery.heartbeat,
        missed=discovery.missed,
        provisional_ttl=discovery.provisional_ttl,
        unhealthy_ttl=discovery.unhealthy_ttl,
        reverify=discovery.reverify,
        skew=discovery.skew,
        max_provisional=discovery.max_provisional,
        max_provisional_bytes=discovery.max_provisional_bytes,
        max_hosts=discovery.max_hosts,
        trust=settings.trust.mode,
    )


def _shortest(settings: Settings) -> float:
    deadlines = settings.deadlines
    return min(
        deadlines.head,
        deadlines.request_body,
        deadlines.keepalive,
        deadlines.response_head,
        deadlines.response_body,
        deadlines.websocket,
        deadlines.linger,
        settings.upstream.idle,
    )


def _secret(path: Path | None) -> str | None:
    return None if path is None else path.read_text().strip()


def _tls(ca: Path | None) -> ssl.SSLContext | None:
    return None if ca is None else ssl.create_default_context(cafile=str(ca))
