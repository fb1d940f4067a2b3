"""A gateway that starts by what the platform had decided, while the bus is away."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smartgw.state.records import register
from smartgw_hosts.enrolment import Enrolment
from tests.gateway import Cluster, Host, wait_until
from tests.servers import Nats
from tests.smartgw.state.test_shared import reason, wait_reason
from tests.smartgw.state.test_start import KeepingGateway, bus_back
from tests.stores import BUCKET, put


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test, whose bus keeps a state and may be killed."""
    cluster = Cluster(nats=Nats(jetstream=True).start())
    try:
        yield cluster
    finally:
        cluster.stop()
        cluster.nats.stop()


def keeping(cluster: Cluster, folder: Path, **more: Any) -> KeepingGateway:
    """A gateway that shares the state and keeps it on disk."""
    return KeepingGateway(cluster, folder, state={"dir": str(folder), "bucket": BUCKET}, **more)


@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves_by_what_was_decided(cluster: Cluster, tmp_path: Path, workers: int) -> None:
    """11.2: Started without a bus it serves from the last good snapshot, which holds the desired
    state and the last healthy hosts; its age is shown.
    """
    gateway = keeping(cluster, tmp_path / "state", processes={"workers": workers, "drain": 1.0})
    gateway.start()
    shop, mail = cluster.host(app="shop"), cluster.host(app="mail")
    late = Host(cluster, "late", ["late"])
    cluster.hosts.append(late)
    cluster.beating.add(late)
    put(
        cluster,
        register(app_id="shop", label="store", hostnames=["www.shop.example"]),
        register(app_id="mail", state="suspended"),
        Enrolment("late", late.identity.public_key, cluster.cluster_id, ("late",)),
    )
    cluster.wait_healthy(late)
    wait_reason([gateway], "www.shop.example", "")
    before = gateway.readiness()["state"]
    gateway.terminate()
    cluster.nats.kill()
    gateway.start()
    found = gateway.readiness()
    assert found["missing"] == []
    assert gateway.says("writes are refused; what is known is ")
    assert found["state"]["digest"] == before["digest"]
    assert found["state"]["age"] >= 0
    assert reason(gateway, "www.shop.example") == ""
    assert reason(gateway, "store.smart-app.test") == ""
    assert reason(gateway, mail.hostname) == "app_suspended"
    assert reason(gateway, late.hostname) == ""
    # Registered meanwhile, for all that is known here.
    assert reason(gateway, "other.example") == "not_ready"
    assert reason(gateway, shop.hostname) == "not_ready"
    bus_back(cluster)
    wait_until(lambda: gateway.readiness()["degraded"] == [], 30)
    put(cluster, register(app_id="mail"))
    wait_reason([gateway], mail.hostname, "")
    assert reason(gateway, "other.example") == "unknown_host"


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"suspended"', b'"active"   '))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_cut, "refused (truncated)"),
        (_alter, "refused (bad_signature)"),
        (Path.unlink, "none kept yet"),
    ],
)
def test_a_spoilt_state_is_never_served(
    cluster: Cluster, tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    """11.2, control plane: a truncated or altered snapshot is never served; without any the
    gateway is not ready and says why, until the bus gives back what was lost.
    """
    folder = tmp_path / "state"
    gateway = keeping(cluster, folder)
    gateway.start()
    put(cluster, register(app_id="shop", state="suspended"))
    host = cluster.host(app="shop")
    wait_reason([gateway], host.hostname, "app_suspended")
    gateway.terminate()
    cluster.nats.kill()
    spoil(folder / "desired")
    gateway.spawn_and_wait()
    wait_until(lambda: gateway.state(host.host_id) == "healthy")
    assert not gateway.readiness()["ready"]
    assert why in str(gateway.readiness()["missing"])
    assert reason(gateway, host.hostname) == "not_ready"
    bus_back(cluster)
    wait_until(lambda: gateway.readiness()["ready"], 30)
    assert reason(gateway, host.hostname) == "app_suspended"
    gateway.terminate()
    assert (folder / "desired").exists()
    shutil.rmtree(folder)
