"""The access log: one JSON line a request, written in batches off the hot path (contract 11.3).

Owns the layout of an entry, the format of a line and what happens when the lines cannot be
written: they are dropped and counted, and traffic never waits. Lines are formatted on the event
loop in small slices (a formatting thread would hold the GIL for up to its switch interval of
5 ms); a thread does nothing but the writes, which let the GIL go. It does not rotate files
(`reopen` serves those who do) and does not decide what a request's status or reason is.
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
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii

# What the data path appends, once a request, when the exchange is over. A plain tuple, because
# building a NamedTuple costs ten times as much. In this order:
Entry = tuple[
    float,  # start of the request: time.monotonic() seconds (loop.time() is the same clock)
    float,  # duration in seconds, to the last byte given to the downstream socket
    str,  # client address, as the gateway believes it
    bytes,  # method
    bytes,  # hostname, normalised
    bytes,  # request target as received
    str,  # protocol: "HTTP/1.1"
    int,  # status sent; 0 when the client went away before one was
    int,  # bytes of the request body received
    int,  # bytes of the response body sent
    bytes,  # request id
    str | None,  # app id
    str | None,  # host id
    str | None,  # the reason of an error of our own (smartgw.errors)
    bytes | None,  # User-Agent
]

FLUSH_INTERVAL = 0.1
# A slice of 256 lines holds the loop for well under a millisecond.
SLICE = 256
MAX_ENTRIES = 32_768
MAX_PENDING_BYTES = 4 << 20
# Bounded, and emptied when full: hostnames are chosen by outsiders.
MAX_REMEMBERED = 16_384
MAX_STAMPS = 1_024


class Formatter:
    """Turns entries into JSON lines. With `query` false only `?` is left of a query.

    Queries often carry secrets (tokens, signed links), so they are logged only when asked for.
    """

    def __init__(self, *, query: bool = False) -> None:
        self._query = query
        self._stamps: dict[int, str] = {}
        self._remembered: dict[str | bytes | None, str] = {}

    def lines(self, entries: Iterable[Entry], wall_offset: float) -> tuple[bytes, int]:
        """The lines of `entries` as ASCII, and how many entries could not be formatted.

        `wall_offset` is what to add to a monotonic time to get unix seconds.
        """
        done: list[str] = []
        failed = 0
        for entry in entries:
            try:
                done.append(self._line(entry, wall_offset))
            except (TypeError, ValueError, OverflowError, OSError):
                failed += 1
        return "".join(done).encode("ascii"), failed

    def _line(self, entry: Entry, wall_offset: float) -> str:
        (
            start,
            duration,
            client,
            method,
            hostname,
            target,
            protocol,
            status,
            received,
            sent,
            request_id,
            app_id,
            host_id,
            reason,
            user_agent,
        ) = entry
        if not self._query and b"?" in target:
            target = target[: target.index(b"?") + 1]
        moment = int((start + wall_offset) * 1000)
        stamp = self._stamps.get(moment) or self._stamp(moment)
        known = self._remembered
        # Strings that come again and again are escaped once; the others each time.
        return (
            f'{{"time":"{stamp}","duration_ms":{int(duration * 1e6) / 1000}'
            f',"client":{known.get(client) or self._remember(client)}'
            f',"method":{known.get(method) or self._remember(method)}'
            f',"hostname":{known.get(hostname) or self._remember(hostname)}'
            f',"target":{encode_basestring_ascii(target.decode("latin-1"))}'
            f',"protocol":{known.get(protocol) or self._remember(protocol)}'
            f',"status":{status},"received":{received},"sent":{sent}'
            f',"request_id":{encode_basestring_ascii(request_id.decode("latin-1"))}'
            f',"app_id":{known.get(app_id) or self._remember(app_id)}'
            f',"host_id":{known.get(host_id) or self._remember(host_id)}'
            f',"reason":{known.get(reason) or self._remember(reason)}'
            f',"user_agent":{known.get(user_agent) or self._remember(user_agent)}}}\n'
        )

    def _stamp(self, moment: int) -> str:
        """Write a moment, unix ms, by RFC 3339; many requests share one."""
        second, millis = divmod(moment, 1000)
        if len(self._stamps) >= MAX_STAMPS:
            self._stamps.clear()
        text = time.strftime(f"%Y-%m-%dT%H:%M:%S.{millis:03d}Z", time.gmtime(second))
        self._stamps[moment] = text
        return text

    def _remember(self, value: str | bytes | None) -> str:
        if value is None:
            text = "null"
        else:
            text = encode_basestring_ascii(
                value if isinstance(value, str) else value.decode("latin-1")
            )
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        if len(text) <= 256:
            self._remembered[value] = text
        return text


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
