"""DNS as one gateway has it: the zones in force, on the wire and for the API (contract 8).

Owns when the wire is served (once the zones are known: nobody is told that a name is not ours for
lack of knowledge) and what is said of it all. Runs in the process that has the state, also where
there are workers. What is answered is smartgw_dns's; who may ask at the API is api/resolve.py's.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from smartgw.aside import Aside
from smartgw.config import Settings, split_host_port
from smartgw.metrics import Family, by_label, counter, gauge
from smartgw.processes.sockets import DNS_TCP, DNS_UDP, Listener
from smartgw.state.desired import Desired
from smartgw.state.durable import DurableState
from smartgw.state.zone_store import ZoneStore
from smartgw.state.zones import Zones
from smartgw_dns.catalog import Catalog
from smartgw_dns.forwarder import Forwarder
from smartgw_dns.names import text_of
from smartgw_dns.respond import Responder
from smartgw_dns.server import Server
from smartgw_hosts.identity import Identity

SHOWN: Final = 3
"""Zones that a line about faults names."""
_COOKIES: Final = b"smartgw/dns-cookies/v1"

_log = logging.getLogger(__name__)


class Nameserver:
    """Make it in its loop, `start` it, tell it of each change of the state, `stop` it.

    `listeners`: pairs of sockets to serve. `durable`: where zones are kept, None without a store.
    `identity`: the cluster's, whose gateways take each other's cookies.

    Attributes:
        aside: where work on large zones is done.
        zones: those in force. `store`: writes them, None where nothing is kept.
        responder: answers packets. `forwarder`: asks others, None where that is switched off.
        resolved: questions that the API answered, by the role of who asked.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Sequence[Listener],
        durable: DurableState | None,
        identity: Identity | None,
    ) -> None:
        dns = settings.dns
        self.aside = Aside()
        self.zones = Zones(self._changed, self.aside)
        self.store = None if durable is None else ZoneStore(durable, self.zones, self.aside)
        self.responder = Responder(_cookie_secret(identity), dns.rate, time.time)
        resolvers = [split_host_port(address) for address in dns.resolvers]
        self.forwarder = Forwarder(resolvers) if resolvers else None
        self.resolved = {"session": 0, "service": 0}
        self._server: Server | None = None
        self._addresses: list[tuple[str, int]] = []
        if listeners:
            datagram, stream = (
                [one.socket for one in listeners if one.name == name] for name in (DNS_UDP, DNS_TCP)
            )
            self._server = Server(self.responder, list(zip(datagram, stream, strict=True)))
            self._addresses = self._server.addresses
        self._serving: asyncio.Task[None] | None = None
        self._released = False

    def start(self) -> None:
        """Begin to make zones."""
        self.zones.start()

    def follow(self, desired: Desired, origins: Iterable[bytes]) -> None:
        """Of these zones something is otherwise in the state, which is known."""
        self.zones.follow(desired, origins)

    async def release(self) -> None:
        """Serve the wire no more: the next generation does, at the same sockets."""
        released, self._released = self._released, True
        if not released and self._serving is not None and self._server is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
            await self._server.stop()

    async def stop(self) -> None:
        """End it all; safe a second time, and when it was not started."""
        await self.release()
        if self.store is not None:
            await self.store.stop()
        await self.zones.stop()

    def _changed(self, catalog: Catalog) -> None:
        self.responder.catalog = catalog
        if self._serving is None and self._server is not None and not self._released:
            self._serving = asyncio.create_task(self._serve(self._server), name="dns")

    async def _serve(self, server: Server) -> None:
        await server.start()
        where = ", ".join(f"{host} port {port}" for host, port in self._addresses)
        _log.info("DNS: serving %d zones at %s", self.zones.count, where)

    # ---- how it stands ----

    @property
    def known(self) -> bool:
        """Whether the zones are known, so that a name without one has none."""
        return self.zones.known or self.store is None

    def degraded(self) -> Sequence[str]:
        """What works less well than it could, in lines."""
        lines = []
        faults, waiting = self.zones.faults, self.zones.waiting
        if not self.known:
            making = f", {waiting} are still to be made" if waiting else ""
            lines.append(f"dns: the zones are not known yet{making}: nobody is answered")
        if faults:
            names = ", ".join(text_of(origin) for origin in sorted(faults)[:SHOWN])
            more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            lines.append(f"dns: not in force as they were last written: {names}{more}; see the log")
        return lines

    def status(self) -> dict[str, Any]:
        """What status shows."""
        server = self._server
        counts = None if server is None else server.counts
        return {
            "listen": [f"{host} port {port}" for host, port in self._addresses],
            "known": self.known,
            "zones": self.zones.count,
            "records": self.zones.records,
            "waiting": self.zones.waiting,
            "faults": {text_of(origin): fault for origin, fault in self.zones.faults.items()},
            "recursion": self.forwarder is not None,
            "queries": 0 if counts is None else counts.queries_udp + counts.queries_tcp,
            "limited": self.responder.rates.limited,
            "resolved": dict(self.resolved),
        }

    def families(self) -> Iterable[Family]:
        """For /metrics."""
        zones = self.zones
        yield gauge("smartgw_dns_zones", "Zones in force.", zones.count)
        yield gauge("smartgw_dns_records", "Records of all zones in force.", zones.records)
        yield gauge(
            "smartgw_dns_zone_faults",
            "Zones whose newest version cannot be put in force.",
            len(zones.faults),
        )
        if self._server is not None:
            yield from _wire_families(self._server)
            limited = self.responder.rates.limited
            yield counter("smartgw_dns_limited_total", "Answers above dns.rate.", limited)
            yield counter(
                "smartgw_dns_unread_total",
                "Packets of odd forms that there was no time to read.",
                self.responder.unread,
            )
        yield by_label(
            "smartgw_dns_resolved_total", "Questions answered by the API.", "role", self.resolved
        )
        if self.forwarder is not None:
            yield by_label(
                "smartgw_dns_forwarded_total",
                "Questions of services for other resolvers.",
                "outcome",
                self.forwarder.counts,
            )


def _wire_families(server: Server) -> Iterable[Family]:
    counts = server.counts
    queries = {"udp": counts.queries_udp, "tcp": counts.queries_tcp}
    yield by_label("smartgw_dns_queries_total", "Packets that came.", "transport", queries)
    answers = {"udp": counts.answered_udp, "tcp": counts.answered_tcp}
    yield by_label("smartgw_dns_answers_total", "Packets that were sent.", "transport", answers)
    yield counter(
        "smartgw_dns_unsent_total", "Answers that the system did not take.", counts.unsent
    )
    yield gauge("smartgw_dns_connections", "TCP connections open.", len(server.connections))
    yield counter("smartgw_dns_turned_away_total", "TCP connections too many.", counts.turned_away)


def _cookie_secret(identity: Identity | None) -> bytes:
    """Return 32 bytes that all gateways of a cluster have, and nobody else; chance without one."""
    if identity is None:
        return secrets.token_bytes(32)
    # The signature of a context that is signed for nothing else is known to nobody else.
    return blake2b(identity.sign(_COOKIES, b""), digest_size=32).digest()
