"""Which of many keys is due next, without looking at the others.

Owns the queue behind leases, checks, removals and expiries: one time a key, cheap to put off
(a heartbeat writes one dict entry), O(log n) to fall due, bounded memory. Knows no clock and
nothing of hosts. Also owns how a time is spread, by hash and never by chance (contract 1.9).
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from zlib import crc32

_SLACK = 64


class Timers:
    """At most one time for each key. Times are floats of whatever clock the caller keeps."""

    __slots__ = ("_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        # What is put off keeps its earlier place in the heap and moves when that comes up.
        self._queued: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: str) -> bool:
        return key in self._due

    def dump(self) -> dict[str, float]:
        """When each key is due."""
        return dict(self._due)

    def load(self, data: Mapping[str, float]) -> None:
        """Take what `dump` gave."""
        for key, when in data.items():
            self.set(key, when)

    def when(self, key: str, default: float) -> float:
        """When `key` is due, `default` if it is not."""
        return self._due.get(key, default)

    def set(self, key: str, when: float) -> None:
        """Let `key` be due at `when`, whatever was set before."""
        self._due[key] = when
        queued = self._queued.get(key)
        if queued is None or when < queued:
            self._queued[key] = when
            heappush(self._heap, (when, key))
            if len(self._heap) > 2 * len(self._queued) + _SLACK:
                self._heap = [(at, name) for name, at in self._queued.items()]
                heapify(self._heap)

    def cancel(self, key: str) -> None:
        """Let `key` not be due at all."""
        self._due.pop(key, None)

    def first(self, until: float) -> str | None:
        """The key that is due first, if it is due by `until`; equal times in order of keys."""
        while self._heap and self._heap[0][0] <= until:
            at, key = self._heap[0]
            if self._queued.get(key) != at:
                heappop(self._heap)
                continue
            due = self._due.get(key)
            if due == at:
                return key
            heappop(self._heap)
            if due is None:
                del self._queued[key]
            else:
                self._queued[key] = due
                heappush(self._heap, (due, key))
        return None

    def pop(self, until: float) -> str | None:
        """Like `first`, and the key is not due any more."""
        key = self.first(until)
        if key is not None:
            heappop(self._heap)
            del self._due[key], self._queued[key]
        return key


def spread(key: str, count: int) -> float:
    """A number in [0, 1) that differs from key to key and from `count` to `count`."""
    return crc32(f"{key}:{count}".encode()) / 2**32
