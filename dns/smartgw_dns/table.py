"""A map from bytes to values that never changes: a changed one shares nearly all with the old.

Owns how a change to one of 100,000 entries costs microseconds: the entries lie in many small
dicts, and a changed table copies those that the change touches. Knows nothing of DNS.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")

# A part holds up to this many entries on average before there are four times as many parts.
_FULL = 64
_GROWTH = 4
# Within a dict the low bits of the hash choose the place, so parts are chosen by high ones.
_HIGH = 32


@dataclass(frozen=True, slots=True, eq=False)
class Table(Generic[V]):
    """An immutable map from bytes to values other than None. Equal only to itself.

    Attributes:
        size: how many entries it has.
    """

    _parts: tuple[dict[bytes, V], ...] = ({},)
    size: int = 0

    def get(self, key: bytes) -> V | None:
        """Return the value at a key, or None."""
        parts = self._parts
        return parts[(hash(key) >> _HIGH) & (len(parts) - 1)].get(key)

    def items(self) -> Iterator[tuple[bytes, V]]:
        """Walk all entries, in no order."""
        for part in self._parts:
            yield from part.items()

    def changed(self, changes: Mapping[bytes, V | None]) -> "Table[V]":
        """Return the table with these values in place, and without those that are None."""
        parts = list(self._parts)
        if self.size + len(changes) > _FULL * len(parts):
            parts = _spread(self.items(), self.size + len(changes))
            fresh = set(range(len(parts)))
        else:
            fresh = set()
        size, mask = self.size, len(parts) - 1
        for key, value in changes.items():
            at = (hash(key) >> _HIGH) & mask
            if at not in fresh:
                parts[at] = parts[at].copy()
                fresh.add(at)
            size -= key in parts[at]
            if value is None:
                parts[at].pop(key, None)
            else:
                parts[at][key] = value
                size += 1
        return Table(tuple(parts), size)


def _spread(items: Iterator[tuple[bytes, V]], size: int) -> list[dict[bytes, V]]:
    count = 1
    while count * _FULL < size:
        count *= _GROWTH
    parts: list[dict[bytes, V]] = [{} for _ in range(count)]
    for key, value in items:
        parts[(hash(key) >> _HIGH) & (count - 1)][key] = value
    return parts
