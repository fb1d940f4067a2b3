"""Where a host may be, and which IP addresses may be dialled for it (contract 2.5).

Owns the form of an announced address and the judgement of an IP address. Resolves and dials
nothing: a dialler resolves `address.host` unless there is an `address.ip`, and dials what
`endpoints` gives back, nothing else. An IPv4 spelling that only resolvers understand (`0`,
`0x7f.1`, `017700000001`) is a name to us, judged like any name by what it resolves to.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

ADDRESS_CHARACTERS = 300

_DEFAULT_PORTS = {"http": 80, "https": 443}

# Said before the shape is, because these are attacks or mistakes with a name.
_FORBIDDEN = (
    (re.compile(r"[\x00-\x20\x7f-\x9f]"), "has a space or a control character"),
    (re.compile(r"[^\x00-\x7f]"), "is not ASCII (write a name as A-labels)"),
    (re.compile(r"%"), "has a percent sign (escapes and IPv6 zones are refused)"),
    (re.compile(r"@"), "has userinfo"),
    (re.compile(r"\?"), "has a query"),
    (re.compile(r"#"), "has a fragment"),
    (re.compile(r"\\"), "has a backslash"),
)
_SHAPE = re.compile(
    r"(?P<scheme>https?)://"
    r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?/?"
)


class AddressRefused(ValueError):
    """An address that a host may not have or that must not be dialled; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Endpoint(NamedTuple):
    """What may be dialled: an IP address in its canonical spelling, and a port."""

    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class Address:
    """An announced address; made by `parse_address`, so equal addresses compare equal.

    `scheme` is http or https; `host` is lower case, an IPv6 one without brackets; `port` 1 to
    65535.
    """

    scheme: str
    host: str
    port: int

    @property
    def ip(self) -> str | None:
        """The host when it is an IP address; None when it is a name, which is to be resolved."""
        try:
            return str(ip_address(self.host))
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """`host:port` for a Host field (RFC 9110 7.2), IPv6 in brackets, the port always there."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_address(text: str) -> Address:
    """Read an announced address: http or https, host and port, at most a `/` behind them.

    Raises AddressRefused for everything else (contract 2.5). Says nothing of whether it may
    be dialled: `endpoints` does.
    """
    return _parse(text)


@lru_cache(maxsize=65_536)
def _parse(text: str) -> Address:
    """Remembered, because every heartbeat carries its host's address."""
    if len(text) > ADDRESS_CHARACTERS:
        raise AddressRefused(f"is longer than {ADDRESS_CHARACTERS} characters")
    for pattern, fault in _FORBIDDEN:
        if pattern.search(text):
            raise AddressRefused(fault)
    match = _SHAPE.fullmatch(text.lower())
    if match is None:
        raise AddressRefused("must be http://host:port or https://host:port and nothing else")
    scheme = match["scheme"]
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS[scheme]
    if port > 65535:
        raise AddressRefused("has a port above 65535")
    return Address(scheme, _ipv6(match["ipv6"]) if match["ipv6"] else _name(match["name"]), port)


def endpoints(
    address: Address,
    resolved: Iterable[str],
    networks: Sequence[IPv4Network | IPv6Network],
    own: frozenset[tuple[str, int]],
) -> tuple[Endpoint, ...]:
    """Choose what may be dialled for `address`, in the resolver's order, each once.

    `resolved` is what the resolver answered for `address.host`; it is not looked at when the
    address has an `ip`. The rest as for `permitted`. Never empty: raises AddressRefused with
    the reason for each IP address when none may be dialled.
    """
    chosen: dict[Endpoint, None] = {}
    refusals: dict[str, None] = {}
    literal = address.ip
    for ip in resolved if literal is None else (literal,):
        refusal = permitted(ip, address.port, networks, own)
        if refusal is None:
            chosen[Endpoint(str(ip_address(ip)), address.port)] = None
        else:
            refusals[refusal] = None
    if not chosen:
        raise AddressRefused("; ".join(refusals) or f"{address.host} resolves to nothing")
    return tuple(chosen)


def permitted(
    ip: str,
    port: int,
    networks: Sequence[IPv4Network | IPv6Network],
    own: frozenset[tuple[str, int]],
) -> str | None:
    """Judge the very IP address that is about to be dialled: None, or why it must not be.

    `networks` are the cluster's host_networks. `own` are the (ip, port) on which a gateway of
    ours or of the directory listens; an unspecified one stands for loopback only, so whoever
    listens on all interfaces names each. An IPv6 address that stands for an IPv4 one has to
    be permitted as both. Raises ValueError for an `own` that is not an IP address.
    """
    try:
        dialled = ip_address(ip)
    except ValueError:
        return f"{ip[:64]!a} is not an IP address"
    if isinstance(dialled, IPv6Address) and dialled.scope_id is not None:
        return f"{dialled} has a zone"
    for face in (dialled, *_embedded(dialled)):
        fault = _fault(face, port, networks, own)
        if fault is not None:
            stands_for = "" if face == dialled else f" stands for {face}, which"
            return f"{dialled}{stands_for} {fault}"
    return None


def _fault(
    ip: IPv4Address | IPv6Address,
    port: int,
    networks: Sequence[IPv4Network | IPv6Network],
    own: frozenset[tuple[str, int]],
) -> str | None:
    if ip.is_multicast:
        return "is multicast"
    if ip.is_unspecified or ip in _THIS_NETWORK:
        return "is unspecified, which connects to this machine"
    if ip == _BROADCAST:
        return "is broadcast"
    listeners = _parsed(own)
    if (ip, port) in listeners or (
        ip.is_loopback and not listeners.isdisjoint({(every, port) for every in _UNSPECIFIED})
    ):
        return f"port {port} is a gateway's own"
    if not any(ip in network for network in networks):
        return "is not inside host_networks"
    return None


_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_BROADCAST = IPv4Address("255.255.255.255")
_UNSPECIFIED = (IPv4Address("0.0.0.0"), IPv6Address("::"))


@lru_cache(maxsize=64)
def _parsed(
    own: frozenset[tuple[str, int]],
) -> frozenset[tuple[IPv4Address | IPv6Address, int]]:
    """Compare values, not spellings: an IPv6 address has many."""
    return frozenset((ip_address(ip), port) for ip, port in own)


def _embedded(ip: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses at which traffic to `ip` may arrive."""
    if isinstance(ip, IPv4Address):
        return []
    for network, read in _EMBEDDINGS:
        if ip in network:
            return [IPv4Address(number & 0xFFFF_FFFF) for number in read(int(ip))]
    return []


def _local_nat64(ip: int) -> list[int]:
    """RFC 8215 leaves the prefix length open, so each reading of RFC 6052 2.2 counts.

    A reading inside 0.0.0.0/8 names no machine and only means that the length is another.
    """
    high = ip >> 64
    readings = [
        ip,  # /96
        ip >> 24,  # /64: bits 72 to 103
        (high & 0xFF) << 24 | (ip >> 32 & 0xFF_FFFF),  # /56: bits 56 to 63, 72 to 95
        (high & 0xFFFF) << 16 | (ip >> 40 & 0xFFFF),  # /48: bits 48 to 63, 72 to 87
    ]
    return [reading for reading in readings if reading >> 24 & 0xFF] or [0]


_EMBEDDINGS: tuple[tuple[IPv6Network, Callable[[int], list[int]]], ...] = (
    (IPv6Network("::ffff:0:0/96"), lambda ip: [ip]),  # IPv4-mapped, RFC 4291 2.5.5.2
    (IPv6Network("::ffff:0:0:0/96"), lambda ip: [ip]),  # IPv4-translated, RFC 2765
    (IPv6Network("::1/128"), lambda ip: []),  # loopback, not an IPv4-compatible 0.0.0.1
    (IPv6Network("::/96"), lambda ip: [ip]),  # IPv4-compatible, RFC 4291 2.5.5.1
    (IPv6Network("64:ff9b::/96"), lambda ip: [ip]),  # NAT64, RFC 6052
    (IPv6Network("64:ff9b:1::/48"), _local_nat64),  # NAT64 of local use, RFC 8215
    (IPv6Network("2002::/16"), lambda ip: [ip >> 80]),  # 6to4, RFC 3056
    (IPv6Network("2001::/32"), lambda ip: [ip >> 64, ~ip]),  # Teredo: relay, client; RFC 4380
)


def _ipv6(text: str) -> str:
    try:
        return str(IPv6Address(text))
    except ValueError:
        raise AddressRefused("has something in brackets that is not an IPv6 address") from None


def _name(text: str) -> str:
    if len(text) > 253 or any(len(label) > 63 for label in text.split(".")):
        raise AddressRefused("has a name that no DNS can hold")
    return text
