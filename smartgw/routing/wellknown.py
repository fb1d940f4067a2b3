"""Which paths on an app's hostname belong to the gateway and never reach a host (contract 3.1).

Anyone who could get `/.well-known/smartgw/` through to a host could have it sign a challenge; who
could get `/.well-known/smartgw-challenge/` through could prove a domain from inside. Hosts differ
in how they read a path, so what is refused is every path that some host may read as one of these.
"""

import re
import unicodedata
from urllib.parse import unquote_to_bytes

_FOLDER = ".well-known"
_RESERVED = frozenset(("smartgw", "smartgw-challenge"))
# No chain of hosts decodes more often, and no path with both names in it is as deep as this.
_MAX_DECODINGS = 4
_MAX_SEGMENTS = 32

_UNICODE_ESCAPE = re.compile(rb"%u([0-9A-Fa-f]{4})")
_OVERLONG = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80\x81][\x80-\xbf]|\xf0\x80[\x80\x81][\x80-\xbf]"
)

# Without any of the others no spelling of a full stop is in it, hence neither folder.
_NO_STOP = bytes(octet for octet in range(128) if octet not in b".%")

Depths = tuple[int, int] | None
"""The fewest and the most segments that may lead to a place; None where it cannot be reached."""

State = tuple[Depths, Depths, Depths]
"""Depths of a place anywhere, below a first segment `.well-known`, below a reserved path."""


def is_reserved(target: bytes) -> bool:
    """Say whether some host may read a target (origin-form) as a reserved path.

    Hosts differ in how often they decode, in what is a separator, an empty or a dot segment or a
    path parameter to them, in where a path ends, and in whether case counts.
    """
    # The common cases first: one pass over it, or three searches.
    if not target.translate(None, _NO_STOP):
        return False
    path = target.partition(b"?")[0]
    if b"%" not in path and b"well" not in path.lower() and path.isascii():
        return False
    for _ in range(_MAX_DECODINGS + 1):
        text = _folded(path)
        if _FOLDER in text and "smartgw" in text and any(map(_may_be_reserved, _ends(text))):
            return True
        decoded = unquote_to_bytes(_UNICODE_ESCAPE.sub(_unescaped, path))
        if decoded == path:
            return False
        path = decoded
    return True


def _unescaped(match: re.Match[bytes]) -> bytes:
    # `%u002e`, which old servers decode.
    return chr(int(match[1], 16)).encode("utf-8", "replace")


def _shortest(match: re.Match[bytes]) -> bytes:
    # UTF-8 that is longer than it need be, for an ASCII character.
    return bytes([((match[0][-2] & 3) << 6 | match[0][-1] & 63) & 127])


def _folded(path: bytes) -> str:
    """Return the path as text without regard to case and to forms (full width) of characters."""
    text = _OVERLONG.sub(_shortest, path).decode("utf-8", "replace")
    return unicodedata.normalize("NFKC", text).casefold()


def _ends(path: str) -> set[str]:
    """Return the path, and what is left of it for those whom a NUL, `?` or `#` ends it."""
    return {path, *(path.partition(end)[0] for end in "\0?#")}


def _may_be_reserved(path: str) -> bool:
    """Follow all readings of a decoded path at once: each segment widens what is possible.

    With all possible depths at hand, one pass does for what differs from host to host; it errs
    only by refusing a path that no host reads so. A name without a slash behind it is the app's.
    """
    parts = path.split("/")[1:]
    if len(parts) > _MAX_SEGMENTS or path.count("\\") > _MAX_SEGMENTS:
        return True
    state: State = ((0, 0), None, None)
    below: Depths = None
    # `//name/` is a host to who takes the target for a URL reference.
    authority = parts[0][:1] == "\\" or not parts[0]
    for place, part in enumerate(parts):
        before = state
        for piece in part.split("\\"):
            below = state[2]
            state = _segment(state, piece)
        if "\\" in part:
            below = _widest(below, before[2])
            state = _either(state, _step(before, part))
        if authority and place < 2:
            state = _either(state, before)
    return below is not None and state[2] is not None


def _segment(state: State, segment: str) -> State:
    """Take a segment in all readings: with and without parameters, spaces, trailing dots."""
    bare = segment.partition(";")[0]
    trimmed = bare.strip()
    names = {segment, bare, trimmed, segment.strip(), trimmed.rstrip(" .") or trimmed}
    after, *others = (_step(state, name) for name in names)
    for other in others:
        after = _either(after, other)
    return after


def _step(state: State, name: str) -> State:
    if name == ".":
        return state
    if name == "..":
        anywhere, folder, reserved = state
        return _up(anywhere, 0) or (0, 0), _up(folder, 1), _up(reserved, 2)
    anywhere, folder, reserved = (_down(depths) for depths in state)
    if name == _FOLDER and state[0] is not None and state[0][0] == 0:
        folder = _widest(folder, (1, 1))
    elif name in _RESERVED and state[1] is not None and state[1][0] == 1:
        reserved = _widest(reserved, (2, 2))
    after = (anywhere, folder, reserved)
    # Some drop an empty segment, to others it is one.
    return after if name else _either(after, state)


def _down(depths: Depths) -> Depths:
    return None if depths is None else (depths[0] + 1, depths[1] + 1)


def _up(depths: Depths, least: int) -> Depths:
    if depths is None or depths[1] <= least:
        return None
    return max(depths[0] - 1, least), depths[1] - 1


def _widest(one: Depths, other: Depths) -> Depths:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _either(one: State, other: State) -> State:
    return (
        _widest(one[0], other[0]),
        _widest(one[1], other[1]),
        _widest(one[2], other[2]),
    )
