"""Thousands of hosts with real keys in one process: announced at once, then heard of regularly.

`python -m tests.drills.crowd PLAN.json`. Every message is signed ahead of time, for the second at
which it will be sent, so that the crowd costs the machine little while it is measured; challenges
are answered as they come. Owns the crowd; what it does to a gateway is hosts.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import uvloop

from smartgw_hosts.challenge import Responder
from smartgw_hosts.identity import Identity
from smartgw_hosts.wire import Description, Kind, Message, encode
from tests.bench.signer import Signer
from tests.gateway import Cluster, identity_of
from tests.servers import die_with, free_port

HEARTBEAT = 5.0
_PORTS = 4
_SLICES = 50


class Crowd:
    """The crowd's process. It announces at `starts` (Unix seconds), which `ahead` puts off."""

    def __init__(self, cluster: Cluster, ids: Sequence[str], rounds: int, ahead: float) -> None:
        """`rounds`: how many heartbeats each host sends before the crowd falls silent."""
        self._plan = cluster.nats.folder / "crowd.json"
        self._plan.write_text(
            json.dumps(
                {
                    "cluster": cluster.cluster_id,
                    "nats": cluster.nats.port,
                    "ids": ids,
                    "rounds": rounds,
                    "ahead": ahead,
                    "ports": [free_port() for _ in range(_PORTS)],
                }
            )
        )
        parent = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.drills.crowd", str(self._plan)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with(parent),
        )
        self.starts = float(self._line().removeprefix("starts "))

    @property
    def pid(self) -> int:
        return self._process.pid

    def all_challenged(self) -> float:
        """Wait until each host has proven itself; returns seconds from the announcement."""
        return float(self._line().removeprefix("challenged "))

    def stop(self) -> None:
        """End the crowd."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class _Counted(Signer):
    """Notes who has answered."""

    unproven: ClassVar[set[str]] = set()
    done: ClassVar[asyncio.Event] = asyncio.Event()

    def _challenge(
        self, method: bytes, target: bytes, fields: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        super()._challenge(method, target, fields, body)
        if self.unproven:
            with contextlib.suppress(ValueError, AttributeError):
                self.unproven.discard(json.loads(body)["host"])
            if not self.unproven:
                self.done.set()


def _signed(
    plan: dict[str, Any], identities: Sequence[Identity], starts: float, number: int
) -> list[bytes]:
    """The messages of one round; round 0 announces."""
    out = []
    for place, (host_id, identity) in enumerate(zip(plan["ids"], identities, strict=True)):
        at = starts if not number else starts + (number + place / len(identities)) * HEARTBEAT
        message = Message(
            kind=Kind.HEARTBEAT if number else Kind.ANNOUNCE,
            host_id=host_id,
            boot=int(starts * 1000),
            sequence=number + 1,
            time_ms=int(at * 1000),
            description=Description(
                address=f"http://127.0.0.1:{plan['ports'][place % _PORTS]}",
                apps=(f"crowd-{place}",),
                key=identity.public_key,
                weight=100,
                region="somewhere",
                version="1.0",
            ),
        )
        subject, payload = encode(message, plan["cluster"], identity)
        out.append(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
    return out


async def _send(writer: asyncio.StreamWriter, rounds: Sequence[list[bytes]], starts: float) -> None:
    """Announce all in one go; send the heartbeats of each round evenly over its time."""
    await asyncio.sleep(max(0.0, starts - time.time()))
    writer.write(b"".join(rounds[0]))
    for number, messages in enumerate(rounds[1:], 1):
        size = -(-len(messages) // _SLICES)
        for part in range(_SLICES):
            due = starts + (number + part / _SLICES) * HEARTBEAT
            await asyncio.sleep(max(0.0, due - time.time()))
            writer.write(b"".join(messages[part * size : (part + 1) * size]))


async def _pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        if line == b"PING\r\n":
            writer.write(b"PONG\r\n")


async def _drive(plan: dict[str, Any]) -> None:
    identities = [identity_of(host_id) for host_id in plan["ids"]]
    responders = {}
    for place, (host_id, identity) in enumerate(zip(plan["ids"], identities, strict=True)):
        address = {f"http://127.0.0.1:{plan['ports'][place % _PORTS]}"}
        responder = Responder(identity, host_id, plan["cluster"], address.copy)
        responders[f"{plan['cluster']} {host_id}"] = responder
    loop = asyncio.get_running_loop()
    _Counted.unproven = set(plan["ids"])
    _Counted.done = asyncio.Event()
    for port in plan["ports"]:
        await loop.create_server(lambda: _Counted(responders), "127.0.0.1", port, backlog=4096)
    reader, writer = await asyncio.open_connection("127.0.0.1", plan["nats"])
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"name":"crowd"}\r\n')
    answering = asyncio.create_task(_pong(reader, writer))
    began = time.time()
    _signed(plan, identities, began, 0)
    took = time.time() - began
    # The machine may become busier.
    starts = time.time() + 2 * took * (plan["rounds"] + 1) + 1.0 + plan["ahead"]
    rounds = [_signed(plan, identities, starts, number) for number in range(plan["rounds"] + 1)]
    if time.time() > starts - plan["ahead"]:
        raise RuntimeError("signing took longer than was thought")
    await asyncio.sleep(max(0.0, starts - plan["ahead"] - time.time()))
    print(f"starts {starts}", flush=True)
    sending = asyncio.create_task(_send(writer, rounds, starts))
    await _Counted.done.wait()
    print(f"challenged {time.time() - starts:.2f}", flush=True)
    await asyncio.gather(sending, answering)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        uvloop.run(_drive(json.load(file)))
