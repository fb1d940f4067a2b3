"""Which paths on an app's hostname belong to the gateway and never reach a host (contract 3.1).

Anyone who could get `/.well-known/smartgw/` through to a host could have it sign a challenge; who
could get `/.well-known/smartgw-challenge/` through could prove a domain from inside. So every
spelling that some host might decode to one of these is refused.
"""

from urllib.parse import unquote_to_bytes

_RESERVED = ([b"smartgw"], [b"smartgw-challenge"])
_MAX_DECODINGS = 4


def is_reserved(target: bytes) -> bool:
    """Say whether a target (origin-form) names a reserved path in any spelling.

    Compared after percent-decoding (repeated, as hosts behind hosts do), reading `\\` as `/`,
    dropping path parameters, empty and dot segments, without regard to case.
    """
    path = target.partition(b"?")[0]
    # Nothing to normalise and the name not in it: the common case costs two searches.
    if b"%" not in path and b"well" not in path.lower():
        return False
    for _ in range(_MAX_DECODINGS):
        if _names_reserved(path):
            return True
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return False
        path = decoded
    # Encoded more often than any host decodes: judged by what it ends up as, or not let through.
    return _names_reserved(path) or b"%" in path


def _names_reserved(path: bytes) -> bool:
    # A NUL or `?` or `#` that was encoded ends the path for some hosts.
    for end in (b"\0", b"?", b"#"):
        path = path.partition(end)[0]
    segments: list[bytes] = []
    name = b""
    for segment in path.replace(b"\\", b"/").split(b"/"):
        name = segment.partition(b";")[0].strip().lower()
        if name == b"..":
            if segments:
                segments.pop()
        elif name not in (b"", b"."):
            segments.append(name)
    # What stands before the prefix's last slash alone belongs to the app.
    below = len(segments) > 2 or name in (b"", b".", b"..")
    return below and segments[:1] == [b".well-known"] and segments[1:2] in _RESERVED
