"""Several clusters that serve as one, for black-box tests: real gateways, hosts and a directory.

One bus and one directory file for all; each cluster has a gateway, more can be added. Owns where
they listen and what the directory says of them; tests decide who serves what.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from smartgw_hosts.clusters import parse
from smartgw_hosts.identity import Identity
from tests.forwarders import cluster_key, entry, list_text, write_list
from tests.gateway import BASE_DOMAIN, Cluster, Config, Gateway, Host, seed_file, wait_until
from tests.servers import Nats, free_port
from tests.upstreams import Script, serve

MOST_APPS = 400


class Federation:
    """Clusters `ids`, each with one gateway; those in `tls` take links over TLS only.

    `settings` are laid over those of all gateways, section by section; a section of a cluster's
    id over those of its own, and over these.
    """

    def __init__(
        self,
        folder: Path,
        ids: Sequence[str] = ("c1", "c2", "c3"),
        *,
        tls: Collection[str] = (),
        settings: Config | None = None,
        enrolled: int = 60,
    ) -> None:
        self.folder = folder
        self.tls = frozenset(tls)
        self.nats = Nats().start()
        self.file = folder / "clusters.json"
        self.clusters = {one: Cluster(one, self.nats, enrolled=enrolled) for one in ids}
        for cluster in self.clusters.values():
            # Of a host that never comes: so the app exists for every gateway, whoever serves it.
            cluster.entries.append(cluster.entry("absent", [f"app-{n}" for n in range(MOST_APPS)]))
            cluster.write_enrolment()
        self.urls: dict[str, list[str]] = {one: [] for one in ids}
        self.links: dict[str, int] = {}
        self._settings: Mapping[str, Any] = settings or {}
        self._apps = 0
        for one in ids:
            port = free_port()
            self.urls[one].append(self._url(one, port))
            self.links[one] = port
        self.write()
        self.gateways = {one: self.start(one, self.links[one]) for one in ids}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything."""
        for cluster in self.clusters.values():
            cluster.stop()
        self.nats.stop()

    # ---- the directory ----

    def entry(self, cluster_id: str, **changes: Any) -> dict[str, Any]:
        """What the directory says of a cluster."""
        return {**entry(cluster_id, *self.urls[cluster_id]), **changes}

    def write(self, *without: str, changed: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Write the directory: all clusters but these, some of them changed."""
        write_list(self.file, *self._entries(without, changed or {}))

    def follow(self, *without: str, changed: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Write the directory and wait until every gateway goes by it."""
        self.write(*without, changed=changed)
        wanted = parse(list_text(*self._entries(without, changed or {}))).as_json()
        for gateway in self.gateways.values():
            wait_until(
                lambda gateway=gateway: self.followed(gateway) == wanted,  # type: ignore[misc]
                what="the directory in force",
            )

    @staticmethod
    def followed(gateway: Gateway) -> Any:
        """The list that a gateway goes by."""
        status, body = gateway.internal("/api/v3/discovery/clusters")
        return json.loads(body) if status == 200 else None

    def _entries(
        self, without: Collection[str], changed: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        kept = [one for one in self.urls if one not in without]
        return [self.entry(one, **changed.get(one, {})) for one in kept]

    def _url(self, cluster_id: str, port: int) -> str:
        return f"{'https' if cluster_id in self.tls else 'http'}://127.0.0.1:{port}"

    # ---- gateways and hosts ----

    def start(self, cluster_id: str, port: int | None = None, **changes: Any) -> Gateway:
        """Start one more gateway of a cluster, whose links come to `port`."""
        cluster = self.clusters[cluster_id]
        port = port or free_port()
        seed = self.folder / f"{cluster_id}.seed"
        if not seed.exists():
            seed_file(seed, f"cluster {cluster_id}")
        settings: dict[str, Any] = {
            "peers": {"file": str(self.file)},
            "identity": {"seed_file": str(seed)},
        }
        for some in (self._settings, changes):
            for name, value in some.items():
                if name not in self.clusters:
                    section = isinstance(value, Mapping)
                    settings[name] = {**settings.get(name, {}), **value} if section else value
        for name, value in self._settings.get(cluster_id, {}).items():
            settings[name] = {**settings.get(name, {}), **value}
        if cluster_id in self.tls:
            settings["listen"] = {"links": f"127.0.0.1:{port}", **settings.get("listen", {})}
            return cluster.gateway(settings)
        http = free_port()
        listen = {"http": [f"127.0.0.1:{http}", f"127.0.0.1:{port}"]}
        settings["listen"] = {**listen, **settings.get("listen", {})}
        gateway = Gateway(cluster, settings)
        gateway.port = http
        try:
            gateway.start()
        except BaseException:
            gateway.stop()
            raise
        cluster.gateways.append(gateway)
        return gateway

    def app(self, owner: str) -> str:
        """The id of a new app that this cluster owns, by the list of all clusters."""
        clusters = parse(list_text(*(self.entry(one) for one in self.urls)))
        while True:
            self._apps += 1
            assert self._apps < MOST_APPS
            if clusters.owner(f"app-{self._apps}") == owner:
                return f"app-{self._apps}"

    def host(self, cluster_id: str, app: str, script: Script = serve, **options: Any) -> Host:
        """A host of a cluster that serves this app, healthy at all its gateways."""
        return self.clusters[cluster_id].host(script, app, **options)

    @staticmethod
    def hostname(app: str) -> str:
        """The public hostname of an app."""
        return f"{app}.{BASE_DOMAIN}"

    def metric(self, cluster_id: str, name: str) -> float:
        """The value of a metric of a cluster's first gateway, with its labels as they stand."""
        for line in self.gateways[cluster_id].internal("/metrics")[1].decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def key(self, cluster_id: str) -> Identity:
        """The identity of a cluster."""
        return cluster_key(cluster_id)
