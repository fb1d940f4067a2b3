"""Two connections that carry each other's bytes unread, once nothing is left to understand.

Owns the end of such a pair: a half-close goes on to the other side while the opposite direction
continues, a reset goes on as a reset. Back-pressure is the transports' own.
"""

import asyncio
import socket
import struct
from collections.abc import Callable


class TunnelEnd(asyncio.Protocol):
    """One end: what its `transport` brings goes to its `peer`, and the reverse."""

    peer: "TunnelEnd"

    def __init__(
        self,
        transport: asyncio.Transport,
        on_lost: Callable[[], None],
        on_bytes: Callable[[], None],
    ) -> None:
        self.transport = transport
        self._on_lost = on_lost
        self._on_bytes = on_bytes
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self._on_bytes()
        self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.peer.ended:
            self.transport.close()
            self.peer.transport.close()
        else:
            self.peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()
        if not (self.ended and self.peer.ended):
            reset(self.peer.transport)


def reset(transport: asyncio.Transport) -> None:
    """End a connection so that the other side knows it for a failure: with a RST, not a FIN."""
    if not transport.is_closing():
        linger_not = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger_not
        )
    transport.abort()


def join(
    first: asyncio.Transport,
    second: asyncio.Transport,
    on_first_lost: Callable[[], None],
    on_bytes: Callable[[], None],
    *,
    first_ended: bool = False,
) -> None:
    """From now on these two are a tunnel; `first_ended` when the first's half-close came before.

    `on_bytes` is called whenever either brings something: how long nothing may is the caller's.
    Reading that was paused is still paused. Bytes that wait are best written after this, so that
    the tunnel hears of a full buffer.
    """
    one = TunnelEnd(first, on_first_lost, on_bytes)
    other = TunnelEnd(second, lambda: None, on_bytes)
    one.peer, other.peer = other, one
    one.ended = first_ended
    first.set_protocol(one)
    second.set_protocol(other)
