"""What a gateway tells the one that forwarded a request to it, beside the answer (4.6, 4.7).

Owns one field, `x-smartgw-answer`: that the answer is a failure of the gateway's own and not the
app's, how much of the request had left it, and its epoch where that is another. Both ends strip
the field towards hosts and clients; what follows of it is failover.py's and the path's.
"""

import re
from dataclasses import dataclass

from smartgw.errors import Reason

_VALUE = re.compile(
    rb"(?:failed=([a-z_]{1,40}); sent=(none|partial|full)(?:; |\Z))?(?:epoch=([0-9a-f]{16}|none))?"
)
_FAILURE = (502, 503, 504)
"""Statuses of our own that say that a request could not be served here (contract 4.7)."""
# A reason of a later version than ours.
_UNKNOWN = {503: Reason.NO_UPSTREAM, 504: Reason.UPSTREAM_TIMEOUT}


@dataclass(frozen=True, slots=True)
class Told:
    """What the field says.

    Attributes:
        failed: why the gateway did not serve the request; None: the answer is the app's.
        sent: how much of it had left for a host, as in `x-smartgw-request-sent`.
        other_epoch: the gateway's list of clusters is of another epoch than the mark's.
    """

    failed: Reason | None
    sent: bytes
    other_epoch: bool


NOTHING = Told(None, b"", False)


def line(reason: Reason | None, status: int, sent: bytes, other_epoch: str | None) -> bytes | None:
    """Return the line to add to an answer to a forward, None if there is nothing to tell.

    Args:
        reason: of an answer of our own, else None.
        other_epoch: ours, if it is not the mark's: 16 hex digits, or `none` without a list.
    """
    parts = []
    if reason is not None and status in _FAILURE:
        parts.append(b"failed=%b; sent=%b" % (reason.value.encode(), sent))
    if other_epoch is not None:
        parts.append(b"epoch=" + other_epoch.encode())
    return b"x-smartgw-answer: " + b"; ".join(parts) if parts else None


def parse(value: bytes | None, status: int) -> Told:
    """Read the field's value, None where it is not there, of an answer with this status."""
    match = None if value is None else _VALUE.fullmatch(value)
    if match is None:
        return NOTHING
    name, sent, epoch = match.groups()
    failed = None
    if name is not None:
        try:
            failed = Reason(name.decode())
        except ValueError:
            failed = _UNKNOWN.get(status, Reason.UPSTREAM_REFUSED)
    return Told(failed, sent or b"", epoch is not None)
