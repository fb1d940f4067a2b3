"""A host that lost its enrolment: what was open to it ends, and nothing more is begun with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from smartgw_hosts.wire import Kind
from tests.gateway import TABLE_SECONDS, Cluster, Gateway, Host, MakeHost, wait_until
from tests.raw_http import Downstream
from tests.upstreams import HANDSHAKE, Connection, Request, accept, each

# What the contract allows, and what a busy machine may add to it.
CUT_SECONDS = 2.0 + 3.0


def endless(connection: Connection, request: Request) -> None:
    """A WebSocket and a download that never end by themselves."""
    if request.all("upgrade"):
        accept(connection, request)
    elif request.raw_target == b"/download":
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun")
    else:
        connection.reply()
        return
    connection.ended(60)
    raise EOFError


def open_both(gateway: Gateway, host: Host) -> list[Downstream]:
    """A WebSocket and a download through the gateway, both under way."""
    socket, download = gateway.downstream(), gateway.downstream()
    socket.send(HANDSHAKE.format(hostname=host.hostname).encode())
    assert socket.final_head().status == 101
    download.send(f"GET /download HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
    assert download.until(b"begun") is not None
    return [socket, download]


def nothing(gateway: Gateway, host: Host) -> None:
    """Between opening and removal nothing happens."""


def another_weight(gateway: Gateway, host: Host) -> None:
    """The host is another entry of the table now, and a request has used it."""
    host.weight = 50
    host.publish()
    wait_until(lambda: gateway.hosts()[host.host_id]["weight"] == 50)
    time.sleep(TABLE_SECONDS)
    assert gateway.ask(host.hostname).status == 200


def left(gateway: Gateway, host: Host) -> None:
    """The host has left and is not in the table any more; what it carries goes on (3.8)."""
    host.cluster.beating.discard(host)
    host.publish(Kind.LEAVE)
    wait_until(lambda: gateway.state(host.host_id) == "unhealthy")
    time.sleep(TABLE_SECONDS)
    assert gateway.ask(host.hostname).status == 503


@pytest.mark.parametrize("between", [nothing, another_weight, left])
def test_a_removed_host_loses_what_it_carries(
    gateway: Gateway,
    cluster: Cluster,
    make_host: MakeHost,
    between: Callable[[Gateway, Host], None],
) -> None:
    """1.4: one that is taken off the list loses its connections within 2 s: a WebSocket and a
    download, also after its weight has changed and after it has left the table.
    """
    host = make_host(each(endless))
    streams = open_both(gateway, host)
    between(gateway, host)
    assert not any(stream.readable(0.0) for stream in streams)
    cluster.unenrol(host)
    assert [stream.closed(CUT_SECONDS) for stream in streams] == [True, True]
    for stream in streams:
        stream.close()


def test_a_write_whose_host_is_removed(
    gateway: Gateway, cluster: Cluster, make_host: MakeHost
) -> None:
    """5.5: a write that was sent whole to a host that is then cut off: 502, and `full`."""
    taken = threading.Event()

    def silent(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        taken.set()
        connection.ended(60)
        raise EOFError

    host = make_host(each(silent))
    with gateway.downstream() as client:
        client.send(
            f"POST /pay HTTP/1.1\r\nHost: {host.hostname}\r\nContent-Length: 3\r\n\r\nabc".encode()
        )
        assert taken.wait(5)
        cluster.unenrol(host)
        answer = client.answer("POST")
    assert (answer.status, answer.one("x-smartgw-request-sent")) == (502, "full")


def test_a_removed_host_gets_nothing_from_before(
    cramped: Gateway, cluster: Cluster, make_host: MakeHost
) -> None:
    """1.4, 3.8: a request that began when a host was on the list is not given to it when it is
    off; another one of the app may have it.
    """
    release = threading.Event()

    def busy(connection: Connection, request: Request) -> None:
        release.wait(20)
        connection.reply()

    first, second = make_host(each(busy)), None
    second = make_host(each(busy), app=first.app)

    def ask(_: int) -> int:
        return cramped.ask(first.hostname, timeout=20).status

    with ThreadPoolExecutor(28) as pool:
        answers = [pool.submit(ask, number) for number in range(28)]
        try:
            # Each has 14, 8 of them on a connection and 6 that wait for one.
            both = first.upstream.requests, second.upstream.requests
            wait_until(lambda: [len(requests) for requests in both] == [8, 8], what=str(both))
            wait_until(lambda: in_flight(cramped) >= 28)
            cluster.unenrol(second)
            wait_until(lambda: cramped.state(second.host_id) == "unhealthy")
            time.sleep(TABLE_SECONDS)
            known = second.upstream.accepted
            first.upstream.kill()
        finally:
            release.set()
        statuses = [answer.result() for answer in answers]
    assert second.upstream.accepted == known
    assert len(second.upstream.requests) == 8
    assert set(statuses) <= {502, 503}


def in_flight(gateway: Gateway) -> int:
    """Requests that are under way."""
    text = gateway.internal("/metrics")[1].decode()
    return int(text.partition("\nsmartgw_in_flight ")[2].split("\n")[0])
