"""The PROXY protocol, versions 1 and 2: what a load balancer says of the client before all else.

Owns the reading of the header (haproxy's doc/proxy-protocol.txt). Whose word is taken is
preface.py's. Pure.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_V1 = b"PROXY "
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V1_BYTES = 107
_V2_BYTES = 2_048
"""Addresses and type-length-values; some balancers send a certificate's names in these."""


class ProxyHeaderRefused(ValueError):
    """What the connection began with is no PROXY header."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """Who connected to the load balancer.

    Attributes:
        client: its IP address, None when the header names none.
        size: bytes of the header.
        local: the balancer speaks for itself (a health check), and is the client.
    """

    client: str | None
    size: int
    local: bool = False


def read(data: bytes) -> ProxyHeader | None:
    """Return the header that data begins with, None while it is not whole.

    Raises:
        ProxyHeaderRefused: no further byte can make it one.
    """
    if data[: len(_V2)] == _V2[: len(data)]:
        return _version_2(data)
    if data[: len(_V1)] == _V1[: len(data)]:
        return _version_1(data)
    raise ProxyHeaderRefused("neither version of the PROXY protocol")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_BYTES)
    if end < 0:
        if len(data) >= _V1_BYTES:
            raise ProxyHeaderRefused("a version 1 header has at most 107 bytes")
        return None
    words = data[:end].split(b" ")
    size = end + 2
    if words[1:2] == [b"UNKNOWN"]:
        return ProxyHeader(None, size)
    families: dict[bytes, type[IPv4Address] | type[IPv6Address]] = {
        b"TCP4": IPv4Address,
        b"TCP6": IPv6Address,
    }
    family = families.get(words[1])
    if family is None or len(words) != 6:
        raise ProxyHeaderRefused("a version 1 header names TCP4, TCP6 or UNKNOWN and four values")
    try:
        client = family(words[2].decode("ascii"))
        family(words[3].decode("ascii"))
    except ValueError:
        raise ProxyHeaderRefused("an address is not of its family") from None
    if not all(word.isdigit() and len(word) <= 5 and int(word) < 65_536 for word in words[4:6]):
        raise ProxyHeaderRefused("a port is not a number below 65536")
    return ProxyHeader(_plain(client), size)


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < 16:
        return None
    version, command = data[12] >> 4, data[12] & 15
    family = data[13]
    length = int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise ProxyHeaderRefused("a version 2 header with another version or command")
    if length > _V2_BYTES:
        raise ProxyHeaderRefused(f"a version 2 header with more than {_V2_BYTES} bytes behind it")
    size = 16 + length
    if len(data) < size:
        return None
    if command == 0:
        return ProxyHeader(None, size, local=True)
    octets = {0x11: 4, 0x21: 16}.get(family)
    if octets is None:
        # The protocol's own rule: of a family that is not known the peer's address counts.
        return ProxyHeader(None, size)
    if length < 2 * octets + 4:
        raise ProxyHeaderRefused("a version 2 header too short for its addresses")
    return ProxyHeader(_plain(ip_address(data[16 : 16 + octets])), size)


def _plain(client: IPv4Address | IPv6Address) -> str:
    mapped = client.ipv4_mapped if isinstance(client, IPv6Address) else None
    return str(mapped or client)
