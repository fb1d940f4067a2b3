"""Nobody holds the loop: what one connection has to say is worked off in turns with the others."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartgw.proxy import turns
from smartgw_hosts.chunked import ChunkedBody
from smartgw_hosts.http1 import Bounds
from tests.gateway import Gateway, MakeHost, wait_until
from tests.upstreams import Connection, Request, each

TINY = b"1\r\nx\r\n"
# A read takes up to 256 KiB; in a turn of such a read no more chunks are decoded than this.
MANY = 6_000


def paths(log: Path) -> list[str]:
    """The targets in the access log, in the order of their answers."""
    return [json.loads(line)["target"] for line in log.read_text().splitlines()]


def test_pipelined_requests_take_turns_with_others(cramped: Gateway, access_log: Path) -> None:
    """3.11: 1,500 pipelined requests are there first, another client's single one is answered
    long before the last of them.
    """
    many, one = cramped.downstream(), cramped.downstream()
    request = "GET /{} HTTP/1.1\r\nHost: q\r\n\r\n"
    for client in (many, one):
        client.send(request.format("known").encode())
        assert client.answer().status == 404
    # Both are in the sockets before the gateway sees either.
    cramped.signal(signal.SIGSTOP)
    try:
        many.send(request.format("many").encode() * 1_500)
        one.send(request.format("one").encode())
    finally:
        cramped.signal(signal.SIGCONT)
    assert one.answer().status == 404
    for _ in range(1_500):
        assert many.answer().status == 404
    wait_until(lambda: paths(access_log).count("/many") == 1_500)
    assert paths(access_log).index("/one") - paths(access_log).index("/many") < 100
    many.close()
    one.close()


@pytest.mark.parametrize("before", [b"", b"4000\r\n" + bytes(0x4000) + b"\r\n"])
def test_tiny_chunks_take_turns(before: bytes) -> None:
    """3.11: of a read full of tiny chunks a turn decodes a part, wherever in it they begin."""
    body = ChunkedBody(Bounds())
    late = (before + TINY * 40_000)[: 256 * 1024]
    calls = 0
    while late:
        known = body.chunks
        _, _, late = turns.feed(body, late, 0)
        assert body.chunks - known < MANY
        calls += 1
    assert calls > 5


def test_large_chunks_need_no_turns() -> None:
    """3.6: an ordinary upload is not slowed down by it."""
    body = ChunkedBody(Bounds())
    data = (b"10000\r\n" + bytes(0x10000) + b"\r\n") * 4
    payload, end, late = turns.feed(body, data, 0)
    assert (len(payload), end, late) == (4 * 0x10000, len(data), b"")


CHUNKS = st.lists(
    st.sampled_from(
        [TINY * 300, TINY * 3_000, b"5000\r\n" + b"y" * 0x5000 + b"\r\n", b"2\r\nzz\r\n"]
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(CHUNKS, st.integers(0, 5), st.sampled_from([999, 16_384, 70_000]))
def test_turns_change_nothing(chunks: list[bytes], start: int, size: int) -> None:
    """3.5: in however many turns and reads it comes, the body is the same and ends there."""
    stream = b"".join(chunks) + b"0\r\n\r\n"
    whole = ChunkedBody(Bounds())
    expected, _ = whole.feed(stream, 0)
    body, found, rest = ChunkedBody(Bounds()), b"", b""
    stream = bytes(start) + stream + b"GET /next"
    for place in range(start, len(stream), size):
        data = stream[place : place + size]
        if body.done:
            rest += data
            continue
        payload, end, late = turns.feed(body, data, 0)
        found += payload
        while late:
            assert end == len(data)
            data = late
            payload, end, late = turns.feed(body, data, 0)
            found += payload
        rest += data[end:]
    assert (found, body.done, rest) == (expected, True, b"GET /next")


def test_floods_of_interim_answers_end(gateway: Gateway, make_host: MakeHost) -> None:
    """3.11: a host that sends 1xx answers without end gets its exchange ended, and only that."""

    def script(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        if request.raw_target == b"/flood":
            connection.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 50_000)
        connection.reply()

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(f"GET /flood HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        answer = client.answer()
    assert answer.status == 502
    assert len(answer.interim) <= 64
    assert gateway.ask(host.hostname).status == 200
