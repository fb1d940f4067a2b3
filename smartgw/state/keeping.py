"""When something is written to disk to outlive a restart, and what is said while that fails (11.2).

Owns that a thread writes and traffic never waits for it, and that what takes long is written less
often. What is written, and whether it is whole, is told by whoever keeps it (last_good.py,
last_desired.py); the files are disk.py's.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic

from smartgw.state.disk import Encode, StateFolder, T_co
from smartgw_hosts.keyfile import KeyFileError
from smartgw_hosts.quiet_log import QuietLog

SHARE: Final = 20.0
"""A write is followed by as many times its own duration without one."""

_log = logging.getLogger(__name__)


class Keeping(Generic[T_co]):
    """Writes what `make()` gives, at most every `interval` seconds when it has changed, and every
    `refresh` seconds in any case, so that its age is true.

    `make` is called on the loop; what it returns is called in a thread. `fault` says why nothing
    can be kept, and `read` is what was found at the start.
    """

    def __init__(
        self,
        folder: StateFolder[T_co],
        make: Callable[[], Encode],
        *,
        interval: float,
        refresh: float,
        wall: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.read: T_co | None = None
        self.fault = ""
        self._make = make
        self._interval, self._refresh, self._wall = interval, refresh, wall
        self._say = QuietLog(60.0, _log)
        self._dirty = True
        self._took = 0.0
        self._written_at: float | None = None
        self._one_write = threading.Lock()
        self._stopped = False
        self._whole: Callable[[], bool] = lambda: False
        self._task: asyncio.Task[None] | None = None

    async def load(self) -> T_co | None:
        """Read what was kept, None when there is nothing usable; never raises."""
        try:
            self.read = await asyncio.to_thread(self.folder.load)
        except (OSError, KeyFileError) as error:
            self._failed(error)
        return self.read

    def start(self, whole: Callable[[], bool]) -> None:
        """Begin to keep it, while `whole()` says that nothing of it is missing."""
        self._whole = whole
        self._task = asyncio.create_task(self._run(), name=f"keeping {self.folder.name}")

    def changed(self) -> None:
        """It is another now: written soon."""
        self._dirty = True

    async def stop(self) -> None:
        """Write what is not yet written, then let another process write; a second time nothing."""
        if self._stopped:
            return
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self._dirty and self._whole():
                await self._write()
        self.folder.close()

    def status(self) -> dict[str, Any]:
        """What status shows; ages are in seconds."""
        now = self._wall()
        return {
            "dir": str(self.folder.path),
            "generation": self.folder.generation,
            "written_age": None if self._written_at is None else round(now - self._written_at, 1),
            "fault": self.fault or None,
            "refused": self.folder.refused,
        }

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(self._interval, SHARE * self._took))
            written = self._written_at
            stale = written is None or not 0 <= self._wall() - written < self._refresh
            if (self._dirty or stale) and self._whole():
                await self._write()

    async def _write(self) -> None:
        self._dirty = False
        began, wall = time.monotonic(), self._wall()
        try:
            await asyncio.to_thread(self._in_thread, self._make(), wall)
        except (OSError, KeyFileError) as error:
            self._dirty = True
            self._failed(error)
        except Exception as error:
            self._dirty = True
            self.fault = "internal error"
            self._say(logging.ERROR, "internal", "state: not written", error=error)
        else:
            if self.fault:
                _log.info("state: written again")
            self.fault = ""
            self._written_at = wall
            self._took = time.monotonic() - began

    def _in_thread(self, encode: Encode, wall: float) -> None:
        with self._one_write:
            self.folder.write(encode, wall)

    def _failed(self, error: OSError | KeyFileError) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self.fault = f"cannot be kept in {self.folder.path} ({reason})"
        self._say(logging.ERROR, str(reason), f"state: {self.fault}; traffic goes on")
