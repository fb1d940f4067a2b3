"""The table by which requests are routed at one instant: hostnames to routes, routes to hosts.

Owns what a request sees of it and how a hostname is found. How the next one comes about is
table.py's.
"""

from dataclasses import dataclass, field

from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy
from smartgw.routing.shards import Shards
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import dns_label

# Without slots, which the compiler gives its classes anyhow and cannot have made for it.


@dataclass(frozen=True, eq=False)
class HostEntry:
    """A healthy host as the data path sees it. Equal only to itself: a changed host is a new entry.

    Attributes:
        host_id, address, key: what a connection is opened to and must prove (contract 2.3).
        weight: share of traffic, 1 to 1000.
    """

    host_id: str
    address: str
    key: PublicKey | None
    weight: int


@dataclass(frozen=True, eq=False)
class Route:
    """Where the requests for one app go; a request holds its route to the end (contract 3.8).

    Attributes:
        shares: running sums of the hosts' weights, to draw by (proxy/choice.py); empty where all
            weights are the same.
        policy: what the platform has decided about the app.
        prefix: what a hostname begins with from which a host can tell the app (guard.app_of).
    """

    app_id: str
    hosts: tuple[HostEntry, ...]
    shares: tuple[int, ...] = ()
    policy: AppPolicy = DEFAULT_POLICY
    prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        app = self.app_id
        # The gateway's own API has no app id, and needs none; no hostname begins with a dot.
        prefix = f"{app}." if app and dns_label(app) and app == app.lower() else app and "."
        object.__setattr__(self, "prefix", prefix.encode())


def _no_names() -> Shards[bytes, str]:
    return Shards()


def _no_routes() -> Shards[str, Route]:
    return Shards()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The whole table at one instant.

    Attributes:
        labels: label under every base domain -> app id.
        hostnames: exact hostname -> app id.
        apps: app id -> route, so that a host which comes or goes changes one entry an app.
        bases: the base domains.
        own: the gateway's own hostnames; they beat every app's (contract 3.3).
        complete: a full heartbeat interval has been listened to and the desired state been read,
            so that a hostname that is not here is unknown and not merely unheard of (11.2).
    """

    labels: Shards[bytes, str] = field(default_factory=_no_names)
    hostnames: Shards[bytes, str] = field(default_factory=_no_names)
    apps: Shards[str, Route] = field(default_factory=_no_routes)
    bases: frozenset[bytes] = frozenset()
    own: frozenset[bytes] = frozenset()
    complete: bool = False

    def lookup(self, hostname: bytes) -> Route | None:
        """Return the route of a hostname in its canonical form, None when it is unknown; O(1)."""
        label, _, base = hostname.partition(b".")
        app_id = self.labels.get(label) if base in self.bases else self.hostnames.get(hostname)
        return None if app_id is None else self.apps.get(app_id)

    def route(self, app_id: str) -> Route | None:
        """Return the route of an app, by whatever hostname it is asked for; O(1)."""
        return self.apps.get(app_id)

    def routes(self) -> dict[bytes, Route]:
        """Return hostname -> route of all; O(n), to look at."""
        found: dict[bytes, Route] = {}
        for label, app_id in self.labels.items():
            if (route := self.apps.get(app_id)) is not None:
                found |= {label + b"." + base: route for base in self.bases}
        for hostname, app_id in self.hostnames.items():
            if (route := self.apps.get(app_id)) is not None:
                found[hostname] = route
        return found
