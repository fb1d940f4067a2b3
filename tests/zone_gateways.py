"""Gateways that follow the zones of one bucket, over a real nats-server, in this process."""

import asyncio
from collections.abc import Iterable
from typing import Any

from smartgw.aside import Aside
from smartgw.state.desired import Desired, Difference
from smartgw.state.durable import Conflict
from smartgw.state.zone_store import ZoneStore
from smartgw.state.zones import Version, Zones
from smartgw_dns.catalog import Catalog
from smartgw_dns.edits import Change, edit
from smartgw_dns.zone import Zone
from tests.dns.zones import ask, wire
from tests.servers import Nats
from tests.stores import OneGateway, until

ORIGIN = wire("z.")


class ZoneGateway(OneGateway):
    """One gateway's zones. `catalogs` counts how often others came into force."""

    def __init__(self, servers: Iterable[str], **options: Any) -> None:
        self.servers = tuple(servers)
        self.catalogs = 0
        self.aside = Aside()
        self.zones = Zones(self._count, self.aside)
        super().__init__(self.servers, **options)
        self.writer = ZoneStore(self.store, self.zones, self.aside)

    async def start(self) -> None:
        self.zones.start()
        await super().start()
        await until(lambda: self.store.live, what=self.store.fault)
        self.zones.follow(self.store.desired, ())
        await until(lambda: self.zones.known)

    async def stop(self) -> None:
        await self.writer.stop()
        await self.zones.stop()
        await super().stop()

    def version(self, name: str = "z.") -> Version:
        """A zone that is in force."""
        version = self.zones.version(wire(name))
        assert version is not None
        return version

    async def change(self, *changes: Change) -> None:
        """Change the zone `z.` as it is in force here."""
        before = self.version()
        after = edit(before.zone, changes)
        touched = {change.owner.lower() for change in changes} | {ORIGIN}
        await self.writer.put(before, after, touched)

    async def change_in_the_end(self, *changes: Change) -> int:
        """Change it whatever others do meanwhile; returns how often others were first."""
        for refused in range(1000):
            try:
                await self.change(*changes)
            except Conflict:
                await asyncio.sleep(0.01)
            else:
                return refused
        raise AssertionError("refused a thousand times")

    def ask(self, question: str) -> str:
        """Answer `NAME TYPE` by the zones in force."""
        return ask(question, *self.zones.catalog)

    def _on_change(self, desired: Desired, difference: Difference) -> None:
        super()._on_change(desired, difference)
        self.zones.follow(desired, difference.zones)

    def _count(self, catalog: Catalog) -> None:
        assert catalog is self.zones.catalog
        self.catalogs += 1


async def start(nats_server: Nats, count: int = 2) -> list[ZoneGateway]:
    """Start gateways; stop each of them."""
    gateways = [ZoneGateway([nats_server.url], name=f"zg{number}") for number in range(count)]
    for gateway in gateways:
        await gateway.start()
    return gateways


async def same(gateways: Iterable[ZoneGateway], zone: Zone, within: float = 10.0) -> None:
    """Wait until all have this version of the zone `z.` in force."""
    wanted = [(entry.owner, entry.rrsets) for _, entry in zone.sorted()]
    for gateway in gateways:
        await until(lambda gateway=gateway: _content(gateway) == wanted, within)  # type: ignore[misc]


def _content(gateway: ZoneGateway) -> object:
    version = gateway.zones.version(ORIGIN)
    return version and [(entry.owner, entry.rrsets) for _, entry in version.zone.sorted()]
