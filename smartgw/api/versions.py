"""Conditional requests: what an ETag is, and what If-Match and If-None-Match want (RFC 9110 13).

Owns the reading of these fields and the verdict. What stands in the store is the caller's to say.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TAG = re.compile(r'[ \t]*(?:(W/)?("[!\x23-\x7e]*"))[ \t]*(?:,|\Z)')


class BadCondition(ValueError):
    """A field that is none."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The entity tags of a field: `every` for `*`; `strong` and `weak` with their quotes."""

    every: bool
    strong: frozenset[str]
    weak: frozenset[str]


def tags(fields: Sequence[str]) -> Tags | None:
    """Read If-Match or If-None-Match; None when it is not there. Raises BadCondition."""
    if not fields:
        return None
    text = ", ".join(fields).strip(" \t")
    if text == "*":
        return Tags(True, frozenset(), frozenset())
    strong: set[str] = set()
    weak: set[str] = set()
    place = 0
    while place < len(text):
        found = _TAG.match(text, place)
        if found is None:
            raise BadCondition('must be * or entity tags in quotes: "5-18f"')
        (weak if found[1] else strong).add(found[2])
        place = found.end()
    return Tags(False, frozenset(strong), frozenset(weak))


def holds(if_match: Tags | None, if_none_match: Tags | None, current: str | None) -> bool:
    """Say whether a change may be made; `current` is the entity tag that there is, without quotes.

    If-Match compares strongly (RFC 9110 8.8.3.2): a weak tag matches nothing.
    """
    tag = None if current is None else f'"{current}"'
    if if_match is not None and (tag is None or not (if_match.every or tag in if_match.strong)):
        return False
    return if_none_match is None or not _named(if_none_match, tag)


def unchanged(if_none_match: Tags | None, current: str) -> bool:
    """Say whether a reader has what there is, so that 304 will do; compares weakly."""
    return if_none_match is not None and _named(if_none_match, f'"{current}"')


def _named(some: Tags, tag: str | None) -> bool:
    return tag is not None and (some.every or tag in some.strong or tag in some.weak)
