"""How a gateway keeps up with the bucket, whatever happens to it (smartgw/state/follow.py)."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest

from smartgw.state import follow, jetstream
from smartgw.state.desired import Entry
from smartgw.state.durable import Unavailable
from smartgw.state.jetstream import Refused, answer, entry, place
from smartgw.state.records import app_key, register
from smartgw_hosts.bus_queue import Delivery
from tests.jetstream_api import back_up, put_back
from tests.servers import Nats
from tests.stores import BUCKET, Gateways, OneGateway, fill, many, until

STREAM = jetstream.stream(BUCKET)


@pytest.fixture
async def gateways() -> AsyncIterator[Gateways]:
    async with Nats(jetstream=True) as server:
        gateways = Gateways(server)
        try:
            yield gateways
        finally:
            await gateways.stop()


def lose(gateway: OneGateway, lost: set[int]) -> None:
    """Have the next messages of the bucket with these numbers not arrive, as by a full queue."""
    feeds = gateway.bus.queue.feeds
    feed = next(feed for subject, feed in feeds.items() if ".p." in subject)
    handler, numbers = feed.handler, iter(range(1_000_000))

    def lossy(delivery: Delivery) -> None:
        if delivery.reply.startswith("$JS.ACK") and next(numbers) in lost:
            return
        handler(delivery)

    feed.handler = lossy


async def test_a_message_that_does_not_arrive_is_noticed(gateways: Gateways) -> None:
    """R16: gap detected, resync: within a moment, and whichever message it is."""
    one, other = await gateways.add(), await gateways.add()
    lose(other, {0, 5, 6, 19})
    for number in range(20):
        await one.store.write(register(app_id=f"app-{number}"))
    await gateways.agree(follow.SILENT + 2)
    assert other.store.counters["gaps"] >= 1
    assert other.store.counters["sweeps"] == 1
    assert len(other.store.desired.records) == 20


async def test_what_was_missed_all_the_same_heals_itself(gateways: Gateways) -> None:
    """Control plane: periodic full reconciliation, so that a missed message heals itself."""
    one, other = await gateways.add(), await gateways.add(reconcile=0.3)
    await fill(await gateways.client(), many(500, 1))
    await gateways.agree()
    view = other.store._view
    take, chance = view.take, random.Random(1)

    def forgetful(entry: Entry, *, swept: bool) -> None:
        if swept or chance.random() < 0.5:
            take(entry, swept=swept)

    view.take = forgetful  # type: ignore[method-assign]
    for number in range(10):
        await one.store.write(register(app_id=f"app-{number}", limit=7))
        await one.store.delete(app_key(f"app-{number + 100}"))
        await one.store.write(register(app_id=f"new-{number}"))
    # Compared by what is in force: the last revision itself may be among the forgotten.
    await until(lambda: other.store.desired.digest == one.store.desired.digest)
    assert other.store.counters["healed"] > 0
    assert other.store.counters["gaps"] == 0


async def test_reading_the_whole_changes_nothing(gateways: Gateways) -> None:
    """R09: a full resync under load of changes: nothing appears, goes or moves for it."""
    one, other = await gateways.add(), await gateways.add(reconcile=0.1)
    await fill(await gateways.client(), many(2000, 1))
    await gateways.agree()
    begun, changes = other.store.counters["sweeps"], len(other.changes)
    for number in range(100):
        await one.store.write(register(app_id=f"app-{number}", limit=number + 1))
        await asyncio.sleep(0.01)
        assert len(other.store.desired.records) == 2000
    await until(lambda: other.store.counters["sweeps"] >= begun + 3)
    await gateways.agree()
    assert other.store.counters["healed"] == 0
    touched = {app_id for difference in other.changes[changes:] for app_id in difference.apps}
    assert touched == {f"app-{number}" for number in range(100)}


async def test_its_consumers_are_taken_away(gateways: Gateways) -> None:
    """R16: subscriptions live again, whoever ended them."""
    one, other = await gateways.add(), await gateways.add()
    await one.store.write(register(app_id="a"))
    names = (await gateways.ask(f"$JS.API.CONSUMER.NAMES.{STREAM}"))["consumers"]
    assert len(names) == 2, "one for each gateway; that of a reading was given back"
    for name in names:
        await gateways.ask(jetstream.consumer_end(BUCKET, name))
    await gateways.put(app_key("b"), b"{}")
    await gateways.agree()
    assert len(other.store.desired.records) == 2


async def test_the_bucket_is_emptied(gateways: Gateways) -> None:
    """Control plane: a purge sends no message, and is in force with the next reading."""
    one = await gateways.add(reconcile=0.3)
    other = await gateways.add(reconcile=0.3)
    await fill(await gateways.client(), many(50, 1))
    await gateways.agree()
    await gateways.ask(f"$JS.API.STREAM.PURGE.{STREAM}")
    await until(lambda: not len(one.store.desired.records) and not len(other.store.desired.records))
    stored = await one.store.write(register(app_id="app-1"), 0)
    assert stored.revision == 51
    await gateways.agree()


async def test_a_lost_bucket_takes_nothing_with_it(gateways: Gateways) -> None:
    """11.2: what is in force stays when the bucket is gone or new and empty; writes are refused,
    so that the first of them does not stand for the whole.
    """
    one, other = await gateways.add(), await gateways.add()
    await fill(await gateways.client(), many(50, 1))
    digest = await gateways.agree()
    await gateways.ask(f"$JS.API.STREAM.DELETE.{STREAM}")
    for gateway in (one, other):
        await until(lambda gateway=gateway: "is gone" in gateway.store.fault)  # type: ignore[misc]
        with pytest.raises(Unavailable, match="restore it"):
            await gateway.store.write(register(app_id="x"))
    question = jetstream.create_question(BUCKET, 1)
    await gateways.ask(question[0], json.loads(question[1]))
    await until(lambda: "new and empty" in one.store.fault)
    with pytest.raises(Unavailable, match="new and empty"):
        await one.store.delete(app_key("app-1"))
    assert one.store.desired.digest == other.store.desired.digest == digest
    await gateways.put("begin", b"anew")
    assert await gateways.agree() != digest
    assert [key for key, _ in one.store.desired.records.items()] == ["begin"]
    await one.store.write(register(app_id="x"))


async def test_a_bucket_restored_from_a_backup_is_one_change(gateways: Gateways) -> None:
    """Control plane: a bucket restored from a backup is taken in as one swap, also where that
    turns revisions back.
    """
    one, other = await gateways.add(), await gateways.add()
    await fill(await gateways.client(), many(2000, 2))
    await one.store.write(register(app_id="kept", label="kept"))
    digest = await gateways.agree()
    backup = await back_up(await gateways.client(), BUCKET)
    for number in range(30):
        await one.store.delete(app_key(f"app-{number}"))
        await one.store.write(register(app_id=f"new-{number}"))
    await gateways.agree()
    changes = [len(gateway.changes) for gateway in (one, other)]
    await put_back(await gateways.client(), BUCKET, backup)
    await until(lambda: one.store.desired.digest == other.store.desired.digest == digest)
    await gateways.agree()
    assert [len(gateway.changes) for gateway in (one, other)] == [count + 1 for count in changes]
    expected = {f"{prefix}-{n}" for prefix in ("app", "new") for n in range(30)}
    assert one.changes[-1].apps == other.changes[-1].apps == expected
    stored = one.store.desired.stored(app_key("kept"))
    assert stored is not None
    again = await other.store.write(register(app_id="kept", limit=5), stored.revision)
    assert again.revision > stored.revision


async def test_a_bucket_that_went_back_while_we_were_away(gateways: Gateways) -> None:
    """Control plane: revisions that count anew are noticed though they have caught up."""
    one = await gateways.add()
    await fill(await gateways.client(), many(20, 1))
    backup = await back_up(await gateways.client(), BUCKET)
    for number in range(5):
        await one.store.write(register(app_id=f"app-{number}", limit=1))
    before = one.store.desired
    await one.stop()
    await put_back(await gateways.client(), BUCKET, backup)
    two = await gateways.add()
    for number in range(3, 15):
        await two.store.write(register(app_id=f"app-{number}", limit=2))
    assert two.store.desired.revision > before.revision
    again = await gateways.add(restored=(before, 0.0), reconcile=0.3)
    await until(lambda: again.store.desired.digest == two.store.desired.digest)


async def test_silence_is_noticed(gateways: Gateways) -> None:
    """Control plane: reads say how old they are as soon as nothing is heard any more."""
    gateway = await gateways.add()
    await gateway.store.write(register(app_id="a"))
    gateways.nats.freeze()
    await until(lambda: not gateway.store.live, follow.SILENT + 5)
    gateways.nats.thaw()
    await until(lambda: gateway.store.live)
    await gateway.store.write(register(app_id="b"))


async def test_many_gateways_start_at_once(gateways: Gateways) -> None:
    """Control plane: the bucket is made when it is missing, once, whoever is first."""
    await asyncio.gather(*(gateways.add() for _ in range(5)))
    await gateways.all[3].store.write(register(app_id="a"))
    await gateways.agree()
    config = (await gateways.ask(jetstream.bucket_question(BUCKET)))["config"]
    assert config["max_msgs_per_subject"] == jetstream.HISTORY
    assert (config["num_replicas"], config["discard"]) == (1, "new")


async def test_replicas_that_are_not_to_be_had(gateways: Gateways) -> None:
    """Control plane: what the setting asks for and the bus cannot give is said."""
    gateway = await gateways.add(wait=False, replicas=3)
    await until(lambda: "replicas > 1 not supported" in gateway.store.fault)
    await gateways.add()
    await until(lambda: gateway.store.live)
    assert "NATS servers that keep the bucket: 1, not 3" in gateway.store.degraded()[0]


@pytest.mark.parametrize("payload", [b"", b"[]", b"x", b"[" * 9999, b'{"error":{"err_code":"x"}}'])
def test_what_is_no_answer(payload: bytes) -> None:
    """R16: whatever comes in the place of an answer, it is refused."""
    with pytest.raises(Refused):
        answer(payload)


@pytest.mark.parametrize(
    "reply", ["", "x", "$JS.ACK", "$JS.ACK.a.b.1.2.3.x.5", "a.b.c.d.e.f.1.2.3"]
)
def test_what_was_not_delivered_by_a_consumer(reply: str) -> None:
    """R16: a message that anybody sent to our inbox is none of the bucket's."""
    with pytest.raises(ValueError, match=r"not delivered|invalid literal"):
        place(reply)


def test_where_a_message_stands() -> None:
    """ADR-15: with a domain and an account, and without."""
    short = place("$JS.ACK.KV_x.gw-1.1.42.7.1796004708238585603.3")
    assert (short.consumer, short.revision, short.count, short.pending) == ("gw-1", 42, 7, 3)
    assert short == place("$JS.ACK.hub.acc.KV_x.gw-1.1.42.7.1796004708238585603.3.random")
    assert entry("x", "$KV.x.", b"", b"", short) is None
    assert entry("x", "$KV.y.a", b"", b"", short) is None
    marker = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"
    assert entry("x", "$KV.x.a", b"", marker, short) == Entry("a", None, 42, short.time)
