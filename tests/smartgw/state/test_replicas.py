"""The durable state on three nats-servers, of which one may fail at a time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from smartgw.state import jetstream
from smartgw.state.durable import Conflict, NameTaken, Unavailable
from smartgw.state.records import app_key, register
from tests.stores import BUCKET, Gateways, NatsCluster, OneGateway, until


@pytest.fixture
async def gateways() -> AsyncIterator[Gateways]:
    """Three gateways, each of which prefers a server of its own."""
    cluster = NatsCluster()
    gateways = Gateways(cluster.all[0])
    try:
        await cluster.start()
        for number in range(3):
            servers = cluster.servers[number:] + cluster.servers[:number]
            await gateways.add(servers=servers, replicas=3, cluster=cluster)
        yield gateways
    finally:
        await gateways.stop()
        cluster.stop()


def servers_of(gateways: Gateways) -> NatsCluster:
    cluster = gateways.all[0].cluster
    assert cluster is not None
    return cluster


async def keep_writing(gateway: OneGateway, name: str, done: asyncio.Event) -> dict[str, int]:
    """Write one app after the other; returns those that were acknowledged with their limits."""
    stored: dict[str, int] = {}
    number = 0
    while not done.is_set():
        number += 1
        app_id = f"{name}-{number % 50}"
        try:
            await gateway.store.write(register(app_id=app_id, limit=number))
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            stored[app_id] = number
    return stored


async def test_every_server_is_restarted_in_turn(gateways: Gateways) -> None:
    """Control plane: after a restart of every bus node one by one nothing is lost; what cannot be
    stored is refused.
    """
    cluster, done = servers_of(gateways), asyncio.Event()
    info = await gateways.ask(jetstream.bucket_question(BUCKET))
    assert info["config"]["num_replicas"] == 3
    writing = [
        asyncio.create_task(keep_writing(gateway, f"app{number}", done))
        for number, gateway in enumerate(gateways.all)
    ]
    for server in cluster.all:
        await asyncio.sleep(0.5)
        server.kill()
        await asyncio.sleep(1)
        await server.start_async()
        await until(lambda: all(gateway.store.live for gateway in gateways.all), 30)
    done.set()
    stored = {
        app_id: limit for found in await asyncio.gather(*writing) for app_id, limit in found.items()
    }
    assert len(stored) > 100
    await gateways.agree(30)
    desired = gateways.all[0].store.desired
    for app_id, limit in stored.items():
        app = desired.app(app_id)
        assert app is not None
        # A write that was refused as unavailable may have been stored all the same, after it.
        assert app.limit is not None
        assert app.limit >= limit


async def test_names_are_given_once_whoever_leads(gateways: Gateways) -> None:
    """5: one label, one app, with gateways on different servers of the bus."""
    writes = [
        gateways.all[n % 3].store.write(register(app_id=f"app-{n}", label=f"label-{n % 10}"))
        for n in range(90)
    ]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(result, NameTaken) for result in results) == 80
    await gateways.agree()
    assert gateways.all[0].store.desired.contested == 0


async def test_conflicts_among_several_servers_are_conflicts(gateways: Gateways) -> None:
    """Control plane: each of many conflicting writes is applied in full or refused as a conflict,
    also while the write before it is still on its way from one NATS server to the others.
    """

    async def change(number: int) -> None:
        store, app_id = gateways.all[number % 3].store, f"app-{number % 2}"
        for turn in range(10):
            if (number + turn) % 3:
                await store.write(register(app_id=app_id, limit=number + 1))
            else:
                await store.delete(app_key(app_id))

    results = await asyncio.gather(*map(change, range(12)), return_exceptions=True)
    assert [result for result in results if result is not None] == []
    await gateways.agree()


async def test_without_a_majority_nothing_is_written(gateways: Gateways) -> None:
    """Control plane: a write that cannot be stored is refused with 503, never half done."""
    cluster = servers_of(gateways)
    gateway = gateways.all[0]
    first = await gateway.store.write(register(app_id="shop"))
    for server in cluster.all[1:]:
        server.kill()
    with pytest.raises(Unavailable):
        await gateway.store.write(register(app_id="shop", limit=5), first.revision)
    assert gateway.store.desired.app("shop") is not None
    assert gateway.store.degraded()
    for server in cluster.all[1:]:
        await server.start_async()
    await until(lambda: all(one.store.live for one in gateways.all), 60)
    await gateways.agree(30)
    stored = gateway.store.desired.stored(app_key("shop"))
    assert stored is not None
    # Refused is refused, or it came later: then whoever asks again is told.
    if stored.revision != first.revision:
        with pytest.raises(Conflict) as refused:
            await gateways.all[1].store.write(register(app_id="shop", limit=6), first.revision)
        assert refused.value.revision == stored.revision
