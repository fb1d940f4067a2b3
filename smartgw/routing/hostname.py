"""Which hostname a request names, in the one form that the table is asked with (contract 3.2).

Owns what is a valid authority. Does not know which hostnames exist. IDN hostnames come as A-labels;
conversion from Unicode happens only where a name is registered.
"""

import ipaddress
import re

# RFC 952/1123 labels, and `_` because people do put it into hostnames (it is then simply unknown).
_NAME = re.compile(
    rb"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
    rb"(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\Z"
)
_IPV6 = re.compile(rb"\[[0-9a-f:.]{2,45}\]\Z")


def hostname_of(authority: bytes) -> bytes | None:
    """Return the hostname of a Host field or authority: lower case, no port, no trailing dot.

    None when the authority is not `host[:port]` with a valid host and a port from 0 to 65535
    (RFC 3986 3.2.2, 3.2.3; an empty port is allowed there). IPv6 literals keep their brackets.
    """
    host = authority.lower()
    colon = host.rfind(b":")
    if colon >= 0 and colon > host.rfind(b"]"):
        port = host[colon + 1 :]
        if port and (not port.isdigit() or len(port) > 5 or int(port) > 65_535):
            return None
        host = host[:colon]
    if host[:1] == b"[":
        return host if _valid_ipv6(host) else None
    if host[-1:] == b".":
        host = host[:-1]
    return host if _NAME.match(host) else None


def _valid_ipv6(host: bytes) -> bool:
    if not _IPV6.match(host):
        return False
    try:
        ipaddress.IPv6Address(host[1:-1].decode())
    except ValueError:
        return False
    return True
