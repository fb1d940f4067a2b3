"""Slow, silent, greedy and too many: what a gateway does with them, in small.

The same in full, with latencies, are the drills slow, fair, scarce and floods in tests/drills.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.drills.clients import Many, addresses
from tests.drills.fair import Slow
from tests.drills.floods import Flooder, messages
from tests.drills.machine import MIB, Peak, metrics, resident
from tests.drills.scarce import Limited
from tests.gateway import Cluster, Config, Gateway, Host, wait_until
from tests.raw_http import Answer
from tests.upstreams import Connection

QUICK = {"head": 1.0, "request_body": 1.0, "response_body": 1.0, "keepalive": 1.0, "linger": 0.5}
_COUNT = 40


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of its own, whose gateways each test starts."""
    cluster = Cluster(enrolled=40)
    try:
        yield cluster
    finally:
        cluster.stop()


def large(connection: Connection) -> None:
    """More than fits into any buffer."""
    while True:
        connection.request()
        connection.reply(b"x" * (4 * MIB))


class Others:
    """A client on a kept connection, which asks again and again meanwhile."""

    def __init__(self, gateway: Gateway, host: Host) -> None:
        self._client = gateway.downstream(timeout=5)
        self._request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
        self._over = threading.Event()
        self.slowest = 0.0
        self.answers: list[Answer] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.02):
            start = time.monotonic()
            self._client.send(self._request)
            self.answers.append(self._client.answer())
            self.slowest = max(self.slowest, time.monotonic() - start)

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    @property
    def served(self) -> bool:
        """Whether every answer was a whole 200."""
        return bool(self.answers) and all(
            answer.status == 200 and answer.complete for answer in self.answers
        )


def test_slow_clients_are_closed(cluster: Cluster) -> None:
    """3.11: heads, bodies and readers that make no progress are ended by their deadlines, hold
    little until then, and others do not notice (R43)."""
    gateway = cluster.gateway({"deadlines": QUICK})
    host, other = cluster.host(large), cluster.host()
    line = f"Host: {host.hostname}\r\n".encode()
    heads, bodies, readers, silent = (Many(gateway.port) for _ in range(4))
    kinds = {"heads": heads, "bodies": bodies, "readers": readers, "silent": silent}
    peak = Peak(gateway)
    with Others(gateway, other) as others:
        heads.add(_COUNT, addresses(4), b"GET / HTTP/1.1\r\n" + line + b"X-Slow: ")
        bodies.add(
            _COUNT, addresses(4), b"POST / HTTP/1.1\r\nContent-Length: 99\r\n" + line + b"\r\n"
        )
        readers.add(_COUNT, addresses(4), b"GET / HTTP/1.1\r\n" + line + b"\r\n")
        silent.add(_COUNT, addresses(4), b"")
        until = time.monotonic() + 8
        while metrics(gateway)["smartgw_connections"] > 1 and time.monotonic() < until:
            peak.look()
            time.sleep(0.05)
            for many in (heads, bodies, silent):
                many.look()
        left = metrics(gateway)["smartgw_connections"]
    for many in kinds.values():
        many.close()
    assert left == 1, {name: many.open for name, many in kinds.items()}
    assert heads.answers == bodies.answers == {"408": _COUNT}
    assert silent.answers == {}
    assert others.served
    # A reader holds what was read at once and what may be written, both bounded.
    assert peak.grown < _COUNT * 0.4 + 4


def test_a_slow_app_and_a_greedy_address(cluster: Cluster) -> None:
    """3.11: nobody holds more than is still free, what is above is 503 with Retry-After, and the
    other apps and addresses are served."""
    limits = {"requests": 60, "connections_per_address": 50, "connections": 400}
    gateway = cluster.gateway({"limits": limits})
    slow = Slow()
    host, other = cluster.host(slow), cluster.host()
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
    many, greedy = Many(gateway.port), Many(gateway.port)
    with Others(gateway, other) as others:
        many.add(60, addresses(6), request)
        greedy.add(90, addresses(1, 99), b"")
        many.look(0.5)
        greedy.look(0.2)
        assert gateway.ask(other.hostname).status == 200
        waiting = metrics(gateway)["smartgw_in_flight"]
        slow.answer.set()
        many.look(1.0)
    assert 28 <= waiting <= 32
    assert 28 <= many.answers["503"] <= 32
    assert many.answers["200"] + many.answers["503"] == 60
    assert (greedy.open, greedy.answers) == (50, {"503": 40})
    assert many.answers["503"] == many.retry_after
    assert greedy.retry_after == 40
    assert others.served
    many.close()
    greedy.close()


_MEMORY_MIB = 110
_HEADS = (b"GET / HTTP/1.1\r\n" + (b"X-Filler: " + b"x" * 15_000 + b"\r\n") * 2, 3_000)


@pytest.mark.parametrize(
    ("limits", "limit", "attack"),
    [
        ({"memory_mib": _MEMORY_MIB}, "", _HEADS),
        ({}, f"--as={130 * MIB}", _HEADS),
        ({}, "--nofile=256", (b"", 300)),
    ],
    ids=["memory", "address space", "descriptors"],
)
def test_too_little(
    cluster: Cluster, limits: dict[str, object], limit: str, attack: tuple[bytes, int]
) -> None:
    """3.11: when memory or descriptors are short, new connections are answered 503 with
    Retry-After; what is there is served on, and all is well again by itself."""
    Limited.limit = limit
    changes: Config = {"deadlines": QUICK, "limits": {**limits, "connections_per_address": 2_000}}
    gateway = Limited(cluster, changes)
    cluster.gateways.append(gateway)
    gateway.start()
    other = cluster.host()
    many = Many(gateway.port)
    say, count = attack
    with Others(gateway, other) as others:
        log = len(gateway.log())
        for _ in range(5):
            many.add(count // 5, addresses(20), say, rate=6_000)
            many.look()
        many.look(0.3)
        shed = many.answers["503"]
        assert gateway.running
        many.close()
        wait_until(lambda: _serves(gateway, other), 10, "an answer on a new connection")
    assert shed > 0
    assert shed == many.retry_after
    assert others.served
    assert resident(gateway) < (_MEMORY_MIB + 20) * MIB
    assert len(gateway.log()) - log < 2_000


def _serves(gateway: Gateway, host: Host) -> bool:
    try:
        return gateway.ask(host.hostname, timeout=2.0).status == 200
    except OSError:
        return False


def test_a_flood_on_the_bus(cluster: Cluster) -> None:
    """1.2, 1.5: whatever looks like messages is counted, strangers are bounded, memory too, the
    hosts stay and traffic goes on."""
    gateway = cluster.gateway()
    hosts = [cluster.host(wait=False) for _ in range(4)]
    cluster.wait_healthy(*hosts)
    batch = messages(cluster, hosts, 250)
    flooder = Flooder(cluster.nats.port)
    first, peak, log = metrics(gateway), Peak(gateway), len(gateway.log())
    with Others(gateway, hosts[0]) as others:
        sent = flooder.send(batch, 500_000 / 60, 1.0, peak)
        new = cluster.host()
        now = metrics(gateway)
    flooder.close()
    known = sum(value - first[name] for name, value in now.items() if "refused_total{" in name) + (
        now["smartgw_bus_drops_total"] - first["smartgw_bus_drops_total"]
    )
    strangers = now['smartgw_hosts{state="provisional"}']
    assert sent * 0.99 - strangers <= known <= sent
    assert strangers <= 1_000
    assert now['smartgw_hosts{state="healthy"}'] == 5
    assert gateway.ask(new.hostname).status == 200
    assert others.served
    assert peak.grown < 32
    assert len(gateway.log()) - log < 4_000
