"""A connection of which a load balancer first tells who the client is (contract 3.5, 11.1).

Owns whose PROXY header is taken and when the wait for it ends; then the connection becomes an
ordinary one of that client. The header's form is proxy_protocol.py's.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from smartgw.proxy import proxy_protocol
from smartgw.proxy.downstream import Http1Downstream

if TYPE_CHECKING:
    from smartgw.proxy.listener import Listening


class ProxyPreface(asyncio.Protocol):
    """Stands before an `Http1Downstream` on listeners with `listen.proxy_protocol`."""

    __slots__ = ("_buffer", "_listening", "_scheme", "deadline", "transport")

    transport: asyncio.Transport

    def __init__(self, listening: "Listening", scheme: bytes) -> None:
        self._listening = listening
        self._scheme = scheme
        self._buffer = b""
        self.deadline = listening.loop.time() + listening.deadlines.head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        peer = Http1Downstream.address_of(transport)
        if self._listening.forwarding.trusts(peer) and self._listening.has_place():
            self._listening.prefaces.add(self)
            self._listening.watch.add(self)
        else:
            # Anyone else could claim any address. There is nobody to answer in HTTP.
            self._listening.path.counters.connections_refused += 1
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        try:
            header = proxy_protocol.read(data)
        except proxy_protocol.ProxyHeaderRefused:
            self._listening.path.counters.connections_refused += 1
            self.transport.abort()
            return
        if header is None:
            self._buffer = data
            return
        self._dismiss()
        # Of whom nothing is told, the balancer's address is all there is, but not its word.
        stranger = header.client is None and not header.local
        downstream = Http1Downstream(self._listening, self._scheme, header.client, stranger)
        self.transport.set_protocol(downstream)
        downstream.connection_made(self.transport)
        if header.size < len(data):
            downstream.data_received(data[header.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._dismiss()

    def _dismiss(self) -> None:
        self._listening.watch.discard(self)
        self._listening.prefaces.discard(self)

    def expire(self, now: float) -> None:
        """No header in time."""
        self._dismiss()
        self.transport.abort()
