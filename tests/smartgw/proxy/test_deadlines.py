"""Every deadline of 3.11, shortened to a second, at a gateway of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.gateway import Cluster, Gateway, MakeHost, wait_until
from tests.upstreams import HANDSHAKE, Connection, Request, accept, blackhole, each

SHORT = 1.0
# Far more than a busy machine adds, and still less than the deadlines by default.
GRACE = 6.0


@pytest.fixture(scope="module")
def hasty(cluster: Cluster, gateway: Gateway) -> Iterator[Gateway]:
    """A gateway with deadlines of a second."""
    made = cluster.gateway(
        {
            "deadlines": {
                "head": SHORT,
                "request_body": SHORT,
                "keepalive": SHORT,
                "response_head": 3.0,
                "response_body": SHORT,
                "websocket": SHORT,
            },
            "upstream": {"connect_timeout": 0.5},
        }
    )
    yield made
    made.stop()


def since(begun: float) -> float:
    return time.monotonic() - begun


@pytest.mark.parametrize("drip", [False, True])
def test_request_head(hasty: Gateway, make_host: MakeHost, drip: bool) -> None:
    """3.11, R43: a head that is not whole in time ends the connection, however busily it drips."""
    begun = time.monotonic()
    with hasty.downstream() as client:
        client.send(b"GET / HTTP/1.1\r\n")
        while drip and since(begun) < SHORT + GRACE and not client.readable(0.2):
            client.send(b"X")
        assert client.closed(SHORT + GRACE)
        assert SHORT * 0.8 < since(begun) < SHORT + GRACE
        assert client.got == b"" or b" 408 " in client.got


def test_first_byte(hasty: Gateway) -> None:
    """3.11: a connection on which nothing ever comes is closed."""
    with hasty.downstream() as client:
        assert client.closed(SHORT + GRACE)


@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_request_body_without_progress(hasty: Gateway, make_host: MakeHost, framing: str) -> None:
    """3.11: a request body that makes no progress is 408, and the upstream connection is
    aborted.
    """
    ended: list[bool] = []
    host = make_host(each(lambda connection, request: ended.append(connection.ended(20))))
    begun = time.monotonic()
    with hasty.downstream() as client:
        client.send(
            f"POST / HTTP/1.1\r\nHost: {host.hostname}\r\n{framing}\r\n\r\n".encode(),
            b"5\r\nhello\r\n",
        )
        answer = client.answer("POST")
        assert answer.status == 408
        assert SHORT * 0.8 < since(begun) < SHORT + GRACE
        assert client.closed(5)
    wait_until(lambda: ended == [True])


def test_request_body_with_progress(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11: it is progress that counts: a slow body that goes on passes."""
    host = make_host()
    with hasty.downstream() as client:
        client.send(
            f"POST / HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: 8\r\n\r\n".encode()
        )
        for _ in range(8):
            time.sleep(SHORT * 0.25)
            client.send(b"x")
        assert client.answer("POST").status == 200


def test_keepalive(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11: an idle connection is closed, without a word."""
    host = make_host()
    with hasty.downstream() as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert client.answer().status == 200
        begun = time.monotonic()
        assert client.closed(SHORT + GRACE)
        assert since(begun) > SHORT * 0.8
        assert not client.buffer


def test_connect(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11: a connect that does not finish in time fails over or answers; nothing was sent."""
    host = make_host()
    sockets = blackhole(host.upstream)
    try:
        begun = time.monotonic()
        answer = hasty.ask(host.hostname, "/", "POST", body=b"x")
        assert answer.status in (502, 504)
        assert answer.one("x-smartgw-request-sent") == "none"
        assert since(begun) < 0.5 + GRACE
    finally:
        for sock in sockets:
            sock.close()


def test_response_head(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11, 5.1, 5.5: no response head by the deadline: 504 that says how much was sent,
    upstream closed.
    """
    ended: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        ended.append(connection.ended(20))
        raise EOFError

    host = make_host(each(script))
    begun = time.monotonic()
    answer = hasty.ask(host.hostname, "/", "POST", body=b"x")
    assert answer.status == 504
    assert answer.one("x-smartgw-request-sent") == "full"
    assert 2.5 < since(begun) < 3 + GRACE
    wait_until(lambda: ended == [True])
    assert len(host.upstream.requests) == 1


def test_response_head_of_an_upload(hasty: Gateway, make_host: MakeHost) -> None:
    """5.1: a write has its deadline from the last that came of its body, and one only."""

    def script(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        connection.ended(20)
        raise EOFError

    host = make_host(each(script))
    begun = time.monotonic()
    with hasty.downstream() as client:
        client.send(
            f"POST / HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: 1\r\n\r\n".encode()
        )
        time.sleep(SHORT * 0.5)
        client.send(b"x")
        answer = client.answer("POST")
    assert answer.status == 504
    assert answer.one("x-smartgw-request-sent") == "full"
    assert 3 < since(begun) < 3.5 + GRACE


def test_response_without_progress(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11: an answer that makes no progress is cut, visibly, on both sides."""
    ended: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab")
        ended.append(connection.ended(20))
        raise EOFError

    host = make_host(each(script))
    begun = time.monotonic()
    answer = hasty.ask(host.hostname)
    assert (answer.status, answer.complete) == (200, False)
    assert SHORT * 0.8 < since(begun) < SHORT + GRACE
    wait_until(lambda: ended == [True])


def test_response_with_progress(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11: an answer of a byte now and then passes."""

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(SHORT * 0.25)
            connection.send(b"x")

    answer = hasty.ask(make_host(each(script)).hostname)
    assert (answer.body, answer.complete) == (b"x" * 8, True)


def test_client_that_stops_reading(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11, R43: a client that stops reading holds neither the answer nor the host for ever."""
    ended: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        try:
            for _ in range(100):
                connection.send(bytes(1_000_000))
        except OSError:
            ended.append(True)
            raise

    host = make_host(each(script))
    with hasty.downstream(receive_buffer=4096) as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        wait_until(lambda: ended, what="upstream ended")


def test_websocket_idle(hasty: Gateway, make_host: MakeHost) -> None:
    """3.11: a WebSocket on which nothing passes is closed on both sides."""
    ended: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        accept(connection, request)
        connection.send(b"\x81\x02hi")
        ended.append(connection.ended(20))
        raise EOFError

    host = make_host(each(script))
    with hasty.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        assert client.answer().status == 101
        assert client.take(4) == b"\x81\x02hi"
        begun = time.monotonic()
        assert client.closed(SHORT + GRACE)
        assert since(begun) > SHORT * 0.8
    wait_until(lambda: ended == [True])
