"""Which messages the pool believes: of the one key that a host has, recent, and new (1.2, 1.5).

Owns whose signature a message must bear and that no message counts twice. Pure functions; who is
enrolled is grants.py's, the form of a message wire.py's.
"""

from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.grants import Grant
from smartgw_hosts.host import Host
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.records import HostState
from smartgw_hosts.skew import WallClock
from smartgw_hosts.wire import Message, Reason, Refused, SignedMessage


def signer(claims: Message, host: Host | None, grant: Grant) -> PublicKey:
    """Return the key that must have signed it; Refused: whoever did, it does not count."""
    described = claims.description
    if isinstance(grant, Enrolment):
        key = grant.key
    elif host is not None and host.record.state is HostState.PROVISIONAL:
        key = host.record.key
    elif host is None and described is not None:
        key = described.key
    else:
        raise Refused(grant, "the host has no enrolment in force")
    if described is not None and described.key != key:
        reason = Reason.UNKNOWN_KEY if host is None else Reason.KEY_CHANGED
        raise Refused(reason, f"key {described.key.key_id} instead of {key.key_id}")
    return key


def authenticate(
    signed: SignedMessage,
    host: Host | None,
    grant: Grant,
    clock: WallClock,
    now: float,
    wall: float,
) -> Message:
    """Refuse what is not surely a new message of the one key that this host has."""
    key = signer(signed.claims, host, grant)
    message = signed.check(key)
    said = message.time_ms / 1000
    if not clock.accepts(said, now, wall, trusted=isinstance(grant, Enrolment)):
        raise Refused(Reason.STALE, f"the host's clock is {said - wall:+.1f} s from ours")
    # Boots and sequences are those of a key: a newly enrolled one begins anew.
    if host is not None and host.record.key == key:
        if message.boot < host.record.boot:
            raise Refused(Reason.SUPERSEDED_BOOT, f"boot {message.boot}")
        if message.boot == host.record.boot and message.sequence <= host.sequence:
            raise Refused(Reason.REPLAYED, f"sequence {message.sequence}")
    return message
