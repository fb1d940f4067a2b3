"""headers.py: what passes, what goes, what is ours, against those who would speak in our name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy import headers
from smartgw.proxy.headers import Forwarding
from smartgw_hosts.http1 import CHUNKED, Bounds, RequestHead, parse_request, parse_response

REMOVED = ("X-Real-IP", "CF-Connecting-IP", "X_Odd_Name")
NAMES = headers.request_names(REMOVED)
ANSWER_NAMES = headers.response_names()
HOST = b"Host: shop.apps.test"
FORWARDING = Forwarding("eu-1", ())


def request(*lines: bytes, line: bytes = b"GET /p?q HTTP/1.1") -> RequestHead:
    """Parse a request with the gateway's field names."""
    return parse_request(b"\r\n".join([line, HOST, *lines]), NAMES, Bounds())


def spellings(name: str) -> list[bytes]:
    """A name as it might be sent to get past us."""
    forms = (name, name.lower(), name.upper(), name.swapcase(), name.replace("-", "_"))
    mixed = name.replace("-", "_", 1).lower()
    return sorted({form.encode() for form in (*forms, mixed)})


# ---- which request fields pass ----


@pytest.mark.parametrize(
    "name",
    [
        *("Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate"),
        *("HTTP2-Settings", "Connection", "Upgrade", "TE", "Transfer-Encoding"),
        *("X-Smartgw-Forward", "X-Smartgw-", "X-Smartgw-Request-Sent", "X-Failover-Cluster"),
        *("X-Real-IP", "CF-Connecting-IP", "X-Odd-Name", "X-Forwarded-For", "X-Forwarded-Proto"),
        *("X-Forwarded-Host", "Forwarded", "X-Request-Id", "Expect"),
    ],
)
def test_fields_that_do_not_pass(name: str) -> None:
    """3.5: hop-by-hop fields, ours, reserved and removed ones go; in all of this `_` is `-`."""
    values = {"Transfer-Encoding": b"chunked", "Expect": b"100-continue"}
    for spelling in spellings(name):
        sent = request(b"X-A: 1", spelling + b": " + values.get(name, b"evil"), b"X-B: 2")
        assert sent.lines == [HOST, b"X-A: 1", b"X-B: 2"]


@pytest.mark.parametrize(
    "name",
    [
        *("Via", "Cookie", "Authorization", "User-Agent", "Accept", "Trailer", "X-Original-URL"),
        *("X-HTTP-Method-Override", "Sec-WebSocket-Key", "Max-Forwards", "X-Forwarded-Port"),
        *(
            "X-Smartgw",
            "X-Smartgateway",
            "X-Real",
            "X-Real-IP2",
            "XForwardedFor",
            "X-RateLimit-Limit",
        ),
        *("Access-Control-Request-Method", "Origin", "Set-Cookie", "X-Failover", "Keep-Alives"),
    ],
)
def test_fields_that_pass(name: str) -> None:
    """3.5: everything else passes unchanged, in order and with its duplicates."""
    lines = [name.encode() + b": 1", b"X-B: 2", name.lower().encode() + b":  3 "]
    assert request(*lines).lines == [HOST, *lines]


def test_framing_in_disguise() -> None:
    """3.5: `Content_Length` and `Transfer_Encoding` never reach an app that reads `_` as `-`."""
    sent = request(b"Content_Length: 5", b"transfer_encoding: chunked", b"X-A: 1")
    assert (sent.lines, sent.length) == ([HOST, b"X-A: 1"], 0)


@pytest.mark.parametrize(
    "name",
    [
        *("Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "TE", "Upgrade", "X-Request-Id"),
        *("X-RateLimit-Limit", "X-RateLimit-Reset", "RateLimit", "RateLimit-Policy", "RateLimit-X"),
        *("X-Failover-Cluster", "X-Smartgw-Request-Sent"),
    ],
)
def test_answer_fields_that_do_not_pass(name: str) -> None:
    """3.5: no app speaks in our name: reserved names, limits and hop-by-hop fields go."""
    for spelling in spellings(name):
        lines = [b"HTTP/1.1 200 OK", b"X-A: 1", spelling + b": 1", b"X-B: 2"]
        answer = parse_response(b"\r\n".join(lines), ANSWER_NAMES, Bounds(), b"GET")
        assert answer.lines == [b"X-A: 1", b"X-B: 2"]


def test_answer_fields_that_pass() -> None:
    """3.5, R41: three Set-Cookie lines stay three, in order, each marked; the rest is unchanged."""
    lines = [b"Set-Cookie: a=1", b"X-A: 1", b"set-cookie: b=2", b"X-A: 2", b"SET-COOKIE: c=3"]
    lines += [b"Server: x", b"Via: 1.1 app", b"Retry-After: 1", b"X-Rate: 1", b"Trailer: X-T"]
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"Set_Cookie: d=4"])
    answer = parse_response(head, ANSWER_NAMES, Bounds(), b"GET")
    assert answer.lines == lines
    assert answer.marked == [0, 2, 4]


# ---- what is sent on ----


def sent_on(sent: RequestHead, upgrade: bytes | None = None) -> list[bytes]:
    """The lines that a host gets for a request of 203.0.113.9."""
    lines = FORWARDING.lines("203.0.113.9", b"http", sent.authority)
    head = headers.upstream_head(sent, lines, b"id-1", upgrade)
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


OURS = [
    b"X-Forwarded-For: 203.0.113.9",
    b"X-Forwarded-Proto: http",
    b"X-Forwarded-Host: shop.apps.test",
    b"Forwarded: for=203.0.113.9;host=shop.apps.test;proto=http",
    b"Via: 1.1 eu-1",
]


def test_head() -> None:
    """3.5: the client's own claims are replaced by what we know; Via is appended to."""
    sent = request(b"X-Forwarded-For: 6.6.6.6", b"Via: 1.1 c", b"Forwarded: for=x", b"X-A: 1")
    assert sent_on(sent) == [
        *(b"GET /p?q HTTP/1.1", HOST, b"Via: 1.1 c", b"X-A: 1"),
        *(*OURS, b"X-Request-Id: id-1"),
    ]


@pytest.mark.parametrize(
    ("line", "lines", "added"),
    [
        (b"GET / HTTP/1.1", [], []),
        (b"GET / HTTP/1.0", [b"Connection: keep-alive"], []),
        (b"POST / HTTP/1.1", [b"Transfer-Encoding: chunked"], [b"Transfer-Encoding: chunked"]),
        (b"POST / HTTP/1.1", [b"Expect: 100-continue"], [b"Expect: 100-continue"]),
        (b"POST / HTTP/1.0", [b"Expect: 100-continue"], []),
        (b"GET / HTTP/1.1", [b"TE: trailers"], [b"TE: trailers", b"Connection: TE"]),
        (b"GET / HTTP/1.1", [b"te: gzip,\tTrailers "], [b"TE: trailers", b"Connection: TE"]),
        (b"GET / HTTP/1.1", [b"TE: gzip", b"TE: trailers"], [b"TE: trailers", b"Connection: TE"]),
        (b"GET / HTTP/1.1", [b"TE: trailers;q=0"], []),
        (b"GET / HTTP/1.1", [b"TE: gzip, xtrailers"], []),
        (b"GET / HTTP/1.1", [b"TE:"], []),
    ],
)
def test_what_the_next_connection_needs(
    line: bytes, lines: list[bytes], added: list[bytes]
) -> None:
    """3.5: framing, TE and Expect are said anew for the connection to the host."""
    sent = sent_on(request(*lines, line=line))
    assert sent == [line[:-1] + b"1", HOST, *OURS, *added, b"X-Request-Id: id-1"]


FIELDS = st.sampled_from(
    [
        *(b"X-A: 1", b"X-a:2", b"Cookie: a=b", b"Via: 1.0 v", b"User-Agent: u", b"Accept: */*"),
        *(b"X-Forwarded-For: 6.6.6.6", b"x_forwarded_for: 6.6.6.6", b"Forwarded: for=6.6.6.6"),
        *(
            b"X-Real-IP: 6.6.6.6",
            b"X-Request-Id: evil",
            b"X-Smartgw-Forward: evil",
            b"TE: trailers",
        ),
        *(b"Connection: X-A, X-Forwarded-For, Host, Via", b"Connection: close", b"Upgrade: h2c"),
        *(b"Connection: content-length, transfer-encoding", b"Content_Length: 9"),
        *(b"Connection: upgrade", b"X-Forwarded-Host: evil", b"X-Forwarded-Proto: gopher"),
    ]
)
FRAMING = st.sampled_from([b"X-N: 1", b"Content-Length: 3", b"Transfer-Encoding: chunked"])


@given(st.lists(FIELDS, max_size=8), FRAMING)
def test_a_host_reads_what_we_read(lines: list[bytes], framing: bytes) -> None:
    """3.5: what goes out is one well-formed head with the same framing, and no word of theirs."""
    sent = request(*lines, framing, line=b"POST /p HTTP/1.1")
    head = b"\r\n".join(sent_on(sent))
    again = parse_request(head, NAMES, Bounds())
    assert (again.method, again.target, again.authority) == (b"POST", b"/p", sent.authority)
    assert again.length == sent.length
    assert b"evil" not in head
    assert b"6.6.6.6" not in head
    assert b"gopher" not in head
    assert b"h2c" not in head
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")]
    for name in (b"host", b"x-forwarded-for", b"x-forwarded-host", b"forwarded", b"x-request-id"):
        assert names.count(name) == 1
    assert names.count(b"transfer-encoding") == (sent.length == CHUNKED)
    assert (
        head.endswith(b"Via: 1.1 eu-1\r\nX-Request-Id: id-1")
        or b"TE: trailers" in head
        or (sent.length == CHUNKED)
    )
    via = [line for line in head.split(b"\r\n") if line.startswith(b"Via")]
    assert len(via) == 1 + lines.count(b"Via: 1.0 v")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *((b"a", True), (b"A-z.0:9_-", True), (b"x" * 64, True)),
        *((b"", False), (b"x" * 65, False), (b"a b", False), (b"a,b", False), (b"a/b", False)),
        *((b"a\n", False), (b"\xe9", False), (b'"', False), (b"a\x00", False), (b"<", False)),
    ],
)
def test_request_id(text: bytes, kept: bool) -> None:
    """3.5: `X-Request-Id` is kept if it matches `[A-Za-z0-9._:-]{1,64}`, else made."""
    assert headers.is_request_id(text) is kept


def test_first_value() -> None:
    """3.10: a field is found in any case, its value without the spaces around it."""
    lines = [b"X-Accept: no", b"ACCEPT:\t text/html ", b"Accept: x"]
    assert headers.first_value(lines, b"accept") == b"text/html"
    assert headers.first_value(lines, b"origin") is None


# ---- trailers ----


def test_trailers() -> None:
    """3.5: trailers meet the same removals and never carry framing or routing fields."""
    passing = [b"X-T: 1", b"x-t:", b"Server-Timing: a", b"Digest: x", b"ETag: y", b"grpc-status: 0"]
    stopped = [
        *(b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Host: evil", b"TE: trailers"),
        *(b"Connection: close", b"Upgrade: h2c", b"Expect: 100-continue", b"Trailer: X-T"),
        *(b"Via: 1.1 x", b"Content-Type: a/b", b"Content-Encoding: gzip", b"Content-Range: x"),
        *(b"Authorization: x", b"Cookie: a=b", b"If-None-Match: x", b"Range: bytes=0-1"),
        *(b"Cache-Control: no-store", b"Max-Forwards: 0", b"Location: /", b"Keep-Alive: x"),
        *(b"X-Smartgw-Forward: x", b"x_smartgw_forward: x", b"Content_Type: a/b"),
        *(b"Proxy-Connection: x", b"CACHE-control: x", b"content_length: 1"),
    ]
    theirs = [b"X-Forwarded-For: 6.6.6.6", b"x_forwarded_for: 6", b"X-Real-IP: 6", b"Forwarded: x"]
    theirs += [b"X-Request-Id: 1", b"X-Forwarded-Host: evil", b"CF_Connecting-IP: 6"]
    mixed = [*stopped[:9], *passing[:3], *theirs, *stopped[9:], *passing[3:]]
    assert headers.passing_trailers(mixed, NAMES) == passing
    ours = [b"Set-Cookie: a=b", b"X-RateLimit-Limit: 1", b"RateLimit: x", b"X-Failover-Cluster: x"]
    ours += [b"Access-Control-Allow-Origin: *", b"set_cookie: a", b"X-Request-Id: 1"]
    assert headers.passing_trailers([*stopped, *ours, *passing], ANSWER_NAMES) == passing


# ---- upgrades ----

KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
ALLOWED = frozenset((b"websocket", b"custom/1"))


@pytest.mark.parametrize(
    ("line", "lines", "protocol"),
    [
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", KEY], b"websocket"),
        (
            b"GET /ws HTTP/1.1",
            [
                b"Upgrade: WebSocket",
                KEY.lower().replace(b"dghliihnhbxbszsbub25jzq", b"dGhlIHNhbXBsZSBub25jZQ"),
            ],
            b"websocket",
        ),
        (b"GET /ws HTTP/1.1", [b"Upgrade: h2c, websocket", KEY], b"websocket"),
        (b"GET /ws HTTP/1.1", [b"Upgrade: custom/1"], b"custom/1"),
        (b"GET /ws HTTP/1.1", [b"Upgrade: h2c"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: TLS/1.0, HTTP/1.1"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: foo"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: custom/2"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", KEY, KEY], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", KEY[:-2]], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", b"Sec-WebSocket-Key: AAAA"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", b"Sec-WebSocket-Key: \xff"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", b"Sec_WebSocket_Key: AAAA"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", KEY, b"Connection: sec-websocket-key"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", KEY, b"Content-Length: 1"], None),
        (b"GET /ws HTTP/1.1", [b"Upgrade: websocket", KEY, b"Transfer-Encoding: chunked"], None),
        (b"POST /ws HTTP/1.1", [b"Upgrade: websocket", KEY], None),
        (b"GET /ws HTTP/1.0", [b"Upgrade: websocket", KEY], None),
        (b"GET /ws HTTP/1.1", [KEY], None),
    ],
)
def test_upgrade_to_try(line: bytes, lines: list[bytes], protocol: bytes | None) -> None:
    """3.6: only `websocket` upgrades unless configured, never h2c or TLS, R30."""
    sent = request(b"Connection: Upgrade", *lines, line=line)
    assert headers.upgrade_to_try(sent, ALLOWED) == protocol
    head = sent_on(sent, upgrade=protocol)
    assert (b"Connection: Upgrade" in head) is (protocol is not None)
    assert [item for item in head if item.lower().startswith(b"upgrade")] == (
        [b"Upgrade: " + protocol] if protocol is not None else []
    )


def test_websocket_accept() -> None:
    """3.6: a 101 is correct when it answers the key (the example of RFC 6455 1.3)."""
    assert headers.websocket_accept(request(KEY)) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
