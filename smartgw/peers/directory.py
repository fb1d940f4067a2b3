"""Which list of clusters is in force, and how sure of it we are (contract 4.3, 4.4).

Owns the modes of the directory: how long the last good list serves, when owners become unknown,
and whose keys still verify. Lists are made in smartgw_hosts.clusters; fetching them is follow.py's.
A cluster that cannot be reached is no matter of this file: only a list makes it inactive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from smartgw_hosts.clusters import Cluster, ClusterList, Fault, State
from smartgw_hosts.identity import PublicKey

Keys = Mapping[str, tuple[PublicKey, ...]]


class Mode(StrEnum):
    """How sure we are of the clusters."""

    NONE = "none"
    """No directory is configured: there are no other clusters."""
    FRESH = "fresh"
    GRACE = "grace"
    """The directory cannot be read; its last good list serves."""
    UNKNOWN = "unknown"
    """No list is in force, or an empty one: each gateway serves what it is asked for."""


class Reason(StrEnum):
    """Why a source gave no list that is taken; the faults of a list are among them."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    STATUS = "status"
    STALE = "stale"
    TOO_LARGE = Fault.TOO_LARGE.value
    NOT_ASCII = Fault.NOT_ASCII.value
    NOT_JSON = Fault.NOT_JSON.value
    MALFORMED = Fault.MALFORMED.value
    DUPLICATE = Fault.DUPLICATE.value
    WRONG_EPOCH = Fault.WRONG_EPOCH.value


@dataclass(frozen=True, slots=True)
class View:
    """The clusters as one request sees them, from its beginning to its end (4.6).

    `clusters` is None without a list. `keys` are the peers' by their ids, those last seen where
    no list is in force any more. `peers` are the other clusters that are not gone.
    """

    mode: Mode
    own_id: str
    clusters: ClusterList | None = None
    keys: Keys = field(default_factory=dict)
    peers: Mapping[str, Cluster] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        listed = () if self.clusters is None else self.clusters.clusters
        peers = {c.id: c for c in listed if c.counts and c.id != self.own_id}
        object.__setattr__(self, "peers", peers)

    def owner(self, app_id: str) -> str | None:
        """Return the id of the app's owner, None when it is unknown: then we serve it (4.4)."""
        return None if self.clusters is None else self.clusters.owner(app_id)

    @property
    def affinity(self) -> bool:
        """Whether requests go to the owner (4.2)."""
        return self.clusters is not None and self.clusters.affinity

    @property
    def failover(self) -> bool:
        """Whether peers are asked when nothing else is left (4.2)."""
        return self.clusters is not None and self.clusters.failover

    @property
    def epoch(self) -> str | None:
        """The epoch of the list in force, None without one."""
        return None if self.clusters is None else self.clusters.epoch

    @property
    def endpoints(self) -> frozenset[tuple[str, int]]:
        """IP address and port of each gateway that is listed by address: no host is there (2.5)."""
        listed = () if self.clusters is None else self.clusters.clusters
        return frozenset(
            (gateway.host, gateway.port)
            for cluster in listed
            for gateway in cluster.gateways
            if gateway.by_address
        )


class Directory:
    """Takes what sources gave; `view` is what requests hold from now on.

    Times are monotonic seconds. `grace`: how long a list serves after its source last confirmed
    it, from the moment on that it cannot be read. `counters`: what was refused, by reason.
    """

    def __init__(self, own_id: str, grace: float) -> None:
        self.counters = dict.fromkeys(Reason, 0)
        self.changes = 0
        self.confirmed: float | None = None
        self._own_id = own_id
        self._grace = grace
        self._failing = False
        self._clusters: ClusterList | None = None
        self.view = View(Mode.UNKNOWN, own_id)

    @property
    def due(self) -> float | None:
        """When `tick` is next to be called; None: not before something else happens."""
        if self.confirmed is None or self._clusters is None or not self._failing:
            return None
        return self.confirmed + self._grace

    def configure(self, grace: float) -> None:
        """Change the grace; it holds from the next call on."""
        self._grace = grace

    def too_old(self, age: float) -> bool:
        """Whether a list that its source confirmed so many seconds ago would not serve anyway."""
        return age >= self._grace

    def take(self, clusters: ClusterList, now: float, age: float = 0.0) -> None:
        """Put a valid list in force. `age`: seconds since its source confirmed it, so that
        gateways that ask each other do not keep a list alive for ever.
        """
        self.confirmed = now - age
        self._failing = False
        if clusters != self._clusters:
            self._clusters = clusters
            self.changes += 1
        self._look()

    def refused(self, reason: Reason) -> None:
        """Count what one source gave instead of a list."""
        self.counters[reason] += 1

    def failed(self, now: float) -> None:
        """No source gave a list: the last good one serves for the grace."""
        self._failing = True
        self.tick(now)

    def tick(self, now: float) -> None:
        """Let the grace end when it is over."""
        due = self.due
        if due is not None and now >= due:
            self._clusters = None
        self._look()

    def _look(self) -> None:
        clusters = self._clusters
        if clusters is None or not clusters.voters:
            mode = Mode.UNKNOWN
        else:
            mode = Mode.GRACE if self._failing else Mode.FRESH
        before = self.view
        if mode is before.mode and clusters is before.clusters:
            return
        if clusters is None:
            keys = before.keys
        else:
            keys = {c.id: c.keys for c in clusters.clusters if c.counts and c.id != self._own_id}
        self.view = View(mode, self._own_id, clusters, keys)


def worries(view: View, own_key: PublicKey) -> list[str]:
    """Return what works less well than it could, in lines; `own_key` is this cluster's."""
    if view.mode is Mode.NONE:
        return []
    if view.clusters is None:
        return ["peers: no list of clusters, so no owner is known and every app is served here"]
    if view.mode is Mode.UNKNOWN:
        return ["peers: the list of clusters is empty, so every app is served here"]
    found = []
    if view.mode is Mode.GRACE:
        found.append("peers: the directory cannot be read, its last good list is in force")
    own = view.clusters.get(view.own_id)
    if own is None:
        found.append(f"peers: the directory does not list this cluster, {view.own_id}")
    elif own.state is State.GONE:
        found.append(f"peers: the directory lists this cluster, {view.own_id}, as gone")
    elif own_key not in own.keys:
        found.append(
            f"peers: the directory does not list our key, {own_key.text}, for {view.own_id}; "
            "peers take our forwards for requests of strangers"
        )
    return found
