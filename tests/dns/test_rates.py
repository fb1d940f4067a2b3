"""Response-rate limiting: what counts as one network, and what a network gets in a second."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns import rates
from smartgw_dns.rates import Rates, Verdict, network

ANSWER, CUT, NOTHING = Verdict.ANSWER, Verdict.TRUNCATED, Verdict.NOTHING


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2"),
        ("::ffff:192.0.2.7", "192.0.2"),
        ("2001:db8:1:ab00::1", "2001:db8:1:ab"),
        ("2001:db8:1:abcd:1:2:3:4", "2001:db8:1:ab"),
        ("2001:db8::1", "2001:db8:0:0"),
        ("2001::1234:2:3:4:5", "2001:0:0:12"),
        ("::1", "0:0:0:0"),
        ("::", "0:0:0:0"),
        ("fe80::", "fe80:0:0:0"),
        ("1:2:3:4:5:6:7::", "1:2:3:0"),
    ],
)
def test_a_network(address: str, name: str) -> None:
    """8.4: response rates are those of an IPv4 /24 and an IPv6 /56."""
    assert network(address) == name


@given(st.ip_addresses(v=6), st.ip_addresses(v=6))
def test_networks_of_ipv6_are_told_apart_by_56_bits(
    one: ipaddress.IPv6Address, other: ipaddress.IPv6Address
) -> None:
    """8.4: two addresses are one network just when their first 56 bits are the same."""
    near = ipaddress.IPv6Address(int(one) >> 72 << 72 | int(other) & ((1 << 72) - 1))
    for second in (near, other):
        if one.ipv4_mapped or second.ipv4_mapped:
            continue
        same = int(one) >> 72 == int(second) >> 72
        assert (network(str(one)) == network(str(second))) is same


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_networks_of_ipv4_are_told_apart_by_24_bits(
    one: ipaddress.IPv4Address, other: ipaddress.IPv4Address
) -> None:
    """8.4: through an IPv6 socket an IPv4 address counts as itself."""
    near = ipaddress.IPv4Address(int(one) >> 8 << 8 | int(other) & 255)
    assert network(str(one)) == network(str(near)) == network(f"::ffff:{near}")
    assert (network(str(one)) == network(str(other))) is (int(one) >> 8 == int(other) >> 8)


def test_every_second_answer_beyond_the_rate_is_cut_and_the_others_are_left_out() -> None:
    """8.4: slip: a client whose address is forged gets little, and still can come by TCP."""
    made = Rates(3)
    seen = [made.judge("192.0.2.1", "a", 10.9) for _ in range(9)]
    assert seen[:3] == [ANSWER] * 3
    assert sorted(seen[3:], key=str) == sorted([CUT, NOTHING] * 3, key=str)
    assert made.limited == 6
    assert made.judge("192.0.2.1", "a", 11.0) is ANSWER


def test_networks_and_answers_are_counted_apart() -> None:
    """8.4: what one network asks for, or one answer, takes nothing from others."""
    made = Rates(1)
    assert [made.judge("192.0.2.1", "a", 1.0), made.judge("192.0.2.9", "a", 1.0)] != [ANSWER] * 2
    assert made.judge("192.0.3.1", "a", 1.0) is ANSWER
    assert made.judge("192.0.2.1", "b", 1.0) is ANSWER


def test_without_a_rate_nothing_is_counted() -> None:
    """8.4: the limit can be switched off."""
    made = Rates(0)
    assert {made.judge("192.0.2.1", "a", 1.0) for _ in range(100)} == {ANSWER}


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.4: a flood from forged addresses does not grow the memory."""
    monkeypatch.setattr(rates, "_MOST_KEPT", 10)
    made = Rates(1)
    for number in range(100):
        assert made.judge(f"192.0.{number}.1", "a", 1.0) is ANSWER
        assert len(made._counts) <= 10
