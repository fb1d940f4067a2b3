"""Which of an app's healthy hosts gets a request (contract 3.7): one pure rule.

Least outstanding requests of two random choices, weighted; a suspect host last. Whether another
host may be tried after a failure is path.py's.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A host that could take the request."""

    outstanding: int
    weight: int
    suspect: bool


C = TypeVar("C", bound=Candidate)


def choose(candidates: Sequence[C], draw: Callable[[], float]) -> C | None:
    """Return the host to try; `draw` gives numbers in [0, 1). None when there is nobody."""
    count = len(candidates)
    if count < 2:
        return candidates[0] if count else None
    first = int(draw() * count)
    second = int(draw() * (count - 1))
    if second >= first:
        second += 1
    one, other = candidates[first], candidates[second]
    if one.suspect or other.suspect:
        sound = [candidate for candidate in candidates if not candidate.suspect]
        if sound and len(sound) < count:
            return choose(sound, draw)
    if (one.outstanding + 1) * other.weight <= (other.outstanding + 1) * one.weight:
        return one
    return other
