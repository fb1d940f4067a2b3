"""addresses.py: what may be announced, and what may be dialled for it."""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.addresses import (
    Address,
    AddressRefused,
    Endpoint,
    endpoints,
    parse_address,
    permitted,
)

_CASES = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent.parent / "data" / "upstream_addresses.tsv")
    .read_text("utf-8")
    .splitlines()
    if not line.startswith("#")
]
_TEN = [IPv4Network("10.0.0.0/8")]
_NOTHING_OWN: frozenset[tuple[str, int]] = frozenset()

# What a resolver would answer; `host` is a good one, so that only the rest can be at fault.
_NAMES = {
    "host": ["10.0.0.5"],
    "localhost": ["::1", "127.0.0.1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
}


def _resolve(host: str) -> list[str]:
    if host in _NAMES:
        return _NAMES[host]
    return [socket.inet_ntoa(socket.inet_aton(host))]  # the odd forms, as getaddrinfo reads them


def _dial(text: str, networks: Sequence[IPv4Network | IPv6Network]) -> tuple[Endpoint, ...]:
    """What a dialler does."""
    address = parse_address(text)
    resolved = [] if address.ip else _resolve(address.host)
    return endpoints(address, resolved, networks, _NOTHING_OWN)


def test_every_case_is_here() -> None:
    """2.5: the addresses that systems of this kind have been made to dial."""
    assert len(_CASES) == 29


@pytest.mark.parametrize(("text", "want", "why"), _CASES, ids=[case[0] for case in _CASES])
def test_upstream_address(text: str, want: str, why: str) -> None:
    """2.5: only addresses inside host_networks are dialled, whatever form they come in."""
    if want == "allow only when the cluster's CIDR is configured":
        assert _dial(text, _TEN) == (Endpoint("10.0.0.5", 3000),)
        with pytest.raises(AddressRefused, match="host_networks"):
            _dial(text, [IPv4Network("192.168.0.0/16")])
        return
    with pytest.raises(AddressRefused):
        _dial(text, _TEN)
    if want == "refuse unless allow-listed":
        assert _dial(text, [IPv6Network("fc00::/7")]) == (Endpoint("fc00::1", 80),)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("http://10.0.0.5:3000", Address("http", "10.0.0.5", 3000), "http://10.0.0.5:3000"),
        ("http://10.0.0.5:3000/", Address("http", "10.0.0.5", 3000), "http://10.0.0.5:3000"),
        ("http://host", Address("http", "host", 80), "http://host:80"),
        ("HTTPS://My-App_1.Example", Address("https", "my-app_1.example", 443), None),
        ("https://[FD00:0::5]:8443", Address("https", "fd00::5", 8443), "https://[fd00::5]:8443"),
        ("http://0x7f.1:1", Address("http", "0x7f.1", 1), "http://0x7f.1:1"),
        ("http://host:65535", Address("http", "host", 65535), None),
    ],
)
def test_addresses_are_read(text: str, address: Address, shown: str | None) -> None:
    """2.5: http or https, host and port only; spellings of one address are equal."""
    assert parse_address(text) == address
    assert parse_address(str(address)) == address
    if shown is not None:
        assert str(address) == shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be"),
        ("host:80", "must be"),
        ("//host:80", "must be"),
        ("http:/host", "must be"),
        ("http:host", "must be"),
        ("http:///", "must be"),
        ("http://", "must be"),
        ("http://:80", "must be"),
        ("http://host:", "must be"),
        ("http://host:0", "must be"),
        ("http://host:080", "must be"),
        ("http://host:+80", "must be"),
        ("http://host:8_0", "must be"),
        ("http://host:80:80", "must be"),
        ("http://host:99999", "above 65535"),
        ("http://host:65536", "above 65535"),
        ("http://host:100000", "must be"),
        ("http://host//", "must be"),
        ("http://host/x", "must be"),
        ("http://host/.", "must be"),
        ("http://host;x", "must be"),
        ("http://host.", "must be"),
        ("http://.host", "must be"),
        ("http://a..b", "must be"),
        ("http://a,b", "must be"),
        ("http://::1/", "must be"),
        ("http://[::1", "must be"),
        ("http://[::1]x", "must be"),
        ("http://[]", "must be"),
        ("http://[10.0.0.5]", "not an IPv6"),
        ("http://[1:2]", "not an IPv6"),
        ("http://[::1]:80@host", "userinfo"),
        ("http://@host", "userinfo"),
        ("http://host?", "query"),
        ("http://host#", "fragment"),
        ("http://host\\@evil", "userinfo"),
        ("http:\\\\host", "backslash"),
        ("http://host%2e", "percent"),
        ("http://[fe80::1%eth0]", "percent"),
        ("http://host\n", "control"),
        ("http://host\r\nX: 1", "control"),
        ("\thttp://host", "control"),
        ("http://ho\x00st", "control"),
        ("http://ho\x85st", "control"),
        ("http://höst", "ASCII"),
        ("http://host:\uff180", "ASCII"),
        ("http://127\u30020\u30020\u30021", "ASCII"),
        ("http://\u212aelvin", "ASCII"),
        ("ws://host", "must be"),
        ("httpx://host", "must be"),
        ("http+unix://host", "must be"),
        ("http://" + "a" * 64, "no DNS"),
        ("http://" + "a." * 126 + "aa", "no DNS"),
        ("http://" + "a" * 300, "longer"),
    ],
)
def test_everything_else_is_refused(text: str, reason: str) -> None:
    """2.5: host and port only, each refusal with its reason."""
    with pytest.raises(AddressRefused, match=reason) as caught:
        parse_address(text)
    assert caught.value.reason == str(caught.value)


@given(st.text(max_size=60) | st.text("htps:/[]@?#%\\.019afx- ", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """2.5: an address out of an announcement raises nothing else, and is read back unchanged."""
    try:
        address = parse_address("http://" + text)
    except AddressRefused:
        return
    assert parse_address(str(address)) == address
    assert 1 <= address.port <= 65535


@pytest.mark.parametrize(
    ("host", "ip"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("[::ffff:10.0.0.5]", "::ffff:a00:5"),
        ("0", None),
        ("2130706433", None),
        ("0x7f000001", None),
        ("0177.0.0.1", None),
        ("127.1", None),
        ("010.0.0.5", None),
        ("10.0.0.256", None),
        ("host", None),
    ],
)
def test_only_a_canonical_ip_is_one(host: str, ip: str | None) -> None:
    """2.5: short and octal forms are names, judged by what they resolve to."""
    found = parse_address(f"http://{host}").ip
    assert (found and ip_address(found)) == (ip and ip_address(ip))


@pytest.mark.parametrize(
    ("ip", "stands_for"),
    [
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:169.254.169.254", "169.254.169.254"),
        ("::ffff:0:127.0.0.1", "127.0.0.1"),
        ("::127.0.0.1", "127.0.0.1"),
        ("::2", "0.0.0.2"),
        ("64:ff9b::7f00:1", "127.0.0.1"),
        ("64:ff9b::", "0.0.0.0"),
        ("64:ff9b:1::a9fe:a9fe", "169.254.169.254"),  # read as /96
        ("64:ff9b:1::a9:fea9:fe00:0", "169.254.169.254"),  # /64
        ("64:ff9b:1:a9:fe:a9fe::", "169.254.169.254"),  # /56
        ("64:ff9b:1:a9fe:a9:fe00::", "169.254.169.254"),  # /48
        ("64:ff9b:1:a9fe:a9:fe00:a00:5", "169.254.169.254"),  # /48, with a good one as /96
        ("64:ff9b:1::", "0.0.0.0"),
        ("2002:7f00:1::", "127.0.0.1"),
        ("2002:7f00:1::a00:5", "127.0.0.1"),
        ("2001:0:7f00:1::f5ff:fffa", "127.0.0.1"),  # Teredo relay; the client is 10.0.0.5
        ("2001:0:a00:5::80ff:fffe", "127.0.0.1"),  # Teredo client; the relay is 10.0.0.5
    ],
)
def test_embedded_ipv4_is_judged_too(ip: str, stands_for: str) -> None:
    """2.5: embedded-IPv4 forms are judged by the address actually dialled."""
    elsewhere = IPv4Network("0.0.0.0/0").address_exclude(IPv4Network(stands_for))
    refusal = permitted(ip, 80, [*elsewhere, IPv6Network("::/0")], _NOTHING_OWN)
    assert refusal is not None
    assert f"stands for {stands_for}, which" in refusal


@pytest.mark.parametrize(
    "ip",
    [
        "::ffff:10.0.0.5",
        "::ffff:0:10.0.0.5",
        "::10.0.0.5",
        "64:ff9b::10.0.0.5",
        "64:ff9b:1::10.0.0.5",
        "2002:a00:5::1",
        "2001:0:a00:5::f5ff:fffa",
    ],
)
def test_embedded_ipv4_needs_both_networks(ip: str) -> None:
    """2.5: an IPv6 address that stands for an IPv4 one has to be inside host_networks as both."""
    assert permitted(ip, 80, [*_TEN, IPv6Network("::/0")], _NOTHING_OWN) is None
    for networks in ([IPv6Network("::/0")], _TEN):
        assert "host_networks" in (permitted(ip, 80, networks, _NOTHING_OWN) or "")


@pytest.mark.parametrize(
    ("ip", "reason"),
    [
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("ff02::1", "multicast"),
        ("::ffff:224.0.0.1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("::ffff:0.0.0.0", "unspecified"),
        ("255.255.255.255", "broadcast"),
        ("fe80::1%eth0", "zone"),
        ("127.1", "not an IP"),
        ("0177.0.0.1", "not an IP"),
        ("2130706433", "not an IP"),
        ("10.0.0.5/8", "not an IP"),
        ("localhost", "not an IP"),
        ("", "not an IP"),
        ("10.0.0.5\n", "not an IP"),
    ],
)
def test_never_permitted(ip: str, reason: str) -> None:
    """2.5: some addresses are no host's, however wide host_networks is."""
    everything = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert reason in (permitted(ip, 80, everything, _NOTHING_OWN) or "permitted")


@pytest.mark.parametrize(
    ("ip", "port", "own", "is_own"),
    [
        ("10.0.0.1", 8080, ("10.0.0.1", 8080), True),
        ("::ffff:10.0.0.1", 8080, ("10.0.0.1", 8080), True),
        ("64:ff9b::a00:1", 8080, ("10.0.0.1", 8080), True),
        ("fd00::1", 8080, ("fd00:0:0::0001", 8080), True),
        ("127.0.0.1", 8080, ("0.0.0.0", 8080), True),
        ("127.9.9.9", 8080, ("::", 8080), True),
        ("::1", 8080, ("::", 8080), True),
        ("::ffff:127.0.0.1", 8080, ("0.0.0.0", 8080), True),
        ("10.0.0.1", 8081, ("10.0.0.1", 8080), False),
        ("10.0.0.2", 8080, ("10.0.0.1", 8080), False),
        ("10.0.0.1", 8080, ("0.0.0.0", 8080), False),
        ("127.0.0.1", 8081, ("0.0.0.0", 8080), False),
    ],
)
def test_own_listeners_are_never_dialled(
    ip: str, port: int, own: tuple[str, int], is_own: bool
) -> None:
    """2.5: never an address that a gateway of ours or of the directory listens on."""
    everything = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    refusal = permitted(ip, port, everything, frozenset([own]))
    assert (refusal is not None) == is_own
    if refusal is not None:
        assert "own" in refusal


def test_an_own_address_that_is_a_name_is_a_mistake_of_ours() -> None:
    """2.5: a listener that could never match would guard nothing."""
    with pytest.raises(ValueError, match="gateway"):
        permitted("10.0.0.5", 80, _TEN, frozenset([("gateway", 80)]))


@given(st.ip_addresses(v=4))
def test_ipv4_is_permitted_exactly_inside(ip: IPv4Address) -> None:
    """2.5: inside host_networks or not is the whole rule for an ordinary IPv4 address."""
    assert (permitted(str(ip), 80, _TEN, _NOTHING_OWN) is None) == (ip in _TEN[0])
    assert permitted(str(ip), 80, [], _NOTHING_OWN) is not None


@given(st.ip_addresses(v=6) | st.ip_addresses(v=4).map(lambda ip: IPv6Address(int(ip))))
def test_no_ipv6_reaches_ipv4_unseen(ip: IPv6Address) -> None:
    """2.5: what the standard library sees embedded is judged, with no IPv4 network given."""
    refusal = permitted(str(ip), 80, [IPv6Network("::/0")], _NOTHING_OWN)
    if ip.ipv4_mapped or ip.sixtofour or ip.teredo:
        assert refusal is not None


def test_a_name_is_dialled_where_it_may_be() -> None:
    """2.5: of a name's addresses those permitted are dialled, once each, in order."""
    address = parse_address("http://host:3000")
    resolved = ["127.0.0.1", "10.0.0.7", "10.0.0.5", "10.0.0.7"]
    assert endpoints(address, resolved, _TEN, _NOTHING_OWN) == (
        Endpoint("10.0.0.7", 3000),
        Endpoint("10.0.0.5", 3000),
    )
    with pytest.raises(AddressRefused, match=r"^127\.0\.0\.1 is not .*; ::1 is not "):
        endpoints(address, ["127.0.0.1", "::1"], _TEN, _NOTHING_OWN)
    with pytest.raises(AddressRefused, match="host resolves to nothing"):
        endpoints(address, [], _TEN, _NOTHING_OWN)


def test_a_literal_is_dialled_as_it_is() -> None:
    """2.5: no resolver can send the connection to a literal address elsewhere."""
    address = parse_address("http://10.0.0.5:3000")
    assert endpoints(address, ["10.6.6.6"], _TEN, _NOTHING_OWN) == (Endpoint("10.0.0.5", 3000),)


def test_authority_keeps_the_port() -> None:
    """2.1: the challenge's Host names host and port, an IPv6 address in brackets."""
    assert parse_address("http://host").authority == "host:80"
    assert parse_address("https://[fd00::5]").authority == "[fd00::5]:443"
