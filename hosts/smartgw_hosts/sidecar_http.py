"""The sidecar's connections from gateways: challenges answered here, the rest proxied to the app.

Owns the order on one connection: a request is read when the answer before it is over, so that
what framing calls a body is never read as a request. Heads pass line by line as they came, but for
what belongs to one connection only (RFC 9110 7.6.1). Decides nothing of a challenge (challenge.py)
nor of a write (guard.py).
"""

import asyncio
import time
from typing import Final, Protocol, cast

from smartgw_hosts import challenge
from smartgw_hosts.challenge import Responder
from smartgw_hosts.chunked import chunk, last_chunk
from smartgw_hosts.guard import FLAG, Accept, NotOwner
from smartgw_hosts.http1 import (
    CHUNKED,
    CODING,
    CONNECTION,
    DROP,
    LENGTH,
    PASS,
    UNTIL_CLOSE,
    UPGRADE,
    MessageRefused,
    RequestHead,
    ResponseHead,
    check_partial,
    parse_request,
)
from smartgw_hosts.sidecar_answers import answer_challenge, error_body, fields_of, own_answer
from smartgw_hosts.sidecar_app import BOUNDS, BUFFER, NAMES, AppConnection, AppPool, Body, body_of
from smartgw_hosts.tunnel import join, reset
from smartgw_hosts.write_guard import WriteGuard

IDLE_TIMEOUT: Final = 90.0
"""Seconds between requests: longer than a gateway keeps a connection, so that it ends them."""
HEAD_TIMEOUT: Final = 10.0
"""Seconds for a request head, and for a challenge, once begun."""
LINGER: Final = 5.0
"""Seconds for which the rest of a request is read whose answer has been given."""
BODY_TIMEOUT: Final = 45.0
"""Seconds for which nothing of a request's body may come. This and the next two are longer than a
gateway's by default, so that it decides; they are for those who are no gateway."""
ANSWER_TIMEOUT: Final = 90.0
"""Seconds for which nothing of an answer may be taken, once its buffers are full."""
TUNNEL_TIMEOUT: Final = 660.0
"""Seconds for which a tunnel may carry nothing."""
FLUSH_TIMEOUT: Final = 20.0
"""Seconds that a last answer may take to be read."""
NEVER: Final = float("inf")

_ERROR_TYPES = {
    "app_unreachable": "connection_refused",
    "app_closed": "connection_terminated",
    "app_malformed": "http_protocol_error",
}


class Registry(Protocol):
    """Who holds the connections: told of each that opens and closes."""

    stopping: bool
    pool: AppPool
    responder: Responder
    guard: WriteGuard | None

    def opened(self, connection: "Connection") -> bool:
        """False when there are too many of them."""

    def begun(self, connection: "Connection", *, proven: bool) -> bool:
        """Its first request was a challenge that was answered, or not; False when it must go."""

    def lost(self, connection: "Connection") -> None: ...


class Connection(Protocol):
    """What the registry sees of a connection: when it has waited too long, and how to end it."""

    deadline: float
    transport: asyncio.Transport

    def expire(self) -> None: ...
    def close_if_idle(self) -> None: ...
    def abort(self) -> None: ...


class HttpConnection(asyncio.Protocol):
    """One connection from a gateway: reads a request, has it answered, reads the next."""

    transport: asyncio.Transport

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._begun = False
        self.deadline = time.monotonic() + HEAD_TIMEOUT
        self._input = b""
        self._at = 0  # how much of it has been read
        self._empty_line = False  # one came before the next request
        self._later = False  # there is more to read, in the loop's next turn
        self._request: RequestHead | None = None  # the one being served
        self._raw_head = b""
        self._body: Body | None = None  # of that request, until it has been read
        self._asked: bytearray | None = None  # the body of a challenge so far
        self._discard = False  # nobody wants the rest of that body
        self._unsure = False  # nobody knows whether this write is ours
        self._app: AppConnection | None = None
        self._connecting: asyncio.Task[AppConnection] | None = None
        self._answering = False  # bytes of a final answer have been written
        self._answered = False  # all of them
        self._framing = 0  # how the answer's body goes out
        self._last = False  # no request is read after this one
        self._app_full = False
        self._client_full = False
        self._lingering = False
        self._closed = False

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER)
        if not self._registry.opened(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._took(len(self._input))
        self._drop_app()
        self._registry.lost(self)

    def eof_received(self) -> None:
        """Whoever stops sending has gone, but for a tunnel: what it asked for is cancelled.

        The transport closes itself once it has written what was answered.
        """
        self._closed = True
        self.deadline = time.monotonic() + FLUSH_TIMEOUT
        self._drop_app()

    def abort(self) -> None:
        self.transport.abort()

    def expire(self) -> None:
        """The deadline has passed."""
        if self._request is None and self._input and not self._lingering:
            self._refuse(408, "the request head did not come in time")
        else:
            self.transport.abort()

    def close_if_idle(self) -> None:
        if self._request is None and not self._input and not self._lingering:
            self.transport.close()

    def pause_writing(self) -> None:
        self._client_full = True
        if self._app is not None:
            self._app.hold(True)
        self._wait()

    def resume_writing(self) -> None:
        self._client_full = False
        self._wait()
        if self._app is not None:
            self._app.hold(False)
        self._advance()

    # --- what the gateway sends

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._request is None and not self._input:
            self.deadline = time.monotonic() + HEAD_TIMEOUT
        elif self._answered:
            self.deadline = time.monotonic() + LINGER
        self._input = self._input[self._at :] + data if self._input else data
        self._at = 0
        self._wait()
        if not self._later:
            self._advance()

    def _wait(self) -> None:
        """While a request is served: whose turn it is has so long for it."""
        if self._request is None or self._asked is not None or self._answered or self._closed:
            return
        now = time.monotonic()
        if self._client_full:
            self.deadline = now + ANSWER_TIMEOUT
        elif self._body is not None and not self._body.done and not self._app_full:
            self.deadline = now + BODY_TIMEOUT
        else:
            self.deadline = NEVER  # the app's turn: the gateway's going ends ours

    def _advance(self) -> None:
        """Do what the bytes at hand allow, then say whether more are wanted.

        One request a turn of the loop, and of its body no more than takes a moment.
        """
        try:
            while self._input and not self._closed and not self._lingering:
                if self._request is None:
                    if self._client_full or not self._read_head():
                        break
                elif self._body is None or not self._read_body():
                    break
        except MessageRefused as refused:
            self._refuse(refused.status, refused.reason)
        if self.transport.is_closing():
            return
        if self._app_full or (len(self._input) - self._at > BOUNDS.head and not self._lingering):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _advance_soon(self) -> None:
        if not self._later:
            self._later = True
            asyncio.get_running_loop().call_soon(self._advance_on)

    def _advance_on(self) -> None:
        self._later = False
        self._advance()

    def _took(self, end: int) -> None:
        """What stands before `end` has been read; no input is left when all has been."""
        self._at = end
        if end == len(self._input):
            self._input, self._at = b"", 0

    def _read_head(self) -> bool:
        """Tell whether there is something to do in this turn."""
        while self._input.startswith(b"\r\n", self._at):
            if self._empty_line:  # RFC 9112 2.2: one is forgiven
                raise MessageRefused(400, "more than one empty line before a request")
            self._empty_line = True
            self._took(self._at + 2)
        end = self._input.find(b"\r\n\r\n", self._at)
        if end < 0 or end - self._at > BOUNDS.head:
            check_partial(self._input[self._at :], BOUNDS)
            return False
        raw = self._input[self._at : end]
        self._took(end + 4)
        self._empty_line = False
        request = parse_request(raw, NAMES, BOUNDS)
        if request.method == b"CONNECT":
            raise MessageRefused(405, "an app is no proxy")
        challenged = raw.split(b" ", 2)[1] == challenge.PATH
        if not challenged and not self._begins(proven=False):
            raise MessageRefused(503, "too many connections did not open with a challenge")
        self._request, self._raw_head = request, raw
        self._body = body_of(request.length)
        self._discard = self._answering = self._answered = False
        self._last = self._registry.stopping or not request.keep_alive or request.minor == 0
        if challenged:
            self._asked = bytearray()
            self._body_progress()
            return self._request is not None
        judged: Accept | NotOwner = Accept.SURE
        if self._registry.guard is not None:
            judged = self._registry.guard.judge(request.method.decode(), fields_of(raw))
        if isinstance(judged, NotOwner):
            self._answer_here(421, judged.body, b": ".join(judged.field))
            return False
        self._unsure = judged is Accept.UNSURE
        self._wait()
        kept = self._registry.pool.take()
        if kept is not None:
            self._ask(kept)
        else:
            self._connecting = asyncio.create_task(self._registry.pool.connect())
            self._connecting.add_done_callback(self._connected)
        return True

    def _begins(self, *, proven: bool) -> bool:
        """The first request says what the connection is; False when it has no place as such."""
        if not self._begun:
            self._begun = self._registry.begun(self, proven=proven)
        return self._begun

    def _read_body(self) -> bool:
        assert self._body is not None
        if self._app is None and self._asked is None and not self._discard:
            return False  # the connection to the app is on its way
        payload, end = self._body.feed_some(self._input, self._at)
        self._took(end)
        if self._input and not self._body.done:
            self._advance_soon()
        if self._asked is not None:
            self._asked += payload[: challenge.BODY_BYTES + 1 - len(self._asked)]
        elif self._app is not None and payload:
            assert self._request is not None
            chunked = self._request.length == CHUNKED
            self._app.transport.write(chunk(payload) if chunked else payload)
        self._body_progress()
        return self._request is not None and not self._later

    def _body_progress(self) -> None:
        """Act on the end of a request's body, if it has been reached."""
        assert self._request is not None
        assert self._body is not None
        if self._asked is not None and (self._body.done or len(self._asked) > challenge.BODY_BYTES):
            asked, self._asked = bytes(self._asked), None
            status, answer = answer_challenge(
                self._registry.responder, self._raw_head, self._request, asked
            )
            if not self._begins(proven=status == 200):
                self._last = True
            self._answer_here(status, answer)
            return
        if not self._body.done:
            return
        if self._app is not None and self._request.length == CHUNKED:
            self._app.transport.write(last_chunk(_trailers(self._body.trailers)))
        self._body = None
        if self._answered:
            self._next()
        else:
            self._wait()

    # --- the app

    def _ask(self, app: AppConnection) -> None:
        assert self._request is not None
        self._app = app
        app.ask(self, self._request, _request_head(self._raw_head, self._request))
        if self._client_full:
            app.hold(True)
        if self._body is not None and self._body.done:
            self._body_progress()

    def _connected(self, task: "asyncio.Task[AppConnection]") -> None:
        self._connecting = None
        if task.cancelled():
            return
        fault = task.exception()
        if self._closed:
            if fault is None:
                task.result().release(clean=False)
            return
        if fault is None:
            self._ask(task.result())
        else:
            # Where the app is, and how it fails, is for the log alone.
            self.on_fault("app_unreachable", "the app cannot be reached")
        self._advance()

    def _drop_app(self, *, clean: bool = False) -> None:
        """Let the app's connection go: `clean` when request and answer went over it whole."""
        self._app_full = False
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._app is not None:
            app, self._app = self._app, None
            app.release(clean=clean)

    def on_app_full(self, full: bool) -> None:
        self._app_full = full
        self._wait()
        self._advance()

    # --- the answer

    def on_head(self, raw: bytes, response: ResponseHead) -> None:
        assert self._request is not None
        if response.status < 200:
            unasked = response.status == 100 and not self._request.expect
            if self._request.minor and not unasked:
                self.transport.write(_response_head(raw, response, self._request))
                if response.status == 100:
                    self._request.expect = False
            return
        if self._request.expect and self._body is not None and not self._body.done:
            # The body may come or not (RFC 9110 10.1.1): nothing behind it could be trusted.
            self._last = True
        self._last = self._last or self._registry.stopping
        self._framing = response.length
        if response.length == UNTIL_CLOSE and self._request.minor:
            self._framing = CHUNKED  # so that this connection outlives the app's
        self._answering = True
        head = _response_head(raw, response, self._request, last=self._last, flagged=self._unsure)
        self.transport.write(head)

    def on_body(self, payload: bytes) -> None:
        assert self._request is not None
        rechunk = self._framing == CHUNKED and self._request.minor
        self.transport.write(chunk(payload) if rechunk else payload)

    def on_end(self, trailers: list[bytes]) -> None:
        assert self._request is not None
        if self._framing == CHUNKED and self._request.minor:
            self.transport.write(last_chunk(_trailers(trailers)))
        self._over()

    def on_switch(self, raw: bytes, response: ResponseHead, early: bytes) -> None:
        assert self._request is not None
        assert self._app is not None
        app, self._app = self._app, None
        if self._body is not None:
            app.transport.abort()
            self.on_fault("app_malformed", "the app switched protocols before the request was over")
            return
        self._registry.pool.forget(app)
        join(self.transport, app.transport, lambda: self._registry.lost(self), self._tunnelled)
        self._tunnelled()
        if not self._app_full:
            self.transport.resume_reading()
        if self._input:
            app.transport.write(self._input[self._at :])
            self._took(len(self._input))
        self.transport.write(_response_head(raw, response, self._request) + early)

    def _tunnelled(self) -> None:
        self.deadline = time.monotonic() + TUNNEL_TIMEOUT

    def on_fault(self, error: str, detail: str) -> None:
        """The app's answer is missing, cut or nonsense."""
        self._drop_app()
        if self._answered:
            self._discard = True
        elif self._answering:
            # Cut for the client too; in HTTP/1.0 only a reset tells it from a whole one.
            self._closed = True
            if self._request is None or self._request.minor == 0:
                reset(self.transport)
            else:
                self.deadline = time.monotonic() + FLUSH_TIMEOUT
                self.transport.close()
            return
        else:
            body = error_body(502, error, detail)
            status = b"Proxy-Status: smartgw-host; error=" + _ERROR_TYPES[error].encode()
            self._answer_here(502, body, status)
        self._advance()

    def _answer_here(self, status: int, body: bytes, *lines: bytes) -> None:
        assert self._request is not None
        if self._request.expect and self._body is not None and not self._body.done:
            self._last = True
        if self._last:
            lines = (*lines, b"Connection: close")
        answer = own_answer(status, body, *lines)
        self.transport.write(answer[: -len(body)] if self._request.method == b"HEAD" else answer)
        self._over()

    def _over(self) -> None:
        """The answer has been given; what is left of the request still has to be read."""
        self._answered = True
        if self._body is None or self._body.done:
            self._body = None
            self._next()
            return
        self.deadline = time.monotonic() + LINGER
        if self._app is None or not self._app.reusable:
            self._drop_app()
            self._discard = True
        if self._last:
            self._linger()
        else:
            self._advance_soon()

    def _next(self) -> None:
        self._drop_app(clean=True)
        self._request = None
        if self._last:
            self._linger()
            return
        self.deadline = time.monotonic() + (HEAD_TIMEOUT if self._input else IDLE_TIMEOUT)
        self._advance_soon()

    def _refuse(self, status: int, reason: str) -> None:
        """Answer what is not surely framed, and read nothing after it."""
        self._drop_app()
        if self._answering and not self._answered:
            self.transport.abort()
            return
        if not self._answered or self._request is None:
            body = error_body(status, "request_refused", reason)
            self.transport.write(own_answer(status, body, b"Connection: close"))
        self._linger()

    def _linger(self) -> None:
        """End our side, and read on for a while: a close with unread bytes would be a reset,
        which can take the answer from a client that has not read it (RFC 9112 9.6)."""
        self._drop_app()
        self._lingering = True
        self._took(len(self._input))
        self._request = self._body = None
        self.deadline = time.monotonic() + FLUSH_TIMEOUT
        self.transport.write_eof()
        self.transport.resume_reading()


def _request_head(raw: bytes, request: RequestHead) -> bytes:
    upgrade = [b"Connection: Upgrade"] if request.upgrade else []
    return _relayed(raw, request.lines, keep_upgrade=bool(upgrade), added=upgrade)


def _response_head(
    raw: bytes,
    response: ResponseHead,
    request: RequestHead,
    *,
    last: bool = False,
    flagged: bool = False,
) -> bytes:
    keep_upgrade = bool(response.upgrade) and response.status in (101, 426)
    framed = response.status >= 200 and response.status != 204
    options = [b"Upgrade"] if keep_upgrade else []
    if last:
        options.append(b"close")
    added = [b"Connection: " + b", ".join(options)] if options else []
    if response.length == UNTIL_CLOSE and request.minor:
        added.append(b"Transfer-Encoding: chunked")
    if flagged:
        added.append(b": ".join(FLAG))
    return _relayed(
        b"HTTP/1.1" + raw[8:],
        response.lines,
        keep_upgrade=keep_upgrade,
        added=added,
        keep_length=framed,
        keep_coding=framed and response.length == CHUNKED and request.minor == 1,
    )


def _relayed(
    raw: bytes,
    passed: list[bytes],
    *,
    keep_upgrade: bool,
    added: list[bytes],
    keep_length: bool = True,
    keep_coding: bool = True,
) -> bytes:
    """The head `raw` with every line in its place, without those of one connection only.

    `passed` are the lines, in order, that `http1.py` found to be no concern of the connection.
    """
    lines = raw.split(b"\r\n")
    kept = [lines[0]]
    place = 0
    for line in lines[1:]:
        if place < len(passed) and passed[place] == line:
            place += 1
            kept.append(line)
            continue
        kind = NAMES[line.partition(b":")[0]]
        if (
            kind in (PASS, DROP, CONNECTION)  # PASS: the Connection field named it
            or (kind == UPGRADE and not keep_upgrade)
            or (kind == LENGTH and not keep_length)
            or (kind == CODING and not keep_coding)
        ):
            continue
        kept.append(line)
    return b"\r\n".join(kept + added) + b"\r\n\r\n"


def _trailers(lines: list[bytes]) -> list[bytes]:
    """Trailers that are no field of framing, routing or the connection (RFC 9110 6.5.1)."""
    return [line for line in lines if NAMES[line.partition(b":")[0]] == PASS]
