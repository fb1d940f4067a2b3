"""Thousands of client connections from many loopback addresses, held by one thread.

Owns how they are opened, at which rate, and what became of them. What they say is the drills'.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Sequence


def addresses(count: int, first: int = 2) -> list[str]:
    """Loopback addresses that nobody else here uses."""
    return [f"127.0.0.{first + number}" for number in range(count)]


class Many:
    """Open connections; `answers` counts the status lines that came, `ended` how many are over."""

    def __init__(self, port: int) -> None:
        self._port = port
        # Not poll, which looks at each of them each time: long enough inside the kernel to hold up
        # whoever measures on the same core.
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self.answers: Counter[str] = Counter()
        self.retry_after = 0
        self.ended = 0
        self.refused = 0

    @property
    def open(self) -> int:
        """How many have not ended, as far as was looked at."""
        return len(self._open)

    def add(self, count: int, sources: Sequence[str], say: bytes, rate: float = 2_000.0) -> None:
        """Open `count` more, in turn from the sources, and have each say this."""
        start = time.monotonic()
        for number in range(count):
            sock = socket.socket()
            try:
                sock.settimeout(5)
                sock.bind((sources[number % len(sources)], 0))
                sock.connect(("127.0.0.1", self._port))
                sock.sendall(say)
            except OSError:
                self.refused += 1
                sock.close()
            else:
                sock.setblocking(False)
                self._open[sock.fileno()] = sock
                self._poll.register(sock.fileno(), select.EPOLLIN)
            ahead = start + number / rate - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)

    def look(self, seconds: float = 0.0) -> None:
        """Take in what has come, for this long."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            for fd, _ in self._poll.poll(min(left, 0.2), max(1, len(self._open))):
                self._take(fd)
            if left <= 0:
                return

    def answered(self) -> int:
        """Take in what has come, and return how many answers have come by now."""
        self.look()
        return self.answers.total()

    def close(self) -> None:
        """End all."""
        for fd in list(self._open):
            self._end(fd)
        self._poll.close()

    def _take(self, fd: int) -> None:
        try:
            data = self._open[fd].recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended += 1
            self._end(fd)
            return
        for line in data.split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 "):
                self.answers[line[9:12].decode()] += 1
            elif line.lower().startswith(b"retry-after:"):
                self.retry_after += 1

    def _end(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._open.pop(fd).close()
