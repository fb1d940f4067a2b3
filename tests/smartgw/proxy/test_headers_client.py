"""headers.py: who the client is, to us and to the host, when proxies stand in between."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy import headers
from smartgw.proxy.headers import Forwarding
from smartgw_hosts.http1 import Bounds, RequestHead, parse_request

TRUSTED = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "2001:db8::/32", "192.0.2.7/32")]
TRUSTING = Forwarding("eu-1", TRUSTED)
NAMES = headers.request_names(())


def request(*lines: bytes) -> RequestHead:
    """Parse a request with these fields."""
    head = b"\r\n".join([b"GET / HTTP/1.1", b"Host: shop.apps.test", *lines])
    return parse_request(head, NAMES, Bounds())


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        *(("10.0.0.1", True), ("10.255.255.255", True), ("11.0.0.1", False), ("192.0.2.7", True)),
        *(("192.0.2.8", False), ("::ffff:10.1.2.3", True), ("::ffff:11.1.2.3", False)),
        *(("2001:db8::5", True), ("2001:DB8:0:0::5", True), ("2001:db9::5", False)),
        *(("::10.0.0.1", False), ("64:ff9b::10.0.0.1", False), ("2001:db8::1%eth0", False)),
        *(
            ("", False),
            ("unix", False),
            ("10.0.0", False),
            ("010.0.0.1", False),
            ("0xa.0.0.1", False),
        ),
    ],
)
def test_who_is_trusted(peer: str, trusted: bool) -> None:
    """3.5: a configured proxy is known by its address, an IPv4-mapped one by the IPv4 in it."""
    assert TRUSTING.trusts(peer) is trusted
    assert not Forwarding("eu-1", ()).trusts(peer)


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ([], "10.0.0.1"),
        ([b"203.0.113.9"], "203.0.113.9"),
        ([b" 203.0.113.9\t"], "203.0.113.9"),
        ([b"203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ([b"203.0.113.9,10.9.9.9,2001:db8::7 , 192.0.2.7"], "203.0.113.9"),
        ([b"203.0.113.9", b"10.9.9.9"], "203.0.113.9"),
        # What stands to the left of the last one that is not trusted may be anyone's invention.
        ([b"6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ([b"6.6.6.6", b"203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ([b"10.6.6.6, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        # All of them trusted: the farthest.
        ([b"10.8.8.8, 10.9.9.9"], "10.8.8.8"),
        ([b"2001:db8::9"], "2001:db8::9"),
        # One client, one spelling: what is counted is the address.
        ([b"::ffff:203.0.113.9"], "203.0.113.9"),
        ([b"::FFFF:cb00:7109, ::ffff:10.9.9.9"], "203.0.113.9"),
        ([b"2001:DB9:0:0::A"], "2001:db9::a"),
        ([b"203.0.113.9:55123"], "203.0.113.9"),
        ([b"[2001:db9::a]:55123"], "2001:db9::a"),
        ([b"[2001:db9::a]"], "2001:db9::a"),
        # Garbage: the last one known for sure.
        ([b"garbage"], "10.0.0.1"),
        ([b"203.0.113.9, garbage"], "10.0.0.1"),
        ([b"garbage, 10.9.9.9"], "10.9.9.9"),
        ([b"203.0.113.9, , 10.9.9.9"], "10.9.9.9"),
        *(
            ([text], "10.0.0.1")
            for text in (
                *(b"", b",", b" , ", b"unknown", b"_hidden", b"203.0.113", b"203.0.113.9.", b"0"),
                *(b"203.0.113.09", b"0xcb.0.113.9", b"3405803785", b"203.0.113.9/32", b"::g"),
                *(b'"203.0.113.9"', b"203.0.113.9\xa0", b"\xb2.1.1.1", b"fe80::1%eth0", b"[::1"),
                *(
                    b"fe80::1%<script>",
                    b"2001:db9::a:55123:1:1:1:1:1",
                    b"203.0.113.9:",
                    b"[10.1.1.1",
                ),
                *(b"203.0.113.9:999999", b"203.0.113.9 6.6.6.6", b"for=203.0.113.9", b"1::2::3"),
            )
        ),
    ],
)
def test_client_of_a_trusted_proxy(told: list[bytes], client: str) -> None:
    """3.5: a trusted proxy's word is taken, from the right, up to the first that is not trusted."""
    sent = request(*[b"X-Forwarded-For: " + value for value in told])
    assert TRUSTING.client("10.0.0.1", sent.noted) == client


ADDRESSES = st.one_of(st.ip_addresses().map(str), st.sampled_from(["10.0.0.2", "x", ""]))


@given(st.lists(ADDRESSES, max_size=5), st.text(st.characters(max_codepoint=255), max_size=20))
def test_client_is_an_address(hops: list[str], garbage: str) -> None:
    """3.5: whatever a proxy says, the client is an address; what a client adds changes nothing."""
    told = ",".join(hops).encode()
    client = TRUSTING.client("10.0.0.1", {headers.FORWARDED_FOR: told})
    assert str(ipaddress.ip_address(client)) == client
    if not TRUSTING.trusts(client):
        spoofed = {headers.FORWARDED_FOR: garbage.encode("latin-1") + b"," + told}
        assert TRUSTING.client("10.0.0.1", spoofed) == client


@pytest.mark.parametrize(
    ("peer", "authority", "node", "host"),
    [
        ("203.0.113.9", b"a.test", b"203.0.113.9", b"a.test"),
        ("203.0.113.9", b"a.test:8080", b"203.0.113.9", b'"a.test:8080"'),
        ("2001:db9::a", b"[::1]:80", b'"[2001:db9::a]"', b'"[::1]:80"'),
    ],
)
def test_lines_of_a_client(peer: str, authority: bytes, node: bytes, host: bytes) -> None:
    """3.5: X-Forwarded-* and Forwarded say what we know, in the forms of RFC 7239."""
    assert TRUSTING.lines(peer, b"https", authority).split(b"\r\n") == [
        b"X-Forwarded-For: " + peer.encode(),
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: " + authority,
        b"Forwarded: for=" + node + b";host=" + host + b";proto=https",
        b"Via: 1.1 eu-1",
    ]


@pytest.mark.parametrize(
    ("lines", "chain", "proto", "host", "forwarded"),
    [
        (
            [],
            b"10.0.0.1",
            b"http",
            b"shop.apps.test",
            b"for=10.0.0.1;host=shop.apps.test;proto=http",
        ),
        (
            [b"X-Forwarded-For: 1.2.3.4", b"X-Forwarded-For: 5.6.7.8", b"X-Forwarded-Proto: HTTPS"],
            *(b"1.2.3.4, 5.6.7.8, 10.0.0.1", b"https", b"shop.apps.test"),
            b"for=10.0.0.1;host=shop.apps.test;proto=https",
        ),
        (
            [b"Forwarded: for=1.2.3.4", b"Forwarded: for=5.6.7.8", b"X-Forwarded-Host: pub.test"],
            *(b"10.0.0.1", b"http", b"pub.test"),
            b"for=1.2.3.4, for=5.6.7.8, for=10.0.0.1;host=pub.test;proto=http",
        ),
        (
            [
                b"X-Forwarded-For:",
                b"X-Forwarded-Proto: gopher",
                b"X-Forwarded-Host:",
                b"Forwarded:",
            ],
            *(b"10.0.0.1", b"http", b"shop.apps.test"),
            b"for=10.0.0.1;host=shop.apps.test;proto=http",
        ),
        (
            [
                b"X-Forwarded-Proto: https, http",
                b'X-Forwarded-Host: x";for=6.6.6.6;host="\\',
                b'Forwarded: for="unbalanced',
            ],
            *(b"10.0.0.1", b"http", b"shop.apps.test"),
            b"for=10.0.0.1;host=shop.apps.test;proto=http",
        ),
    ],
)
def test_lines_of_a_trusted_proxy(
    lines: Sequence[bytes], chain: bytes, proto: bytes, host: bytes, forwarded: bytes
) -> None:
    """3.5: a trusted proxy's copies are kept and it is appended; what is malformed is not kept."""
    sent = request(*lines)
    assert TRUSTING.trusted_lines("10.0.0.1", b"http", sent.authority, sent.noted) == (
        b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n"
        b"Forwarded: %b\r\nVia: 1.1 eu-1"
    ) % (chain, proto, host, forwarded)
