"""That nobody holds a sidecar's connections with nothing, with real sockets on both sides."""

import contextlib
import threading
import time

import pytest

from smartgw_hosts import challenge, sidecar_http
from tests.hosts.test_sidecar import GET, front, prove, within
from tests.raw_http import Downstream
from tests.upstreams import Connection, Request, each

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"


@pytest.mark.parametrize(
    "begun", [b"", b"3", b"12345", b"GET / HTTP/1.1\r\n\r\n"], ids=["none", "1", "5", "odd"]
)
@pytest.mark.parametrize("path", [b"/", challenge.PATH])
def test_bodies_that_do_not_go_on_are_ended(
    monkeypatch: pytest.MonkeyPatch, begun: bytes, path: bytes
) -> None:
    """3.11: nobody holds a connection with a head and a Content-Length and nothing more."""
    monkeypatch.setattr(sidecar_http, "BODY_TIMEOUT", 0.2)
    monkeypatch.setattr(sidecar_http, "HEAD_TIMEOUT", 0.2)
    with front() as (_, running), running.connect() as client:
        client.send(b"POST %s HTTP/1.1\r\nHost: s\r\nContent-Length: 99\r\n\r\n" % path + begun)
        assert client.closed(4)
        within(2, lambda: running.sidecar.connections == 0)


def test_a_body_that_goes_on_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: it is progress that counts; and an app may take its time for the answer."""
    monkeypatch.setattr(sidecar_http, "BODY_TIMEOUT", 1.5)

    def slowly(connection: Connection, _: Request) -> None:
        time.sleep(3)
        connection.reply(b"done")

    with front(each(slowly)) as (_, running), running.connect() as client:
        client.send(b"POST / HTTP/1.1\r\nHost: s\r\nContent-Length: 6\r\n\r\n")
        for _ in range(6):
            time.sleep(0.5)
            client.send(b"x")
        assert client.answer().body == b"done"


def test_an_answer_that_is_not_taken_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: nor by asking for much and reading nothing."""
    monkeypatch.setattr(sidecar_http, "ANSWER_TIMEOUT", 0.2)
    script = each(lambda connection, _: connection.reply(bytes(64 << 20)))
    with front(script) as (_, running), running.connect(receive_buffer=4096) as client:
        client.send(GET)
        within(2, lambda: running.sidecar.connections == 1)
        within(4, lambda: running.sidecar.connections == 0)


def test_tunnels_that_carry_nothing_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: an idle tunnel ends, on both sides; one that carries something lives."""
    monkeypatch.setattr(sidecar_http, "TUNNEL_TIMEOUT", 1.5)
    gone = threading.Event()

    def script(connection: Connection) -> None:
        connection.head()
        connection.send(SWITCH)
        with contextlib.suppress(OSError):
            while data := connection.socket.recv(10):
                connection.send(data)
        gone.set()

    with front(script) as (_, running), running.connect() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        assert client.head().status == 101
        for _ in range(6):
            time.sleep(0.5)
            client.send(b"x")
            assert client.take(1) == b"x"
        assert client.closed(5)
        assert gone.wait(2)


def test_no_crowd_keeps_a_gateway_out() -> None:
    """3.11: connections that do not open with a challenge hold half of the places at most, and of
    one address a quarter; whoever says nothing gives way."""
    with front(connections=8) as (_, running):
        crowd = []
        for _ in range(10):
            crowd.append(running.connect())
            crowd[-1].send(b"POST / HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\n")
        within(2, lambda: running.sidecar.connections == 2)
        gateways: list[Downstream] = []
        # Which two of them, is a matter of who spoke before others came.
        held = [client for client in crowd if not client.closed(0.2)]
        assert len(held) == 2
        held[0].reset()
        for _ in range(6):
            within(2, lambda: running.sidecar.connections == 1 + len(gateways))
            gateways.append(running.connect())
            prove(gateways[-1])
        for client in (*crowd, *gateways):
            client.reset()


def test_bounded_connections() -> None:
    """3.11: connections are bounded, and a place that becomes free is used."""
    with front(connections=2) as (_, running):
        first = running.connect()
        prove(first)
        second = running.connect()
        prove(second)
        third = running.connect()
        assert third.closed(2)
        first.close()
        within(2, lambda: running.sidecar.connections == 1)
        with running.connect() as fourth:
            prove(fourth)
        second.close()
        third.close()


def test_slow_heads_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: a head that does not come in time is answered 408, an idle connection ended."""
    monkeypatch.setattr(sidecar_http, "HEAD_TIMEOUT", 0.1)
    monkeypatch.setattr(sidecar_http, "IDLE_TIMEOUT", 0.1)
    with front() as (_, running), running.connect() as slow, running.connect() as idle:
        slow.send(b"GET / HT")
        prove(idle)
        assert slow.answer().status == 408
        assert idle.closed(2)
