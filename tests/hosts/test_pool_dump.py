"""A dump of a pool has all that it is: whatever field is added must be in it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.checks import Checks, Tickets, _Check
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.grants import Grants
from smartgw_hosts.host import Host
from smartgw_hosts.leases import Leases
from smartgw_hosts.plain import plain
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import PoolSettings, Verify
from smartgw_hosts.skew import WallClock
from smartgw_hosts.timers import Timers
from smartgw_hosts.wire import Kind
from tests.hosts.bus_messages import CLUSTER, WALL, Speaker, identity_of

PARTS = (Pool, Host, Checks, _Check, Tickets, Grants, Leases, WallClock, Timers)
GIVEN: dict[type, set[str]] = {
    Pool: {"cluster", "settings"},
    Grants: {"_cluster", "_trust"},
    Leases: {"_term"},
    WallClock: {"_skew"},
}
"""What whoever loads a dump gives, from the configuration of the recording."""
DERIVED: dict[type, set[str]] = {
    Pool: {"_apps", "_strangers", "_stranger_bytes", "_changed", "_out"},
    Checks: {"_by_ticket"},
    Timers: {"_queued", "_heap"},
}
"""What follows from the rest, or is empty between two inputs; compared after a load."""


def lived() -> Pool:
    """A pool in which every kind of thing has happened."""
    pool = Pool(CLUSTER, PoolSettings())
    key = identity_of("h1").public_key
    pool.enrol([Enrolment("h1", key, CLUSTER, ("*", "named"), WALL + 999.0)], 0.0, WALL)
    speaker, stranger = Speaker("h1"), Speaker("stranger")
    actions = pool.receive(speaker.signed(now=1.0), 1.0, int((WALL + 1) * 1000))
    (first,) = [action for action in actions if isinstance(action, Verify)]
    pool.verdict(first.ticket, Verdict(Proof.OK), 1.1)
    pool.receive(stranger.signed(now=2.0), 2.0, int((WALL + 2) * 1000))
    speaker.address = "http://127.0.0.1:9999"
    pool.receive(speaker.signed(Kind.ANNOUNCE, now=3.0), 3.0, int((WALL + 3) * 1000))
    pool.bus_lost(4.0)
    pool.bus_answered(4.5, 4.6)
    pool.bus_lost(5.0)
    return pool


def names(part: object) -> set[str]:
    return set(getattr(type(part), "__slots__", ())) or set(vars(part))


def fields(part: object) -> Iterator[tuple[str, object, str]]:
    """Where each field is: a path for people, the object and the name, of all parts."""
    for name in names(part) - GIVEN.get(type(part), set()) - DERIVED.get(type(part), set()):
        value = getattr(part, name)
        path = f"{type(part).__name__}.{name}"
        if isinstance(value, PARTS):
            yield from ((f"{path} > {inner}", *where) for inner, *where in fields(value))  # type: ignore[misc]
        else:
            yield path, part, name
            if isinstance(value, dict) and value:
                first = next(iter(value.values()))
                if isinstance(first, PARTS):
                    yield from ((f"{path} > {inner}", *where) for inner, *where in fields(first))  # type: ignore[misc]


def another(value: Any) -> Any:
    """A value of the same kind that is another one."""
    if isinstance(value, dict):
        return dict(list(value.items())[1:]) if value else {"x": 1.0}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 1.5 if value == float("-inf") else value + 1
    return 1.5 if value is None else None


def state(part: Any) -> Any:
    """All that a part is, as values that can be compared."""
    if isinstance(part, PARTS):
        kept = names(part) - ({"_heap", "_queued"} if isinstance(part, Timers) else set())
        return type(part).__name__, {name: state(getattr(part, name)) for name in kept}
    if isinstance(part, dict):
        return {key: state(value) for key, value in part.items()}
    return part


def test_every_field_is_dumped() -> None:
    """1.9: what is not in a dump could not be explained from one."""
    pool = lived()
    before = plain_of(pool)
    seen = set()
    for path, part, name in list(fields(pool)):
        value = getattr(part, name)
        setattr(part, name, another(value))
        assert change(lambda: plain_of(pool), before), f"{path} is not dumped"
        setattr(part, name, value)
        seen.add(type(part))
    assert seen == set(PARTS), "a part has no field that was looked at"
    assert plain_of(pool) == before


def plain_of(pool: Pool) -> str:
    return json.dumps(pool.dump(), default=plain)


def change(dumped: Callable[[], str], before: str) -> bool:
    """Whether the dump is another one; a value that cannot even be dumped is in it."""
    try:
        return dumped() != before
    except (TypeError, AttributeError):
        return True


@pytest.mark.parametrize("through_json", [False, True])
def test_what_is_loaded_is_what_was_dumped(through_json: bool) -> None:
    """1.9: a pool that was loaded is the one that was dumped, in every field."""
    pool = lived()
    data = pool.dump()
    loaded = Pool.load(CLUSTER, pool.settings, json.loads(plain_of(pool)) if through_json else data)
    assert state(loaded) == state(pool)
    assert loaded.tick(400.0, WALL + 400) == pool.tick(400.0, WALL + 400)
