"""The list of clusters, as a file or a validator gives it and as a gateway tells it (4.1-4.3).

Owns its JSON form, what refuses a list as a whole, what a list means for owners, and what both
who tell it and who ask for it over HTTP go by: its path and its age. Whom lists come from and how
long one serves is not decided here.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from smartgw_hosts.identity import KeyRefused, PublicKey
from smartgw_hosts.ids import ID_PATTERN
from smartgw_hosts.owner import epoch, place, sorted_ids
from smartgw_hosts.strict_json import parse_object

PATH: Final = "/api/v3/discovery/clusters"
"""Where gateways and validators tell their list."""
MAX_BYTES = 256 << 10
MAX_CLUSTERS = 256
MAX_GATEWAYS = 64
MAX_KEYS = 2
"""The key in use and, during a rotation, the next or the one before."""
_OWNERS_KEPT = 65_536

_ID = re.compile(ID_PATTERN)
_AGE = re.compile(r"[0-9]{1,9}")
_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(?::([0-9]{1,5}))?/?")
_PORTS = {"http": 80, "https": 443}
_LIST_MEMBERS = ("epoch", "affinity", "failover", "clusters")
_MEMBERS = ("id", "gateways", "keys", "state")


class State(StrEnum):
    """What the directory says of a cluster."""

    ACTIVE = "active"
    DRAINING = "draining"
    GONE = "gone"


class Fault(StrEnum):
    """Why a list is refused as a whole."""

    TOO_LARGE = "too_large"
    NOT_ASCII = "not_ascii"
    NOT_JSON = "not_json"
    MALFORMED = "malformed"
    DUPLICATE = "duplicate"
    WRONG_EPOCH = "wrong_epoch"


class ListRefused(ValueError):
    """A list that must not come into force: `fault`, and as text what, where and what is right."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


_malformed = partial(ListRefused, Fault.MALFORMED)


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a gateway of a cluster is reached: `host` is an IP address (v6 without brackets) or
    a lower-case name.
    """

    url: str
    host: str
    port: int

    @property
    def by_address(self) -> bool:
        """Whether `host` is an IP address."""
        return ":" in self.host or _is_number(self.host.rpartition(".")[2])


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster: how to reach it and which keys are its own.

    `plain`: its gateways are reached by http, else by https; never by both.
    """

    id: str
    gateways: tuple[Gateway, ...]
    keys: tuple[PublicKey, ...]
    state: State
    plain: bool

    @property
    def counts(self) -> bool:
        """Whether it may own apps: it is active or draining."""
        return self.state is not State.GONE


@dataclass(frozen=True, slots=True)
class ClusterList:
    """A whole list, never changed; `clusters` are sorted by their ids.

    `affinity`: whether gateways forward to the owner. `failover`: whether they ask peers when
    nothing else is left. Both hold for all clusters alike (4.2).
    """

    clusters: tuple[Cluster, ...]
    affinity: bool = True
    failover: bool = True
    voters: tuple[str, ...] = field(init=False, compare=False)
    epoch: str = field(init=False, compare=False)
    _by_id: Mapping[str, Cluster] = field(init=False, compare=False, repr=False)
    _owners: dict[str, str] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        voters = sorted_ids(cluster.id for cluster in self.clusters if cluster.counts)
        object.__setattr__(self, "voters", voters)
        object.__setattr__(self, "epoch", epoch(voters))
        object.__setattr__(self, "_by_id", {cluster.id: cluster for cluster in self.clusters})

    def get(self, cluster_id: str) -> Cluster | None:
        """Return the cluster of this id, gone ones too."""
        return self._by_id.get(cluster_id)

    def owner(self, app_id: str) -> str | None:
        """Return the id of the app's owner (4.1); None when no cluster counts."""
        found = self._owners.get(app_id)
        if found is None and self.voters:
            found = self.voters[place(app_id, len(self.voters))]
            if len(self._owners) >= _OWNERS_KEPT:
                self._owners.clear()
            self._owners[app_id] = found
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the list as `GET /api/v3/discovery/clusters` shows it; `parse` reads it back."""
        return {
            "epoch": self.epoch,
            "affinity": self.affinity,
            "failover": self.failover,
            "clusters": [
                {
                    "id": cluster.id,
                    "gateways": [gateway.url for gateway in cluster.gateways],
                    "keys": [key.text for key in cluster.keys],
                    "state": cluster.state.value,
                }
                for cluster in self.clusters
            ],
        }

    def text(self) -> bytes:
        """Return `as_json` as bytes."""
        return json.dumps(self.as_json(), separators=(",", ":")).encode("ascii")


def age_of(field: str | None) -> float:
    """Return how many seconds ago a list was confirmed at its origin, by the Age field that came
    with it (RFC 9111 5.1): 0 without one; what cannot be read is too old.
    """
    if field is None:
        return 0.0
    return float(field) if _AGE.fullmatch(field) else math.inf


def parse(text: bytes, *, by_hand: bool = False) -> ClusterList:
    """Read a list; one fault refuses all of it. `by_hand`: members that nobody knows are faults.

    A person misspells; a validator may merely be of a later version, and know more than we do.
    `affinity` and `failover` are true where they are missing, `epoch` is checked where it is not.

    Raises ListRefused.
    """
    if len(text) > MAX_BYTES:
        raise ListRefused(Fault.TOO_LARGE, f"{len(text)} bytes; a list has at most {MAX_BYTES}")
    if not text.isascii():
        raise ListRefused(Fault.NOT_ASCII, "not ASCII; ids, URLs and keys need no other character")
    try:
        document = parse_object(text)
    except ValueError as error:
        raise ListRefused(Fault.NOT_JSON, str(error)) from None
    if by_hand:
        _only_known("", document, _LIST_MEMBERS)
    entries = document.get("clusters")
    if not isinstance(entries, list):
        raise _malformed("clusters: must be a list of objects, an empty one if there are none")
    if len(entries) > MAX_CLUSTERS:
        raise ListRefused(Fault.TOO_LARGE, f"{len(entries)} clusters; at most {MAX_CLUSTERS}")
    clusters = [_cluster(f"clusters[{n}]", entry, by_hand) for n, entry in enumerate(entries)]
    _refuse_duplicates(clusters)
    found = ClusterList(
        tuple(sorted(clusters, key=lambda cluster: cluster.id)),
        _switch(document, "affinity"),
        _switch(document, "failover"),
    )
    if document.get("epoch", found.epoch) != found.epoch:
        raise ListRefused(
            Fault.WRONG_EPOCH, f"epoch: must be {found.epoch} for these clusters, or be left out"
        )
    if (size := len(found.text())) > MAX_BYTES:
        # Ports and ids are written out when the list is told on, and whoever reads it must take it.
        raise ListRefused(
            Fault.TOO_LARGE, f"{size} bytes when written out; a list has at most {MAX_BYTES}"
        )
    return found


def _cluster(where: str, entry: object, by_hand: bool) -> Cluster:
    if not isinstance(entry, dict):
        raise _malformed(f"{where}: must be an object with {', '.join(_MEMBERS)}")
    if by_hand:
        _only_known(f"{where}.", entry, _MEMBERS)
    cluster_id = entry.get("id")
    if not isinstance(cluster_id, str) or not _ID.fullmatch(cluster_id):
        raise _malformed(f"{where}.id: must match {ID_PATTERN}")
    where = f"{where} ({cluster_id})"
    try:
        state = State(str(entry.get("state")))
    except ValueError:
        raise _malformed(f"{where}.state: must be {', '.join(State)}") from None
    # One that is gone is there to be seen only.
    least = 0 if state is State.GONE else 1
    gateways = tuple(
        _gateway(f"{where}.gateways", url)
        for url in _texts(f"{where}.gateways", entry.get("gateways"), least, MAX_GATEWAYS)
    )
    plain = [gateway.url.startswith("http:") for gateway in gateways]
    if len(set(plain)) > 1:
        raise _malformed(f"{where}.gateways: http or https, not both in one cluster")
    keys = tuple(
        _key(f"{where}.keys", text)
        for text in _texts(f"{where}.keys", entry.get("keys"), least, MAX_KEYS)
    )
    return Cluster(cluster_id, gateways, keys, state, any(plain))


def _gateway(where: str, url: str) -> Gateway:
    match = _URL.fullmatch(url)
    if match is None:
        raise _malformed(f"{where}: {_shown(url)} is not https://host:port or http://host:port")
    scheme, host = match[1], match[2].lower()
    port = int(match[3]) if match[3] else _PORTS[scheme]
    try:
        if host.startswith("["):
            host = str(IPv6Address(host[1:-1]))
        elif _is_number(_labels(host)[-1]):
            # No name ends in a number (RFC 1123 2.1): an IPv4 address, in its one spelling.
            host = str(ip_address(host))
        elif not all(0 < len(label) < 64 and label.strip("-") == label for label in _labels(host)):
            raise ValueError
    except ValueError:
        raise _malformed(f"{where}: {_shown(url)} names no host") from None
    if not 0 < port < 65_536:
        raise _malformed(f"{where}: {_shown(url)} names no port; write 1 to 65535")
    shown = f"[{host}]" if ":" in host else host
    return Gateway(f"{scheme}://{shown}:{port}", host, port)


def _labels(host: str) -> list[str]:
    return host.removesuffix(".").split(".")


def _is_number(label: str) -> bool:
    return label.isdigit() or re.fullmatch("0x[0-9a-f]*", label) is not None


def _key(where: str, text: str) -> PublicKey:
    try:
        return PublicKey.parse(text)
    except KeyRefused as error:
        raise _malformed(f"{where}: {error}; copy it as `smartgw keygen` printed it") from None


def _texts(where: str, value: object, least: int, most: int) -> list[str]:
    if isinstance(value, list) and least <= len(value) <= most:
        texts = [text for text in value if isinstance(text, str)]
        if len(texts) == len(value):
            return texts
    raise _malformed(f"{where}: must be a list of {least} to {most} texts")


def _switch(document: Mapping[str, object], name: str) -> bool:
    value = document.get(name, True)
    if not isinstance(value, bool):
        raise _malformed(f"{name}: must be true or false")
    return value


def _refuse_duplicates(clusters: Iterable[Cluster]) -> None:
    """Refuse what two clusters, or one twice, would have: nobody could tell them apart by it."""
    seen: dict[object, str] = {}
    for cluster in clusters:
        for what in (
            ("the id", cluster.id),
            *(("the gateway", f"{gateway.host}:{gateway.port}") for gateway in cluster.gateways),
            *(("the key", key.text) for key in cluster.keys),
        ):
            if what in seen:
                text = f"{what[0]} {what[1]} stands there twice: at {seen[what]} and {cluster.id}"
                raise ListRefused(Fault.DUPLICATE, text)
            seen[what] = cluster.id


def _only_known(where: str, entry: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in entry:
        if name not in known:
            raise _malformed(f"{where}{_shown(name)}: unknown; write {', '.join(known)}")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")
