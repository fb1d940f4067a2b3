"""One generation of a gateway follows another on the same sockets."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator

import pytest

from tests.drills.handover import drill, parse
from tests.gateway import Cluster, Gateway, wait_until
from tests.generations import QUICK, Successor, clean, end, exit_code, handing_over, workers
from tests.servers import free_port


@pytest.fixture(scope="module")
def generations() -> Iterator[Cluster]:
    """A cluster whose gateways follow one another."""
    cluster = Cluster(enrolled=20)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("options", ["--handler-ms 2 --workers 2", "--handler-ms 2 --restart"])
def test_no_request_is_lost(options: str) -> None:
    """11.1: handed over or restarted twice under load, with new and with kept connections, a
    gateway loses none of more than 2,000 requests.
    """
    result = drill(parse(["--connections", "2000", "--handovers", "2", *options.split()]))
    assert result["why"] == {}
    assert result["opened"] >= 2_000
    assert result["answered"] == result["opened"] + result["kept"]
    assert result["kept"] > 100


def test_the_next_is_as_complete(generations: Cluster) -> None:
    """11.1: the next generation takes over only when it has the hosts of the one before; that
    one stops accepting at once, and its streams go on.
    """
    before = handing_over(generations, {"processes": {"unready_wait": 10, "drain": 5.0}})
    after = Successor(before)
    try:
        generations.gateways = [before]
        hosts = [generations.host() for _ in range(5)]
        request = f"GET / HTTP/1.1\r\nHost: {hosts[0].hostname}\r\n\r\n".encode()
        with before.downstream() as kept:
            kept.send(request)
            assert kept.answer().one("connection") == ""
            path = before.folder / "handover.sock"
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            after.spawn()
            while not after.ready():
                answer = before.ask(hosts[1].hostname)
                assert answer.status == 200
            generations.gateways = [after]
            assert [after.state(host.host_id) for host in hosts] == ["healthy"] * 5
            assert after.ask(hosts[2].hostname).one("connection") == ""
            assert before.running
            kept.send(request)
            answer = kept.answer()
            assert (answer.status, answer.one("connection")) == (200, "close")
            assert kept.closed(5)
        assert exit_code(before) == 0
        assert path.exists(), "it is the next generation's now"
    finally:
        generations.gateways = []
        clean(after, before)


def test_a_next_that_dies_early(generations: Cluster) -> None:
    """11.1: when the next generation dies before it serves, the old one goes on as before."""
    before = handing_over(generations, {"processes": {"unready_wait": 0, "workers": 2}})
    dying, after = Successor(before), Successor(before)
    try:
        generations.gateways = [before]
        host = generations.host()
        # Without a bus it cannot be as complete as the old one, so it surely dies before it is.
        dying.config = dying.folder / "without-a-bus.toml"
        text = before.config.read_text()
        dying.config.write_text(text.replace(generations.nats.url, "nats://127.0.0.1:1"))
        dying.spawn()
        wait_until(lambda: "the next generation is starting" in before.log())
        dying.kill()
        wait_until(lambda: "going on" in before.log())
        assert before.ask(host.hostname).one("connection") == ""
        assert len(workers(before)) == 2
        generations.gateways = []
        after.start()
        assert after.ask(host.hostname).status == 200
        assert exit_code(before) == 0
    finally:
        generations.gateways = []
        clean(after, dying, before)


def test_a_socket_that_nobody_serves(generations: Cluster) -> None:
    """11.1: a path left behind by a killed gateway does not stop the next one."""
    before = handing_over(generations, QUICK)
    again = Gateway(generations)
    again.port, again.internal_port = before.port, before.internal_port
    again.config = before.config
    try:
        before.kill()
        assert (before.folder / "handover.sock").exists()
        again.start()
        assert end(again) == 0
        assert not (before.folder / "handover.sock").exists()
    finally:
        clean(again, before)


def test_other_addresses(generations: Cluster) -> None:
    """11.1: what the next generation listens on is what its configuration says."""
    before = handing_over(generations)
    after = Successor(before)
    try:
        text = before.config.read_text()
        other = free_port()
        both = f'"127.0.0.1:{before.port}", "127.0.0.1:{other}"'
        before.config.write_text(text.replace(f'"127.0.0.1:{before.port}"', both, 1))
        after.start()
        for port in (before.port, other):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: nobody.smart-app.test\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 404")
    finally:
        clean(after, before)


def test_one_that_does_not_hand_over(generations: Cluster) -> None:
    """11.1: a running gateway that stands still is named, and its successor does not start."""
    before = handing_over(generations)
    after = Successor(before)
    try:
        before.freeze()
        after.spawn()
        wait_until(lambda: not after.running, within=60.0)
        assert exit_code(after) == 1
        assert "does not hand over" in after.log()
        before.thaw()
        time.sleep(0.1)
        assert before.internal("/readyz")[0] == 200
    finally:
        before.thaw()
        clean(after, before)
