"""Which addresses are one caller's (contract 6.1)."""

import pytest

from smartgw.admission.callers import caller_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:1::1", "2001:db8:1:ffff::2"),  # R06
        ("::ffff:192.0.2.1", "192.0.2.1"),  # R07
        ("::FFFF:C000:0201", "192.0.2.1"),
        ("64:ff9b::192.0.2.1", "192.0.2.1"),
        ("64:ff9b:1::192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"),  # R08
        ("fe80::1%eth0", "fe80::1%eth1"),
        ("2001:DB8:1::1", "2001:0db8:0001:0000::0001"),
    ],
)
def test_one_caller(one: str, other: str) -> None:
    """6.1: IPv6 per /48; IPv4-mapped and NAT64 addresses count as the IPv4 they hold."""
    assert caller_of(one) == caller_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8:1::1", "2001:db8:2::1"),  # R06
        ("192.0.2.1", "192.0.2.2"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2"),
        ("64:ff9b:2::1", "64:ff9b:3::1"),
        ("::192.0.2.1", "192.0.2.1"),
        ("::1", "0.0.0.1"),
    ],
)
def test_two_callers(one: str, other: str) -> None:
    """6.1: what is neither one address nor in one /48 is counted apart."""
    assert caller_of(one) != caller_of(other)


@pytest.mark.parametrize("text", ["unix", "", "not:an:address", "1.2.3"])
def test_what_is_no_address_is_a_caller_of_its_own(text: str) -> None:
    """6.1: nothing that a peer is called fails, nor shares another's window."""
    assert caller_of(text) == text
