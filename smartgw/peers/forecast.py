"""What a change of the list of clusters would do to owners (contract 4.1).

Owns the share of all possible apps that would move, exactly, and which of the known ones would. The
formula itself is smartgw_hosts.owner's.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from smartgw_hosts.owner import owner, sorted_ids


@dataclass(frozen=True, slots=True)
class Move:
    """An app whose owner would be another one."""

    app_id: str
    owner: str
    next_owner: str


def share(before: Iterable[str], after: Iterable[str]) -> float:
    """Return which share of apps would have another owner, 0 to 1; both lists name a cluster.

    A remainder by N and one by M depend on the remainder by their least common multiple alone, so
    one period says it all; 2**32 is so much larger that its last, broken period does not count.
    """
    old, new = sorted_ids(before), sorted_ids(after)
    period = math.lcm(len(old), len(new))
    return sum(old[n % len(old)] != new[n % len(new)] for n in range(period)) / period


def moves(apps: Iterable[str], before: Iterable[str], after: Iterable[str]) -> list[Move]:
    """Return the apps among these that would move, in the order given."""
    old, new = sorted_ids(before), sorted_ids(after)
    found = (Move(app_id, owner(app_id, old), owner(app_id, new)) for app_id in apps)
    return [move for move in found if move.owner != move.next_owner]
