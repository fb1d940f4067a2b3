"""Two clusters, real gateways and real sidecars: the host has the last word on a write (4.8)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from smartgw_hosts.owner import epoch, owner
from tests.forwarders import entry, write_list
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Sidecar, seed_file, wait_until
from tests.raw_http import Answer, Downstream
from tests.upstreams import Upstream, serve

IDS = ("c1", "c2")
BEFORE = ("c1", "c2", "c3")
"""The clusters of an older list."""
THEIRS = next(
    app
    for app in (f"shop-{n}" for n in range(100))
    if owner(app, IDS) == "c2" and owner(app, BEFORE) == "c1"
)
"""An app that c2 owns, and c1 owned before; both clusters serve it."""
HOSTNAME = f"{THEIRS}.{BASE_DOMAIN}"


class GuardedSidecar(Sidecar):
    """`smartgw host` that asks this gateway for the list of clusters."""

    def __init__(self, cluster: Cluster, to_port: int, asks: Gateway) -> None:
        super().__init__(cluster, cluster.new_host_id(), [THEIRS], to_port)
        self.asks = asks

    def command(self) -> list[str]:
        words = [word for word in super().command() if word != "--raw"]
        return [*words, "--gateway", f"http://127.0.0.1:{self.asks.internal_port}"]

    def write(self) -> Answer:
        """What it answers to a write that comes to it directly."""
        with Downstream(("127.0.0.1", self.port)) as client:
            client.send(
                f"POST /w HTTP/1.1\r\nHost: {HOSTNAME}\r\nContent-Length: 0\r\n\r\n".encode()
            )
            return client.answer("POST")


class Two:
    """c1 and c2, each with a host. Each gateway has a directory file of its own, so that those of
    c1 can differ: `stale`, and `knowing`, which the host of c1 asks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.c1 = Cluster("c1", enrolled=4)
        self.c2 = Cluster("c2", self.c1.nats, enrolled=4)
        self.theirs = self.gateway(self.c2, "theirs")
        self.knowing = self.gateway(self.c1, "knowing")
        self.stale = self.gateway(self.c1, "stale")
        self.apps = {name: Upstream(serve) for name in IDS}
        self.hosts = {
            "c1": GuardedSidecar(self.c1, self.apps["c1"].port, self.knowing),
            "c2": GuardedSidecar(self.c2, self.apps["c2"].port, self.theirs),
        }

    def gateway(self, cluster: Cluster, name: str) -> Gateway:
        """Start one, alone in its list so far."""
        cluster_id = cluster.cluster_id
        peers = write_list(self.folder / f"{name}.json", entry(cluster_id, "http://127.0.0.1:1"))
        seed = seed_file(self.folder / f"{name}.seed", f"cluster {cluster_id}")
        return cluster.gateway(
            {"peers": {"file": str(peers)}, "identity": {"seed_file": str(seed)}}
        )

    def tell(self, name: str, ids: Sequence[str] = IDS) -> None:
        """Give a gateway the list of these clusters; nobody is where c3 is said to be."""
        clusters = (
            entry("c1", f"http://127.0.0.1:{self.knowing.port}"),
            entry("c2", f"http://127.0.0.1:{self.theirs.port}"),
            entry("c3", "http://127.0.0.1:1"),
        )
        chosen = [cluster for cluster in clusters if cluster["id"] in ids]
        write_list(self.folder / f"{name}.json", *chosen)

    def done(self) -> list[str]:
        """Where writes have been done since the last call."""
        found = [name for name in IDS for _ in self.apps[name].requests]
        for app in self.apps.values():
            app.requests.clear()
        return found

    def stop(self) -> None:
        """End everything."""
        for host in self.hosts.values():
            host.stop()
        for app in self.apps.values():
            app.close()
        self.c2.stop()
        self.c1.stop()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Both clusters, which all tests share."""
    made = Two(tmp_path_factory.mktemp("two"))
    try:
        made.tell("theirs")
        made.tell("knowing")
        for gateway in (made.theirs, made.knowing):
            wait_until(partial(knows, gateway, IDS), what="the list of both in force")
        for host in made.hosts.values():
            host.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def two(started: Two) -> Two:
    """All but `stale` know of both clusters, and c1's host knows that it does not own the app."""
    started.tell("stale", BEFORE)
    wait_until(partial(knows, started.stale, BEFORE), what="the stale list in force")
    wait_until(lambda: started.hosts["c1"].write().status == 421, what="the host has the list")
    started.done()
    return started


def knows(gateway: Gateway, ids: Sequence[str]) -> bool:
    """Whether a gateway has the list of these clusters."""
    status, body = gateway.internal("/api/v3/discovery/clusters")
    return status == 200 and json.loads(body)["epoch"] == epoch(ids)


def test_the_host_refuses_by_its_gateways_list(two: Two) -> None:
    """4.8: the directory comes from the cluster's gateway; at a non-owner 421, nothing done."""
    answer = two.hosts["c1"].write()
    assert answer.status == 421
    assert answer.one("x-smartgw-owner") == f"c2; epoch={epoch(IDS)}"
    assert two.hosts["c2"].write().status == 200
    assert two.done() == ["c2"]


def test_a_write_follows_the_421_to_the_owner(two: Two) -> None:
    """4.8: on a marked 421 the gateway refreshes its list and, once, sends the write to the owner;
    it is done once, there.
    """
    answers: list[Answer] = []

    def write() -> None:
        answers.append(two.stale.ask(HOSTNAME, "/w", "POST", body=b"once", timeout=20))

    asking = threading.Thread(target=write)
    asking.start()
    time.sleep(0.3)  # the host has refused by then, and the gateway looks for a newer list
    two.tell("stale")
    asking.join(20)
    (answer,) = answers
    assert answer.status == 200
    assert answer.all("x-smartgw-owner") == []
    assert two.done() == ["c2"]


def test_a_421_without_a_newer_list(two: Two) -> None:
    """4.8: otherwise 503, and nothing was done anywhere."""
    answer = two.stale.ask(HOSTNAME, "/w", "POST", body=b"once", timeout=20)
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["reason"] == "owner_unclear"
    assert answer.all("x-smartgw-owner") == []
    assert two.done() == []


def test_reads_are_served_anywhere(two: Two) -> None:
    """4.8: the guard is for writes: a gateway without the newest list serves reads by its hosts."""
    assert two.stale.ask(HOSTNAME).status == 200
    assert two.done() == ["c1"]
