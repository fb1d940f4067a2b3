"""Which pages of other origins may read an app's answers (contract 3.9; CORS, Fetch standard).

Owns who is allowed, and the fields that say so in preflights, in apps' answers and in our own
errors. Does not own an app's list (policy.py, its form state/names.py), nor when it is asked.
"""

import re
from functools import lru_cache
from typing import Final

from smartgw.routing.policy import AppPolicy
from smartgw_hosts.http1 import is_token

MAX_AGE: Final = 600
"""Seconds for which a browser may keep the answer to a preflight; fixed (contract 3.9)."""

EXPOSED: Final = (
    *(b"X-RateLimit-Limit", b"X-RateLimit-Remaining", b"X-RateLimit-Reset"),
    *(b"RateLimit-Policy", b"RateLimit", b"Retry-After", b"X-Failover-Cluster"),
    *(b"X-Smartgw-Request-Sent", b"X-Request-Id", b"Proxy-Status"),
)
"""Fields of ours that a page's script may read."""

# Whoever answers by origin says so, also to those who sent none: else a cache would give one
# origin's answer to another (Fetch standard, "CORS protocol and HTTP caches").
VARY: Final = b"Vary: Origin"
_SHARED: Final = (
    b"Access-Control-Allow-Origin: %b\r\n"
    # An app lists exactly whom it trusts, and a page without the user's cookies is of little use.
    b"Access-Control-Allow-Credentials: true\r\n"
    b"Access-Control-Expose-Headers: " + b", ".join(EXPOSED)
)
_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*\Z")


def allows(policy: AppPolicy, origin: bytes | None) -> bool:
    """Say whether pages of this origin may read the app's answers.

    `origin` is the value of the Origin field, of several ones joined by a comma (which no origin
    holds). `null` is everybody's: any page can make itself a frame or a file with it.
    """
    return origin in policy.origins and origin != b"null"


def preflight(policy: AppPolicy, origin: bytes, method: bytes, names: bytes) -> list[bytes]:
    """Return the lines of the 204 that answers a preflight.

    Args:
        method: the value of Access-Control-Request-Method.
        names: that of Access-Control-Request-Headers, empty when there is none.
    """
    # Nothing but Origin in Vary: answers to OPTIONS are never cached by others (RFC 9110 9.3.7).
    lines = [VARY, b"Access-Control-Max-Age: %d" % MAX_AGE]
    if allows(policy, origin) and is_token(method):
        lines.append(b"Access-Control-Allow-Origin: " + origin)
        lines.append(b"Access-Control-Allow-Credentials: true")
        # As asked: with credentials a browser takes `*` for a name (Fetch standard 4.9).
        lines.append(b"Access-Control-Allow-Methods: " + method)
        if _NAMES.match(names):
            lines.append(b"Access-Control-Allow-Headers: " + names)
    return lines


def of_ours(policy: AppPolicy, origin: bytes | None) -> list[bytes]:
    """Return the lines for an answer that the gateway itself gives.

    With `own_cors` too: the app cannot speak for us, so what it lists counts here.
    """
    return [VARY, _SHARED % origin] if allows(policy, origin) else [VARY]


def complete(
    policy: AppPolicy, origin: bytes | None, lines: list[bytes], marked: list[int]
) -> None:
    """Put our fields into an app's answer, in the place of its own.

    Args:
        lines: the field lines of the answer; changed.
        marked: places of all its lines of Vary and Access-Control-*, ascending, and of others.
    """
    if policy.own_cors:
        return
    if not marked or not _extend_vary(lines, marked):
        lines.append(VARY)
    if marked:
        remove(policy, lines, marked)
    if origin is not None and allows(policy, origin):
        lines.append(_SHARED % origin)


def remove(policy: AppPolicy, lines: list[bytes], marked: list[int]) -> None:
    """Take an app's own Access-Control-* out, unless it does its own CORS; places as above."""
    if policy.own_cors:
        return
    for place in reversed(marked):
        if lines[place][:15].lower() == b"access-control-":
            del lines[place]


def _extend_vary(lines: list[bytes], marked: list[int]) -> bool:
    """Have the app's Vary name Origin, once; False: there is none that can be extended.

    `*` stays alone on its line: there are caches that know it by nothing else standing with it.
    """
    last, extended = -1, None
    for place in marked:
        line = lines[place]
        if line[:5].lower() == b"vary:":
            with_origin = _with_origin(line)
            if with_origin == line:
                return True
            if with_origin is not None:
                last, extended = place, with_origin
    if extended is None:
        return False
    lines[last] = extended
    return True


@lru_cache(maxsize=64)
def _with_origin(line: bytes) -> bytes | None:
    """Return a line of Vary that names Origin too, itself if it does; None when it names `*`."""
    value = line[5:].strip(b" \t")
    names = [name.strip(b" \t") for name in value.lower().split(b",")]
    if b"origin" in names:
        return line
    if b"*" in names:
        return None
    return line + b", Origin" if value else VARY
