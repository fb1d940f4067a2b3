"""One HTTP/1.1 connection to a host: it proves the host's key, then carries exchanges.

Owns the states of the connection and the reading of answers. Opening, pooling and choosing are
pools.py's, what an event means for the request is path.py's.
"""

import asyncio
import os
import select
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, cast

from smartgw.errors import Reason
from smartgw.proxy import headers, turns
from smartgw.proxy.closing import unsent
from smartgw.proxy.deadlines import NEVER, Deadlines
from smartgw.proxy.exchange import SAFE_METHODS, Exchange
from smartgw.proxy.link import Link
from smartgw.proxy.outlet import Outlet
from smartgw_hosts.challenge import BODY_BYTES, Proof, Verdict
from smartgw_hosts.chunked import ChunkedBody, chunk, last_chunk
from smartgw_hosts.guard import app_line
from smartgw_hosts.http1 import (
    CHUNKED,
    UNTIL_CLOSE,
    Bounds,
    MessageRefused,
    ResponseHead,
    lines_so_far,
    parse_response,
)

if TYPE_CHECKING:
    from smartgw.proxy.path import Path

_MAX_PROOF_BYTES = 16_384
# A connection that was used this recently is not asked whether it still lives, except for writes.
_FRESH_SECONDS = 0.005
# An app that has more to say before its answer says it in the answer.
_MAX_INTERIM = 64
# Small bodies leave in the same write as their head, large ones are not copied for it.
_JOIN_LIMIT = 16_384


NO_KEEPALIVE = "closes after each answer: put the sidecar before it or set upstream.verify"
"""What an operator is told of a host that cannot prove its connections (contract 2.3)."""


class State(Enum):
    """What the connection is for at the moment."""

    PROVING = auto()
    IDLE = auto()
    BUSY = auto()
    GONE = auto()


# A name of a module is found three times faster than a member of an enumeration.
_PROVING, _IDLE, _BUSY, _GONE = State.PROVING, State.IDLE, State.BUSY, State.GONE


class Opening(Protocol):
    """What is asked on a new connection, and whether the answer proves who is there."""

    def question(self, transport: asyncio.Transport) -> bytes | Verdict:
        """Return the one request to send, or why not even that may be sent."""

    def judge(self, status: int, body: bytes) -> Verdict:
        """Judge the answer; never raises, whatever it is."""


class Marking(Protocol):
    """How requests to a peer's gateway look, which are marked one by one (contract 4.5)."""

    def head(self, exchange: Exchange) -> bytes:
        """Return the request head to send, with its empty line."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to one host, or to a peer's gateway if there is a `marking`.

    Never carries a request before it is proven (contract 2.3, 4.5).
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_fd",
        "_interim",
        "_late",
        "_left",
        "_method",
        "_on_proof",
        "_paused",
        "_poll",
        "_served",
        "bounds",
        "deadline",
        "deadlines",
        "exchange",
        "head",
        "idle_since",
        "link",
        "loop",
        "marking",
        "opening",
        "path",
        "state",
        "transport",
    )

    transport: Outlet

    def __init__(
        self,
        path: "Path",
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines,
        bounds: Bounds,
        opening: Opening | None,
        on_proof: Callable[["UpstreamConnection", Verdict], None],
        marking: Marking | None = None,
    ) -> None:
        self.path = path
        self.loop = loop
        self.deadlines = deadlines
        self.bounds = bounds
        self.opening = opening
        self.marking = marking
        self._on_proof: Callable[[UpstreamConnection, Verdict], None] | None = on_proof
        self.link: Link | None = None
        self.exchange: Exchange | None = None
        self.state = _PROVING
        self.deadline = NEVER
        self.idle_since = 0.0
        self.head: ResponseHead | None = None
        self._body: ChunkedBody | None = None
        self._interim = 0
        self._late = b""
        self._left = 0
        self._method = b"POST"
        self._buffer = b""
        self._poll: select.poll | None = None
        self._fd = -1
        self._paused = False
        self._served = False

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        self.transport = Outlet(plain, self.path.turn)
        self.path.counters.upstream_connections += 1
        self.path.counters.upstream_connections_total += 1
        self._fd = self.transport.get_extra_info("socket").fileno()
        if self.opening is None:
            self._proven(Verdict(Proof.OK))
            return
        question = self.opening.question(plain)
        if isinstance(question, Verdict):
            self._proven(question)
        else:
            self.transport.write(question)

    def data_received(self, data: bytes) -> None:
        if self.head is not None:
            if self._late:
                self._late += data
            else:
                self._body_bytes(data, 0)
        elif self.exchange is not None:
            self._head_bytes(data)
        elif self.state is _PROVING:
            self._proof_bytes(data)
        else:
            # Nobody asked: whatever it is, it must not become the answer to the next request.
            self.close()

    def eof_received(self) -> bool | None:
        while self._late:
            self._feed_late()
        exchange = self.exchange
        if self.state is _PROVING:
            self._proven(Verdict(Proof.UNREACHABLE, "closed before it answered the challenge"))
        elif exchange is None:
            self.close()
        elif self.head is not None and self._left == UNTIL_CLOSE:
            self._detach()
            self.path.reply_end(exchange, [])
        else:
            self._lost_in_exchange(exchange)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.path.counters.upstream_connections -= 1
        self.deadlines.discard(self)
        exchange = self.exchange
        if self.state is _PROVING:
            self._proven(Verdict(Proof.UNREACHABLE, "reset before it answered the challenge"))
        elif exchange is not None:
            if self.head is None:
                # An early answer may lie in the socket behind a write that failed (RFC 9112 9.5).
                self._drain_socket()
                exchange = self.exchange
            if exchange is not None:
                self._lost_in_exchange(exchange)
        self.state = _GONE
        if self.link is not None:
            self.link.lost(self)
        self.path.pools.freed()

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.downstream.pause_body()

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.downstream.resume_body()

    # ---- proof ----

    def _proof_bytes(self, data: bytes) -> None:
        assert self.opening is not None
        data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        if len(data) > _MAX_PROOF_BYTES:
            self._proven(Verdict(Proof.BAD_ANSWER, "the answer to the challenge is too long"))
            return
        if end < 0:
            self._buffer = data
            return
        try:
            head = parse_response(data[:end], self.path.response_names, self.bounds, b"POST")
            body, rest = self._proof_body(head, data, end + 4)
        except MessageRefused as refused:
            self._proven(Verdict(Proof.BAD_ANSWER, refused.reason))
            return
        if body is None:
            self._buffer = data
            return
        self._buffer = b""
        verdict = self.opening.judge(head.status, body)
        if verdict.ok and not head.keep_alive:
            verdict = Verdict(Proof.NO_KEEPALIVE, NO_KEEPALIVE)
        elif verdict.ok and rest:
            verdict = Verdict(Proof.BAD_ANSWER, "bytes behind the answer to the challenge")
        self._proven(verdict)

    def _proof_body(
        self, head: ResponseHead, data: bytes, start: int
    ) -> tuple[bytes | None, bytes]:
        """Return the whole body and what follows it, None while it is not whole."""
        if head.length == CHUNKED:
            body = ChunkedBody(self.bounds)
            payload, end = body.feed(data, start)
            return (payload, data[end:]) if body.done else (None, b"")
        if head.length == UNTIL_CLOSE or head.length > BODY_BYTES:
            raise MessageRefused(
                502, "the answer to the challenge has no length, or too great a one"
            )
        end = start + head.length
        return (data[start:end], data[end:]) if len(data) >= end else (None, b"")

    def _proven(self, verdict: Verdict) -> None:
        on_proof, self._on_proof = self._on_proof, None
        if on_proof is None:
            return
        self.opening = None
        if verdict.ok:
            self.state = _IDLE
            self.idle_since = self.loop.time()
        else:
            self.state = _GONE
            self.transport.abort()
        on_proof(self, verdict)

    # ---- carrying a request ----

    def alive(self, method: bytes, now: float) -> bool:
        """Say whether the kept connection can still take a request.

        A FIN may lie in the socket, unread by the loop. Sent into it, a request might be taken or
        not; so whoever could not be sent again is not sent before the socket was asked.
        """
        if self.state is not _IDLE or self.transport.is_closing():
            return False
        if now - self.idle_since < _FRESH_SECONDS and method in SAFE_METHODS:
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN | select.POLLRDHUP)
        if self._poll.poll(0):
            self.close()
            return False
        return True

    def carry(self, exchange: Exchange, pending: list[bytes] | None) -> None:
        """Send the request's head and what has come of its body."""
        self.state = _BUSY
        self.deadline = NEVER
        self.exchange = exchange
        self._interim = 0
        self._method = exchange.request.method
        request = exchange.request
        marking = self.marking
        if marking is None:
            assert exchange.route is not None
            forwarding = exchange.forwarding
            if not exchange.hostname.startswith(exchange.route.prefix):
                forwarding = b"%b\r\n%b" % (app_line(exchange.route.app_id), forwarding)
            head = headers.upstream_head(request, forwarding, exchange.request_id, exchange.upgrade)
        else:
            head = marking.head(exchange)
        if not pending:
            if exchange.request_done and request.length == CHUNKED:
                head += last_chunk(exchange.trailers)
            if self._method in SAFE_METHODS:
                self.transport.post(head)
            else:
                # The socket was just asked whether the host is there: not a moment later.
                self.transport.write(head)
            return
        payload = pending[0] if len(pending) == 1 else b"".join(pending)
        if request.length == CHUNKED:
            payload = chunk(payload)
            if exchange.request_done:
                payload += last_chunk(exchange.trailers)
        if len(payload) <= _JOIN_LIMIT:
            self.transport.write(head + payload)
        else:
            self.transport.write(head)
            self.transport.write(payload)

    def send_body(self, payload: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and payload:
            self.transport.write(chunk(payload) if exchange.request.length == CHUNKED else payload)

    def send_end(self, trailers: list[bytes]) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.request.length == CHUNKED:
            self.transport.write(last_chunk(trailers))

    def pause_reading(self) -> None:
        if not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def unsent(self) -> int:
        return unsent(self.transport)

    def abandon(self) -> None:
        """End the connection at once; a host never takes a cut request for a whole one."""
        self.exchange = None
        self.head = None
        self._late = b""
        self.state = _GONE
        self.transport.abort()

    def close(self) -> None:
        """End a connection that carries nothing."""
        self.state = _GONE
        self.transport.close()

    def cut(self) -> None:
        """The host may not be spoken to any more: whatever it carries breaks off (contract 1.4)."""
        exchange = self.exchange
        if exchange is not None:
            self.path.upstream_failed(
                exchange, Reason.UPSTREAM_RESET, "the host may not be spoken to any more"
            )
        else:
            self.abandon()

    def expire(self, now: float) -> None:
        """The connection has been idle for too long."""
        self.deadline = NEVER
        if self.state is _IDLE:
            self.close()

    # ---- reading an answer ----

    def _head_bytes(self, data: bytes) -> None:
        exchange = self.exchange
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        start = 0
        while exchange is not None:
            end = data.find(b"\r\n\r\n", start)
            if end < 0:
                partial = data[start:] if start else data
                if len(partial) > self.bounds.head + 3:
                    self._refused(exchange, "the head of the answer is too long")
                elif not lines_so_far(partial):
                    self._refused(exchange, "a line of the answer does not end with CRLF")
                else:
                    self._buffer = partial
                return
            try:
                path = self.path
                names = path.response_names
                if self.marking is not None:
                    names = path.peer_response_names
                elif exchange.route is path.own_route:
                    names = path.api_response_names
                head = parse_response(data[start:end], names, self.bounds, self._method)
            except MessageRefused as refused:
                self._refused(exchange, refused.reason)
                return
            end += 4
            if head.status >= 200:
                self._answer(exchange, head, data, end)
                return
            if head.status == 101:
                self._buffer = data[end:]
                self.path.switch(exchange, head, self)
                return
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                self._refused(exchange, f"more than {_MAX_INTERIM} interim answers")
                return
            self.path.interim(exchange, head)
            exchange = self.exchange
            start = end
            if start == len(data):
                return

    def _answer(self, exchange: Exchange, head: ResponseHead, data: bytes, start: int) -> None:
        length = head.length
        if length >= 0:
            left = length - (len(data) - start)
            if left <= 0:
                # The whole answer is here: the connection is free before the client gets it, so
                # that a pipelined request finds it.
                keep = head.keep_alive and left == 0
                payload = data[start : start + length] if length else b""
                self._complete(exchange, keep)
                self.path.reply(exchange, head, payload, True)
                return
            self._left = left
            self.head = head
            self.path.reply(exchange, head, data[start:], False)
        elif length == CHUNKED:
            self.head = head
            self._left = CHUNKED
            self._body = ChunkedBody(self.bounds)
            self.path.reply(exchange, head, b"", False)
            if start < len(data) and self.exchange is exchange:
                self._body_bytes(data, start)
        else:
            self.head = head
            self._left = UNTIL_CLOSE
            self.path.reply(exchange, head, data[start:], False)

    def _body_bytes(self, data: bytes, start: int) -> None:
        exchange = self.exchange
        head = self.head
        if exchange is None or head is None:
            return
        body = self._body
        if body is not None:
            try:
                payload, end, late = turns.feed(body, data, start)
            except MessageRefused as refused:
                self._refused(exchange, refused.reason)
                return
            if late:
                self._late = late
                self.transport.pause_reading()
                self.loop.call_soon(self._feed_late)
            if payload:
                self.path.reply_body(exchange, payload)
            if body.done and self.exchange is exchange:
                self._complete(exchange, head.keep_alive and end == len(data))
                self.path.reply_end(exchange, body.trailers, head.nominated)
        elif self._left >= 0:
            left = self._left - len(data)
            self._left = left
            if left > 0:
                self.path.reply_body(exchange, data)
            else:
                self._complete(exchange, head.keep_alive and left == 0)
                self.path.reply_body(exchange, data[:left] if left else data)
                self.path.reply_end(exchange, [])
        else:
            self.path.reply_body(exchange, data)

    def _feed_late(self) -> None:
        """Go on with chunks that had to wait for a turn of the loop."""
        late, self._late = self._late, b""
        if late and self.exchange is not None and self.head is not None:
            if not self._paused:
                self.resume_reading()
            self._body_bytes(late, 0)

    def _complete(self, exchange: Exchange, keep: bool) -> None:
        """The answer is whole: free the connection, or end it."""
        request_done = exchange.request_done
        self._served = True
        self._detach()
        if not request_done or self.transport.get_write_buffer_size():
            # It does not want the rest; whatever is still unsent must not wait for it.
            self.abandon()
        elif keep and self.link is not None and not self.transport.is_closing():
            self.state = _IDLE
            self.idle_since = self.loop.time()
            if self._paused:
                self.resume_reading()
            self.link.release(self)
        else:
            self.close()

    def _detach(self) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.upstream = None
        self.exchange = None
        self.head = None
        self._body = None
        self._late = b""

    def _refused(self, exchange: Exchange, detail: str) -> None:
        self.path.upstream_failed(exchange, Reason.UPSTREAM_MALFORMED, detail)

    def _lost_in_exchange(self, exchange: Exchange) -> None:
        if not self._served and self.link is not None:
            # It took the proof's connection for one answer, or died: not the next one's host.
            self.link.broke(self)
        detail = "closed within its answer" if self.head or self._buffer else ""
        self.path.upstream_failed(exchange, Reason.UPSTREAM_RESET, detail)

    def _drain_socket(self) -> None:
        """Read what the kernel still holds of an answer, without waiting.

        Not over TLS, whose records only the transport could read, and whose socket may be closed
        and its number another connection's by now.
        """
        if self.transport.get_extra_info("sslcontext") is not None:
            return
        for _ in range(4):
            try:
                data = os.read(self._fd, 65_536)
            except OSError:
                return
            if not data:
                return
            self.data_received(data)
            if self.exchange is None:
                return

    # ---- after a 101 ----

    def take_over(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, bytes]:
        """Hand the transport to a tunnel, with the bytes that came behind the 101."""
        leftover, self._buffer = self._buffer, b""
        if self.link is not None:
            self.link.outstanding += 1
        self.deadlines.discard(self)
        self._detach()
        self.state = _GONE
        return self.transport.release(protocol), leftover

    def dismissed(self) -> None:
        """The tunnel's connection has ended."""
        self.path.counters.upstream_connections -= 1
        if self.link is not None:
            self.link.outstanding -= 1
            self.link.lost(self)
        self.path.pools.freed()
