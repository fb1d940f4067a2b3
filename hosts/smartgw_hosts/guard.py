"""Whether a host may do what a write asks: only its app's owner cluster may (contract 4.8).

Owns the list that a host goes by and for how long, which app a request is for, and what the 421
says. Fetches nothing (clusters_follower.py) and answers nothing: whoever received the write does.
"""

import json
from collections.abc import Collection, Iterable
from enum import Enum, auto
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from smartgw_hosts.clusters import ClusterList
from smartgw_hosts.ids import check_app_id

APP_FIELD: Final = b"x-smartgw-app"
"""Names the app of a request whose hostname does not; only gateways set it (contract 3.5)."""
OWNER_FIELD: Final = b"x-smartgw-owner"
"""Marks a 421 as the guard's; nothing else carries it."""
FLAG: Final = (b"x-smartgw-owner-unknown", b"yes")
"""Name and value of the flag of an answer to a write that was done without knowing whose it is."""
GRACE: Final = 30.0
"""Seconds for which the last good list serves when no gateway can be asked (contract 4.4)."""
SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Whoever asks with these changes nothing; all others are writes, for hosts and gateways alike."""

# Of the token characters of RFC 9110 5.6.2 those that are not written out already.
_PLAIN: Final = "!#$&'*+^`|"


class NotOwner(Exception):
    """A write that must not be done here: `owner` is the cluster that may, by the list `epoch`."""

    def __init__(self, owner: str, epoch: str) -> None:
        super().__init__(f"cluster {owner} owns the app, by the list of clusters {epoch}")
        self.owner = owner
        self.epoch = epoch

    @property
    def field(self) -> tuple[bytes, bytes]:
        """Name and value of the field that marks the 421 as the guard's."""
        return OWNER_FIELD, f"{self.owner}; epoch={self.epoch}".encode()

    @property
    def body(self) -> bytes:
        """The body of the 421, of the gateway's shape (contract 3.10)."""
        error = {
            "status": 421,
            "reason": "not_owner",
            "message": "The app is another cluster's; nothing was done.",
            "owner": self.owner,
            "epoch": self.epoch,
        }
        return json.dumps({"error": error}).encode() + b"\n"


class Accept(Enum):
    """A write that may be done."""

    SURE = auto()
    """The app is ours, or no cluster owns apps alone."""
    UNSURE = auto()
    """Nobody knows whose it is, and a hiccup of the directory takes no app down (4.4): flag it."""


class Guard:
    """Judges writes for a host of `cluster`. Times are monotonic seconds.

    `counters`: writes that were refused, and that were done unsure.
    """

    def __init__(self, cluster: str) -> None:
        self.counters = {"refused": 0, "unsure": 0}
        self._cluster = cluster
        self._clusters: ClusterList | None = None
        self._alone = False
        self._until = float("inf")
        self._confirmed = 0.0

    # ---- the list ----

    def take(self, clusters: ClusterList, now: float, age: float = 0.0) -> None:
        """Put a list in force that was confirmed `age` seconds ago at its origin."""
        self._clusters = clusters
        self._alone = False
        self._confirmed = now - age
        self._until = float("inf")

    def failed(self) -> None:
        """No gateway could be asked: the list in force serves for the grace."""
        self._until = self._confirmed + GRACE

    def forget(self) -> None:
        """Our gateways have no list in force any more, and we are no surer than they."""
        self._clusters = None
        self._alone = False

    def alone(self) -> None:
        """Our gateways have no directory: there are no other clusters."""
        self._clusters = None
        self._alone = True

    def clusters(self, now: float) -> ClusterList | None:
        """Return the list in force; None: there is none, or it is empty."""
        clusters = self._clusters
        return clusters if clusters is not None and now < self._until and clusters.voters else None

    # ---- questions ----

    def owner_of(self, app_id: str, now: float) -> str | None:
        """Return the cluster that owns an app, None when it is unknown.

        Raises ValueError for what is no app id.
        """
        check_app_id(app_id)
        if self._alone:
            return self._cluster
        clusters = self.clusters(now)
        return None if clusters is None else clusters.owner(app_id)

    def judge(self, app_id: str | None, now: float) -> Accept | NotOwner:
        """Judge a write or function call for an app; None: nobody knows which. Counts it."""
        if self._alone:
            return Accept.SURE
        clusters = self.clusters(now)
        if clusters is not None and not clusters.affinity:
            return Accept.SURE
        owner = None if clusters is None or app_id is None else clusters.owner(app_id)
        if clusters is None or owner is None:
            self.counters["unsure"] += 1
            return Accept.UNSURE
        if owner == self._cluster:
            return Accept.SURE
        self.counters["refused"] += 1
        return NotOwner(owner, clusters.epoch)


def is_write(method: str) -> bool:
    """Say whether a request may change something: with any method but GET, HEAD and OPTIONS."""
    return method not in SAFE_METHODS


def app_of(fields: Iterable[tuple[bytes, bytes]], apps: Collection[str]) -> str | None:
    """Return the app that a request of a gateway is for, None when it cannot be told.

    Args:
        fields: name and value of each of its header fields.
        apps: what this host serves.
    """
    named: list[bytes] = []
    host = b""
    for name, value in fields:
        lower = name.lower()
        if lower == APP_FIELD:
            named.append(value)
        elif lower == b"host":
            host = value
    if named:
        return _decoded(named[0]) if len(named) == 1 else None
    if len(apps) == 1:
        return next(iter(apps))
    label = host.partition(b".")[0].lower().decode("latin-1")
    return label if label in apps else None


def app_line(app_id: str) -> bytes:
    """Return the line that names an app: an app id may hold what no field value can."""
    return b"X-Smartgw-App: " + quote_from_bytes(app_id.encode(), safe=_PLAIN).encode()


def _decoded(value: bytes) -> str | None:
    try:
        return check_app_id(unquote_to_bytes(value).decode())
    except ValueError:
        return None
