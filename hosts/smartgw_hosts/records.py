"""The values that go into and come out of the pool: settings, records, actions.

Owns their form, so that the gateway can hold a host's record without the pool. Decides
nothing: pool.py does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from smartgw_hosts.identity import PublicKey
from smartgw_hosts.wire import Description, Reason


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Seconds, numbers and bytes of contract 1.4 to 1.8 and 2.2.

    A lease lasts `missed` heartbeats. `trust` is "enrolment", or for development "first-use":
    then a host without an enrolment is bound to the first key that used its id, and may serve
    any app.
    """

    heartbeat: float = 5.0
    missed: int = 3
    provisional_ttl: float = 30.0
    unhealthy_ttl: float = 300.0
    reverify: float = 60.0
    skew: float = 30.0
    max_provisional: int = 1000
    max_provisional_bytes: int = 4 << 20
    max_hosts: int = 50_000
    trust: Literal["enrolment", "first-use"] = "enrolment"


class HostState(StrEnum):
    """Contract 1.5. Only `healthy` gets traffic.

    A gateway shows a healthy host that its operator took out of use as `drained` (11.1); to the
    pool it stays healthy.
    """

    PROVISIONAL = "provisional"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class HostRecord:
    """All that is known of one host.

    `apps` are those it may serve, `refused_apps` the others that it claims, each with the
    reason. `reason` is of a closed set and says why the host is in its state, `detail` more of
    it for people, or nothing; `since` is when the state began and `verified_at` when the last
    good verification ended, monotonic seconds. `pending_address` is announced but not yet
    proven, while `address` goes on serving; `pending_reason` is why it is not.
    """

    host_id: str
    boot: int
    address: str
    key: PublicKey
    apps: tuple[str, ...]
    refused_apps: tuple[tuple[str, str], ...]
    weight: int
    region: str
    version: str
    state: HostState
    reason: str
    since: float
    verified_at: float | None = None
    pending_address: str | None = None
    pending_reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A host as it was before a restart: what it said of itself, in its boot of then (11.2)."""

    host_id: str
    boot: int
    description: Description


@dataclass(frozen=True, slots=True)
class Verify:
    """Challenge `key` at `address`, and give the verdict back under `ticket`, exactly once."""

    ticket: int
    host_id: str
    address: str
    key: PublicKey


@dataclass(frozen=True, slots=True)
class Update:
    """This host's record is new or changed (more than by its `verified_at`)."""

    record: HostRecord


@dataclass(frozen=True, slots=True)
class Remove:
    """This host is no longer known."""

    host_id: str


@dataclass(frozen=True, slots=True)
class AskBus:
    """Send a PING on the bus, and report its answer with the time at which it was sent."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message was refused and counted; `detail` is one printable line for the log."""

    host_id: str
    reason: Reason
    detail: str


Action = Verify | Update | Remove | AskBus | Ignored
