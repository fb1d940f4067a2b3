"""How much of a common good one app or one caller may hold, so that the others keep some.

Owns the one rule, dynamic thresholds (Choudhury and Hahne, 1998): nobody may hold more than what
is still free. Alone, somebody gets half; two get a third each; some is free for whoever comes.
Limits by rate are admission's other files.
"""

from ipaddress import ip_network

_RESERVE_FILES = 64
"""Descriptors for logs, the bus, the API, the disk and what libraries open."""


def may_have_more(limit: int, held_by_all: int, held_by_one: int) -> bool:
    """Say whether one holder may take one more of `limit` things."""
    return held_by_one < limit - held_by_all


def holder_of(address: str) -> str:
    """Return whom connections from an IP address are counted for.

    That is the address, of IPv6 its /64: one customer gets no less (RFC 6177), and may use them
    all.
    """
    if ":" not in address:
        return address
    try:
        return str(ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def connection_limits(files: int, wished: int) -> tuple[int, int]:
    """Divide the descriptors of a process between its clients and its hosts.

    Args:
        files: how many the process may open (RLIMIT_NOFILE).
        wished: how many client connections the settings allow.
    Returns:
        The connections of clients and of hosts that may be open at once, at least 1 each.
    """
    usable = max(2, files - _RESERVE_FILES)
    clients = min(wished, usable // 2)
    return clients, usable - clients


class Pressure:
    """Whether memory is short; with a gap between the two answers so that it does not flutter.

    Attributes:
        high: new connections are refused until it has become better.
        higher: new requests on those that are there are refused, too.
        near: more than half is held, so that it is worth while to look often.
    """

    __slots__ = ("_limit", "high", "higher", "near")

    def __init__(self, limit: int | None) -> None:
        """`limit`: bytes that the process may hold, None for no limit."""
        self._limit = limit
        self.high = self.higher = self.near = False

    def look(self, resident: int) -> bool:
        """Take in the resident bytes of now; return `high`."""
        if self._limit is not None:
            self.near = resident > self._limit * 0.5
            self.high = resident > self._limit * (0.80 if self.high else 0.90)
            self.higher = resident > self._limit * (0.90 if self.higher else 0.95)
        return self.high
