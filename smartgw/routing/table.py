"""The routing table: which hosts serve a hostname, as one immutable Snapshot at a time.

Owns how host records become routes, and that a change copies little: a Snapshot is a large base
and a small overlay. Does not verify hosts (smartgw_hosts.pool) nor choose among them
(proxy/choice.py). Labels come from the app, never from an announcement (contract 3.3).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import dns_label

_OVERLAY_LIMIT = 1_000
# Where custom domains will be proven.
_RESERVED_LABEL = b"verify"


@dataclass(frozen=True, slots=True, eq=False)
class HostEntry:
    """A healthy host as the data path sees it. Equal only to itself: a changed host is a new entry.

    Attributes:
        host_id, address, key: what a connection is opened to and must prove (contract 2.3).
        weight: share of traffic, 1 to 1000.
    """

    host_id: str
    address: str
    key: object
    weight: int


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """A new or changed host, as far as the data path is concerned.

    Attributes:
        apps: what it may serve; their hostnames exist whether or not it is routed.
        routed: it gets new requests.
        cut: nobody may speak to it any more, so what its connections carry breaks off (1.4).
    """

    host_id: str
    address: str
    key: PublicKey
    apps: tuple[str, ...]
    weight: int
    routed: bool
    cut: bool = False


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The whole table at one instant.

    Attributes:
        base, overlay: hostname -> route; the overlay wins, None in it means gone.
        own: the gateway's own hostnames; they beat every app's (contract 3.3).
        complete: a full heartbeat interval has been listened to, so that a hostname that is not
            here is unknown and not merely unheard of (contract 11.2).
    """

    base: Mapping[bytes, Route] = field(default_factory=dict)
    overlay: Mapping[bytes, Route | None] = field(default_factory=dict)
    own: frozenset[bytes] = frozenset()
    complete: bool = False

    def lookup(self, hostname: bytes) -> Route | None:
        """Return the route of a hostname in its canonical form, None when it is unknown; O(1)."""
        if hostname in self.overlay:
            return self.overlay[hostname]
        return self.base.get(hostname)

    def routes(self) -> dict[bytes, Route]:
        """Return hostname -> route, merged; O(n), for status only."""
        merged = {**self.base, **self.overlay}
        return {name: route for name, route in merged.items() if route is not None}


class RoutingTable:
    """Turns changes of hosts into the next Snapshot."""

    def __init__(self, base_domains: Iterable[str], own_hostnames: Iterable[str]) -> None:
        self._bases: tuple[bytes, ...] = ()
        self._own: frozenset[bytes] = frozenset()
        self._taken: frozenset[bytes] = frozenset()
        self._name(base_domains, own_hostnames)
        self._entries: dict[str, HostEntry] = {}
        self._apps_of: dict[str, frozenset[str]] = {}
        self._hosts_of: dict[str, set[str]] = {}
        self._known: frozenset[str] = frozenset()
        self.snapshot = Snapshot(own=self._own)

    def declare(self, apps: Collection[str], complete: bool) -> Snapshot:
        """Set the apps that exist whether or not a host announces them, and completeness."""
        apps = frozenset(apps)
        changed = apps ^ self._known
        self._known = apps
        return self._next(changed, complete)

    def entry(self, host_id: str) -> HostEntry | None:
        """Return how the data path sees a host now, None when it is not routed."""
        return self._entries.get(host_id)

    def apply(self, updates: Iterable[HostUpdate], removed: Iterable[str]) -> Snapshot:
        """Take in changed and removed hosts; return the next Snapshot, which costs the change."""
        changed: set[str] = set()
        for host_id in removed:
            changed |= self._place(host_id, None, frozenset())
        for host in updates:
            entry = None
            if host.routed:
                entry = HostEntry(host.host_id, host.address, host.key, host.weight)
            changed |= self._place(host.host_id, entry, frozenset(host.apps))
        return self._next(changed, self.snapshot.complete)

    def rename(self, base_domains: Iterable[str], own_hostnames: Iterable[str]) -> Snapshot:
        """Put other base domains and own hostnames in force; costs the whole table."""
        self._name(base_domains, own_hostnames)
        complete, self.snapshot = self.snapshot.complete, Snapshot()
        return self._next(self._known | self._hosts_of.keys(), complete)

    def _name(self, base_domains: Iterable[str], own_hostnames: Iterable[str]) -> None:
        self._bases = tuple(b"." + domain.encode() for domain in base_domains)
        self._own = frozenset(name.encode() for name in own_hostnames)
        pairs = ((own, base) for own in self._own for base in self._bases if own.endswith(base))
        self._taken = frozenset({_RESERVED_LABEL, *(own.removesuffix(base) for own, base in pairs)})

    def _place(self, host_id: str, entry: HostEntry | None, apps: frozenset[str]) -> frozenset[str]:
        """Put a host where it now belongs; return the apps whose routes that changes."""
        before = self._apps_of.get(host_id, frozenset())
        old = self._entries.get(host_id)
        if entry is not None and old is not None and _same(old, entry):
            entry = old
        for app in before - apps:
            hosts = self._hosts_of[app]
            hosts.discard(host_id)
            if not hosts:
                del self._hosts_of[app]
        for app in apps - before:
            self._hosts_of.setdefault(app, set()).add(host_id)
        if apps:
            self._apps_of[host_id] = apps
        else:
            self._apps_of.pop(host_id, None)
        if entry is None:
            self._entries.pop(host_id, None)
        else:
            self._entries[host_id] = entry
        return before ^ apps if entry is old else before | apps

    def _next(self, apps: Iterable[str], complete: bool) -> Snapshot:
        overlay = dict(self.snapshot.overlay)
        for app in apps:
            # The default label (contract 3.3). Upper case gets none, so that two apps never meet
            # in one label. The gateway's own labels are no app's under any base domain.
            if not dns_label(app) or app != app.lower() or app.encode() in self._taken:
                continue
            route = self._route(app)
            for base in self._bases:
                overlay[app.encode() + base] = route
        base_map = self.snapshot.base
        if len(overlay) > _OVERLAY_LIMIT:
            merged = {**base_map, **overlay}
            base_map = {name: route for name, route in merged.items() if route is not None}
            overlay = {}
        self.snapshot = Snapshot(base_map, overlay, self._own, complete)
        return self.snapshot

    def _route(self, app: str) -> Route | None:
        hosts = self._hosts_of.get(app, ())
        if not hosts and app not in self._known:
            return None
        found = (self._entries.get(host_id) for host_id in sorted(hosts))
        entries = tuple(entry for entry in found if entry is not None)
        weights = [entry.weight for entry in entries]
        return Route(app, entries, tuple(accumulate(weights)) if len(set(weights)) > 1 else ())


def _same(one: HostEntry, other: HostEntry) -> bool:
    return (one.address, one.key, one.weight) == (other.address, other.key, other.weight)
