"""Keep-alive connections to hosts: opened, proven, lent out, taken back (contract 2.1-2.5, 3.7).

Owns which address is dialled for a host, how many connections it may have and who waits for one.
Also the gateway's prober: a verification is the opening of a connection, done the same way.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from smartgw.errors import Reason
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.exchange import Exchange
from smartgw.proxy.upstream import State, UpstreamConnection
from smartgw.routing.table import HostEntry
from smartgw_hosts.addresses import (
    Address,
    AddressRefused,
    Endpoint,
    endpoints,
    parse_address,
)
from smartgw_hosts.challenge import NONCE_BYTES, Challenge, Proof, Verdict, refused_as_stale
from smartgw_hosts.http1 import Bounds
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.skew import IssueClock

if TYPE_CHECKING:
    from smartgw.config import Settings
    from smartgw.proxy.path import Path

_log = logging.getLogger(__name__)

# How long a verification watches whether the host keeps the connection (contract 2.3).
_KEEPALIVE_WATCH = 0.05
_SUSPECT_SECONDS = 10.0
UNIX = "unix:"
"""Scheme of the gateway's own API, which is reached without proof over a socket of its own."""


class ConnectFailed(Exception):
    """No proven connection; nothing of a request was sent."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


_ANSWER_FOR = {
    Proof.REFUSED: Reason.UPSTREAM_UNPROVEN,
    Proof.TIMEOUT: Reason.CONNECT_TIMEOUT,
    Proof.UNREACHABLE: Reason.UPSTREAM_REFUSED,
    Proof.ADDRESS_REFUSED: Reason.UPSTREAM_UNPROVEN,
    Proof.BAD_STATUS: Reason.UPSTREAM_UNPROVEN,
    Proof.BAD_ANSWER: Reason.UPSTREAM_UNPROVEN,
    Proof.BAD_SIGNATURE: Reason.UPSTREAM_UNPROVEN,
    Proof.NO_KEEPALIVE: Reason.UPSTREAM_UNPROVEN,
}


class HostLink:
    """The connections to one host.

    Attributes:
        outstanding: requests that were given to this host and are not over.
        suspect: it refused a connection lately; chosen last until it has proven itself again.
    """

    __slots__ = (
        "_connections",
        "_dialling",
        "_idle",
        "_limit",
        "_pools",
        "_retired",
        "_waiting",
        "host",
        "outstanding",
        "suspect",
        "weight",
    )

    def __init__(self, pools: "Pools", host: HostEntry, limit: int) -> None:
        self._pools = pools
        self.host = host
        self.weight = host.weight
        self.outstanding = 0
        self.suspect = False
        self._limit = limit
        self._idle: list[UpstreamConnection] = []
        self._connections: set[UpstreamConnection] = set()
        self._waiting: deque[Exchange] = deque()
        self._dialling = 0
        self._retired = False

    def take(self, exchange: Exchange) -> UpstreamConnection | None:
        """Return a free connection, or have the exchange wait for the first that comes free."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.alive(exchange.request.method, self._pools.loop.time()):
                return connection
        self._waiting.append(exchange)
        self._dial()
        return None

    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose exchange is over."""
        waiting = self._waiting
        while waiting:
            exchange = waiting.popleft()
            if not exchange.over:
                if connection.alive(exchange.request.method, self._pools.loop.time()):
                    self._pools.path.carry(exchange, connection)
                    return
                waiting.appendleft(exchange)
                self._dial()
                return
        if self._retired:
            connection.close()
            return
        connection.deadline = self._pools.loop.time() + self._pools.idle
        self._idle.append(connection)

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
        if self._waiting and not self._retired:
            self._dial()

    def retire(self, cut: bool) -> None:
        """The host is no longer routed: idle connections end, with `cut` also those in use."""
        self._retired = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        waiting, self._waiting = self._waiting, deque()
        for exchange in waiting:
            self._pools.path.attempt_failed(exchange, Reason.NO_UPSTREAM, "")
        if cut:
            for connection in list(self._connections):
                connection.cut()
        self._pools.forget_if_unused(self)

    @property
    def in_use(self) -> bool:
        """Whether a connection or a request still needs this link."""
        return bool(self._connections or self._dialling or self.outstanding)

    @property
    def retired(self) -> bool:
        """Whether the host is no longer routed."""
        return self._retired

    def _dial(self) -> None:
        room = self._limit - len(self._connections) - self._dialling
        if room <= 0 or self._dialling >= len(self._waiting):
            return
        if self._pools.make_room():
            self._dialling += 1
            self._pools.dialling += 1
            self._pools.spawn(self._open())
        elif not self._connections and not self._dialling:
            # Nothing of this host is open whose end could serve those who wait.
            waiting, self._waiting = self._waiting, deque()
            for exchange in waiting:
                self._pools.path.attempt_failed(exchange, Reason.OVERLOADED, "")

    def close_idle(self) -> bool:
        """End the connection that has been idle longest; False when there is none."""
        if not self._idle:
            return False
        connection = self._idle.pop(0)
        self._connections.discard(connection)
        connection.close()
        return True

    async def _open(self) -> None:
        host = self.host
        try:
            connection = await self._pools.open(host.host_id, host.address, host.key)
        except ConnectFailed as failed:
            self._dialling -= 1
            self._pools.dialling -= 1
            self._failed(failed.verdict)
        else:
            self._dialling -= 1
            self._pools.dialling -= 1
            connection.link = self
            if connection.alive(b"POST", 0.0):
                self.adopt(connection)
            else:
                self._failed(Verdict(Proof.NO_KEEPALIVE, "closed after its proof"))
        self._pools.forget_if_unused(self)

    def doubt(self) -> None:
        """The host refused a connection, or ended one that had just proven itself (3.7)."""
        if not self.suspect:
            self.suspect = True
            self._pools.loop.call_later(_SUSPECT_SECONDS, self._absolve)
            self._pools.on_suspect(self.host.host_id)

    def _failed(self, verdict: Verdict) -> None:
        """One attempt to connect failed: one of those who wait learns it."""
        pools = self._pools
        pools.path.counters.upstream_failures += 1
        self.doubt()
        waiting = self._waiting
        while waiting:
            exchange = waiting.popleft()
            if not exchange.over:
                pools.path.attempt_failed(exchange, _ANSWER_FOR[verdict.reason], verdict.detail)
                break
        if waiting:
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
        self.path: Path
        self.loop = loop
        self.deadlines = deadlines
        self.on_suspect = on_suspect
        self.own: frozenset[tuple[str, int]] = frozenset()
        """(ip, port) of every gateway listener: never dialled (contract 2.5)."""
        self.most = 1 << 20
        """Connections to hosts that may be open at once, all together."""
        self.dialling = 0
        self._bounds = bounds
        self._links: dict[HostEntry, HostLink] = {}
        self._by_host: dict[str, HostLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.configure(settings)

    def configure(self, settings: "Settings") -> None:
        """Put settings in force for the connections that are opened from now on."""
        self.idle = settings.upstream.idle
        self._limit = settings.upstream.connections_per_host
        self._connect_timeout = settings.upstream.connect_timeout
        self._challenge_timeout = settings.upstream.challenge_timeout
        self._prove_connections = settings.upstream.verify == "connection"
        self._networks = settings.host_networks
        self._gateway = settings.gateway
        self._cluster = settings.cluster
        self._issue_clock = IssueClock()
        self._tls_ca = settings.upstream.tls_ca
        self._tls: ssl.SSLContext | None = None

    def link(self, host: HostEntry) -> HostLink:
        """Return the link to a host, made when it is first needed."""
        link = self._links.get(host)
        if link is None:
            link = self._links[host] = HostLink(self, host, self._limit)
            # An exchange that still holds an older Snapshot may ask for a host's former entry.
            known = self._by_host.get(host.host_id)
            if known is None or known.retired:
                self._by_host[host.host_id] = link
        return link

    def make_room(self) -> bool:
        """Say whether one more connection may be opened; an idle one of any host gives way."""
        if self.path.counters.upstream_connections + self.dialling < self.most:
            return True
        return any(link.close_idle() for link in self._links.values())

    def retire(self, host_id: str, current: HostEntry | None, cut: bool) -> None:
        """A host changed to `current`, or is no longer routed: its old link ends."""
        link = self._by_host.get(host_id)
        if link is not None and link.host is not current:
            link.retire(cut)

    def forget_if_unused(self, link: HostLink) -> None:
        """Let go of a retired link that nothing needs any more."""
        if link.retired and not link.in_use:
            self._links.pop(link.host, None)
            if self._by_host.get(link.host.host_id) is link:
                del self._by_host[link.host.host_id]

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
        for link in list(self._links.values()):
            link.retire(cut=True)

    # ---- opening ----

    async def prove(self, host_id: str, address: str, key: PublicKey) -> Verdict:
        """Verify a host (contract 2.1): open a connection to it and see that it stays."""
        try:
            connection = await self._connect(host_id, address, key, True)
        except ConnectFailed as failed:
            return failed.verdict
        if self._prove_connections:
            await asyncio.sleep(_KEEPALIVE_WATCH)
            if connection.state is not State.IDLE or not connection.alive(b"POST", 0.0):
                connection.close()
                return Verdict(
                    Proof.NO_KEEPALIVE,
                    "closes after each answer: put the sidecar before it or set upstream.verify",
                )
        link = self._by_host.get(host_id)
        if link is not None and not link.retired and link.host.address == address:
            # A proven connection is worth keeping: the next request need not open one.
            link.adopt(connection)
        else:
            connection.close()
        return Verdict(Proof.OK)

    async def open(self, host_id: str, address: str, key: object) -> UpstreamConnection:
        """Open a connection that may carry requests.

        Raises:
            ConnectFailed: nothing was sent but a challenge.
        """
        if address.startswith(UNIX):
            return await self._connect_unix(address.removeprefix(UNIX))
        assert isinstance(key, PublicKey)
        return await self._connect(host_id, address, key, self._prove_connections)

    async def _connect(
        self, host_id: str, address: str, key: PublicKey, prove: bool
    ) -> UpstreamConnection:
        clock = self._issue_clock
        issued = clock.offset(time.monotonic(), time.time())
        try:
            return await self._connect_once(host_id, address, key, prove)
        except ConnectFailed as failed:
            stale = refused_as_stale(failed.verdict)
            if not stale or not clock.doubted(issued, time.monotonic(), time.time()):
                raise
        return await self._connect_once(host_id, address, key, prove)

    async def _connect_once(
        self, host_id: str, text: str, key: PublicKey, prove: bool
    ) -> UpstreamConnection:
        challenge = None
        try:
            address = parse_address(text)
            if prove:
                challenge = Challenge(
                    nonce=os.urandom(NONCE_BYTES),
                    gateway_id=self._gateway,
                    cluster_id=self._cluster,
                    host_id=host_id,
                    address=text,
                    key=key,
                    issued_ms=self._issue_clock.now_ms(time.monotonic(), time.time()),
                )
            async with asyncio.timeout(self._connect_timeout):
                endpoint = (await self._resolve(address))[0]
                tls = self._tls_context() if address.scheme == "https" else None
                proven: asyncio.Future[Verdict] = self.loop.create_future()
                transport, connection = await self.loop.create_connection(
                    lambda: self._connection(challenge, proven),
                    endpoint.ip,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=address.host if tls else None,
                )
        except AddressRefused as refused:
            raise ConnectFailed(Verdict(Proof.ADDRESS_REFUSED, refused.reason)) from None
        except TimeoutError:
            raise ConnectFailed(Verdict(Proof.TIMEOUT, "no connection in time")) from None
        except ssl.SSLError as error:
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, f"TLS: {error.reason}")) from None
        except OSError as error:
            detail = os.strerror(error.errno) if error.errno and error.errno > 0 else "no address"
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, detail)) from None
        if self._is_own(transport, endpoint):
            transport.abort()
            detail = f"port {endpoint.port} is a gateway's own"
            raise ConnectFailed(Verdict(Proof.ADDRESS_REFUSED, detail))
        try:
            async with asyncio.timeout(self._challenge_timeout):
                verdict = await proven
        except TimeoutError:
            transport.abort()
            detail = "no answer to the challenge in time"
            raise ConnectFailed(Verdict(Proof.TIMEOUT, detail)) from None
        except asyncio.CancelledError:
            transport.abort()
            raise
        if not verdict.ok:
            raise ConnectFailed(verdict)
        return connection

    def _connection(
        self, challenge: Challenge | None, proven: "asyncio.Future[Verdict]"
    ) -> UpstreamConnection:
        def on_proof(_: UpstreamConnection, verdict: Verdict) -> None:
            if not proven.done():
                proven.set_result(verdict)

        return UpstreamConnection(
            self.path, self.loop, self.deadlines, self._bounds, challenge, on_proof
        )

    async def _connect_unix(self, path: str) -> UpstreamConnection:
        proven: asyncio.Future[Verdict] = self.loop.create_future()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self.loop.create_unix_connection(
                    lambda: self._connection(None, proven), path
                )
        except (OSError, TimeoutError):
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, "the API does not answer")) from None
        return connection

    async def _resolve(self, address: Address) -> tuple[Endpoint, ...]:
        resolved: list[str] = []
        if address.ip is None:
            found = await self.loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            resolved = [str(entry[4][0]) for entry in found]
        return endpoints(address, resolved, self._networks, self.own)

    def _is_own(self, transport: asyncio.BaseTransport, endpoint: Endpoint) -> bool:
        """Whether we reached a listener of ours that is bound to every address of this machine."""
        if not any(
            port == endpoint.port and ipaddress.ip_address(ip).is_unspecified
            for ip, port in self.own
        ):
            return False
        here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        return bool(here and there and here[0] == there[0])

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(
                cafile=None if self._tls_ca is None else str(self._tls_ca)
            )
        return self._tls
