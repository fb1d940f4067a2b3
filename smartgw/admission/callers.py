"""Who counts as one caller: the key that a limit is kept for (contract 6.1).

Owns which addresses are the same caller's. Which address a request comes from is the data path's
to know (trusted proxies, PROXY protocol, a signed forward).
"""

from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

_PREFIX_BITS: Final = 48
"""What one customer gets at most without asking (RFC 6177), and may use all of."""
# IPv4 in IPv6: mapped (RFC 4291 2.5.5.2), and behind the translators' prefixes (RFC 6052 2.1,
# RFC 8215, of which the last 32 bits count, as its recommended /96 has them).
_HOLDING_IPV4: Final = (
    (0xFFFF, 96),
    (0x64_FF9B << 64, 96),
    (0x64_FF9B_0001, 48),
)


def caller_of(address: str) -> str:
    """Return the key of an IP address as text: an IPv4 address, or the /48 of an IPv6 one.

    What is no address (the name of a Unix socket) is a key of its own.
    """
    if ":" not in address:
        return address
    try:
        number = int(IPv6Address(address.partition("%")[0]))
    except AddressValueError:
        return address
    for prefix, bits in _HOLDING_IPV4:
        if number >> (128 - bits) == prefix:
            return str(IPv4Address(number & 0xFFFF_FFFF))
    shift = 128 - _PREFIX_BITS
    return f"{IPv6Address(number >> shift << shift)}/{_PREFIX_BITS}"
