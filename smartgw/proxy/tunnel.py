"""Two connections that relay bytes after a 101, with back-pressure and half-close (contract 3.6).

Owns a tunnel's life: each direction ends by itself (on plain TCP; asyncio's TLS cannot half-close),
the tunnel when both have ended, when one side breaks, or after its idle time.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.websocket import GOING_AWAY, FrameTracker


class TunnelEnd(asyncio.Protocol):
    """One side of a tunnel; what comes in here goes out at `other`."""

    __slots__ = ("_on_lost", "ended", "lost", "other", "transport", "tunnel")

    def __init__(self, tunnel: "Tunnel", on_lost: Callable[[], None]) -> None:
        self.tunnel = tunnel
        self.transport: asyncio.Transport
        self.other: TunnelEnd
        self.ended = False
        self.lost = False
        self._on_lost = on_lost

    def data_received(self, data: bytes) -> None:
        self.tunnel.touch()
        self.other.send(data)

    def send(self, data: bytes) -> None:
        """Write to this side, unless it is gone."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        other = self.other
        if other.ended:
            self.tunnel.close()
            return False
        if not other.transport.is_closing() and other.transport.can_write_eof():
            other.transport.write_eof()
            return True
        self.tunnel.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._on_lost()
        self.tunnel.close()

    def pause_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()
        self.tunnel.touch()


class WebSocketUp(TunnelEnd):
    """The app's side of a WebSocket, which can be told to go away between two of its frames."""

    __slots__ = ("_frames", "_leaving")

    def __init__(self, tunnel: "Tunnel", on_lost: Callable[[], None]) -> None:
        super().__init__(tunnel, on_lost)
        self._frames = FrameTracker()
        self._leaving = False

    def data_received(self, data: bytes) -> None:
        self.tunnel.touch()
        if self._leaving:
            self._leave(data)
        else:
            self._frames.feed(data)
            self.other.send(data)

    def go_away(self) -> None:
        """Send the client a close frame (1001) as soon as the frame that is on its way is whole.

        Its answer goes to the app as it is; what the app still sends reaches nobody.
        """
        if not self._leaving:
            self._leaving = True
            self._leave(b"")

    def _leave(self, data: bytes) -> None:
        if end := self._frames.feed_frame(data):
            self.other.send(data[:end])
        # The app may have said goodbye by itself; nothing follows a close frame.
        if self._frames.at_boundary and not self._frames.closing:
            self.other.send(GOING_AWAY)
            self._frames.closing = True


class Tunnel:
    """A pair of ends; `deadline` moves with every byte."""

    __slots__ = ("_deadlines", "_idle", "_loop", "_on_closed", "deadline", "down", "up")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        idle: float,
        on_lost: tuple[Callable[[], None], Callable[[], None]],
        on_closed: Callable[["Tunnel"], None],
        *,
        websocket: bool,
    ) -> None:
        """`on_lost`: called when the downstream, the upstream connection has ended."""
        self._loop = loop
        self._deadlines = deadlines
        self._idle = idle
        self._on_closed: Callable[[Tunnel], None] | None = on_closed
        self.down = TunnelEnd(self, on_lost[0])
        self.up = WebSocketUp(self, on_lost[1]) if websocket else TunnelEnd(self, on_lost[1])
        self.down.other, self.up.other = self.up, self.down
        self.deadline = loop.time() + idle

    def join(self, down: asyncio.BaseTransport, up: asyncio.BaseTransport) -> None:
        """Relay between the two transports from now on."""
        self.down.transport = cast("asyncio.Transport", down)
        self.up.transport = cast("asyncio.Transport", up)
        self._deadlines.add(self)

    def touch(self) -> None:
        """A byte has moved."""
        self.deadline = self._loop.time() + self._idle

    def go_away(self) -> None:
        """Have a WebSocket end in order; of another protocol nothing is known."""
        if isinstance(self.up, WebSocketUp):
            self.up.go_away()

    def close(self) -> None:
        """End both sides once what was written has left; not later than the idle time."""
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)
        for end in (self.down, self.up):
            if not end.lost:
                end.transport.close()
        if self.down.lost and self.up.lost:
            self._deadlines.discard(self)

    def expire(self, now: float) -> None:
        """Nothing has moved for the idle time: what could not be written is lost."""
        self.deadline = now + self._idle
        self.close()
        for end in (self.down, self.up):
            if not end.lost:
                end.transport.abort()
