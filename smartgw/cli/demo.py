"""`smartgw demo`: whole clusters on this machine, to look at and to try (contract 12.1, 12.2).

Owns the order of start and end, `demo.json` and what is printed. What a cluster is made of is
`smartgw.demo.cluster`'s, and that nothing outlives the demo `smartgw.demo.children`'s.
"""

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from smartgw.cli import CommandError
from smartgw.cli.endpoint import Endpoint, Unreachable, ask
from smartgw.demo.children import Child, Died, Guard, end, wait_for
from smartgw.demo.cluster import (
    APPS,
    BASE_DOMAIN,
    CLUSTER_IDS,
    Cluster,
    plan,
    write_directory,
    write_private,
)
from smartgw.demo.introduction import introduction
from smartgw.demo.issuer import write_issuer
from smartgw_hosts.owner import owner

HELP = "run clusters of gateway, bus and hosts on this machine, to try them"
EXAMPLES = """\
Everything listens on loopback only. Ctrl-C ends it and leaves no process and no port behind;
keys, configurations, logs and demo.json are in the folder.

examples:
  smartgw demo
  smartgw demo --clusters 1 --hosts 3 --port 8088
"""

STARTED_AS = "RUN_STARTED_AS"
"""The variable in which `./run` says how it was called, for the lines to copy."""
MAX_HOSTS = 50
START_SECONDS = 30.0
ATTEMPTS = 3
LOCK_SECONDS = 3.0


class Interrupted(Exception):
    """A signal came before the demo was ready."""


class Signals:
    """Counts the signals that ask the demo to end; `revive`: SIGUSR1 has come since it was set."""

    def __init__(self) -> None:
        self.count = 0
        self.revive = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._count)
        signal.signal(signal.SIGUSR1, self._revive)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def _revive(self, number: int, frame: FrameType | None) -> None:
        self.revive = True

    def check(self) -> None:
        if self.count:
            raise Interrupted


class Running:
    """The clusters that run and their children: the buses and stores, then the gateways, then the
    hosts.
    """

    def __init__(self, clusters: Sequence[Cluster], guard: Guard) -> None:
        self.clusters = clusters
        self.tokens: dict[str, str] = {}
        self.buses: dict[str, Child] = {}
        self.stores: dict[str, Child] = {}
        self.gateways: dict[str, Child] = {}
        self.hosts: dict[str, dict[str, Child]] = {cluster.cluster_id: {} for cluster in clusters}
        self._guard = guard
        # What configures the gateway of this shell is not the demo's.
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("SMARTGW_")}

    def children(self) -> list[Child]:
        hosts = (child for group in self.hosts.values() for child in group.values())
        return [*hosts, *self.gateways.values(), *self.buses.values(), *self.stores.values()]

    def start(self, signals: Signals) -> None:
        """Raises Died or Interrupted, with all that was started still to be ended."""
        for cluster in self.clusters:
            cluster.write_files(self.clusters)
        write_directory(self.clusters)
        self.tokens = write_issuer(self.clusters[0].folder)
        for cluster in self.clusters:
            child = self._child(cluster, f"{cluster.cluster_id}-nats", cluster.nats_command())
            self.buses[cluster.cluster_id] = child
            child = self._child(cluster, f"{cluster.cluster_id}-valkey", cluster.valkey_command())
            self.stores[cluster.cluster_id] = child
        said = [(bus.log, b"Server is ready") for bus in self.buses.values()]
        said += [(store.log, b"Ready to accept") for store in self.stores.values()]
        self._wait(signals, lambda: all(word in log.read_bytes() for log, word in said))
        for cluster in self.clusters:
            child = self._child(cluster, f"{cluster.cluster_id}-gateway", cluster.gateway_command())
            self.gateways[cluster.cluster_id] = child
        # A gateway that was not yet listening would hear of a host at its next heartbeat only.
        self._wait(signals, lambda: all(_listens(cluster) for cluster in self.clusters))
        for cluster in self.clusters:
            for host_id in cluster.host_ids:
                command = cluster.host_command(host_id, self.clusters)
                self.hosts[cluster.cluster_id][host_id] = self._child(cluster, host_id, command)
        self._wait(signals, lambda: all(_ready(cluster) for cluster in self.clusters))
        self._wait(signals, lambda: _registered(self.clusters[0], self.tokens["service"]))
        self._wait(signals, lambda: all(_resolves(cluster) for cluster in self.clusters))
        # Any gateway may pass a request on to any other, so apps are asked when all are ready.
        self._wait(signals, lambda: all(_serves(cluster) for cluster in self.clusters))

    def revive(self) -> bool:
        """Start again what has ended; tell whether there was anything."""
        groups = (self.buses, self.stores, self.gateways, *self.hosts.values())
        ended = [(group, key) for group in groups for key, child in group.items() if child.ended()]
        for group, key in ended:
            group[key] = group[key].again()
        return bool(ended)

    def stop(self, signals: Signals) -> None:
        """End everything: the hosts and gateways first, then the buses they say goodbye on."""
        buses = [*self.buses.values(), *self.stores.values()]
        others = [child for child in self.children() if child not in buses]
        so_far = signals.count
        for group in (others, buses):
            end(group, lambda: signals.count > so_far)

    def describe(self) -> dict[str, Any]:
        """The content of demo.json (contract 12.2)."""
        return {
            "base_domain": BASE_DOMAIN,
            "clusters": [
                {
                    "id": cluster.cluster_id,
                    "http": cluster.http,
                    "https": None,
                    "internal": cluster.internal,
                    "api_hostname": cluster.api_hostname,
                    "nats": cluster.nats,
                    "valkey": cluster.valkey,
                    "dns": cluster.dns,
                    "pids": {
                        "gateway": [self.gateways[cluster.cluster_id].pid],
                        "nats": self.buses[cluster.cluster_id].pid,
                        "valkey": self.stores[cluster.cluster_id].pid,
                        "hosts": {
                            host_id: child.pid
                            for host_id, child in self.hosts[cluster.cluster_id].items()
                        },
                    },
                }
                for cluster in self.clusters
            ],
            "apps": [
                {
                    "app_id": app_id,
                    "hostname": f"{app_id}.{BASE_DOMAIN}",
                    "owner": owner(app_id, (cluster.cluster_id for cluster in self.clusters)),
                }
                for app_id in APPS
            ],
            "tokens": self.tokens,
            "ca": None,
        }

    def tell(self, folder: Path) -> None:
        """Write demo.json."""
        write_private(folder / "demo.json", json.dumps(self.describe(), indent=2) + "\n")

    def _child(self, cluster: Cluster, name: str, command: Sequence[str]) -> Child:
        """`name` is unique in the demo: it names the log too."""
        log = cluster.folder / f"{name}.log"
        return Child(name, command, log, self._guard, self._env)

    def _wait(self, signals: Signals, ready: Callable[[], bool]) -> None:
        def checked() -> bool:
            signals.check()
            return ready()

        wait_for(checked, self.children(), START_SECONDS, "not every app answered")


def _listens(cluster: Cluster) -> bool:
    """Whether the gateway is on the bus."""
    answer = _get(cluster.internal, "localhost", "/metrics")
    return answer is not None and b"\nsmartgw_bus_connected 1\n" in answer


def _ready(cluster: Cluster) -> bool:
    """Whether the gateway is ready and every host in use."""
    if _get(cluster.internal, "localhost", "/readyz") is None:
        return False
    answer = _get(cluster.internal, "localhost", "/api/v3/discovery/hosts")
    hosts = json.loads(answer)["hosts"] if answer else []
    healthy = {host["host_id"] for host in hosts if host["state"] == "healthy"}
    return healthy.issuperset(cluster.host_ids)


def _registered(cluster: Cluster, token: str) -> bool:
    """Have the platform know the demo's apps, so that they can be suspended and changed, and where
    their hostnames lead; whether it does. What was decided about apps in an earlier demo stays.
    """
    gateway = Endpoint(cluster.internal, token)
    try:
        answers = [
            ask(gateway, "PUT", f"/api/v3/apps/{app_id}", {}, {"If-None-Match": "*"})
            for app_id in APPS
        ]
        there = {"addresses": ["127.0.0.1"]}
        named = ask(gateway, "PUT", "/api/v3/dns/app-wildcards", there)
    except Unreachable:
        return False
    return named.status == 200 and all(answer.status in (201, 412) for answer in answers)


def _resolves(cluster: Cluster) -> bool:
    """Whether the gateway answers for the hostname of an app over the wire."""
    name = b"".join(bytes((len(x),)) + x.encode() for x in (APPS[0], *BASE_DOMAIN.split(".")))
    query = b"\0\1\0\0\0\1\0\0\0\0\0\0%b\0\0\1\0\1" % name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.5)
        try:
            sock.connect(("127.0.0.1", cluster.dns_port))
            sock.send(query)
            answer = sock.recv(512)
        except OSError:
            return False
    return answer[3] & 0xF == 0 and answer[7] == 1


def _serves(cluster: Cluster) -> bool:
    """Whether every app answers through the gateway, or was suspended in an earlier demo."""
    return all(_answers(cluster, app_id) for app_id in APPS)


def _answers(cluster: Cluster, app_id: str) -> bool:
    status, body = _ask(cluster.http, f"{app_id}.{BASE_DOMAIN}", "/echo")
    return status == 200 or any(b'"%b"' % off in body for off in (b"app_suspended", b"app_retired"))


def _get(address: str, hostname: str, path: str) -> bytes | None:
    """The body of a 200, else None."""
    status, body = _ask(address, hostname, path)
    return body if status == 200 else None


def _ask(address: str, hostname: str, path: str) -> tuple[int, bytes]:
    """Status and body of a GET, 0 when nobody answers."""
    # Not as whoever tries the demo, whose limit has just begun to count.
    own = ("127.0.0.88", 0) if sys.platform == "linux" else None
    connection = http.client.HTTPConnection(address, timeout=3.0, source_address=own)
    try:
        connection.request("GET", path, headers={"Host": hostname})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--clusters",
        type=_between(1, len(CLUSTER_IDS)),
        default=3,
        help="how many clusters, each with its own bus and gateway: 1 to "
        f"{len(CLUSTER_IDS)} (default: 3)",
    )
    parser.add_argument(
        "--hosts", type=_between(1, MAX_HOSTS), default=2, help="hosts a cluster (default: 2)"
    )
    parser.add_argument(
        "--port",
        type=_between(0, 65535),
        default=8080,
        help="port of the first gateway, of the next ones upwards; where one is taken, another "
        "that is free (default: 8080)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(".demo"), help="the demo's folder (default: .demo)"
    )
    parser.add_argument("--json", action="store_true", help="print demo.json, then READY")


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return number


def run(args: argparse.Namespace) -> int:
    signals = Signals()
    folder = args.dir.absolute()
    with _folder(folder):
        # Forked before anything else, and holding the folder's lock until it has cleaned up.
        guard = Guard()
        running: Running | None = None
        try:
            for attempt in range(ATTEMPTS):
                running = Running(plan(args.clusters, args.hosts, args.port, folder), guard)
                try:
                    running.start(signals)
                    break
                except Died as died:
                    # Someone took a port between the choice and the start.
                    taken = "address already in use" in str(died).lower()
                    if not taken or attempt == ATTEMPTS - 1:
                        raise CommandError(f"cannot start: {died}") from None
                    running.stop(signals)
            assert running is not None
            running.tell(folder)
            if args.json:
                print(json.dumps(running.describe()))
            else:
                print("\n".join(_introduction(running, args)))
            print("READY", flush=True)
            _watch(running, signals, folder)
        except Interrupted:
            return 1
        except FileNotFoundError as error:
            raise CommandError(str(error)) from None
        finally:
            (folder / "demo.json").unlink(missing_ok=True)
            if running is not None:
                running.stop(signals)
            guard.close()
    return 0


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """The demo's folder, for one demo at a time."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"{folder} cannot be used: {error.strerror}; choose a --dir") from None
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # The guard of a demo that was killed a moment ago is still at work.
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"a demo is running in {folder}; end it, or choose another --dir"
                    ) from None
                time.sleep(0.05)
        (folder / "demo.json").unlink(missing_ok=True)
        yield
    finally:
        os.close(lock)


def _watch(running: Running, signals: Signals, folder: Path) -> None:
    """Until a signal comes; says when a child has ended, and goes on without it, until told."""
    told: set[Child] = set()
    signals.revive = False
    while not signals.count:
        if signals.revive:
            signals.revive = False
            if running.revive():
                running.tell(folder)
        for child in running.children():
            if child not in told and child.ended():
                told.add(child)
                print(child.report(), file=sys.stderr, flush=True)
        time.sleep(0.1)


def _introduction(running: Running, args: argparse.Namespace) -> Iterator[str]:
    started_as = os.environ.get(STARTED_AS)
    command = f"{started_as} smartgw" if started_as else "smartgw"
    where = "" if args.dir == Path(".demo") else f" --dir {shlex.quote(str(args.dir))}"
    taken = [pair for cluster in running.clusters for pair in cluster.taken]
    yield from (f"{pair.wanted} is taken: using {pair.used}" for pair in taken)
    yield from introduction(running.describe(), args.dir.absolute(), os.getpid(), command, where)
