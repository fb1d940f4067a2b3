"""A gateway that starts while the bus is away, and one whose disk fails."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.gateway import (
    BASE_DOMAIN,
    TABLE_SECONDS,
    Cluster,
    Config,
    Gateway,
    Host,
    Publisher,
    wait_until,
)
from tests.generations import Activated
from tests.upstreams import answering

IMPOSTOR = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
WRITING_ALL_THE_TIME = """
import sys
from smartgw.__main__ import main
from smartgw.state import last_good
last_good.LastGood.__init__.__kwdefaults__["interval"] = 0.001
last_good.REFRESH = 0
sys.exit(main())
"""


class KeepingGateway(Gateway):
    """A gateway with a folder for its state, which outlives it; `busy` writes without a pause."""

    def __init__(self, cluster: Cluster, folder: Path, *, busy: bool = False, **more: Any) -> None:
        changes: Config = {
            "state": {"dir": str(folder)},
            "discovery": {"heartbeat": 0.25},
            "processes": {"unready_wait": 0.0, "drain": 1.0},
            **more,
        }
        super().__init__(cluster, changes)
        self.busy = busy
        cluster.gateways.append(self)

    def command(self) -> list[str]:
        command = super().command()
        return [sys.executable, "-c", WRITING_ALL_THE_TIME, *command[3:]] if self.busy else command

    def readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.internal("/readyz")[1])
        return found

    def snapshot(self) -> dict[str, Any]:
        """What status says of the snapshot."""
        found: dict[str, Any] = json.loads(self.internal("/api/v3/status")[1])["state"]["snapshot"]
        return found

    def spawn_and_wait(self) -> None:
        """Start it and wait until it lives, ready or not."""
        self.spawn()
        wait_until(self._lives, what="the gateway to live")

    def _lives(self) -> bool:
        try:
            return self.internal("/healthz")[0] == 200
        except OSError:
            return False

    def says(self, text: str) -> bool:
        """Whether readiness says this of something."""
        readiness = self.readiness()
        return any(text in line for line in (*readiness["missing"], *readiness["degraded"]))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test, whose bus may be killed."""
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.stop()


def bus_back(cluster: Cluster) -> None:
    """Restart the bus, and let the hosts speak on it again."""
    cluster.nats.start()
    cluster.bus.close()
    cluster.bus = Publisher(cluster.nats.port)


def started_once(cluster: Cluster, folder: Path, hosts: int) -> tuple[KeepingGateway, list[Host]]:
    """A gateway that knew `hosts` and ended, and a bus that is away."""
    gateway = KeepingGateway(cluster, folder)
    gateway.start()
    made = [cluster.host() for _ in range(hosts)]
    gateway.terminate()
    cluster.nats.kill()
    return gateway, made


def test_without_a_bus(cluster: Cluster, tmp_path: Path) -> None:
    """11.2: Started without a bus it serves from the last good snapshot, each host challenged
    first, and says so; when the bus is back, leases begin and nothing else has to be done."""
    gateway, (good, stolen, gone, moved) = started_once(cluster, tmp_path / "state", 4)
    # While nobody looked: a program took a port, a host went away, another lost its enrolment.
    stolen.upstream.responder = None
    stolen.upstream.script = IMPOSTOR
    gone.upstream.close()
    cluster.entries = [entry for entry in cluster.entries if f'"{moved.host_id}"' not in entry]
    cluster.write_enrolment()
    gateway.start()
    readiness = gateway.readiness()
    assert readiness["missing"] == []
    assert gateway.says("bus: not connected")
    assert gateway.says("hosts: from the snapshot of ")
    assert gateway.ask(good.hostname).status == 200
    assert gateway.hosts()[good.host_id]["apps"] == list(good.apps)
    wait_until(lambda: gateway.state(gone.host_id) == "unhealthy", what="gone: unhealthy")
    assert gateway.state(stolen.host_id) == "unhealthy"
    assert gateway.ask(stolen.hostname).status == 503
    assert gateway.ask(gone.hostname).status == 503
    assert moved.host_id not in gateway.hosts()
    assert stolen.upstream.requests == [] or all(
        request.raw_target == b"/.well-known/smartgw/challenge"
        for request in stolen.upstream.requests
    )
    # 11.2: never "unknown host" for lack of knowledge.
    assert gateway.ask(f"nobody.{BASE_DOMAIN}").status == 503
    assert gateway.snapshot()["restored"]["hosts"] == 4
    assert gateway.snapshot()["generation"] == 1

    bus_back(cluster)
    wait_until(lambda: gateway.readiness()["degraded"] == [], what="nothing degraded")
    assert gateway.ask(good.hostname).status == 200
    assert gateway.ask(f"nobody.{BASE_DOMAIN}").status == 404
    wait_until(lambda: gateway.snapshot()["generation"] > 1, what="a new snapshot")


def test_activated_without_a_bus(cluster: Cluster, tmp_path: Path) -> None:
    """11.2: With sockets that were passed to it too it serves as soon as the last good hosts have
    proven themselves, and does not first wait for a table that cannot come."""
    lease = 3 * 3.0
    changes: Config = {
        "state": {"dir": str(tmp_path / "state")},
        "discovery": {"heartbeat": lease / 3},
        "processes": {"unready_wait": 0.0, "drain": 1.0},
    }
    gateway = Activated(cluster, changes)
    cluster.gateways.append(gateway)
    gateway.start()
    host = cluster.host()
    gateway.terminate()
    cluster.nats.kill()
    with gateway.downstream() as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        began = time.monotonic()
        gateway.spawn()
        assert client.answer().status == 200, "it waited in the queue"
        assert time.monotonic() - began < lease


def test_without_bus_and_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    """11.2: With no table yet it is not ready and says what is missing; a snapshot that is refused
    is set aside and told, and the gateway is right again once the bus is there."""
    folder = tmp_path / "state"
    gateway, (host,) = started_once(cluster, folder, 1)
    data = bytearray((folder / "snapshot").read_bytes())
    data[-20] ^= 1
    (folder / "snapshot").write_bytes(data)
    gateway.spawn_and_wait()
    status, _ = gateway.internal("/readyz")
    assert status == 503
    missing = gateway.readiness()["missing"]
    assert "bus: not connected" in missing
    assert "snapshot: refused (bad_signature)" in missing
    assert gateway.ask(host.hostname).status == 503
    assert [path.name for path in folder.glob("*.refused*")] == ["snapshot.refused-bad_signature-1"]
    bus_back(cluster)
    wait_until(gateway.ready, what="ready")
    cluster.wait_healthy(host)
    assert gateway.ask(host.hostname).status == 200


def test_a_bus_that_goes_away_before_all_was_heard(cluster: Cluster, tmp_path: Path) -> None:
    """11.2: Complete is what has listened to the bus for one whole heartbeat interval: when the
    bus goes away before, the interval begins anew when it is back."""
    gateway = KeepingGateway(cluster, tmp_path / "state", discovery={"heartbeat": 1.0})
    whole = 1.0
    gateway.spawn_and_wait()
    wait_until(lambda: not gateway.says("bus: not connected"), what="on the bus")
    cluster.nats.kill()
    wait_until(lambda: gateway.says("bus: not connected"), what="off the bus")
    time.sleep(2 * whole + 1)
    assert gateway.says("table: a heartbeat interval has not been listened to yet")
    assert gateway.ask(f"nobody.{BASE_DOMAIN}").status == 503
    bus_back(cluster)
    began = time.monotonic()
    wait_until(gateway.ready, what="ready")
    assert time.monotonic() - began > whole
    assert gateway.ask(f"nobody.{BASE_DOMAIN}").status == 404


def test_a_disk_that_fails(cluster: Cluster, tmp_path: Path) -> None:
    """11.2: When nothing can be written traffic goes on, readiness says so, the log is not filled,
    and writing goes on when the disk is right again."""
    (tmp_path / "in").mkdir()
    gateway = KeepingGateway(cluster, tmp_path / "in/state", busy=True)
    gateway.start()
    host = cluster.host()
    wait_until(lambda: gateway.snapshot()["generation"] > 0)
    (tmp_path / "in").rename(tmp_path / "gone")
    wait_until(lambda: gateway.says("snapshot: cannot be kept"), what="degraded")
    assert gateway.readiness()["ready"]
    assert gateway.ask(host.hostname).status == 200
    time.sleep(0.3)
    assert gateway.log().count("cannot be kept") == 1
    (tmp_path / "in").mkdir()
    wait_until(lambda: gateway.readiness()["degraded"] == [], what="written again")
    assert (tmp_path / "in/state/snapshot").exists()


@pytest.fixture(scope="module", autouse=True)
def kills(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Future[None]"]:
    """Five kills, which happen beside the other tests: they take long and wait most of it."""
    folder = tmp_path_factory.mktemp("kills") / "state"

    def kill() -> None:
        cluster = Cluster()
        try:
            kill_while_it_writes(cluster, folder, 5)
        finally:
            cluster.stop()

    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(kill)


def test_killed_while_it_writes(kills: "Future[None]") -> None:
    """11.2: kill -9 while it writes its snapshot: always a good start, from the hosts it had."""
    kills.result()


def kill_while_it_writes(cluster: Cluster, folder: Path, times: int) -> None:
    """Kill a gateway so many times, the last time with the bus away, and see it start well."""
    gateway = KeepingGateway(cluster, folder, busy=True)
    gateway.start()
    hosts = [cluster.host() for _ in range(3)]
    wait_until(lambda: gateway.snapshot()["generation"] > 10)
    generation = 0
    for number in range(times):
        time.sleep(0.003 * number % 0.1)
        gateway.kill()
        if number == times - 1:
            cluster.nats.kill()
        gateway.spawn_and_wait()
        wait_until(lambda: all(gateway.state(h.host_id) == "healthy" for h in hosts))
        time.sleep(TABLE_SECONDS)
        assert gateway.ask(hosts[0].hostname).status == 200
        snapshot = gateway.snapshot()
        assert snapshot["restored"]["hosts"] == 3
        assert (snapshot["refused"], snapshot["fault"]) == (None, None)
        assert snapshot["generation"] >= generation
        generation = snapshot["generation"]
        if number < times - 1:
            wait_until(partial(_has_written_since, gateway, generation))
    assert list(folder.glob("*refused*")) == []


def _has_written_since(gateway: KeepingGateway, generation: int) -> bool:
    return int(gateway.snapshot()["generation"]) > generation + 1
