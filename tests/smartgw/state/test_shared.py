"""Gateways that share the platform's decisions, from outside: `smartgw serve`, a real bus."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from smartgw.state.records import app_key, enrolment_key, register
from smartgw_hosts.enrolment import Enrolment
from tests.drills.machine import metrics
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Host, wait_until
from tests.jetstream_api import restored_from_backup
from tests.servers import Nats
from tests.stores import BUCKET, delete, put

IN_FORCE = 2.0
"""Seconds within which a decision is in force (3.4, 7.5)."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test, whose bus keeps a state."""
    cluster = Cluster(nats=Nats(jetstream=True).start())
    try:
        yield cluster
    finally:
        cluster.stop()
        cluster.nats.stop()


def sharing(cluster: Cluster, **changes: Any) -> Gateway:
    """A gateway that shares the state."""
    state = {"bucket": BUCKET, **changes.pop("state", {})}
    return cluster.gateway({"discovery": {"heartbeat": 0.25}, "state": state, **changes})


def reason(gateway: Gateway, hostname: str) -> str:
    """Why a request is refused; "" when it is not."""
    answer = gateway.ask(hostname, "/", "GET", "Accept: application/json")
    return "" if answer.status == 200 else str(json.loads(answer.body)["error"]["reason"])


def readiness(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gateway.internal("/readyz")[1])
    return found


def wait_reason(gateways: list[Gateway], hostname: str, wanted: str) -> None:
    """Wait until all gateways say this of a hostname, which must be soon."""
    began = time.monotonic()
    for gateway in gateways:
        wait_until(
            lambda gateway=gateway: reason(gateway, hostname) == wanted,  # type: ignore[misc]
            what=f"{hostname}: {wanted or 'served'}",
        )
    assert time.monotonic() - began < IN_FORCE


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_decided_of_an_app(cluster: Cluster, workers: int) -> None:
    """3.3, 3.4: an app has the names that it registered; suspended or retired it answers 503, in
    every gateway within 2 s.
    """
    gateways = [sharing(cluster, processes={"workers": workers}), sharing(cluster)]
    host = cluster.host(app="shop")
    names = ["shop", "store"]
    hostnames = [*(f"{name}.{BASE_DOMAIN}" for name in names), "www.shop.example"]
    for gateway in gateways:
        assert [reason(gateway, name) for name in hostnames] == ["", "unknown_host", "unknown_host"]
    put(cluster, register(app_id="shop", label="store", hostnames=["www.shop.example"]))
    wait_reason(gateways, hostnames[1], "")
    for gateway in gateways:
        assert [reason(gateway, name) for name in hostnames] == ["unknown_host", "", ""]
    # R04: registered in Unicode, asked for as A-labels; raw UTF-8 on the wire is no hostname.
    put(cluster, register(app_id="shop", label="store", hostnames=["münchen.example"]))
    wait_reason(gateways, "xn--mnchen-3ya.example", "")
    assert gateways[0].ask("münchen.example".encode().decode("latin1")).status == 400
    for state in ("suspended", "retired"):
        put(cluster, register(app_id="shop", hostnames=["www.shop.example"], state=state))
        wait_reason(gateways, hostnames[0], f"app_{state}")
        for gateway in gateways:
            assert reason(gateway, hostnames[2]) == f"app_{state}"
            assert reason(gateway, hostnames[1]) == "unknown_host"
    put(cluster, register(app_id="shop"), register(app_id="other", hostnames=["other.example"]))
    wait_reason(gateways, hostnames[0], "")
    wait_reason(gateways, "other.example", "no_upstream")
    delete(cluster, app_key("shop"))
    wait_reason(gateways, hostnames[2], "unknown_host")
    assert reason(gateways[0], hostnames[0]) == ""
    wait_until(lambda: len({readiness(one)["state"]["digest"] for one in gateways}) == 1)
    host.stop()


def test_who_is_enrolled_by_the_platform(cluster: Cluster) -> None:
    """1.4: a host that the platform enrolled is routed to; a removed enrolment ends routing and
    connections within 2 s. The file's entry counts where both name a host.
    """
    gateway = sharing(cluster)
    ours, file_host = Host(cluster, "late", ["shop"]), cluster.host(app="mail")
    cluster.hosts.append(ours)
    cluster.beating.add(ours)
    ours.publish()
    other = Host(cluster, "other", ["mail"]).identity.public_key
    put(
        cluster,
        Enrolment("late", ours.identity.public_key, cluster.cluster_id, ("shop",)),
        Enrolment(file_host.host_id, other, cluster.cluster_id, ("mail",)),
    )
    cluster.wait_healthy(ours)
    assert reason(gateway, ours.hostname) == ""
    delete(cluster, enrolment_key(cluster.cluster_id, "late"))
    began = time.monotonic()
    wait_until(lambda: gateway.state("late") != "healthy")
    wait_until(lambda: reason(gateway, ours.hostname) != "")
    assert time.monotonic() - began < IN_FORCE
    assert reason(gateway, file_host.hostname) == ""


def test_only_registered_apps(cluster: Cluster) -> None:
    """5: an app hosted but never registered follows the configured policy."""
    gateway = sharing(cluster, apps="registered")
    host = cluster.host(app="shop")
    assert reason(gateway, host.hostname) == "unknown_host"
    put(cluster, register(app_id="shop"))
    wait_reason([gateway], host.hostname, "")


def test_the_bus_is_away(cluster: Cluster) -> None:
    """Control plane: the bus down: traffic goes on by what was decided, `/readyz` says why."""
    gateway = sharing(cluster)
    put(cluster, register(app_id="shop", state="suspended"))
    host, other = cluster.host(app="shop"), cluster.host(app="mail")
    wait_reason([gateway], host.hostname, "app_suspended")
    cluster.nats.kill()
    wait_until(lambda: "writes are refused" in str(readiness(gateway)["degraded"]))
    found = readiness(gateway)
    assert found["ready"]
    assert found["state"]["age"] >= 0
    assert reason(gateway, host.hostname) == "app_suspended"
    assert reason(gateway, other.hostname) == ""


def test_a_full_resync_under_load(cluster: Cluster) -> None:
    """R09: the whole table read anew, again and again, and a bucket restored from a backup: no
    request by a label or an exact hostname is refused meanwhile.
    """
    gateway = sharing(cluster, state={"reconcile": 0.2})
    host = cluster.host(app="shop")
    hostnames = [host.hostname, "www.shop.example"]
    put(cluster, register(app_id="shop", hostnames=[hostnames[1]]))
    put(cluster, *(register(app_id=f"app-{n}", hostnames=[f"a{n}.example"]) for n in range(3000)))
    wait_reason([gateway], "a2999.example", "no_upstream")
    wait_reason([gateway], hostnames[1], "")
    sweeps = metrics(gateway)["smartgw_state_sweeps_total"]
    stop, statuses = threading.Event(), Counter[int]()

    def ask() -> None:
        while not stop.is_set():
            for hostname in hostnames:
                statuses[gateway.ask(hostname).status] += 1

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        wait_until(lambda: metrics(gateway)["smartgw_state_sweeps_total"] >= sweeps + 3)
        with restored_from_backup(cluster.nats, BUCKET):
            put(cluster, *(register(app_id=f"app-{n}", label=f"b{n}") for n in range(500)))
            wait_reason([gateway], f"b499.{BASE_DOMAIN}", "no_upstream")
        wait_until(lambda: reason(gateway, f"b499.{BASE_DOMAIN}") == "unknown_host")
    finally:
        stop.set()
        asking.join()
    assert statuses.keys() == {200}
    assert statuses[200] > 100


def test_nothing_is_served_before_it_is_known_what_was_decided() -> None:
    """11.2: not ready without a state to serve by; never "unknown host" for lack of knowledge, and
    never an app that may be suspended.
    """
    with Nats() as nats:
        cluster = Cluster(nats=nats)
        gateway = Gateway(cluster, {"state": {"bucket": BUCKET}, "discovery": {"heartbeat": 0.25}})
        try:
            gateway.spawn()
            host = cluster.host(app="shop", wait=False)
            wait_until(lambda: _answers(gateway))
            wait_until(lambda: gateway.state(host.host_id) == "healthy")
            found = readiness(gateway)
            assert not found["ready"]
            assert "JetStream is not enabled" in str(found["missing"])
            assert reason(gateway, host.hostname) == "not_ready"
            # With JetStream it goes on by itself.
            nats.enable_jetstream()
            nats.kill()
            nats.start()
            wait_until(lambda: readiness(gateway)["ready"])
            wait_until(lambda: reason(gateway, host.hostname) == "")
        finally:
            gateway.stop()
            cluster.stop()


def _answers(gateway: Gateway) -> bool:
    try:
        return gateway.internal("/healthz")[0] == 200
    except OSError:
        return False
