"""Requests that wait for a connection to their host: what becomes of them, and what stays."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.gateway import TABLE_SECONDS, Gateway, Host, MakeHost, wait_until
from tests.upstreams import HANDSHAKE, Connection, Request, accept, each

MIB = 1 << 20


def traffic(gateway: Gateway) -> dict[str, Any]:
    """The traffic section of the gateway's status."""
    section: dict[str, Any] = json.loads(gateway.internal("/api/v3/status")[1])["traffic"]
    return section


class Hold:
    """A host's script that answers nothing until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def __call__(self, connection: Connection) -> None:
        each(self._answer)(connection)

    def _answer(self, connection: Connection, request: Request) -> None:
        self.free.wait(20)
        connection.read_body(request)
        connection.reply()


@contextmanager
def asking(gateway: Gateway, host: Host, count: int) -> Iterator[list[int]]:
    """So many requests at once; their statuses are there when the block is left."""
    statuses: list[int] = []
    before = traffic(gateway)["in_flight"]
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(gateway.ask, host.hostname, "/", timeout=20) for _ in range(count)]
        wait_until(lambda: traffic(gateway)["in_flight"] == before + count)
        yield statuses
        statuses += [answer.result().status for answer in answers]


def test_the_dead_that_waited_leave_nothing(cramped: Gateway, make_host: MakeHost) -> None:
    """3.6: 1,000 clients that went away while their upload waited for a connection are gone."""
    hold = Hold()
    host = make_host(hold)
    head = f"POST / HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: 60000\r\n\r\n".encode()
    with asking(cramped, host, 8) as statuses:
        try:
            before = cramped.rss()
            for _ in range(1_000):
                with cramped.downstream() as client:
                    client.send(head, bytes(60_000))
            wait_until(lambda: traffic(cramped)["in_flight"] == 8)
            assert cramped.rss() - before < 16 * MIB
        finally:
            hold.free.set()
    assert statuses == [200] * 8
    assert len([r for r in host.upstream.requests if r.method == "POST"]) == 0


def test_a_change_of_weight_fails_nobody(cramped: Gateway, make_host: MakeHost) -> None:
    """3.8: requests that wait for a connection while the host's weight changes are served."""
    hold = Hold()
    host = make_host(hold)
    with asking(cramped, host, 18) as statuses:
        try:
            host.weight = 50
            host.publish()
            wait_until(lambda: cramped.hosts()[host.host_id]["weight"] == 50)
            time.sleep(TABLE_SECONDS)
        finally:
            hold.free.set()
    assert statuses == [200] * 18
    assert len(host.upstream.requests) == 18


def test_at_most_four_hosts_are_tried(gateway: Gateway, make_host: MakeHost) -> None:
    """3.7: one request is not the whole app's end: it tries four hosts and then fails."""
    hosts = [make_host()]
    hosts += [make_host(app=hosts[0].app) for _ in range(9)]
    for host in hosts:
        # It takes connections and proves nothing any more.
        host.upstream.script = Connection.close
        host.upstream.kill()
        host.upstream.accepted = 0
        host.upstream.listen()
    answer = gateway.ask(hosts[0].hostname)
    assert answer.status in (502, 503)
    # A host that failed is verified again at once, so one may be seen twice.
    assert len([host for host in hosts if host.upstream.accepted]) <= 4


def test_weights_of_a_thousand_to_one(gateway: Gateway, make_host: MakeHost) -> None:
    """3.7: beside a host of weight 1000 one of weight 1 gets next to nothing."""
    light = make_host(weight=1)
    heavy = make_host(app=light.app, weight=1000)
    request = f"GET / HTTP/1.1\r\nHost: {light.hostname}\r\n\r\n".encode()
    with gateway.downstream() as client:
        for _ in range(400):
            client.send(request)
            assert client.answer().status == 200
    shares = Counter(light=len(light.upstream.requests), heavy=len(heavy.upstream.requests))
    assert shares.total() == 400
    # 0.4 are expected; ten would come once in 10^10 runs.
    assert shares["light"] < 10


def relay(connection: Connection) -> None:
    """Answer requests, and keep a WebSocket open until the client ends it."""
    while True:
        request = connection.head()
        if request.all("upgrade"):
            accept(connection, request)
            connection.ended(20)
            return
        connection.reply()


def spread(gateway: Gateway, hosts: Sequence[Host], count: int) -> list[int]:
    """Open so many WebSockets, one after the other; return how many came to each host."""

    def opened(host: Host) -> int:
        return len([one for one in host.upstream.requests if one.all("upgrade")])

    before = [opened(host) for host in hosts]
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(gateway.downstream())
            client.send(HANDSHAKE.format(hostname=hosts[0].hostname).encode())
            assert client.final_head().status == 101
        found = [opened(host) - had for host, had in zip(hosts, before, strict=True)]
    wait_until(lambda: b"\nsmartgw_tunnels 0\n" in gateway.internal("/metrics")[1])
    return found


def test_websockets_are_load(gateway: Gateway, make_host: MakeHost) -> None:
    """3.7: an open WebSocket counts as an outstanding request of its host. One that has ended
    counts no more, nor does a kept connection that has.
    """
    first = make_host(relay)
    hosts = first, make_host(relay, app=first.app)
    assert spread(gateway, hosts, 10) == [5, 5]
    assert spread(gateway, hosts, 10) == [5, 5]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: gateway.ask(first.hostname), range(40)))
    first.upstream.kill()
    first.upstream.listen()
    time.sleep(TABLE_SECONDS)
    assert spread(gateway, hosts, 10) == [5, 5]
