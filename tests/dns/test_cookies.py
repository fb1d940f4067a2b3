"""Server cookies: given to one address, taken from it for an hour (RFC 7873, RFC 9018)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns.cookies import CLIENT_BYTES, SERVER_BYTES, is_ours, server_cookie

SECRET, OTHER = bytes(range(32)), bytes(32)
CLIENT = b"12345678"
HERE = b"192.0.2.7"
NOW = 1_700_000_000


def made(now: int = NOW) -> bytes:
    return CLIENT + server_cookie(SECRET, CLIENT, HERE, now)


@given(st.binary(min_size=8, max_size=8), st.binary(max_size=39), st.integers(0, (1 << 32) - 1))
def test_a_cookie_is_taken_from_the_address_that_it_was_given_to(
    client: bytes, address: bytes, now: int
) -> None:
    """8.4: a server cookie has 16 octets, and its version and time first (RFC 9018 4.2, 4.3)."""
    cookie = server_cookie(SECRET, client, address, now)
    assert len(cookie) == SERVER_BYTES
    assert cookie[:8] == b"\1\0\0\0" + now.to_bytes(4, "big")
    assert is_ours(SECRET, client + cookie, address, now)
    assert not is_ours(SECRET, client + cookie, address + b"0", now)
    assert not is_ours(OTHER, client + cookie, address, now)


def test_a_cookie_is_taken_for_an_hour_and_five_minutes_ahead() -> None:
    """8.4: the ages between which a cookie proves an address (RFC 9018 4.3)."""
    taken = [age for age in range(-400, 3_700) if is_ours(SECRET, made(), HERE, NOW + age)]
    assert (taken[0], taken[-1], len(taken)) == (-300, 3_600, 3_901)


def test_the_clock_of_a_cookie_may_go_around() -> None:
    """8.4: its time has 32 bits, compared as serial numbers are (RFC 9018 4.3, RFC 1982)."""
    last = (1 << 32) - 10
    assert is_ours(SECRET, made(last), HERE, last + 100)
    assert not is_ours(SECRET, made(last), HERE, last + 3_601)
    assert not is_ours(SECRET, made(last + 400), HERE, last)


@given(st.integers(0, 23), st.integers(1, 255))
def test_an_altered_cookie_is_nobodys(place: int, change: int) -> None:
    """8.4: no octet of a cookie can be changed."""
    cookie = bytearray(made())
    cookie[place] ^= change
    assert not is_ours(SECRET, bytes(cookie), HERE, NOW)


@given(st.binary(max_size=40).filter(lambda cookie: len(cookie) != CLIENT_BYTES + SERVER_BYTES))
def test_a_cookie_of_another_length_is_not_ours(cookie: bytes) -> None:
    """8.4: what another server or nobody gave proves nothing."""
    assert not is_ours(SECRET, cookie, HERE, NOW)
