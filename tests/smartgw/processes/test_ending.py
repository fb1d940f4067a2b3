"""How a gateway ends, or is taken out of use: SIGTERM, drain, and what clients see of it."""

from __future__ import annotations

import contextlib
import errno
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from smartgw.cli.endpoint import Endpoint
from smartgw.cli.status import ask, table
from smartgw.proxy.websocket import GOING_AWAY
from tests.gateway import Cluster, Config, Gateway, wait_until
from tests.generations import QUICK, clean, drain, end, exit_code, status
from tests.raw_http import Downstream
from tests.upstreams import HANDSHAKE, Connection, Request, Script, accept, each, serve

Connect = Callable[[Gateway], Downstream]
SLOW: Config = {"processes": {"unready_wait": 2.0, "drain": 30.0}}


@pytest.fixture(scope="module")
def ending() -> Iterator[Cluster]:
    """A cluster whose gateways are ended by the tests."""
    cluster = Cluster(enrolled=40)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def started(cluster: Cluster, changes: Config, workers: int = 1) -> Gateway:
    """A gateway with so many workers, that only its test knows of."""
    processes = changes["processes"]
    assert isinstance(processes, dict)
    return Gateway(cluster, {"processes": {**processes, "workers": workers}}).start()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients that are closed when the test ends."""
    with contextlib.ExitStack() as clients:
        yield lambda gateway: clients.enter_context(gateway.downstream())


def host_of(cluster: Cluster, gateway: Gateway, script: Script = serve) -> str:
    """The hostname of an app with one healthy host at this gateway."""
    cluster.gateways = [gateway]
    try:
        host = cluster.host(script)
    finally:
        cluster.gateways = []
    return host.hostname


def refuses(gateway: Gateway) -> bool:
    """Whether a new client is refused."""
    with socket.socket() as client:
        return client.connect_ex(gateway.public) == errno.ECONNREFUSED


def test_the_order_of_sigterm(ending: Cluster, workers: int, connect: Connect) -> None:
    """11.1: SIGTERM: not ready, wait, stop accepting, finish what is in flight, exit 0."""
    gateway = started(ending, SLOW, workers)
    try:

        def slowly(connection: Connection, request: Request) -> None:
            time.sleep(3.0 if request.raw_target == b"/slow" else 0.0)
            connection.reply(b"done")

        hostname = host_of(ending, gateway, each(slowly))
        idle, slow = connect(gateway), connect(gateway)
        request = f"GET / HTTP/1.1\r\nHost: {hostname}\r\n\r\n".encode()
        idle.send(request)
        assert idle.answer().one("connection") == ""
        began = time.monotonic()
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: gateway.internal("/readyz")[0] == 503)
        missing = json.loads(gateway.internal("/readyz")[1])["missing"]
        assert any("drain" in text for text in missing)
        answer = gateway.ask(hostname)
        assert (answer.status, answer.one("connection")) == (200, "close"), "it still accepts"
        slow.send(request.replace(b"GET /", b"GET /slow"))
        wait_until(lambda: refuses(gateway))
        assert time.monotonic() - began > 1.9
        idle.send(request)
        answer = idle.answer()
        assert (answer.status, answer.one("connection")) == (200, "close")
        assert idle.closed(5)
        answer = slow.answer()
        assert (answer.status, answer.body) == (200, b"done")
        assert exit_code(gateway) == 0
        assert time.monotonic() - began < 20.0, "nobody was left to wait for"
        assert "Traceback" not in gateway.log()
    finally:
        clean(gateway)


def test_idle_connections_are_closed_at_the_end(ending: Cluster, connect: Connect) -> None:
    """11.1: an idle keep-alive connection is not cut at the beginning, but ends with the drain."""
    gateway = started(ending, {"processes": {"unready_wait": 0, "drain": 2.0}})
    try:
        hostname = host_of(ending, gateway)
        client = connect(gateway)
        client.send(f"GET / HTTP/1.1\r\nHost: {hostname}\r\n\r\n".encode())
        assert client.answer().status == 200
        gateway.signal(signal.SIGTERM)
        assert not client.readable(1.2)
        assert client.closed(10)
        assert client.ended == "fin"
        assert exit_code(gateway) == 0
    finally:
        clean(gateway)


def test_a_second_signal_ends_at_once(ending: Cluster, workers: int) -> None:
    """11.1: whoever cannot wait sends a second signal."""
    gateway = started(ending, {"processes": {"unready_wait": 30, "drain": 30}}, workers)
    try:
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: gateway.internal("/readyz")[0] == 503)
        assert end(gateway) == -signal.SIGTERM
    finally:
        clean(gateway)


def test_what_does_not_end_is_cut(ending: Cluster, connect: Connect) -> None:
    """11.1: the time to drain bounds the end, whatever is in flight."""
    gateway = started(ending, QUICK)
    try:

        def never(connection: Connection, request: Request) -> None:
            time.sleep(20.0)

        hostname = host_of(ending, gateway, each(never))
        client = connect(gateway)
        client.send(f"GET / HTTP/1.1\r\nHost: {hostname}\r\n\r\n".encode())
        time.sleep(0.2)
        began = time.monotonic()
        assert end(gateway) == 0
        assert 1.8 < time.monotonic() - began < 15.0
    finally:
        clean(gateway)


def test_websockets_are_sent_away(ending: Cluster, workers: int, connect: Connect) -> None:
    """11.1: WebSockets get a going-away close (1001) after the grace, between two frames."""
    gateway = started(ending, QUICK, workers)
    try:
        seen: list[bytes] = []

        def app(connection: Connection, request: Request) -> None:
            accept(connection, request)
            # The first half of a frame, and its second half only when the client says so.
            connection.send(b"\x82\x06abc")
            seen.append(connection.take(8))
            connection.send(b"def\x82\x01x")
            seen.append(connection.take(8))

        hostname = host_of(ending, gateway, each(app))
        client = connect(gateway)
        client.send(HANDSHAKE.format(hostname=hostname).encode())
        assert client.answer().status == 101
        assert client.take(5) == b"\x82\x06abc"
        gateway.signal(signal.SIGTERM)
        assert not client.readable(1.4), "the grace is not over"
        assert not client.readable(0.3), "a frame is not cut in two"
        client.send(b"\x81\x82mask\x00\x00")
        assert client.take(7) == b"def" + GOING_AWAY
        client.send(b"\x88\x82mask\x6e\x88")
        wait_until(lambda: len(seen) == 2)
        assert seen == [b"\x81\x82mask\x00\x00", b"\x88\x82mask\x6e\x88"]
        assert client.rest() == b"", "nothing follows a close frame"
        assert exit_code(gateway) == 0
    finally:
        clean(gateway)


def test_drain_and_undo(ending: Cluster, workers: int) -> None:
    """11.1: `drain` does the same as SIGTERM without exiting, and can be undone."""
    gateway = started(ending, QUICK, workers)
    try:
        hostname = host_of(ending, gateway)
        code, said = drain(gateway)
        assert code == 0, said
        assert gateway.internal("/readyz")[0] == 503
        wait_until(lambda: refuses(gateway))
        wait_until(lambda: status(gateway)["gateway"]["phase"] == "drained")
        assert gateway.running
        code, said = drain(gateway, "--undo", "--json")
        assert (code, json.loads(said)) == (0, {"phase": "serving"})
        wait_until(lambda: not refuses(gateway))
        answer = gateway.ask(hostname)
        assert (answer.status, answer.one("connection")) == (200, "")
        assert gateway.internal("/readyz")[0] == 200
        assert drain(gateway)[0] == 0
        assert end(gateway) == 0, "a drained gateway still ends"
    finally:
        clean(gateway)


def test_drain_of_a_host(ending: Cluster, connect: Connect) -> None:
    """11.1: drain takes a host out of choice for new requests; what it carries goes on."""
    gateway = started(ending, QUICK, 2)
    try:

        def slowly(connection: Connection, request: Request) -> None:
            time.sleep(2.0 if request.raw_target == b"/slow" else 0.0)
            connection.reply(b"done")

        hostname = host_of(ending, gateway, each(slowly))
        host = ending.hosts[-1]
        slow = connect(gateway)
        slow.send(f"GET /slow HTTP/1.1\r\nHost: {hostname}\r\n\r\n".encode())
        wait_until(lambda: len(host.upstream.requests) == 1)
        code, said = drain(gateway, "--host", host.host_id)
        assert code == 0, said
        wait_until(lambda: gateway.ask(hostname).status == 503)
        assert status(gateway)["gateway"]["drained_hosts"] == [host.host_id]
        assert slow.answer().body == b"done"
        assert gateway.state(host.host_id) == "drained"
        shown = list(table(*ask(Endpoint(f"127.0.0.1:{gateway.internal_port}"), every_host=True)))
        undo = f"smartgw drain --host {host.host_id} --undo"
        assert any(line.endswith(f"by an operator; {undo}") for line in shown)
        assert any(line.startswith(f"drained   {host.host_id}") for line in shown)
        assert any(line.endswith("drained 1") for line in shown), "its app has no other host"
        assert drain(gateway, "--host", host.host_id, "--undo")[0] == 0
        wait_until(lambda: gateway.ask(hostname).status == 200)
        code, said = drain(gateway, "--host", "nobody")
        assert code == 1
        assert "nobody" in said
    finally:
        clean(gateway)
