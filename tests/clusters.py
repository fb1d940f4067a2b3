"""Several clusters for black-box tests: one bus, a directory in a file, and between each pair of
gateways a wire that can be cut in every way.

Gateways are real `smartgw serve` processes (tests/gateway.py). What the directory lists for a
cluster is its wire's port, so that nobody reaches its gateway but over the wire; clients connect to
the gateway itself. Decides nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from smartgw_hosts.owner import owner
from tests.gateway import Cluster, Config, Gateway, Host, identity_of, seed_file, wait_until
from tests.raw_http import Answer
from tests.servers import Nats
from tests.upstreams import Script, serve

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
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if self.mode == "hang" or (back and self.mode == "mute"):
                    continue
                if back and self.mode == "die":
                    _reset(*pair)
                    break
                other.sendall(data)
            else:
                with contextlib.suppress(OSError):
                    other.shutdown(socket.SHUT_WR)
                    return
        _reset(*pair)
        with self._lock:
            if pair in self._pairs:
                self._pairs.discard(pair)
                for sock in pair:
                    sock.close()


def _reset(*socks: socket.socket) -> None:
    """End connections with RST, whoever is reading from them."""
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.shutdown(socket.SHUT_RDWR)


class Clusters:
    """Clusters c1, c2, ... with one gateway each, and their directory.

    `changes` are laid over every gateway's configuration.
    """

    def __init__(self, count: int, changes: Config | None = None) -> None:
        self.nats = Nats().start()
        self.ids = [f"c{n}" for n in range(1, count + 1)]
        self.directory: Path = self.nats.folder / "clusters.json"
        self.clusters: dict[str, Cluster] = {}
        self.gateways: dict[str, Gateway] = {}
        self.wires: dict[str, Wire] = {}
        self._apps = iter(range(1_000_000))
        self._changes = dict(changes or {})
        self.write([])
        try:
            for name in self.ids:
                cluster = self.clusters[name] = Cluster(name, self.nats)
                self.gateways[name] = cluster.gateway(self._config(name))
                self.wires[name] = Wire(self.gateways[name].public)
            self.list()
        except BaseException:
            self.stop()
            raise

    def _config(self, name: str) -> Config:
        seed = seed_file(self.nats.folder / f"{name}.seed", f"cluster {name}")
        peers = {"file": str(self.directory)}
        return {**self._changes, "peers": peers, "identity": {"seed_file": str(seed)}}

    def entry(self, name: str, **changes: Any) -> dict[str, Any]:
        """A cluster as the directory lists it."""
        key = identity_of(f"cluster {name}").public_key.text
        entry = {"id": name, "gateways": [self.wires[name].url], "keys": [key], "state": "active"}
        return {**entry, **changes}

    def write(self, entries: Sequence[Mapping[str, Any]], **switches: bool) -> None:
        """Swap the directory's file."""
        fresh = self.directory.with_suffix(".new")
        fresh.write_text(json.dumps({"clusters": entries, **switches}))
        os.replace(fresh, self.directory)

    def list(self, *ids: str, **switches: bool) -> None:
        """List these clusters, by default all, and wait until every gateway goes by it."""
        entries = [self.entry(name) for name in ids or self.ids]
        self.write(entries, **switches)
        wanted = {**{"affinity": True, "failover": True}, **switches}

        def follows(gateway: Gateway) -> bool:
            status, body = gateway.internal("/api/v3/discovery/clusters")
            seen = json.loads(body)
            return (
                status == 200
                and [cluster["id"] for cluster in seen["clusters"]] == [e["id"] for e in entries]
                and all(seen[name] == value for name, value in wanted.items())
            )

        for gateway in self.gateways.values():
            wait_until(partial(follows, gateway), what="the list in force")

    def app(self, of: str) -> str:
        """An app that this cluster owns and no other test uses."""
        return next(app for n in self._apps if owner(app := f"app-{n}", self.ids) == of)

    def host(self, at: str, app: str, script: Script = serve, **options: Any) -> Host:
        """A host of one cluster for this app, healthy at its gateway."""
        return self.clusters[at].host(script, app=app, **options)

    def heal(self) -> None:
        """Let everything pass again, and wait until no peer is set aside."""
        for wire in self.wires.values():
            wire.set("pass")

    def stop(self) -> None:
        """End everything."""
        for wire in self.wires.values():
            wire.close()
        for cluster in self.clusters.values():
            cluster.stop()
        self.nats.stop()


def names(answer: Answer, *fields: str) -> dict[str, str]:
    """Some fields of an answer, "" for those that are not there."""
    return {name: answer.one(name) for name in fields}


@contextlib.contextmanager
def clusters(count: int, changes: Config | None = None) -> Iterator[Clusters]:
    """Clusters for one test or one file of tests."""
    made = Clusters(count, changes)
    try:
        yield made
    finally:
        made.stop()


def answering_as(name: str) -> Callable[..., None]:
    """A script whose answers say which cluster's host it is."""

    def script(connection: Any) -> None:
        while True:
            request = connection.request()
            body = b"" if request.method == "HEAD" else name.encode()
            connection.reply(body, "200 OK", f"X-Host-Of: {name}")

    return script
