"""The durable state over a real nats-server with JetStream (smartgw/state/store.py)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from smartgw.routing.policy import AppState
from smartgw.state import jetstream
from smartgw.state.durable import Conflict, NameTaken, Unavailable
from smartgw.state.records import app_key, encode, enrolment_key, register
from smartgw_hosts.bus_queue import Delivery
from smartgw_hosts.bus_requests import Nobody
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import Identity
from tests.servers import Nats
from tests.stores import BUCKET, Gateways, fill, many, until

SHOP = register(app_id="shop", hostnames=["www.shop.example"])
KEY = Identity.from_seed(bytes(32)).public_key


@pytest.fixture
async def gateways() -> AsyncIterator[Gateways]:
    async with Nats(jetstream=True) as server:
        gateways = Gateways(server)
        try:
            yield gateways
        finally:
            await gateways.stop()


async def test_a_write_at_one_gateway_is_in_force_at_all(gateways: Gateways) -> None:
    """7.5: a mapping made at any gateway serves at all of them within 2 s."""
    one, other = await gateways.add(), await gateways.add()
    stored = await one.store.write(SHOP)
    assert one.store.desired.stored(app_key("shop")) == stored
    await until(lambda: other.store.desired.app("shop") == SHOP, 2)
    assert other.store.desired.stored(app_key("shop")) == stored
    enrolment = Enrolment("shop-1", KEY, "eu-1", ("shop",))
    await other.store.write(enrolment)
    await until(lambda: one.store.desired.enrolment("eu-1", "shop-1") == enrolment, 2)
    assert one.changes[-1].enrolments
    digest = await gateways.agree()
    deleted = await one.store.delete(app_key("shop"))
    assert deleted == stored
    await until(lambda: other.store.desired.app("shop") is None, 2)
    assert await gateways.agree() != digest
    await one.store.delete(enrolment_key("eu-1", "shop-1"))
    assert int(await gateways.agree(), 16) == 0
    assert one.store.age == 0
    assert one.store.degraded() == []


async def test_a_write_is_for_the_revision_that_it_saw(gateways: Gateways) -> None:
    """10.3: If-Match; a conflict carries the revision that there is."""
    one, other = await gateways.add(), await gateways.add()
    first = await one.store.write(SHOP, 0)
    with pytest.raises(Conflict) as refused:
        await other.store.write(register(app_id="shop"), 0)
    assert refused.value.revision == first.revision
    second = await other.store.write(register(app_id="shop", limit=5), first.revision)
    assert second.revision > first.revision
    for stale in (one, other):
        with pytest.raises(Conflict) as refused:
            await stale.store.write(SHOP, first.revision)
        assert refused.value.revision == second.revision
        with pytest.raises(Conflict):
            await stale.store.delete(app_key("shop"), first.revision)
    # The same again changes nothing, and is no conflict.
    assert await one.store.write(register(app_id="shop", limit=5)) == second
    assert await one.store.delete(app_key("shop"), second.revision) == second
    assert await other.store.delete(app_key("shop")) is None
    with pytest.raises(Conflict) as refused:
        await one.store.write(SHOP, second.revision)
    assert refused.value.revision == 0
    # What was deleted can be made anew.
    assert (await other.store.write(SHOP, 0)).revision > second.revision


async def test_what_was_deleted_long_ago_was_not_missed(gateways: Gateways) -> None:
    """Control plane: only a change that did not come is told as one that was missed."""
    gateway = await gateways.add(reconcile=0.2)
    await gateway.store.write(SHOP)
    await gateway.store.delete(app_key("shop"))
    sweeps = gateway.store.counters["sweeps"]
    await until(lambda: gateway.store.counters["sweeps"] > sweeps + 1)
    assert gateway.store.counters["healed"] == 0


async def test_one_label_one_app(gateways: Gateways) -> None:
    """3.3, 5: a name is one app's; a conflict carries the holder, the gateway's own have none."""
    one, other = await gateways.add(), await gateways.add()
    await one.store.write(SHOP)
    for record, name, holder in (
        (register(app_id="x", label="shop"), "shop", "shop"),
        (register(app_id="x", hostnames=["WWW.shop.example."]), "www.shop.example", "shop"),
        (register(app_id="x", label="api"), "api", None),
        (register(app_id="api"), "api", None),
        (register(app_id="verify"), "verify", None),
        (register(app_id="x", label="verify"), "verify", None),
        (register(app_id="x", hostnames=["api.smart-app.test"]), "api.smart-app.test", None),
        (register(app_id="x", hostnames=["y.smart-app.test"]), "y.smart-app.test", None),
    ):
        for gateway in (one, other):
            with pytest.raises(NameTaken) as refused:
                await gateway.store.write(record)
            assert (refused.value.name, refused.value.holder) == (name, holder)
    told = "below the base domain smart-app.test: give what stands before that as label"
    for name, why in (
        ("y.smart-app.test", told),
        ("y.z.smart-app.test", told),
        ("api.smart-app.test", "reserved for the gateway"),
        ("smart-app.test", "reserved for the gateway"),
    ):
        with pytest.raises(NameTaken, match=f"{name} is {why}"):
            await one.store.write(register(app_id="x", hostnames=[name]))
    await other.store.write(register(app_id="shop", label="store"))
    stored = await one.store.write(register(app_id="x", label="shop", hostnames=SHOP.hostnames))
    assert stored.record.claims == ("shop", "www.shop.example")  # type: ignore[union-attr]
    await one.store.delete(app_key("x"))
    await other.store.write(SHOP)


async def test_of_many_that_want_one_name_one_gets_it(gateways: Gateways) -> None:
    """5: one label, one app, whoever asks where and at the same time."""
    for _ in range(3):
        await gateways.add()
    stores = [gateway.store for gateway in gateways.all]
    writes = [
        stores[number % 3].write(register(app_id=f"app-{number}", label=f"label-{number % 20}"))
        for number in range(300)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    taken = [result for result in results if isinstance(result, NameTaken)]
    assert len(taken) == 280, [r for r in results if isinstance(r, Unavailable)][:3]
    await gateways.agree()
    holders = {f"label-{n}": stores[0].desired.holder(f"label-{n}") for n in range(20)}
    assert None not in holders.values()
    assert all(error.holder == holders[error.name] for error in taken)
    assert stores[0].desired.contested == 0


async def test_a_thousand_conflicting_writes(gateways: Gateways) -> None:
    """Control plane: each is applied in full or refused; all gateways end with the same state."""
    for _ in range(3):
        await gateways.add()
    stores = [gateway.store for gateway in gateways.all]
    begun = [await stores[0].write(register(app_id=f"app-{n}")) for n in range(10)]
    writes = [
        stores[number % 3].write(
            register(app_id=f"app-{number % 10}", limit=number + 1), begun[number % 10].revision
        )
        for number in range(1000)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    stored = [result for result in results if not isinstance(result, BaseException)]
    assert len(stored) == 10
    assert all(isinstance(r, Conflict) for r in results if isinstance(r, BaseException))
    await gateways.agree()
    for written in stored:
        for store in stores:
            assert store.desired.stored(app_key(written.record.app_id)) == written  # type: ignore[union-attr]
    # Without a revision the last one wins, and none is lost half way.
    writes = [
        stores[number % 3].write(register(app_id=f"app-{number % 10}", limit=number + 1))
        for number in range(300)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert not [result for result in results if isinstance(result, BaseException)]
    await gateways.agree()


async def test_a_burst_is_one_change(gateways: Gateways) -> None:
    """Control plane: a burst of 10,000 changes is taken in as one swap, not 10,000."""
    gateway = await gateways.add()
    await fill(await gateways.client(), many(10_000, 1))
    await until(lambda: len(gateway.store.desired.records) == 10_000)
    assert len(gateway.changes) < 200
    started = await gateways.add()
    assert len(started.changes) == 1
    await gateways.agree()


async def test_what_cannot_be_read_is_kept_as_it_is(gateways: Gateways) -> None:
    """Control plane: a record that this version cannot read is skipped, never a crash."""
    gateway = await gateways.add()
    await gateway.store.write(SHOP)
    await gateways.put(app_key("new"), b'{"v":2,"label":"mine"}')
    await gateways.put(app_key("bad"), b"\xff")
    await gateways.put("zones.x", b"{}")
    await gateways.put("a", b"")
    await until(lambda: gateway.store.desired.skipped == 4)
    assert gateway.store.desired.newer == 1
    assert "cannot read, and leaves as they are: 4" in gateway.store.degraded()[0]
    with pytest.raises(Conflict):
        await gateway.store.write(register(app_id="new"))
    with pytest.raises(Conflict):
        await gateway.store.delete(app_key("new"))
    # It may have any name, so none is given away; what claims none is stored.
    with pytest.raises(Unavailable, match="upgrade"):
        await gateway.store.write(register(app_id="other"))
    await gateway.store.write(register(app_id="shop", state="suspended"))
    # What is broken may be replaced, and deleted.
    other = await gateways.add()
    assert await other.store.delete(app_key("bad")) is None
    await until(lambda: gateway.store.desired.skipped == 3)
    await gateways.put(app_key("new"), encode(register(app_id="new")))
    await until(lambda: gateway.store.desired.newer == 0)
    await other.store.write(register(app_id="bad"))
    await gateways.agree()


async def test_two_records_that_contradict_each_other(gateways: Gateways) -> None:
    """5: one label, one app, also where records were put into the bucket by hand."""
    one, other = await gateways.add(), await gateways.add()
    await one.store.write(SHOP)
    twin = register(app_id="twin", label="shop", hostnames=["www.shop.example", "twin.example"])
    await gateways.put(app_key("twin"), encode(twin))
    await until(lambda: other.store.desired.contested == 2)
    await gateways.agree()
    assert one.store.desired.names(twin) == (None, ("twin.example",))
    assert (
        "names that more than one app claims, and the first one has: 2" in one.store.degraded()[0]
    )
    # Neither is written again while it claims what the other does: the holder would change.
    for record, holder in ((register(app_id="shop", limit=1), "twin"), (twin, "shop")):
        changed = register(app_id=record.app_id, label="shop", limit=2)
        with pytest.raises(NameTaken) as refused:
            await one.store.write(changed)
        assert refused.value.holder == holder
    await one.store.write(register(app_id="twin", label="twin"))
    await until(lambda: other.store.desired.contested == 0)


async def test_the_bus_is_away(gateways: Gateways) -> None:
    """Control plane: the bus down: reads go on and say how old they are, writes are 503."""
    gateway = await gateways.add()
    await gateway.store.write(SHOP)
    gateways.nats.kill()
    await until(lambda: not gateway.store.live)
    assert gateway.store.desired.app("shop") == SHOP
    assert "writes are refused" in gateway.store.degraded()[0]
    assert gateway.store.age is not None
    for change in (
        gateway.store.write(register(app_id="x")),
        gateway.store.delete(app_key("shop")),
    ):
        with pytest.raises(Unavailable):
            await change
    await gateways.nats.start_async()
    await until(lambda: gateway.store.live)
    assert gateway.store.age == 0
    await gateway.store.write(register(app_id="x"))
    assert gateway.store.desired.app("shop") == SHOP


async def test_what_was_written_while_we_were_away(gateways: Gateways) -> None:
    """Control plane: after a restart of every gateway and bus nothing is lost."""
    one, other = await gateways.add(), await gateways.add()
    await one.store.write(SHOP)
    await gateways.agree()
    await other.bus.stop()
    for number in range(20):
        await one.store.write(register(app_id=f"x-{number}"))
    await one.store.delete(app_key("shop"))
    again = await gateways.add(restored=(other.store.desired, 0.0))
    await until(lambda: again.store.desired.digest == one.store.desired.digest)
    assert len(again.changes) == 1
    gateways.nats.kill()
    await gateways.nats.start_async()
    await until(lambda: one.store.live and again.store.live)
    started = await gateways.add()
    assert started.store.desired.digest == one.store.desired.digest == again.store.desired.digest


async def test_a_frozen_bus_refuses_writes_in_time(gateways: Gateways) -> None:
    """Control plane: a write that cannot be stored is refused with 503, never half done."""
    gateway = await gateways.add()
    await gateway.store.write(SHOP)
    gateways.nats.freeze()
    try:
        with pytest.raises(Unavailable):
            await gateway.store.write(register(app_id="shop", limit=9))
    finally:
        gateways.nats.thaw()
    await until(lambda: gateway.store.live)


@pytest.mark.parametrize("way", ["no answer", "no time", "no JSON", "refused", "nobody"])
async def test_whether_it_may_be_stored_is_told(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """10.3: what has left may be stored, until an answer says that it is not."""
    gateway = await gateways.add()
    await gateway.store.write(SHOP)
    monkeypatch.setattr("smartgw.state.store.LONGEST", 0.2 if way == "no time" else 8.0)
    monkeypatch.setattr("smartgw.state.store.PATIENCE", 0.1 if way == "no answer" else 2.0)
    answers = {"no JSON": b"?", "refused": b'{"error": {"err_code": 10077, "description": "full"}}'}

    async def answer(subject: str, *_: object, **__: object) -> Delivery:
        if way == "nobody":
            raise Nobody("nobody answers there")
        return Delivery(subject, answers[way], "", b"")

    if way in ("no answer", "no time"):
        gateways.nats.freeze()
    else:
        monkeypatch.setattr(gateway.store._requests, "ask", answer)
    try:
        for change in (
            gateway.store.write(register(app_id="shop", hostnames=SHOP.hostnames, limit=9)),
            *([] if way != "no answer" else [gateway.store.write(register(app_id="x"))]),
        ):
            with pytest.raises(Unavailable) as refused:
                await change
            assert refused.value.sent == (way in ("no answer", "no time", "no JSON"))
    finally:
        gateways.nats.thaw()


async def test_jetstream_is_not_there() -> None:
    """Control plane: without JetStream it says so, and refuses writes."""
    async with Nats() as server:
        gateways = Gateways(server)
        gateway = await gateways.add(wait=False)
        try:
            await until(lambda: "not enabled" in gateway.store.fault)
            with pytest.raises(Unavailable, match="not enabled"):
                await gateway.store.write(SHOP)
            assert gateway.store.age is None
            assert not gateway.store.loaded
        finally:
            await gateways.stop()


async def test_the_state_of_an_app_reaches_its_policy(gateways: Gateways) -> None:
    """3.4: suspended and retired are known at every gateway."""
    gateway = await gateways.add()
    await gateway.store.write(register(app_id="shop", state="retired"))
    app = gateway.store.desired.app("shop")
    assert app is not None
    assert app.policy.state is AppState.RETIRED
    assert jetstream.stream(BUCKET) == "KV_smartgw"
