"""What the connections of a process have to write, at once or all together at the end of a turn.

Owns when bytes go to the socket. A peer that is asleep is woken by the first write of a turn and
awake for the others, if they follow at once; written one by one, each between the work for two
requests, every write may pay for waking somebody. What is written is the connections' decision.
"""

import asyncio
from typing import Any


class Turn:
    """The outlets that have something to write when the loop has worked off what was read."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Outlet] = []

    def add(self, outlet: "Outlet") -> None:
        """Have it flushed at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self.end)
        self._waiting.append(outlet)

    def end(self) -> None:
        """Flush them all, now. Callbacks that had waited before are run before this one, so those
        that take long do it first: else each request would wait for them.
        """
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for outlet in waiting:
                try:
                    outlet.flush()
                except Exception as error:  # of this connection alone
                    self._loop.call_exception_handler(
                        {"message": "a connection cannot be written to", "exception": error}
                    )
                    outlet.abort()


class Outlet:
    """A transport (asyncio.Transport) with `post` besides, which may be a moment late.

    Whatever else is asked of it happens after what was posted, as if that had been written.
    """

    __slots__ = ("_posted", "_transport", "_turn")

    def __init__(self, transport: asyncio.Transport, turn: Turn) -> None:
        self._transport = transport
        self._turn = turn
        self._posted = b""

    def post(self, data: bytes) -> None:
        """Write a few KiB at the end of this turn of the loop at the latest."""
        if self._posted:
            self._posted += data
        else:
            self._posted = data
            self._turn.add(self)

    def flush(self) -> None:
        """Write what was posted; nothing of it when the connection has ended meanwhile."""
        data = self._posted
        if data:
            self._posted = b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def write(self, data: bytes) -> None:
        if self._posted:
            self.flush()
        self._transport.write(data)

    def writelines(self, data: tuple[bytes, ...]) -> None:
        if self._posted:
            self.flush()
        self._transport.writelines(data)

    def write_eof(self) -> None:
        if self._posted:
            self.flush()
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def close(self) -> None:
        if self._posted:
            self.flush()
        self._transport.close()

    def abort(self) -> None:
        if self._posted:
            self.flush()
        self._transport.abort()

    def release(self, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Give the transport to another protocol; nothing may be asked of this one any more."""
        if self._posted:
            self.flush()
        self._transport.set_protocol(protocol)
        return self._transport

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return len(self._posted) + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)
