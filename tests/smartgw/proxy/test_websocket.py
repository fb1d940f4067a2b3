"""WebSocket: bytes after a correct 101, nothing else is ever a tunnel."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

from tests.gateway import Gateway, MakeHost, wait_until
from tests.upstreams import HANDSHAKE, Connection, Request, accept, each


def echo(connection: Connection, request: Request) -> None:
    """Accept an upgrade and send every byte back; answer 200 to anything else."""
    if not request.all("upgrade"):
        connection.reply(b"plain")
        return
    accept(connection, request)
    while True:
        if not connection.buffer:
            connection.more()
        data = bytes(connection.buffer)
        connection.buffer.clear()
        connection.send(data)


def test_bytes_pass_both_ways(gateway: Gateway, make_host: MakeHost) -> None:
    """3.6: after a correct 101 bytes pass as they are, both ways."""
    host = make_host(each(echo))
    sent = os.urandom(1 << 20)
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        assert client.answer().status == 101
        sender = threading.Thread(target=client.send, args=(sent,))
        sender.start()
        assert client.take(len(sent)) == sent
        sender.join()
    (request,) = host.upstream.requests
    assert request.one("upgrade").lower() == "websocket"
    assert "upgrade" in request.one("connection").lower()


@pytest.mark.parametrize(
    ("upgrade", "connection"),
    [("WebSocket", "Upgrade"), ("WEBSOCKET", "upgrade"), ("websocket", "keep-alive, Upgrade")],
)
def test_r30_case_and_lists(
    gateway: Gateway, make_host: MakeHost, upgrade: str, connection: str
) -> None:
    """R30: `Upgrade: WebSocket` and `Connection: keep-alive, upgrade` are the same in any case."""
    host = make_host(each(echo))
    raw = HANDSHAKE.replace("Upgrade: websocket", f"Upgrade: {upgrade}")
    raw = raw.replace("Connection: Upgrade", f"Connection: {connection}")
    with gateway.downstream() as client:
        client.send(raw.format(hostname=host.hostname).encode())
        assert client.answer().status == 101
        client.send(b"x")
        assert client.take(1) == b"x"


@pytest.mark.parametrize("upgrade", ["h2c", "TLS/1.0", "foo/2", "h2c, foo"])
def test_r30_other_upgrades_are_removed(
    gateway: Gateway, make_host: MakeHost, upgrade: str
) -> None:
    """R30, 3.6: other upgrades are not passed: the field is removed, the request is an ordinary
    one.
    """
    host = make_host(each(echo))
    answer = gateway.ask(
        host.hostname, "/", "GET", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}",
        "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    )  # fmt: skip
    assert (answer.status, answer.body) == (200, b"plain")
    (request,) = host.upstream.requests
    assert request.all("upgrade") == request.all("http2-settings") == []
    assert "upgrade" not in request.one("connection").lower()


def test_upgrade_needs_connection(gateway: Gateway, make_host: MakeHost) -> None:
    """RFC 9110 7.8: an Upgrade that Connection does not name is none."""
    host = make_host(each(echo))
    answer = gateway.ask(host.hostname, "/", "GET", "Upgrade: websocket")
    assert (answer.status, answer.body) == (200, b"plain")


@pytest.mark.parametrize("side", ["client", "host"])
def test_r29_half_close(gateway: Gateway, make_host: MakeHost, side: str) -> None:
    """R29: one side of an upgraded connection ends its sending: the other direction goes on."""

    def script(connection: Connection, request: Request) -> None:
        accept(connection, request)
        if side == "client":
            got = b""
            while data := connection.socket.recv(100):
                got += data
            connection.send(b"got " + got)
        else:
            connection.send(b"last")
            connection.socket.shutdown(1)
            told.append(connection.take(5))
        raise EOFError

    told: list[bytes] = []
    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        assert client.answer().status == 101
        if side == "client":
            client.send(b"hello")
            client.half_close()
            assert client.rest() == b"got hello"
        else:
            assert client.take(4) == b"last"
            assert client.closed(2)
            client.send(b"after")
            wait_until(lambda: told == [b"after"], 3)


def test_r31_dead_host(gateway: Gateway, make_host: MakeHost) -> None:
    """R31: an upgrade to a host that is dead is an answer of ours: 502, or 503 once it is out."""
    host = make_host(each(echo))
    host.upstream.kill()
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        assert client.answer().status in (502, 503)


def test_r31_plain_answer_to_an_upgrade(gateway: Gateway, make_host: MakeHost) -> None:
    """R31: a 200 to an upgrade is a plain answer, no tunnel: what follows is the next request."""
    host = make_host(each(lambda connection, request: connection.reply(request.raw_target)))
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        answer = client.answer()
        assert (answer.status, answer.body) == (200, b"/ws")
        client.send(f"GET /next HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert client.answer().body == b"/next"


@pytest.mark.parametrize(
    "answer",
    [
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong",
        "Upgrade: websocket\r\nConnection: Upgrade",
        "Upgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
    ],
)
def test_incorrect_101(gateway: Gateway, make_host: MakeHost, answer: str) -> None:
    """3.6: a 101 that is not correct is 502 and opens no tunnel."""

    def script(connection: Connection, request: Request) -> None:
        connection.send(f"HTTP/1.1 101 Switching\r\n{answer}\r\n\r\nsecret".encode())
        connection.ended(3)
        raise EOFError

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        assert client.answer().status == 502
        client.closed(0.5)
        assert b"secret" not in client.got


@pytest.mark.parametrize("edit", ["Version: 8", "no key", "bad key", "POST"])
def test_bad_handshakes_open_no_tunnel(gateway: Gateway, make_host: MakeHost, edit: str) -> None:
    """3.6: a handshake that is not one (RFC 6455 4.1) is refused or an ordinary request, never
    a tunnel.
    """
    host = make_host(each(lambda connection, request: connection.reply(b"plain")))
    raw = {
        "Version: 8": HANDSHAKE.replace("Version: 13", "Version: 8"),
        "no key": HANDSHAKE.replace("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
        "bad key": HANDSHAKE.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"),
        "POST": HANDSHAKE.replace("GET", "POST"),
    }[edit]
    with gateway.downstream() as client:
        client.send(raw.format(hostname=host.hostname).encode())
        assert client.answer().status in (200, 400, 426)


def test_frames_sent_with_the_handshake(gateway: Gateway, make_host: MakeHost) -> None:
    """CVE-2025-64763's lesson: bytes sent ahead of the 101 reach the host only after it."""
    early: list[bytes] = []

    def script(connection: Connection, request: Request) -> None:
        connection.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            connection.more()
        early.append(bytes(connection.buffer))
        accept(connection, request, b"\x81\x02hi")
        connection.socket.settimeout(5)
        connection.send(connection.take(5))
        connection.ended(5)

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode(), b"early")
        assert client.answer().status == 101
        assert client.take(9) == b"\x81\x02hiearly"
    assert early == [b""]


@pytest.mark.parametrize("side", ["client", "host"])
def test_end_of_one_side_ends_the_other(gateway: Gateway, make_host: MakeHost, side: str) -> None:
    """3.6: a reset of either side reaches the other."""
    ended: list[bool] = []

    def script(connection: Connection, request: Request) -> None:
        accept(connection, request)
        if side == "host":
            connection.reset()
            return
        ended.append(connection.ended(5))
        raise EOFError

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        assert client.answer().status == 101
        if side == "host":
            assert client.closed(2)
        else:
            client.reset()
            wait_until(lambda: ended == [True], 3)
