"""Which of an app's healthy hosts gets a request (contract 3.7): one pure rule.

Least outstanding requests of two random choices, weighted; a suspect host last. Whether another
host may be tried after a failure is path.py's.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A host that could take the request, as far as the rule looks at it."""

    outstanding: int
    weight: int
    suspect: bool


Host = TypeVar("Host")
C = TypeVar("C", bound=Candidate)


def choose(
    hosts: Sequence[Host], candidate: Callable[[Host], C], draw: Callable[[], float]
) -> C | None:
    """Return the candidate to try, None when there is no host; looks at two, however many.

    `candidate` gives what is known of a host, `draw` numbers in [0, 1).
    """
    count = len(hosts)
    if count < 2:
        return candidate(hosts[0]) if count else None
    first = int(draw() * count)
    second = int(draw() * (count - 1))
    if second >= first:
        second += 1
    one, other = candidate(hosts[first]), candidate(hosts[second])
    if one.suspect or other.suspect:
        # Rare, and worth a look at all: a suspect host costs its caller a failed attempt.
        sound = [host for host in hosts if not candidate(host).suspect]
        if sound and len(sound) < count:
            return choose(sound, candidate, draw)
    if (one.outstanding + 1) * other.weight <= (other.outstanding + 1) * one.weight:
        return one
    return other
