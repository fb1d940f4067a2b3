"""What the platform has decided, one record a thing: apps, enrolments, zones (1.4, 3.3, 3.4, 8.6).

Owns the form of a record in the store: strict JSON of a known version, in one canonical shape, so
that two gateways never read it differently, and the key that it stands under; of zones both are
zone_records.py's. Does not know which other records exist: who holds a hostname is desired.py's
to say.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, cast

from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy, AppState
from smartgw.routing.reserved import default_label
from smartgw.state.names import (
    canonical_hostname,
    canonical_label,
    canonical_origin,
    is_hostname,
    is_label,
    is_origin,
)
from smartgw.state.zone_records import (
    HEADS,
    PARTS,
    ZoneHead,
    ZonePart,
    head_key,
    head_members,
    head_of,
    part_key,
    part_members,
    part_of,
)
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import check_app_id, check_id
from smartgw_hosts.strict_json import parse_object

VERSION: Final = 1
"""The lowest that says all that a record of ours says; raised with a member that others lack."""
MAX_BYTES: Final = 60_000
"""Of one record: with its headers below the 64 KiB that the bus takes."""
MAX_HOSTNAMES: Final = 1_000
MAX_ORIGINS: Final = 100
MAX_LABELS: Final = 64
MAX_PATTERNS: Final = 1_000
LIMITS: Final = range(1, 1_000_001)
"""Requests of one caller in 60 s that an app may allow."""

_LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?\Z")
_LABEL_VALUE_CHARACTERS = 256
_APP_MEMBERS = frozenset(
    ("v", "app_id", "label", "hostnames", "state", "origins", "own_cors", "limit", "labels")
)
_ENROLMENT_MEMBERS = frozenset(("v", "host_id", "key", "cluster", "apps", "expires"))


class Kind(StrEnum):
    """The first word of a key, by which records are told apart."""

    APPS = "apps"
    ENROLMENTS = "enrolments"
    ZONES = HEADS
    ZONE_PARTS = PARTS


class FieldError(ValueError):
    """A value that no record may have. `pointer` names the member (RFC 6901): "/hostnames/3"."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(message)
        self.pointer = pointer


class Unreadable(ValueError):
    """A stored record that is left as it is: `newer` than this version, or malformed."""

    def __init__(self, detail: str, *, newer: bool = False) -> None:
        super().__init__(detail)
        self.newer = newer


@dataclass(frozen=True, slots=True)
class App:
    """One registered app. `register` makes it from what a caller wrote.

    Attributes:
        label: its label under every base domain; None for the default, the app id where that is
            a DNS label in lower case (contract 3.3).
        hostnames: exact hostnames besides, as A-labels in lower case, sorted.
        origins: serialised origins that may read its answers (contract 3.9), sorted.
        own_cors: the app answers preflights itself.
        limit: requests of one caller in 60 s, None for the gateway's own (contract 6.1).
        labels: keys and values of the platform's own, sorted by key; they decide nothing.
    """

    app_id: str
    label: str | None = None
    hostnames: tuple[str, ...] = ()
    state: AppState = AppState.ACTIVE
    origins: tuple[str, ...] = ()
    own_cors: bool = False
    limit: int | None = None
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def served_label(self) -> str | None:
        """The label that it claims, its own or the default one; None when it has neither."""
        return self.label if self.label is not None else default_label(self.app_id)

    @property
    def claims(self) -> tuple[str, ...]:
        """The names that only one app can have: its label, which has no dot, and hostnames."""
        label = self.served_label
        return self.hostnames if label is None else (label, *self.hostnames)

    @property
    def policy(self) -> AppPolicy:
        """What a route of it carries."""
        if self.state is AppState.ACTIVE and not (self.origins or self.own_cors or self.limit):
            return DEFAULT_POLICY
        origins = frozenset(origin.encode() for origin in self.origins)
        return AppPolicy(self.state, origins, self.own_cors, self.limit)


Record = App | Enrolment | ZoneHead | ZonePart


def register(
    *,
    app_id: str,
    label: str | None = None,
    hostnames: Iterable[str] = (),
    state: str = AppState.ACTIVE,
    origins: Iterable[str] = (),
    own_cors: bool = False,
    limit: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> App:
    """Return an app in its canonical form.

    Raises FieldError for the first value that no app may have.
    """
    try:
        check_app_id(app_id)
    except ValueError as error:
        raise FieldError("/app_id", str(error)) from None
    if label is not None:
        try:
            label = canonical_label(label)
        except ValueError as error:
            raise FieldError("/label", str(error)) from None
    try:
        app_state = AppState(state)
    except ValueError:
        some = ", ".join(AppState)
        raise FieldError("/state", f"{str(state)[:40]!a}: must be one of {some}") from None
    if limit is not None and limit not in LIMITS:
        raise FieldError("/limit", f"{limit}: must be {LIMITS[0]} to {LIMITS[-1]}, or null")
    app = App(
        app_id,
        label,
        _each("/hostnames", hostnames, canonical_hostname, MAX_HOSTNAMES),
        app_state,
        _each("/origins", origins, canonical_origin, MAX_ORIGINS),
        own_cors,
        limit,
        _labels(labels or {}),
    )
    if len(encode(app)) > MAX_BYTES:
        raise FieldError("", f"the app is larger than {MAX_BYTES} bytes; shorten its lists")
    return app


def check_enrolment(enrolment: Enrolment) -> Enrolment:
    """Give back an enrolment that can be stored. Raises FieldError."""
    for member, value in (("host_id", enrolment.host_id), ("cluster", enrolment.cluster)):
        try:
            check_id(f"{member}:", value)
        except ValueError as error:
            raise FieldError(f"/{member}", str(error)) from None
    _each("/apps", enrolment.apps, check_app_id, MAX_PATTERNS)
    if enrolment.expires is not None and not math.isfinite(enrolment.expires):
        raise FieldError("/expires", "must be Unix seconds, or null for never")
    if len(encode(enrolment)) > MAX_BYTES:
        raise FieldError("/apps", f"the enrolment is larger than {MAX_BYTES} bytes")
    return enrolment


def check_label_key(name: str) -> None:
    """Raise ValueError for what is no key of a label."""
    if not _LABEL_KEY.match(name):
        raise ValueError("a label's key must be 1 to 63 letters, digits and . _ / - within")


def check_label_value(value: object) -> None:
    """Raise ValueError for what is no value of a label."""
    if not isinstance(value, str) or len(value) > _LABEL_VALUE_CHARACTERS:
        raise ValueError(f"a label's value must be text of {_LABEL_VALUE_CHARACTERS} at most")
    if not value.isprintable():
        raise ValueError("a label's value must be printable")


# ---- the form in the store ----


def key_of(record: Record) -> str:
    """Return the key that a record stands under."""
    match record:
        case App():
            return app_key(record.app_id)
        case Enrolment():
            return enrolment_key(record.cluster, record.host_id)
        case ZoneHead():
            return head_key(record.origin)
        case ZonePart():
            return part_key(record.origin, record.name)


def app_key(app_id: str) -> str:
    """Return the key of an app: its id in hex, since an id may hold what a subject may not; keys
    sort as the bytes of the ids do.
    """
    return f"{Kind.APPS}.{app_id.encode().hex()}"


def enrolment_key(cluster: str, host_id: str) -> str:
    """Return the key of a host's enrolment; host ids are unique within their cluster."""
    return f"{Kind.ENROLMENTS}.{cluster}.{host_id}"


def encode(record: Record) -> bytes:
    """Return a record as it is stored: the same bytes for the same record."""
    members: dict[str, Any]
    match record:
        case App():
            members = {
                "app_id": record.app_id,
                "label": record.label,
                "hostnames": record.hostnames,
                "state": record.state.value,
                "origins": record.origins,
                "own_cors": record.own_cors,
                "limit": record.limit,
                "labels": dict(record.labels),
            }
        case Enrolment():
            members = {
                "host_id": record.host_id,
                "key": record.key.text,
                "cluster": record.cluster,
                "apps": record.apps,
                "expires": record.expires,
            }
        case ZoneHead():
            members = head_members(record)
        case ZonePart():
            members = part_members(record)
    return json.dumps({"v": VERSION, **members}, ensure_ascii=False, separators=(",", ":")).encode()


def decode(key: str, value: bytes) -> Record:
    """Read a record as it is stored under `key`.

    Raises Unreadable for one that is of a newer version, of a kind that we do not know, or not
    in the form that `encode` writes: what is read in part would lose the rest when written back.
    """
    if len(value) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES} bytes")
    try:
        members = parse_object(value)
    except ValueError as error:
        raise Unreadable(str(error)) from None
    version = members.get("v")
    if type(version) is not int or version < 1:
        raise Unreadable("v: must be the version of the form, 1 or more")
    if version > VERSION:
        raise Unreadable(f"version {version}, this one reads up to {VERSION}", newer=True)
    kind = key.partition(".")[0]
    try:
        if kind == Kind.APPS:
            record: Record = _app(members)
        elif kind == Kind.ENROLMENTS:
            record = _enrolment(members)
        elif kind == Kind.ZONES:
            record = head_of(members)
        elif kind == Kind.ZONE_PARTS:
            record = part_of(members)
        else:
            raise ValueError(f"kind {kind[:40]!a} is not known")
        if key_of(record) != key:
            raise ValueError("not of the app, host or zone that its key names")
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return record


def _app(members: Mapping[str, object]) -> App:
    _complete(members, _APP_MEMBERS)
    label, limit, own_cors = members["label"], members["limit"], members["own_cors"]
    if label is not None and not (isinstance(label, str) and is_label(label)):
        raise ValueError("label: must be a DNS label in lower case, or null")
    if type(own_cors) is not bool:
        raise ValueError("own_cors: must be true or false")
    if limit is not None and (type(limit) is not int or limit not in LIMITS):
        raise ValueError("limit: must be 1 to 1000000, or null")
    hostnames = _texts(members, "hostnames", MAX_HOSTNAMES)
    if not all(map(is_hostname, hostnames)) or not _ascending(hostnames):
        raise ValueError("hostnames: must be A-labels in lower case, sorted")
    origins = _texts(members, "origins", MAX_ORIGINS)
    if not all(map(is_origin, origins)) or not _ascending(origins):
        raise ValueError("origins: must be serialised origins, sorted")
    labels = members["labels"]
    if not isinstance(labels, dict):
        raise ValueError("labels: must be an object")
    return App(
        check_app_id(members["app_id"]),
        label,
        hostnames,
        AppState(str(members["state"])),
        origins,
        own_cors,
        limit,
        _labels(cast("dict[str, str]", labels)),
    )


def _enrolment(members: Mapping[str, object]) -> Enrolment:
    _complete(members, _ENROLMENT_MEMBERS)
    key, expires = members["key"], members["expires"]
    if expires is not None and type(expires) not in (int, float):
        raise ValueError("expires: must be Unix seconds, or null")
    return Enrolment(
        check_id("host id", members["host_id"]),
        PublicKey.parse(str(key)),
        check_id("cluster", members["cluster"]),
        tuple(map(check_app_id, _texts(members, "apps", MAX_PATTERNS))),
        None if expires is None else float(cast("float", expires)),
    )


def _complete(members: Mapping[str, object], known: frozenset[str]) -> None:
    if members.keys() != known:
        wrong = sorted(members.keys() ^ known)[0]
        what = "missing" if wrong in known else "not a member of this version"
        raise ValueError(f"{wrong[:40]!a}: {what}")


def _texts(members: Mapping[str, object], name: str, most: int) -> tuple[str, ...]:
    values = members[name]
    if not isinstance(values, list) or len(values) > most:
        raise ValueError(f"{name}: must be a list of at most {most}")
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name}: must be a list of strings")
    return tuple(values)


def _ascending(values: tuple[str, ...]) -> bool:
    return all(one < other for one, other in pairwise(values))


def _each(pointer: str, values: Iterable[str], form: Any, most: int) -> tuple[str, ...]:
    """Return the canonical values, sorted and each once."""
    found: set[str] = set()
    for number, value in enumerate(values):
        if number >= most:
            raise FieldError(pointer, f"must be at most {most}")
        try:
            found.add(form(value))
        except ValueError as error:
            raise FieldError(f"{pointer}/{number}", str(error)) from None
    return tuple(sorted(found))


def _labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if len(labels) > MAX_LABELS:
        raise FieldError("/labels", f"must be at most {MAX_LABELS}")
    for name, value in labels.items():
        try:
            check_label_key(name)
            check_label_value(value)
        except ValueError as error:
            pointer = "/labels/" + name.replace("~", "~0").replace("/", "~1")
            raise FieldError(pointer, str(error)) from None
    return tuple(sorted(labels.items()))
