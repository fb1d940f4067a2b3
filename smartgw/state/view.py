"""The desired state in memory: what is in force, and when what was heard comes into force.

Owns that a burst is one change, that a whole that was read is one change, and that whoever wrote
something hears when it is in force. What the store says comes from follow.py, as entries.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from typing import Final

from smartgw import memory
from smartgw.state.desired import Desired, Difference, Draft, Entry, Skipped, Stored, Sweep
from smartgw_hosts.quiet_log import QuietLog

GATHER: Final = 0.02
"""Seconds for which changes are collected, so that many make one new table."""
MOST: Final = 0.5
"""Seconds after which they come into force though more of them are on their way."""

SLICE, PAUSE = 256, 0.001
"""Records that are looked at in one go, and seconds for others between two of these."""

OnChange = Callable[[Desired, Difference], None]
_log = logging.getLogger(__name__)


class View:
    """A `follow.Taker`. `on_change(desired, difference)` is called on the loop when another
    Desired is in force, `on_loaded()` once, when the bucket has been read; `behind()` tells that
    more changes are on their way.

    `loaded` tells that the bucket was read since the start; `counters` are of changes that came
    into force, and of entries that were found missing.
    """

    def __init__(
        self, on_change: OnChange, on_loaded: Callable[[], None], behind: Callable[[], bool]
    ) -> None:
        self.desired = Desired()
        self.loaded = False
        self.counters: dict[str, int] = dict.fromkeys(("changes", "healed"), 0)
        self._on_change, self._on_loaded = on_change, on_loaded
        self._behind = behind
        self._say = QuietLog(30.0, _log)
        self._draft: Draft | None = None
        self._sweep: Sweep | None = None
        self._bucket, self._revision = "", 0
        self._told = 0
        self._since = 0.0
        self._settling = memory.Settling()
        self._flushing: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = 0

    def restore(self, desired: Desired) -> None:
        """Put in force what was kept over a restart."""
        self.desired = desired
        self._bucket, self._revision = desired.bucket, desired.revision

    def stop(self) -> None:
        """Nothing comes into force any more."""
        if self._flushing is not None:
            self._flushing.cancel()

    # ---- what is true by now, in force or not ----

    @property
    def replaced(self) -> bool:
        """Whether another bucket is being read, so that nothing is known for sure."""
        return self._sweep is not None and self._sweep.replace

    def at(self, key: str) -> Stored | Skipped | None:
        """Return what stands under a key."""
        return (self.desired.records.get if self._draft is None else self._draft.stored)(key)

    def claimants(self, name: str) -> tuple[str, ...]:
        """Return the apps that claim a name, the holder first."""
        return (self.desired if self._draft is None else self._draft).claimants(name)

    async def in_force(self, revision: int, patience: float) -> None:
        """Wait until a write is in force here, though no longer than `patience` seconds."""
        if self.desired.revision >= revision:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._waiting, (revision, self._order, waiting))
        if self._awaited:
            self._flush_in(0)
        await asyncio.wait((waiting,), timeout=patience)

    # ---- follow.Taker ----

    @property
    def known(self) -> tuple[str, int]:
        return self._bucket, self._revision

    @property
    def holds(self) -> int:
        return len(self.desired.records)

    def begin(self, sweep: Sweep) -> None:
        self._flush()
        self._sweep = sweep
        if sweep.replace:
            self._draft, self._revision, self._told = Draft(self.desired), 0, 0

    def take(self, entry: Entry, *, swept: bool) -> None:
        if self._draft is None:
            self._draft = Draft(self.desired)
        self._revision = max(self._revision, entry.revision)
        if not swept:
            self._told = entry.revision
        gone = entry.value is None and self._draft.stored(entry.key) is None
        if not self._draft.take(entry, self._sweep, swept=swept):
            return
        self._settling.note(1)
        if self.replaced:
            return  # in force as a whole, at its end
        if swept and entry.revision <= self._told and not gone:
            self.counters["healed"] += 1
            self._say(logging.WARNING, "healed", "state: a change that was missed was found")
        if self._flushing is None:
            self._since = time.monotonic()
            self._flush_in(GATHER)
        elif self._awaited:
            self._flush_in(0)

    async def end(self, sweep: Sweep) -> None:
        missed = []
        for number, (key, stored) in enumerate(self.desired.records.items(), 1):
            if sweep.missed(key, stored):
                missed.append(key)
            if number % SLICE == 0:
                await asyncio.sleep(PAUSE)
        if self._draft is None:
            self._draft = Draft(self.desired)
        for key in missed:
            self._draft.forget(key, sweep)
        if not sweep.replace:
            self.counters["healed"] += len(missed)
        self._bucket = sweep.bucket
        self._sweep = None
        self._flush()
        memory.let_go(sweep.seen)

    def abandon(self) -> None:
        if self.replaced:
            self._draft = None
            self._bucket, self._revision = self.desired.bucket, self.desired.revision
        self._sweep = None

    def caught_up(self) -> None:
        self._flush()
        if not self.loaded:
            self.loaded = True
            memory.settle()
            self._on_loaded()

    # ---- when it comes into force ----

    @property
    def _awaited(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0] <= self._revision

    def _flush_in(self, seconds: float) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
        self._flushing = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        self._flushing = None
        late = time.monotonic() > self._since + MOST
        if self._behind() and not late and not self._awaited:
            self._flush_in(GATHER)
        else:
            self._flush()

    def _flush(self) -> None:
        """Put in force what was taken, unless it is only a part of a whole."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._draft is None or self.replaced:
            return
        draft, self._draft = self._draft, None
        memory.let_go(draft.replaced)
        self.desired, difference = draft.done(self._revision, self._bucket)
        if difference:
            self.counters["changes"] += 1
            try:
                self._on_change(self.desired, difference)
            except Exception as error:
                self._say(logging.ERROR, "change", "state: a change failed", error=error)
        while self._awaited:
            _, _, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                waiting.set_result(None)
