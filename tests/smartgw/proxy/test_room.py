"""Who gets a connection while the process has as many as it may: Pools over hosts on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from smartgw.config import Settings
from smartgw.peers.directory import Mode, View
from smartgw.peers.links import PeerLinks
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.link import Link
from smartgw.proxy.outlet import Turn
from smartgw.proxy.pools import Pools
from smartgw.proxy.upstream import UpstreamConnection
from smartgw.routing.forwarding import Keyring
from smartgw.routing.snapshot import HostEntry
from smartgw_hosts.clusters import Gateway, parse
from smartgw_hosts.http1 import Bounds
from tests.forwarders import cluster_key, entry, list_text
from tests.gateway import identity_of
from tests.listening import stop_listening
from tests.servers import free_port

SETTINGS = {
    "cluster": "c1",
    "base_domains": ["smart-app.example"],
    "host_networks": ["127.0.0.0/8"],
    "upstream": {"verify": "periodic"},
    "trust": {"mode": "first-use"},
}


class Waiting:
    """A request: `connection` is the one that it gets."""

    request = SimpleNamespace(method=b"POST")

    def __init__(self) -> None:
        self.connection: asyncio.Future[UpstreamConnection] = (
            asyncio.get_running_loop().create_future()
        )


class Path:
    """What connections tell of. Whatever fails is let go."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        self.turn = Turn(pools.loop)
        names = ("upstream_connections", "upstream_connections_total", "upstream_failures")
        self.counters = SimpleNamespace(**dict.fromkeys(names, 0), links_opened=0)

    def carry(self, exchange: Waiting, connection: UpstreamConnection) -> None:
        exchange.connection.set_result(connection)

    def attempt_failed(self, exchange: Waiting, reason: object, **_: object) -> None:
        exchange.connection.cancel()


class Room:
    """Links to hosts and peers, which all are one listener, within a bound for all together."""

    def __init__(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        settings = Settings.model_validate(SETTINGS)
        self.port = port
        self.pools = Pools(settings, loop, Deadlines(loop, 1.0), Bounds(), lambda _: None)
        path: Any = Path(self.pools)
        self.pools.path = path
        dialler: Any = self.pools.dialler
        dialler.dial_gateway = self._dial_gateway
        self.links = PeerLinks(settings, loop, self.pools)

    async def _dial_gateway(self, gateway: Gateway, *_: object) -> UpstreamConnection:
        address, key = f"http://{gateway.host}:{gateway.port}", identity_of("gateway").public_key
        return await self.pools.dialler.dial("gateway", address, key, prove=False)

    def host(self, name: str, port: int | None = None) -> Link:
        address = f"http://127.0.0.1:{port or self.port}"
        return self.pools.link(HostEntry(name, address, identity_of(name).public_key, 1))

    def peer(self, name: str) -> Link:
        own, gateway = entry("c1", "http://127.0.0.1:1"), f"http://127.0.0.1:{self.port}"
        clusters = parse(list_text(own, entry(name, gateway)))
        peers = {name: (cluster_key(name).public_key,)}
        ring = Keyring("c1", (cluster_key("c1"),), peers)
        self.links.follow(View(Mode.FRESH, "c1", clusters, peers), ring)
        link = self.links.link(name)
        assert link is not None
        return link

    def ask(self, link: Link) -> Waiting:
        """One more request for a link."""
        exchange: Any = Waiting()
        link.outstanding += 1
        connection = link.take(exchange)
        if connection is not None:
            exchange.connection.set_result(connection)
        return exchange  # type: ignore[no-any-return]

    async def hold(self, link: Link) -> UpstreamConnection:
        """A connection that carries something from now on."""
        return await asyncio.wait_for(self.ask(link).connection, 5)


@asynccontextmanager
async def room(most: int) -> AsyncIterator[Room]:
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made = Room(server.sockets[0].getsockname()[1])
    made.pools.allow(most)
    try:
        yield made
    finally:
        made.links.close()
        await made.pools.close()
        await stop_listening(server)
        await server.wait_closed()
        await asyncio.gather(*(task for task in serving if task is not None))


def _idle(one: Room, connection: UpstreamConnection) -> None:
    assert connection.link is not None
    connection.link.release(connection)


def _ended(one: Room, connection: UpstreamConnection) -> None:
    connection.close()


def _tunnel_over(one: Room, connection: UpstreamConnection) -> None:
    transport, _ = connection.take_over(asyncio.Protocol())
    transport.abort()
    connection.dismissed()


def _more_allowed(one: Room, connection: UpstreamConnection) -> None:
    one.pools.allow(3)


@pytest.mark.parametrize("free", [_idle, _ended, _tunnel_over, _more_allowed])
@pytest.mark.parametrize("own", [Room.host, Room.peer])
@pytest.mark.parametrize("other", [Room.host, Room.peer])
async def test_a_place_that_comes_free_anywhere_is_for_who_waits(
    other: Callable[[Room, str], Link],
    own: Callable[[Room, str], Link],
    free: Callable[[Room, UpstreamConnection], None],
) -> None:
    """3.11: whoever waits for a connection does not wait for the end of a stream of his own."""
    async with room(2) as made:
        link = own(made, "c2")
        await made.hold(link)
        busy = await made.hold(other(made, "c2" if own is other is Room.peer else "c3"))
        waits = made.ask(link)
        await asyncio.sleep(0.01)
        assert not waits.connection.done()
        free(made, busy)
        await asyncio.wait_for(waits.connection, 5)


async def test_a_place_that_was_not_filled_is_for_who_waits() -> None:
    """3.11: an attempt to connect holds a place, until it fails."""
    async with room(2) as made:
        link = made.host("a")
        await made.hold(link)
        fails = made.ask(made.host("b", free_port()))
        waits = made.ask(link)
        assert not made.pools.make_room()
        await asyncio.wait_for(waits.connection, 5)
        assert fails.connection.cancelled()


async def test_places_go_to_one_after_the_other() -> None:
    """3.11: who has waited longest is first, and takes one at a time; who has left takes none."""
    async with room(3) as made:
        one, two, left = made.host("a"), made.host("b"), made.host("c")
        for link in (one, two, left):
            await made.hold(link)
        gone: Any = made.ask(left)
        first, second, third = made.ask(one), made.ask(one), made.ask(two)
        left.done(gone)
        for number, waits in enumerate((first, third, second), 4):
            made.pools.allow(number)
            await asyncio.wait_for(waits.connection, 5)
            assert made.pools.path.counters.upstream_connections == number
        assert not gone.connection.done()
        assert not made.pools.wanting
