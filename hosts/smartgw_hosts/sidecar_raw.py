"""The raw sidecar's connections: the challenge that opens one is answered, all else is relayed.

Owns what counts as that challenge: the very first bytes of a connection, exactly its request line
and a head and body that are surely framed. Everything after it, and everything that is no
challenge, reaches the app unparsed.
"""

import asyncio
import time
from typing import Final, Literal, NamedTuple, cast

from smartgw_hosts import challenge
from smartgw_hosts.http1 import Bounds, MessageRefused, RequestHead, parse_request
from smartgw_hosts.sidecar_answers import answer_challenge, own_answer
from smartgw_hosts.sidecar_app import BUFFER, NAMES
from smartgw_hosts.sidecar_http import HEAD_TIMEOUT, IDLE_TIMEOUT, TUNNEL_TIMEOUT, Registry
from smartgw_hosts.tunnel import join, reset

_OPENING: Final = b"POST " + challenge.PATH + b" HTTP/1.1\r\n"
_BOUNDS: Final = Bounds(head=8_192)


class Opening(NamedTuple):
    """A challenge as it came; `size` is how many bytes of the connection it took."""

    raw_head: bytes
    request: RequestHead
    body: bytes
    size: int


def opening_challenge(data: bytes) -> Opening | Literal[False] | None:
    """The challenge that `data`, the first bytes of a connection, begins with.

    None when they may still become one, False when they never will.
    """
    if not data.startswith(_OPENING):
        return None if _OPENING.startswith(data) else False
    end = data.find(b"\r\n\r\n")
    if not 0 <= end <= _BOUNDS.head:
        return None if len(data) <= _BOUNDS.head else False
    try:
        request = parse_request(data[:end], NAMES, _BOUNDS)
    except MessageRefused:
        return False
    if not 0 <= request.length <= challenge.BODY_BYTES:
        return False
    size = end + 4 + request.length
    if len(data) < size:
        return None
    return Opening(data[:end], request, data[end + 4 : size], size)


class RawConnection(asyncio.Protocol):
    """One connection from a gateway, until it has become a tunnel to the app."""

    transport: asyncio.Transport

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.deadline = time.monotonic() + HEAD_TIMEOUT
        self._input = b""
        self._proven = False  # it opened with a challenge that was answered
        self._judged = False  # whether the connection opens with a challenge
        self._ended = False  # the gateway sends no more
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER)
        if not self._registry.opened(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._registry.lost(self)

    def expire(self) -> None:
        self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    def close_if_idle(self) -> None:
        if self._task is None and not self._input:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._judged and not self._input:
            self.deadline = time.monotonic() + HEAD_TIMEOUT
        self._input += data
        if not self._judged:
            opening = opening_challenge(self._input)
            if opening is None:
                return
            self._judged = True
            if opening:
                self._input = self._input[opening.size :]
                self._answer(opening)
        if self._input and not self.transport.is_closing():
            self._relay()

    def eof_received(self) -> bool:
        self._ended = True
        if self._input:
            self._relay()  # a challenge that ends early is none
        return bool(self._input)

    def _answer(self, opening: Opening) -> None:
        status, answer = answer_challenge(
            self._registry.responder, opening.raw_head, opening.request, opening.body
        )
        self._proven = status == 200 and self._registry.begun(self, proven=True)
        last = self._registry.stopping or not opening.request.keep_alive
        self.transport.write(own_answer(status, answer, *([b"Connection: close"] if last else [])))
        self.deadline = time.monotonic() + IDLE_TIMEOUT
        if last:
            self.transport.close()

    def _relay(self) -> None:
        if self._task is None:
            if not self._proven and not self._registry.begun(self, proven=False):
                reset(self.transport)
                return
            self._tunnelled()
            self.transport.pause_reading()
            self._task = asyncio.create_task(self._connect())

    def _tunnelled(self) -> None:
        self.deadline = time.monotonic() + TUNNEL_TIMEOUT

    async def _connect(self) -> None:
        try:
            upstream, _ = await self._registry.pool.dial(asyncio.Protocol)
        except OSError:
            # What was asked is lost. A reset says so in a protocol that this does not know.
            reset(self.transport)
            return
        if self.transport.is_closing():
            upstream.abort()
            return
        upstream.set_write_buffer_limits(high=BUFFER)
        join(
            self.transport,
            upstream,
            lambda: self._registry.lost(self),
            self._tunnelled,
            first_ended=self._ended,
        )
        self.transport.resume_reading()
        upstream.write(self._input)
        self._input = b""
        if self._ended:
            upstream.write_eof()
