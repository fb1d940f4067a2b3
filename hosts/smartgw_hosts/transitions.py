"""What can happen to a host, and which state follows (contract 1.5): the table.

Owns every step that there is. When an event happens, and what else it changes, is pool.py's to
say.
"""

from enum import StrEnum

from smartgw_hosts.records import HostState


class Event(StrEnum):
    """What can happen to a host that is known."""

    VERIFIED = "verified"
    DISPROVED = "disproved"
    LEFT = "left"
    LEASE_OVER = "lease_over"
    UNTRUSTED = "untrusted"
    FORGOTTEN = "forgotten"


_P, _H, _U = HostState.PROVISIONAL, HostState.HEALTHY, HostState.UNHEALTHY

TRANSITIONS: dict[tuple[HostState, Event], HostState | None] = {
    # The only way to healthy. A verdict counts only under a ticket that is still good, and
    # every step into unhealthy but DISPROVED, which uses one up, makes the host's tickets void:
    # so the verification is always a fresh one. (After DISPROVED at an old address the ticket of
    # the new one stays good: that address had no other verification.)
    (_P, Event.VERIFIED): _H,
    (_H, Event.VERIFIED): _H,
    (_U, Event.VERIFIED): _H,
    # Tried again while the host is heard, at growing intervals.
    (_P, Event.DISPROVED): _U,
    (_H, Event.DISPROVED): _U,
    (_U, Event.DISPROVED): _U,
    # Kept, so that a message from before the leave is a replay and status can say why.
    (_P, Event.LEFT): _U,
    (_H, Event.LEFT): _U,
    (_U, Event.LEFT): _U,
    # Only a healthy host has a lease.
    (_H, Event.LEASE_OVER): _U,
    # Enrolment removed, expired, or given another key: ends routing at once.
    (_P, Event.UNTRUSTED): _U,
    (_H, Event.UNTRUSTED): _U,
    (_U, Event.UNTRUSTED): _U,
    # Long not heard; or a stranger that left, or whose id an enrolment gives to another key.
    (_P, Event.FORGOTTEN): None,
    (_U, Event.FORGOTTEN): None,
}
