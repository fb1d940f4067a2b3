"""Bodies stream: memory stays, events arrive one by one, and either side's end reaches the
other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.gateway import Gateway, Host, MakeHost, wait_until
from tests.upstreams import Connection, Request, each, serve

MIB = 1 << 20
BODY = 300 * MIB
GROWTH = 2  # MiB
BLOCK = bytes(256 << 10)


def more_than(things: Sequence[object], count: int) -> bool:
    """Whether there are more than `count` things."""
    return len(things) > count


class Peak:
    """The highest resident size of a gateway while the block runs, above a baseline."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._done = threading.Event()
        self.growth = 0

    def __enter__(self) -> Peak:
        self._base = self._gateway.rss()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.growth = max(self.growth, self._gateway.rss() - self._base)


def settled_growth(transfer: Callable[[], None], *gateways: Gateway) -> float:
    """MiB by which the memory of one of the gateways grows at most while `transfer` runs.

    The least of three: what a process keeps after doing something for the first time, whenever
    that is, has nothing to do with what it passes. It is a few MiB then, and never what was passed.
    """
    least = float("inf")
    for _ in range(3):
        with contextlib.ExitStack() as watching:
            peaks = [watching.enter_context(Peak(gateway)) for gateway in gateways]
            transfer()
        grown = [peak.growth / MIB for peak in peaks]
        assert max(grown) < 5 * GROWTH, grown
        least = min(least, max(grown))
        if least < GROWTH:
            break
    return least


def sink_and_source(hold: threading.Event) -> Callable[[Connection], None]:
    """`GET /<n>` gives n bytes; a POST's body is read once `hold` is set, its length is
    answered.
    """

    def behaviour(connection: Connection, request: Request) -> None:
        if request.method == "GET":
            size = int(request.raw_target[1:])
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // len(BLOCK)):
                connection.send(BLOCK)
            return
        hold.wait(30)
        left = int(request.one("content-length"))
        left -= len(connection.buffer)
        connection.buffer.clear()
        while left:
            data = connection.socket.recv(min(left, 1 << 20))
            if not data:
                raise EOFError
            left -= len(data)
        connection.reply(b"taken")

    return each(behaviour)


def download(gateway: Gateway, host: Host, size: int, stall: float) -> None:
    """Ask for `size` bytes, read none for `stall` seconds, then all."""
    with gateway.downstream(timeout=30, receive_buffer=64 << 10) as client:
        client.send(f"GET /{size} HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        time.sleep(stall)
        answer = client.final_head()
        assert (answer.status, answer.one("content-length")) == (200, str(size))
        left = size - len(client.buffer)
        while left:
            data = client.socket.recv(min(left, 1 << 20))
            assert data, f"ended with {left} bytes to come"
            left -= len(data)


def upload(gateway: Gateway, host: Host, size: int) -> None:
    """Send `size` bytes as fast as they are taken."""
    with gateway.downstream(timeout=30) as client:
        client.send(
            f"POST /up HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        for _ in range(size // len(BLOCK)):
            client.send(BLOCK)
        assert client.answer("POST").body == b"taken"


def upload_held(
    gateway: Gateway, host: Host, size: int, hold: threading.Event, stall: float
) -> None:
    """Send `size` bytes to a host of `sink_and_source` that reads none for `stall` seconds."""
    hold.clear()
    threading.Timer(stall, hold.set).start()
    upload(gateway, host, size)


def test_300_mib_down_with_a_stalled_reader(gateway: Gateway, make_host: MakeHost) -> None:
    """3.6: 300 MiB to a client that reads nothing for a while: memory grows by less than 2 MiB."""
    host = make_host(sink_and_source(threading.Event()))
    for _ in range(3):
        download(gateway, host, 32 * MIB, 0.3)
    assert settled_growth(lambda: download(gateway, host, BODY, 1.0), gateway) < GROWTH


def test_300_mib_up_with_a_stalled_host(gateway: Gateway, make_host: MakeHost) -> None:
    """3.6: 300 MiB to a host that reads nothing for a while: memory grows by less than 2 MiB."""
    hold = threading.Event()
    host = make_host(sink_and_source(hold))
    for _ in range(3):
        upload_held(gateway, host, 32 * MIB, hold, 0.3)
    assert settled_growth(lambda: upload_held(gateway, host, BODY, hold, 1.0), gateway) < GROWTH


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_events_arrive_one_by_one(gateway: Gateway, make_host: MakeHost, framing: str) -> None:
    """3.6: a server-sent event arrives before the next one is written."""
    taken = threading.Semaphore(0)

    def events(connection: Connection, request: Request) -> None:
        coding = b"Transfer-Encoding: chunked\r\n" if framing == "chunked" else b""
        connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + coding + b"\r\n"
        )
        for number in range(5):
            event = b"data: %d\n\n" % number
            if framing == "chunked":
                event = b"%x\r\n%s\r\n" % (len(event), event)
            connection.send(event)
            assert taken.acquire(timeout=5)
        connection.send(b"0\r\n\r\n" if framing == "chunked" else b"")
        connection.close()

    host = make_host(each(events))
    with gateway.downstream() as client:
        client.send(f"GET /sse HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        client.final_head()
        for number in range(5):
            assert client.until(b"data: %d\n\n" % number) is not None
            taken.release()


def test_interim_answers_pass(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: 103 passes unchanged and before the final answer; a 100 that nobody asked for does
    not.
    """
    go = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")
        assert go.wait(5)
        connection.reply(b"done")

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        hint = client.head()
        assert (hint.status, hint.all("link")) == (103, [b"</a.css>; rel=preload"])
        go.set()
        assert client.answer().body == b"done"


@pytest.mark.parametrize("how", ["fin", "reset", "bad chunk"])
def test_aborted_request_body_aborts_the_upstream(
    gateway: Gateway, make_host: MakeHost, how: str
) -> None:
    """3.6: an aborted or malformed request body aborts the upstream connection: never a shorter
    request.
    """
    ends: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        try:
            connection.read_body(request)
        except (EOFError, OSError):
            ends.append(True)
            raise

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(
            f"POST /abort HTTP/1.1\r\nHost: {host.hostname}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode()
        )
        wait_until(lambda: host.upstream.requests, what="head upstream")
        if how == "fin":
            client.half_close()
            client.closed(2)
        elif how == "reset":
            client.reset()
        else:
            client.send(b"5;a\rb\r\nhello\r\n0\r\n\r\n")
            assert client.answer("POST").status == 400
            assert client.closed(2)
    wait_until(lambda: ends, 3, "upstream connection ended")
    assert [r.whole for r in host.upstream.requests] == [False]
    assert gateway.state(host.host_id) == "healthy"


@pytest.mark.parametrize("answered", [False, True])
def test_client_that_goes_away_cancels(
    gateway: Gateway, make_host: MakeHost, answered: bool
) -> None:
    """3.6: a client that goes away cancels the upstream request and never counts against the
    host.
    """
    ended: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        if answered:
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        ended.append(connection.ended(5))
        raise EOFError

    host = make_host(each(script))
    for number in range(5):
        with gateway.downstream() as client:
            client.send(f"GET /{number} HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            wait_until(partial(more_than, host.upstream.requests, number), what="request upstream")
            if answered:
                assert client.until(b"abc") is not None
        wait_until(partial(more_than, ended, number), 4, "upstream cancelled")
    assert all(ended)
    assert gateway.state(host.host_id) == "healthy"
    host.upstream.script = serve
    assert gateway.ask(host.hostname).status == 200


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_cut_answer_is_seen_as_cut(
    gateway: Gateway, make_host: MakeHost, how: str, framing: str
) -> None:
    """3.6: an answer that the host cuts is never made to look whole."""
    head = {
        "length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    }[framing]

    def script(connection: Connection, request: Request) -> None:
        connection.send(head)
        time.sleep(0.05)
        if how == "reset":
            connection.reset()
        raise EOFError

    answer = gateway.ask(make_host(each(script)).hostname)
    assert answer.status == 200
    assert not answer.complete


def test_a_table_change_never_cuts_a_stream(gateway: Gateway, make_host: MakeHost) -> None:
    """3.8: a host that leaves while it answers finishes its answer."""
    go = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc")
        assert go.wait(5)
        connection.send(b"def")

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert client.final_head().status == 200
        others = [make_host() for _ in range(3)]
        others[0].upstream.kill()
        time.sleep(0.2)
        go.set()
        assert client.take(6) == b"abcdef"


def test_pipelined_requests_are_answered_in_order(gateway: Gateway, make_host: MakeHost) -> None:
    """RFC 9112 9.3.2: answers to pipelined requests come in order, a slow first one too."""

    def script(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        time.sleep(0.2 if request.raw_target == b"/0" else 0)
        connection.reply(request.raw_target)

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(
            *(f"GET /{n} HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode() for n in range(20))
        )
        assert [client.answer().body for _ in range(20)] == [b"/%d" % n for n in range(20)]
