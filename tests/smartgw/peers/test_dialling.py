"""For whom a peer's gateways are dialled: a PeerLink over a dialler that opens nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from smartgw.peers.directory import Mode, View
from smartgw.peers.links import PeerLinks
from smartgw.proxy.dialler import ConnectFailed
from smartgw.routing.forwarding import Keyring
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.clusters import Gateway, parse
from tests.forwarders import cluster_key, entry, list_text

AWAY, SOUND = 7001, 7002


class Pools:
    """What PeerLinks need of the process' pools. `asked` counts the dials to each port."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.tasks: list[asyncio.Task[None]] = []
        self.dialling = 0
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

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def dial_gateway(self, gateway: Gateway, *_: object) -> None:
        self.asked[gateway.port] += 1
        if gateway.port == AWAY and not self.hang:
            self.refused.set()
            raise ConnectFailed(Verdict(Proof.UNREACHABLE, "refused"))
        if gateway.port == AWAY:
            self.hanging.set()
        await asyncio.Event().wait()


async def test_nobody_waits_for_a_look_at_a_gateway_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4.5: it is looked at in the background; who comes meanwhile has the other gateway dialled."""
    monkeypatch.setattr("smartgw.peers.links._PROBE_SECONDS", 0.01)
    pools: Any = Pools()
    settings: Any = SimpleNamespace(upstream=SimpleNamespace(connections_per_host=100))
    links = PeerLinks(settings, asyncio.get_running_loop(), pools)
    gateways = [f"http://127.0.0.1:{port}" for port in (AWAY, SOUND)]
    clusters = parse(list_text(entry("c1", "http://127.0.0.1:7000"), entry("c2", *gateways)))
    peers = {"c2": (cluster_key("c2").public_key,)}
    ring = Keyring("c1", (cluster_key("c1"),), peers)
    links.follow(View(Mode.FRESH, "c1", clusters, peers), ring)
    link: Any = links.link("c2")
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
