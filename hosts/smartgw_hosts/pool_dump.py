"""The whole state of a pool as plain values, and a pool from them (contract 1.9).

Owns what has to be kept so that a pool that was loaded goes on exactly as the one that was
dumped: a friend of pool.py and its parts, it reads what is private there. Does not write bytes:
tape.py does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from smartgw_hosts.checks import Checks, _Check
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.leases import Leases
from smartgw_hosts.pool import Pool, _Host
from smartgw_hosts.records import HostRecord, HostState, KnownHost, PoolSettings
from smartgw_hosts.timers import Timers
from smartgw_hosts.wire import Description, Kind, Message

Dump = Mapping[str, Any]

_RECORD = tuple(field.name for field in fields(HostRecord))
_DESCRIPTION = tuple(field.name for field in fields(Description))
_ENROLMENT = tuple(field.name for field in fields(Enrolment))
_NEVER = float("-inf")


def dump(pool: Pool) -> Dump:
    """What the pool knows now: copies of its containers, and values that never change."""
    clock, leases = pool._clock, pool._leases
    return {
        "counters": dict(pool.counters),
        "tickets": pool._tickets.last,
        "clock": (clock._offset, clock._doubts),
        "enrolments": tuple(pool._grants._enrolments.values()),
        "expiries": dict(pool._grants._expiries._due),
        "leases": (
            dict(leases._timers._due),
            _finite(leases._floor),
            leases._away_since,
            _finite(leases._back_at),
            _finite(leases._asked_at),
        ),
        "checks": _dump_checks(pool._checks),
        "move_checks": _dump_checks(pool._move_checks),
        "removals": dict(pool._removals._due),
        "hosts": [
            (host.record, host.description, host.sequence, host.heard, host.trusted, host.cost)
            for host in pool._hosts.values()
        ],
    }


def load(cluster: str, settings: PoolSettings, data: Dump) -> Pool:
    """Make the pool that `dump` gave, after JSON or not.

    Raises ValueError, TypeError, LookupError or AttributeError for what is no dump.
    """
    pool = Pool(cluster, settings)
    pool.counters = dict(data["counters"])
    pool._tickets.last = data["tickets"]
    pool._clock._offset, pool._clock._doubts = data["clock"]
    grants, leases = pool._grants, pool._leases
    grants._enrolments = {e.host_id: e for e in map(enrolment_of, data["enrolments"])}
    _load_timers(grants._expiries, data["expiries"])
    _load_leases(leases, data["leases"])
    _load_checks(pool._checks, data["checks"])
    _load_checks(pool._move_checks, data["move_checks"])
    _load_timers(pool._removals, data["removals"])
    for entry in data["hosts"]:
        record, described = record_of(entry[0]), description_of(entry[1])
        said = Message(Kind.HEARTBEAT, record.host_id, record.boot, entry[2], 0, described)
        host = _Host(record, said, described)
        host.heard, host.trusted, host.cost = entry[3], entry[4], entry[5]
        pool._hosts[record.host_id] = host
        pool._strangers += host.cost > 0
        pool._stranger_bytes += host.cost
        pool._recount((), record.apps)
    for host_id in grants._enrolments:
        pool._recount((), grants.named_apps(host_id))
    return pool


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


def _dump_checks(checks: Checks) -> object:
    """By host the ticket that is out, when each address was asked, and the verdicts before."""
    by_host = {
        host_id: (check.ticket, dict(check.started), check.failures, check.passes)
        for host_id, check in checks._by_host.items()
    }
    return dict(checks._plan._due), by_host


def _load_checks(checks: Checks, data: Iterable[Any]) -> None:
    plan, by_host = data
    _load_timers(checks._plan, plan)
    for host_id, (ticket, started, failures, passes) in by_host.items():
        check = checks._by_host[host_id] = _Check()
        check.ticket, check.started = ticket, dict(started)
        check.failures, check.passes = failures, passes
        if ticket is not None:
            checks._by_ticket[ticket] = host_id


def _load_leases(leases: Leases, data: Iterable[Any]) -> None:
    due, floor, leases._away_since, back_at, asked_at = data
    _load_timers(leases._timers, due)
    leases._floor, leases._back_at, leases._asked_at = map(_time, (floor, back_at, asked_at))


def _load_timers(timers: Timers, due: Mapping[str, float]) -> None:
    for key, when in due.items():
        timers.set(key, when)


def _finite(time: float) -> float | None:
    """JSON has no -inf."""
    return None if time == _NEVER else time


def _time(value: float | None) -> float:
    return _NEVER if value is None else value
