"""The sidecar that understands HTTP, with real sockets on both sides."""

import asyncio
import contextlib
import errno
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from smartgw_hosts import challenge
from smartgw_hosts.challenge import PATH
from smartgw_hosts.sidecar import Sidecar
from tests.hosts.challenges import ask, proves, responder
from tests.hosts.sidecars import Running, sidecar
from tests.raw_http import Answer, Downstream
from tests.upstreams import (
    HANDSHAKE,
    Connection,
    Request,
    Script,
    Upstream,
    accept,
    answering,
    each,
    serve,
)

GET = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n"


@contextmanager
def front(script: Script = serve, connections: int = 100) -> Iterator[tuple[Upstream, Running]]:
    """An app and the sidecar before it."""
    app = Upstream(script)
    try:
        with sidecar(app.port, connections=connections) as running:
            yield app, running
    finally:
        app.close()
    assert app.errors == []


def prove(client: Downstream) -> None:
    """The connection is still one on which a host proves its key."""
    asked = ask()
    client.send(challenge.request(asked))
    answer = client.answer("POST")
    assert proves(asked, answer.status, answer.body)


def lines_of(answer: Answer) -> list[bytes]:
    return answer.head.removesuffix(b"\r\n\r\n").split(b"\r\n")


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until it is so; an idle machine needs less than `seconds`, a busy one has ten times."""
    until = time.monotonic() + 10 * seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


# --- challenges and framing


def test_challenges_and_requests_on_one_connection() -> None:
    """2.3: a challenge is answered on the very connection that carries requests, at any time."""
    with front() as (app, running), running.connect() as client:
        for _ in range(3):
            prove(client)
            client.send(GET)
            assert client.answer().status == 200
    assert len(app.requests) == 3
    assert app.accepted == 1


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (b"POST", b"GET", 405),
        (b"Accept:", b"Via: 1.1 c1\r\nAccept:", 403),
        (b"Accept:", b"forwarded: for=x\r\nAccept:", 403),
        (b"Accept:", b"X_Forwarded: x\r\nVia : x\r\nAccept:", 400),
        (b'"h1"', b'"h2"', 403),
    ],
)
def test_refused_challenges(old: bytes, new: bytes, status: int) -> None:
    """2.1: only its own challenges that came straight from a gateway are signed."""
    with front() as (app, running), running.connect() as client:
        client.send(challenge.request(ask()).replace(old, new, 1))
        answer = client.answer("POST")
        assert answer.status == status
        assert b"signature" not in answer.body
    assert app.requests == []


@pytest.mark.parametrize(
    "target",
    [
        b"/.well-known/smartgw/%63hallenge",
        b"/.well-known/smartgw/challenge?",
        b"//.well-known/smartgw/challenge",
        b"/x/../.well-known/smartgw/challenge",
        b"http://shop/.well-known/smartgw/challenge",
    ],
)
def test_other_spellings_are_the_apps(target: bytes) -> None:
    """2.1: a request is a challenge by its raw target, byte for byte; any other is not signed."""
    with front() as (app, running), running.connect() as client:
        client.send(challenge.request(ask()).replace(PATH, target, 1))
        assert json.loads(client.answer("POST").body)["raw_target"] == target.decode()
    assert app.requests[0].raw_target == target


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_challenge_inside_a_body(framing: str) -> None:
    """2.1: what framing calls a body is never read as a challenge."""
    hidden = challenge.request(ask())
    head = b"POST /a HTTP/1.1\r\nHost: shop\r\n"
    if framing == "length":
        whole = head + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden
    else:
        whole = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            len(hidden),
            hidden,
        )
    with front() as (app, running), running.connect() as client:
        for step in (len(whole), 7):
            for start in range(0, len(whole), step):
                client.send(whole[start : start + step])
            answer = client.answer()
            assert json.loads(answer.body)["body"] == len(hidden)
        prove(client)
    assert [request.body for request in app.requests] == [hidden, hidden]


def test_challenge_pipelined_after_a_request() -> None:
    """2.1: a challenge behind a request is answered in its turn, after the app's answer."""
    asked = ask()
    with front() as (app, running), running.connect() as client:
        client.send(GET, challenge.request(asked), GET)
        assert b"raw_target" in client.answer().body
        answer = client.answer("POST")
        assert proves(asked, answer.status, answer.body)
        assert b"raw_target" in client.answer().body
    assert len(app.requests) == 2


@pytest.mark.parametrize(
    "extra",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"X: a\nContent-Length: 5\r\n",
        b"X: a\r\n b\r\n",
        b"Host: b\r\n",
        b"X\x00: a\r\n",
    ],
)
def test_doubtful_framing_is_refused(extra: bytes) -> None:
    """2.1: what is not surely framed is refused and closes, so that no challenge can hide in it."""
    with front() as (app, running), running.connect() as client:
        client.send(b"POST /a HTTP/1.1\r\nHost: shop\r\n", extra, b"\r\n", challenge.request(ask()))
        answer = client.answer()
        assert answer.status == 400
        assert b"signature" not in client.rest()
    assert app.requests == []


def test_malformed_chunk_aborts_the_app() -> None:
    """3.6: a malformed body aborts the app's connection: never a shorter, complete request."""
    ends: list[bool] = []

    def script(connection: Connection) -> None:
        request = connection.head()
        assert connection.chunk() == b"abc"
        try:
            connection.read_body(request)
        except (EOFError, OSError):
            ends.append(True)

    with front(script) as (_, running), running.connect() as client:
        client.send(b"PUT /a HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        time.sleep(0.05)
        client.send(b"0x3\r\nabc\r\n", challenge.request(ask()))
        assert client.answer().status == 400
        assert b"signature" not in client.rest()
        within(2, lambda: ends == [True])


def test_head_and_challenge_bounds() -> None:
    """3.11: heads are bounded; the body of a challenge has 4 KiB."""
    with front() as (app, running):
        with running.connect() as client:
            client.send(b"GET / HTTP/1.1\r\nHost: s\r\nX: ", b"x" * 100_000)
            assert client.answer().status == 431
        with running.connect() as client:
            client.send(b"POST " + PATH + b" HTTP/1.1\r\nHost: s\r\nContent-Length: 9000\r\n\r\n")
            client.send(b"x" * 5000)
            assert client.answer().status == 400
            client.send(b"x" * 4000)
            prove(client)
    assert app.requests == []


# --- what passes unchanged


def test_byte_faithful() -> None:
    """3.5: method, target, order and duplicates of fields pass unchanged, both ways."""
    request = [
        b"PurGe //a%2Fb%27;d/%2520/../?x=%21&y=a+b&& HTTP/1.1",
        b"X-A: 1",
        b"hOsT:shop.example",
        b"x-a:  2 \t",
        b"Cookie: a=\xff\xfe",
        b"X-A: 1",
        b"Content-Length: 3",
        b"X_B: 4",
        b"X-Empty:",
    ]
    answer = [
        b"HTTP/1.1 299 Very \xff fine",
        b"Set-Cookie: a=1",
        b"content-LENGTH:  2",
        b"Set-Cookie: a=1",
        b"set-cookie: b=2",
        b"X-Empty:",
    ]

    def script(connection: Connection) -> None:
        connection.request()
        connection.send(b"\r\n".join(answer), b"\r\n\r\nok")
        connection.request()

    with front(script) as (app, running), running.connect() as client:
        client.send(b"\r\n".join(request), b"\r\n\r\nabc")
        assert lines_of(client.answer()) == answer
    assert app.requests[0].head.split(b"\r\n") == request


def test_connection_fields_are_left_behind() -> None:
    """3.5: fields of one connection stay on it, and naming others removes only these."""
    sent = (
        b"GET / HTTP/1.1\r\nHost: shop\r\nConnection: X-Own, close, Host, Content-Length\r\n"
        b"X-Own: 1\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nX-Kept: 1\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    raw = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Upgrade: h2\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok"
    )
    with front(answering(raw)) as (app, running), running.connect() as client:
        client.send(sent)
        answer = client.answer()
        assert [name for name, _ in answer.fields] == [b"X-Kept", b"Content-Length", b"Connection"]
        assert answer.one("connection") == "close"
        assert client.rest() == b""
        assert client.ended == "fin"
    names = [name for name, _ in app.requests[0].fields]
    assert names == [b"Host", b"X-Kept", b"Content-Length"]


def test_chunked_both_ways_with_trailers() -> None:
    """3.5: chunked bodies and their trailers pass; a trailer never carries framing."""

    def script(connection: Connection) -> None:
        request = connection.request()
        connection.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
            b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\nContent-Length: 9\r\nX-T: 2\r\n\r\n"
        )
        connection.request()
        assert request.whole

    with front(script) as (app, running), running.connect() as client:
        client.send(
            b"POST / HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nX-R: 1\r\nHost: evil\r\nX-R: 2\r\n\r\n"
        )
        answer = client.answer()
        assert (answer.body, answer.complete) == (b"abcde", True)
        assert answer.trailers == [(b"X-T", b"1"), (b"X-T", b"2")]
        prove(client)
    assert app.requests[0].body == b"hello!"
    assert app.requests[0].trailers == [(b"X-R", b"1"), (b"X-R", b"2")]


def test_events_pass_one_by_one() -> None:
    """3.6: what the app has said is with the client at once."""
    more = threading.Event()

    def behave(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata:1\r\n")
        assert more.wait(5)
        connection.send(b"6\r\ndata:2\r\n0\r\n\r\n")

    with front(each(behave)) as (_, running), running.connect() as client:
        client.send(GET)
        assert client.final_head().framing == "chunked"
        assert client.chunk() == b"data:1"
        more.set()
        assert client.chunk() == b"data:2"


def test_interim_answers() -> None:
    """3.5: 1xx pass unchanged; 100 goes only to a client that sent Expect, and only once."""

    def behave(connection: Connection, request: Request) -> None:
        connection.send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        )
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.read_body(request)
        connection.reply()

    with front(each(behave)) as (_, running), running.connect() as client:
        client.send(
            b"PUT / HTTP/1.1\r\nHost: s\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert client.head().status == 100
        client.send(b"hi")
        answer = client.answer()
        assert [interim.status for interim in answer.interim] == [103]
        assert answer.interim[0].one("link") == "</a>"
        client.send(GET)
        assert [interim.status for interim in client.answer().interim] == [103]


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
    ],
)
def test_answers_without_a_body(method: str, raw: bytes) -> None:
    """3.5: HEAD, 204 and 304 have no body, whatever length they tell."""
    with front(answering(raw)) as (_, running), running.connect() as client:
        for _ in range(2):
            client.send(method.encode() + b" / HTTP/1.1\r\nHost: s\r\n\r\n")
            assert client.answer(method).complete
        prove(client)


# --- connections


def test_app_that_closes_after_each_answer() -> None:
    """2.3: the connection to the gateway, once proven, outlives the app's connections."""

    def script(connection: Connection) -> None:
        request = connection.request()
        if request.raw_target == b"/length":
            connection.reply(b"ok", "200 OK", "Connection: close")
        elif request.raw_target == b"/old":
            connection.send(b"HTTP/1.0 200 OK\r\n\r\nok")
        else:
            connection.send(b"HTTP/1.1 200 OK\r\n\r\nok")

    with front(script) as (app, running), running.connect() as client:
        for target in (b"/length", b"/none", b"/old", b"/length"):
            client.send(GET.replace(b"/", target, 1))
            answer = client.answer()
            assert (answer.status, answer.body, answer.complete) == (200, b"ok", True)
            assert answer.head.startswith(b"HTTP/1.1 ")
            assert answer.all("connection") == []
        prove(client)
    assert app.accepted == 4


def test_http_1_0_client() -> None:
    """3.5: a client of HTTP/1.0 gets no chunks, and the end of its connection as the end."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    with front(answering(raw)) as (_, running), running.connect() as client:
        client.send(b"GET / HTTP/1.0\r\nHost: s\r\n\r\n")
        answer = client.answer()
        assert (answer.framing, answer.body, answer.complete) == ("close", b"ok", True)


def test_kept_connections_are_used_again() -> None:
    """3.7: answers come over kept connections; one that the app closed is not used."""
    with front() as (app, running):
        with running.connect() as client:
            for _ in range(5):
                client.send(GET)
                client.answer()
            assert app.accepted == 1
            app.kill()
            time.sleep(0.05)
            app.listen()
            client.send(GET)
            assert client.answer().status == 200
        assert app.accepted == 2


def test_app_down(caplog: pytest.LogCaptureFixture) -> None:
    """3.7: an app that is not there is a 502 with a reason, on a connection that stays usable; the
    answer says nothing of where the app is, and the log tells an outage once, and its end."""
    caplog.set_level("INFO")
    app = Upstream(serve)
    app.refuse()
    with sidecar(app.port) as running, running.connect() as client:
        for _ in range(2):
            client.send(b"POST / HTTP/1.1\r\nHost: s\r\nContent-Length: 200000\r\n\r\n")
            client.send(b"x" * 200_000)
            answer = client.answer()
            assert answer.status == 502
            error = json.loads(answer.body)["error"]
            assert (error.pop("status"), error.pop("reason")) == (502, "app_unreachable")
            assert list(error) == ["message"]
            assert answer.body.endswith(b"}\n")
            assert str(app.port).encode() not in answer.body
            assert lines_of(answer)[0] == b"HTTP/1.1 502 Bad Gateway"
            assert "connection_refused" in answer.one("proxy-status")
            prove(client)
        app.listen()
        client.send(GET)
        assert client.answer().status == 200
    app.close()
    said = [record.message for record in caplog.records if "app at" in record.message]
    assert said == [
        f"app at http://127.0.0.1:{app.port} refuses connections; start it or correct --to",
        f"app at http://127.0.0.1:{app.port} is back",
    ]


def test_never_a_second_try() -> None:
    """3.7: a request of which a byte was sent is never sent again, on a kept connection either."""
    seen: list[bytes] = []

    def script(connection: Connection) -> None:
        while True:
            request = connection.request()
            seen.append(request.raw_target)
            if request.raw_target == b"/die":
                connection.reset()
                return
            connection.reply()

    with front(script) as (_, running), running.connect() as client:
        for method in (b"GET", b"POST", b"PUT", b"DELETE"):
            client.send(method + b" /ok HTTP/1.1\r\nHost: s\r\n\r\n")
            assert client.answer().status == 200
            client.send(method + b" /die HTTP/1.1\r\nHost: s\r\n\r\n")
            answer = client.answer()
            assert answer.status == 502
            assert json.loads(answer.body)["error"]["reason"] == "app_closed"
        prove(client)
    assert seen == [b"/ok", b"/die"] * 4


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"nonsense\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ],
)
def test_malformed_answers(raw: bytes) -> None:
    """3.5: an answer that is not surely framed is a 502, and the connection stays in step."""
    with front(answering(raw, then_close=True)) as (_, running), running.connect() as client:
        for _ in range(2):
            client.send(GET)
            assert client.answer().status == 502
            prove(client)


@pytest.mark.parametrize("ending", ["fin", "reset"])
@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    ],
)
def test_cut_answers_are_cut(raw: bytes, ending: str) -> None:
    """3.6: an app that is killed in the middle of a body is seen by the client as that."""

    def script(connection: Connection) -> None:
        connection.request()
        connection.send(raw)
        time.sleep(0.05)
        if ending == "reset":
            connection.reset()

    with front(script) as (_, running), running.connect() as client:
        client.send(GET)
        answer = client.answer()
        assert (answer.status, answer.complete) == (200, False)
        assert b"abc".startswith(answer.body)


def test_close_delimited_answer_that_is_reset() -> None:
    """3.6: a reset is no end of a close-delimited answer."""

    def script(connection: Connection) -> None:
        connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        time.sleep(0.05)
        connection.reset()

    with front(script) as (_, running), running.connect() as client:
        client.send(GET)
        assert not client.answer().complete


def test_extra_bytes_are_never_the_next_answer() -> None:
    """3.5: bytes behind an answer end the app's connection and reach nobody."""
    raw = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + b"HTTP/1.1 200 OK\r\nX-Evil: 1\r\n\r\n"
    )
    with front(answering(raw)) as (app, running), running.connect() as client:
        for _ in range(3):
            client.send(GET)
            answer = client.answer()
            assert (answer.body, answer.all("x-evil")) == (b"ok", [])
    assert app.accepted == 3


def test_client_that_goes_away() -> None:
    """3.6: a client that goes away cancels its request."""
    gone = threading.Event()

    def behave(connection: Connection, request: Request) -> None:
        if connection.ended(5):
            gone.set()

    with front(each(behave)) as (_, running):
        for leave in (Downstream.close, Downstream.reset):
            gone.clear()
            client = running.connect()
            client.send(GET)
            time.sleep(0.05)
            leave(client)
            assert gone.wait(2)


# --- early answers


def upload(client: Downstream, size: int) -> threading.Thread:
    """Send a body in the background, however that ends."""

    def send() -> None:
        with contextlib.suppress(OSError):
            for _ in range(size // 65_536):
                client.send(bytes(65_536))

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("ending", ["fin", "reset"])
def test_early_answer(ending: str) -> None:
    """3.6: an early final answer (413 during an upload) reaches the client."""
    size = 28 << 20

    def script(connection: Connection) -> None:
        connection.head()
        connection.reply(b"too large", "413 Content Too Large", "Connection: close")
        # Closing with unread bytes makes a reset, which the upload then runs into.
        if ending == "fin":
            connection.socket.shutdown(socket.SHUT_WR)
            connection.ended(2)

    with front(script) as (_, running):
        for _ in range(5):
            with running.connect() as client:
                client.send(b"PUT / HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n" % size)
                sending = upload(client, size)
                answer = client.answer()
                assert (answer.status, answer.body) == (413, b"too large")
                sending.join()
                prove(client)


def test_early_answer_to_expect() -> None:
    """3.6: a client that was refused instead of told to continue may not send the body: it ends."""
    script = each(lambda connection, _: connection.reply(b"", "417 No"))
    with front(script) as (_, running), running.connect() as client:
        client.send(
            b"PUT / HTTP/1.1\r\nHost: s\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        )
        answer = client.answer()
        assert (answer.status, answer.one("connection")) == (417, "close")
        assert client.closed(2)


def test_answer_before_the_request_is_over() -> None:
    """3.6: an app may answer and still read; its connection is kept only when all was read."""

    def script(connection: Connection) -> None:
        request = connection.head()
        connection.reply(b"first")
        connection.read_body(request)
        connection.request()
        connection.reply(b"second")
        connection.request()

    with front(script) as (app, running), running.connect() as client:
        client.send(b"PUT /1 HTTP/1.1\r\nHost: s\r\nContent-Length: 4\r\n\r\nab")
        assert client.answer().body == b"first"
        client.send(b"cd", GET)
        assert client.answer().body == b"second"
    assert app.requests[0].body == b"abcd"
    assert app.accepted == 1


# --- upgrades


def test_upgrade() -> None:
    """3.6: after a 101 bytes pass both ways; a half-close passes and the other way goes on."""

    def script(connection: Connection) -> None:
        accept(connection, connection.head(), b"early")
        data = b""
        with contextlib.suppress(EOFError):
            while True:
                connection.more()
                data = bytes(connection.buffer)
        connection.send(b"after:" + data)

    with front(script) as (app, running), running.connect() as client:
        client.send(HANDSHAKE.format(hostname="shop").encode())
        answer = client.answer()
        assert answer.status == 101
        assert answer.one("upgrade") == "websocket"
        assert answer.one("connection") == "Upgrade"
        assert client.take(5) == b"early"
        hidden = challenge.request(ask())
        client.send(hidden)
        client.half_close()
        assert client.rest() == b"after:" + hidden
        assert client.ended == "fin"
    assert app.requests[0].one("connection") == "Upgrade"


def test_upgrade_cut_by_the_app() -> None:
    """3.6: a reset of an upgraded stream reaches the other side as one."""

    def script(connection: Connection) -> None:
        accept(connection, connection.head())
        connection.more()
        connection.reset()

    with front(script) as (_, running), running.connect() as client:
        client.send(HANDSHAKE.format(hostname="shop").encode())
        assert client.answer().status == 101
        client.send(b"x")
        client.rest()
        assert client.ended == "reset"


def test_refused_upgrade() -> None:
    """3.6: an app that answers 200 to an upgrade gives a plain answer and no tunnel."""
    with front() as (_, running), running.connect() as client:
        client.send(HANDSHAKE.format(hostname="shop").encode())
        assert client.answer().status == 200
        prove(client)


# --- memory


def peak_growth(work: Callable[[], None]) -> int:
    """Bytes by which the greatest memory of this process grew."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10


def test_large_bodies_are_never_whole_in_memory() -> None:
    """3.6: 300 MiB each way, a reader that stalls first on either side: memory stays bounded."""
    size = 300 << 20
    block = bytes(1 << 20)

    def behave(connection: Connection, request: Request) -> None:
        time.sleep(0.3)
        left = size - len(connection.buffer)
        while left:
            data = connection.socket.recv(1 << 18)
            left -= len(data)
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 20):
            connection.send(block)

    with front(each(behave)) as (_, running), running.connect(timeout=60) as client:

        def transfer() -> None:
            client.send(b"PUT / HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size >> 20):
                client.send(block)
            assert client.final_head().status == 200
            time.sleep(0.3)
            left = size - len(client.buffer)
            while left:
                data = client.socket.recv(1 << 18)
                assert data
                left -= len(data)

        assert peak_growth(transfer) < 16 << 20


# --- stopping


def test_graceful_stop() -> None:
    """11.1: stopping ends idle connections, finishes what is in flight and accepts no more."""
    release = threading.Event()

    def behave(connection: Connection, request: Request) -> None:
        assert release.wait(10)
        connection.reply(b"done")

    with front(each(behave)) as (_, running):
        idle, busy = running.connect(), running.connect()
        prove(idle)
        busy.send(GET)
        time.sleep(0.05)
        stopping = threading.Thread(target=running.stop, args=(10,))
        stopping.start()
        assert idle.closed(3)
        with socket.socket() as late:
            assert late.connect_ex(("127.0.0.1", running.port)) == errno.ECONNREFUSED
        assert stopping.is_alive()
        release.set()
        answer = busy.answer()
        assert (answer.body, answer.one("connection")) == (b"done", "close")
        assert busy.closed(2)
        busy.close()
        stopping.join(5)
        assert not stopping.is_alive()
        idle.close()


def test_stop_cuts_what_does_not_end() -> None:
    """11.1: what is still in flight when the time is over is cut."""
    begun, release = threading.Event(), threading.Event()

    def never(connection: Connection, request: Request) -> None:
        begun.set()
        release.wait(30)

    with front(each(never)) as (_, running), running.connect() as client:
        try:
            client.send(GET)
            assert begun.wait(10)
            running.stop(0.7)
            assert client.closed(10)
            assert not release.is_set()
        finally:
            release.set()


def test_port_is_taken() -> None:
    """11.5: a port that cannot be listened on is an error at the start."""
    with front() as (_, running):
        second = Sidecar(responder(), ("127.0.0.1", running.port), ("127.0.0.1", 1))
        with pytest.raises(OSError, match="in use"):
            asyncio.run(second.start())
