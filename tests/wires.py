"""Clusters whose gateways reach each other over wires that can be cut in every way.

What the directory lists for a cluster is its wire's port; clients connect to the gateway itself.
Decides nothing.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.federation import Federation
from tests.gateway import Config, Host, wait_until
from tests.raw_http import Answer
from tests.upstreams import Connection, Script

_RESET = struct.pack("ii", 1, 0)


class Wire:
    """A TCP relay on loopback to one gateway. `mode` may be changed at any time:

    pass; refuse (nothing listens, open connections are reset); reset (each connection is accepted
    and reset, open ones too); hang (connections are accepted, nothing that comes is passed on);
    drop (SYNs are dropped); mute (what the gateway says is not passed on);
    die (a connection is reset with the first byte that the gateway says on it).
    """

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._ends: dict[tuple[socket.socket, socket.socket], int] = {}
        self._fillers: list[socket.socket] = []
        self._listening: socket.socket | None = None
        self.port = 0
        self.accepted = 0
        self.mode = "pass"
        self._listen()

    @property
    def url(self) -> str:
        """What the directory lists."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, mode: str) -> None:
        """Change the mode, for open connections too."""
        was, self.mode = self.mode, mode
        if was == "drop":
            for sock in self._fillers:
                sock.close()
            self._fillers.clear()
        if mode in ("refuse", "reset", "drop"):
            self._cut()
        if mode in ("refuse", "drop"):
            self._unlisten()
        elif self._listening is None:
            self._listen()
        if mode == "drop":
            self._block()

    def close(self) -> None:
        """End everything."""
        self.set("refuse")

    def _listen(self, backlog: int = 512) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(backlog)
        self.port = listening.getsockname()[1]
        self._listening = listening
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def _unlisten(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    def _block(self) -> None:
        """Put a socket with a full queue there: Linux drops the SYNs that come to it."""
        blocked = socket.socket()
        blocked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        blocked.bind(("127.0.0.1", self.port))
        blocked.listen(0)
        self._fillers.append(blocked)
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    def _cut(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            _reset(*pair)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                down, _ = listening.accept()
            except OSError:
                return
            self.accepted += 1
            if self.mode == "reset":
                _reset(down)
                down.close()
                continue
            up = socket.socket()
            try:
                up.connect(self._to)
            except OSError:
                _reset(down)
                down.close()
                up.close()
                continue
            for sock in (down, up):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (down, up)
            with self._lock:
                self._pairs.add(pair)
            for one, other in (pair, pair[::-1]):
                pump = threading.Thread(target=self._pump, args=(pair, one, other), daemon=True)
                pump.start()

    def _pump(
        self, pair: tuple[socket.socket, socket.socket], one: socket.socket, other: socket.socket
    ) -> None:
        back = one is pair[1]
        try:
            while data := one.recv(1 << 16):
                if self.mode == "hang" or (back and self.mode == "mute"):
                    continue
                if back and self.mode == "die":
                    raise ConnectionResetError
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            _reset(*pair)
        with self._lock:
            self._ends[pair] = self._ends.get(pair, 0) + 1
            if self._ends[pair] == 2:
                del self._ends[pair]
                self._pairs.discard(pair)
                for sock in pair:
                    sock.close()


def _reset(*socks: socket.socket) -> None:
    """End connections with RST, whoever is reading from them."""
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.shutdown(socket.SHUT_RDWR)


class Wired(Federation):
    """Clusters with one gateway each, every one behind a wire."""

    def __init__(
        self,
        folder: Path,
        ids: Sequence[str] = ("c1", "c2", "c3"),
        *,
        settings: Config | None = None,
    ) -> None:
        super().__init__(folder, ids, settings=settings, enrolled=400)
        self.wires = {one: Wire(("127.0.0.1", port)) for one, port in self.links.items()}
        for one, wire in self.wires.items():
            self.urls[one] = [wire.url]
        self.follow()
        # Whose writes show that a cluster is reached again.
        self._witnesses = {one: self.app(one) for one in ids}
        for app in self._witnesses.values():
            self.hosts_of(app)

    def stop(self) -> None:
        for wire in self.wires.values():
            wire.close()
        super().stop()

    def heal(self) -> None:
        """Let everything pass, and wait until every gateway reaches every other again."""
        for wire in self.wires.values():
            wire.set("pass")
        for here in self.gateways:
            for there, app in self._witnesses.items():
                wait_until(partial(self._reaches, here, app), what=f"{here} reaches {there}")

    def _reaches(self, here: str, app: str) -> bool:
        return self.ask(here, app, "/witness", "POST").status == 200

    def hosts_of(self, app: str, *ids: str) -> dict[str, Host]:
        """A host for this app in each of these clusters (all, if none is named)."""
        return {one: self.host(one, app, answering_as(one)) for one in ids or self.gateways}

    def ask(self, at: str, app: str, target: str = "/", method: str = "GET", **more: Any) -> Answer:
        """One request to the gateway of a cluster; raises TimeoutError after 20 s."""
        fields = more.pop("fields", ())
        return self.gateways[at].ask(
            self.hostname(app), target, method, *fields, **{"timeout": 20.0, **more}
        )


def answering_as(name: str, status: str = "200 OK", *fields: str) -> Script:
    """A script whose answers say whose host it is."""

    def script(connection: Connection) -> None:
        while True:
            request = connection.request()
            body = b"" if request.method == "HEAD" else name.encode()
            connection.reply(body, status, f"X-Host-Of: {name}", *fields)

    return script


def arrived(host: Host, target: str) -> int:
    """How many requests for this target came to a host."""
    return sum(r.raw_target.decode() == target for r in list(host.upstream.requests))
