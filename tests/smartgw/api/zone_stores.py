"""A store in memory whose zones come into force as those of the real one do."""

from smartgw.nameserver import Nameserver
from smartgw.state.desired import Stored
from smartgw.state.records import Record
from tests.smartgw.api.fakes import SETTINGS
from tests.smartgw.api.stores import MemoryStore


class Store(MemoryStore):
    """A store in memory whose zones come into force in `dns`."""

    dns: Nameserver

    async def write(self, record: Record, expect: int | None = None) -> Stored:
        stored = await super().write(record, expect)
        self._tell()
        return stored

    async def delete(self, key: str, expect: int | None = None) -> Stored | None:
        stored = await super().delete(key, expect)
        self._tell()
        return stored

    def _tell(self) -> None:
        known = {zone.origin for zone in self.dns.zones.catalog}
        self.dns.follow(self.desired, known | {head.origin for head in self.desired.zones()})


def with_zones() -> tuple[Store, Nameserver]:
    """A store and the nameserver that follows it, which is to be stopped."""
    store = Store()
    dns = store.dns = Nameserver(SETTINGS, (), store, None)
    dns.start()
    dns.follow(store.desired, ())
    return store, dns
