"""The upstream's other half: proves the hosts' keys, announces them, and echoes messages.

`python -m tests.bench.signer PLAN.json` runs until it is ended, and makes PLAN.ready when all
hosts are announced. nginx answers the requests that
are measured and passes only challenges to here. Owns the form of the plan, and how a crowd of
hosts is announced without drowning the gateway.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvloop

from smartgw_hosts import keyfile
from smartgw_hosts.agent import HostAgent
from smartgw_hosts.bus import Bus
from smartgw_hosts.challenge import PATH, Responder
from smartgw_hosts.identity import Identity
from smartgw_hosts.wire import Description, Kind, Message, encode
from tests.bench.cases import MESSAGE_BYTES
from tests.bench.websocket import HEAD_BYTES

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3
_MASK_BYTES = 4
_FRAME = HEAD_BYTES + _MASK_BYTES + MESSAGE_BYTES

AT_ONCE = 900
"""Hosts of a crowd that are announced and not yet verified: below discovery.max_provisional."""
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Announced:
    """A host that is announced, with heartbeats, for as long as the process runs."""

    cluster: str
    host_id: str
    address: str
    app: str
    key_file: str


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    """Hosts that are announced once, to the gateway whose internal listener is `gateway`."""

    cluster: str
    addresses: list[str]
    apps: list[list[str]]
    gateway: str


class Signer(asyncio.Protocol):
    """One connection: challenges for the host they name, or an upgrade and then echoes."""

    def __init__(self, responders: Mapping[str, Responder]) -> None:
        self._responders = responders
        self._transport: asyncio.Transport
        self._buffer = b""
        self._echoing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._echoing:
            self._echo()
        else:
            self._requests()

    def _requests(self) -> None:
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0 and not self._echoing:
            line, *lines = self._buffer[:end].split(b"\r\n")
            fields = [
                (name, value.strip()) for name, _, value in (x.partition(b":") for x in lines)
            ]
            named = {name.lower(): value for name, value in fields}
            stop = end + 4 + int(named.get(b"content-length", b"0"))
            if len(self._buffer) < stop:
                return
            body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
            method, target, _ = line.split(b" ")
            if target == PATH:
                self._challenge(method, target, fields, body)
            elif named.get(b"upgrade", b"").lower() == b"websocket":
                self._upgrade(named[b"sec-websocket-key"])
            else:
                self._answer(404, b"{}")

    def _challenge(
        self, method: bytes, target: bytes, fields: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            asked = json.loads(body)
            responder = self._responders.get(f"{asked.get('cluster')} {asked.get('host')}")
            if responder is not None:
                now, now_ms = time.monotonic(), time.time_ns() // 1_000_000
                self._answer(*responder.answer(method, target, fields, body, now, now_ms))
                return
        self._answer(400, b'{"error": "no such host here"}')

    def _answer(self, status: int, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 %d \r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _upgrade(self, key: bytes) -> None:
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        self._echoing = True
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )

    def _echo(self) -> None:
        """Send each message back: our client's frames are all of one size, masked with zeros."""
        whole = len(self._buffer) // _FRAME
        frames = (self._buffer[n * _FRAME : (n + 1) * _FRAME] for n in range(whole))
        out = b"".join(bytes([frame[0], frame[1] & 0x7F]) + frame[6:] for frame in frames)
        self._buffer = self._buffer[whole * _FRAME :]
        self._transport.write(out)


# How long a first announcement may go unheard before it is said again.
_UNHEARD = 2.0


class Crowd:
    """Many hosts with a key each, announced once and not faster than they are verified."""

    def __init__(self, plan: CrowdPlan, bus: Bus, responders: dict[str, Responder]) -> None:
        self._plan = plan
        self._bus = bus
        self._identities = [
            Identity.from_seed(hashlib.sha256(f"{plan.cluster} {number}".encode()).digest())
            for number in range(len(plan.apps))
        ]
        self._boot = time.time_ns() // 1_000_000
        self._sequence = 0
        for number, identity in enumerate(self._identities):
            own = partial(tuple, (plan.addresses[number],))
            responder = Responder(identity, _host_id(number), plan.cluster, own)
            responders[f"{plan.cluster} {_host_id(number)}"] = responder

    async def announce(self) -> None:
        """Announce all and wait until the gateway routes to all. Raises RuntimeError."""
        healthy, announced, progress = 0, 0, time.monotonic()
        while healthy < len(self._identities):
            while announced < min(healthy + AT_ONCE, len(self._identities)):
                self._publish(announced)
                announced += 1
            await asyncio.sleep(0.1)
            before = healthy
            with contextlib.suppress(OSError):
                healthy = await self._healthy()
            if healthy > before:
                progress = time.monotonic()
            elif not healthy and time.monotonic() - progress > _UNHEARD:
                # The gateway listens for clients before it listens to the bus.
                announced = 0
            elif time.monotonic() - progress > _PATIENCE:
                raise RuntimeError(f"{healthy} of {len(self._identities)} hosts became healthy")

    def _publish(self, number: int) -> None:
        self._sequence += 1
        identity = self._identities[number]
        message = Message(
            kind=Kind.ANNOUNCE,
            host_id=_host_id(number),
            boot=self._boot,
            sequence=self._sequence,
            time_ms=time.time_ns() // 1_000_000,
            description=Description(
                address=self._plan.addresses[number],
                apps=tuple(self._plan.apps[number]),
                key=identity.public_key,
                weight=100,
                region="",
                version="",
            ),
        )
        self._bus.publish(*encode(message, self._plan.cluster, identity))

    async def _healthy(self) -> int:
        host, port = self._plan.gateway.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        match = re.search(r'^smartgw_hosts\{state="healthy"\} (\d+)', text, re.MULTILINE)
        return 0 if match is None else int(match[1])


def _host_id(number: int) -> str:
    return f"host-{number}"


async def serve(plan: Mapping[str, Any], ready: Callable[[], None]) -> None:
    """Announce and sign as the plan says, and call `ready` when all is announced."""
    responders: dict[str, Responder] = {}
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Signer(responders), "127.0.0.1", plan["port"], backlog=4096)
    bus_servers: Sequence[str] = [plan["nats"]]
    async with contextlib.AsyncExitStack() as stack:
        for host in (Announced(**values) for values in plan["hosts"]):
            agent = HostAgent(
                cluster=host.cluster,
                host_id=host.host_id,
                identity=keyfile.load(Path(host.key_file)),
                address=host.address,
                apps=[host.app],
                bus_servers=bus_servers,
            )
            responders[f"{host.cluster} {host.host_id}"] = agent.responder
            await stack.enter_async_context(agent)
        if plan["crowds"]:
            up = asyncio.Event()
            bus = Bus(bus_servers, name="crowd", on_state=lambda connected: up.set())
            await bus.start()
            stack.push_async_callback(bus.stop)
            await up.wait()
            for crowd in plan["crowds"]:
                await Crowd(CrowdPlan(**crowd), bus, responders).announce()
        ready()
        await asyncio.Event().wait()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    uvloop.run(serve(json.loads(path.read_text()), path.with_suffix(".ready").touch))
