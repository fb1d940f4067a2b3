"""http1.py: how a request's body is framed, and what Connection, Upgrade and Expect ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.http1 import CHUNKED, NOTED
from tests.hosts.heads import HOST, LINE, parse, refused

# ---- how the body is framed ----


@pytest.mark.parametrize(
    ("line", "length"),
    [
        (b"Content-Length: 5", 5),
        (b"content-length:5", 5),
        (b"CONTENT-LENGTH: \t 5 \t", 5),
        (b"Content-Length: 0", 0),
        (b"Content-Length: 00005", 5),
        (b"Content-Length: 4294967301", 4294967301),
        (b"Content-Length: " + b"9" * 18, 10**18 - 1),
        (b"Transfer-Encoding: chunked", CHUNKED),
        (b"TRANSFER-ENCODING: ChUnKeD", CHUNKED),
        (b"transfer-encoding:chunked  ", CHUNKED),
        (b"X-A: 1", 0),
        (b"Content_Length: 5", 0),
        (b"content_length: 5", 0),
        (b"Transfer_Encoding: chunked", 0),
        (b"Content-Length-: 5", 0),
        (b"X-Content-Length: 5", 0),
    ],
)
def test_length(line: bytes, length: int) -> None:
    """3.6, R34: one Content-Length or one coding, chunked, frames a body; nothing else does."""
    assert parse(b"POST / HTTP/1.1", HOST, line).length == length


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b" ", b"+5", b"-5", b"0x5", b"0_5", b"1_0", b"5e0", b"5.0", b"5Z", b"5;", b"5 5"),
        *(b"5,", b",5", b"5,5", b"5, 5", b"5, 6", b"\x0b5", b"5\x00", b"\xef\xbc\x95", b"\xb2"),
        *(b'"5"', b"five", b"1" * 19, b"18446744073709551621", b"0" * 19, b"5\xa0", b"5\r\n 5"),
    ],
)
def test_no_length(value: bytes) -> None:
    """R35: a Content-Length that is not plain digits is a 400, in any spelling of the name."""
    for name in (b"Content-Length", b"content-LENGTH"):
        assert refused(b"POST / HTTP/1.1", HOST, name + b": " + value) == 400


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"identity", b"gzip", b"gzip, chunked", b"chunked, chunked", b",chunked"),
        *(b"chunked,", b"chunked, identity", b"identity, chunked", b"chunked;q=1", b"chunked "),
        *(b'"chunked"', b"xchunked", b"chunkedx", b"chunk", b"chunked\x0b", b"chunked\x0c"),
        *(
            b"chunked\x00",
            b"chunked\xa0",
            b"\xa0chunked",
            b"ch\xfcnked",
            b"chunked\t",
            b"\tchunked",
        ),
        *(b"chunked\r", b"\r\n chunked", b"\n chunked", b"chun ked", b"trailers", b"0"),
    ],
)
def test_no_coding(value: bytes) -> None:
    """R37: any coding but exactly chunked is refused, alone and beside a Content-Length."""
    coding = b"Transfer-Encoding: " + value
    if value == b"chunked ":
        assert parse(b"POST / HTTP/1.1", HOST, coding).length == CHUNKED
    else:
        assert refused(b"POST / HTTP/1.1", HOST, coding) == 400
    assert refused(b"POST / HTTP/1.1", HOST, b"Content-Length: 5", coding) == 400
    assert refused(b"POST / HTTP/1.1", HOST, coding, b"Content-Length: 5") == 400


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Content-Length: 5", b"content-length: 5"),
        (b"Content-Length: 0", b"X-A: 1", b"Content-Length: 0"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"transfer-encoding: identity"),
        (b"Transfer-Encoding: cow", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
        (b"Content-Length : 5",),
        (b"Transfer-Encoding : chunked",),
        (b"Transfer-Encoding\t: chunked",),
        (b"Transfer Encoding: chunked",),
        (b" Transfer-Encoding: chunked",),
        (b"\tContent-Length: 5",),
        (b"Content-Length",),
        (b"Transfer-\r\nEncoding: chunked",),
        (b"X: x\nTransfer-Encoding: chunked",),
        (b"X: x\rContent-Length: 5",),
    ],
)
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_framed_twice_or_in_disguise(version: bytes, lines: tuple[bytes, ...]) -> None:
    """R34: what is not surely framed is refused: two of a kind, both kinds, odd spellings."""
    assert refused(b"POST / " + version, HOST, *lines) == 400


def test_coding_in_http10() -> None:
    """R37: HTTP/1.0 knows no codings (RFC 9112 6.1), so what frames such a body is not sure."""
    assert refused(b"POST / HTTP/1.0", HOST, b"Transfer-Encoding: chunked") == 400


def test_coding_does_not_pass() -> None:
    """3.5: the coding belongs to this connection; the length passes unchanged and in place."""
    coded = parse(b"POST / HTTP/1.1", HOST, b"Transfer-Encoding: chunked", b"X-A: 1")
    assert coded.lines == [HOST, b"X-A: 1"]
    sized = parse(b"POST / HTTP/1.1", HOST, b"content-length:  5 ", b"X-A: 1")
    assert sized.lines == [HOST, b"content-length:  5 ", b"X-A: 1"]


# ---- Connection, Upgrade, Expect ----


@pytest.mark.parametrize(
    ("line", "lines", "keeps"),
    [
        (LINE, [], True),
        (LINE, [b"Connection: close"], False),
        (LINE, [b"connection:CLOSE"], False),
        (LINE, [b"Connection: keep-alive"], True),
        (LINE, [b"Connection: keep-alive, close"], False),
        (LINE, [b"Connection: keep-alive", b"Connection: close"], False),
        (LINE, [b"Connection: x,\tclose ,y"], False),
        (LINE, [b"Connection: closed"], True),
        (LINE, [b"Connection:"], True),
        (LINE, [b"Connection: ,,"], True),
        (LINE, [b"Proxy-Connection: close"], True),
        (b"GET / HTTP/1.0", [], False),
        (b"GET / HTTP/1.0", [b"Connection: Keep-Alive"], True),
        (b"GET / HTTP/1.0", [b"Connection: x, keep-alive"], True),
        (b"GET / HTTP/1.0", [b"Connection: keep-alive, close"], False),
        (b"GET / HTTP/1.0", [b"Connection: x"], False),
    ],
)
def test_keep_alive(line: bytes, lines: list[bytes], keeps: bool) -> None:
    """3.11 (RFC 9112 9.3): a connection is kept unless someone says close; HTTP/1.0 has to ask."""
    assert parse(line, HOST, *lines).keep_alive is keeps


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        (b"X-Own", [b"X-Own: s"]),
        (b"x-own", [b"X-Own: s"]),
        (b"X_OWN", [b"X-Own: s"]),
        (b"close , X-Own,", [b"X-Own: s"]),
        (b"cookie, X-Own", [b"Cookie: c", b"X-Own: s"]),
        (b"x-a-b", [b"X_A-b: u"]),
        (b"X-Mark", [b"X-Mark: m"]),
        (b"close, Host", []),
        (b"keep-alive, Content-Length", []),
        (b"Transfer-Encoding, host, content_length, via", []),
        (b"Connection, keep-alive, upgrade, te, close", []),
        (b"X-Read", []),
        (b'"X-Own"', []),
        (b"X-Own: s", []),
    ],
)
def test_nominated_fields(options: bytes, removed: list[bytes]) -> None:
    """3.5: fields named by Connection go; framing fields, Host and Via never do (R27)."""
    lines = [HOST, b"X-Own: s", b"Content-Length: 1", b"Cookie: c", b"X-Mark: m", b"X_A-b: u"]
    lines += [b"Via: 1.1 v", b"X-Mark: 2"] if b"X-Mark" not in options else [b"Via: 1.1 v"]
    request = parse(b"POST / HTTP/1.1", *lines, b"X-Read: r", b"Connection: " + options)
    assert request.lines == [line for line in lines if line not in removed]
    assert request.length == 1
    assert request.noted == {NOTED: b"r"}
    marks = [line for line in request.lines if line.startswith(b"X-Mark")]
    assert [request.lines[place] for place in request.marked] == marks


def test_nominated_in_two_lines() -> None:
    """3.5: several Connection fields are one list (RFC 9110 5.3), an empty one says nothing."""
    connection = (b"Connection:", b"X-A: 1", b"Connection: X-A", b"X-B: 2", b"connection: x-b")
    assert parse(LINE, HOST, *connection, b"X-C: 3").lines == [HOST, b"X-C: 3"]


NAMES = st.sampled_from([b"X-A", b"x-a", b"X-B", b"Cookie", b"X-Mark", b"X_A", b"Via"])


@given(st.lists(NAMES, max_size=8), st.lists(NAMES, max_size=4))
def test_nomination_is_a_filter(sent: list[bytes], options: list[bytes]) -> None:
    """3.5: what is left are the other lines, in order, and the marks still point at theirs."""
    lines = [name + b": %d" % place for place, name in enumerate(sent)]
    request = parse(LINE, *lines, HOST, b"Connection: " + b", ".join(options))
    named = {name.lower().replace(b"_", b"-") for name in options} - {b"via"}
    left = [
        line
        for name, line in zip(sent, lines, strict=True)
        if name.lower().replace(b"_", b"-") not in named
    ]
    assert request.lines == [*left, HOST]
    assert request.marked == [i for i, line in enumerate(left) if line.startswith(b"X-Mark")]


@pytest.mark.parametrize(
    ("line", "lines", "upgrade"),
    [
        (LINE, [b"Connection: Upgrade", b"Upgrade: websocket"], (b"websocket",)),
        (LINE, [b"Connection: keep-alive, upgrade", b"Upgrade: WebSocket"], (b"websocket",)),
        (LINE, [b"Connection: upgrade", b"Upgrade: a, b/1"], (b"a", b"b/1")),
        (LINE, [b"Connection: upgrade", b"Upgrade: a", b"Upgrade: b"], (b"a", b"b")),
        (LINE, [b"Upgrade: websocket"], ()),
        (LINE, [b"Connection: keep-alive", b"Upgrade: websocket"], ()),
        (LINE, [b"Connection: upgrade"], ()),
        (b"GET / HTTP/1.0", [b"Connection: upgrade", b"Upgrade: websocket"], ()),
    ],
)
def test_upgrade(line: bytes, lines: list[bytes], upgrade: tuple[bytes, ...]) -> None:
    """3.6, R30: an upgrade is asked for by Upgrade and Connection together, in any case."""
    request = parse(line, HOST, *lines)
    assert request.upgrade == upgrade
    assert request.lines == [HOST]


@pytest.mark.parametrize(
    ("line", "lines", "expect"),
    [
        (LINE, [], False),
        (LINE, [b"Expect: 100-continue"], True),
        (LINE, [b"expect:\t100-Continue "], True),
        (LINE, [b"Expect: 100-continue", b"Expect: 100-continue"], True),
        (b"GET / HTTP/1.0", [b"Expect: 100-continue"], False),
    ],
)
def test_expect(line: bytes, lines: list[bytes], expect: bool) -> None:
    """3.5, R24: 100 goes only to clients that sent Expect, and HTTP/1.0 has none."""
    assert parse(line, HOST, *lines).expect is expect


@pytest.mark.parametrize(
    "value", [b"", b"x", b"100-continue, x", b"100-continue,", b"100", b"200-ok", b"100-continue;q"]
)
def test_unknown_expectation(value: bytes) -> None:
    """R24: an unknown expectation is a 417; in a malformed head it is a 400 all the same."""
    assert refused(LINE, HOST, b"Expect: " + value) == 417
    assert refused(LINE, b"Expect: " + value, HOST, b"X : 1") == 400
    assert refused(LINE, b"Expect: " + value) == 400
