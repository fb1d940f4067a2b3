"""Keep-alive connections to hosts: lent out, taken back, waited for (contract 3.7).

Owns how many connections a host may have, who waits for one, and which links a change of the
table ends. Also the gateway's prober: a verification opens a connection as a request would.
Opening is dialler.py's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from smartgw.errors import Reason
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.dialler import UNIX, ConnectFailed, Dialler
from smartgw.proxy.exchange import Exchange
from smartgw.proxy.link import Link
from smartgw.proxy.upstream import NO_KEEPALIVE, UpstreamConnection
from smartgw.routing.snapshot import HostEntry
from smartgw_hosts.challenge import Proof, Verdict, refused_as_elsewhere
from smartgw_hosts.http1 import Bounds
from smartgw_hosts.identity import PublicKey

if TYPE_CHECKING:
    from smartgw.config import Settings
    from smartgw.proxy.path import Path

# How long a verification watches whether the host keeps the connection (contract 2.3).
_KEEPALIVE_WATCH = 0.05
_SUSPECT_SECONDS = 10.0


ANSWER_FOR = {
    Proof.REFUSED: Reason.UPSTREAM_UNPROVEN,
    Proof.TIMEOUT: Reason.CONNECT_TIMEOUT,
    Proof.UNREACHABLE: Reason.UPSTREAM_REFUSED,
    Proof.ADDRESS_REFUSED: Reason.UPSTREAM_UNPROVEN,
    Proof.BAD_STATUS: Reason.UPSTREAM_UNPROVEN,
    Proof.BAD_ANSWER: Reason.UPSTREAM_UNPROVEN,
    Proof.BAD_SIGNATURE: Reason.UPSTREAM_UNPROVEN,
    Proof.NO_KEEPALIVE: Reason.UPSTREAM_UNPROVEN,
}


class HostLink(Link):
    """The connections to one host at one address, proven for one key.

    Attributes:
        weight: the host's share of traffic.
        suspect: it refused a connection lately; chosen last until it has proven itself again.
        retired: it gets no new requests; there until nothing of it is in use.
        entries: those under which `Pools.link` finds it.
    """

    __slots__ = (
        "_connections",
        "_dialling",
        "_idle",
        "_limit",
        "_pools",
        "_waiting",
        "address",
        "entries",
        "key",
        "retired",
        "suspect",
        "weight",
    )

    def __init__(self, pools: "Pools", host: HostEntry, limit: int) -> None:
        super().__init__(host.host_id)
        self._pools = pools
        self.address = host.address
        self.key = host.key
        self.weight = host.weight
        self.retired = False
        self.entries: list[HostEntry] = []
        self.suspect = False
        self._limit = limit
        self._idle: list[UpstreamConnection] = []
        self._connections: set[UpstreamConnection] = set()
        self._waiting: dict[Exchange, None] = {}
        self._dialling = 0

    def take(self, exchange: Exchange) -> UpstreamConnection | None:
        """Return a free connection, or have the exchange wait for the first that comes free."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.alive(exchange.request.method, self._pools.loop.time()):
                return connection
        self._waiting[exchange] = None
        self._dial()
        return None

    def done(self, exchange: Exchange) -> None:
        """An exchange that was given to this host is over, or goes to another."""
        self.outstanding -= 1
        if self._waiting:
            self._waiting.pop(exchange, None)
        if self.retired:
            self._pools.forget_if_unused(self)

    def is_opening(self) -> bool:
        return self._dialling > 0

    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose exchange is over."""
        for exchange in self._waiting:
            if connection.alive(exchange.request.method, self._pools.loop.time()):
                del self._waiting[exchange]
                self._pools.path.carry(exchange, connection)
            else:
                self._dial()
            return
        if self.retired:
            connection.close()
            return
        connection.deadline = connection.idle_since + self._pools.idle
        self._idle.append(connection)
        if self._pools.wanting:
            self._pools.freed()

    def adopt(self, connection: UpstreamConnection) -> None:
        """Take in a connection that has just proven itself."""
        self.suspect = False
        connection.link = self
        self._connections.add(connection)
        self._pools.deadlines.add(connection)
        self.release(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self.retired:
            self._pools.forget_if_unused(self)
        elif self._waiting:
            self._dial()

    def retire(self, cut: bool) -> None:
        """The host is no longer routed: idle connections end, with `cut` also those in use."""
        self.retired = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self._turn_away(Reason.NO_UPSTREAM)
        if cut:
            for connection in list(self._connections):
                connection.cut()
        self._pools.forget_if_unused(self)

    def _turn_away(self, reason: Reason) -> None:
        """Nothing was sent for those who wait: they go on elsewhere, if there is an elsewhere."""
        waiting, self._waiting = self._waiting, {}
        for exchange in waiting:
            self._pools.path.attempt_failed(exchange, reason)

    @property
    def in_use(self) -> bool:
        """Whether a connection or a request still needs this link."""
        return bool(self._connections or self._dialling or self.outstanding)

    def _dial(self) -> None:
        if not self.wants_one():
            return
        if self._pools.make_room():
            self.open_one()
        elif self._connections or self.is_opening():
            self._pools.wanting[self] = None
        else:
            # Nothing of this host is open whose end could serve those who wait.
            self._turn_away(Reason.OVERLOADED)

    def wants_one(self) -> bool:
        return self._dialling < len(self._waiting) and self.has_room()

    def open_one(self) -> None:
        self._dialling += 1
        self._pools.dialling += 1
        self._pools.spawn(self._open())

    def has_room(self) -> bool:
        """Say whether the host may have one more connection."""
        return not self.retired and len(self._connections) + self._dialling < self._limit

    def close_idle(self) -> bool:
        """End the connection that has been idle longest; False when there is none."""
        if not self._idle:
            return False
        connection = self._idle.pop(0)
        self._connections.discard(connection)
        connection.close()
        return True

    async def _open(self) -> None:
        verdict = Verdict(Proof.UNREACHABLE, "the attempt was given up")
        connection = None
        try:
            connection = await self._pools.open(self.host_id, self.address, self.key)
            verdict = Verdict(Proof.NO_KEEPALIVE, "closed after its proof")
        except ConnectFailed as failed:
            verdict = failed.verdict
        finally:
            self._dialling -= 1
            self._pools.dialling -= 1
            if connection is not None and connection.alive(b"POST", 0.0):
                self.adopt(connection)
            else:
                self._failed(verdict)
            self._pools.forget_if_unused(self)
            self._pools.freed()

    def broke(self, connection: UpstreamConnection) -> None:
        """It ended one that had just proven itself."""
        self.doubt()

    def serves(self, host: HostEntry) -> bool:
        """Say whether connections of this link are such as this host's must be."""
        return self.address == host.address and self.key == host.key

    def doubt(self) -> None:
        """The host refused a connection, or broke one (3.7)."""
        if not self.suspect:
            self.suspect = True
            self._pools.loop.call_later(_SUSPECT_SECONDS, self._absolve)
            self._pools.on_suspect(self.host_id)

    def _failed(self, verdict: Verdict) -> None:
        """One attempt to connect failed: one of those who wait learns it."""
        pools = self._pools
        pools.path.counters.upstream_failures += 1
        self.doubt()
        for exchange in self._waiting:
            del self._waiting[exchange]
            moving = refused_as_elsewhere(verdict)
            pools.path.attempt_failed(exchange, ANSWER_FOR[verdict.reason], moving=moving)
            break
        if self._waiting:
            self._dial()

    def _absolve(self) -> None:
        # If it still refuses, the next attempt makes it suspect again.
        self.suspect = False


class Pools:
    """All links of this process, and the one way to open a connection to a host."""

    def __init__(
        self,
        settings: "Settings",
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        bounds: Bounds,
        on_suspect: Callable[[str], None],
    ) -> None:
        self.dialler = Dialler(settings, loop, deadlines, bounds)
        self.loop = loop
        self.deadlines = deadlines
        self.on_suspect = on_suspect
        self.most = 1 << 20
        """Connections to hosts and peers that may be open at once, all together."""
        self.dialling = 0
        self.wanting: dict[Link, None] = {}
        """Who would open a connection if there were room, in the order of its coming free."""
        self.more_idle: Callable[[], bool] = lambda: False
        """Ends one idle connection that is not to a host; False when there is none."""
        self._links: dict[HostEntry, HostLink] = {}
        self._by_host: dict[str, list[HostLink]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.configure(settings)

    @property
    def path(self) -> "Path":
        """Where what happens on connections is told."""
        return self._path

    @path.setter
    def path(self, path: "Path") -> None:
        self._path = self.dialler.path = path

    def configure(self, settings: "Settings") -> None:
        """Put settings in force for the connections that are opened from now on."""
        self.idle = settings.upstream.idle
        self._limit = settings.upstream.connections_per_host
        self._prove_connections = settings.upstream.verify == "connection"
        self.dialler.configure(settings)

    def link(self, host: HostEntry) -> HostLink:
        """Return the link to a host, made when it is first needed."""
        link = self._links.get(host)
        if link is None:
            links = self._by_host.setdefault(host.host_id, [])
            link = next((one for one in links if one.serves(host)), None)
            if link is None:
                link = HostLink(self, host, self._limit)
                links.append(link)
            self._links[host] = link
            link.entries.append(host)
        return link

    def make_room(self) -> bool:
        """Say whether one more connection may be opened; an idle one of any host gives way."""
        if self.path.counters.upstream_connections + self.dialling < self.most:
            return True
        if any(link.close_idle() for links in self._by_host.values() for link in links):
            return True
        return self.more_idle()

    def allow(self, most: int) -> None:
        """Put in force how many connections may be open at once."""
        self.most = most
        self.freed()

    def freed(self) -> None:
        """A place for a connection has come free, or a connection idle that gives way: it is for
        who has wanted one the longest; who wants several gets in line again.
        """
        wanting = self.wanting
        while wanting:
            link = next(iter(wanting))
            wants = link.wants_one()
            if wants and not self.make_room():
                return
            del wanting[link]
            if wants:
                link.open_one()
                if link.wants_one():
                    wanting[link] = None

    def follow(self, host_id: str, current: HostEntry | None, cut: bool) -> None:
        """A host is now `current`, None when it is not routed: links that do not serve that end."""
        for link in list(self._by_host.get(host_id, ())):
            for entry in link.entries:
                self._links.pop(entry, None)
            link.entries.clear()
            if current is not None and link.serves(current):
                link.weight = current.weight
                link.retired = False
                self._links[current] = link
                link.entries.append(current)
            else:
                link.retire(cut)

    def forget_if_unused(self, link: HostLink) -> None:
        """Let go of a retired link that nothing needs any more."""
        if link.retired and not link.in_use:
            links = self._by_host.get(link.host_id, [])
            if link in links:
                links.remove(link)
            if not links:
                self._by_host.pop(link.host_id, None)

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a connection attempt; kept so that it is not collected."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections and attempts."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for host_id in list(self._by_host):
            self.follow(host_id, None, cut=True)

    # ---- opening ----

    async def prove(self, host_id: str, address: str, key: PublicKey) -> Verdict:
        """Verify a host (contract 2.1): open a connection to it and see that it stays."""
        try:
            connection = await self.dialler.dial(host_id, address, key, True)
        except ConnectFailed as failed:
            return failed.verdict
        kept = False
        try:
            if self._prove_connections:
                await asyncio.sleep(_KEEPALIVE_WATCH)
                if not connection.alive(b"POST", 0.0):
                    return Verdict(Proof.NO_KEEPALIVE, NO_KEEPALIVE)
            links = self._by_host.get(host_id, ())
            for link in links:
                if link.address == address and link.key == key and link.has_room():
                    # A proven connection is worth keeping: the next request need not open one.
                    link.adopt(connection)
                    kept = True
                    break
            return Verdict(Proof.OK)
        finally:
            if not kept:
                connection.close()

    async def open(self, host_id: str, address: str, key: object) -> UpstreamConnection:
        """Open a connection that may carry requests. Raises ConnectFailed."""
        if address.startswith(UNIX):
            return await self.dialler.dial_unix(address.removeprefix(UNIX))
        assert isinstance(key, PublicKey)
        return await self.dialler.dial(host_id, address, key, self._prove_connections)
