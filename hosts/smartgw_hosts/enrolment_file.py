"""The enrolment list as a file that may change while we run (contract 1.4).

Owns when a changed file comes into force: when it has held still from one poll to the next,
so that a list half written removes nobody, and only when it is right as a whole. What a list
means is enrolment.py's to say; who loses his place by it, the pool's.
"""

import logging
import os
import re
import time
from pathlib import Path

from smartgw_hosts.enrolment import Enrolment, EnrolmentError, parse

POLL_SECONDS = 0.5
"""One poll finds a change, the next sees it hold still: half of the 2 s it may take to work."""

# Where a fault stands, in the words of `tomllib` and of `parse`.
_PLACE = re.compile(r"at line [0-9]+|entry [0-9]+")
_log = logging.getLogger(__name__)


class EnrolmentFile:
    """Follows a file by `poll`, every `POLL_SECONDS`: the list in force is `current`.

    Raises EnrolmentError when the file cannot be read or has a fault at the start; later such
    a file leaves the list in force as it is and is logged once.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        # What was seen before reading, so that a change while reading is seen by the next poll.
        self._seen = self._tried = _stamp(self._path)
        self._by_host = self._read()
        self._since = time.time()
        self._refused = ""

    @property
    def refused(self) -> str:
        """That the file as it is now is refused, and which list is in force; empty when it is."""
        return self._refused

    @property
    def current(self) -> tuple[Enrolment, ...]:
        """The enrolments in force, in the order of the file."""
        return tuple(self._by_host.values())

    def poll(self) -> bool:
        """Look once; tell whether another list came into force. Blocks while it reads."""
        stamp = _stamp(self._path)
        moved, self._seen = stamp != self._seen, stamp
        if moved or stamp == self._tried:
            return False
        self._tried = stamp
        try:
            by_host = self._read()
        except EnrolmentError as error:
            since = time.strftime("%H:%M", time.localtime(self._since))
            place = _PLACE.search(str(error))
            where = f" {place[0].removeprefix('at ')}" if place else ""
            self._refused = f"{self._path.name}{where} is refused, the list of {since} is in force"
            _log.error(
                "the enrolment list of %s stays in force, for the new one is refused; "
                "correct it, which needs no restart:\n%s",
                *(since, error),
            )
            return False
        self._refused = ""
        if by_host == self._by_host:
            return False
        self._by_host = by_host
        self._since = time.time()
        count = len(by_host)
        _log.info("%s: %d enrolment%s in force", self._path, count, "s" * (count != 1))
        return True

    def _read(self) -> dict[str, Enrolment]:
        try:
            enrolments = parse(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise EnrolmentError(
                f"{self._path}: cannot be read ({error.strerror}); "
                "an enrolment list must be there, if only an empty one"
            ) from None
        except UnicodeDecodeError:
            raise EnrolmentError(f"{self._path}: not UTF-8; save it as UTF-8") from None
        except EnrolmentError as error:
            raise EnrolmentError(*(f"{self._path}: {line}" for line in error.problems)) from None
        return {enrolment.host_id: enrolment for enrolment in enrolments}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does, whether it is written in place or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
