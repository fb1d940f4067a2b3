"""Opening a connection: to a host, at an address that may be dialled and proven by its key
(2.1-2.5), or to a peer's gateway (4.5).

Owns resolution, the judgement of each host's address that is dialled, TLS to hosts, the deadlines
of an attempt and the challenge. Keeps no connection: pools.py and peers/links.py do.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.headers import bounds_on_link
from smartgw.proxy.upstream import Marking, Opening, UpstreamConnection
from smartgw_hosts.addresses import (
    Address,
    AddressRefused,
    Endpoint,
    endpoints,
    parse_address,
)
from smartgw_hosts.challenge import (
    NONCE_BYTES,
    Challenge,
    Proof,
    Verdict,
    judge,
    refused_as_stale,
    request,
)
from smartgw_hosts.clusters import Gateway
from smartgw_hosts.http1 import Bounds
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.skew import IssueClock

if TYPE_CHECKING:
    from smartgw.config import Settings
    from smartgw.proxy.path import Path

UNIX = "unix:"
"""Scheme of the gateway's own API, which is reached without proof over a socket of its own."""


class ConnectFailed(Exception):
    """No proven connection; nothing of a request was sent."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


class Challenging:
    """The opening of a connection to a host: see `smartgw.proxy.upstream.Opening`."""

    def __init__(self, challenge: Challenge) -> None:
        self._challenge = challenge

    def question(self, transport: asyncio.Transport) -> bytes:
        return request(self._challenge)

    def judge(self, status: int, body: bytes) -> Verdict:
        return judge(self._challenge, status, body)


Proven = asyncio.Future[Verdict]
Places = frozenset[tuple[str, int]]
"""IP addresses and ports."""


class Dialler:
    """The one way to open a connection to a host, for requests and for verifications."""

    def __init__(
        self,
        settings: "Settings",
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        bounds: Bounds,
    ) -> None:
        self.path: Path
        self._own: Places = frozenset()
        self._gateways: Places = frozenset()
        self._loop = loop
        self._deadlines = deadlines
        self._bounds = bounds
        self._link_bounds = bounds_on_link(bounds)
        self.configure(settings)

    def configure(self, settings: "Settings") -> None:
        """Put settings in force for the connections that are opened from now on."""
        self._connect_timeout = settings.upstream.connect_timeout
        self._challenge_timeout = settings.upstream.challenge_timeout
        self._networks = settings.host_networks
        self._gateway = settings.gateway
        self._cluster = settings.cluster
        self._issue_clock = IssueClock()
        self._tls_ca = settings.upstream.tls_ca
        self._tls: ssl.SSLContext | None = None

    def avoid(self, own: Places, listed: Places) -> None:
        """Dial no host where a listener of ours is, or a gateway that the directory lists."""
        self._own, self._gateways = own, own | listed

    async def dial(
        self, host_id: str, address: str, key: PublicKey, prove: bool
    ) -> UpstreamConnection:
        """Open a connection, proven by a challenge if `prove`.

        Raises:
            ConnectFailed: nothing was sent but a challenge.
        """
        self.path.turn.end()  # to connect takes long enough for others to wait for
        clock = self._issue_clock
        issued = clock.offset(time.monotonic(), time.time())
        try:
            return await self._dial_once(host_id, address, key, prove)
        except ConnectFailed as failed:
            stale = refused_as_stale(failed.verdict)
            if not stale or not clock.doubted(issued, time.monotonic(), time.time()):
                raise
        return await self._dial_once(host_id, address, key, prove)

    async def dial_unix(self, path: str) -> UpstreamConnection:
        """Open a connection to the gateway's own API. Raises ConnectFailed."""
        proven: Proven = self._loop.create_future()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await self._loop.create_unix_connection(
                    lambda: self._connection(None, proven), path
                )
        except (OSError, TimeoutError):
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, "the API does not answer")) from None
        return connection

    async def dial_gateway(
        self, gateway: Gateway, tls: ssl.SSLContext | None, opening: Opening, marking: Marking
    ) -> UpstreamConnection:
        """Open a link to a gateway that the directory names, proven by its opening.

        Raises ConnectFailed: no request was sent.
        """

        async def connect(proven: Proven) -> UpstreamConnection:
            _, connection = await self._loop.create_connection(
                lambda: self._connection(opening, proven, marking),
                gateway.host,
                gateway.port,
                ssl=tls,
            )
            return connection

        return await self._proven(connect)

    async def _dial_once(
        self, host_id: str, text: str, key: PublicKey, prove: bool
    ) -> UpstreamConnection:
        try:
            address = parse_address(text)
        except AddressRefused as refused:
            raise ConnectFailed(Verdict(Proof.ADDRESS_REFUSED, refused.reason)) from None
        opening = Challenging(self._challenge(host_id, text, key)) if prove else None
        return await self._proven(lambda proven: self._connect(address, opening, proven))

    async def _proven(
        self, connect: Callable[[Proven], Coroutine[Any, Any, UpstreamConnection]]
    ) -> UpstreamConnection:
        """Connect in time and await the proof in time; raise ConnectFailed for all that failed."""
        proven: Proven = self._loop.create_future()
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await connect(proven)
        except AddressRefused as refused:
            raise ConnectFailed(Verdict(Proof.ADDRESS_REFUSED, refused.reason)) from None
        except TimeoutError:
            raise ConnectFailed(Verdict(Proof.TIMEOUT, "no connection in time")) from None
        except ssl.SSLError as error:
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, f"TLS: {error.reason}")) from None
        except OSError as error:
            detail = os.strerror(error.errno) if error.errno and error.errno > 0 else "no address"
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, detail)) from None
        try:
            async with asyncio.timeout(self._challenge_timeout):
                verdict = await proven
        except TimeoutError:
            connection.transport.abort()
            detail = "no proof in time"
            raise ConnectFailed(Verdict(Proof.TIMEOUT, detail)) from None
        except asyncio.CancelledError:
            connection.transport.abort()
            raise
        if not verdict.ok:
            raise ConnectFailed(verdict)
        return connection

    async def _connect(
        self,
        address: Address,
        opening: Opening | None,
        proven: Proven,
    ) -> UpstreamConnection:
        """Try the addresses that may be dialled in the resolver's order; raise the last error."""
        found = await self._resolve(address)
        tls = self._tls_context() if address.scheme == "https" else None
        for place, endpoint in enumerate(found, 1):
            try:
                transport, connection = await self._loop.create_connection(
                    lambda: self._connection(opening, proven),
                    endpoint.ip,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=address.host if tls else None,
                )
            except OSError:
                if place == len(found):
                    raise
                continue
            if self._is_own(transport, endpoint):
                transport.abort()
                raise AddressRefused(f"port {endpoint.port} is a gateway's own")
            return connection
        raise AddressRefused("resolves to nothing")

    def _challenge(self, host_id: str, address: str, key: PublicKey) -> Challenge:
        return Challenge(
            nonce=os.urandom(NONCE_BYTES),
            gateway_id=self._gateway,
            cluster_id=self._cluster,
            host_id=host_id,
            address=address,
            key=key,
            issued_ms=self._issue_clock.now_ms(time.monotonic(), time.time()),
        )

    def _connection(
        self, opening: Opening | None, proven: Proven, marking: Marking | None = None
    ) -> UpstreamConnection:
        def on_proof(_: UpstreamConnection, verdict: Verdict) -> None:
            if not proven.done():
                proven.set_result(verdict)

        bounds = self._bounds if marking is None else self._link_bounds
        return UpstreamConnection(
            self.path, self._loop, self._deadlines, bounds, opening, on_proof, marking
        )

    async def _resolve(self, address: Address) -> tuple[Endpoint, ...]:
        resolved: list[str] = []
        if address.ip is None:
            found = await self._loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )
            resolved = [str(entry[4][0]) for entry in found]
        return endpoints(address, resolved, self._networks, self._gateways)

    def _is_own(self, transport: asyncio.BaseTransport, endpoint: Endpoint) -> bool:
        """Whether we reached a listener of ours that is bound to every address of this machine."""
        if not any(
            port == endpoint.port and ipaddress.ip_address(ip).is_unspecified
            for ip, port in self._own
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
