"""The channel between control process and worker: messages over one end of a socketpair.

Owns writing without ever waiting for the other side, how much may pile up for it, and that
whoever is `behind` gets nothing more. What messages say is messages.py's.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

from smartgw.processes.messages import BadMessage, Frames, Message, encode

HIGH_WATER = 256 << 10
"""Bytes that wait for the other side before `room` does."""
MOST_WAITING = 8 << 20
"""Bytes that wait for a side that does not read, before it is given up."""


class Channel(asyncio.Protocol):
    """One end. `on_message` is called for each message, `on_closed` once."""

    def __init__(
        self, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._room.set()

    @classmethod
    async def open(
        cls,
        end: socket.socket,
        on_message: Callable[[Message], None],
        on_closed: Callable[[], None],
    ) -> "Channel":
        """Take over one end of a socketpair, which is closed when that fails."""
        loop = asyncio.get_running_loop()
        try:
            end.setblocking(False)
            _, channel = await loop.create_unix_connection(
                lambda: cls(on_message, on_closed), sock=end
            )
        except BaseException:
            end.close()
            raise
        return channel

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; lost when the channel is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(encode(message))
        if transport.get_write_buffer_size() > MOST_WAITING:
            transport.abort()

    async def room(self) -> None:
        """Wait until the other side has taken most of what was sent, or is gone."""
        await self._room.wait()

    def behind(self, so: bool) -> None:
        """Read no more for now, so that the other side finds no `room`; or go on."""
        if self._transport is not None and not self._transport.is_closing():
            if so:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """Close it, what was sent first."""
        if self._transport is not None:
            self._transport.close()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except BadMessage:
            assert self._transport is not None
            self._transport.abort()
            return
        for message in messages:
            self._on_message(message)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        self._on_closed()
