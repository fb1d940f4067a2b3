"""The sidecar: an app in any language becomes a host that can prove its key (contract 12.4).

Owns the listening socket, how many connections there may be, how long each may wait, and the order
of a graceful stop. What happens on a connection is `sidecar_http.py`'s, or `sidecar_raw.py`'s.
"""

import asyncio
import contextlib
import logging
import socket
import time
from types import TracebackType
from typing import Final, Self

from smartgw_hosts.challenge import Responder
from smartgw_hosts.places import Places
from smartgw_hosts.sidecar_app import AppPool
from smartgw_hosts.sidecar_http import Connection, HttpConnection
from smartgw_hosts.sidecar_raw import RawConnection
from smartgw_hosts.write_guard import WriteGuard

CONNECTIONS: Final = 4096
"""Connections at once; one more is reset (places.py says which). Each may hold one to the app."""
GRACE: Final = 20.0
"""Seconds for what is in flight when the sidecar stops (contract 11.1)."""
SETTLE: Final = 0.5
"""Seconds for gateways to hear the host's `leave`, before their kept connections end."""
BACKLOG: Final = 1024

_log = logging.getLogger(__name__)


class Sidecar:
    """Listens on `listen` in front of the app at `to`, both (host, port).

    `async with Sidecar(...)`, or `start()` and `stop()`. So that gateways leave before the
    connections do, leave the HostAgent's block first:
    `async with Sidecar(agent.responder, ...), agent: ...`. `guard`: what refuses writes for apps of
    other clusters (contract 4.8). `raw` relays bytes unparsed, and unguarded, after the challenge
    that opens a connection.
    """

    def __init__(
        self,
        responder: Responder,
        listen: tuple[str, int],
        to: tuple[str, int],
        raw: bool = False,
        *,
        connections: int = CONNECTIONS,
        guard: WriteGuard | None = None,
    ) -> None:
        self.responder = responder
        # Of bytes that are relayed unparsed nobody knows which are a write.
        self.guard = None if raw else guard
        self.pool = AppPool(*to)
        self.stopping = False
        self._listen = listen
        self._raw = raw
        self._places: Places[Connection] = Places(connections)
        self._empty = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on, also when asked for port 0."""
        assert self._listener is not None, "not started"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Connections from gateways now."""
        return len(self._places)

    async def start(self) -> None:
        """Begin to listen. Raises OSError when the address cannot be listened on."""
        kind = RawConnection if self._raw else HttpConnection
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: kind(self), *self._listen, backlog=BACKLOG
        )
        for listening in self._listener.sockets:
            # Accepted sockets inherit it: a gateway that vanished without a word is noticed.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sweeper = asyncio.create_task(self._sweep(), name="sidecar-sweep")

    async def stop(self, grace: float = GRACE) -> None:
        """Accept no more, finish what is in flight within `grace` seconds, cut the rest."""
        self.stopping = True
        if self._listener is not None:
            self._listener.close()
        try:
            async with asyncio.timeout(grace):
                if self._places:
                    await asyncio.sleep(SETTLE)
                while self._places:
                    for connection in self._places.all():
                        connection.close_if_idle()
                    self._empty.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._empty.wait(), 0.1)
        except TimeoutError:
            pass
        if self._places:
            _log.warning("%d connections were cut after %g s", len(self._places), grace)
        for connection in self._places.all():
            connection.abort()
        self.pool.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.sleep(0)  # the transports' last callbacks

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()

    def opened(self, connection: Connection) -> bool:
        peer = connection.transport.get_extra_info("peername")
        has_place, gone = self._places.enter(connection, peer[0] if peer else "")
        if gone is not None:
            gone.abort()
        return has_place

    def begun(self, connection: Connection, *, proven: bool) -> bool:
        return self._places.opened(connection, proven=proven)

    def lost(self, connection: Connection) -> None:
        self._places.leave(connection)
        if not self._places:
            self._empty.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            for connection in self._places.all():
                if connection.deadline <= now:
                    connection.expire()
            self.pool.prune()
