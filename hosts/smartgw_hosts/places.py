"""Who may hold one of a sidecar's places for connections, when there are too few (contract 3.11).

Owns that those whom no gateway stands behind leave room for gateways: a connection that does not
open with a challenge may hold a place of one half only, an address a quarter of all by such, and
one that has not yet said what it is gives way to a new one. Pure.
"""

from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")


class Places(Generic[T]):
    """`most` places. A connection is new, until it opens with a challenge or with anything else."""

    __slots__ = ("_addresses", "_most", "_new", "_others", "_proven")

    def __init__(self, most: int) -> None:
        self._most = most
        # In the order in which they came; with the address, while it counts.
        self._new: dict[T, str] = {}
        self._others: dict[T, str] = {}
        self._proven: set[T] = set()
        self._addresses: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._new) + len(self._others) + len(self._proven)

    def all(self) -> list[T]:
        """All that have a place."""
        return [*self._new, *self._others, *self._proven]

    def enter(self, one: T, address: str) -> tuple[bool, T | None]:
        """Give a new connection a place; return whether there is one, and who lost it for that."""
        if self._addresses[address] >= max(1, self._most // 4):
            return False, None
        gone = None
        if len(self) >= self._most:
            gone = next(iter(self._new), None)
            if gone is None:
                return False, None
            self.leave(gone)
        self._new[one] = address
        self._addresses[address] += 1
        return True, gone

    def opened(self, one: T, *, proven: bool) -> bool:
        """It has begun, with a challenge that was answered or otherwise; False: it must go."""
        if one not in self._new:
            return one in self._others or one in self._proven
        if proven:
            self.leave(one)
            self._proven.add(one)
            return True
        if len(self._others) >= max(1, self._most // 2):
            return False
        self._others[one] = self._new.pop(one)
        return True

    def leave(self, one: T) -> None:
        """It has ended; no harm when it has no place."""
        self._proven.discard(one)
        for places in (self._new, self._others):
            address = places.pop(one, None)
            if address is not None:
                self._addresses[address] -= 1
                if not self._addresses[address]:
                    del self._addresses[address]
