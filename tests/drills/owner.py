"""An owner cluster that is killed and brought back, twice, under load (contract 5).

`python -m tests.drills.owner [--seconds 120]`. Clients of the two other clusters read and write
what the owner owns. No read may fail; a write may only while the owner is down, and then it says
rightly whether any of it had left. Prints the figure last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smartgw_hosts.wire import Kind
from tests.federation import Federation
from tests.gateway import Gateway, Host, wait_until
from tests.wires import answering_as

OWNER, OTHERS = "c2", ("c1", "c3")
CLIENTS, THINK_SECONDS = 8, 0.02


@dataclass
class Load:
    """Reads and writes for one app, at the gateways of the other clusters."""

    clusters: Federation
    app: str
    over: bool = False
    reads: Counter[str] = field(default_factory=Counter)
    failed_reads: list[str] = field(default_factory=list)
    writes: Counter[int] = field(default_factory=Counter)
    # When a write began and ended, its target, how much it said had left, and all that it said.
    failed_writes: list[tuple[float, float, str, str, str]] = field(default_factory=list)

    async def run(self) -> None:
        """Ask until it is over."""
        await asyncio.gather(
            *(self._client(at, method) for at in OTHERS for method in ("GET", "POST") * CLIENTS)
        )

    async def _client(self, at: str, method: str) -> None:
        reader = writer = None
        number = 0
        while not self.over:
            await asyncio.sleep(THINK_SECONDS)
            number += 1
            target = f"/{at}/{id(asyncio.current_task()):x}/{number}"
            begun = time.monotonic()
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection(
                        *self.clusters.gateways[at].public
                    )
                assert reader is not None
                async with asyncio.timeout(40):
                    status, fields = await self._ask(reader, writer, method, target)
            except (OSError, EOFError, TimeoutError) as error:
                status, fields = 0, {"x-smartgw-request-sent": repr(error)}
            if fields.get("connection") == "close" or not status:
                if writer is not None:
                    writer.close()
                writer = None
            self._note(method, target, begun, status, fields)
        if writer is not None:
            writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, target: str
    ) -> tuple[int, dict[str, str]]:
        length = "Content-Length: 2\r\n" if method == "POST" else ""
        head = f"{method} {target} HTTP/1.1\r\nHost: {self.clusters.hostname(self.app)}\r\n{length}"
        writer.write(head.encode() + b"\r\n" + (b"hi" if length else b""))
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
        fields["body"] = (await reader.readexactly(int(fields["content-length"]))).decode()
        return int(lines[0].split()[1]), fields

    def _note(
        self, method: str, target: str, begun: float, status: int, fields: dict[str, str]
    ) -> None:
        if method == "GET":
            self.reads[fields.get("x-host-of", "nobody")] += 1
            if status != 200:
                self.failed_reads.append(f"{target}: {status}")
            return
        self.writes[status] += 1
        if status != 200:
            sent = fields.get("x-smartgw-request-sent", "")
            why = f"{status} sent={sent} {fields.get('body', '').strip()}"
            self.failed_writes.append((begun, time.monotonic(), target, sent, why))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("owner", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    seconds = parser.parse_args(argv).seconds
    with tempfile.TemporaryDirectory() as folder:
        settings = {"rates": {"requests": 1_000_000}}
        with Federation(Path(folder), settings=settings) as clusters:
            app = clusters.app(OWNER)
            hosts = {one: clusters.host(one, app, answering_as(one)) for one in clusters.gateways}
            load = Load(clusters, app)
            thread = threading.Thread(target=lambda: asyncio.run(load.run()))
            thread.start()
            down = []
            try:
                for _ in range(2):
                    time.sleep(seconds / 6)
                    down.append(_kill_and_bring_back(clusters, hosts[OWNER], seconds / 6))
                time.sleep(seconds / 3)
            finally:
                load.over = True
                thread.join()
            return _report(load, hosts, down)


def _kill_and_bring_back(clusters: Federation, host: Host, seconds: float) -> tuple[float, float]:
    """Kill the owner's gateway and its host; say when it was down."""
    gateway = clusters.gateways[OWNER]
    killed = time.monotonic()
    host.cluster.beating.discard(host)
    gateway.kill()
    host.upstream.kill()
    time.sleep(seconds)
    host.upstream.listen()
    _start_again(gateway)
    host.cluster.beating.add(host)
    host.publish(Kind.ANNOUNCE)
    # A read alone would say little: others serve it while the owner's host is not proven again.
    wait_until(
        lambda: gateway.ask(host.hostname, "/back").one("x-host-of") == OWNER, what="the owner back"
    )
    return killed, time.monotonic()


def _start_again(gateway: Gateway) -> None:
    """Start it where it was; a connection of ours may have its port for a moment."""
    for _ in range(50):
        with contextlib.suppress(RuntimeError):
            gateway.start()
            return
        time.sleep(0.5)
    raise TimeoutError(f"does not start:\n{gateway.log()[-1000:]}")


def _report(load: Load, hosts: dict[str, Host], down: list[tuple[float, float]]) -> int:
    came = Counter(
        (one, request.raw_target.decode())
        for one, host in hosts.items()
        for request in host.upstream.requests
        if request.method == "POST"
    )
    wrong = [f"{target} came {n} times to {one}" for (one, target), n in came.items() if n > 1]
    wrong += [f"{target} was written at {one}" for one, target in came if one != OWNER]
    for begun, ended, target, sent, why in load.failed_writes:
        # What had left may have been lost on its way; what had not left can have come to nobody.
        if sent not in ("none", "partial", "full") and not why.startswith("503"):
            wrong.append(f"{target}: does not say how much had left: {why}")
        elif sent == "none" and came[OWNER, target]:
            wrong.append(f"{target}: came, and nothing of it had left: {why}")
        if not any(start <= ended and begun <= end for start, end in down):
            last = max((end for _, end in down if end < begun), default=0.0)
            wrong.append(f"{target}: {begun - last:.3f} s after the owner was back: {why}")
    print(f"reads by who served them: {dict(load.reads)}; writes by status: {dict(load.writes)}")
    for line in [*load.failed_reads[:10], *wrong[:20]]:
        print(line)
    print(
        f"{load.reads.total()} reads, {len(load.failed_reads)} failed; "
        f"{load.writes.total()} writes, {len(load.failed_writes)} failed, {len(wrong)} wrongly"
    )
    return 1 if load.failed_reads or wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
