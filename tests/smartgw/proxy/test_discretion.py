"""What the gateway's own answers tell a client of the host that failed: nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smartgw_hosts.challenge import Responder
from tests.gateway import Gateway, Host, MakeHost, identity_of
from tests.upstreams import HANDSHAKE, Connection, Request, each, serve

MARK = b"host-only-words"


def refuses(host: Host) -> None:
    """Nothing listens."""
    host.upstream.kill()


def closes(host: Host) -> None:
    """It ends each connection before it has proven anything."""
    host.upstream.kill()
    host.upstream.script = Connection.close
    host.upstream.listen()


def another_key(host: Host) -> None:
    """It signs with a key that is not its own."""
    host.upstream.kill()
    cluster_id, other = host.cluster.cluster_id, identity_of("another")
    host.upstream.responder = Responder(other, host.host_id, cluster_id, lambda: {host.address})
    host.upstream.listen()


def no_proof(host: Host) -> None:
    """It answers the challenge with words of its own."""
    host.upstream.kill()
    host.upstream.responder = None
    host.upstream.script = says(b"HTTP/1.1 418 " + MARK + b"\r\nContent-Length: 15\r\n\r\n" + MARK)
    host.upstream.listen()


def says(raw: bytes) -> Callable[[Connection], None]:
    """A script that answers with these bytes and ends the connection."""

    def script(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        connection.send(raw)
        raise EOFError

    return each(script)


def answers(raw: bytes) -> Callable[[Host], None]:
    """It proves itself and then sends this."""

    def fail(host: Host) -> None:
        host.upstream.script = says(raw)
        host.upstream.kill()
        host.upstream.listen()

    return fail


@pytest.mark.parametrize(
    "fail",
    [
        refuses,
        closes,
        another_key,
        no_proof,
        answers(b""),
        answers(MARK + b" 200 OK\r\n\r\n"),
        answers(b"HTTP/1.1 200 OK\r\n" + MARK + b"\r\n\r\n"),
        answers(b"HTTP/1.1 200 OK\r\nContent-Length: " + MARK + b"\r\n\r\n"),
        answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + MARK + b"\r\n\r\n"),
        answers(b"HTTP/1.1 101 " + MARK + b"\r\nUpgrade: " + MARK + b"\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("accept", ["application/json", "text/html"])
def test_failures_tell_nothing_of_the_host(
    gateway: Gateway, make_host: MakeHost, fail: Callable[[Host], None], accept: str
) -> None:
    """3.10: an answer of ours says which kind of failure it was; the address, the id, the key and
    the words of the host stay in its status.
    """
    host = make_host(serve)
    fail(host)
    with gateway.downstream() as client:
        fields = f"\r\nAccept: {accept}\r\n\r\n"
        client.send(
            HANDSHAKE.format(hostname=host.hostname).replace("\r\n\r\n", fields, 1).encode()
        )
        answer = client.answer()
    assert answer.status in (502, 503)
    told = (answer.head + answer.body).lower()
    key = host.identity.public_key
    for secret in (
        *(MARK, host.address.encode(), str(host.upstream.port).encode(), b"127.0.0.1"),
        *(host.host_id.encode(), key.key_id.encode(), key.text.encode().lower()),
    ):
        assert secret not in told
