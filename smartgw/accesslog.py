"""The access log: lines written in batches off the hot path (contract 11.3).

Owns when and where lines are written, and what happens when they cannot be: they are dropped and
counted, and traffic never waits. Lines are made on the event loop in small slices (a thread would
hold the GIL for up to its switch interval of 5 ms); a thread does nothing but the writes, which
let the GIL go. It does not rotate files: `reopen` serves those who do.
"""

import asyncio
import os
import queue
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from smartgw.logline import Entry, Formatter

FLUSH_INTERVAL = 0.1
# A slice of 256 lines holds the loop for well under a millisecond.
SLICE = 256
MAX_ENTRIES = 32_768
MAX_PENDING_BYTES = 4 << 20


class _Writer(threading.Thread):
    """Writes whole batches to one descriptor; loses them rather than ever raising.

    `path` None is standard output. A file that was deleted or moved away is opened anew.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__(name="accesslog", daemon=True)
        self._path = path
        self._queue: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._fd = -1
        self._torn = False
        self._reopen = False
        self._is_pipe = False
        # Each is written by one thread only, so no lock is needed to read them.
        self.queued_bytes = 0
        self.done_bytes = 0
        self.written = 0
        self.dropped = 0

    def open(self) -> None:
        """Raises OSError when the file cannot be opened."""
        if self._path is None:
            self._fd = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
            self._is_pipe = stat.S_ISFIFO(os.fstat(self._fd).st_mode)
            return
        # Without O_NONBLOCK the open of a FIFO that nobody reads would hang.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, 0o640)
        self._is_pipe = stat.S_ISFIFO(os.fstat(self._fd).st_mode)

    def put(self, data: bytes, lines: int) -> None:
        self.queued_bytes += len(data)
        self._queue.put((data, lines))

    def reopen(self) -> None:
        self._reopen = True

    def finish(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            data, lines = item
            written = self._write(data)
            done = lines if written == len(data) else data.count(b"\n", 0, written)
            self.written += done
            self.dropped += lines - done
            self.done_bytes += len(data)
        self._close()

    def _write(self, data: bytes) -> int:
        """How many bytes of `data` were written."""
        try:
            self._follow_file()
        except OSError:
            return 0
        # A batch that was cut in the middle of a line must not spoil the next one's first.
        lead = 1 if self._torn else 0
        data = b"\n" + data if lead else data
        view = memoryview(data)
        done = 0
        try:
            while done < len(view):
                try:
                    done += os.write(self._fd, view[done : self._piece_end(data, done)])
                except BlockingIOError:
                    self._wait_for_room()
        except (OSError, ValueError):
            pass
        written = max(0, done - lead)
        if done:
            self._torn = written > 0 and data[done - 1] != 0x0A
        return written

    def _wait_for_room(self) -> None:
        # Not select(), which takes no descriptor from 1,024 up: a busy gateway has them.
        room = select.poll()
        room.register(self._fd, select.POLLOUT)
        room.poll()

    def _piece_end(self, data: bytes, start: int) -> int:
        """Workers may share a pipe: there only what is no longer than PIPE_BUF stays in one piece
        (pipe(7)), so lines leave in such pieces.
        """
        end = data.rfind(b"\n", start, start + select.PIPE_BUF) + 1 if self._is_pipe else 0
        return end or len(data)

    def _follow_file(self) -> None:
        if self._path is None:
            return
        if self._fd >= 0 and not self._reopen and self._is_current():
            return
        self._reopen = False
        self._close()
        self.open()
        self._torn = False

    def _is_current(self) -> bool:
        try:
            there = os.stat(self._path or "")
        except OSError:
            return False
        ours = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) or not stat.S_ISREG(
            ours.st_mode
        )

    def _close(self) -> None:
        if self._path is not None and self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class AccessLog:
    """`append(entry)` is all that the hot path calls: as cheap as a deque's own append.

    `sink` is "stdout" (or "-"), "off", or the path of a file. `written` and `dropped` count lines.
    """

    append: Callable[[Entry], None]

    def __init__(
        self,
        sink: str,
        *,
        query: bool = False,
        max_entries: int = MAX_ENTRIES,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self._entries: deque[Entry] = deque(maxlen=0 if sink == "off" else None)
        self.append = self._entries.append
        self._formatter = Formatter(query=query)
        self._max_entries = max_entries
        self._max_pending = max_pending_bytes
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writer: _Writer | None = None
        if sink != "off":
            self._writer = _Writer(None if sink in ("stdout", "-") else sink)

    @property
    def written(self) -> int:
        return self._writer.written if self._writer else 0

    @property
    def dropped(self) -> int:
        return self._dropped + (self._writer.dropped if self._writer else 0)

    def start(self) -> None:
        """Begin to flush on the running loop. Raises OSError when the file cannot be opened."""
        if self._writer is None:
            return
        self._writer.open()
        self._writer.start()
        self._schedule(asyncio.get_running_loop(), FLUSH_INTERVAL)

    def reopen(self) -> None:
        """Open the file anew before the next batch: for log rotation, on SIGHUP."""
        if self._writer is not None:
            self._writer.reopen()

    async def stop(self, patience: float = 1.0) -> None:
        """Write what is left; give up on a sink that takes nothing for `patience` seconds."""
        if self._writer is None or self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        while self._entries:
            self._flush_slice()
        self._writer.finish()
        await asyncio.to_thread(self._writer.join, patience)

    def _schedule(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self._timer = loop.call_later(delay, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flush_slice()
        # The rest of a long queue comes in the next turns of the loop, between other work.
        self._schedule(loop, 0.0 if len(self._entries) >= SLICE else FLUSH_INTERVAL)

    def _flush_slice(self) -> None:
        assert self._writer is not None
        entries = self._entries
        while len(entries) > self._max_entries:
            entries.popleft()
            self._dropped += 1
        batch = [entries.popleft() for _ in range(min(len(entries), SLICE))]
        if not batch:
            return
        if self._writer.queued_bytes - self._writer.done_bytes > self._max_pending:
            self._dropped += len(batch)
            return
        data, failed = self._formatter.lines(batch, time.time() - time.monotonic())
        self._dropped += failed
        self._writer.put(data, len(batch) - failed)
