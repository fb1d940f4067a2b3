"""A large mapping that never changes, whose successor copies only what it touches.

Owns that trade: a change copies the parts it falls into, of four thousand, and a lookup costs one
index more than a dictionary's. So a table of a million names is swapped for the next in
microseconds, and no large copy is ever due. Decides nothing of what is in it.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_PARTS: Final = 4093
"""A part of a million names is then 250 of them: 2 microseconds to copy. A prime, so that the
parts, which are dictionaries, still differ in the low bits of the hashes within."""


class Shards(Generic[K, V]):
    """An immutable mapping. `edit` makes the next one."""

    __slots__ = ("_count", "_parts")

    def __init__(self, parts: tuple[dict[K, V], ...] | None = None, count: int = 0) -> None:
        """An empty one; with parts only for `Edit.done`."""
        if parts is None:
            empty: dict[K, V] = {}
            parts = (empty,) * _PARTS
        self._parts = parts
        self._count = count

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return the value of a key; O(1)."""
        return self._parts[hash(key) % _PARTS].get(key, default)

    def __contains__(self, key: K) -> bool:
        return key in self._parts[hash(key) % _PARTS]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        for part in self._parts:
            yield from part

    def items(self) -> Iterator[tuple[K, V]]:
        """All keys with their values, in no order."""
        for part in self._parts:
            yield from part.items()

    def values(self) -> Iterator[V]:
        """All values, in no order."""
        for part in self._parts:
            yield from part.values()

    def edit(self) -> "Edit[K, V]":
        """Begin the next one."""
        return Edit(self)


class Edit(Generic[K, V]):
    """The next mapping while it is made: what is put here, those who have the old do not see.

    `replaced` are the parts of the old one that are not in the next. To free thousands of them
    takes as long as to make them: whoever holds a large one lets go of them little by little.
    """

    __slots__ = ("_base", "_count", "_own", "_parts", "replaced")

    def __init__(self, base: Shards[K, V]) -> None:
        self._base = base
        self._parts: Sequence[dict[K, V]] = base._parts
        self._count = base._count
        self._own: set[int] = set()
        self.replaced: list[object] = []

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return the value that a key has now."""
        return self._parts[hash(key) % _PARTS].get(key, default)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        part = self._part(key)
        before = len(part)
        part[key] = value
        self._count += len(part) - before

    def drop(self, key: K) -> None:
        """Take a key out; no harm when it is not there."""
        if key in self._parts[hash(key) % _PARTS]:
            del self._part(key)[key]
            self._count -= 1

    def done(self) -> Shards[K, V]:
        """Return the mapping as it is now; the edit must not be used any more."""
        if not self._own:
            return self._base
        return Shards(tuple(self._parts), self._count)

    def _part(self, key: K) -> dict[K, V]:
        number = hash(key) % _PARTS
        if number not in self._own:
            if not isinstance(self._parts, list):
                self._parts = list(self._parts)
            self._own.add(number)
            part = self._parts[number]
            if part:
                self.replaced.append(part)
            self._parts[number] = part.copy()
        return self._parts[number]
