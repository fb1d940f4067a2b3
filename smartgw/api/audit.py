"""The audit log: one JSON line a change that the API made, with who, what, before and after (10.1).

Owns the form and the bound of a line, and that it is written before the change is answered. A line
that cannot be written is counted and told, and undoes nothing. It holds no secret, since records
hold none. It does not rotate files: one that was moved away is made anew.
"""

import asyncio
import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from smartgw.api.answers import rfc3339
from smartgw.api.tokens import Caller
from smartgw_hosts.quiet_log import QuietLog

MAX_LINE: Final = 64 << 10
"""Bytes; what is longer is told without before and after."""
_MAX_WAITING: Final = 256
_PATIENCE: Final = 2.0
"""Seconds that a change waits for its line; a disk that is slower still gets it, later."""

_log = logging.getLogger(__name__)


class Audit:
    """`sink` is "stderr", "stdout", "off" or a path. Attributes: `written`, `lost` count lines."""

    def __init__(
        self, sink: str, gateway: str, cluster: str, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.written = 0
        self.lost = 0
        self._sink = sink
        self._names = {"gateway": gateway, "cluster": cluster}
        self._wall = wall
        self._say = QuietLog(60.0, _log)
        self._waiting = 0
        self._lines: queue.SimpleQueue[tuple[bytes, Callable[[str], None]] | None]
        self._lines = queue.SimpleQueue()
        # Not of a pool: a sink that takes nothing must hold up neither others nor the end.
        self._thread = threading.Thread(target=self._write, name="audit", daemon=True)
        self._running = False

    def close(self) -> None:
        """End the thread when what waits is written."""
        if self._running:
            self._lines.put(None)

    async def note(
        self,
        caller: Caller,
        request_id: str,
        action: str,
        subject: Mapping[str, str],
        before: Any,
        after: Any,
    ) -> None:
        """Write a line: `action` ("app.replace") on `subject`, JSON values `before` and `after`.

        Never raises for what the disk does.
        """
        if self._sink == "off":
            return
        line = {
            "time": rfc3339(self._wall()),
            **self._names,
            "issuer": caller.issuer,
            "subject": caller.subject,
            "request_id": request_id,
            "action": action,
            **subject,
            "before": before,
            "after": after,
        }
        data = _line(line)
        if len(data) > MAX_LINE:
            data = _line({**line, "before": None, "after": None, "cut": True})
        if self._waiting >= _MAX_WAITING:
            self._done("too many wait to be written")
            return
        if not self._running:
            self._running = True
            self._thread.start()
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def done(fault: str) -> None:
            self._waiting -= 1
            self._done(fault)
            if not written.done():
                written.set_result(None)

        self._waiting += 1

        def tell(fault: str) -> None:
            loop.call_soon_threadsafe(done, fault)

        self._lines.put((data, tell))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await written

    def _done(self, fault: str) -> None:
        if fault:
            self.lost += 1
            self._say(logging.ERROR, "audit", f"audit: a line is lost: {self._sink}: {fault}")
        else:
            self.written += 1

    def _write(self) -> None:
        while (item := self._lines.get()) is not None:
            data, done = item
            fault = ""
            try:
                _append(self._sink, data)
            except (OSError, ValueError) as error:
                fault = getattr(error, "strerror", None) or str(error)
            # The loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                done(fault)


def _line(members: Mapping[str, Any]) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


def _append(sink: str, data: bytes) -> None:
    """One write, so that lines of several processes do not mix (O_APPEND, write(2))."""
    if sink in ("stderr", "stdout"):
        stream = sys.__stderr__ if sink == "stderr" else sys.__stdout__
        _whole(2 if stream is None else stream.fileno(), data)
        return
    # Opened each time: changes are rare, and a file that was moved away is made anew.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(sink, flags, 0o640)
    try:
        _whole(descriptor, data)
    finally:
        os.close(descriptor)


def _whole(descriptor: int, data: bytes) -> None:
    if os.write(descriptor, data) != len(data):
        raise OSError(0, "cut short")
