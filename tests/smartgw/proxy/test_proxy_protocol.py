"""The PROXY protocol: the header's form, and whose word is taken."""

import ipaddress
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy.proxy_protocol import ProxyHeader, ProxyHeaderRefused, read
from tests.gateway import Cluster, Gateway, MakeHost

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def version_2(client: str, command: int = 1, extra: bytes = b"") -> bytes:
    """A version 2 header for a client that connected over TCP."""
    ip = ipaddress.ip_address(client)
    family = 0x11 if ip.version == 4 else 0x21
    body = ip.packed * 2 + bytes(4) + extra
    return SIGNATURE + bytes([0x20 | command, family]) + len(body).to_bytes(2, "big") + body


GOOD = [
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65535\r\n", "192.0.2.1"),
    (b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", "2001:db8::1"),
    (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", "192.0.2.1"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:: ffff:: 65535 65535\r\n", None),
    (version_2("192.0.2.1"), "192.0.2.1"),
    (version_2("2001:db8::1", extra=b"\x04\x00\x01x"), "2001:db8::1"),
    (version_2("192.0.2.1", command=0), None),
    (SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216), None),
]


@pytest.mark.parametrize(("header", "client"), GOOD)
def test_headers(header: bytes, client: str | None) -> None:
    """3.5: PROXY protocol v1 and v2 tell the client's address."""
    local = header == version_2("192.0.2.1", command=0)
    assert read(header + b"GET /") == ProxyHeader(client, len(header), local)
    for end in range(len(header)):
        assert read(header[:end]) is None


BAD = [
    b"GET / HTTP/1.1\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
    b"PROXY TCP4 2001:db8::1 192.0.2.2 1 2\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n",
    b"PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
    b"PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    b"proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    b"PROXY TCP4 " + b"1" * 200,
    SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\x00\x08" + bytes(8),
    SIGNATURE + b"\x21\x11\xff\xff",
]


@pytest.mark.parametrize("data", BAD)
def test_malformed_headers(data: bytes) -> None:
    """3.5: what is no PROXY header is refused."""
    with pytest.raises(ProxyHeaderRefused):
        read(data)


@given(st.binary(max_size=80), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE]))
def test_nothing_else_is_raised(data: bytes, start: bytes) -> None:
    """3.5: whatever comes is a header, a part of one, or refused."""
    try:
        header = read(start + data)
    except ProxyHeaderRefused:
        return
    assert header is None or header.size <= len(start + data)


@pytest.fixture(scope="module")
def behind_balancer(cluster: Cluster) -> Iterator[Gateway]:
    """A gateway that hears of its clients from a load balancer on loopback."""
    gateway = cluster.gateway(
        {"listen": {"proxy_protocol": True}, "proxy": {"trusted": ["127.0.0.0/8"]}}
    )
    yield gateway
    gateway.stop()


@pytest.mark.parametrize(("header", "client"), [GOOD[0], GOOD[1], GOOD[5]])
def test_the_told_client_is_the_client(
    behind_balancer: Gateway, make_host: MakeHost, header: bytes, client: str
) -> None:
    """3.5: X-Forwarded-For comes from a trusted peer's PROXY header, never from the client."""
    host = make_host()
    with behind_balancer.downstream() as downstream:
        downstream.send(
            header,
            f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n"
            "X-Forwarded-For: 203.0.113.9\r\n\r\n".encode(),
        )
        assert downstream.answer().status == 200
    assert host.upstream.requests[-1].one("x-forwarded-for") == client


def test_without_a_header_nothing_is_served(behind_balancer: Gateway, make_host: MakeHost) -> None:
    """3.5: a connection that does not begin with the header is no client's."""
    host = make_host()
    with behind_balancer.downstream() as downstream:
        downstream.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert downstream.closed(2)
    assert not host.upstream.requests


FORGED = (
    "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n"
    "X-Forwarded-Host: forged.test\r\nForwarded: for=203.0.113.9;host=forged.test\r\n"
)


@pytest.mark.parametrize(
    "header", [b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n", GOOD[8][0]]
)
def test_whom_the_balancer_does_not_know_is_not_trusted(
    behind_balancer: Gateway, make_host: MakeHost, header: bytes
) -> None:
    """3.5: a client whose address the balancer cannot tell is not the balancer: its own word on
    where it comes from is replaced.
    """
    host = make_host()
    with behind_balancer.downstream() as downstream:
        downstream.send(header, f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n{FORGED}\r\n".encode())
        assert downstream.answer().status == 200
    (request,) = host.upstream.requests
    assert b"203.0.113.9" not in request.head
    assert b"forged.test" not in request.head
    assert request.one("x-forwarded-proto") == "http"


@pytest.mark.parametrize(
    "told", ['a";for="6.6.6.6', "a;for=6.6.6.6", 'a\\";for=6.6.6.6', "a, b;c=d"]
)
def test_nothing_breaks_out_of_what_a_trusted_proxy_passes_on(
    behind_balancer: Gateway, make_host: MakeHost, told: str
) -> None:
    """3.5: what a trusted proxy tells of the client's Host cannot add a hop to Forwarded."""
    host = make_host()
    with behind_balancer.downstream() as downstream:
        downstream.send(
            # The balancer speaks for itself, and is a trusted proxy.
            version_2("127.0.0.1", command=0),
            f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\nX-Forwarded-For: 1.2.3.4\r\n"
            f'X-Forwarded-Host: {told}\r\nForwarded: for=9.9.9.9;host="x\r\n\r\n'.encode(),
        )
        assert downstream.answer().status == 200
    (request,) = host.upstream.requests
    forwarded = f"for=127.0.0.1;host={host.hostname};proto=http"
    assert request.all("forwarded") == [forwarded.encode()]
    assert request.one("x-forwarded-host") == host.hostname
    assert request.one("x-forwarded-for") == "1.2.3.4, 127.0.0.1"
