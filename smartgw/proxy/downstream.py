"""One HTTP/1.1 connection from a client: heads and bodies in, answers out, in order.

Owns the life of the connection: pipelining, keep-alive, its deadlines (contract 3.11) and how it
ends so that a client that is still sending can read its answer. What happens to a request is
path.py's.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from smartgw.errors import ANSWERS, REFUSED_MESSAGE, Reason, shed
from smartgw.proxy import turns
from smartgw.proxy.client_side import ClientSide
from smartgw.proxy.closing import has_unread, reset_on_close, unsent
from smartgw.proxy.exchange import PENDING_LIMIT, SAFE_METHODS, Exchange, Upstream, no_request
from smartgw.proxy.headers import LINK, noted, switch_head, without_mark
from smartgw.proxy.outlet import Outlet
from smartgw_hosts.chunked import ChunkedBody, chunk, last_chunk
from smartgw_hosts.http1 import (
    CHUNKED,
    MessageRefused,
    RequestHead,
    ResponseHead,
    check_partial,
    parse_request,
)

if TYPE_CHECKING:
    from smartgw.proxy.listener import Listening
    from smartgw.proxy.upstream import UpstreamConnection

# Pipelined bytes that are held while an exchange is on; more stays in the socket.
_MAX_PIPELINED = 65_536
_JOIN_LIMIT = 16_384
# A refused client is read from for at most this many linger times, however busily it sends.
_LINGER_ROUNDS = 6


class Http1Downstream(ClientSide):
    """See `smartgw.proxy.exchange.Downstream` for the methods that an exchange calls."""

    __slots__ = (
        "_body",
        "_body_left",
        "_buffer",
        "_choked",
        "_chunked_out",
        "_closing",
        "_exchange",
        "_late",
        "_linger_end",
        "_paused",
        "_processing",
        "_sized",
        "_unsent",
        "deadline",
        "transport",
    )

    transport: Outlet

    def __init__(
        self,
        listening: "Listening",
        scheme: bytes,
        client: str | None = None,
        stranger: bool = False,
    ) -> None:
        """Arguments as of `ClientSide`."""
        super().__init__(listening, scheme, client, stranger)
        self.deadline = 0.0
        self._exchange: Exchange | None = None
        self._buffer = b""
        self._body: ChunkedBody | None = None
        self._body_left = 0
        self._chunked_out = False
        self._choked = False
        self._closing = False
        self._late = b""
        self._linger_end = 0.0
        self._paused = False
        self._processing = False
        self._sized = True
        self._unsent = 0

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = Outlet(cast("asyncio.Transport", transport), self._listening.turn)
        listening = self._listening
        if not self.peer:
            self.peer = self.address_of(transport)
        self.deadline = listening.loop.time() + listening.deadlines.head
        self._trusted = not self._stranger and listening.forwarding.trusts(self.peer)
        if not listening.admit(self):
            # A few bytes into an empty socket buffer: they leave though the connection ends.
            self._closing = True
            self.transport.write(shed(listening.path.limits.of_stranger(self.peer)))
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            if self._closing:
                self._discard()
                return
            if self._choked:
                # It does not take its answers: it gets no further ones to pile up.
                self._buffer += data
                self._pause()
                return
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            else:
                # The first byte of a head: from here the head deadline runs.
                self.deadline = self._listening.loop.time() + self._listening.deadlines.head
            self._heads(data)
        elif not exchange.request_done:
            if self._late:
                self._late += data
            else:
                self._body_bytes(exchange, data)
        else:
            self._buffer += data
            if len(self._buffer) > _MAX_PIPELINED:
                self._pause()

    def eof_received(self) -> bool | None:
        while self._late:
            self._feed_late()
        exchange = self._exchange
        if exchange is not None and not exchange.over:
            if not exchange.request_done:
                # The answer may still reach a client that has only closed its sending side.
                self._listening.path.body_refused(
                    exchange, Reason.BAD_REQUEST, "the connection ended within the body"
                )
            else:
                self._gone(exchange)
        elif self._buffer and not self._closing:
            self._refuse(Reason.BAD_REQUEST, "the connection ended within the head")
        # The transport closes once what was written has left.
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self._exchange
        if exchange is not None and not exchange.over:
            self._gone(exchange)
        self._listening.dismiss(self)

    def pause_writing(self) -> None:
        self._choked = True
        exchange = self._exchange
        if exchange is not None and exchange.upstream is not None:
            exchange.upstream.pause_reading()

    def resume_writing(self) -> None:
        self._choked = False
        exchange = self._exchange
        if exchange is None:
            self._go_on()
        else:
            self._await_progress(exchange)
            if exchange.upstream is not None:
                exchange.upstream.resume_reading()

    # ---- reading requests ----

    def _heads(self, data: bytes) -> None:
        """Take requests from data until one has to wait for its answer."""
        if self._processing:
            self._buffer = data
            return
        self._processing = True
        try:
            start, taken = 0, 0
            while start < len(data):
                start = self._next_request(data, start)
                if start < 0 or self._closing:
                    return
                taken += 1
                if taken == turns.MAX_REQUESTS and start < len(data):
                    # Others have their turn before the rest of what somebody has pipelined.
                    self._pause()
                    self._listening.loop.call_soon(self._go_on)
                elif self._exchange is None and not self._choked:
                    continue
                self._buffer = data[start:]
                return
        finally:
            self._processing = False

    def _next_request(self, data: bytes, start: int) -> int:
        """Begin the exchange of the first request in data; return where the next begins, or -1:
        there is nothing more to do now.
        """
        listening = self._listening
        begin = start
        if data[start : start + 2] == b"\r\n":
            start += 2  # RFC 9112 2.2: one empty line is forgiven
        end = data.find(b"\r\n\r\n", start)
        bounds = listening.bounds if self._link is None else listening.link_bounds
        try:
            if end < 0 or end - start > bounds.head:
                check_partial(data[start:], bounds)
                self._buffer = data[begin:]
                return -1
            head = data[start:end]
            if self._link is None:
                request = parse_request(head, listening.path.request_names, bounds)
            else:
                head, notes = without_mark(head)
                request = parse_request(head, listening.path.request_names, bounds)
                request.noted = noted(request, notes)
        except MessageRefused as refused:
            self._refuse(REFUSED_MESSAGE[refused.status], refused.reason)
            return -1
        now = listening.loop.time()
        if request.noted and LINK in request.noted and self._opens_link(request, now):
            return end + 4
        exchange = Exchange(self, request, now, listening.deadlines.response_head)
        self._exchange = exchange
        self._chunked_out = False
        self.deadline = exchange.until
        end += 4
        length = request.length
        if length == 0:
            exchange.request_done = True
        else:
            if length == CHUNKED:
                self._body = ChunkedBody(listening.bounds)
            self._body_left = length
            end = self._first_body(exchange, data, end)
            if exchange.over:
                return end
        listening.path.accept(exchange)
        return end

    def _opens_link(self, request: RequestHead, now: float) -> bool:
        """Answer a peer's gateway that opens a link; False: it is a request like any other."""
        kept = self._listening.deadlines.keepalive
        if self._link is not None:
            return False
        opened = self._listening.marks.open(request, request.noted[LINK], kept)
        if opened is None:
            return False
        self._link, answer = opened
        self.transport.write(answer)
        self.deadline = now + kept
        return True

    def _first_body(self, exchange: Exchange, data: bytes, start: int) -> int:
        """Put what has come of the body into the exchange; return the place behind the body."""
        if self._body is not None:
            try:
                payload, end, late = turns.feed(self._body, data, start)
            except MessageRefused as refused:
                exchange.request.keep_alive = False
                self._listening.path.turn_away(
                    exchange, REFUSED_MESSAGE[refused.status], refused.reason
                )
                return len(data)
            if late:
                self._feed_later(late)
            if self._body.done:
                self._listening.path.body_end(exchange, self._body.trailers)
        else:
            payload = data[start : start + self._body_left]
            end = start + len(payload)
            self._body_left -= len(payload)
            exchange.request_done = not self._body_left
        if payload:
            exchange.received = len(payload)
            exchange.hold(payload)
            if exchange.pending_size > PENDING_LIMIT:
                self._pause()
        if not exchange.request_done:
            self._await_body(exchange)
        else:
            self._body = None
        return end

    def _feed_later(self, late: bytes) -> None:
        """Keep chunks for the next turn of the loop."""
        self._late = late
        self._pause()
        self._listening.loop.call_soon(self._feed_late)

    def _feed_late(self) -> None:
        """Go on with chunks that had to wait."""
        late, self._late = self._late, b""
        exchange = self._exchange
        if not late or exchange is None or exchange.request_done or exchange.over:
            return
        self._resume()
        self._body_bytes(exchange, late)

    def _body_bytes(self, exchange: Exchange, data: bytes) -> None:
        path = self._listening.path
        body = self._body
        if body is not None:
            try:
                payload, end, late = turns.feed(body, data, 0)
            except MessageRefused as refused:
                exchange.request.keep_alive = False
                path.body_refused(exchange, REFUSED_MESSAGE[refused.status], refused.reason)
                return
            if late:
                self._feed_later(late)
            done, trailers = body.done, body.trailers
        else:
            payload = data[: self._body_left] if len(data) > self._body_left else data
            self._body_left -= len(payload)
            end, done, trailers = len(payload), not self._body_left, []
        if payload:
            path.body(exchange, payload)
        if done:
            self._body = None
            if end < len(data):
                self._buffer = data[end:]
            path.body_end(exchange, trailers)
            self._await_answer(exchange)
        else:
            self._await_body(exchange)

    def _refuse(self, reason: Reason, detail: str) -> None:
        """Answer a message that is no request; nothing more can be read from this connection."""
        exchange = Exchange(self, no_request(), self._listening.loop.time(), 0.0)
        self._exchange = exchange
        self._listening.path.turn_away(exchange, reason, detail)

    # ---- deadlines ----

    def _await_body(self, exchange: Exchange) -> None:
        if not exchange.status:
            self._unsent = 0
            deadlines = self._listening.deadlines
            now = self._listening.loop.time()
            self.deadline = min(now + deadlines.request_body, self._answer_due(exchange, now))

    def _await_answer(self, exchange: Exchange) -> None:
        if not exchange.status:
            self.deadline = self._answer_due(exchange, self._listening.loop.time())

    def _answer_due(self, exchange: Exchange, now: float) -> float:
        """Some of the body has come: return when the answer's head is due now (contract 5.1).

        A read has the one deadline from its beginning, and each of its attempts a share. An upload
        may take as long as it makes progress, so a write has it from the last that came of its
        body, undivided.
        """
        if exchange.request.method not in SAFE_METHODS:
            exchange.until = exchange.due = now + exchange.patience
        return exchange.due

    def await_head(self) -> None:
        exchange = self._exchange
        if exchange is not None and not exchange.status:
            self.deadline = exchange.due
            if not exchange.request_done:
                body = self._listening.loop.time() + self._listening.deadlines.request_body
                self.deadline = min(self.deadline, body)
            self._listening.watch.hasten(self)

    def _await_progress(self, exchange: Exchange) -> None:
        if exchange.status:
            self.deadline = self._listening.loop.time() + self._listening.deadlines.response_body

    def expire(self, now: float) -> None:
        """Something took too long; which deadline it was follows from what was awaited."""
        deadlines = self._listening.deadlines
        exchange = self._exchange
        if self._moves(exchange):
            # Slowly, but the other side takes what was written.
            self.deadline = now + deadlines.response_body
            return
        if exchange is not None and exchange.due <= self.deadline and self._share_over(exchange):
            return
        self.deadline = now + deadlines.linger
        if exchange is not None and not exchange.over:
            exchange.request.keep_alive = False
            waits_for_client = not exchange.request_done and not self._paused
            if (
                waits_for_client
                and not exchange.status
                and deadlines.request_body <= deadlines.response_head
                and (exchange.until > now or exchange.request.method not in SAFE_METHODS)
            ):
                self._listening.path.body_refused(
                    exchange, Reason.REQUEST_TIMEOUT, "the body made no progress"
                )
            else:
                self._listening.path.timed_out(exchange, by_client=self._choked)
        elif self._closing or not self._buffer:
            self.transport.abort()
        else:
            self._refuse(Reason.REQUEST_TIMEOUT, "the head did not arrive in time")

    def _share_over(self, exchange: Exchange) -> bool:
        """Whether it was the present attempt's share of the deadline, and the rest is to come."""
        if exchange.status or exchange.due >= exchange.until:
            return False
        self._listening.path.forwards.share_over(exchange)
        return True

    def _moves(self, exchange: Exchange | None) -> bool:
        """Whether bytes have left since the last deadline passed (contract 3.11): of the answer
        to the client, or of an upload to the host.
        """
        before, left = self._unsent, 0
        if exchange is None or exchange.status:
            left = unsent(self.transport)
        elif not exchange.request_done and exchange.request.method not in SAFE_METHODS:
            left = 0 if exchange.upstream is None else exchange.upstream.unsent()
        self._unsent = left
        return left > 0 and (not before or left < before)

    # ---- what an exchange calls ----

    def interim(self, head: ResponseHead) -> None:
        self.transport.write(
            b"\r\n".join([b"HTTP/1.1 %d%b" % (head.status, head.phrase), *head.lines, b"\r\n"])
        )

    def respond(
        self,
        exchange: Exchange,
        status: int,
        phrase: bytes,
        lines: list[bytes],
        length: int,
        payload: bytes,
        done: bool,
    ) -> None:
        request = exchange.request
        if not exchange.request_done or self._closing or self._listening.retiring:
            request.keep_alive = False
        self._sized = length >= 0
        self._unsent = 0
        if length < 0:
            if request.minor:
                self._chunked_out = True
                lines.append(b"Transfer-Encoding: chunked")
                if payload:
                    payload = chunk(payload)
            else:
                # HTTP/1.0 knows no chunks: the body ends with the connection.
                request.keep_alive = False
        if not request.keep_alive:
            lines.append(b"Connection: close")
        elif not request.minor:
            lines.append(b"Connection: keep-alive")
        fields = b"\r\n".join(lines)
        if len(payload) <= _JOIN_LIMIT:
            self.transport.post(
                b"HTTP/1.1 %d%b\r\n%b\r\n\r\n%b" % (status, phrase, fields, payload)
            )
        else:
            self.transport.write(b"HTTP/1.1 %d%b\r\n%b\r\n\r\n" % (status, phrase, fields))
            self.transport.write(payload)
        if done:
            self._end(exchange)
        else:
            self.deadline = self._listening.loop.time() + self._listening.deadlines.response_body

    def write(self, payload: bytes) -> None:
        self._unsent = 0  # more waits than before: what was seen then says nothing now
        self.deadline = self._listening.loop.time() + self._listening.deadlines.response_body
        if not self._chunked_out:
            self.transport.write(payload)
        elif len(payload) <= _JOIN_LIMIT:
            self.transport.write(chunk(payload))
        else:
            self.transport.writelines((b"%x\r\n" % len(payload), payload, b"\r\n"))

    def finish(self, exchange: Exchange, trailers: list[bytes]) -> None:
        if self._chunked_out:
            self.transport.write(last_chunk(trailers))
        self._end(exchange)

    def break_off(self) -> None:
        if not self._chunked_out and not self._sized:
            # Without a length only a reset tells the client that its answer is not whole.
            reset_on_close(self.transport)
        self._closing = True
        self._exchange = None
        self.transport.abort()

    def tunnel(self, exchange: Exchange, head: ResponseHead, upstream: Upstream) -> None:
        listening = self._listening
        connection = cast("UpstreamConnection", upstream)
        upgrade = exchange.upgrade or b""
        tunnel = listening.new_tunnel(self, connection, websocket=upgrade == b"websocket")
        self.transport.write(switch_head(head, upgrade))
        up, leftover = connection.take_over(tunnel.up)
        tunnel.join(self.transport.release(tunnel.down), up)
        early, self._buffer = self._buffer, b""
        self._exchange = None
        self._closing = True
        # Before what came early is written, which may be more than the host takes.
        self._resume()
        if leftover:
            tunnel.up.data_received(leftover)
        if early:
            tunnel.down.data_received(early)

    def pause_body(self) -> None:
        exchange = self._exchange
        if exchange is not None and not exchange.request_done:
            self._pause()

    def resume_body(self) -> None:
        if self._paused and not (self._exchange is not None and self._exchange.request_done):
            self._resume()
            if self._exchange is not None:
                self._await_body(self._exchange)

    # ---- the end of an exchange, and of the connection ----

    def _end(self, exchange: Exchange) -> None:
        """The answer has been handed to the transport: go on with the next request, or close."""
        self._exchange = None
        self._body = None
        self._late = b""
        listening = self._listening
        if exchange.upgrade is not None and self._buffer:
            # What followed a refused upgrade was meant for a tunnel that there is not.
            exchange.request.keep_alive = False
        if exchange.request.keep_alive:
            self.deadline = listening.loop.time() + listening.deadlines.keepalive
            self._go_on()
            return
        self._closing = True
        unread, self._buffer = bool(self._buffer), b""
        now = listening.loop.time()
        self.deadline = now + listening.deadlines.response_body
        if exchange.request_done and not unread and exchange.reason not in _UNREAD:
            self.transport.close()
            return
        # The client may still be sending: closed now, a reset could overtake the answer.
        self.deadline = now + listening.deadlines.linger
        self._linger_end = now + _LINGER_ROUNDS * listening.deadlines.linger
        if self._paused:
            self._resume()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _go_on(self) -> None:
        """Take the next request, unless the client leaves its answers lying."""
        if self._choked or self._closing or self._exchange is not None:
            return
        if self._paused:
            self._resume()
        if self._buffer and not self._processing:
            data, self._buffer = self._buffer, b""
            self._heads(data)

    def _discard(self) -> None:
        """Read and forget what a client sends whose answer is on its way."""
        now = self._listening.loop.time()
        self.deadline = min(now + self._listening.deadlines.linger, self._linger_end)

    def _gone(self, exchange: Exchange) -> None:
        self._closing = True
        self._exchange = None
        self._listening.path.downstream_lost(exchange)
        if not self.transport.is_closing():
            self.transport.abort()

    def close_idle(self) -> None:
        """End the connection if it carries nothing and no next request has begun to come."""
        if self._exchange is not None or self._buffer or self._closing:
            return
        if not has_unread(self.transport):
            self._closing = True
            self.transport.close()

    def _pause(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        if not self.transport.is_closing():
            self.transport.resume_reading()


_UNREAD = frozenset(reason for reason, answer in ANSWERS.items() if answer.close)
"""Reasons after which bytes of the client may still be on their way."""
