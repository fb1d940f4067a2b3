"""The SDK's agent against a real nats-server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smartgw_hosts import agent as agent_module
from smartgw_hosts.agent import HostAgent
from smartgw_hosts.bus import Bus
from smartgw_hosts.wire import Kind, Message, Refused, decode, subscription
from tests.hosts.bus_messages import identity_of
from tests.servers import Nats, free_port

ADDRESS = "http://10.0.0.5:9000"


def make(url: str, heartbeat: float = 5.0, boot_file: Path | None = None) -> HostAgent:
    return HostAgent(
        cluster="c1",
        host_id="h1",
        identity=identity_of("h1"),
        address=ADDRESS,
        apps=["shop", "blog", "shop"],
        bus_servers=[url],
        weight=7,
        region="eu",
        version="1.2",
        heartbeat=heartbeat,
        boot_file=boot_file,
    )


class Ear:
    """What a gateway would hear, each message verified."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def hear(self, subject: str, payload: bytes) -> None:
        signed = decode(subject, payload, cluster="c1")
        self.messages.append(signed.check(identity_of("h1").public_key))

    def kinds(self) -> list[Kind]:
        return [message.kind for message in self.messages]

    async def until(self, count: int, seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            while len(self.messages) < count:  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Ear]:
    ear = Ear()
    bus = Bus([url], name="ear", timeout=0.5, backoff=(0.05, 0.1))
    bus.subscribe(subscription("c1"), ear.hear)
    await bus.start()
    async with asyncio.timeout(5):
        await bus.wait_connected()
    try:
        yield ear
    finally:
        await bus.stop()


async def test_announces_beats_and_leaves() -> None:
    """1.1-1.3: announce, heartbeats with the full description, leave; boot and sequence rise."""
    async with Nats() as nats, listening(nats.url) as ear:
        before = time.time_ns() // 1_000_000
        async with make(nats.url, heartbeat=0.05) as agent:
            await ear.until(4)
            assert agent.bus_connected
        async with asyncio.timeout(5):
            while Kind.LEAVE not in ear.kinds():  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.005)
    kinds = ear.kinds()
    assert kinds[0] is Kind.ANNOUNCE
    assert kinds[-1] is Kind.LEAVE
    assert set(kinds[1:-1]) == {Kind.HEARTBEAT}
    sequences = [message.sequence for message in ear.messages]
    assert sequences == sorted(set(sequences))
    assert len({message.boot for message in ear.messages}) == 1
    assert ear.messages[0].boot >= before
    for message in ear.messages[:-1]:
        assert message.description == agent.description
        assert abs(message.time_ms - before) < 10_000
    assert agent.description.address == ADDRESS
    assert agent.description.apps == ("shop", "blog")
    assert (agent.description.weight, agent.description.region) == (7, "eu")
    assert agent.description.key == identity_of("h1").public_key


async def test_update_announces_at_once() -> None:
    """2.2: a change of address is announced at once, the old one still signed for a while."""
    async with Nats() as nats, listening(nats.url) as ear, make(nats.url) as agent:
        await ear.until(1)
        agent.update(address="http://10.0.0.6:9000/", apps=["shop"])
        await ear.until(2)
        described = ear.messages[1].description
        assert ear.messages[1].kind is Kind.ANNOUNCE
        assert described is not None
        assert (described.address, described.apps) == ("http://10.0.0.6:9000", ("shop",))
        assert agent.addresses() == ("http://10.0.0.6:9000", ADDRESS)
        with pytest.raises(ValueError, match="app id"):
            agent.update(apps=["a\n"])
        with pytest.raises(Refused):
            agent.update(apps=[f"a{n}" for n in range(1001)])
        assert agent.description.apps == ("shop",)
        await asyncio.sleep(0.1)
        assert len(ear.messages) == 2


async def test_old_address_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.1: only an address that is announced now is signed for, once the move is over."""
    monkeypatch.setattr(agent_module, "OLD_ADDRESS", 0.05)
    agent = make("nats://127.0.0.1:1")
    agent.update(address="http://10.0.0.6:9000")
    assert ADDRESS in agent.addresses()
    await asyncio.sleep(0.06)
    assert agent.addresses() == ("http://10.0.0.6:9000",)


async def test_bus_away_hurts_nobody() -> None:
    """1.7: without a bus the agent starts, is silent, keeps nothing for later, and ends."""
    port = free_port()
    async with asyncio.timeout(20), make(f"nats://127.0.0.1:{port}", heartbeat=0.02) as agent:
        await asyncio.sleep(0.1)
        assert not agent.bus_connected
        agent.update(apps=["shop"])


async def test_announces_again_when_the_bus_returns() -> None:
    """1.3: after the bus was away the first message is a fresh announce, and no stale heartbeat."""
    async with Nats() as nats, listening(nats.url) as ear, make(nats.url, heartbeat=0.3) as agent:
        await ear.until(1)
        nats.kill()
        async with asyncio.timeout(5):
            while agent.bus_connected:  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        heard = len(ear.messages)
        back = time.time_ns() // 1_000_000
        await nats.start_async()
        await ear.until(heard + 1, 15)
        fresh = ear.messages[heard:]
        assert all(message.time_ms >= back for message in fresh)
        # The ear may be back after the agent, and then hears its next heartbeat first.
        assert fresh[0].sequence > ear.messages[heard - 1].sequence


async def test_frozen_bus_does_not_hold_up_the_exit() -> None:
    """1.1: leave is best effort, and saying it takes a bounded time."""
    async with Nats() as nats:
        agent = make(nats.url)
        async with agent:
            async with asyncio.timeout(5):
                while not agent.bus_connected:  # noqa: ASYNC110 - no event to wait for
                    await asyncio.sleep(0.01)
            nats.freeze()
            began = time.monotonic()
        assert time.monotonic() - began < agent_module.LEAVE_TIMEOUT + 20
        nats.thaw()


async def test_boot_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.2: boot ids rise across restarts, also when the clock stepped back meanwhile."""
    kept = tmp_path / "boot"
    future = time.time_ns() // 1_000_000 + 3_600_000
    kept.write_text(f"{future}\n")
    monkeypatch.setattr(agent_module, "_last_boot", 0)
    async with Nats() as nats, listening(nats.url) as ear:
        for life in (1, 2):
            async with make(nats.url, boot_file=kept), asyncio.timeout(5):
                # The word of the life before that it leaves may be heard in this one.
                while ear.kinds().count(Kind.ANNOUNCE) < life:  # noqa: ASYNC110 - no event to wait for
                    await asyncio.sleep(0.005)
    boots = [message.boot for message in ear.messages if message.kind is Kind.ANNOUNCE]
    assert boots == [future + 1, future + 2]
    assert kept.read_text() == f"{future + 2}\n"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"host_id": "a.b"}, "host id"),
        ({"cluster": "*"}, "cluster id"),
        ({"address": "ftp://x"}, "http"),
        ({"apps": [""]}, "app id"),
        ({"weight": 0}, "weight"),
        ({"region": "é" * 40}, "region"),
        ({"bus_servers": []}, "bus"),
    ],
)
def test_refuses_what_no_gateway_takes(change: dict[str, object], fault: str) -> None:
    """1.2: what no gateway would accept is refused where it is written, before anything is sent."""
    right: dict[str, object] = {
        "cluster": "c1",
        "host_id": "h1",
        "identity": identity_of("h1"),
        "address": ADDRESS,
        "apps": ["shop"],
        "bus_servers": ["nats://127.0.0.1"],
    }
    with pytest.raises(ValueError, match=fault):
        HostAgent(**{**right, **change})  # type: ignore[arg-type]
