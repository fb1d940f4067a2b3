"""Zones in the store and in force, over a real nats-server (smartgw/state/zone*.py)."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import nats
import pytest

from smartgw.state import jetstream, zone_store
from smartgw.state import zones as zones_module
from smartgw.state.desired import Stored
from smartgw.state.durable import Conflict, Unavailable
from smartgw.state.records import Record, encode, key_of
from smartgw.state.zone_records import PARTS, ZoneHead, ZonePart, head_key, part_key
from smartgw.state.zones import Contents
from smartgw_dns.edits import Change, EditRefused, Why, apply, build, edit
from smartgw_dns.packed import pack
from smartgw_dns.zone import RRset, Zone
from tests.dns.zones import wire, zone
from tests.servers import Nats
from tests.stores import BUCKET, until
from tests.zone_gateways import ORIGIN, ZoneGateway, same, start


@pytest.fixture
async def bus() -> AsyncIterator[Nats]:
    """A NATS server with JetStream."""
    async with Nats(jetstream=True) as server:
        yield server


@pytest.fixture
async def pair(bus: Nats) -> AsyncIterator[list[ZoneGateway]]:
    """Two gateways that share its bucket."""
    gateways = await start(bus)
    try:
        yield gateways
    finally:
        for gateway in gateways:
            await gateway.stop()


def address(number: int, name: str = "www.z.") -> Change:
    """An A record set."""
    return Change(wire(name), 1, RRset(1, 300, (number.to_bytes(4, "big"),)))


def large(names: int) -> list[Change]:
    """So many names."""
    return [address(number, f"h{number}.z.") for number in range(names)]


async def test_a_change_is_in_force_at_another_gateway(pair: list[ZoneGateway]) -> None:
    """8.4, 8.6: watchers bring changes into force everywhere within 2 s, with a higher serial."""
    one, other = pair
    await one.writer.put(None, zone("www A 192.0.2.1\n"))
    assert one.ask("www.z. A") == "NOERROR | AA | www.z. A 192.0.2.1"
    await until(lambda: other.ask("www.z. A") == one.ask("www.z. A"), 2.0)
    before = other.version().zone.serial
    await other.change(address(5))
    await until(lambda: one.ask("www.z. A") == "NOERROR | AA | www.z. A 0.0.0.5", 2.0)
    assert one.version().zone.serial == before + 1
    await one.writer.delete(one.version())
    assert one.ask("www.z. A") == "REFUSED"
    await until(lambda: other.ask("www.z. A") == "REFUSED", 2.0)


async def test_of_two_changes_to_one_version_the_second_is_refused(
    pair: list[ZoneGateway],
) -> None:
    """10.3: no change is lost to one that was made at the same moment."""
    one, other = pair
    await one.writer.put(None, zone(""))
    await until(lambda: other.zones.version(ORIGIN) is not None)
    results = await asyncio.gather(
        *(one.change(address(1)), other.change(address(2))), return_exceptions=True
    )
    assert {type(result) for result in results} == {Conflict, type(None)}
    await until(lambda: one.version().head.revision == other.version().head.revision)
    assert one.ask("www.z. A") == other.ask("www.z. A")
    with pytest.raises(Conflict):
        await one.writer.put(None, zone("other A 192.0.2.1\n"))


async def test_a_large_zone_changes_in_parts(pair: list[ZoneGateway]) -> None:
    """8.6: many write into a large zone at once; no change is lost, and no part left behind."""
    one, other = pair
    first = apply(zone(""), large(4_000))
    await one.writer.put(None, first)
    await same(pair, first)
    heads = [gateway.version().record for gateway in pair]
    assert len(heads[0].places) == 8
    dice = random.Random(1)
    numbers = iter(range(1_000))

    async def write(gateway: ZoneGateway) -> int:
        refused = 0
        for _ in range(20):
            name = f"h{dice.randrange(4_200)}.z."
            refused += await gateway.change_in_the_end(address(next(numbers) + 10_000, name))
        return refused

    refused = sum(await asyncio.gather(*map(write, pair)))
    await until(lambda: one.version().head.revision == other.version().head.revision)
    final = one.version()
    assert final.zone.serial == first.serial + 40
    assert refused > 0
    await same(pair, final.zone)
    # Made by 40 changes, and as another gateway makes it that starts now.
    contents = pack(final.zone)
    assert contents.size == final.record.size
    await until(lambda: _parts(one) == final.record.parts == _parts(other))
    late = ZoneGateway(one.servers, name="late")
    await late.start()
    try:
        await same([late], final.zone)
    finally:
        await late.stop()


async def _heard(gateways: list[ZoneGateway], revision: int) -> None:
    """Wait until all have heard of what was written at a revision."""
    await until(lambda: all(one.store.desired.revision >= revision for one in gateways))


def _parts(gateway: ZoneGateway) -> set[str]:
    keys = (key for key, _ in gateway.store.desired.records.items())
    return {key.rpartition(".")[2] for key in keys if key.startswith(f"{PARTS}.")}


async def test_a_zone_comes_into_force_when_all_of_it_is_there(pair: list[ZoneGateway]) -> None:
    """8.6: nobody is answered from half a zone: the version before stays in force."""
    one, other = pair
    await one.writer.put(None, zone("www A 192.0.2.1\n"))
    await until(lambda: other.zones.version(ORIGIN) is not None)
    made = apply(zone("www A 192.0.2.2\n"), large(4_000))
    packed = pack(made)
    head = ZoneHead(
        *(ORIGIN, made.serial, made.records, packed.size, packed.lead),
        tuple((f"{number:016}",) for number in range(packed.count)),
    )
    await one.store.write(head)
    await until(lambda: bool(one.zones.faults and other.zones.faults))
    assert other.ask("www.z. A") == "NOERROR | AA | www.z. A 192.0.2.1"
    for number, content in packed.places.items():
        part = ZonePart(ORIGIN, f"{number:016}", content)
        await one.store.write(part)
    for gateway in pair:
        await until(lambda gateway=gateway: gateway.ask("www.z. A").endswith(" 192.0.2.2"))  # type: ignore[misc]
        assert not gateway.zones.faults


async def test_what_cannot_be_read_leaves_the_version_before_in_force(
    bus: Nats, pair: list[ZoneGateway]
) -> None:
    """7.5: a record of a later version, or a broken one, is skipped and counted."""
    one, other = pair
    await one.writer.put(None, zone("www A 192.0.2.1\n"))
    await until(lambda: other.zones.version(ORIGIN) is not None)
    good = one.version().record
    client = await nats.connect(bus.url, allow_reconnect=False)
    broken = ZoneHead(ORIGIN, good.serial + 1, good.records + 1, good.size, good.content)
    values = (b'{"v":9}', b"garbage", encode(broken))
    for revision, value in enumerate(values, one.version().head.revision + 1):
        await client.publish(jetstream.subject(BUCKET, head_key(ORIGIN)), value)
        await _heard(pair, revision)
        await until(lambda: bool(one.zones.faults and other.zones.faults))
        assert one.ask("www.z. A") == other.ask("www.z. A") == "NOERROR | AA | www.z. A 192.0.2.1"
    with pytest.raises(Conflict):
        await one.change(address(1))
    await one.store.delete(head_key(ORIGIN))
    await until(lambda: other.ask("www.z. A") == "REFUSED", 2.0)
    assert not one.zones.faults
    await client.close()


async def test_writes_without_the_bus_are_refused_and_what_is_in_force_stays(
    bus: Nats, pair: list[ZoneGateway]
) -> None:
    """7.5, 11.2: a change is stored or refused; answers go on."""
    one, _ = pair
    await one.writer.put(None, apply(zone("www A 192.0.2.1\n"), large(4_000)))
    bus.kill()
    with pytest.raises(Unavailable):
        await one.change(address(1))
    assert one.ask("www.z. A") == "NOERROR | AA | www.z. A 192.0.2.1"


async def test_what_a_killed_writer_left_goes_with_a_later_change(
    pair: list[ZoneGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: parts that no zone names do not stay for ever."""
    one, other = pair
    made = apply(zone(""), large(4_000))
    await one.writer.put(None, made)
    left = ZonePart(ORIGIN, "0" * 16, b"")
    await one.store.write(left)
    again = edit(made, [address(1)])
    await one.writer.put(one.version(), again)
    await until(lambda: _parts(one) == one.version().record.parts | {"0" * 16})
    monkeypatch.setattr(zone_store, "ABANDONED", -1.0)
    await one.writer.put(one.version(), edit(again, [address(2)]))
    await until(lambda: _parts(other) == one.version().record.parts)
    assert key_of(left) == part_key(ORIGIN, "0" * 16)


async def test_the_parts_of_what_may_be_stored_stay(
    pair: list[ZoneGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: a writer that is ended while it is stored does not delete what the zone is made of."""
    one, other = pair
    write = one.store.write

    async def ended(record: Record, expect: int | None = None) -> Stored:
        stored = await write(record, expect)
        if isinstance(record, ZoneHead):
            raise asyncio.CancelledError
        return stored

    monkeypatch.setattr(one.store, "write", ended)
    with pytest.raises(asyncio.CancelledError):
        await one.writer.put(None, apply(zone(""), large(4_000)))
    await until(lambda: other.ask("h1.z. A").startswith("NOERROR"))
    assert not one.writer._sweeping
    assert _parts(other) == other.version().record.parts


async def test_a_part_alone_is_nothing(
    pair: list[ZoneGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.3: where the answer to a part is lost, nothing of the change is stored."""
    one, _ = pair

    async def lost(record: Record, expect: int | None = None) -> Stored:
        raise Unavailable("no answer", sent=True)

    monkeypatch.setattr(one.store, "write", lost)
    with pytest.raises(Unavailable) as refused:
        await one.writer.put(None, apply(zone(""), large(4_000)))
    assert not refused.value.sent


async def test_a_zone_with_too_many_parts_is_refused_before_one_is_written(
    pair: list[ZoneGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: a zone of any size is kept, or refused as too large."""
    one, _ = pair
    monkeypatch.setattr(zone_store, "LARGEST", 600)
    await one.writer.put(None, zone("www A 192.0.2.1\n"))
    with pytest.raises(EditRefused) as refused:
        await one.writer.put(one.version(), apply(zone(""), large(20_000)))
    assert refused.value.why is Why.ZONE_TOO_LARGE
    assert one.ask("www.z. A") == "NOERROR | AA | www.z. A 192.0.2.1"
    assert _parts(one) == set()


async def test_what_cannot_be_made_is_not_tried_again_and_again(
    pair: list[ZoneGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: a large zone whose parts are there and wrong costs one attempt until it is written."""
    one, other = pair
    makings: list[bytes] = []
    make = zones_module._whole

    def counted(head: ZoneHead, contents: Contents) -> Zone:
        makings.append(head.origin)
        return make(head, contents)

    monkeypatch.setattr(zones_module, "_whole", counted)
    made = apply(zone("www A 192.0.2.1\n"), large(4_000))
    packed = pack(made)
    parts = [ZonePart(ORIGIN, f"{number:016}", each) for number, each in packed.places.items()]
    head = ZoneHead(
        *(ORIGIN, made.serial, made.records + 1, packed.size, packed.lead),
        tuple((part.name,) for part in parts),
    )
    for part in parts:
        await one.store.write(part)
    await one.store.write(head)
    await until(lambda: all(gateway.zones.faults for gateway in pair))
    # A small zone that comes later is made after whatever was to be made again.
    for number in range(3):
        await one.writer.put(None, build(wire(f"s{number}."), _small(f"s{number}.")))
    await until(lambda: other.zones.version(wire("s2.")) is not None)
    assert [gateway.zones.waiting for gateway in pair] == [0, 0]
    assert makings.count(ORIGIN) == 2
    await one.store.write(replace(head, records=made.records))
    await same(pair, made)
    assert not one.zones.faults


async def test_a_fault_of_ours_in_one_zone_keeps_no_other_away(
    bus: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.4: nobody is told that a name is not ours because another zone could not be made."""
    (one,) = await start(bus, 1)
    for name in ("a.", "bad.", "z."):
        await one.writer.put(None, build(wire(name), _small(name)))
    await one.stop()
    make = zones_module._whole

    def failing(head: ZoneHead, contents: Contents) -> Zone:
        if head.origin == wire("bad."):
            raise KeyError(head.origin)
        return make(head, contents)

    monkeypatch.setattr(zones_module, "_whole", failing)
    late = ZoneGateway(one.servers, name="late")
    await late.start()
    try:
        for name in ("a.", "z."):
            assert late.ask(f"www.{name} A") == f"NOERROR | AA | www.{name} A 0.0.0.1"
        assert late.zones.faults.keys() == {wire("bad.")}
        assert late.ask("www.bad. A") == "SERVFAIL"
        assert late.zones.count == 2
        assert late.zones.faults[wire("bad.")].startswith("internal error: KeyError")
        monkeypatch.undo()
        late.zones.follow(late.store.desired, [wire("bad.")])
        await until(lambda: late.ask("www.bad. A").startswith("NOERROR"))
        assert late.zones.count == 3
    finally:
        await late.stop()


async def test_no_zone_waits_for_a_large_one(pair: list[ZoneGateway]) -> None:
    """8.6: others come into force while a large zone is made."""
    one, other = pair
    await other.writer.put(None, build(wire("small."), _small("small.")))
    busy = asyncio.create_task(one.aside.run(time.sleep, 3.0))
    made = apply(zone(""), large(4_000))
    writing = asyncio.create_task(other.writer.put(None, made))
    await until(lambda: bool(one.zones.waiting))
    before = other.version("small.")
    changed = edit(before.zone, [address(7, "www.small.")])
    await other.writer.put(before, changed, {wire("small."), wire("www.small.")})
    await until(lambda: one.ask("www.small. A").endswith("0.0.0.7"), 2.0)
    assert one.zones.version(ORIGIN) is None
    await asyncio.gather(busy, writing)
    await same(pair, made)


async def test_many_small_zones_are_in_force_at_once(pair: list[ZoneGateway]) -> None:
    """8.6: a load of many zones is one change of what is in force, not thousands."""
    one, other = pair
    zones = [build(wire(f"z{n}."), _small(f"z{n}.")) for n in range(300)]
    begun = time.monotonic()
    await asyncio.gather(*(one.writer.put(None, made) for made in zones))
    await until(lambda: len(list(other.zones.catalog)) == 300)
    assert other.catalogs <= 5 + 20 * (time.monotonic() - begun)
    assert one.zones.records == 900


def _small(origin: str) -> list[Change]:
    soa = wire("ns.") + wire("root.") + b"".join(n.to_bytes(4, "big") for n in (1, 2, 3, 4, 5))
    return [
        Change(wire(origin), 6, RRset(6, 300, (soa,))),
        Change(wire(origin), 2, RRset(2, 300, (wire("ns."),))),
        address(1, f"www.{origin}"),
    ]
