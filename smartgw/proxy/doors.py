"""The sockets on which a process accepts, and when it leaves newcomers to the other workers.

Owns that decision. All workers accept on the same sockets, and the kernel gives whoever is quick
all that wait: one can be full while the others have room. Who may stay is listener.py's.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_BACKLOG = 4_096
_ASIDE_SECONDS = 0.05
"""Long enough for a worker with room to take all that wait; when none has, all wait for it."""


def nearly_full(held: int, most: int) -> bool:
    """Say whether it is better that others take who comes; an eighth is kept for when none can."""
    return held >= most - most // 8


@dataclass(frozen=True, slots=True)
class _Door:
    socket: socket.socket
    make: Callable[[], asyncio.Protocol]
    tls: ssl.SSLContext | None
    handshake_seconds: float


class Doors:
    """Accepts on bound sockets, which stay the caller's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._doors: list[_Door] = []
        self._servers: list[asyncio.Server] = []
        self._returning: asyncio.TimerHandle | asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether new clients are taken, now or in a moment."""
        return bool(self._doors)

    async def add(
        self,
        sockets: Iterable[socket.socket],
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        """Accept on these as well; each connection gets a protocol of its own."""
        for sock in sockets:
            door = _Door(sock, make, tls, handshake_seconds)
            self._doors.append(door)
            if self._returning is None:
                await self._accept(door)

    def close(self) -> None:
        """Accept nobody any more. Who waits in the sockets' queues is for who else has them."""
        self._doors.clear()
        self._shut()
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None

    def step_aside(self) -> None:
        """Accept nobody for a moment, so that another worker does if it can."""
        if self._returning is None and self._doors:
            self._shut()
            self._returning = self._loop.call_later(_ASIDE_SECONDS, self._come_back)

    def _come_back(self) -> None:
        self._returning = self._loop.create_task(self._accept_all())

    async def _accept_all(self) -> None:
        try:
            for door in self._doors:
                await self._accept(door)
        except OSError:
            # No descriptor is free: when connections have ended there is.
            self._returning = None
            self.step_aside()
        else:
            self._returning = None

    async def _accept(self, door: _Door) -> None:
        sock = door.socket.dup()
        try:
            server = await self._loop.create_server(
                door.make,
                sock=sock,
                backlog=_BACKLOG,
                ssl=door.tls,
                ssl_handshake_timeout=None if door.tls is None else door.handshake_seconds,
            )
        except BaseException:
            sock.close()
            raise
        self._servers.append(server)

    def _shut(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
