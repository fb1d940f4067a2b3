"""Where the gateway's trust comes from: an enrolment file that a reload may change (1.4, 11.1).

Owns that the routing table hears of enrolled apps before the pool does, and that both hear of
each list in force, whatever goes wrong. Reading the file is smartgw_hosts.enrolment_file's.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.enrolment_file import POLL_SECONDS, EnrolmentFile

_log = logging.getLogger(__name__)

Changed = Callable[[tuple[Enrolment, ...]], None]


class FollowedFile:
    """A `smartgw_hosts.listener.EnrolmentSource`; `declare` is told the apps that are named.

    Raises EnrolmentError when the file is refused at the start, as `follow` does.
    """

    def __init__(self, path: Path, declare: Callable[[set[str]], None]) -> None:
        self._path = path
        self._file = EnrolmentFile(path)
        self._declare = declare
        self._changed: Changed | None = None
        self._untold = False
        self._declare_all()

    @property
    def current(self) -> tuple[Enrolment, ...]:
        return self._file.current

    def degraded(self) -> list[str]:
        """What works less well than it could, in lines."""
        return [f"trust: {self._file.refused}"] if self._file.refused else []

    async def watch(self, changed: Changed) -> None:
        """Call `changed`, on the loop, with each list that comes into force; ends when told to."""
        self._changed = changed
        while True:
            await asyncio.sleep(POLL_SECONDS)
            # In a thread: reading 10,000 entries takes longer than traffic may wait.
            if await asyncio.to_thread(self._file.poll):
                self._untold = True
            if self._untold:
                self._tell()

    def follow(self, path: Path) -> None:
        """Take the enrolments from another file; the same one goes on as it is."""
        if path != self._path:
            self._file, self._path = EnrolmentFile(path), path
            self._tell()

    def _tell(self) -> None:
        """Tell of the list in force; again with the next poll if somebody cannot take it now.

        Nobody else would: the file has not changed, and who was taken off it would stay.
        """
        self._untold = True
        try:
            self._declare_all()
            if self._changed is not None:
                self._changed(self._file.current)
        except Exception:
            _log.exception("%s: the enrolments could not be passed on; again soon", self._path)
        else:
            self._untold = False

    def _declare_all(self) -> None:
        current = self._file.current
        self._declare({app for enrolment in current for app in enrolment.exact_apps})
