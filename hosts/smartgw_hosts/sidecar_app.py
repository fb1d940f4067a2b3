"""The sidecar's connections to the app: one request and its answer at a time, kept for the next.

Owns what of an answer is understood (strictly, http1.py) and when a connection may serve again.
Never sends a request twice. What the client gets of the answer is `sidecar_http.py`'s to decide.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

from smartgw_hosts.chunked import ChunkedBody
from smartgw_hosts.guard import FLAG, OWNER_FIELD
from smartgw_hosts.http1 import (
    CHUNKED,
    DROP,
    PASS,
    UNTIL_CLOSE,
    Bounds,
    FieldNames,
    MessageRefused,
    RequestHead,
    ResponseHead,
    parse_response,
)

CONNECT_TIMEOUT: Final = 5.0
"""Seconds for a TCP connection to the app, which is near."""
IDLE_TIMEOUT: Final = 1.5
"""Seconds for which an unused connection is kept: less than any common app server does, because a
request that meets its closing is lost (a new connection to a near app costs next to nothing)."""
IDLE_CONNECTIONS: Final = 64
HEADS: Final = 16
"""Heads of an answer that are read at once, so that a flood of interim ones stops nobody else."""
BUFFER: Final = 65_536
"""Bytes that wait to be written before reading from the other side stops."""

BOUNDS: Final = Bounds(head=65_536, fields=200, field_line=32_768, target=16_384)
"""Twice the gateway's, which adds fields of its own to a head that it has let through."""

_log = logging.getLogger(__name__)
_P = TypeVar("_P", bound=asyncio.Protocol)

_DROPPED = frozenset((b"keep-alive", b"proxy-connection", OWNER_FIELD, FLAG[0]))


def field_names() -> FieldNames:
    """The kinds of field for a sidecar: all pass but those of one connection (RFC 9110 7.6.1), and
    what the guard says, which no app does."""
    return FieldNames(lambda name: DROP if name in _DROPPED else PASS)


NAMES: Final = field_names()


class Body(Protocol):
    """Finds the end of a body; `trailers` are there once it is `done`."""

    done: bool
    trailers: list[bytes]

    def feed_some(self, data: bytes, start: int = 0) -> tuple[bytes, int]: ...


class CountedBody:
    """A body of a known length, or with `UNTIL_CLOSE` one that only its connection ends."""

    __slots__ = ("_left", "done", "trailers")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.trailers: list[bytes] = []

    def feed_some(self, data: bytes, start: int = 0) -> tuple[bytes, int]:
        """Return the payload from `start` on and the place behind it."""
        if self._left == UNTIL_CLOSE:
            return data[start:], len(data)
        payload = data[start : start + self._left]
        self._left -= len(payload)
        self.done = self._left == 0
        return payload, start + len(payload)


def body_of(length: int) -> Body:
    """The reader of a body framed as `RequestHead.length` and `ResponseHead.length` say."""
    return ChunkedBody(BOUNDS) if length == CHUNKED else CountedBody(length)


class Client(Protocol):
    """What an answer is given to, piece by piece."""

    def on_head(self, raw: bytes, response: ResponseHead) -> None: ...
    def on_body(self, payload: bytes) -> None: ...
    def on_end(self, trailers: list[bytes]) -> None: ...
    def on_switch(self, raw: bytes, response: ResponseHead, early: bytes) -> None: ...
    def on_fault(self, error: str, detail: str) -> None: ...
    def on_app_full(self, full: bool) -> None: ...


class AppConnection(asyncio.Protocol):
    """One connection to the app. Between `ask` and `release` it serves one client.

    Attributes:
        reusable: the last answer is over and left nothing behind.
        idle_since: monotonic seconds.
    """

    transport: asyncio.Transport

    def __init__(self, pool: "AppPool") -> None:
        self._pool = pool
        self._client: Client | None = None
        self._request: RequestHead | None = None
        self._input = b""
        self._at = 0  # how much of it has been read
        self._later = False  # there is more to read, in the loop's next turn
        self._held = False  # the client takes no more for now
        self._body: Body | None = None
        self._until_close = False
        self._keep_alive = False
        self.reusable = False
        self.idle_since = 0.0

    def ask(self, client: Client, request: RequestHead, head: bytes) -> None:
        """Send the head; its body follows through `transport`, the answer goes to `client`."""
        self._client = client
        self._request = request
        self._body = None
        self._until_close = False
        self.reusable = False
        self.transport.write(head)

    def release(self, *, clean: bool) -> None:
        """The client needs no more. Keep the connection if it is `clean`: the whole request was
        given to it, and the app has taken and answered it; end it otherwise."""
        self._client = None
        taken = not self.transport.is_closing() and self.transport.get_write_buffer_size() == 0
        if clean and self.reusable and taken:
            self.hold(False)
            self._pool.keep(self)
        else:
            self.transport.abort()

    def hold(self, held: bool) -> None:
        """Read no more of the answer for now, or go on."""
        self._held = held
        if held or self._later:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._client is None or self.reusable:
            # An answer that nobody asked for would be taken for the next request's.
            self.reusable = False
            if self._client is None:
                self.transport.abort()
            return
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        if not self._later:
            self._read()

    def _read(self) -> None:
        """Read what has come, or so much of it that others wait no longer than a moment."""
        heads = 0
        try:
            while self._input and self._client is not None and not self.reusable:
                if heads == HEADS or (self._body is not None and not self._read_body()):
                    self._later = True
                    self.hold(self._held)
                    asyncio.get_running_loop().call_soon(self._read_on)
                    break
                if self._body is None:
                    heads += 1
                    if not self._read_head():
                        break
        except MessageRefused as refused:
            self._fail("app_malformed", f"the app's answer was refused: {refused.reason}")
        if self.reusable and self._input:
            self.reusable = False
            self._took(len(self._input))

    def _read_on(self) -> None:
        if self._later:
            self._later = False
            if self._client is not None:
                self.hold(self._held)
                self._read()

    def _took(self, end: int) -> None:
        """What stands before `end` has been read; no input is left when all has been."""
        self._at = end
        if end == len(self._input):
            self._input, self._at = b"", 0

    def _read_head(self) -> bool:
        end = self._input.find(b"\r\n\r\n", self._at)
        if (end if end >= 0 else len(self._input)) - self._at > BOUNDS.head:
            raise MessageRefused(502, f"the head is longer than {BOUNDS.head} bytes")
        if end < 0:
            if not b"HTTP/1.".startswith(self._input[self._at : self._at + 7]):
                raise MessageRefused(502, "the answer does not begin as HTTP/1")
            return False
        assert self._client is not None
        assert self._request is not None
        raw = self._input[self._at : end]
        self._took(end + 4)
        response = parse_response(raw, NAMES, BOUNDS, self._request.method)
        if response.status == 101:
            if not self._request.upgrade or not response.upgrade:
                raise MessageRefused(502, "the app switches protocols, which was not asked for")
            client, self._client = self._client, None
            client.on_switch(raw, response, self._input[self._at :])
            return False
        if response.status >= 200:
            self._body = body_of(response.length)
            self._until_close = response.length == UNTIL_CLOSE
            self._keep_alive = response.keep_alive and self._request.minor == 1
        self._client.on_head(raw, response)
        if self._body is not None and self._body.done:
            self._end()
        return True

    def _read_body(self) -> bool:
        assert self._client is not None
        assert self._body is not None
        body = self._body
        payload, end = body.feed_some(self._input, self._at)
        self._took(end)
        if payload:
            self._client.on_body(payload)
        if body.done:
            self._end()
        return body.done or not self._input

    def _end(self) -> None:
        assert self._client is not None
        assert self._body is not None
        self.reusable = self._keep_alive and not self._input
        client = self._client
        if not self.reusable:
            self._client = None  # what the app may still say is nobody's
        client.on_end(self._body.trailers)

    def _fail(self, error: str, detail: str) -> None:
        client, self._client = self._client, None
        self.reusable = False
        self.transport.abort()
        if client is not None:
            client.on_fault(error, detail)

    def eof_received(self) -> None:
        self._closed(None)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # When a write fails before all was read, an early answer (413) may still lie there.
        if exc is not None and self._client is not None and (left := _unread(self.transport)):
            self.data_received(left)
        while self._later:
            self._read_on()
        self._closed(exc)
        self._pool.lost(self)

    def _closed(self, exc: Exception | None) -> None:
        client, self._client = self._client, None
        self.reusable = False
        if client is None:
            return
        if self._until_close and exc is None:
            client.on_end([])
        else:
            client.on_fault("app_closed", "the app ended the connection before its answer was over")

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.on_app_full(True)

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.on_app_full(False)


def _unread(transport: asyncio.Transport) -> bytes:
    """What has arrived on a connection that can no longer be written to."""
    parts: list[bytes] = []
    try:
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        with socket.socket(fileno=descriptor) as twin:
            twin.setblocking(False)
            while len(parts) < 4 and (part := twin.recv(BUFFER)):
                parts.append(part)
    except OSError:
        pass
    return b"".join(parts)


class AppPool:
    """The connections to the app at `host`, `port`: all of them, and those that wait for work."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._open: set[AppConnection] = set()
        self._idle: list[AppConnection] = []
        self._closed = False
        self._down = False  # the last attempt to connect has failed

    def take(self) -> AppConnection | None:
        """A kept connection that is surely alive as far as can be known, the youngest first."""
        self.prune()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> AppConnection:
        """A new connection. Raises OSError, TimeoutError among them."""
        _, connection = await self.dial(lambda: AppConnection(self))
        return connection

    async def dial(self, make: Callable[[], _P]) -> tuple[asyncio.Transport, _P]:
        """Connect whatever `make` makes; the log has a line when the app goes and when it is back.

        Raises OSError, TimeoutError among them.
        """
        loop = asyncio.get_running_loop()
        host = f"[{self.host}]" if ":" in self.host else self.host
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                made = await loop.create_connection(make, self.host, self.port)
        except OSError as error:
            if not self._down:
                self._down = True
                refused = isinstance(error, ConnectionRefusedError)
                what = "refuses connections" if refused else "cannot be reached"
                fix = "start it or correct --to"
                _log.warning("app at http://%s:%d %s; %s", host, self.port, what, fix)
            raise
        if self._down:
            self._down = False
            _log.info("app at http://%s:%d is back", host, self.port)
        return made

    def keep(self, connection: AppConnection) -> None:
        if self._closed or len(self._idle) >= IDLE_CONNECTIONS:
            connection.transport.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def prune(self) -> None:
        """End what has waited too long; the oldest stand first."""
        limit = time.monotonic() - IDLE_TIMEOUT
        while self._idle and self._idle[0].idle_since < limit:
            self._idle.pop(0).transport.abort()

    def opened(self, connection: AppConnection) -> None:
        self._open.add(connection)

    def lost(self, connection: AppConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def forget(self, connection: AppConnection) -> None:
        """It is a tunnel's from now on."""
        self._open.discard(connection)

    def close(self) -> None:
        self._closed = True
        for connection in tuple(self._open):
            connection.transport.abort()
