"""What a directory of clusters may do to its readers without costing a request (contract 4.4).

`python -m tests.drills.directory [NAME...] [--hold 40] [--grace 30] [--interval 5]`. Two clusters
follow one validator under load while it fails in each way. Prints the figure last; exit code 1 when
a request failed. The same, short, is tests/smartgw/test_directory_outages.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.gateway import Cluster, Gateway, identity_of, seed_file, wait_until
from tests.raw_http import Downstream
from tests.servers import Nats, free_port
from tests.validators import LiveValidator, answer, chunked, list_text

IDS = ("c1", "c2")
APPS = tuple(f"app-{number}" for number in range(1, 9))
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds that a failure lasts, of the grace, and between two polls."""

    hold: float = 40.0
    grace: float = 30.0
    interval: float = 5.0


class Trial:
    """Two clusters under load, and their validator; counts what went wrong."""

    def __init__(self, scale: Scale, nats: Nats) -> None:
        self.scale = scale
        self.validator = LiveValidator()
        self.requests = 0
        self.failures: list[str] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.clusters = [Cluster(cluster_id, nats, enrolled=2) for cluster_id in IDS]
        self.gateways = [self._gateway(cluster) for cluster in self.clusters]
        for cluster in self.clusters:
            cluster.host(app=APPS)
        self._threads = [
            threading.Thread(target=self._load, args=(number,), daemon=True)
            for number in range(CLIENTS)
        ]

    def begin(self) -> None:
        """Give the list, then the load."""
        self.validator.says = self.good()
        self.wait_for("fresh")
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End all but the bus."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)
        for cluster in self.clusters:
            cluster.stop()
        self.validator.close()

    def good(self, *more: dict[str, Any]) -> bytes:
        """The answer that is right, with further clusters."""
        entries = [
            {
                "id": gateway.cluster.cluster_id,
                "gateways": [f"http://127.0.0.1:{gateway.port}"],
                "keys": [identity_of(gateway.cluster.cluster_id).public_key.text],
                "state": "active",
            }
            for gateway in self.gateways
        ]
        return answer(list_text(*entries, *more))

    def mode(self, gateway: Gateway) -> str:
        """The directory's mode, as the status of a gateway shows it."""
        return str(json.loads(gateway.internal("/api/v3/status")[1])["peers"]["mode"])

    def forwarded(self) -> int:
        """How many requests the gateways have taken from each other."""
        texts = [gateway.internal("/metrics")[1].decode() for gateway in self.gateways]
        counts = [re.search(r"^smartgw_marks_total (\d+)", text, re.MULTILINE) for text in texts]
        return sum(int(count[1]) for count in counts if count is not None)

    def wait_for(self, *modes: str) -> None:
        """Wait until every gateway is in one of these modes."""
        within = self.scale.grace + 3 * self.scale.interval + 15
        for gateway in self.gateways:
            wait_until(partial(self._is_in, gateway, modes), within, str(modes))

    def _is_in(self, gateway: Gateway, modes: Sequence[str]) -> bool:
        return self.mode(gateway) in modes

    def _gateway(self, cluster: Cluster) -> Gateway:
        seed = seed_file(cluster.nats.folder / f"{cluster.cluster_id}.seed", cluster.cluster_id)
        peers = {
            "validators": [self.validator.url],
            "interval": self.scale.interval,
            "grace": self.scale.grace,
        }
        # One of them with workers, which are told what the first process knows.
        processes = {"workers": IDS.index(cluster.cluster_id) + 1}
        identity = {"seed_file": str(seed)}
        return cluster.gateway({"identity": identity, "peers": peers, "processes": processes})

    def _load(self, number: int) -> None:
        client: Downstream | None = None
        while not self._over.is_set():
            number += 1
            gateway = self.gateways[number // len(APPS) % 2]
            app = APPS[number % len(APPS)]
            try:
                if client is None or number % len(APPS) == 0:
                    if client is not None:
                        client.close()
                    client = gateway.downstream(timeout=35)
                host = f"{app}.smart-app.test"
                client.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                got = client.answer()
                fault = "" if got.status == 200 else f"{got.status} {got.body[:200]!r}"
            except Exception as error:
                client, fault = None, repr(error)
            with self._lock:
                self.requests += 1
                if fault:
                    self.failures.append(f"{app} at {gateway.cluster.cluster_id}: {fault}")
            time.sleep(0.002)
        if client is not None:
            client.close()


Failure = Callable[[Trial], str]


def stopped(trial: Trial) -> str:
    """Connections are refused: the last list serves for the grace, then owners are unknown."""
    trial.validator.refuse()
    trial.wait_for("grace", "unknown")
    time.sleep(trial.scale.hold)
    trial.wait_for("unknown")
    trial.validator.listen()
    return "unknown after the grace"


def _answering(says: bytes | Sequence[bytes] | None) -> Failure:
    def fail(trial: Trial) -> str:
        trial.validator.says = says
        trial.wait_for("grace", "unknown")
        time.sleep(trial.scale.hold)
        trial.wait_for("unknown")
        return "unknown after the grace"

    return fail


def empty(trial: Trial) -> str:
    """A valid list without clusters: owners are unknown at once."""
    trial.validator.says = answer(list_text())
    trial.wait_for("unknown")
    time.sleep(trial.scale.hold / 4)
    return "unknown at once"


def changing(trial: Trial) -> str:
    """100 changes a second; the list names, now and then, a cluster that nobody can reach."""
    stranger = {
        "id": "c3",
        "gateways": [f"http://127.0.0.1:{free_port()}"],
        "keys": [identity_of("c3").public_key.text],
        "state": "active",
    }
    lists = [trial.good(), trial.good(stranger), trial.good({**stranger, "state": "gone"})]
    until, count = time.monotonic() + trial.scale.hold, 0
    while time.monotonic() < until:
        trial.validator.says = lists[count % len(lists)]
        count += 1
        time.sleep(0.01)
    return f"{count} changes"


FAILURES: dict[str, Failure] = {
    "stopped": stopped,
    "silent": _answering(None),
    "brackets": _answering(answer(b"[]")),
    "braces": _answering(answer(b"{}")),
    "error-500": _answering(answer(b"oops", 500)),
    "garbage": _answering(b"\x00\xffgarbage\r\n\r\n"),
    "ten-megabytes": _answering(chunked(10 << 20)),
    "empty": empty,
    "changing": changing,
}


@contextmanager
def trial_of(scale: Scale) -> Iterator[Trial]:
    """Two clusters with their load."""
    nats = Nats().start()
    try:
        trial = Trial(scale, nats)
        try:
            trial.begin()
            yield trial
        finally:
            trial.end()
    finally:
        nats.stop()


def sit_out(trial: Trial, name: str) -> str:
    """Let the directory fail in one way; returns the figure, raises AssertionError for harm."""
    before = trial.requests
    note = FAILURES[name](trial)
    trial.validator.says = trial.good()
    trial.wait_for("fresh")
    assert trial.failures == [], (len(trial.failures), trial.failures[:3])
    return f"0 of {trial.requests - before} requests failed; {note}"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("directory", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FAILURES))
    parser.add_argument("--hold", type=float, default=40.0, help="seconds that a failure lasts")
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=5.0)
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(FAILURES):
        parser.error(f"no {', '.join(unknown)}; there are {', '.join(FAILURES)}")
    harmful = 0
    with trial_of(Scale(args.hold, args.grace, args.interval)) as trial:
        for name in args.names or FAILURES:
            try:
                print(f"{name:<14} {sit_out(trial, name)}", flush=True)
            except (AssertionError, TimeoutError) as error:
                harmful += 1
                print(f"{name:<14} FAILED: {error}", flush=True)
        total, failed, forwarded = trial.requests, len(trial.failures), trial.forwarded()
    print(f"{failed} of {total} requests failed, {forwarded} were forwarded")
    return 1 if failed or harmful else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
