"""Hosts that do not read and clients that read slowly: what the gateway holds is bounded, and
progress counts as progress.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest

from tests.gateway import Gateway, MakeHost
from tests.raw_http import Downstream
from tests.upstreams import HANDSHAKE, Connection, Request, Script, accept, each

MIB = 1 << 20
# What the kernel takes on both of the gateway's sides is far below it, what we offer far above.
BOUND = 24 * MIB
OFFERED = 96 * MIB


def pour(client: Downstream) -> int:
    """Send until nothing more is taken for a while; return how many bytes were."""
    piece, sent = bytes(1 << 16), 0
    with contextlib.suppress(TimeoutError, OSError):
        client.socket.settimeout(0.5)
        while sent < OFFERED:
            sent += client.socket.send(piece)
    return sent


def post(hostname: str, length: int) -> bytes:
    """The head of an upload."""
    return f"POST / HTTP/1.1\r\nHost: {hostname}\r\nContent-Length: {length}\r\n\r\n".encode()


def never_reads(done: threading.Event) -> Script:
    """A host that takes the head of a request, and nothing more until `done`."""

    def script(connection: Connection, request: Request) -> None:
        done.wait(20)
        raise EOFError

    return each(script)


def answers_early(done: threading.Event) -> Script:
    """A host whose first request is answered with its body unread; then it reads nothing."""

    def script(connection: Connection) -> None:
        connection.head()
        if len(connection.upstream.requests) == 1:
            time.sleep(0.2)
            connection.reply(b"early")
        done.wait(20)

    return script


def switches_late(done: threading.Event) -> Script:
    """A host that thinks before it takes an upgrade, and reads nothing after."""

    def script(connection: Connection, request: Request) -> None:
        time.sleep(0.3)
        accept(connection, request)
        done.wait(20)
        raise EOFError

    return each(script)


def upload(client: Downstream, hostname: str) -> None:
    """The head and 300 KB in one write."""
    client.send(post(hostname, OFFERED), bytes(300_000))


def after_an_early_answer(client: Downstream, hostname: str) -> None:
    """An upload that finds, or must not find, a connection full of what nobody reads."""
    client.send(post(hostname, 150_000), bytes(150_000))
    answer = client.answer("POST")
    assert answer.body == b"early"
    if answer.all("connection") == [b"close"]:
        # It came before the upload was whole: what is still sent is read and thrown away.
        client.close()
    else:
        client.send(post(hostname, OFFERED))


def upgrade(client: Downstream, hostname: str) -> None:
    """400 KB before the host has agreed to an upgrade."""
    client.send(HANDSHAKE.format(hostname=hostname).encode())
    client.send(bytes(400_000))
    assert client.final_head().status == 101


Begin = Callable[[Downstream, str], None]


@pytest.mark.parametrize(
    ("make_script", "begin"),
    [
        (never_reads, upload),
        (answers_early, after_an_early_answer),
        (switches_late, upgrade),
    ],
)
def test_a_host_that_does_not_read(
    gateway: Gateway,
    make_host: MakeHost,
    make_script: Callable[[threading.Event], Script],
    begin: Begin,
) -> None:
    """3.6: back-pressure reaches the client whenever the host's side is full: after the first
    write already, on a kept connection, and in a tunnel for which the client did not wait.
    """
    done = threading.Event()
    host = make_host(make_script(done), narrow=True)
    before = gateway.rss()
    try:
        with gateway.downstream() as client:
            begin(client, host.hostname)
            assert pour(client) < BOUND
            assert gateway.rss() - before < 8 * MIB
    finally:
        done.set()


def test_a_connection_full_of_an_unread_request_is_not_kept(
    gateway: Gateway, make_host: MakeHost
) -> None:
    """3.6: a host that answers before it has read the request gets the next one on another
    connection.
    """
    ended = threading.Event()

    def script(connection: Connection) -> None:
        request = connection.head()
        if request.raw_target == b"/early":
            connection.reply(b"early")
            if connection.ended(10):
                ended.set()
        else:
            connection.reply(b"next")

    host = make_host(script, narrow=True)
    with gateway.downstream() as client:
        size = 4_000_000
        client.send(post(host.hostname, size).replace(b"/", b"/early", 1))
        assert client.answer("POST").body == b"early"
    assert gateway.ask(host.hostname, "/next").body == b"next"
    assert ended.wait(5)


def test_a_slow_but_steady_reader_gets_it_all(cramped: Gateway, make_host: MakeHost) -> None:
    """3.11: it is progress that counts: an answer that has long left the host reaches a client
    that takes longer for it than any deadline, as long as it reads on.
    """
    size = 3_200_000

    def script(connection: Connection, request: Request) -> None:
        connection.reply(bytes(size))

    host = make_host(each(script))
    with cramped.downstream(receive_buffer=4096) as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        begun = time.monotonic()
        taken = 0
        while data := client.socket.recv(20_000):
            taken += len(data)
            if time.monotonic() - begun > 2.5:
                break
            time.sleep(0.05)
        # Longer than twice what it may take without progress; now the rest at once.
        while taken <= size and (data := client.socket.recv(1 << 16)):
            taken += len(data)
    assert taken > size
