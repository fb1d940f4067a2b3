"""Three readers of one HTTP/1 message: ours, llhttp (by httptools) and h11, with one answer type.

Owns how each is driven, and nothing else: which answers may differ is tests/fuzz.py's. Ours is
driven as the gateway drives it, in pieces if asked to, with the checks on unfinished heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import h11
import httptools

from smartgw.routing.hostname import hostname_of
from smartgw_hosts.chunked import ChunkedBody
from smartgw_hosts.http1 import (
    CHUNKED,
    PASS,
    UNTIL_CLOSE,
    Bounds,
    FieldNames,
    MessageRefused,
    check_partial,
    parse_request,
    parse_response,
)

Field = tuple[bytes, bytes]
_NAMES = FieldNames(lambda _: PASS)
_H11_LIMIT = 1 << 20
# llhttp has a list of methods where the grammar has tokens (RFC 9110 9.1); CONNECT and some
# others it takes for the beginning of another protocol.
_LLHTTP_METHODS = frozenset(
    b"DELETE GET HEAD POST PUT OPTIONS TRACE COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK"
    b" BIND REBIND UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE"
    b" UNSUBSCRIBE PATCH PURGE MKCALENDAR LINK UNLINK".split()
)


class Verdict(Enum):
    """What a reader makes of the bytes it was given."""

    REFUSED = "refused"
    WAITS = "waits"
    WHOLE = "whole"


@dataclass(slots=True)
class Reading:
    """One message as one reader sees it.

    Attributes:
        start: method and target, or the status; empty while the head is not whole.
        host: the authority that names the host, for a request.
        fields: lower-case names and values, without those that ours leaves out.
        end: the place behind the message when it is WHOLE.
        left: bytes of a body with a length that are still to come; 0 for other framings.
        until_close: the body ends with the connection.
        upgrade: another protocol may follow.
        status, reason: why it was REFUSED; only ours has a status.
    """

    verdict: Verdict = Verdict.WAITS
    start: tuple[bytes, ...] = ()
    host: bytes = b""
    fields: list[Field] = field(default_factory=list)
    body: bytes = b""
    trailers: list[Field] = field(default_factory=list)
    end: int = 0
    left: int = 0
    keep_alive: bool = False
    until_close: bool = False
    upgrade: bool = False
    status: int = 0
    reason: str = ""


def _split(lines: Sequence[bytes]) -> list[Field]:
    parts = (line.partition(b":") for line in lines)
    return [(name.lower(), value.strip(b" \t")) for name, _, value in parts]


class Ours:
    """Our reading of the first message of a stream that comes in pieces.

    `method` is that of the request that the message answers, None for a message that is one.
    """

    def __init__(self, bounds: Bounds, method: bytes | None) -> None:
        self.reading = Reading()
        self._bounds = bounds
        self._method = method
        self._buffer = b""
        self._taken = 0
        self._body: ChunkedBody | None = None

    def feed(self, data: bytes) -> None:
        """Take more; raises MessageRefused, or whatever else a fault of ours may raise."""
        if self.reading.verdict is Verdict.WHOLE:
            return
        if not self.reading.start:
            data = self._buffer + data
            forgiven = 2 if self._method is None and data[:2] == b"\r\n" else 0
            end = data.find(b"\r\n\r\n", forgiven)
            if end < 0 or end - forgiven > self._bounds.head:
                if self._method is None:
                    check_partial(data[forgiven:], self._bounds)
                elif len(data) > self._bounds.head + 3:
                    raise MessageRefused(502, "the head of the answer is too long")
                self._buffer = data
                return
            self._parse(data[forgiven:end])
            self._taken = end + 4
            data = data[end + 4 :]
        self._take_body(data)

    def _parse(self, raw: bytes) -> None:
        reading = self.reading
        if self._method is None:
            request = parse_request(raw, _NAMES, self._bounds)
            if hostname_of(request.authority) is None:
                raise MessageRefused(400, "the request names no valid host")
            length, lines = request.length, request.lines
            reading.start = (request.method, request.target)
            reading.host = request.authority
            reading.keep_alive, reading.upgrade = request.keep_alive, bool(request.upgrade)
        else:
            answer = parse_response(raw, _NAMES, self._bounds, self._method)
            length, lines = answer.length, answer.lines
            reading.start = (b"%d" % answer.status,)
            reading.keep_alive, reading.upgrade = answer.keep_alive, bool(answer.upgrade)
        reading.fields = _split(lines)
        if length == CHUNKED:
            self._body = ChunkedBody(self._bounds)
        elif length == UNTIL_CLOSE:
            reading.until_close = True
        else:
            reading.left = length

    def _take_body(self, data: bytes) -> None:
        reading = self.reading
        if self._body is not None:
            payload, end = self._body.feed(data)
            reading.body += payload
            self._taken += end
            if self._body.done:
                reading.trailers = _split(self._body.trailers)
                reading.verdict, reading.end = Verdict.WHOLE, self._taken
        elif reading.until_close:
            reading.body += data
        else:
            payload = data[: reading.left]
            reading.body += payload
            reading.left -= len(payload)
            self._taken += len(payload)
            if not reading.left:
                reading.verdict, reading.end = Verdict.WHOLE, self._taken


def ours(data: bytes, bounds: Bounds, method: bytes | None, cuts: Sequence[int] = ()) -> Reading:
    """Return our reading of the first message, its bytes fed in pieces that end at `cuts`."""
    reader = Ours(bounds, method)
    begin = 0
    try:
        for cut in (*cuts, len(data)):
            reader.feed(data[begin:cut])
            begin = cut
    except MessageRefused as refused:
        reader.reading.verdict = Verdict.REFUSED
        reader.reading.status, reader.reading.reason = refused.status, refused.reason
    return reader.reading


class _Callbacks:
    """What httptools calls; everything it says about the first message."""

    def __init__(self) -> None:
        self.url = b""
        self.seen: list[Field] = []
        self.head: list[Field] | None = None
        self.body = b""
        self.whole = False
        self.keeps = False
        self.parser: httptools.HttpRequestParser | httptools.HttpResponseParser | None = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.whole:
            self.seen.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        if self.head is None:
            self.head, self.seen = self.seen, []

    def on_body(self, body: bytes) -> None:
        if not self.whole:
            self.body += body

    def on_message_complete(self) -> None:
        if not self.whole and self.parser is not None:
            self.keeps = self.parser.should_keep_alive()
        self.whole = True


def by_llhttp(data: bytes, end: int, method: bytes | None) -> Reading:
    """Return llhttp's reading of the first message, which according to ours is over at `end`.

    llhttp does not tell where a message ends. So it gets all bytes before `end` but one, and then
    that one: the answer's `end` is the same if they agree, and less if it was over before.
    """
    reading = Reading()
    said = _Callbacks()
    first = 2 if method is None and data[:2] == b"\r\n" else 0
    shift = 0
    sent = b""
    if method is None:
        sent = data[first:].partition(b" ")[0]
        if sent and sent not in _LLHTTP_METHODS:
            data = data[:first] + b"POST" + data[first + len(sent) :]
            shift = 4 - len(sent)
            end += shift
    asks = httptools.HttpRequestParser(said) if method is None else None
    answers = httptools.HttpResponseParser(said) if method is not None else None
    parser = said.parser = asks or answers
    assert parser is not None
    fed = 0
    try:
        for piece in (data[: end - 1], data[end - 1 : end]):
            try:
                parser.feed_data(piece)
            except httptools.HttpParserUpgrade:
                reading.upgrade = True
            fed += len(piece)
            if said.whole:
                break
    except httptools.HttpParserError as error:
        if not said.whole:
            reading.verdict = Verdict.REFUSED
            reading.reason = f"{type(error).__name__}: {error}"
    said.parser = None
    if said.head is not None:
        reading.fields, reading.trailers = said.head, said.seen
        if answers is not None:
            reading.start = (b"%d" % answers.get_status_code(),)
        else:
            reading.start = (sent, said.url)
    reading.body = said.body
    if said.whole:
        reading.verdict, reading.keep_alive = Verdict.WHOLE, said.keeps
        reading.end = fed - shift
    return reading


def by_h11(data: bytes, method: bytes | None) -> Reading:
    """Return h11's reading of the first message."""
    reading = Reading()
    connection = h11.Connection(
        h11.SERVER if method is None else h11.CLIENT, max_incomplete_event_size=_H11_LIMIT
    )
    forgiven = 0
    if method is None:
        # RFC 9112 2.2: an empty line before a request is to be ignored; h11 refuses it.
        forgiven = 2 if data[:2] == b"\r\n" else 0
    else:
        # With an upgrade in it: else h11 has no word on a 101, which only path.py can judge.
        asked = [("Host", "a"), ("Connection", "upgrade"), ("Upgrade", "websocket")]
        connection.send(h11.Request(method=method, target="/", headers=asked))
        connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(data[forgiven:])
        _follow(connection, reading)
        if reading.verdict is Verdict.WAITS and reading.start and method is not None:
            reading.until_close = _ends_with_connection(connection)
    except h11.RemoteProtocolError as error:
        reading.verdict, reading.reason = Verdict.REFUSED, str(error)
    if reading.verdict is Verdict.WHOLE:
        reading.end = len(data) - len(connection.trailing_data[0])
    return reading


def _follow(connection: h11.Connection, reading: Reading) -> None:
    """Take h11's events up to the end of the message or of the bytes."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            reading.start = (event.method, event.target)
            reading.fields = list(event.headers)
        elif isinstance(event, (h11.Response, h11.InformationalResponse)):
            reading.start = (b"%d" % event.status_code,)
            reading.fields = list(event.headers)
            if isinstance(event, h11.InformationalResponse):
                reading.verdict, reading.keep_alive = Verdict.WHOLE, True
                return
        elif isinstance(event, h11.Data):
            reading.body += event.data
        elif isinstance(event, h11.EndOfMessage):
            reading.trailers = list(event.headers)
            reading.verdict = Verdict.WHOLE
            reading.keep_alive = connection.their_state is not h11.MUST_CLOSE
            return
        else:
            return


def _ends_with_connection(connection: h11.Connection) -> bool:
    try:
        connection.receive_data(b"")
        return isinstance(connection.next_event(), h11.EndOfMessage)
    except h11.RemoteProtocolError:
        return False
