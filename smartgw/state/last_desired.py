"""The last desired state on disk, and how a start from it stands (contract 11.2).

Owns that it is kept whenever the bucket has been read. When it is written is keeping.py's, the
bytes are decisions.py's, the files disk.py's.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from smartgw.state import decisions
from smartgw.state.decisions import Decisions
from smartgw.state.desired import Desired
from smartgw.state.disk import Encode, Kind, StateFolder
from smartgw.state.keeping import Keeping

INTERVAL: Final = 3.0
"""Seconds between two writes, when something changed."""
REFRESH: Final = 600.0
"""Seconds after which it is written though nothing changed: a large one is 40 MB each time."""


def _breathe() -> None:
    """Let the event loop have the interpreter."""
    time.sleep(0)


KIND: Final = Kind(
    "desired",
    "desired.",
    decisions.FORM.most,
    partial(decisions.read, breathe=_breathe),
    "it will be known when the bucket has been read",
)
_log = logging.getLogger(__name__)


class LastDesired:
    """Keeps what `desired()` gives in `folder`. `wall` is Unix seconds."""

    def __init__(
        self,
        folder: Path,
        cluster: str,
        seed_file: Path | None,
        desired: Callable[[], Desired],
        *,
        interval: float = INTERVAL,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._keeping = Keeping(
            StateFolder(folder, cluster, KIND, seed_file),
            self._make,
            interval=interval,
            refresh=REFRESH,
            wall=wall,
        )
        self._desired = desired
        self._wall = wall

    async def load(self) -> Decisions | None:
        """What was kept, None when there is nothing usable; never raises."""
        kept = await self._keeping.load()
        if kept is not None:
            count, age = len(kept.desired.records), self._wall() - kept.time
            _log.info("state: %d records of %.0f s ago, until the bucket is read", count, age)
        return kept

    def start(self, whole: Callable[[], bool]) -> None:
        """Begin to keep it, while `whole()` says that the bucket has been read."""
        self._keeping.start(whole)

    def changed(self) -> None:
        """Another is in force."""
        self._keeping.changed()

    async def stop(self) -> None:
        """Write what is not yet written, then let another process write."""
        await self._keeping.stop()

    def missing(self) -> str:
        """Why there is nothing to start from, in a line."""
        if self._keeping.fault:
            return f"desired: {self._keeping.fault}"
        if self._keeping.folder.refused is not None:
            return f"desired: refused ({self._keeping.folder.refused})"
        return "desired: none kept yet"

    @property
    def fault(self) -> str:
        """Why it cannot be kept; empty when it can."""
        return self._keeping.fault

    def status(self) -> dict[str, Any]:
        """What status shows; ages are in seconds."""
        return self._keeping.status()

    def _make(self) -> Encode:
        # It never changes, so a thread may read it.
        desired = self._desired()
        return lambda stamp, identity: decisions.sealed(desired, stamp, identity, _breathe)
