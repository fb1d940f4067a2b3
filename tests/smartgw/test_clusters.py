"""The directory of clusters in real gateways: from a file, from each other, and without one."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smartgw_hosts.clusters import parse
from tests.gateway import Cluster, Config, Gateway, identity_of, seed_file, wait_until
from tests.servers import Nats
from tests.validators import list_text

CLUSTERS = "/api/v3/discovery/clusters"


@pytest.fixture(scope="module")
def nats() -> Iterator[Nats]:
    running = Nats().start()
    yield running
    running.stop()


@pytest.fixture
def clusters(nats: Nats) -> Iterator[list[Cluster]]:
    """Two clusters without gateways."""
    made = [Cluster(cluster_id, nats, enrolled=4) for cluster_id in ("c1", "c2")]
    yield made
    for cluster in made:
        cluster.stop()


def listed(cluster_id: str, number: int, **members: Any) -> dict[str, Any]:
    key = identity_of(cluster_id).public_key.text
    return {
        "id": cluster_id,
        "gateways": [f"http://10.0.0.{number}:80"],
        "keys": [key],
        "state": "active",
    } | members


def config(folder: Path, cluster_id: str, **peers: Any) -> Config:
    seed = folder / f"{cluster_id}.seed"
    if not seed.exists():
        seed_file(seed, cluster_id)
    return {"identity": {"seed_file": str(seed)}, "peers": peers}


def told(gateway: Gateway, path: str = CLUSTERS) -> tuple[int, dict[str, Any]]:
    status, body = gateway.internal(path)
    return status, json.loads(body)


def voters(gateway: Gateway) -> list[str]:
    status, body = told(gateway)
    return [each["id"] for each in body["clusters"]] if status == 200 else []


def degraded(gateway: Gateway) -> list[str]:
    return [line for line in told(gateway, "/readyz")[1]["degraded"] if line.startswith("peers: ")]


def test_a_gateway_is_a_validator_for_others(clusters: list[Cluster], tmp_path: Path) -> None:
    """4.3: validators are polled at the very endpoint that each gateway serves; 4.4: when the one
    that has the file is gone, the list serves for its grace and no longer, though gateways that
    have it from each other go on.
    """
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text(listed("c1", 1), listed("c2", 2)))
    origin = clusters[0].gateway(config(tmp_path, "c1", file=str(path)))
    follower = clusters[1].gateway(
        config(
            *(tmp_path, "c2"),
            validators=[f"http://127.0.0.1:{origin.internal_port}"],
            interval=0.3,
            grace=5.0,
        )
    )
    assert voters(follower) == voters(origin) == ["c1", "c2"]
    assert told(follower) == told(origin)
    assert degraded(follower) == degraded(origin) == []
    _, known = told(follower, "/api/v3/discovery/owner?app=shop")
    assert (known["owner"], known["mode"]) == (parse(path.read_bytes()).owner("shop"), "fresh")
    path.write_bytes(list_text(listed("c1", 1), listed("c2", 2), listed("c3", 3)))
    wait_until(lambda: voters(follower) == ["c1", "c2", "c3"], 5)
    # From now on the two could only have it from each other.
    second = clusters[1].gateway(
        config(
            *(tmp_path, "c2"),
            validators=[f"http://127.0.0.1:{follower.internal_port}"],
            interval=0.3,
            grace=5.0,
        )
    )
    assert voters(second) == ["c1", "c2", "c3"]
    origin.stop()
    wait_until(lambda: told(follower, "/api/v3/status")[1]["peers"]["mode"] == "grace", 10)
    assert voters(second) == ["c1", "c2", "c3"]
    for gateway in (follower, second):
        wait_until(lambda gateway=gateway: told(gateway)[0] == 503, 15)  # type: ignore[misc]
        assert "no owner is known" in degraded(gateway)[0]


def test_a_gateway_without_its_directory_serves(clusters: list[Cluster], tmp_path: Path) -> None:
    """11.2: started without a directory it serves and says so; a list counts when it comes."""
    path = tmp_path / "clusters.json"
    gateway = clusters[0].gateway(config(tmp_path, "c1", file=str(path)))
    host = clusters[0].host()
    assert gateway.ask(host.hostname).status == 200
    assert told(gateway)[0] == 503
    assert "no list of clusters" in degraded(gateway)[0]
    assert "No such file" in degraded(gateway)[1]
    path.write_bytes(list_text(listed("c1", 1), listed("c2", 2, state="gone")))
    wait_until(lambda: degraded(gateway) == [])
    assert told(gateway, "/api/v3/status")[1]["peers"]["epoch"] == told(gateway)[1]["epoch"]
    assert gateway.ask(host.hostname).status == 200


def test_a_gateway_that_is_not_listed_is_told(clusters: list[Cluster], tmp_path: Path) -> None:
    """4.5: a cluster whose entry lacks its key is told so, for peers believe no forward of it."""
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text(listed("c1", 1, keys=[identity_of("other").public_key.text])))
    gateway = clusters[0].gateway(config(tmp_path, "c1", file=str(path)))
    (line,) = degraded(gateway)
    assert f"does not list our key, {identity_of('c1').public_key.text}" in line
    path.write_bytes(list_text(listed("c2", 2)))
    wait_until(lambda: "does not list this cluster, c1" in degraded(gateway)[0])


def test_a_reload_takes_a_directory_in(clusters: list[Cluster], tmp_path: Path) -> None:
    """11.1: SIGHUP takes a directory in, or another one."""
    gateway = clusters[0].gateway(config(tmp_path, "c1"))
    assert told(gateway)[1]["error"]["reason"] == "no_directory"
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text(listed("c1", 1)))
    text = gateway.config.read_text()
    gateway.config.write_text(text.replace("[peers]", f'[peers]\nfile = "{path}"'))
    os.kill(gateway.pid, signal.SIGHUP)
    wait_until(lambda: voters(gateway) == ["c1"])
    gateway.config.write_text(text)
    os.kill(gateway.pid, signal.SIGHUP)
    wait_until(lambda: told(gateway)[0] == 404)
