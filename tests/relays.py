"""A relay before a real server: holds its answers back, or says something else in its place.

Owns two threads a connection, and ends them. What is relayed is not understood.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Relay:
    """`delay`: seconds that each piece of an answer is held back. `answer`: said instead of any."""

    def __init__(self, to_port: int) -> None:
        self.delay = 0.0
        self.answer: bytes | None = None
        self._to = to_port
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._run(self._accept)

    def close(self) -> None:
        """End it with all its connections."""
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, what: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                self._run(self._up, client, server)
                self._run(self._down, server, client)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.delay:
                    time.sleep(self.delay)
                client.sendall(data if self.answer is None else self.answer)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
