"""A cluster for black-box tests: a real nats-server, real `smartgw serve` processes and hosts
that prove their keys.

Hosts are in-process: scripted upstreams (tests/upstreams.py) with the SDK's own Responder,
announced with the SDK's own wire format; `Sidecar` is the real `smartgw host --raw`. Everything
listens on loopback and dies with the test process.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from smartgw.cli.endpoint import Endpoint, Unreachable, operator_token
from smartgw_hosts.challenge import Responder
from smartgw_hosts.identity import Identity
from smartgw_hosts.wire import Description, Kind, Message, encode
from tests.raw_http import Answer, Downstream
from tests.servers import Nats, Server, free_port
from tests.upstreams import Script, Upstream, serve

BASE_DOMAIN = "smart-app.test"
# Browsers resolve names under .localhost by themselves.
BROWSER_DOMAIN = "smart-app.localhost"
MakeHost = Callable[..., "Host"]
# What is verified is routed a moment later: changes of the table are gathered.
TABLE_SECONDS = 0.04
Config = Mapping[str, Mapping[str, object] | object]


def wait_until(
    condition: Callable[[], object], within: float = 20.0, what: str | Callable[[], object] = ""
) -> None:
    """Poll until `condition()` is true. Raises TimeoutError that says `what` was awaited, or what
    that call returns then.
    """
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            told = what() if callable(what) else what
            raise TimeoutError(f"not within {within} s: {told or condition}")
        time.sleep(0.01)


def toml(value: object) -> str:
    """A TOML value of a str, bool, number, list or table."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)


def identity_of(name: str) -> Identity:
    """The same key for the same name, so that failures can be looked at again."""
    return Identity.from_seed(hashlib.sha256(f"test host {name}".encode()).digest())


def seed_file(path: Path, name: str) -> Path:
    """Write the seed of `identity_of(name)` where the command line reads it."""
    seed = hashlib.sha256(f"test host {name}".encode()).digest()
    text = base64.urlsafe_b64encode(seed).decode().rstrip("=")
    path.touch(mode=0o600)
    path.write_text(f"smartgw-seed:{text}\n")
    return path


class Publisher:
    """Publishes on the bus over a plain socket: no event loop, no retries, no surprises."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.settimeout(None)
        self._lock = threading.Lock()
        self._send(b'CONNECT {"verbose":false,"headers":true,"name":"tests"}\r\n')
        threading.Thread(target=self._answer_pings, daemon=True).start()

    def publish(self, subject: str, payload: bytes, headers: bytes = b"") -> None:
        """Publish one message; lost silently when the bus is away, as UDP would be."""
        name, sizes = subject.encode(), (len(headers), len(headers) + len(payload))
        if headers:
            self._send(b"HPUB %s %d %d\r\n%s%s\r\n" % (name, *sizes, headers, payload))
        else:
            self._send(b"PUB %s %d\r\n%s\r\n" % (name, len(payload), payload))

    def close(self) -> None:
        """Leave the bus."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, data: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def _answer_pings(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(65536):
                if b"PING\r\n" in data:
                    self._send(b"PONG\r\n")


class Host:
    """One announced host with a scripted upstream.

    `apps` and `address` may be changed between announcements. `responder` makes one that lies;
    with `responds=False` challenges come to the script as requests.
    """

    def __init__(
        self,
        cluster: Cluster,
        host_id: str,
        apps: Sequence[str],
        script: Script = serve,
        *,
        identity: Identity | None = None,
        weight: int = 100,
        responder: Callable[[Host], Responder] | None = None,
        responds: bool = True,
        narrow: bool = False,
    ) -> None:
        self.cluster, self.host_id, self.apps, self.weight = cluster, host_id, tuple(apps), weight
        self.identity = identity or identity_of(host_id)
        self.boot, self.sequence = int(time.time() * 1000), 0
        self.upstream = Upstream(script, narrow=narrow)
        self.address = self.upstream.address
        self.responder = (responder or Host.honest)(self)
        if responds:
            self.upstream.responder = self.responder

    def honest(self) -> Responder:
        """The SDK's own responder for this host."""
        cluster_id = self.cluster.cluster_id
        return Responder(self.identity, self.host_id, cluster_id, lambda: {self.address})

    @property
    def app(self) -> str:
        """The first app."""
        return self.apps[0]

    @property
    def hostname(self) -> str:
        """The public hostname of the first app."""
        return f"{self.app}.{BASE_DOMAIN}"

    def message(self, kind: Kind) -> tuple[str, bytes]:
        """The next signed message of this host: subject and payload."""
        self.sequence += 1
        description = Description(
            address=self.address,
            apps=self.apps,
            key=self.identity.public_key,
            weight=self.weight,
            region="",
            version="",
        )
        return encode(
            Message(
                kind=kind,
                host_id=self.host_id,
                boot=self.boot,
                sequence=self.sequence,
                time_ms=int(time.time() * 1000),
                description=None if kind is Kind.LEAVE else description,
            ),
            self.cluster.cluster_id,
            self.identity,
        )

    def publish(self, kind: Kind = Kind.ANNOUNCE) -> None:
        """Publish the next message."""
        self.cluster.bus.publish(*self.message(kind))

    def stop(self) -> None:
        """Leave the bus and close everything."""
        self.cluster.beating.discard(self)
        self.publish(Kind.LEAVE)
        self.upstream.close()


class Gateway(Server):
    """One `smartgw serve` process. `changes` are laid over the test configuration, section by
    section.
    """

    def __init__(self, cluster: Cluster, changes: Config | None = None) -> None:
        super().__init__()
        self.cluster = cluster
        self.internal_port = free_port()
        self._operator: tuple[int, str] | None = None
        self.config = self.folder / "smartgw.toml"
        self.config.write_text(self._config(changes or {}))

    @property
    def public(self) -> tuple[str, int]:
        """Where clients connect."""
        return ("127.0.0.1", self.port)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "smartgw", "serve", "--config", str(self.config)]

    def ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.internal("/readyz")[0] == 200
        return False

    def stop(self) -> None:
        # No host of the cluster waits for one that is gone.
        with contextlib.suppress(ValueError):
            self.cluster.gateways.remove(self)
        super().stop()

    def internal(self, path: str, method: str = "GET", body: object = None) -> tuple[int, bytes]:
        """Status and body of a request at the internal listener, by the machine's operator."""
        connection = http.client.HTTPConnection("127.0.0.1", self.internal_port, timeout=5)
        fields = {"Authorization": f"Bearer {self.operator_token()}"}
        if body is not None:
            fields["Content-Type"] = "application/json"
        try:
            data = None if body is None else json.dumps(body)
            try:
                connection.request(method, path, data, fields)
            except ConnectionRefusedError as error:
                error.add_note(f"port {self.internal_port} of {self.folder}: {self.log()[-2000:]}")
                raise
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def operator_token(self) -> str:
        """What commands of this machine show the gateway; it changes with the process."""
        if self._operator is None or self._operator[0] != self.pid:
            endpoint = Endpoint(f"127.0.0.1:{self.internal_port}")
            try:
                self._operator = self.pid, operator_token(endpoint) or ""
            except Unreachable as error:
                raise OSError(str(error)) from None
        return self._operator[1]

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Every host that the gateway knows, by id."""
        status, body = self.internal("/api/v3/hosts?limit=1000")
        assert status == 200, body
        return {host["host_id"]: host for host in json.loads(body)["hosts"]}

    def state(self, host_id: str) -> str:
        """State of a host, "" when it is unknown."""
        return str(self.hosts().get(host_id, {}).get("state", ""))

    def reason(self, host_id: str) -> str:
        """Why a host is not routed to, "" when it is or when it is unknown."""
        return str(self.hosts().get(host_id, {}).get("reason", ""))

    def rss(self) -> int:
        """Resident bytes of the process."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        match = re.search(r"^Rss:\s+(\d+) kB", text, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def downstream(self, *, timeout: float = 10.0, receive_buffer: int | None = None) -> Downstream:
        """A new client connection."""
        return Downstream(self.public, timeout=timeout, receive_buffer=receive_buffer)

    def ask(
        self,
        hostname: str,
        raw_target: str = "/",
        method: str = "GET",
        *fields: str,
        body: bytes = b"",
        timeout: float = 10.0,
    ) -> Answer:
        """One request on a connection of its own; a Content-Length is added for a body."""
        lines = [f"{method} {raw_target} HTTP/1.1", f"Host: {hostname}", *fields]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        with self.downstream(timeout=timeout) as client:
            client.send("\r\n".join(lines).encode("latin1"), b"\r\n\r\n", body)
            return client.answer(method)

    def _config(self, changes: Config) -> str:
        sections: dict[str, Any] = {
            "cluster": self.cluster.cluster_id,
            "gateway": f"gateway-{self.port}",
            "base_domains": [BASE_DOMAIN, BROWSER_DOMAIN],
            "host_networks": ["127.0.0.0/8"],
            "listen": {
                "http": [f"127.0.0.1:{self.port}"],
                "internal": f"127.0.0.1:{self.internal_port}",
            },
            "bus": {"servers": [self.cluster.nats.url]},
            "trust": {"mode": "enrolment", "file": str(self.cluster.enrolment)},
            # A gateway is ready when it has listened for a heartbeat; a lease is as long as usual.
            "discovery": {"heartbeat": 1.0, "missed": 15, "unhealthy_ttl": 10.0},
            "log": {"access": "off"},
            # All tests come from a few addresses; those of the limits set their own.
            "rates": dict.fromkeys(("requests", "unknown", "own", "services"), 500_000_000),
        }
        for name, value in changes.items():
            if isinstance(value, Mapping):
                sections[name] = {**sections.get(name, {}), **value}
            else:
                sections[name] = value
        top = [f"{k} = {toml(v)}" for k, v in sections.items() if not isinstance(v, dict)]
        for name, value in sections.items():
            if isinstance(value, dict):
                top += ["", f"[{name}]", *(f"{k} = {toml(v)}" for k, v in value.items())]
        return "\n".join(top) + "\n"


class Sidecar(Server):
    """`smartgw host --raw`: proves `host_id` at its own port and relays bytes to `to_port`
    unparsed.
    """

    def __init__(self, cluster: Cluster, host_id: str, apps: Sequence[str], to_port: int) -> None:
        super().__init__()
        self.cluster, self.host_id, self.apps, self.to_port = cluster, host_id, apps, to_port
        self.key = seed_file(self.folder / "host.seed", host_id)

    def command(self) -> list[str]:
        apps = [part for app in self.apps for part in ("--app", app)]
        return [
            *(sys.executable, "-m", "smartgw", "host", "--raw"),
            *("--cluster", self.cluster.cluster_id, "--host-id", self.host_id),
            *("--key", str(self.key), "--bus", self.cluster.nats.url),
            *("--listen", f"127.0.0.1:{self.port}", "--to", f"http://127.0.0.1:{self.to_port}"),
            *apps,
        ]

    def ready(self) -> bool:
        if any(gateway.state(self.host_id) != "healthy" for gateway in self.cluster.gateways):
            return False
        time.sleep(TABLE_SECONDS)
        return True


class Cluster:
    """One bus, one enrolment file, any number of gateways and hosts."""

    def __init__(
        self, cluster_id: str = "c1", nats: Nats | None = None, *, enrolled: int = 400
    ) -> None:
        self.cluster_id = cluster_id
        self.nats = nats or Nats().start()
        self._owns_nats = nats is None
        self.bus = Publisher(self.nats.port)
        self.enrolment = self.nats.folder / f"enrolment-{cluster_id}.toml"
        self.gateways: list[Gateway] = []
        self.hosts: list[Host] = []
        self.beating: set[Host] = set()
        self._numbers = iter(range(enrolled))
        self._apps = 0
        self._stop = threading.Event()
        self.entries = [self.entry(f"host-{n}", ["*"]) for n in range(enrolled)]
        self.write_enrolment()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def entry(self, host_id: str, apps: Iterable[str], expires: str = "") -> str:
        """One entry of the enrolment file."""
        lines = [
            "[[host]]",
            f"id = {toml(host_id)}",
            f"key = {toml(identity_of(host_id).public_key.text)}",
            f"cluster = {toml(self.cluster_id)}",
            f"apps = {toml(list(apps))}",
        ]
        return "\n".join([*lines, f"expires = {expires}" if expires else "", ""])

    def unenrol(self, *hosts: Host) -> None:
        """Take hosts off the enrolment list."""
        gone = {f"id = {toml(host.host_id)}" for host in hosts}
        self.entries = [text for text in self.entries if text.split("\n")[1] not in gone]
        self.write_enrolment()

    def write_enrolment(self) -> None:
        """Swap the enrolment file; the gateways see it within 2 s."""
        fresh = self.enrolment.with_suffix(".new")
        fresh.write_text("\n".join(self.entries))
        os.replace(fresh, self.enrolment)

    def gateway(self, changes: Config | None = None) -> Gateway:
        """Start one more gateway of this cluster and wait until it is ready."""
        gateway = Gateway(self, changes)
        try:
            gateway.start()
        except BaseException:
            gateway.stop()
            raise
        self.gateways.append(gateway)
        return gateway

    def new_host_id(self) -> str:
        """The id of an enrolled host that no other test uses."""
        return f"host-{next(self._numbers)}"

    def new_app(self, prefix: str = "app") -> str:
        """An app id that no other test uses."""
        self._apps += 1
        return f"{prefix}-{self._apps}"

    def host(
        self,
        script: Script = serve,
        app: str | Sequence[str] | None = None,
        *,
        wait: bool = True,
        **options: Any,
    ) -> Host:
        """An enrolled host, by default for a new app of its own and healthy at every gateway."""
        apps = (app or self.new_app(),) if app is None or isinstance(app, str) else tuple(app)
        host_id = options.pop("host_id", None) or self.new_host_id()
        host = Host(self, host_id, apps, script, **options)
        self.hosts.append(host)
        self.beating.add(host)
        host.publish()
        if wait:
            self.wait_healthy(host)
        return host

    def wait_healthy(self, *hosts: Host) -> None:
        """Wait until the hosts are healthy at every gateway."""
        for gateway in self.gateways:
            for host in hosts:
                wait_until(
                    partial(_is_healthy, gateway, host),
                    what=partial(_about, gateway, host),
                )
        time.sleep(TABLE_SECONDS)

    def stop(self) -> None:
        """End everything."""
        self._stop.set()
        self._heart.join()
        for host in self.hosts:
            host.upstream.close()
        self.bus.close()
        for gateway in list(self.gateways):
            gateway.stop()
        if self._owns_nats:
            self.nats.stop()

    def _beat(self) -> None:
        while not self._stop.wait(0.5):
            for host in list(self.beating):
                host.publish(Kind.HEARTBEAT)


def _about(gateway: Gateway, host: Host) -> str:
    return f"{host.host_id} healthy: {gateway.hosts().get(host.host_id)}"


def _is_healthy(gateway: Gateway, host: Host) -> bool:
    return gateway.state(host.host_id) == "healthy"
