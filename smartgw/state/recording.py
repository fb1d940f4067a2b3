"""The recording of discovery on disk: two files in turn, written by a thread (contract 1.9).

Owns when a file is full, what is done when the disk does not keep up (the recording begins anew
with the pool's whole state, so that what is there can always be played) and what a restart makes
of a line cut off. Nothing on the event loop waits. The lines are smartgw_hosts.tape's.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from smartgw_hosts import tape
from smartgw_hosts.pool import Pool
from smartgw_hosts.quiet_log import QuietLog
from smartgw_hosts.tape import Input

FLUSH: Final = 0.2
QUEUED: Final = 50_000
"""Inputs that wait to be written; a message is a kilobyte or so."""
SLICE: Final = 32
"""Lines that are encoded before the event loop can have the interpreter again."""
RETRY: Final = 10.0
"""Seconds until a recording that failed begins anew."""

_log = logging.getLogger(__name__)


class Recording:
    """Appends to `path`, at most `most` bytes together with the file before it (`path`.1)."""

    def __init__(self, path: Path, most: int, *, wall: Callable[[], float] = time.time) -> None:
        self.path = path
        self.before = path.with_name(f"{path.name}.1")
        self.fault = ""
        self.counters = {"lines": 0, "lost": 0}
        self._most = most // 2
        self._wall = wall
        self._say = QuietLog(60.0, _log)
        self._pool: Pool | None = None
        self._queue: deque[Input] = deque()
        self._begin = "start"
        """Why the next input has to be preceded by a beginning; empty when it has not."""
        self._begin_at = 0.0
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        # What follows is the thread's.
        self._descriptor: int | None = None
        self._size = 0
        self._sum = ""
        self._asked = False

    def start(self, pool: Pool) -> None:
        """Begin to write; `pool` is the one whose inputs are noted."""
        self._pool = pool
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end; blocks for as long as that takes, 5 s at most."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def note(self, entry: Input) -> None:
        """Take one input that the pool is about to be told. Never waits, never raises."""
        if self._begin:
            if self._pool is None or entry[1] < self._begin_at:
                self.counters["lost"] += 1
                return
            begin = tape.beginning(self._pool, entry[1], self._wall(), self._begin)
            self._begin = ""
            self._queue.append(begin)
        elif len(self._queue) >= QUEUED:
            self._queue.clear()
            self._begin = "lost"
            self.counters["lost"] += QUEUED
            return
        self._queue.append(entry)

    def status(self) -> dict[str, Any]:
        """What status shows."""
        return {"file": str(self.path), "fault": self.fault or None, **self.counters}

    # --- the thread

    def _run(self) -> None:
        while True:
            self._wake.wait(FLUSH)
            ending = self._ending
            try:
                self._write_out()
            except OSError as error:
                self._failed(error.strerror or str(error))
            except Exception as error:
                self._failed(f"internal error: {type(error).__name__}")
                self._say(logging.ERROR, "internal", "recording: failed", error=error)
            if ending:
                self._close()
                return

    def _write_out(self) -> None:
        lines: list[bytes] = []
        while self._queue:
            try:
                entry = self._queue.popleft()
            except IndexError:  # the loop gave up what waited
                break
            if entry[0] == "begin":
                self._flush(lines)
                self._turn(entry[-1])
            elif self._descriptor is None:
                self.counters["lost"] += 1
                continue
            line, self._sum = tape.encode(entry, self._sum)
            if self._size + len(line) > self._most:
                self._flush(lines)
                self._too_full(entry)
                continue
            self._size += len(line)
            lines.append(line)
            if len(lines) % SLICE == 0:
                time.sleep(0)
        self._flush(lines)
        if self._size > self._most * 0.9 and not self._asked:
            # The loop precedes its next input with a beginning, which then opens the next file.
            self._asked = True
            self._begin = "full"

    def _turn(self, why: str) -> None:
        """Open the file that a beginning goes to: the same one, or when that is full the next."""
        self._asked = False
        if self._descriptor is None:
            self._open()
        if why == "full" or self._size > self._most * 0.9 or self._of_another_version():
            self._close()
            os.replace(self.path, self.before)
            self._open()
        if self.fault:
            _log.info("recording: written again")
        self.fault = ""

    def _too_full(self, entry: Input) -> None:
        if entry[0] == "begin" and self._size == 0:
            self._failed("the hosts known do not fit: raise discovery.record_bytes")
            return
        self.counters["lost"] += 1
        self._close()
        self._begin = "full"

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            # In a handover the old generation writes to its end.
            raise OSError(error.errno, "another process writes it") from None
        self._size = os.fstat(self._descriptor).st_size
        # A line that a kill or a full disk cut off would stand in the middle.
        end = self._size
        while end > 0:
            start = max(0, end - (64 << 10))
            found = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < self._size:
            self._size = end
            os.ftruncate(self._descriptor, end)

    def _of_another_version(self) -> bool:
        assert self._descriptor is not None
        head = os.pread(self._descriptor, 200, 0)
        return head != b"" and tape.format_of(head) != tape.FORMAT

    def _flush(self, lines: list[bytes]) -> None:
        data = memoryview(b"".join(lines))
        count = len(lines)
        lines.clear()
        while data:
            assert self._descriptor is not None
            data = data[os.write(self._descriptor, data) :]
        self.counters["lines"] += count

    def _failed(self, reason: str) -> None:
        self.fault = f"{self.path} cannot be written ({reason})"
        self._say(logging.ERROR, reason, f"recording: {self.fault}; it begins anew when it can")
        self._close()
        self._queue.clear()
        self._begin_at = time.monotonic() + RETRY
        self._begin = "lost"

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
