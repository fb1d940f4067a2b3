"""Which cluster owns an app, and which epoch a list of clusters is (contract 4.1, 4.3).

Owns the one formula that every gateway and every host must agree on to the bit. Takes any
strings: which ids there are, and which of them count, is clusters.py's to say.
"""

import hashlib
from collections.abc import Iterable

EPOCH_DIGITS = 16


def owner(app_id: str, ids: Iterable[str]) -> str:
    """Return `S[u32be(sha256(utf8(app_id))[0:4]) mod N]`, S being `sorted_ids(ids)` (4.1, fixed).

    Raises ValueError when there is no id, or a text that has no UTF-8 (a lone surrogate).
    """
    ordered = sorted_ids(ids)
    if not ordered:
        raise ValueError("without clusters no app has an owner")
    return ordered[place(app_id, len(ordered))]


def place(app_id: str, count: int) -> int:
    """Return the place of an app's owner among `count` sorted ids, from 0.

    A change of `count` moves most apps: whoever plans one asks `smartgw owner --forecast`.
    """
    return int.from_bytes(hashlib.sha256(app_id.encode()).digest()[:4], "big") % count


def sorted_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Return the ids by their UTF-8 bytes, ascending, each once."""
    # Code points sort as their UTF-8 does, but a lone surrogate would slip through.
    return tuple(sorted(set(ids), key=str.encode))


def epoch(ids: Iterable[str]) -> str:
    """Return the first 16 hex digits of sha256 over the sorted ids joined by a line feed (4.3).

    Two lists of one epoch give every app the same owner.
    """
    return hashlib.sha256("\n".join(sorted_ids(ids)).encode()).hexdigest()[:EPOCH_DIGITS]
