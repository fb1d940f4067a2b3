"""headers.py: the head of a forward, and what its receiver reads out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy import headers
from smartgw.proxy.headers import FORWARD, LINK, REQUEST_ID, VIA, Forwarding
from smartgw_hosts.http1 import Bounds, RequestHead, parse_request

NAMES = headers.request_names(())
FORWARDING = Forwarding("eu-1", ())
LINES = FORWARDING.lines("203.0.113.9", b"https", b"shop.test")


def request(*lines: bytes, line: bytes = b"GET /p?q HTTP/1.1") -> RequestHead:
    """Parse a client's request with the gateway's field names."""
    return parse_request(b"\r\n".join([line, b"Host: shop.test", *lines]), NAMES, Bounds())


def received(head: bytes) -> tuple[RequestHead, dict[int, bytes]]:
    """What the receiver of a forward reads, and what came before its parser."""
    assert head.endswith(b"\r\n\r\n")
    assert b"\r\n\r\n" not in head[:-4]
    plain, notes = headers.without_mark(head[:-4])
    return parse_request(plain, NAMES, Bounds()), notes


@pytest.mark.parametrize("line", [b"GET http://a.test/x%2F? HTTP/1.1", b"OPTIONS * HTTP/1.1"])
def test_method_target_and_authority_arrive_as_they_were_marked(line: bytes) -> None:
    """4.5: the tag is over method, authority and target, so both sides read the same."""
    sent = request(b"X-A: 1", b"Via: 1.1 cdn", b"X-A: 2", line=line)
    there, notes = received(headers.forward_head(sent, b"bWFyaw==", LINES, b"id-1", None))
    assert (there.method, there.target) == (sent.method, sent.target)
    assert there.authority == sent.authority
    assert notes == {FORWARD: b"bWFyaw==", REQUEST_ID: b"id-1"}
    # 3.5: order and duplicates; Via goes on; who the client is, only the mark says.
    assert there.lines == [*sent.lines, b"Via: 1.1 eu-1"]
    assert set(there.noted) <= {VIA}


def test_framing_upgrade_and_trailers_go_along() -> None:
    """4.5: streams and upgrades through a forward are as locally."""
    posted = request(b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"TE: trailers")
    head = headers.forward_head(posted, b"m", LINES, b"i", None)
    there, _ = received(head)
    assert there.length == posted.length
    assert there.expect
    assert headers.wants_trailers(there)
    asked = request(b"Connection: Upgrade", b"Upgrade: websocket")
    there, _ = received(headers.forward_head(asked, b"m", LINES, b"i", b"websocket"))
    assert there.upgrade == (b"websocket",)


def test_what_differs_is_cut_out_so_that_the_rest_is_the_same() -> None:
    """4.5: a mark of its own on each request, and the fields of a client are parsed once."""
    heads = []
    for number in range(3):
        sent = request(b"X-A: 1", line=b"GET / HTTP/1.1")
        head = headers.forward_head(sent, b"mark%d" % number, LINES, b"id-%d" % number, None)
        heads.append(headers.without_mark(head[:-4])[0])
    assert len(set(heads)) == 1


@given(st.lists(st.sampled_from([b"x-smartgw-forward: ", b"X-Request-Id: ", b"\r\n", b"a", b":"])))
def test_any_head_keeps_all_that_is_no_mark(parts: list[bytes]) -> None:
    """4.5: a head that does not begin with a mark is the parser's as it is."""
    head = b"GET / HTTP/1.1\r\n" + b"".join(parts)
    plain, notes = headers.without_mark(head)
    if FORWARD not in notes:
        assert plain == head
    else:
        cut = b"GET / HTTP/1.1\r\nx-smartgw-forward: " + notes[FORWARD]
        if REQUEST_ID in notes:
            cut += b"\r\nX-Request-Id: " + notes[REQUEST_ID]
        assert head == cut + plain.removeprefix(b"GET / HTTP/1.1")
        assert all(b"\r\n" not in note for note in notes.values())


@pytest.mark.parametrize("name", [b"x-smartgw-forward", b"X-SmartGW-Link"])
def test_marks_elsewhere_are_noted_and_go_no_further(name: bytes) -> None:
    """4.5: wherever it stands, a mark reaches no host."""
    sent = request(b"X-A: 1", name + b": x", name + b": y", b"X-B: 2")
    assert sent.lines == [b"Host: shop.test", b"X-A: 1", b"X-B: 2"]
    assert list(sent.noted) == [FORWARD if b"forward" in name else LINK]
    assert list(sent.noted.values()) == [b"x, y"]
