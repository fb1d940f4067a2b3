"""Which of an app's healthy hosts gets a request (contract 3.7): one pure rule.

Least outstanding requests of two random choices, weighted; a suspect host last. Whether another
host may be tried after a failure is path.py's.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A host that could take the request, as far as the rule looks at it."""

    outstanding: int
    weight: int
    suspect: bool


Host = TypeVar("Host")
C = TypeVar("C", bound=Candidate)


def choose(
    hosts: Sequence[Host],
    candidate: Callable[[Host], C],
    draw: Callable[[], float],
    shares: Sequence[int] = (),
) -> C | None:
    """Return the candidate to try, None when there is no host; looks at two, however many.

    `candidate` gives what is known of a host, `draw` numbers in [0, 1). `shares` are the running
    sums of the hosts' weights, to draw by them; without them all hosts are drawn alike.
    """
    count = len(hosts)
    if count < 2:
        return candidate(hosts[0]) if count else None
    if shares:
        first, second = _two_by_weight(shares, draw)
    else:
        first = int(draw() * count)
        second = int(draw() * (count - 1))
        if second >= first:
            second += 1
    one, other = candidate(hosts[first]), candidate(hosts[second])
    if one.suspect or other.suspect:
        # Rare, and worth a look at all: a suspect host costs its caller a failed attempt.
        sound = [host for host in hosts if not candidate(host).suspect]
        if sound and len(sound) < count:
            weights = (candidate(host).weight for host in sound)
            return choose(sound, candidate, draw, tuple(accumulate(weights)))
    # The other is taken only if it is the less loaded both as it is and with the request on it.
    # By the first alone a light host gets too much, by the second alone it never gets anything.
    if (
        one.outstanding * other.weight > other.outstanding * one.weight
        and (one.outstanding + 1) * other.weight > (other.outstanding + 1) * one.weight
    ):
        return other
    return one


def _two_by_weight(shares: Sequence[int], draw: Callable[[], float]) -> tuple[int, int]:
    """Draw two different places."""
    total = shares[-1]
    first = bisect_right(shares, draw() * total)
    begin = shares[first - 1] if first else 0
    weight = shares[first] - begin
    point = draw() * (total - weight)
    # The sum may be rounded up to the total.
    second = bisect_right(shares, point if point < begin else point + weight)
    return first, min(second, len(shares) - 1)
