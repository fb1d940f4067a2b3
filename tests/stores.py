"""The durable state as gateways have it, over a real nats-server with JetStream, in this process.

`Gateways` makes any number of them; `fill` writes a bucket as quickly as the server takes it.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from smartgw.routing.reserved import Reserved
from smartgw.state import jetstream
from smartgw.state.desired import Desired, Difference
from smartgw.state.records import App, Record, encode, key_of, register
from smartgw.state.store import Store
from smartgw_hosts.bus import Bus
from tests.gateway import Cluster
from tests.servers import Nats, free_port

BUCKET = "smartgw"
RESERVED = Reserved.of(["smart-app.test"], ["api.smart-app.test"])


async def until(condition: Callable[[], object], within: float = 20.0, what: str = "") -> None:
    """Wait until `condition()` is true. Raises TimeoutError that says `what` was awaited."""
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise TimeoutError(f"not within {within} s: {what or condition}") from None


class NatsCluster:
    """Three nats-servers with JetStream that keep a bucket together."""

    def __init__(self) -> None:
        self.all = [Nats(jetstream=True) for _ in range(3)]
        ports = [free_port() for _ in self.all]
        for number, (server, port) in enumerate(zip(self.all, ports, strict=True)):
            routes = ", ".join(f'"nats-route://127.0.0.1:{p}"' for p in ports if p != port)
            server.configure(
                f"server_name: n{number}\ncluster {{ name: tests, "
                f'listen: "127.0.0.1:{port}", routes: [{routes}], pool_size: 1 }}'
            )

    @property
    def servers(self) -> list[str]:
        """Their URLs."""
        return [server.url for server in self.all]

    async def start(self) -> None:
        """Start all, and wait until they have agreed on a leader."""
        for server in self.all:
            server.spawn()
        for server in self.all:
            await until(server.ready)
        client = await nats.connect(self.all[0].url)
        try:
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(nats.errors.Error):
                        await client.jetstream().account_info()
                        return
                    await asyncio.sleep(0.1)
        finally:
            await client.close()

    def stop(self) -> None:
        """End all."""
        for server in self.all:
            server.stop()


class OneGateway:
    """One gateway's store with its own connection. `changes` are those that came into force."""

    def __init__(
        self, servers: Iterable[str], *, name: str = "gw", reconcile: float = 300.0, **options: Any
    ) -> None:
        self.bus = Bus(
            tuple(servers),
            name=name,
            nkey_seed=options.pop("nkey_seed", None),
            on_state=self._on_bus,
            timeout=1.0,
            backoff=(0.05, 0.5),
        )
        self.changes: list[Difference] = []
        self.cluster: NatsCluster | None = options.pop("cluster", None)
        self.store = Store(
            self.bus,
            options.pop("inbox", f"_INBOX.smartgw.{name}"),
            bucket=options.pop("bucket", BUCKET),
            replicas=options.pop("replicas", 1),
            reconcile=reconcile,
            reserved=options.pop("reserved", RESERVED),
            on_change=self._on_change,
        )

    async def start(self) -> None:
        """Begin, without waiting for the bus."""
        self.store.start()
        await self.bus.start()

    async def stop(self) -> None:
        """End it."""
        await self.store.stop()
        await self.bus.stop()

    def _on_bus(self, connected: bool) -> None:
        self.store.on_bus(connected)

    def _on_change(self, desired: Desired, difference: Difference) -> None:
        assert desired is self.store.desired
        self.changes.append(difference)


class Gateways:
    """Gateways of one bus; leaves none behind."""

    def __init__(self, nats_server: Nats) -> None:
        self.nats = nats_server
        self.all: list[OneGateway] = []
        self._client: Client | None = None

    async def add(self, *, wait: bool = True, **options: Any) -> OneGateway:
        """Start one more, and wait until it follows the bucket."""
        servers = options.pop("servers", [self.nats.url])
        restored = options.pop("restored", None)
        gateway = OneGateway(servers, name=f"gw{len(self.all)}", **options)
        if restored is not None:
            gateway.store.restore(*restored)
        self.all.append(gateway)
        await gateway.start()
        if wait:
            await until(lambda: gateway.store.live, what=gateway.store.fault)
        return gateway

    async def client(self) -> Client:
        """An operator's own connection to the bus."""
        if self._client is None or not self._client.is_connected:
            self._client = await nats.connect(self.nats.url, allow_reconnect=False)
        return self._client

    async def put(self, key: str, value: bytes) -> int:
        """Write to the bucket as `nats kv put` does; returns the revision."""
        client = await self.client()
        answer = await client.request(jetstream.subject(BUCKET, key), value, timeout=5)
        return int(json.loads(answer.data)["seq"])

    async def ask(self, subject: str, question: Any = None) -> Any:
        """Ask JetStream itself."""
        client = await self.client()
        data = b"" if question is None else json.dumps(question).encode()
        return json.loads((await client.request(subject, data, timeout=5)).data)

    async def agree(self, within: float = 10.0) -> str:
        """Wait until all gateways have the bucket's last state; returns its digest."""
        stores = [gateway.store for gateway in self.all]
        state = (await self.ask(jetstream.bucket_question(BUCKET)))["state"]
        last = state["last_seq"] if state["messages"] else 0

        def agreed() -> bool:
            there = all(store.live and store.desired.revision >= last for store in stores)
            return there and len({store.desired.digest for store in stores}) == 1

        await until(agreed, within, "the same state at all gateways")
        return stores[0].desired.digest

    async def stop(self) -> None:
        """End all."""
        for gateway in self.all:
            await gateway.stop()
        if self._client is not None:
            await self._client.close()


def put(cluster: Cluster, *records: Record) -> None:
    """Write records to the bucket, as `nats kv put` does."""
    for record in records:
        cluster.bus.publish(jetstream.subject(BUCKET, key_of(record)), encode(record))


def delete(cluster: Cluster, key: str) -> None:
    """Delete a record from the bucket, as `nats kv del` does."""
    headers = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    cluster.bus.publish(jetstream.subject(BUCKET, key), b"", headers)


async def fill(client: Client, records: Iterable[Record]) -> int:
    """Write many records at once; returns the last revision."""
    last = 0
    waiting: list[asyncio.Future[Any]] = []
    for record in records:
        subject = jetstream.subject(BUCKET, key_of(record))
        waiting.append(asyncio.ensure_future(client.request(subject, encode(record), timeout=30)))
        if len(waiting) == 500:
            last = max([int(json.loads(a.data)["seq"]) for a in await asyncio.gather(*waiting)])
            waiting.clear()
    if waiting:
        last = max([int(json.loads(a.data)["seq"]) for a in await asyncio.gather(*waiting)])
    return last


def many(count: int, hostnames: int = 2) -> Iterable[App]:
    """Apps with exact hostnames, each name once."""
    for number in range(count):
        names = [f"www{n}.app-{number}.example" for n in range(hostnames)]
        yield register(app_id=f"app-{number}", hostnames=names)
