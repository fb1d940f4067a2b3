"""http1.py: heads of answers. What a host says wrongly must never become another one's answer."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.http1 import CHUNKED, NOTED, UNTIL_CLOSE, Bounds, FieldNames, MessageRefused
from smartgw_hosts.http1 import parse_response as parse
from tests.hosts.heads import TCHAR, answer, answer_refused, kind

OK = b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("line", "status", "phrase"),
    [
        (b"HTTP/1.1 200 OK", 200, b" OK"),
        (b"HTTP/1.1 200 ", 200, b" "),
        (b"HTTP/1.1 200", 200, b" "),
        (b"HTTP/1.0 404 Not  Found", 404, b" Not  Found"),
        (b"HTTP/1.1 599 a\tb \xff", 599, b" a\tb \xff"),
        (b"HTTP/1.1 100 Continue", 100, b" Continue"),
        (b"HTTP/1.1 200  OK", 200, b"  OK"),
    ],
)
def test_status_line(line: bytes, status: int, phrase: bytes) -> None:
    """3.5: status and phrase pass; the space behind the code is there always (RFC 9112 4)."""
    head = answer(line)
    assert (head.status, head.phrase) == (status, phrase)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"HTTP/1.1", b"HTTP/1.1 ", b"HTTP/1.1  200 OK", b"HTTP/1.1\t200 OK", b"200 OK"),
        *(b"HTTP/1.1 2", b"HTTP/1.1 20", b"HTTP/1.1 20 OK", b"HTTP/1.1 5", b"HTTP/1.1 2 0 OK"),
        *(b"HTTP/1.1 2000 OK", b"HTTP/1.1 200OK", b"HTTP/1.1 200\tOK", b"HTTP/1.1 099 x"),
        *(b"HTTP/1.1 000 x", b"HTTP/1.1 600 x", b"HTTP/1.1 999 x", b"HTTP/1.1 -20 x"),
        *(b"HTTP/1.1 +20 x", b"HTTP/1.1 0x2 x", b"HTTP/1.1 abc x", b"HTTP/1.1 2\xb20 x"),
        *(b"HTTP/2.0 200 OK", b"HTTP/9.9 200 OK", b"HTTP/1.2 200 OK", b"http/1.1 200 OK"),
        *(b"HTTP/0.9 200 OK", b"ICY 200 OK", b" HTTP/1.1 200 OK", b"HTTP/1.1 200 a\rb"),
        *(b"HTTP/1.1 200 a\x00", b"HTTP/1.1 200 \x7f", b"HTTP/1.1 200 a\nX: b", b"GET / HTTP/1.1"),
    ],
)
def test_broken_status_lines(line: bytes) -> None:
    """3.6: an answer whose status line is malformed is no answer: the client gets a 502."""
    assert answer_refused(line, b"Content-Length: 0")


@pytest.mark.parametrize(
    ("line", "lines", "length", "keeps"),
    [
        (OK, [b"Content-Length: 5"], 5, True),
        (OK, [b"content-length:\t5 "], 5, True),
        (OK, [b"Content-Length: 0"], 0, True),
        (OK, [b"Transfer-Encoding: Chunked"], CHUNKED, True),
        (OK, [], UNTIL_CLOSE, False),
        (OK, [b"Connection: keep-alive"], UNTIL_CLOSE, False),
        (OK, [b"Content_Length: 5"], UNTIL_CLOSE, False),
        (OK, [b"Content-Length: 5", b"Connection: close"], 5, False),
        (OK, [b"Content-Length: 5", b"Connection: x, Close"], 5, False),
        (b"HTTP/1.0 200 OK", [b"Content-Length: 5"], 5, False),
        (b"HTTP/1.0 200 OK", [b"Content-Length: 5", b"Connection: Keep-Alive"], 5, True),
        (b"HTTP/1.0 200 OK", [], UNTIL_CLOSE, False),
        (b"HTTP/1.1 204 No Content", [], 0, True),
        (b"HTTP/1.1 204 No Content", [b"Content-Length: 0"], 0, True),
        (b"HTTP/1.1 204 No Content", [b"Content-Length: 5"], 0, False),
        (b"HTTP/1.1 204 No Content", [b"Transfer-Encoding: chunked"], 0, False),
        (b"HTTP/1.1 304 Not Modified", [b"Content-Length: 5"], 0, True),
        (b"HTTP/1.1 304 Not Modified", [b"Transfer-Encoding: chunked"], 0, True),
        (b"HTTP/1.1 304 Not Modified", [], 0, True),
        (b"HTTP/1.1 205 Reset Content", [], UNTIL_CLOSE, False),
        (b"HTTP/1.1 100 Continue", [], 0, True),
        (b"HTTP/1.1 103 Early Hints", [b"Link: </a>"], 0, True),
    ],
)
def test_framing(line: bytes, lines: list[bytes], length: int, keeps: bool) -> None:
    """3.6: where an answer ends follows from RFC 9112 6.3, and whether the connection is kept.

    A sender that may take the body for longer than it is gets no other request.
    """
    head = answer(line, *lines)
    assert (head.length, head.keep_alive) == (length, keeps)


@pytest.mark.parametrize("line", [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X: 1"])
def test_head_has_no_body(line: bytes) -> None:
    """3.5: an answer to HEAD has no body, and its length is that of the answer to GET."""
    head = answer(OK, line, method=b"HEAD")
    assert (head.length, head.keep_alive) == (0, True)
    assert head.lines == ([] if line[:1] == b"T" else [line])


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Content-Length: 5", b"content-length: 5"),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: +5",),
        (b"Content-Length:",),
        (b"Content-Length: " + b"1" * 19,),
        (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 3"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: gzip",),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked\t",),
        (b"Transfer-Encoding:",),
        (b"Content-Length : 5",),
        (b"X: a\rSet-Cookie: x=1",),
        (b"X: a\nSet-Cookie: x=1",),
        (b"X: a\x00b",),
        (b"X: a", b" folded"),
        (b"NoColon",),
        (b": x",),
        (b"X Y: 1",),
        (b"X\xff: 1",),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("line", [OK, b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 103 x"])
def test_broken_answers(line: bytes, method: bytes, lines: tuple[bytes, ...]) -> None:
    """R41: a doubtful length, coding or field line refuses the whole answer: a 502 by name."""
    assert answer_refused(line, *lines, method=method)
    assert answer_refused(line, b"X-A: 1", *lines, method=method)


@pytest.mark.parametrize("status", [b"100", b"102", b"103", b"105", b"199", b"101"])
@pytest.mark.parametrize("line", [b"Content-Length: 6", b"Transfer-Encoding: chunked"])
def test_interim_answers_with_a_body(status: bytes, line: bytes) -> None:
    """3.6: an interim answer that announces a body is not surely framed: llhttp reads one."""
    assert answer_refused(b"HTTP/1.1 " + status + b" x", line)
    assert not answer_refused(b"HTTP/1.1 " + status + b" x", b"Content-Length: 0")


def test_coding_in_http10() -> None:
    """3.6: HTTP/1.0 has no codings, so an answer that has one is not surely framed."""
    assert answer_refused(b"HTTP/1.0 200 OK", b"Transfer-Encoding: chunked")


def test_lines() -> None:
    """3.5: order and duplicates pass; hop-by-hop and nominated lines go, marks stay right."""
    head = answer(
        *(OK, b"X-Mark: 1", b"Upgrade: h2c", b"Set-Cookie: a", b"Connection: close, X-Own, Via"),
        *(b"X-Drop: 1", b"x-own: 1", b"X-Mark: 2", b"Set-Cookie: b", b"Via: 1.1 v", b"X-Read: r"),
        *(b"Content-Length: 1", b"X_Mark: 3", b"X-MARK: 4"),
    )
    assert head.lines == [
        *(b"X-Mark: 1", b"Set-Cookie: a", b"X-Mark: 2", b"Set-Cookie: b", b"Via: 1.1 v"),
        *(b"Content-Length: 1", b"X-MARK: 4"),
    ]
    assert [head.lines[place][:6].lower() for place in head.marked] == [b"x-mark"] * 3
    assert head.noted == {NOTED: b"r"}
    assert head.upgrade == ()


MIX = st.lists(st.sampled_from([b"X-Mark: 1", b"X-A: 1", b"X-B: 2", b"X-Read: 1"]), max_size=6)


@given(MIX, MIX, st.sampled_from([b"", b"x-a", b"x-mark", b"x-b, content-length"]))
def test_no_length_where_there_is_no_body(
    before: list[bytes], behind: list[bytes], options: bytes
) -> None:
    """3.5 (RFC 9110 8.6): 1xx and 204 carry no Content-Length; the marks still fit the lines."""
    length = b"Content-Length: 0"
    head = answer(b"HTTP/1.1 204 x", *before, length, *behind, b"Connection: " + options)
    named = {option.strip() for option in options.split(b",")}
    kept = [line for line in before + behind if line[:6] != b"X-Read"]
    kept = [line for line in kept if line.partition(b":")[0].lower() not in named]
    assert head.lines == kept
    assert head.marked == [place for place, line in enumerate(kept) if line == b"X-Mark: 1"]


@pytest.mark.parametrize(
    ("line", "lines", "upgrade"),
    [
        (b"HTTP/1.1 101 x", [b"Connection: Upgrade", b"Upgrade: WebSocket"], (b"websocket",)),
        (b"HTTP/1.1 101 x", [b"Connection: upgrade", b"Upgrade: a", b"Upgrade: b"], (b"a", b"b")),
        (b"HTTP/1.1 101 x", [b"Upgrade: websocket"], ()),
        (b"HTTP/1.1 101 x", [b"Connection: upgrade"], ()),
        (b"HTTP/1.0 101 x", [b"Connection: upgrade", b"Upgrade: websocket"], ()),
    ],
)
def test_upgrade(line: bytes, lines: list[bytes], upgrade: tuple[bytes, ...]) -> None:
    """3.6: bytes are relayed only after a correct 101, which HTTP/1.0 does not have."""
    assert answer(line, *lines).upgrade == upgrade


@pytest.mark.parametrize("byte", range(256))
def test_every_byte(byte: int) -> None:
    """3.6: names are tokens and no control character passes to the client; 256 bytes tried."""
    sly = bytes([byte])
    assert answer_refused(OK, b"X" + sly + b"A: 1") != (sly in TCHAR or sly == b":")
    assert answer_refused(OK, b"X: " + sly) != (byte == 9 or 32 <= byte != 127)
    assert answer_refused(OK + sly) != (byte == 9 or 32 <= byte != 127)


def test_bounds() -> None:
    """3.11: the bounds hold for answers: head 32 KiB, 100 fields, a field line 16 KiB."""
    assert len(answer(OK, *[b"X: 1"] * 100).lines) == 100
    assert answer_refused(OK, *[b"X: 1"] * 101)
    assert not answer_refused(OK, b"X: " + b"a" * 16_381)
    assert answer_refused(OK, b"X: " + b"a" * 16_382)
    assert answer_refused(OK, *[b"X: " + b"a" * 16_000] * 3)


SLY = st.sampled_from([b"\r\n", b"\r", b"\n", b" ", b":", b"\0", b"HTTP/1.1 ", b"200", b"\xff"])


@given(st.lists(SLY | st.binary(max_size=6), max_size=12).map(b"".join))
def test_nothing_but_refusals(head: bytes) -> None:
    """3.6: whatever a host answers, it is taken or refused; no crash, no status out of range."""
    status = 100
    with contextlib.suppress(MessageRefused):
        status = parse(head, FieldNames(kind), Bounds(), b"GET").status
    assert 100 <= status <= 599
