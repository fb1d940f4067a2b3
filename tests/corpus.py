"""Run a folder of raw cases against a real gateway: `python -m tests.corpus DIR [--json FILE]
[--only REGEX]`.

Two forms, told apart by the manifest: raw requests (`level`), where a recording upstream shows
what was forwarded, and raw answers (`then`), which a hostile upstream gives. Both stand behind
`smartgw host --raw`, so that no parser but the gateway's is tried. Cases run in several lanes,
each a cluster of its own, since all of them name the same app. Judging is in
tests/corpus_rules.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus_rules import Exchange, judge_answer, judge_request
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Sidecar, wait_until
from tests.raw_http import BadAnswer, Downstream
from tests.servers import Nats
from tests.upstreams import Connection, Upstream

APP = "app1"
LANES = 4
CASES_PER_LANE = 12
# A case is over when nothing came for IDLE seconds; one that got no byte at all is given LONGEST.
IDLE, PATIENCE, LONGEST = 0.25, 1.3, 5.0

Case = dict[str, Any]


@dataclass(slots=True)
class Result:
    """What came of one case; `fail` is empty when it passed."""

    file: str
    status: list[int]
    forwarded: int
    fail: list[str] = field(default_factory=list)


def read_case(folder: Path, name: str) -> bytes:
    """The bytes of a case; large ones may be gzipped."""
    path = folder / name
    return path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())


class Lane:
    """One gateway with one host behind a raw sidecar; cases run in it one after another."""

    def __init__(self, number: int, nats: Nats, folder: Path, cases: Sequence[Case]) -> None:
        self.folder, self.cases = folder, {int(case["id"]): case for case in cases}
        self.upstream = Upstream(self.script)
        self.cluster = Cluster(f"lane{number}", nats, enrolled=1)
        self.gateway = Gateway(self.cluster)
        self.cluster.gateways.append(self.gateway)
        self.sidecar = Sidecar(self.cluster, "host-0", [APP], self.upstream.port)

    def spawn(self) -> None:
        """Start gateway and sidecar side by side."""
        self.gateway.spawn()
        self.sidecar.spawn()

    def wait_ready(self) -> None:
        """Wait until the gateway routes to the verified host."""
        wait_until(self.gateway.ready, what="gateway ready")
        wait_until(self.sidecar.ready, what="sidecar verified")

    def stop(self) -> None:
        """End everything."""
        self.sidecar.stop()
        self.cluster.stop()
        self.upstream.close()

    def script(self, connection: Connection) -> None:
        """Record every request; `/r/<id>` gets the hostile answer of that case, others their
        own target.
        """
        while True:
            request = connection.head()
            if request.all("expect"):
                connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.read_body(request)
            hostile = re.match(rb"/r/(\d+)$", request.raw_target)
            if hostile and int(hostile[1]) in self.cases:
                case = self.cases[int(hostile[1])]
                connection.send(read_case(self.folder, case["file"]))
                if case["then"] == "close":
                    return
            else:
                body = request.raw_target[:200]
                connection.reply(b"" if request.method == "HEAD" else body)

    def connect(self) -> Downstream:
        """A new client connection."""
        return self.gateway.downstream(timeout=3.0)

    def forget(self) -> None:
        """Drop what was recorded."""
        with self.upstream.lock:
            self.upstream.requests.clear()
            self.upstream.errors.clear()

    def canary(self, case_id: int) -> str:
        """A second client's plain request must get its own answer; says what came instead."""
        got = b""
        mark = f"/canary-{case_id}"
        with contextlib.suppress(OSError, BadAnswer), self.connect() as client:
            client.send(f"GET {mark} HTTP/1.1\r\nHost: {APP}.{BASE_DOMAIN}\r\n".encode())
            client.send(b"Connection: close\r\n\r\n")
            got = client.rest()
            if b" 200" in got[:20] and mark.encode() in got:
                return ""
        return f"second client's request got {got[:60]!r}"

    def run_request(self, case: Case) -> Result:
        """One case of raw request bytes."""
        self.forget()
        raw = read_case(self.folder, case["file"])
        half = case["name"] == "cl-short-close" or bool(case.get("half_close"))
        exchange = self.talk(raw, half)
        time.sleep(0.02)
        with self.upstream.lock:
            exchange.requests = [r for r in self.upstream.requests if r.whole]
            exchange.errors = list(self.upstream.errors)
        fail = judge_request(case, exchange)
        self.forget()
        if complaint := self.canary(case["id"]):
            fail.append(complaint)
        return Result(case["file"], exchange.finals[:4], len(exchange.requests), fail)

    def talk(self, raw: bytes, half: bool) -> Exchange:
        """Send everything whatever comes back, until the gateway ends or falls silent."""
        client = self.connect()

        def send() -> None:
            with contextlib.suppress(OSError):
                client.send(raw)
                if half:
                    client.half_close()

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        begun = last = time.monotonic()
        client.socket.settimeout(3.0)
        while not client.ended:
            if client.readable(0.02):
                client.buffer.clear()
                client.receive()
                client.buffer.clear()
                last = time.monotonic()
                continue
            now = time.monotonic()
            if client.got:
                if now - last > IDLE and not sender.is_alive():
                    break
            elif now - begun > (PATIENCE if self.upstream.requests else LONGEST):
                break
        client.close()
        sender.join(timeout=1)
        return Exchange(bytes(client.got), closed=bool(client.ended))

    def run_answer(self, case: Case) -> Result:
        """One case of raw answer bytes."""
        self.forget()
        wanted = case["request"]
        lines = [
            f"{wanted['method']} /r/{case['id']} HTTP/1.1",
            f"Host: {APP}.{BASE_DOMAIN}",
            *(f"{name}: {value}" for name, value in wanted["headers"]),
        ]
        raw = read_case(self.folder, case["file"])
        with self.connect() as client:
            client.socket.settimeout(LONGEST)
            client.send("\r\n".join(lines).encode("latin1"), b"\r\n\r\n")
            status, fail = judge_answer(case, client, raw)
        with self.upstream.lock:
            seen = len(self.upstream.requests)
        if complaint := self.canary(case["id"]):
            fail.append(complaint)
        return Result(case["file"], status, seen, fail)

    def run(self, case: Case) -> Result:
        """One case of either form."""
        try:
            return self.run_answer(case) if "then" in case else self.run_request(case)
        except OSError as error:
            return Result(case["file"], [], 0, [f"no connection: {error}"])


@contextlib.contextmanager
def lanes(count: int, folder: Path, cases: Sequence[Case]) -> Iterator[list[Lane]]:
    """So many lanes on one bus, started side by side."""
    with Nats() as nats:
        made = [Lane(number, nats, folder, cases) for number in range(count)]
        try:
            for lane in made:
                lane.spawn()
            for lane in made:
                lane.wait_ready()
            yield made
        finally:
            for lane in made:
                lane.stop()


def run(folder: Path, only: str = "") -> list[Result]:
    """Run the cases of a folder whose file name matches `only`; results in the manifest's order."""
    cases: list[Case] = json.loads((folder / "manifest.json").read_text())
    chosen = [case for case in cases if re.search(only, case["file"])]
    results: dict[str, Result] = {}
    waiting = iter(chosen)
    lock = threading.Lock()

    def work(lane: Lane) -> None:
        while True:
            with lock:
                case = next(waiting, None)
            if case is None:
                return
            results[case["file"]] = lane.run(case)

    count = max(1, min(LANES, len(chosen) // CASES_PER_LANE))
    with lanes(count, folder, cases) as made:
        threads = [threading.Thread(target=work, args=(lane,)) for lane in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [results[case["file"]] for case in chosen]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every failure, then the count; 1 when a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--only", default="", metavar="REGEX", help="only files that match")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    results = run(options.folder, options.only)
    for result in results:
        for reason in result.fail:
            print(f"{result.file}: {reason} (status {result.status}, forwarded {result.forwarded})")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    failed = sum(bool(result.fail) for result in results)
    print(f"{time.monotonic() - begun:.0f} s")
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
