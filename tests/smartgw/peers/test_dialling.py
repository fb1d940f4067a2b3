"""For whom a peer's gateways are dialled, and which are doubted: a PeerLink over a dialler that
opens nothing, or connections to whoever listens.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from smartgw.peers.directory import Mode, View
from smartgw.peers.links import PeerLinks
from smartgw.proxy import headers
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.dialler import ConnectFailed
from smartgw.proxy.outlet import Turn
from smartgw.proxy.upstream import UpstreamConnection
from smartgw.routing.forwarding import Keyring
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.clusters import Gateway, parse
from smartgw_hosts.http1 import Bounds
from tests.forwarders import cluster_key, entry, list_text
from tests.listening import listening

AWAY, SOUND = 7001, 7002


class Pools:
    """What PeerLinks need of the process' pools. `asked` counts the dials to each port."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.tasks: list[asyncio.Task[None]] = []
        self.dialling = 0
        self.wanting: dict[object, None] = {}
        self.hang = False
        self.refused, self.hanging = asyncio.Event(), asyncio.Event()
        self.dialler = self
        self.failed: list[object] = []
        counters = SimpleNamespace(link_failures=Counter())
        self.path = SimpleNamespace(
            counters=counters, attempt_failed=lambda exchange, _: self.failed.append(exchange)
        )

    def make_room(self) -> bool:
        return True

    def freed(self) -> None:
        assert not self.wanting

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def dial_gateway(self, gateway: Gateway, *_: object) -> Any:
        self.asked[gateway.port] += 1
        if gateway.port == AWAY and not self.hang:
            self.refused.set()
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, "refused"))
        if gateway.port == AWAY:
            self.hanging.set()
        await asyncio.Event().wait()


def linked(pools: Any, *ports: int) -> tuple[PeerLinks, Any]:
    """The links of c1, and that to c2, whose gateways are at these ports."""
    settings: Any = SimpleNamespace(upstream=SimpleNamespace(connections_per_host=100))
    links = PeerLinks(settings, asyncio.get_running_loop(), pools)
    gateways = [f"http://127.0.0.1:{port}" for port in ports]
    clusters = parse(list_text(entry("c1", "http://127.0.0.1:7000"), entry("c2", *gateways)))
    peers = {"c2": (cluster_key("c2").public_key,)}
    ring = Keyring("c1", (cluster_key("c1"),), peers)
    links.follow(View(Mode.FRESH, "c1", clusters, peers), ring)
    return links, links.link("c2")


async def test_nobody_waits_for_a_look_at_a_gateway_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4.5: it is looked at in the background; who comes meanwhile has the other gateway dialled."""
    monkeypatch.setattr("smartgw.peers.links._PROBE_SECONDS", 0.01)
    pools: Any = Pools()
    links, link = linked(pools, AWAY, SOUND)
    try:
        # The less loaded of two: one of them goes to the gateway that is away.
        exchanges = [object() for _ in range(3)]
        assert link.take(exchanges[0]) is link.take(exchanges[1]) is None
        async with asyncio.timeout(5):
            await pools.refused.wait()
            pools.hang = True
            await pools.hanging.wait()
            assert pools.asked[SOUND] == 2
            link.take(exchanges[2])
            await asyncio.sleep(0)
        assert pools.asked[SOUND] == 3
        assert not pools.failed
    finally:
        links.close()
        for task in pools.tasks:
            task.cancel()
        await asyncio.gather(*pools.tasks, return_exceptions=True)


class Path:
    """What connections tell of: exchanges are carried, what becomes of them is `told`."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        self.turn = Turn(asyncio.get_running_loop())
        self.counters = SimpleNamespace(
            upstream_connections=0, upstream_connections_total=0, links_opened=0
        )
        self.response_names = self.peer_response_names = headers.peer_response_names()
        self.told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def carry(self, exchange: Any, connection: UpstreamConnection) -> None:
        self.connection = connection
        connection.carry(exchange, None)

    def reply(self, *_: object) -> None:
        pass

    def upstream_failed(self, exchange: Any, reason: object, detail: str) -> None:
        self.connection.abandon()
        self.told.set_result(detail)


class Connecting(Pools):
    """Opens connections without the proof that a link begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.path: Any = Path(self)
        self.deadlines = Deadlines(asyncio.get_running_loop(), 1.0)

    async def dial_gateway(self, gateway: Gateway, *_: object) -> Any:
        loop = asyncio.get_running_loop()
        marking: Any = SimpleNamespace(head=lambda _: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

        def made() -> UpstreamConnection:
            return UpstreamConnection(
                self.path, loop, self.deadlines, Bounds(), None, lambda *_: None, marking
            )

        return (await loop.create_connection(made, gateway.host, gateway.port))[1]


class Waiting:
    """What connections need to know of an exchange."""

    request = SimpleNamespace(method=b"GET", length=0)
    request_done = True
    upstream = None


@pytest.mark.parametrize(
    ("said", "failing"),
    [
        (b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Le", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False),
    ],
    ids=["nothing", "half a head", "a counted body", "a chunked body"],
)
async def test_an_answer_that_breaks_off_is_its_apps_fault(said: bytes, failing: bool) -> None:
    """4.5: no app makes the gateway that passes its answer on one that is asked last."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with listening(serve) as port:
        pools = Connecting()
        links, link = linked(pools, port)
        try:
            async with asyncio.timeout(5):
                link.take(Waiting())
                await pools.path.told
            assert bool(link._gates[0].failing) is failing
        finally:
            links.close()
