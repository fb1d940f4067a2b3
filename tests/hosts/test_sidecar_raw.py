"""The raw sidecar: one challenge at the start of a connection, then bytes nobody reads."""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smartgw_hosts import challenge, sidecar_raw
from smartgw_hosts.challenge import PATH
from smartgw_hosts.sidecar_raw import opening_challenge
from tests.hosts.challenges import ask, proves
from tests.hosts.sidecars import Running, sidecar
from tests.raw_http import Downstream
from tests.upstreams import Connection, Script, Upstream


def echo(connection: Connection) -> None:
    """Send back what comes until the client ends its side, then a last word."""
    while True:
        data = connection.socket.recv(1 << 18)
        if not data:
            connection.send(b"<end>")
            return
        connection.send(data)


@contextmanager
def front(script: Script = echo, connections: int = 100) -> Iterator[tuple[Upstream, Running]]:
    app = Upstream(script)
    try:
        with sidecar(app.port, raw=True, connections=connections) as running:
            yield app, running
    finally:
        app.close()


def prove(client: Downstream) -> None:
    asked = ask()
    client.send(challenge.request(asked))
    answer = client.answer("POST")
    assert proves(asked, answer.status, answer.body)


def echoed(client: Downstream, data: bytes) -> None:
    client.send(data)
    assert client.take(len(data)) == data


def test_challenge_then_bytes() -> None:
    """12.4: the challenge that opens a connection is answered, then bytes pass unparsed."""
    with front() as (app, running), running.connect() as client:
        prove(client)
        assert app.accepted == 0
        echoed(client, b"\x00\xff nonsense \r\n\r\n\n")
        echoed(client, challenge.request(ask()))
        echoed(client, bytes(range(256)) * 4000)
        client.half_close()
        assert client.rest() == b"<end>"
        assert client.ended == "fin"


@pytest.mark.parametrize("step", [1, 3, 50])
def test_challenge_in_pieces(step: int) -> None:
    """12.4: how a challenge was cut into packets makes no difference, nor what follows at once."""
    asked = ask()
    whole = challenge.request(asked) + b"next"
    with front() as (_, running), running.connect() as client:
        for start in range(0, len(whole), step):
            client.send(whole[start : start + step])
        answer = client.answer("POST")
        assert proves(asked, answer.status, answer.body)
        assert client.take(4) == b"next"


def test_no_challenge_is_relayed() -> None:
    """12.4: a connection that does not open with a challenge is relayed from its first byte."""
    whole = challenge.request(ask())
    openings = [
        b"GET / HTTP/1.1\r\nHost: s\r\n\r\n" + whole,
        b"\r\n" + whole,
        b"P",
        whole.replace(b"POST", b"PUT", 1),
        whole.replace(PATH, PATH + b"?", 1),
        whole.replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        whole.replace(b"Content-Length", b"Content-Length : 1\r\nX", 1),
        whole.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost", 1),
        whole.replace(b"Content-Length: ", b"Content-Length: 9", 1),
        whole.replace(b"\r\nHost", b"\nHost", 1),
        whole[:-1],
        b"POST " + PATH + b" HTTP/1.1\r\nX: " + b"x" * 10_000,
    ]
    with front() as (_, running):
        for opening in openings:
            with running.connect() as client:
                client.send(opening)
                client.half_close()
                assert client.rest() == opening + b"<end>"


def test_refused_challenge() -> None:
    """2.1: a challenge that came through a gateway is refused here, and not relayed."""
    with front() as (app, running), running.connect() as client:
        client.send(challenge.request(ask()).replace(b"Accept", b"Via: 1.1 c1\r\nAccept", 1))
        assert client.answer("POST").status == 403
        assert app.accepted == 0
        echoed(client, b"bytes")


def test_half_close_by_the_app() -> None:
    """12.4: the app may end its side and still be sent to."""
    got: list[bytes] = []
    over = threading.Event()

    def script(connection: Connection) -> None:
        connection.send(b"hello")
        connection.socket.shutdown(1)
        with contextlib.suppress(EOFError):
            while True:
                connection.more()
        got.append(bytes(connection.buffer))
        over.set()

    with front(script) as (_, running), running.connect() as client:
        client.send(b"a")
        assert client.rest() == b"hello"
        client.send(b"bc")
        client.half_close()
        assert over.wait(3)
    assert got == [b"abc"]


def test_resets_pass() -> None:
    """12.4: a reset on one side is a reset on the other."""
    ended = threading.Event()

    def script(connection: Connection) -> None:
        connection.more()
        if connection.buffer == b"die":
            connection.reset()
        else:
            with contextlib.suppress(ConnectionResetError):
                connection.socket.recv(1)
                return
            ended.set()

    with front(script) as (_, running):
        with running.connect() as client:
            client.send(b"die")
            assert client.closed(2)
            assert client.ended == "reset"
        client = running.connect()
        client.send(b"live")
        time.sleep(0.05)
        client.reset()
        assert ended.wait(2)


def test_app_down() -> None:
    """12.4: without an app the challenge is still answered, and what follows is reset."""
    app = Upstream(echo)
    app.close()
    with sidecar(app.port, raw=True) as running, running.connect() as client:
        prove(client)
        client.send(b"x")
        assert client.closed(2)
        assert client.ended == "reset"


def test_back_pressure() -> None:
    """3.6: a side that does not read stops the other one, after a bounded number of bytes."""
    with front(lambda connection: time.sleep(3)) as (_, running):
        client = running.connect(timeout=0.3)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 100 << 20:
                sent += client.socket.send(bytes(65_536))
        assert sent < 32 << 20  # the buffers of two pairs of sockets, and ours
        client.reset()


def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: a connection that never says what it is is ended; a relayed one lives."""
    monkeypatch.setattr(sidecar_raw, "HEAD_TIMEOUT", 0.1)
    with front() as (_, running), running.connect() as silent, running.connect() as relayed:
        silent.send(b"POST /.well-known/")
        echoed(relayed, b"x")
        assert silent.closed(3)
        echoed(relayed, b"y")


def test_tunnels_that_carry_nothing_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: an idle tunnel ends, whether or not a challenge opened it; a busy one lives."""
    monkeypatch.setattr(sidecar_raw, "TUNNEL_TIMEOUT", 1.5)
    with front() as (_, running), running.connect() as proven, running.connect() as other:
        prove(proven)
        for _ in range(6):
            time.sleep(0.5)
            echoed(proven, b"x")
            echoed(other, b"y")
        assert proven.closed(4)
        assert other.closed(4)


def test_no_crowd_keeps_a_gateway_out() -> None:
    """3.11: tunnels that no challenge opened hold a quarter of the places from one address."""
    with front(connections=8) as (_, running):
        crowd = []
        for number in range(4):
            crowd.append(running.connect())
            if number < 2:
                echoed(crowd[-1], b"x")
            else:
                assert crowd[-1].closed(2)
        crowd[1].reset()
        gateways = []
        for _ in range(6):
            time.sleep(0.05)
            gateways.append(running.connect())
            prove(gateways[-1])
            echoed(gateways[-1], b"z")
        for client in (*crowd, *gateways):
            client.reset()


def test_stop() -> None:
    """11.1: idle connections end at once, relayed ones when they are over."""
    with front() as (_, running), running.connect() as idle, running.connect() as relayed:
        prove(idle)
        echoed(relayed, b"x")
        stopping = threading.Thread(target=running.stop, args=(10,))
        stopping.start()
        assert idle.closed(3)
        echoed(relayed, b"y")
        relayed.half_close()
        assert relayed.rest() == b"<end>"
        stopping.join(3)
        assert not stopping.is_alive()


def test_opening_is_judged_as_early_as_possible() -> None:
    """12.4: a byte that makes a challenge impossible is not waited upon."""
    whole = challenge.request(ask())
    assert all(opening_challenge(whole[:size]) is None for size in range(len(whole)))
    assert opening_challenge(whole)
    assert opening_challenge(b"G") is False
    assert opening_challenge(b"POST /.well-known/smartgw/challenge ") is None
    assert opening_challenge(b"POST /.well-known/smartgw/challenge?") is False
