"""What the gateway's parts are made with, out of the settings and out of each other's values.

Owns the translations between parts that must not know one another. Builds no part but the bus.
"""

import ssl
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from smartgw.admission.store_places import Address, Places
from smartgw.config import Settings, split_host_port
from smartgw.routing.table import HostUpdate
from smartgw_hosts import keyfile
from smartgw_hosts.bus import Bus
from smartgw_hosts.identity import Identity
from smartgw_hosts.records import HostRecord, HostState, PoolSettings
from smartgw_hosts.wire import Reason as Refusal

# Reasons of an unhealthy host that nobody may speak to any more (contract 1.4).
_UNTRUSTED = frozenset(
    (
        Refusal.NOT_ENROLLED,
        Refusal.EXPIRED_ENROLMENT,
        Refusal.WRONG_CLUSTER,
        Refusal.KEY_CHANGED,
    )
)


def host_update(record: HostRecord, drained: Collection[str]) -> HostUpdate:
    """Return what the data path needs of a record; `drained` hosts get no new requests."""
    return HostUpdate(
        host_id=record.host_id,
        address=record.address,
        key=record.key,
        apps=record.apps,
        weight=record.weight,
        routed=record.state is HostState.HEALTHY and record.host_id not in drained,
        cut=record.reason in _UNTRUSTED,
    )


def shown(record: HostRecord, drained: Collection[str]) -> HostRecord:
    """Return the record as status shows it: whoever is drained gets no traffic, healthy or not."""
    if record.host_id not in drained or record.state is not HostState.HEALTHY:
        return record
    undo = f"smartgw drain --host {record.host_id} --undo"
    return replace(record, state=HostState.DRAINED, reason=f"by an operator; {undo}", detail="")


def pool_settings(settings: Settings) -> PoolSettings:
    """Return the pool's share of the settings."""
    discovery = settings.discovery
    return PoolSettings(
        heartbeat=discovery.heartbeat,
        missed=discovery.missed,
        provisional_ttl=discovery.provisional_ttl,
        unhealthy_ttl=discovery.unhealthy_ttl,
        reverify=discovery.reverify,
        skew=discovery.skew,
        max_provisional=discovery.max_provisional,
        max_provisional_bytes=discovery.max_provisional_bytes,
        max_hosts=discovery.max_hosts,
        trust=settings.trust.mode,
    )


def make_bus(
    settings: Settings, purpose: str, before: Callable[[], None], on_state: Callable[[bool], None]
) -> Bus:
    """Return a connection of the gateway to the bus, not started; `purpose` is in its name."""
    return Bus(
        settings.bus.servers,
        name=f"smartgw {settings.cluster} {settings.gateway} {purpose}",
        nkey_seed=_secret(settings.bus.nkey_seed_file),
        tls=_tls(settings.bus.tls_ca),
        on_state=on_state,
        before=before,
    )


def store_places(settings: Settings) -> Places | None:
    """Return where the shared counters are, None where each process counts alone.

    Raises OSError: a file that the settings name cannot be read.
    """
    store = settings.store
    if not store.servers:
        return None
    database, tls = 0, False
    addresses = []
    for server in store.servers:
        scheme, _, rest = server.partition("://")
        if scheme == "unix":
            addresses.append(Address(path=rest))
            continue
        place, _, number = rest.partition("/")
        addresses.append(Address(*split_host_port(place)))
        database, tls = int(number or 0), scheme in ("valkeys", "rediss")
    password = None
    if store.password_file is not None:
        password = store.password_file.read_text().partition("\n")[0].strip("\r")
    return Places(
        kind=store.kind,
        addresses=tuple(addresses),
        primary=store.primary or "",
        username=store.username,
        password=password,
        tls=ssl.create_default_context(cafile=store.tls_ca) if tls else None,
        database=database,
    )


def identity_of(settings: Settings) -> Identity | None:
    """Return the cluster's identity, None where the settings name none.

    Raises keyfile.KeyFileError.
    """
    path = settings.identity.seed_file
    return None if path is None else keyfile.load(path)


def _secret(path: Path | None) -> str | None:
    return None if path is None else path.read_text().strip()


def _tls(ca: Path | None) -> ssl.SSLContext | None:
    return None if ca is None else ssl.create_default_context(cafile=str(ca))
