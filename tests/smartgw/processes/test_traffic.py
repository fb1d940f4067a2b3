"""The data path in this process, fed with hosts directly: what it keeps of hosts that come and
go, and how much one request and one client may have of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from smartgw.config import Settings
from smartgw.processes.sockets import HTTP, Listener
from smartgw.processes.traffic import Traffic
from smartgw.proxy.downstream import Http1Downstream
from smartgw.routing.table import HostUpdate
from smartgw.state.desired import Desired, Draft, Entry
from smartgw.state.records import encode, key_of, register
from tests.gateway import identity_of
from tests.listening import stop_listening
from tests.servers import free_port

HOSTNAME = "shop.apps.test"
KEY = identity_of("any").public_key


def update(host_id: str, address: str, **changes: Any) -> HostUpdate:
    """A host of the app `shop`."""
    values: dict[str, Any] = {"apps": ("shop",), "weight": 100, "routed": True, **changes}
    return HostUpdate(host_id=host_id, address=address, key=KEY, **values)


class Rig:
    """A data path on a free port, and one host program on all of 127.0.0.0/8 that answers a
    request when `free` is set; it need not prove itself.
    """

    def __init__(self, traffic: Traffic, port: int) -> None:
        self.traffic, self.port = traffic, port
        self.free = asyncio.Event()
        self.free.set()
        self.begun = 0
        self._served: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.traffic.start()
        self.traffic.declare(("shop",), True)
        await self.traffic.accept()
        self._server = await asyncio.start_server(self._serving, "0.0.0.0", 0)
        self.host_port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.free.set()
        await self.traffic.stop()
        await stop_listening(self._server)
        await asyncio.gather(*self._served)

    def address(self, number: int) -> str:
        """One of many addresses of the host program."""
        return f"http://127.0.{number // 200}.{number % 200 + 1}:{self.host_port}"

    async def ask(self) -> int:
        """One request; its status, 0 when the connection was cut."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"GET / HTTP/1.1\r\nHost: {HOSTNAME}\r\n\r\n".encode())
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
        finally:
            await close(writer)

    def _serving(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.begun += 1
                await self.free.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """End a connection and wait until it has ended."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def until(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A running rig without a host."""
    # It would set this process's garbage collector for a gateway's sake.
    monkeypatch.setattr("smartgw.memory.keep_for_traffic", lambda: None)
    listening = socket.create_server(("127.0.0.1", 0))
    settings = Settings.model_validate(
        {
            "cluster": "c1",
            "base_domains": ["apps.test"],
            "host_networks": ["127.0.0.0/8"],
            "bus": {"servers": ["nats://127.0.0.1:1"]},
            "trust": {"mode": "first-use"},
            "upstream": {"verify": "periodic"},
            "limits": {"connections_per_address": 2},
            "log": {"access": "off"},
        }
    )
    traffic = Traffic(
        settings,
        [Listener(HTTP, "", listening)],
        frozenset(),
        None,
        lambda host_id: None,
        lambda: None,
    )
    made = Rig(traffic, listening.getsockname()[1])
    await made.start()
    yield made
    await made.stop()
    listening.close()


def links(rig: Rig) -> tuple[int, int]:
    """How many links there are, and under how many entries of the table they are found."""
    pools = rig.traffic.pools
    return sum(map(len, pools._by_host.values())), len(pools._links)


async def test_a_host_that_moves_leaves_nothing_behind(rig: Rig) -> None:
    """1.5, 3.8: after 100 changes of address, each under a request, one link is left."""
    for number in range(100):
        rig.free.clear()
        rig.traffic.apply([update("h", rig.address(number))], ())
        answer = asyncio.create_task(rig.ask())
        await until(lambda number=number: rig.begun > number)  # type: ignore[misc]
        rig.traffic.apply([update("h", rig.address(number + 1))], ())
        rig.free.set()
        assert await answer == 200
    await until(lambda: links(rig)[0] <= 1)
    assert await rig.ask() == 200
    assert links(rig) == (1, 1)
    assert rig.traffic.counters.upstream_connections <= 2


async def test_a_change_of_weight_keeps_the_connections(rig: Rig) -> None:
    """3.8: another weight is no reason to end or to open a connection."""
    for weight in range(1, 50):
        rig.traffic.apply([update("h", rig.address(0), weight=weight)], ())
        assert await rig.ask() == 200
    assert rig.traffic.counters.upstream_connections_total == 1
    assert links(rig) == (1, 1)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_what_may_not_be_spoken_to_is_cut(rig: Rig, forgotten: bool) -> None:
    """1.4: a host that lost its enrolment loses what it carries, also when it left the table
    first, and when nobody knows it any more.
    """
    rig.traffic.apply([update("h", rig.address(0))], ())
    rig.free.clear()
    answer = asyncio.create_task(rig.ask())
    await until(lambda: rig.begun == 1)
    rig.traffic.apply([update("h", rig.address(0), routed=False)], ())
    await asyncio.sleep(0.02)
    assert not answer.done()
    if forgotten:
        rig.traffic.apply((), ["h"])
    else:
        rig.traffic.apply([update("h", rig.address(0), routed=False, cut=True)], ())
    assert await answer == 502
    await until(lambda: rig.traffic.counters.upstream_connections == 0)
    assert links(rig) == (0, 0)


async def test_four_hundred_hosts_that_cannot_be_reached(rig: Rig) -> None:
    """3.7: a request tries four hosts, however many there are, and then fails in order."""
    port = free_port()
    hosts = [update(f"h{n}", f"http://127.0.1.{n % 250 + 1}:{port}") for n in range(400)]
    rig.traffic.apply(hosts, ())
    for number in range(1, 60):
        assert await rig.ask() in (502, 503)
        assert rig.traffic.counters.attempts_failed == 4 * number
    assert rig.traffic.counters.in_flight == 0


async def test_a_network_of_ipv6_is_one_holder(rig: Rig) -> None:
    """3.11: the bound on an address's connections holds for all of an IPv6 /64."""

    listening = rig.traffic._listening

    def client(peer: str) -> Http1Downstream:
        return Http1Downstream(listening, b"http", peer)

    ours = [client(f"2001:db8:0:1:{n:x}::{n:x}") for n in range(1, 4)]
    assert [listening.admit(one) for one in ours] == [True, True, False]
    assert listening.admit(client("2001:db8:0:2::1"))
    assert listening.admit(client("192.0.2.1"))
    listening.dismiss(ours[0])
    assert listening.admit(ours[2])
    listening.cut = lambda: None  # type: ignore[method-assign]  # those have no transport


async def test_many_registered_apps_are_one_change(rig: Rig) -> None:
    """11.2: what is being taken in is not unknown; control plane: a burst is one swap."""
    apps = [register(app_id=f"app-{n}", hostnames=[f"{n}.example"]) for n in range(5000)]
    apps.append(register(app_id="shop", state="suspended"))
    draft = Draft(Desired())
    for revision, app in enumerate(apps, 1):
        draft.take(Entry(key_of(app), encode(app), revision, 0.0))
    desired, difference = draft.done(len(apps), "b")
    assert await rig.ask() == 503  # no_upstream
    rig.traffic.declare((), False)
    rig.traffic.register(desired, difference.apps)
    rig.traffic.declare((), True)
    assert not rig.traffic.complete
    await until(lambda: rig.traffic.complete)
    route = rig.traffic.snapshot.lookup(b"4711.example")
    assert route is not None
    assert (route.app_id, route.hosts) == ("app-4711", ())
    assert await rig.ask() == 503  # app_suspended
    assert rig.traffic.snapshot.lookup(b"shop.apps.test") is rig.traffic.snapshot.route("shop")
    rig.traffic.register(Desired(), difference.apps)
    await until(lambda: rig.traffic.snapshot.routes() == {})
