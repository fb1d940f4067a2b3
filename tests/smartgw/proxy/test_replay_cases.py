"""Real reports against systems of this kind, each as a request to a real gateway in front of a
proven host.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

import pytest

from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Host, MakeHost, wait_until
from tests.upstreams import Connection, Request, answering, blackhole, each


@pytest.fixture(scope="module")
def echo(cluster: Cluster, gateway: Gateway) -> Any:
    """A host that echoes every request as JSON."""
    host = cluster.host()
    yield host
    host.stop()


def raw_exchange(gateway: Gateway, raw: bytes) -> tuple[int, bool]:
    """Status of the first answer to raw bytes, and whether the gateway closed."""
    with gateway.downstream() as client:
        client.send(raw)
        answer = client.answer()
        return answer.status, client.closed(2)


def seen(host: Host, mark: str) -> list[Request]:
    """Requests of a host whose raw target holds `mark`."""
    return [r for r in host.upstream.requests if mark.encode() in r.raw_target]


# --- hostname


def test_r01_trailing_dot(gateway: Gateway, echo: Host) -> None:
    """R01, 3.2: one trailing dot is dropped for routing and forwarded unchanged."""
    answer = gateway.ask(f"{echo.hostname}.", "/r01")
    assert answer.status == 200
    assert seen(echo, "/r01")[0].one("host") == f"{echo.hostname}."


def test_r02_upper_case_hostname(gateway: Gateway, echo: Host) -> None:
    """R02, 3.2: hostnames are compared in lower case."""
    assert gateway.ask(echo.hostname.upper(), "/r02").status == 200
    assert len(seen(echo, "/r02")) == 1


@pytest.mark.parametrize(
    ("hostname", "status"),
    [("", 400), ("127.0.0.1", 404), ("[::1]", 404), ("{app}:8443", 200), ("{app}:", 200)],
)
def test_r03_empty_address_and_port(
    gateway: Gateway, echo: Host, hostname: str, status: int
) -> None:
    """R03, 3.2, 3.4: an empty Host is 400 and not cacheable, an IP address unknown, a port
    ignored.
    """
    answer = gateway.ask(hostname.format(app=echo.hostname), "/r03")
    assert answer.status == status
    if status != 200:
        assert answer.one("cache-control") == "no-store"
    if status == 404:
        assert b"unknown_host" in answer.body


def test_r04_raw_utf8_hostname(gateway: Gateway, echo: Host) -> None:
    """R04, 3.2: raw UTF-8 on the wire is 400 and close."""
    raw = f"GET / HTTP/1.1\r\nHost: münchen.{BASE_DOMAIN}\r\n\r\n".encode()
    assert raw_exchange(gateway, raw) == (400, True)


@pytest.mark.parametrize(
    "line",
    [
        "Host: {app}\r\nHost: {app}",
        "Host: {app}\r\nHost: other",
        "Host: a b",
        "Host: {app},{app}",
        "Host: x@{app}",
        "Host: [::1",
        "Host: {app}:80:80",
        "Host: {app}:x",
        "Host: {app}/x",
        "Host: {app}?x",
        "Host: {app}%20",
        "X-Nothing: 1",
    ],
)
def test_r06_invalid_hosts(gateway: Gateway, echo: Host, line: str) -> None:
    """R06, 3.2: no Host, several or an invalid one: 400 and close, nothing forwarded."""
    raw = f"GET /r06bad HTTP/1.1\r\n{line.format(app=echo.hostname)}\r\n\r\n".encode()
    assert raw_exchange(gateway, raw) == (400, True)
    assert seen(echo, "/r06bad") == []


def test_r06_absolute_form_wins(gateway: Gateway, echo: Host) -> None:
    """R06, 3.2: an absolute-form target wins over Host, and the forwarded Host is its own."""
    raw = (
        f"GET http://{echo.hostname}/r06abs HTTP/1.1\r\nHost: other.{BASE_DOMAIN}\r\n"
        "Connection: close\r\n\r\n"
    )
    assert raw_exchange(gateway, raw.encode()) == (200, True)
    request = seen(echo, "/r06abs")[0]
    assert request.one("host") == echo.hostname
    assert request.raw_target == b"/r06abs"


def test_r06_absolute_form_needs_one_host(gateway: Gateway, echo: Host) -> None:
    """R06, 3.2: with an absolute-form target too, HTTP/1.1 needs exactly one Host."""
    raw = f"GET http://{echo.hostname}/r06none HTTP/1.1\r\n\r\n".encode()
    assert raw_exchange(gateway, raw) == (400, True)
    assert seen(echo, "/r06none") == []


def test_r07_wildcard_covers_one_label(gateway: Gateway, make_host: MakeHost) -> None:
    """R07, 3.3: `a.b.<base>` is unknown, and so is the bare base domain whatever app is called
    `*`.
    """
    host = make_host(app="*")
    plain = make_host()
    assert gateway.ask(f"a.{plain.hostname}").status == 404
    assert gateway.ask(BASE_DOMAIN).status == 404
    assert gateway.ask(f"anything.{BASE_DOMAIN}").status == 404
    assert host.upstream.requests == []


# --- discovery


def test_r11_stale_hosts_without_a_leave(gateway: Gateway, make_host: MakeHost) -> None:
    """R11, 3.7: three hosts die without a leave, three live: every request is answered
    200.
    """
    first = make_host()
    hosts = [first, *(make_host(app=first.app) for _ in range(5))]
    for host in hosts[:3]:
        host.cluster.beating.discard(host)
        host.upstream.kill()
    statuses = [gateway.ask(first.hostname).status for _ in range(30)]
    assert statuses == [200] * 30
    # a host that refuses connections is suspect: challenged at once, and out
    wait_until(lambda: all(gateway.state(h.host_id) != "healthy" for h in hosts[:3]), 5)


def test_r13_port_of_a_dead_host_is_reused(gateway: Gateway, make_host: MakeHost) -> None:
    """R13, 2.3: a program that took over a dead host's port never sees a request; the next host
    does.
    """
    dead = make_host()
    gateway.ask(dead.hostname)
    dead.upstream.kill()
    dead.upstream.requests.clear()
    dead.upstream.responder = None
    dead.upstream.listen()
    assert gateway.ask(dead.hostname, "/r13").status in (502, 503)
    alive = make_host(app=dead.app)
    assert [gateway.ask(alive.hostname, "/r13").status for _ in range(10)] == [200] * 10
    strangers = {r.raw_target for r in dead.upstream.requests}
    assert strangers <= {b"/.well-known/smartgw/challenge"}


# --- retries and bodies


def test_r18_refused_connection_takes_the_next_host(gateway: Gateway, make_host: MakeHost) -> None:
    """R18, 3.7: the first host refuses TCP, the second gets the whole POST: 200."""
    gone = make_host()
    alive = make_host(app=gone.app)
    gone.upstream.refuse()
    body = bytes(range(256)) * 64
    for number in range(8):
        answer = gateway.ask(gone.hostname, f"/r18/{number}", "POST", body=body)
        assert answer.status == 200
        (request,) = seen(alive, f"/r18/{number}")
        assert request.body == body


def test_r19_a_write_is_not_sent_again(gateway: Gateway, make_host: MakeHost) -> None:
    """R19, 5, 5.5: the host dies after it took a POST: one 502 that says so, the other host
    sees nothing.
    """

    def die(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        connection.reset()

    first = make_host(each(die))
    second = make_host(each(die), app=first.app)
    answer = gateway.ask(first.hostname, "/r19", "POST", body=b"once")
    assert answer.status == 502
    assert answer.one("x-smartgw-request-sent") == "full"
    assert len(first.upstream.requests) + len(second.upstream.requests) == 1


def test_r21_early_413(gateway: Gateway, make_host: MakeHost) -> None:
    """R21, 3.6: an upstream answers 413 in the middle of a 28 MB upload: the client reads it
    whole, no RST.
    """

    def refuse(connection: Connection, request: Request) -> None:
        connection.take(1000)
        connection.reply(b"too large", "413 Content Too Large", "Connection: close")
        connection.close()

    host = make_host(each(refuse))
    size = 28 << 20
    with gateway.downstream() as client:
        client.send(
            f"POST /r21 HTTP/1.1\r\nHost: {host.hostname}\r\n".encode(),
            b"Content-Length: %d\r\n\r\n" % size,
        )

        def upload() -> None:
            with contextlib.suppress(OSError):
                for _ in range(size >> 16):
                    client.send(bytes(1 << 16))

        sender = threading.Thread(target=upload, daemon=True)
        sender.start()
        time.sleep(0.3)
        answer = client.answer("POST")
        assert (answer.status, answer.body, answer.complete) == (413, b"too large", True)
        assert client.closed(8)
    sender.join(5)


def hold(connection: Connection, request: Request) -> None:
    """Take everything, answer nothing."""
    connection.ended(20)


@pytest.mark.parametrize("drip", [False, True])
def test_r22_deadline_in_the_middle_of_a_body(
    impatient: Gateway, make_host: MakeHost, drip: bool
) -> None:
    """R22, 5.1: the deadline passes in the middle of the body of a chunked GET: 504, no second
    attempt at the other host.
    """
    first = make_host(each(hold))
    second = make_host(each(hold), app=first.app)
    begun = time.monotonic()
    with impatient.downstream() as client:
        client.send(
            f"GET /r22 HTTP/1.1\r\nHost: {first.hostname}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode()
        )
        while drip and time.monotonic() - begun < 12 and not client.readable(0.1):
            client.send(b"1\r\nx\r\n")
        answer = client.answer()
    assert answer.status == 504
    assert 1.5 < time.monotonic() - begun < 15
    assert len(first.upstream.requests) + len(second.upstream.requests) == 1


def test_r23_hosts_that_swallow_syns(impatient: Gateway, make_host: MakeHost) -> None:
    """R23, 5.1: three hosts whose connect never finishes: 504 or 502 within the one deadline."""
    hosts = [make_host()]
    hosts += [make_host(app=hosts[0].app) for _ in range(2)]
    assert impatient.ask(hosts[0].hostname).status == 200
    filled = [blackhole(host.upstream) for host in hosts]
    try:
        answer = impatient.ask(hosts[0].hostname, "/r23")
        assert answer.status in (502, 503, 504)
    finally:
        for sockets in filled:
            for sock in sockets:
                sock.close()


@pytest.fixture(scope="module")
def impatient(cluster: Cluster, gateway: Gateway) -> Any:
    """A gateway with a deadline of 2 s to the response head and 0.5 s to connect."""
    made = cluster.gateway(
        {"deadlines": {"response_head": 2.0}, "upstream": {"connect_timeout": 0.5}}
    )
    yield made
    made.stop()


# --- protocol


def test_r24_one_100_and_only_when_asked(gateway: Gateway, make_host: MakeHost) -> None:
    """R24, 3.5: `Expect: 100-continue` gives exactly one 100, then the final answer."""

    def script(connection: Connection) -> None:
        while True:
            request = connection.head()
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.read_body(request)
            connection.reply(request.body)

    host = make_host(script)
    with gateway.downstream() as client:
        client.send(
            f"POST /r24 HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: 2\r\n"
            "Expect: 100-continue\r\n\r\n".encode()
        )
        assert client.head().status == 100
        client.send(b"hi")
        answer = client.answer("POST")
        assert (answer.status, answer.body, answer.interim) == (200, b"hi", [])
    plain = gateway.ask(host.hostname, "/r24", "POST", body=b"hi")
    assert (plain.status, plain.interim) == (200, [])


def test_r24_final_answer_instead_of_100(gateway: Gateway, make_host: MakeHost) -> None:
    """R24: after a final answer no 100 is ever sent, and what follows is not taken for a
    request.
    """
    refuse = each(lambda connection, request: connection.reply(b"no", "403 Forbidden"))
    host = make_host(refuse)
    with gateway.downstream() as client:
        client.send(
            f"POST /r24f HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: 20\r\n"
            "Expect: 100-continue\r\n\r\n".encode()
        )
        answer = client.answer("POST")
        assert (answer.status, answer.interim) == (403, [])
        client.closed(0.5)
        assert b"100 Continue" not in client.got


def test_r24_unknown_expectation(gateway: Gateway, echo: Host) -> None:
    """R24: an unknown expectation is 417 (RFC 9110 10.1.1), nothing forwarded."""
    assert gateway.ask(echo.hostname, "/r24u", "POST", "Expect: 200-ok", body=b"x").status == 417
    assert seen(echo, "/r24u") == []


@pytest.mark.parametrize("announced", [True, False])
def test_r26_trailers(gateway: Gateway, make_host: MakeHost, announced: bool) -> None:
    """R26, 3.5: trailers pass, announced or not, with a body or without; framing and routing
    never.
    """
    trailer = b"Trailer: X-Sum\r\n" if announced else b""
    raw = (
        b"HTTP/1.1 200 OK\r\n" + trailer + b"Transfer-Encoding: chunked\r\n\r\n"
        b"0\r\nX-Sum: 7\r\nContent-Length: 5\r\nX-Failover-Cluster: c9\r\n\r\n"
    )
    host = make_host(answering(raw))
    answer = gateway.ask(host.hostname, "/r26", "GET", "TE: trailers")
    assert answer.complete
    assert answer.trailers == [(b"X-Sum", b"7")]


def test_r26_request_trailers(gateway: Gateway, make_host: MakeHost) -> None:
    """R26, 3.5: request trailers meet the same removals as fields, the rest arrives."""
    host = make_host()
    with gateway.downstream() as client:
        client.send(
            f"POST /r26 HTTP/1.1\r\nHost: {host.hostname}\r\n".encode(),
            b"Transfer-Encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\nX-Sum: 7\r\nX_Forwarded-For: 1.2.3.4\r\nHost: other\r\n\r\n",
        )
        assert client.answer("POST").status == 200
    (request,) = seen(host, "/r26")
    assert (request.body, request.trailers) == (b"hi", [(b"X-Sum", b"7")])


@pytest.mark.parametrize(
    "fields",
    [
        ("Connection:", "Connection: X-Forwarded-For"),
        ("Connection: X-Forwarded-For, X-Forwarded-Host, Forwarded, Via",),
        ("Connection: host, content-length, x-forwarded-proto, x-request-id",),
    ],
)
def test_r27_connection_cannot_name_ours(
    gateway: Gateway, echo: Host, fields: tuple[str, ...]
) -> None:
    """R27, 3.5: naming framing fields, Host or fields of ours in Connection never removes those."""
    mark = f"/r27/{len(echo.upstream.requests)}"
    answer = gateway.ask(echo.hostname, mark, "POST", *fields, body=b"body")
    assert answer.status == 200
    (request,) = seen(echo, mark)
    assert request.one("host") == echo.hostname
    assert request.body == b"body"
    assert request.one("x-forwarded-for") == "127.0.0.1"
    for name in ("x-forwarded-proto", "x-forwarded-host", "forwarded", "via", "x-request-id"):
        assert request.one(name), name


def test_r34_conflicting_framing(gateway: Gateway, echo: Host) -> None:
    """R34: CL with TE, differing and equal duplicates of CL: 400 and close, nothing forwarded."""
    for lines in (
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
    ):
        raw = f"POST /r34 HTTP/1.1\r\nHost: {echo.hostname}\r\n{lines}\r\n\r\nhello".encode()
        assert raw_exchange(gateway, raw) == (400, True), lines
    assert seen(echo, "/r34") == []


@pytest.mark.parametrize("size", ["0x3", "1_0", "+3", "-3", "", "3;a\rb", " 3", "3\n", "g"])
def test_r35_chunk_sizes(gateway: Gateway, make_host: MakeHost, size: str) -> None:
    """R35: a chunk size that is not hexadecimal digits: 400 and close, no whole request
    upstream.
    """
    host = make_host()
    raw = (
        f"POST /r35 HTTP/1.1\r\nHost: {host.hostname}\r\nTransfer-Encoding: chunked\r\n\r\n"
        f"{size}\r\nabc\r\n0\r\n\r\n"
    )
    assert raw_exchange(gateway, raw.encode()) == (400, True)
    assert [r for r in host.upstream.requests if r.whole] == []


@pytest.mark.parametrize(
    "length", ["+3", "1_0", "", "3 3", "3,3", "0x3", "-0", "99999999999999999999"]
)
def test_r35_content_lengths(gateway: Gateway, echo: Host, length: str) -> None:
    """R35: a Content-Length that is not digits: 400 and close."""
    raw = f"POST /r35l HTTP/1.1\r\nHost: {echo.hostname}\r\nContent-Length: {length}\r\n\r\nabc"
    assert raw_exchange(gateway, raw.encode()) == (400, True)
    assert seen(echo, "/r35l") == []


@pytest.mark.parametrize(
    "line",
    [
        b"X: a\0b",
        b"X: a\rb",
        b"X: a\nY: b",
        b"X : a",
        b"X\xa0: a",
        b": a",
        b"X",
        b"X: a\r\n b",
        b" X: a",
        b"X(y): a",
    ],
)
def test_r36_field_lines(gateway: Gateway, echo: Host, line: bytes) -> None:
    """R36: control characters, odd names, no colon, folding, a bare LF: 400 and close."""
    raw = b"GET /r36 HTTP/1.1\r\nHost: %s\r\n%s\r\n\r\n" % (echo.hostname.encode(), line)
    assert raw_exchange(gateway, raw) == (400, True)
    assert seen(echo, "/r36") == []


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "1.1"),
        ("Transfer-Encoding: ,chunked", "1.1"),
        ("Transfer-Encoding: chunked, gzip", "1.1"),
        ("Transfer-Encoding: xchunked", "1.1"),
        ("Transfer-Encoding: identity", "1.1"),
        ("Transfer-Encoding: chunked", "1.0"),
    ],
)
def test_r37_transfer_codings(gateway: Gateway, echo: Host, lines: str, version: str) -> None:
    """R37: two codings, an empty element, an unknown coding, a coding in 1.0: 400 or 501 and
    close.
    """
    raw = f"POST /r37 HTTP/{version}\r\nHost: {echo.hostname}\r\n{lines}\r\n\r\n0\r\n\r\n"
    status, closed = raw_exchange(gateway, raw.encode())
    assert (status in (400, 501), closed) == (True, True)
    assert seen(echo, "/r37") == []


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
def test_r38_connect_and_trace(gateway: Gateway, echo: Host, method: str) -> None:
    """R38, 3.5: CONNECT and TRACE are 405, nothing tunnelled."""
    raw_target, hostname = "/r38", echo.hostname
    if method == "CONNECT":
        raw_target = hostname = f"{echo.hostname}:80"
    before = len(echo.upstream.requests)
    with gateway.downstream() as client:
        client.send(f"{method} {raw_target} HTTP/1.1\r\nHost: {hostname}\r\n\r\n".encode())
        assert client.answer().status == 405
    assert len(echo.upstream.requests) == before


@pytest.mark.parametrize(
    "raw_target",
    [
        "/a%2Fb%27c%3Bd/%2520?x=%21&y=a+b",
        "//x//y",
        "/?",
        "/a/../b/./c",
        "/%7euser/;p=1?q",
        "/a%00b",
        "/q?a=b?c=/d",
    ],
)
def test_r39_raw_target(gateway: Gateway, echo: Host, raw_target: str) -> None:
    """R39, 3.5: the target arrives byte for byte."""
    answer = gateway.ask(echo.hostname, raw_target)
    assert answer.status == 200
    assert json.loads(answer.body)["raw_target"] == raw_target


def test_r41_duplicates_keep_order(gateway: Gateway, make_host: MakeHost) -> None:
    """R41, 3.5: duplicate fields keep their order and stay apart, both ways."""
    host = make_host(
        answering(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-A: 1\r\nSet-Cookie: b=2; Path=/\r\n"
            b"X-A: 2\r\nSet-Cookie: c=3\r\nContent-Length: 0\r\n\r\n"
        )
    )
    answer = gateway.ask(host.hostname, "/r41", "GET", "X-B: 1", "Cookie: x=1", "X-B: 2")
    assert answer.all("set-cookie") == [b"a=1", b"b=2; Path=/", b"c=3"]
    assert answer.all("x-a") == [b"1", b"2"]
    (request,) = seen(host, "/r41")
    sent = [(k.lower(), v) for k, v in request.fields if k.lower() in (b"x-b", b"cookie")]
    assert sent == [(b"x-b", b"1"), (b"cookie", b"x=1"), (b"x-b", b"2")]


def test_r41_duplicate_transfer_encoding_of_the_app(gateway: Gateway, make_host: MakeHost) -> None:
    """R41: a duplicate Transfer-Encoding from the app is a 502 that names the error."""
    raw = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n"
    )
    answer = gateway.ask(make_host(answering(raw)).hostname, "/r41te")
    assert answer.status == 502
    assert "http_protocol_error" in answer.one("proxy-status")
