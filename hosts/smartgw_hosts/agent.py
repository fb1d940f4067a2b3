"""The life of a host on the bus: announce, heartbeat, leave (contract 1.1-1.3, 1.6).

Owns when a message is sent and its boot, sequence and time. Does not own the form of the
message (wire.py), the connection (bus.py) or the answer to a challenge (challenge.py).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Final, Self

from smartgw_hosts import wire
from smartgw_hosts.addresses import parse_address
from smartgw_hosts.bus import Bus
from smartgw_hosts.challenge import Responder
from smartgw_hosts.identity import Identity
from smartgw_hosts.ids import check_app_id, check_id
from smartgw_hosts.wire import Kind
from smartgw_hosts.write_guard import WriteGuard

HEARTBEAT: Final = 5.0
"""Seconds between heartbeats at most (contract 1.6); each comes up to a tenth of it earlier."""
LEAVE_TIMEOUT: Final = 2.0
"""Seconds that saying goodbye may hold up the exit."""
OLD_ADDRESS: Final = 15.0
"""Seconds for which a replaced address is still signed for: gateways route to it until they
have verified the new one."""

_log = logging.getLogger(__name__)
_last_boot = 0


class HostAgent:
    """Announces one host for as long as it is entered: `async with HostAgent(...) as agent`.

    `address` is where gateways reach the app (`http://10.0.0.5:9000`, contract 2.5), `apps` the
    app ids it serves. `boot_file` remembers the last boot id, so that it rises across restarts
    also when the clock stepped back; without it the clock alone decides. `gateways` are asked for
    the list of clusters, by which `guard` refuses writes for other clusters' apps (contract 4.8,
    write_guard.py; `gateway_tls` is for https ones).
    Raises ValueError for what no gateway would accept. Once entered, nothing that happens to the
    bus raises: without it the host is silent, and announces itself when the bus is back.
    Serves for one entering; make another for the next.
    """

    def __init__(
        self,
        *,
        cluster: str,
        host_id: str,
        identity: Identity,
        address: str,
        apps: Iterable[str],
        bus_servers: Sequence[str],
        nkey_seed: str | None = None,
        tls: SSLContext | None = None,
        weight: int = 100,
        region: str = "",
        version: str = "",
        heartbeat: float = HEARTBEAT,
        boot_file: Path | None = None,
        gateways: Sequence[str] = (),
        gateway_tls: SSLContext | None = None,
    ) -> None:
        self._cluster = check_id("cluster id", cluster)
        self._host_id = check_id("host id", host_id)
        self._identity = identity
        self._heartbeat = heartbeat
        self._boot_file = boot_file
        self._boot = 0
        self._sequence = 0
        self._old_addresses: dict[str, float] = {}
        self._description = wire.Description(
            address=_checked_address(address),
            apps=_checked_apps(apps),
            key=identity.public_key,
            weight=weight,
            region=region,
            version=version,
        )
        self._encode(Kind.ANNOUNCE)  # what cannot be put on the bus is refused here, not later
        self._bus = Bus(
            bus_servers,
            name=f"smartgw-host-{host_id}",
            nkey_seed=nkey_seed,
            tls=tls,
            on_state=self._on_bus_state,
        )
        self._beat: asyncio.Task[None] | None = None
        self.responder = Responder(identity, host_id, cluster, self.addresses)
        self.guard = WriteGuard(cluster, lambda: self._description.apps, gateways, gateway_tls)

    @property
    def description(self) -> wire.Description:
        """What the next message says of this host."""
        return self._description

    @property
    def bus_connected(self) -> bool:
        return self._bus.connected

    def addresses(self) -> tuple[str, ...]:
        """The addresses this host signs for: its own, and for a while the one before it."""
        now = time.monotonic()
        old = (address for address, until in self._old_addresses.items() if until > now)
        return (self._description.address, *old)

    def owner_of(self, app_id: str) -> str | None:
        """Return the cluster that owns an app, None when it is unknown (contract 4.1, 4.4).

        Raises ValueError for what is no app id.
        """
        return self.guard.owner_of(app_id)

    def update(self, *, address: str | None = None, apps: Iterable[str] | None = None) -> None:
        """Announce a new address or other apps at once. Raises ValueError, changing nothing."""
        before = self._description
        after = wire.Description(
            address=before.address if address is None else _checked_address(address),
            apps=before.apps if apps is None else _checked_apps(apps),
            key=before.key,
            weight=before.weight,
            region=before.region,
            version=before.version,
        )
        self._description = after
        try:
            self._encode(Kind.ANNOUNCE)
        except ValueError:
            self._description = before
            raise
        now = time.monotonic()
        self._old_addresses = {a: t for a, t in self._old_addresses.items() if t > now}
        self._old_addresses.pop(after.address, None)
        if after.address != before.address:
            self._old_addresses[before.address] = now + OLD_ADDRESS
        if self._beat is not None:
            self._send(Kind.ANNOUNCE)

    async def __aenter__(self) -> Self:
        self._boot = _next_boot(self._boot_file)
        self._sequence = 0
        self._beat = asyncio.create_task(self._heartbeats(), name="smartgw-host-heartbeats")
        self.guard.start()
        await self._bus.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beat
        self._send(Kind.LEAVE)
        await self.guard.stop()
        try:
            await asyncio.wait_for(
                self._bus.stop(), LEAVE_TIMEOUT
            )  # first sends what was published
        except Exception as fault:
            _log.warning("the bus did not close cleanly: %r", fault)

    def _on_bus_state(self, connected: bool) -> None:
        if connected and self._beat is not None:
            self._send(Kind.ANNOUNCE)

    async def _heartbeats(self) -> None:
        while True:
            # Spread, so that hosts started together do not beat together. Never later than the
            # interval: three missed ones end the lease.
            await asyncio.sleep(self._heartbeat * random.uniform(0.9, 1.0))
            self._send(Kind.HEARTBEAT)

    def _send(self, kind: Kind) -> bool:
        """Send one message now or never: one kept for later would be stale (contract 1.2)."""
        if not self._bus.connected:
            return False
        try:
            subject, payload = self._encode(kind)
            return self._bus.publish(subject, payload)
        except Exception as fault:
            _log.warning("%s was not sent: %r", kind, fault)
            return False

    def _encode(self, kind: Kind) -> tuple[str, bytes]:
        self._sequence += 1
        message = wire.Message(
            kind=kind,
            host_id=self._host_id,
            boot=self._boot or 1,
            sequence=self._sequence,
            time_ms=time.time_ns() // 1_000_000,
            description=None if kind is Kind.LEAVE else self._description,
        )
        return wire.encode(message, self._cluster, self._identity)


def _checked_address(address: str) -> str:
    return str(parse_address(address))


def _checked_apps(apps: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check_app_id(app) for app in apps))


def _next_boot(boot_file: Path | None) -> int:
    """Milliseconds since the epoch, but above every boot id that is known (contract 1.2)."""
    global _last_boot
    known = _last_boot
    if boot_file is not None:
        with contextlib.suppress(OSError, ValueError):
            known = max(known, int(boot_file.read_text()))
    _last_boot = max(time.time_ns() // 1_000_000, known + 1)
    if boot_file is not None:
        try:
            boot_file.write_text(f"{_last_boot}\n")
        except OSError as fault:
            _log.warning("boot id not kept in %s: %s", boot_file, fault)
    return _last_boot
