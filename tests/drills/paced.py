"""Traffic at a fixed rate through a gateway to hosts of its own, in a process of its own.

Owns how the latency of what others are served is measured while something harms the gateway. It is
open loop: a request leaves when it is due, whether or not earlier ones were answered, so a gateway
that stands still is seen by every request that was due meanwhile. What is too slow is the drills'
to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

from smartgw_hosts.challenge import Responder
from tests.drills import load
from tests.gateway import Cluster, Gateway, Host, identity_of
from tests.servers import die_with, free_port

MOST_CONNECTIONS = 400
"""Of the client. More wait only when the gateway answers nobody; then no more are opened."""
_ANSWER_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What became of the requests that were due in one phase.

    `p50`, `p99` and `most` are milliseconds from the sending to the last byte, of 200s only;
    `late` is the 99th percentile of how late the client itself was. `failed` counts by cause.
    """

    sent: int
    answered: int
    p50: float
    p99: float
    most: float
    late: float
    failed: dict[str, int]

    def __str__(self) -> str:
        text = f"{self.answered} of {self.sent} answered, p50 {self.p50:.2f} p99 {self.p99:.2f} ms"
        text += f" (most {self.most:.0f}, client late by {self.late:.2f})"
        return text + (f", failed {self.failed}" if self.failed else "")

    @property
    def lost(self) -> int:
        """Requests without a whole 200."""
        return sum(self.failed.values())


class Paced:
    """Starts the traffic: `count` hosts with an app each, `rate` requests a second in all.

    Every `fresh`th request has a connection of its own, and so has one that finds all others busy;
    `spare` are opened to begin with. Runs until `stop`; `phase` begins a new
    one and returns what the last one was.
    """

    def __init__(
        self,
        cluster: Cluster,
        gateway: Gateway,
        *,
        rate: float = 500.0,
        count: int = 2,
        fresh: int = 20,
        spare: int = 0,
        source: str = "127.0.0.1",
    ) -> None:
        self.hosts = [
            Host(cluster, cluster.new_host_id(), [cluster.new_app("paced")]) for _ in range(count)
        ]
        for host in self.hosts:
            host.upstream.close()
            host.address = f"http://127.0.0.1:{free_port()}"
        plan = {
            "cluster": cluster.cluster_id,
            "gateway": gateway.port,
            "rate": rate,
            "fresh": fresh,
            "spare": spare,
            "source": source,
            "hosts": [
                {
                    "host_id": host.host_id,
                    "hostname": host.hostname,
                    "port": int(host.address.rpartition(":")[2]),
                }
                for host in self.hosts
            ],
        }
        parent = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.drills.paced", json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with(parent),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        for host in self.hosts:
            cluster.hosts.append(host)
            cluster.beating.add(host)
            host.publish()
        cluster.wait_healthy(*self.hosts)
        self.phase()

    @property
    def pid(self) -> int:
        return self._process.pid

    def phase(self) -> Phase:
        """End a phase and begin the next; what was due in it has been answered, or has failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Phase(**json.loads(self._process.stdout.readline()))

    def during(self, seconds: float) -> Phase:
        """A phase of its own of so many seconds."""
        self.phase()
        time.sleep(seconds)
        return self.phase()

    def stop(self) -> None:
        """End the traffic and its hosts."""
        self._process.kill()
        self._process.communicate()


# ---- the process ----


@dataclass(slots=True)
class _Record:
    sent: int = 0
    open: int = 0
    took: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def result(self) -> dict[str, Any]:
        took, late = sorted(self.took), sorted(self.late)
        return {
            "sent": self.sent,
            "answered": len(took),
            "p50": _at(took, 0.5),
            "p99": _at(took, 0.99),
            "most": _at(took, 1.0),
            "late": _at(late, 0.99),
            "failed": dict(self.failed),
        }


def _at(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class _Connection(asyncio.Protocol):
    """A client connection with one request at a time."""

    def __init__(self, client: _Client, once: bool) -> None:
        self._client = client
        self._once = once
        self._buffer = b""
        self._record: _Record | None = None
        self._since = 0.0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes, record: _Record, since: float) -> None:
        self._record, self._since = record, since
        if self.transport.is_closing():
            self._end("closed when it was used")
        else:
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((line[15:] for line in lines if line.startswith(b"content-length:")), b"0")
        if len(body) < int(length):
            return
        self._buffer = b""
        status = head[9:12].decode()
        self._end("" if status == "200" else status)
        if self._once or b"connection: close" in lines:
            self.transport.close()
        else:
            self._client.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.connections -= 1
        with contextlib.suppress(ValueError):
            self._client.idle.remove(self)
        self._end("connection lost")

    def too_late(self, now: float) -> None:
        if self._record is not None and now - self._since > _ANSWER_SECONDS:
            self._end("no answer")
            self.transport.abort()

    def _end(self, failure: str) -> None:
        record, self._record = self._record, None
        if record is None:
            return
        record.open -= 1
        if failure:
            record.failed[failure] += 1
        else:
            record.took.append(time.perf_counter() - self._since)


class _Client:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._requests = [
            f"GET / HTTP/1.1\r\nHost: {host['hostname']}\r\n\r\n".encode() for host in plan["hosts"]
        ]
        self.idle: deque[_Connection] = deque()
        self.connections = 0
        self.record = _Record()
        self._all: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        for number in range(1, self._plan["spare"] + 1):
            self._send(number, time.perf_counter())
        threading.Thread(target=self._tell_the_time, daemon=True).start()
        while True:
            await asyncio.sleep(1)
            now = time.perf_counter()
            self._all = {one for one in self._all if not one.transport.is_closing()}
            for one in self._all:
                one.too_late(now)

    def _tell_the_time(self) -> None:
        """Say when each request is due, each at its own place within its share of a second.

        A loop's own timers know whole milliseconds only: those of the gateway and those of its
        clients would then go off together, always, as they never do elsewhere.
        """
        loop, places = self._loop, random.Random(1)
        start = time.perf_counter()
        for number in itertools.count():
            due = start + (number + places.random()) / self._plan["rate"]
            time.sleep(max(0.0, due - time.perf_counter()))
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(self._due, number, due)

    def _due(self, number: int, due: float) -> None:
        now = time.perf_counter()
        self.record.late.append(now - due)
        self._send(number, now)

    def _send(self, number: int, now: float) -> None:
        record = self.record
        record.sent += 1
        record.open += 1
        request = self._requests[number % len(self._requests)]
        once = number % self._plan["fresh"] == 0
        if self.idle and not once:
            self.idle.pop().ask(request, record, now)
        elif self.connections >= MOST_CONNECTIONS:
            record.open -= 1
            record.failed["too many wait"] += 1
        else:
            self.connections += 1
            task = asyncio.get_running_loop().create_task(self._open(request, record, now, once))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, request: bytes, record: _Record, now: float, once: bool) -> None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, once),
                    "127.0.0.1",
                    self._plan["gateway"],
                    local_addr=(self._plan["source"], 0),
                )
        except (OSError, TimeoutError) as error:
            self.connections -= 1
            record.open -= 1
            record.failed[f"connect: {type(error).__name__}"] += 1
            return
        self._all.add(connection)
        connection.ask(request, record, now)

    async def next_phase(self) -> dict[str, Any]:
        record, self.record = self.record, _Record()
        until = time.perf_counter() + _ANSWER_SECONDS + 2
        while record.open and time.perf_counter() < until:  # noqa: ASYNC110 - every request ends it
            await asyncio.sleep(0.005)
        return record.result()


def prefer() -> None:
    """Have the kernel run us first, as a machine of our own would: we measure, others work."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with contextlib.suppress(OSError):
        os.nice(-15)


async def _drive(plan: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    for host in plan["hosts"]:
        address = f"http://127.0.0.1:{host['port']}"
        responder = Responder(
            identity_of(host["host_id"]), host["host_id"], plan["cluster"], {address}.copy
        )
        await loop.create_server(
            lambda responder=responder: load.Host(responder, 0.0),  # type: ignore[misc]
            "127.0.0.1",
            host["port"],
        )
    print("ready", flush=True)
    words: asyncio.Queue[None] = asyncio.Queue()

    def read() -> None:
        for _ in sys.stdin:
            loop.call_soon_threadsafe(words.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    client = _Client(plan)
    running: asyncio.Task[None] | None = None
    while True:
        await words.get()
        if running is None:
            running = loop.create_task(client.run())
        print(json.dumps(await client.next_phase()), flush=True)


if __name__ == "__main__":
    prefer()
    uvloop.run(_drive(json.loads(sys.argv[1])))
