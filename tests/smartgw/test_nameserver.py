"""Zones of the shared state on the wire, by real gateways (smartgw/nameserver.py)."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import pytest

from smartgw.state.zone_records import ZoneHead, head_key
from smartgw_dns.packed import pack
from smartgw_dns.zone import Zone
from tests.dns.zones import wire, zone
from tests.gateway import Cluster, Gateway, wait_until
from tests.generations import QUICK, Successor, end, exit_code, handing_over
from tests.servers import Nats, free_port
from tests.stores import delete, put


@pytest.fixture(scope="module")
def bus() -> Iterator[Nats]:
    """A NATS server with JetStream."""
    nats = Nats(jetstream=True).start()
    try:
        yield nats
    finally:
        nats.stop()


@pytest.fixture
def cluster(bus: Nats) -> Iterator[Cluster]:
    """A cluster on it."""
    made = Cluster(nats=bus, enrolled=2)
    try:
        yield made
    finally:
        delete(made, head_key(wire("z.")))
        made.stop()


def serving(port: int, **changes: Any) -> dict[str, Any]:
    """The sections of a gateway that serves zones at a port."""
    return {
        "state": {"bucket": "smartgw"},
        "dns": {"listen": [f"127.0.0.1:{port}"], "rate": 0},
        **changes,
    }


def write(cluster: Cluster, made: Zone) -> None:
    """Put a small zone into the store."""
    kept = pack(made)
    put(cluster, ZoneHead(made.origin, made.serial, made.records, kept.size, kept.lead))


def ask(port: int, name: str, rdtype: str = "A", *, tcp: bool = False) -> dns.message.Message:
    """Ask a gateway over the wire."""
    query = dns.message.make_query(name, rdtype)
    send = dns.query.tcp if tcp else dns.query.udp
    return send(query, "127.0.0.1", 2, port)


def address(port: int, name: str = "www.z.") -> str:
    """The first address of a name, or the response code."""
    try:
        answer = ask(port, name)
    except OSError:
        return "nobody"
    except dns.exception.Timeout:
        return "nothing"
    if answer.answer:
        return str(answer.answer[-1][0])
    return dns.rcode.to_text(answer.rcode())


def test_what_is_written_is_served_by_every_gateway_within_two_seconds(cluster: Cluster) -> None:
    """8.4, 8.6: the same zones over UDP and TCP, at all gateways, changed within 2 s."""
    ports = [free_port(), free_port()]
    for port in ports:
        cluster.gateway(serving(port))
    assert [address(port) for port in ports] == ["REFUSED", "REFUSED"]
    write(cluster, zone("www A 192.0.2.1\n*.w A 192.0.2.9\n"))
    written = time.monotonic()
    for port in ports:
        wait_until(lambda port=port: address(port) == "192.0.2.1")  # type: ignore[misc]
    assert time.monotonic() - written < 2.0
    answer = ask(ports[0], "a.b.w.z.", tcp=True)
    assert answer.flags & dns.flags.AA
    assert str(answer.answer[0][0]) == "192.0.2.9"
    delete(cluster, head_key(wire("z.")))
    wait_until(lambda: address(ports[1]) == "REFUSED")


def test_dig_gets_what_it_asks_for(cluster: Cluster) -> None:
    """8.4: EDNS, cookies, TCP and a bufsize, as everybody's tool sends them."""
    port = free_port()
    gateway = cluster.gateway(serving(port))
    write(cluster, zone("www A 192.0.2.1\n"))
    wait_until(lambda: address(port) == "192.0.2.1")
    for options in (["+notcp"], ["+tcp"], ["+noedns"], ["+bufsize=512"], ["+nocookie"]):
        command = ["dig", "@127.0.0.1", "-p", str(port), "WwW.z.", "A", *options]
        told = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
        assert "status: NOERROR" in told
        assert "flags: qr aa rd;" in told
        assert "WwW.z.\t\t\t300\tIN\tA\t192.0.2.1" in told
        assert ("COOKIE: " in told) == (options[0] not in ("+noedns", "+nocookie"))
    status, body = gateway.internal("/metrics")
    assert status == 200
    assert b"smartgw_dns_zones 1\n" in body
    assert b'smartgw_dns_answers_total{transport="tcp"} 1\n' in body


def test_zones_are_answered_from_without_the_bus(
    bus: Nats, cluster: Cluster, tmp_path: Path
) -> None:
    """11.2: started without a bus a gateway serves the zones that it had; without those nobody
    is told that a name is not ours.
    """
    port = free_port()
    kept = {"bucket": "smartgw", "dir": str(tmp_path / "state")}
    gateway = cluster.gateway({**serving(port, state=kept), **QUICK})
    write(cluster, zone("www A 192.0.2.1\n"))
    wait_until(lambda: address(port) == "192.0.2.1")
    end(gateway)
    bus.kill()
    try:
        gateway.spawn()
        wait_until(lambda: address(port) == "192.0.2.1")
        gateway.kill()
        (tmp_path / "state/desired").unlink()
        gateway.spawn()
        wait_until(lambda: gateway_answers(gateway))
        assert address(port) == "nothing"
    finally:
        bus.start()


def gateway_answers(gateway: Gateway) -> bool:
    """Whether its internal listener is there."""
    try:
        return gateway.internal("/healthz")[0] == 200
    except OSError:
        return False


def test_the_next_generation_serves_at_the_same_sockets(cluster: Cluster) -> None:
    """11.1: of the questions that come during a handover none is without an answer."""
    port = free_port()
    before = handing_over(cluster, {**serving(port), **QUICK})
    write(cluster, zone("www A 192.0.2.1\n"))
    wait_until(lambda: address(port) == "192.0.2.1")
    after = Successor(before)
    try:
        after.spawn()
        while not after.ready():
            assert address(port) == "192.0.2.1"
        for _ in range(200):
            assert address(port) == "192.0.2.1"
        assert exit_code(before) == 0
        assert address(port) == "192.0.2.1"
        assert not ask(port, "www.z.", tcp=True).rcode()
    finally:
        after.stop()
        before.stop()


def test_an_address_that_is_taken_is_told(cluster: Cluster) -> None:
    """11.5: a gateway that cannot serve where it should does not start, and says where."""
    with pytest.raises(RuntimeError, match=r"cannot serve DNS on 203\.0\.113\.1:53"):
        cluster.gateway({"state": {"bucket": "smartgw"}, "dns": {"listen": ["203.0.113.1:53"]}})
