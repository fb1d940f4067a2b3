"""Where the gateway's trust comes from: an enrolment file, and what the platform enrolled (1.4).

Owns how the two become one list: of a host that both name, the file's entry counts, so that
whoever may write to the store cannot take the place of a host that the operator named. And that the
routing table hears of enrolled apps before the pool does, and both of each list in force, whatever
goes wrong. Reading the file is smartgw_hosts.enrolment_file's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.enrolment_file import POLL_SECONDS, EnrolmentFile

_log = logging.getLogger(__name__)

Changed = Callable[[tuple[Enrolment, ...]], None]


class Trust:
    """A `smartgw_hosts.listener.EnrolmentSource`; `declare` is told the apps that are named.

    `path` is the file's, None without one; `cluster` is this gateway's. Raises EnrolmentError when
    the file is refused at the start, as `follow` does.
    """

    def __init__(
        self, path: Path | None, cluster: str, declare: Callable[[set[str]], None]
    ) -> None:
        self._path = path
        self._cluster = cluster
        self._file = None if path is None else EnrolmentFile(path)
        self._stored: dict[str, Enrolment] = {}
        self._declare = declare
        self._changed: Changed | None = None
        self._untold = False
        self._declare_all()

    @property
    def current(self) -> tuple[Enrolment, ...]:
        """The enrolments in force, those of the file first."""
        if self._file is None:
            return tuple(self._stored.values())
        named = {enrolment.host_id: enrolment for enrolment in self._file.current}
        return tuple(
            {**named, **{h: e for h, e in self._stored.items() if h not in named}}.values()
        )

    def degraded(self) -> list[str]:
        """What works less well than it could, in lines."""
        if self._file is None or not self._file.refused:
            return []
        return [f"trust: {self._file.refused}"]

    async def watch(self, changed: Changed) -> None:
        """Call `changed`, on the loop, with each list that comes into force; ends when told to."""
        self._changed = changed
        while True:
            await asyncio.sleep(POLL_SECONDS)
            # In a thread: reading 10,000 entries takes longer than traffic may wait.
            if self._file is not None and await asyncio.to_thread(self._file.poll):
                self._untold = True
            if self._untold:
                self._tell()

    def follow(self, path: Path | None) -> None:
        """Take the enrolments from another file; the same one goes on as it is."""
        if path != self._path:
            self._file, self._path = None if path is None else EnrolmentFile(path), path
            self._tell()

    def enrol(self, stored: Iterable[Enrolment]) -> None:
        """Take what the platform enrolled, of all clusters, in place of what it had."""
        # The same host id elsewhere is another host; alone, it tells why this one is not trusted.
        ours: dict[str, Enrolment] = {}
        for enrolment in sorted(stored, key=lambda e: (e.cluster == self._cluster, e.cluster)):
            ours[enrolment.host_id] = enrolment
        self._stored = ours
        self._tell()

    def _tell(self) -> None:
        """Tell of the list in force; again with the next poll if somebody cannot take it now.

        Nobody else would: the list has not changed, and who was taken off it would stay.
        """
        self._untold = True
        try:
            self._declare_all()
            if self._changed is not None:
                self._changed(self.current)
        except Exception:
            _log.exception("the enrolments could not be passed on; again soon")
        else:
            self._untold = False

    def _declare_all(self) -> None:
        self._declare({app for enrolment in self.current for app in enrolment.exact_apps})
