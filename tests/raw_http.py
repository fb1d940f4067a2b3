"""A downstream of raw bytes for black-box tests: sends exactly what it is told and reports
exactly what came.

Reading is strict (RFC 9112 framing, CRLF only), so that a sloppy answer of the gateway is seen.
It decides nothing about right or wrong: `Answer` carries what arrived and how it ended.
Blocking sockets, one thread a connection.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Framing = Literal["none", "length", "chunked", "close", "upgrade"]
Fields = list[tuple[bytes, bytes]]


class BadAnswer(Exception):
    """What came is not an HTTP/1 answer; the argument says where."""


@dataclass(slots=True)
class Answer:
    """One final answer (or an interim one, then `body` is empty)."""

    status: int
    reason: bytes
    fields: Fields
    head: bytes
    framing: Framing = "none"
    body: bytes = b""
    trailers: Fields = field(default_factory=list)
    interim: list[Answer] = field(default_factory=list)
    complete: bool = False

    def all(self, name: str) -> list[bytes]:
        """Values of every field called `name`, in order, any case."""
        wanted = name.lower().encode()
        return [value for key, value in self.fields if key.lower() == wanted]

    def one(self, name: str) -> str:
        """The value of the only field called `name`; "" when there is none."""
        values = self.all(name)
        assert len(values) < 2, f"{name} stands {len(values)} times"
        return values[0].decode("latin1") if values else ""


def parse_head(head: bytes) -> Answer:
    """Parse a status line and fields that end in an empty line (which may be cut off)."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = re.fullmatch(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?", lines[0])
    if match is None:
        raise BadAnswer(f"status line {lines[0][:80]!r}")
    fields: Fields = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name):
            raise BadAnswer(f"field line {line[:80]!r}")
        fields.append((name, value.strip(b" \t")))
    return Answer(int(match[1]), match[2] or b"", fields, head)


class Downstream:
    """One client connection. `got` is every byte that ever came."""

    def __init__(
        self, address: tuple[str, int], *, timeout: float = 10.0, receive_buffer: int | None = None
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.got = bytearray()
        self.ended: Literal["", "fin", "reset"] = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, *parts: bytes) -> None:
        """Send all parts as one write."""
        self.socket.sendall(b"".join(parts))

    def half_close(self) -> None:
        """Send FIN and keep reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with RST."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Close with FIN."""
        self.socket.close()

    def receive(self) -> bool:
        """Wait for more bytes; False when the other side ended. Raises TimeoutError."""
        if self.ended:
            return False
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            self.ended = "reset"
            return False
        if not data:
            self.ended = "fin"
            return False
        self.buffer += data
        self.got += data
        return True

    def readable(self, within: float) -> bool:
        """Whether anything (bytes or an end) is there within so many seconds."""
        return bool(self.buffer) or bool(select.select([self.socket], [], [], within)[0])

    def closed(self, within: float) -> bool:
        """Whether the other side ends within so many seconds; what it still sends is kept."""
        until = time.monotonic() + within
        before = self.socket.gettimeout()
        try:
            while not self.ended:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self.socket.settimeout(left)
                try:
                    self.receive()
                except TimeoutError:
                    return False
        finally:
            self.socket.settimeout(before)
        return True

    def rest(self) -> bytes:
        """Everything until the other side ends."""
        while self.receive():
            pass
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes, fewer when the other side ended first."""
        while len(self.buffer) < count and self.receive():
            pass
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def until(self, mark: bytes) -> bytes | None:
        """Bytes up to and with `mark`; None when the other side ended first."""
        while (end := self.buffer.find(mark)) < 0:
            if not self.receive():
                return None
        data = bytes(self.buffer[: end + len(mark)])
        del self.buffer[: end + len(mark)]
        return data

    def head(self) -> Answer:
        """The next head, interim or final. Raises BadAnswer when none comes."""
        head = self.until(b"\r\n\r\n")
        if head is None:
            raise BadAnswer(f"ended ({self.ended}) in the head: {bytes(self.buffer[:200])!r}")
        return parse_head(head)

    def answer(self, method: str = "GET") -> Answer:
        """The next final answer with its body; interim answers before it are in `.interim`."""
        answer = self.final_head(method)
        if answer.framing == "length":
            length = int(answer.one("content-length"))
            answer.body = self.take(length)
            answer.complete = len(answer.body) == length
        elif answer.framing == "chunked":
            answer.complete = self._chunked(answer)
        elif answer.framing == "close":
            answer.body = self.rest()
            answer.complete = self.ended == "fin"
        else:
            answer.complete = True
        return answer

    def final_head(self, method: str = "GET") -> Answer:
        """The next final head with the framing of its body decided (RFC 9112 6.3)."""
        interim: list[Answer] = []
        answer = self.head()
        while answer.status < 200 and answer.status != 101:
            interim.append(answer)
            answer = self.head()
        answer.interim = interim
        coding, length = answer.all("transfer-encoding"), answer.all("content-length")
        if coding and length:
            raise BadAnswer("both Content-Length and Transfer-Encoding")
        if answer.status == 101:
            answer.framing = "upgrade"
        elif method == "HEAD" or answer.status in (204, 304):
            answer.framing = "none"
        elif coding:
            if coding != [b"chunked"]:
                raise BadAnswer(f"Transfer-Encoding {coding!r}")
            answer.framing = "chunked"
        elif length:
            if len(length) > 1 or not length[0].isdigit():
                raise BadAnswer(f"Content-Length {length!r}")
            answer.framing = "length"
        else:
            answer.framing = "close"
        return answer

    def chunk(self) -> bytes | None:
        """The next chunk; b"" is the last one (its trailers still to be read); None when cut."""
        line = self.until(b"\r\n")
        if line is None:
            return None
        size = line[:-2].split(b";")[0]
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size):
            raise BadAnswer(f"chunk size {size[:40]!r}")
        count = int(size, 16)
        if count == 0:
            return b""
        data = self.take(count + 2)
        if len(data) < count + 2:
            return None
        if data[-2:] != b"\r\n":
            raise BadAnswer("chunk end")
        return data[:-2]

    def trailers(self) -> Fields | None:
        """The trailer section after the last chunk; None when cut."""
        fields: Fields = []
        while (line := self.until(b"\r\n")) is not None:
            if line == b"\r\n":
                return fields
            name, _, value = line[:-2].partition(b":")
            fields.append((name, value.strip(b" \t")))
        return None

    def _chunked(self, answer: Answer) -> bool:
        parts: list[bytes] = []
        while data := self.chunk():
            parts.append(data)
        answer.body = b"".join(parts)
        if data is None:
            return False
        trailers = self.trailers()
        answer.trailers = trailers or []
        return trailers is not None
