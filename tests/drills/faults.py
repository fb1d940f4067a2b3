"""Requests to three clusters whose gateways, hosts and wires fail in every way (contract 5).

`python -m tests.drills.faults [--requests 10000] [--seed 1]`. Says how long requests took against
their deadline, and fails when a write was done twice or by a cluster that does not own its app, a
request went two hops, somebody was asked who is not in the directory, a caller was told wrongly
how much had left, or a request took longer than its deadline and 250 ms. Prints the figure last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateway import wait_until
from tests.upstreams import Connection, Request, Script
from tests.wires import Wired

DEADLINE = 2.0
BEYOND = 0.25
CLIENTS = 40
METHODS = ("GET", "GET", "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PURGE")
READS = ("GET", "HEAD", "OPTIONS")
# What a wire does, and how often beside the others.
MODES = ("refuse", "reset", "hang", "drop", "mute", "die")
# What a host does with a request, in thousandths; else it answers.
FAULTS = {"early": 30, "late": 30, "half": 20, "hang": 8, "slow": 60, "500": 30, "then close": 60}
_TOLD = {"none": 0, "partial": 1, "full": 1}


@dataclass
class Outcome:
    """One request as its client saw it."""

    number: int
    method: str
    app: str
    status: int = 0
    sent: str = ""
    seconds: float = 0.0


@dataclass
class Drill:
    """The clusters under test, and what was seen of each request."""

    clusters: Wired
    rng: random.Random
    apps: dict[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    # (number of a request) -> (cluster, was it whole, how many gateways it came through)
    arrivals: dict[int, list[tuple[str, bool, int]]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    # ---- hosts ----

    def host(self, cluster: str) -> Script:
        """The script of a cluster's hosts."""

        def script(connection: Connection) -> None:
            while True:
                request = connection.head()
                self._serve(cluster, connection, request)

        return script

    def _serve(self, cluster: str, connection: Connection, request: Request) -> None:
        if request.raw_target == b"/witness":
            connection.read_body(request)
            connection.reply()
            return
        number = int(request.raw_target.split(b"?")[0][3:])
        fault = self._fault()
        if fault == "early":
            self._arrived(number, cluster, request, whole=False)
            connection.reset()
            raise EOFError
        connection.read_body(request)
        self._arrived(number, cluster, request, whole=True)
        if fault == "late":
            connection.reset()
            raise EOFError
        if fault == "half":
            connection.send(b"HTTP/1.1 200 OK\r\nConte")
            connection.reset()
            raise EOFError
        if fault == "hang":
            time.sleep(DEADLINE + 1)
        elif fault == "slow":
            time.sleep(0.05 + self.rng.random() * 0.2)
        body = b"" if request.method == "HEAD" else b"done"
        connection.reply(body, "500 Oops" if fault == "500" else "200 OK")
        if fault == "then close":
            connection.close()
            raise EOFError

    def _fault(self) -> str:
        drawn = self.rng.randrange(1000)
        for name, share in FAULTS.items():
            drawn -= share
            if drawn < 0:
                return name
        return ""

    def _arrived(self, number: int, cluster: str, request: Request, *, whole: bool) -> None:
        hops = sum(value.count(b"1.1 c") for value in request.all("via"))
        with self.lock:
            self.arrivals.setdefault(number, []).append((cluster, whole, hops))

    # ---- wires ----

    def break_wires(self) -> None:
        """Break one wire after the other, each in some way for a moment."""
        while not self.over.wait(0.05 + self.rng.random() * 0.4):
            wire = self.clusters.wires[self.rng.choice(list(self.clusters.wires))]
            wire.set(self.rng.choice(MODES))
            self.over.wait(0.05 + self.rng.random() * 0.5)
            wire.set("pass")

    # ---- clients ----

    async def client(self, numbers: list[int], canary: int) -> None:
        """Ask one request after the other until there are none left."""
        while numbers:
            number = numbers.pop()
            app = self.rng.choice(list(self.apps))
            method = self.rng.choice(METHODS)
            outcome = Outcome(number, method, app)
            at = self.rng.choice(list(self.clusters.gateways.values())).public
            begun = time.monotonic()
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                await asyncio.wait_for(self._ask(outcome, at, canary), DEADLINE + 5)
            outcome.seconds = time.monotonic() - begun
            self.outcomes.append(outcome)

    async def _ask(self, outcome: Outcome, at: tuple[str, int], canary: int) -> None:
        reader, writer = await asyncio.open_connection(*at)
        try:
            evil = f"127.0.0.1:{canary}"
            body = b"" if outcome.method in ("GET", "HEAD", "OPTIONS") else b"x" * 300
            head = (
                f"{outcome.method} /n/{outcome.number}?url=http://{evil}/&gateway={evil} HTTP/1.1",
                f"Host: {self.clusters.hostname(outcome.app)}",
                *(f"X-Forwarded-Host: {evil}", f"Forwarded: for={evil};host={evil}"),
                *(f"X-Smartgw-Forward: http://{evil}", f"X-Smartgw-Owner: {evil}; epoch=0"),
                *(f"X-Failover-Cluster: {evil}", f"X-Original-Host: {evil}", f"Via: 1.1 {evil}"),
                *(f"Origin: http://{evil}", f"Referer: http://{evil}/"),
                f"Content-Length: {len(body)}\r\n\r\n",
            )
            writer.write("\r\n".join(head).encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            outcome.status = int(lines[0].split()[1])
            fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
            outcome.sent = fields.get("x-smartgw-request-sent", "")
        finally:
            writer.close()

    # ---- what must hold ----

    def faults(self) -> list[str]:
        """What went against the contract, in lines."""
        found = []
        for outcome in self.outcomes:
            came = self.arrivals.get(outcome.number, [])
            name = f"{outcome.method} /n/{outcome.number} ({outcome.status})"
            if any(hops > 2 for _, _, hops in came):
                found.append(f"{name}: more than one hop: {came}")
            if outcome.method in READS:
                continue
            if len(came) > 1:
                found.append(f"{name}: {len(came)} times: {came}")
            if any(cluster != self.apps[outcome.app] for cluster, _, _ in came):
                found.append(f"{name}: done by {came}, owned by {self.apps[outcome.app]}")
            if outcome.status in (502, 504) and len(came) > _TOLD[outcome.sent]:
                found.append(f"{name}: said sent={outcome.sent}, came {came}")
            if outcome.status == 200 and not any(whole for _, whole, _ in came):
                found.append(f"{name}: answered, and never came")
        return found

    def logged(self) -> list[dict[str, Any]]:
        """Each request in the log of the gateway that its client asked, the slowest last."""
        found = []
        for one in self.clusters.gateways:
            for line in (self.clusters.folder / f"{one}.log").read_text().splitlines():
                entry = json.loads(line)
                if entry["from_cluster"] is None and entry["target"].startswith("/n/"):
                    found.append(entry)
        return sorted(found, key=lambda entry: entry["duration_ms"])


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, _canary() as (canary, called):
        ids = ("c1", "c2", "c3")
        settings: dict[str, Any] = {
            "deadlines": {"response_head": DEADLINE},
            "upstream": {"connect_timeout": 0.4, "challenge_timeout": 0.6},
            "rates": {"requests": 1_000_000},
            **{one: {"log": {"access": f"{folder}/{one}.log"}} for one in ids},
        }
        with Wired(Path(folder), ids, settings=settings) as clusters:
            drill = Drill(clusters, random.Random(args.seed))
            drill.apps = {clusters.app(owner): owner for owner in ids for _ in range(3)}
            for app in drill.apps:
                for one in ids:
                    clusters.host(one, app, drill.host(one))
            breaking = threading.Thread(target=drill.break_wires)
            breaking.start()
            numbers = list(range(args.requests))
            try:
                asyncio.run(_load(drill, numbers, canary))
            finally:
                drill.over.set()
                breaking.join()
            wait_until(lambda: len(drill.logged()) >= args.requests * 0.99, what="the log written")
            return _report(drill, len(called))


async def _load(drill: Drill, numbers: list[int], canary: int) -> None:
    await asyncio.gather(*(drill.client(numbers, canary) for _ in range(CLIENTS)))


@contextlib.contextmanager
def _canary() -> Any:
    """A listener that nobody may connect to: its port, and who did."""
    called: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    called.append(listening.accept())

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1], called


def _report(drill: Drill, called: int) -> int:
    statuses = Counter((o.method in READS, o.status) for o in drill.outcomes)
    for read, name in ((True, "reads"), (False, "writes")):
        print(f"{name}: { ({s: n for (of, s), n in sorted(statuses.items()) if of is read}) }")
    entries = drill.logged()
    seconds = [entry["duration_ms"] / 1000 for entry in entries]
    shown = ", ".join(f"p{p} {seconds[len(seconds) * p // 100]:.3f}" for p in (50, 90, 99))
    slowest = max(outcome.seconds for outcome in drill.outcomes)
    print(f"seconds, deadline {DEADLINE}: {shown}, most {seconds[-1]:.3f} (clients: {slowest:.3f})")
    faults = drill.faults()
    late = sum(one > DEADLINE + BEYOND for one in seconds)
    for fault in [*faults[:20], *map(str, entries[len(entries) - late :][:20])]:
        print(fault)
    print(
        f"{len(drill.outcomes)} requests: {len(faults)} faults, {late} later than "
        f"{DEADLINE + BEYOND:g} s, most {seconds[-1]:.3f} s, {called} connections to a stranger"
    )
    return 1 if faults or late or called else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
