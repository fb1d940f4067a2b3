"""What a recording holds of discovery, as lists and text that JSON can hold, and back (1.9).

Owns the form of each kind of value. What has to be kept of a part, its own `dump` says and its
`load` takes back; bytes are tape.py's.
"""

from dataclasses import fields
from typing import Any

from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.records import HostRecord, HostState, KnownHost
from smartgw_hosts.wire import Description

_RECORD = tuple(field.name for field in fields(HostRecord))
_DESCRIPTION = tuple(field.name for field in fields(Description))
_ENROLMENT = tuple(field.name for field in fields(Enrolment))
_NEVER = float("-inf")


def plain(value: object) -> object:
    """What the JSON encoder does not know, as lists and text; `..._of` below reads it back."""
    if isinstance(value, PublicKey):
        return value.text
    if isinstance(value, HostRecord):
        return [getattr(value, name) for name in _RECORD]
    if isinstance(value, Description):
        return [getattr(value, name) for name in _DESCRIPTION]
    if isinstance(value, Enrolment):
        return [getattr(value, name) for name in _ENROLMENT]
    if isinstance(value, KnownHost):
        return [value.host_id, value.boot, value.description]
    raise TypeError(f"{type(value).__name__} is not recorded")


def record_of(value: Any) -> HostRecord:
    """A record of itself, or of what JSON made of it."""
    if isinstance(value, HostRecord):
        return value
    members = dict(zip(_RECORD, value, strict=True))
    members["key"] = PublicKey.parse(members["key"])
    members["apps"] = tuple(members["apps"])
    members["refused_apps"] = tuple((app, reason) for app, reason in members["refused_apps"])
    members["state"] = HostState(members["state"])
    return HostRecord(**members)


def description_of(value: Any) -> Description:
    """A description of itself, or of what JSON made of it."""
    if isinstance(value, Description):
        return value
    members = dict(zip(_DESCRIPTION, value, strict=True))
    members["key"] = PublicKey.parse(members["key"])
    members["apps"] = tuple(members["apps"])
    return Description(**members)


def enrolment_of(value: Any) -> Enrolment:
    """An enrolment of itself, or of what JSON made of it."""
    if isinstance(value, Enrolment):
        return value
    members = dict(zip(_ENROLMENT, value, strict=True))
    members["key"] = PublicKey.parse(members["key"])
    members["apps"] = tuple(members["apps"])
    return Enrolment(**members)


def known_of(value: Any) -> KnownHost:
    """A host of before a restart, of itself or of what JSON made of it."""
    if isinstance(value, KnownHost):
        return value
    host_id, boot, described = value
    return KnownHost(host_id, boot, description_of(described))


def finite(time: float) -> float | None:
    """JSON has no -inf, which stands for a time before all others."""
    return None if time == _NEVER else time


def time_of(value: float | None) -> float:
    """What `finite` made of a time."""
    return _NEVER if value is None else value
