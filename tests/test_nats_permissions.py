"""infra/nats: who may say and hear what on the bus, on a real nats-server with the example file.

The example's keys are replaced by fresh ones, made by infra/nats/nkey.py as an operator would.
"""

import asyncio
import re
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from smartgw.state.records import app_key, register
from smartgw_hosts.agent import HostAgent
from smartgw_hosts.bus import Bus
from smartgw_hosts.identity import Identity
from tests.servers import Nats, find_binary
from tests.stores import OneGateway, until

REPO = Path(__file__).parents[1]
EXAMPLE = REPO / "infra/nats/nats.conf"
USERS = ("gateway", "shop-1", "shop-2")
"""In the order of the file."""


@dataclass(frozen=True, slots=True)
class ClosedBus:
    """The running server, and the seed of each user."""

    url: str
    seeds: dict[str, str]

    async def connect(self, user: str, errors: list[str]) -> Client:
        """Connect as a user; what the server refuses is added to `errors`."""

        async def note(error: Exception) -> None:
            errors.append(str(error))

        return await nats.connect(
            self.url,
            nkeys_seed_str=self.seeds[user],
            error_cb=note,
            allow_reconnect=False,
        )


async def refusal(errors: list[str], what: str) -> None:
    """Wait until the server's refusal has come: the client tells it in a task of its own."""
    async with asyncio.timeout(5):
        while not any(what in error.lower() for error in errors):  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.01)


def make_key(path: Path) -> str:
    """Run nkey.py; returns the public key."""
    script = str(REPO / "infra/nats/nkey.py")
    argv = [sys.executable, script, str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[ClosedBus]:
    text = EXAMPLE.read_text()
    keys = re.findall(r"\bU[A-Z2-7]{55}\b", text)
    assert len(keys) == len(USERS)
    for key, user in zip(keys, USERS, strict=True):
        text = text.replace(key, make_key(tmp_path / user))
    text = re.sub(r"^listen:.*$", "", text, flags=re.MULTILINE)
    text = text.replace("/var/lib/nats", str(tmp_path / "jetstream"))
    async with Nats(text) as server:
        yield ClosedBus(server.url, {user: (tmp_path / user).read_text() for user in USERS})


def test_a_real_server_accepts_the_example() -> None:
    """Operations: `nats-server -t -c infra/nats/nats.conf` says that the file is valid."""
    binary = find_binary("nats-server", "SMARTGW_NATS_SERVER")
    done = subprocess.run([binary, "-t", "-c", str(EXAMPLE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_seed_is_its_owners_and_never_overwritten(tmp_path: Path) -> None:
    """Operations: nkey.py writes the seed 0600 and refuses a file that exists."""
    path = tmp_path / "bus.seed"
    key = make_key(path)
    assert re.fullmatch(r"U[A-Z2-7]{55}", key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(subprocess.CalledProcessError):
        make_key(path)


async def test_the_gateway_hears_a_host(bus: ClosedBus) -> None:
    """1.1: with these permissions a host's agent reaches the gateway's subscription."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    gateway = Bus([bus.url], name="gateway", nkey_seed=bus.seeds["gateway"].strip())
    gateway.subscribe("smartgw.eu-1.host.*.*", lambda subject, _: heard.put_nowait(subject))
    await gateway.start()
    await asyncio.wait_for(gateway.wait_connected(), 5)
    try:
        async with HostAgent(
            cluster="eu-1",
            host_id="shop-1",
            identity=Identity.from_seed(bytes(32)),
            address="http://127.0.0.1:9000",
            apps=["shop"],
            bus_servers=[bus.url],
            nkey_seed=bus.seeds["shop-1"].strip(),
        ):
            said = await asyncio.wait_for(heard.get(), 5)
        assert said == "smartgw.eu-1.host.shop-1.announce"
        assert await asyncio.wait_for(heard.get(), 5) == "smartgw.eu-1.host.shop-1.leave"
    finally:
        await gateway.stop()


async def test_the_gateway_shares_the_state(bus: ClosedBus) -> None:
    """Control plane: with these permissions the gateway makes, follows and writes its bucket."""
    gateway = OneGateway(
        [bus.url],
        inbox="_INBOX.smartgw.eu-1.gw-1",
        nkey_seed=bus.seeds["gateway"].strip(),
        reconcile=0.1,
    )
    await gateway.start()
    try:
        await until(lambda: gateway.store.live, what=gateway.store.fault)
        await gateway.store.write(register(app_id="shop"))
        await until(lambda: gateway.store.counters["sweeps"] > 2)
        assert await gateway.store.delete(app_key("shop")) is not None
        assert gateway.bus.counters["errors"] == 0
    finally:
        await gateway.stop()


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("shop-1", "smartgw.eu-1.host.shop-2.announce"),
        ("shop-1", "smartgw.eu-1.host.shop-2.leave"),
        ("shop-1", "smartgw.eu-2.host.shop-1.announce"),
        ("shop-1", "smartgw.eu-1.host.shop-1.other"),
        ("shop-1", "_INBOX.x"),
        ("shop-1", "$KV.smartgw.apps.x"),
        ("shop-1", "$JS.API.STREAM.INFO.KV_smartgw"),
        ("shop-1", "$JS.API.CONSUMER.CREATE.KV_smartgw.x"),
        ("shop-1", "$JS.API.DIRECT.GET.KV_smartgw"),
        ("gateway", "smartgw.eu-1.host.shop-1.announce"),
        ("gateway", "$KV.other.x"),
        ("gateway", "$JS.API.STREAM.DELETE.KV_smartgw"),
        ("gateway", "$JS.API.STREAM.PURGE.KV_smartgw"),
        ("gateway", "$JS.API.STREAM.INFO.KV_other"),
        ("gateway", "$JS.API.STREAM.NAMES"),
        ("gateway", "anything"),
    ],
)
async def test_nobody_speaks_for_another(bus: ClosedBus, user: str, subject: str) -> None:
    """1.1: a host can publish only its own subjects; the gateway none for discovery, and of the
    state only what its bucket takes.
    """
    errors: list[str] = []
    client = await bus.connect(user, errors)
    await client.publish(subject, b"forged")
    await client.flush()
    await refusal(errors, "permissions violation for publish")
    await client.close()


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("shop-1", "smartgw.eu-1.host.*.*"),
        ("shop-1", "smartgw.eu-1.host.shop-1.announce"),
        ("shop-1", ">"),
        ("shop-1", "$KV.smartgw.>"),
        ("gateway", "smartgw.eu-2.host.*.*"),
        ("gateway", "$KV.smartgw.>"),
        ("gateway", "_INBOX.>"),
        ("gateway", "_INBOX.smartgw.eu-1.gw-2.>"),
        ("gateway", ">"),
    ],
)
async def test_nobody_hears_what_is_not_his(bus: ClosedBus, user: str, subject: str) -> None:
    """1.1: hosts hear nothing, the gateway only its own cluster's hosts."""
    said = "smartgw.eu-1.host.shop-2.heartbeat"
    errors: list[str] = []
    gateway, speaker = await bus.connect("gateway", []), await bus.connect("shop-2", [])
    reader = await bus.connect(user, errors)
    proper = await gateway.subscribe("smartgw.eu-1.host.*.*")
    await gateway.flush()
    improper = await reader.subscribe(subject)
    await reader.flush()
    await speaker.publish(said, b"x")
    await speaker.flush()
    await proper.next_msg(5)
    await reader.flush()
    await refusal(errors, "permissions violation for subscription")
    assert improper.delivered == 0
    for client in (gateway, speaker, reader):
        await client.close()


def test_strangers_are_turned_away(bus: ClosedBus) -> None:
    """Operations: without one of the keys nobody is on the bus."""
    host, _, port = bus.url.removeprefix("nats://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        said = b""
        while part := stranger.recv(4096):
            said += part
    assert b"-ERR 'Authorization Violation'" in said
    assert b"PONG" not in said
