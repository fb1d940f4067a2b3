"""Scripted upstreams of raw bytes: they prove a host's key by the real Responder, then do
exactly what a test's script says.

A script is a plain function that is called in a thread of its own for every accepted
connection. `Connection.head()` and `.request()` answer challenges on the way and return only
real requests, which are recorded. It decides nothing about routing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from smartgw_hosts import challenge

Fields = list[tuple[bytes, bytes]]
Script = Callable[["Connection"], None]

HANDSHAKE = (
    "GET /ws HTTP/1.1\r\nHost: {hostname}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class BadRequest(Exception):
    """The gateway sent something that RFC 9112 does not allow; the argument says what."""


@dataclass(slots=True)
class Request:
    """One request as it arrived. `body` and `trailers` are filled when they were read."""

    method: str
    raw_target: bytes
    fields: Fields
    head: bytes
    connection: int
    body: bytes = b""
    trailers: Fields = field(default_factory=list)
    whole: bool = False

    def all(self, name: str) -> list[bytes]:
        """Values of every field called `name`, in order, any case."""
        wanted = name.lower().encode()
        return [value for key, value in self.fields if key.lower() == wanted]

    def one(self, name: str) -> str:
        """The value of the only field called `name`; "" when there is none."""
        values = self.all(name)
        assert len(values) < 2, f"{name} stands {len(values)} times"
        return values[0].decode("latin1") if values else ""


class Connection:
    """One accepted connection in the hands of a script."""

    def __init__(self, upstream: Upstream, sock: socket.socket, number: int) -> None:
        self.upstream, self.socket, self.number = upstream, sock, number
        self.buffer = bytearray()

    def more(self) -> None:
        """Wait for bytes. Raises EOFError when the gateway closed, OSError when it reset."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise EOFError
        self.buffer += data

    def line(self) -> bytes:
        """One line without its CRLF. Raises BadRequest for a bare CR or LF."""
        while (end := self.buffer.find(b"\n")) < 0:
            self.more()
        line = bytes(self.buffer[: end + 1])
        del self.buffer[: end + 1]
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise BadRequest(f"line end {line[:60]!r}")
        return line[:-2]

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        while len(self.buffer) < count:
            self.more()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def head(self) -> Request:
        """The head of the next request that is no challenge; challenges are answered on the way."""
        while True:
            request = self._head()
            if request.raw_target != challenge.PATH or self.upstream.responder is None:
                self.upstream.record(request)
                return request
            self._prove(request)

    def prove(self) -> None:
        """Answer exactly one challenge."""
        self._prove(self._head())

    def read_body(self, request: Request) -> Request:
        """Read the rest of a request whose head was taken."""
        if request.all("transfer-encoding"):
            parts = []
            while data := self.chunk():
                parts.append(data)
            request.body = b"".join(parts)
            while line := self.line():
                name, _, value = line.partition(b":")
                request.trailers.append((name, value.strip(b" \t")))
        else:
            request.body = self.take(int(request.one("content-length") or 0))
        request.whole = True
        return request

    def chunk(self) -> bytes:
        """The next chunk, b"" for the last one (its trailers still to be read)."""
        size = self.line().split(b";")[0]
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size):
            raise BadRequest(f"chunk size {size[:40]!r}")
        data = self.take(int(size, 16))
        if data and self.take(2) != b"\r\n":
            raise BadRequest("chunk end")
        return data

    def request(self) -> Request:
        """The next whole request that is no challenge."""
        return self.read_body(self.head())

    def send(self, *parts: bytes) -> None:
        """Send all parts as one write."""
        self.socket.sendall(b"".join(parts))

    def reply(self, body: bytes = b"ok", status: str = "200 OK", *fields: str) -> None:
        """Send a plain answer with a Content-Length."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
        self.send("\r\n".join(lines).encode("latin1"), b"\r\n\r\n", body)

    def reset(self) -> None:
        """Close with RST."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Close with FIN."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def ended(self, within: float) -> bool:
        """Whether the gateway closes this connection within so many seconds; bytes are dropped."""
        until = time.monotonic() + within
        try:
            while (left := until - time.monotonic()) > 0:
                self.socket.settimeout(left)
                if not self.socket.recv(1 << 18):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    def _head(self) -> Request:
        first = self.line()
        match = re.fullmatch(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([^ ]+) HTTP/1\.([01])", first)
        if match is None:
            raise BadRequest(f"request line {first[:80]!r}")
        lines = [first]
        fields: Fields = []
        while line := self.line():
            name, colon, value = line.partition(b":")
            if not colon or not re.fullmatch(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name):
                raise BadRequest(f"field line {line[:60]!r}")
            if re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value):
                raise BadRequest(f"control character in {value[:60]!r}")
            lines.append(line)
            fields.append((name, value.strip(b" \t")))
        request = Request(match[1].decode(), match[2], fields, b"\r\n".join(lines), self.number)
        self._check_framing(request)
        return request

    @staticmethod
    def _check_framing(request: Request) -> None:
        length, coding = request.all("content-length"), request.all("transfer-encoding")
        if len(request.all("host")) != 1:
            raise BadRequest(f"{len(request.all('host'))} Host fields")
        if length and coding:
            raise BadRequest("Content-Length and Transfer-Encoding")
        if coding and [value.lower() for value in coding] != [b"chunked"]:
            raise BadRequest(f"Transfer-Encoding {coding!r}")
        if len(length) > 1 or (length and not re.fullmatch(rb"[0-9]+", length[0])):
            raise BadRequest(f"Content-Length {length!r}")

    def _prove(self, request: Request) -> None:
        body = self.take(int(request.one("content-length") or 0))
        with self.upstream.lock:
            self.upstream.challenges.append((request, body))
            responder = self.upstream.responder
        if responder is None:
            raise EOFError
        status, answer = responder.answer(
            request.method.encode(),
            request.raw_target,
            request.fields,
            body,
            time.monotonic(),
            int(time.time() * 1000),
        )
        fields = ("Content-Type: application/json",)
        self.reply(answer, f"{status} {'OK' if status == 200 else 'Refused'}", *fields)


class Upstream:
    """A listening socket on loopback whose connections run `script`, which may be swapped."""

    def __init__(
        self,
        script: Script,
        *,
        responder: challenge.Responder | None = None,
        port: int = 0,
        narrow: bool = False,
    ) -> None:
        """`narrow`: the kernel takes only a few KiB that the script has not read."""
        self.narrow = narrow
        self.script = script
        self.responder = responder
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.challenges: list[tuple[Request, bytes]] = []
        self.errors: list[str] = []
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._socket: socket.socket | None = None
        self.port = port
        self.listen()

    @property
    def address(self) -> str:
        """What a host announces."""
        return f"http://127.0.0.1:{self.port}"

    def listen(self) -> None:
        """Open the listening socket (again, on the same port)."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.narrow:
            # Inherited by what is accepted. A segment of loopback would not fit into it.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(1024)
        self.port = listening.getsockname()[1]
        self._socket = listening
        thread = threading.Thread(target=self._accept, args=(listening,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones live on."""
        listening, self._socket = self._socket, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    def kill(self) -> None:
        """What a SIGKILL of the host does: nothing listens and every connection is reset."""
        self.refuse()
        with self.lock:
            connections = list(self._open)
        for sock in connections:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all threads and sockets."""
        self.kill()
        for thread in self._threads:
            thread.join(timeout=5)

    def record(self, request: Request) -> None:
        """Remember a request that is no challenge."""
        with self.lock:
            self.requests.append(request)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.accepted += 1
                self._open.add(sock)
                connection = Connection(self, sock, self.accepted)
            thread = threading.Thread(target=self._run, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, connection: Connection) -> None:
        connection.socket.settimeout(60)
        try:
            self.script(connection)
        except (EOFError, OSError):
            pass
        except BadRequest as error:
            with self.lock:
                self.errors.append(str(error))
            with contextlib.suppress(OSError):
                connection.send(
                    b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
        finally:
            with self.lock:
                self._open.discard(connection.socket)
            connection.socket.close()


def serve(connection: Connection) -> None:
    """Answer every request with JSON of what it was, as `/echo` of the demo app does."""
    while True:
        request = connection.request()
        body = json.dumps(
            {
                "method": request.method,
                "raw_target": request.raw_target.decode("latin1"),
                "headers": [[k.decode("latin1"), v.decode("latin1")] for k, v in request.fields],
                "body": len(request.body),
            }
        ).encode()
        fields = ("Content-Type: application/json",)
        connection.reply(body if request.method != "HEAD" else b"", "200 OK", *fields)


def answering(raw: bytes, *, then_close: bool = False) -> Script:
    """A script that answers every request with exactly these bytes."""

    def script(connection: Connection) -> None:
        while True:
            connection.request()
            connection.send(raw)
            if then_close:
                return

    return script


def each(behaviour: Callable[[Connection, Request], None]) -> Script:
    """A script that calls `behaviour` with the head of every request, its body still unread."""

    def script(connection: Connection) -> None:
        while True:
            behaviour(connection, connection.head())

    return script


def accept(
    connection: Connection, request: Request, extra: bytes = b"", fields: bytes = b""
) -> None:
    """Send a correct 101 with these field lines too, and `extra` in the same write."""
    key = request.one("sec-websocket-key").encode()
    proof = base64.b64encode(hashlib.sha1(key + GUID).digest())
    connection.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + proof + b"\r\n" + fields + b"\r\n" + extra
    )


def blackhole(upstream: Upstream) -> list[socket.socket]:
    """Put a socket with a full queue in an upstream's place: Linux drops SYNs that come to it."""
    upstream.kill()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", upstream.port))
    listening.listen(0)
    sockets = [listening]
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", upstream.port))
        sockets.append(filler)
    time.sleep(0.05)
    return sockets
