"""Workers of one gateway count together, in a store that it starts by itself (contract 6.6)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from smartgw.config import Settings
from smartgw.processes.counting import Counting
from smartgw.proxy.counters import Counters
from tests.gateway import Cluster, Gateway, wait_until
from tests.generations import children, metric, status
from tests.servers import alive
from tests.smartgw.proxy.test_limits import numbers
from tests.smartgw.proxy.test_limits_shared import at_once

CHANGES = {
    "processes": {"workers": 2, "unready_wait": 0, "drain": 1.0},
    "rates": {"requests": 100, "unknown": 100, "own": 600},
    "proxy": {"trusted": ["127.0.0.1/32"]},
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Gateway]]:
    """A gateway of two workers, and its cluster."""
    cluster = Cluster("pair", enrolled=20)
    try:
        yield cluster, cluster.gateway(CHANGES)
    finally:
        cluster.stop()


def store_of(gateway: Gateway) -> int:
    """The process id of its own store."""
    pid = status(gateway)["store"]["pid"]
    assert pid in children(gateway.pid)
    return int(pid)


def test_two_workers_count_together(pair: tuple[Cluster, Gateway]) -> None:
    """6.6: a gateway of several workers starts a store by itself; the limit is that of all."""
    cluster, gateway = pair
    host = cluster.host()
    found = at_once([gateway], host, "X-Forwarded-For: 192.0.2.1", 24, 5)
    assert found.count(200) == 100
    assert found.count(429) == 20
    store = status(gateway)["store"]
    assert (store["kind"], store["away"]) == ("own", 0)
    assert store["checks"] >= 100


def test_a_store_that_dies_is_started_again(pair: tuple[Cluster, Gateway]) -> None:
    """6.6: meanwhile each worker counts alone, which is shown."""
    cluster, gateway = pair
    host = cluster.host()
    before = store_of(gateway)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: status(gateway)["store"]["pid"] not in (None, before))
    wait_until(lambda: metric(gateway, "smartgw_store_away") == 0)
    answer = gateway.ask(host.hostname, "/", "GET", "X-Forwarded-For: 192.0.2.2")
    assert numbers(answer)[:2] == (100, 99)
    assert metric(gateway, 'smartgw_store_faults_total{reason="closed"}') >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_store_ends_with_the_gateway(
    pair: tuple[Cluster, Gateway], number: signal.Signals
) -> None:
    """6.6: no process of it stays, also after SIGKILL of the gateway."""
    cluster, _ = pair
    gateway = cluster.gateway(CHANGES)
    store = store_of(gateway)
    gateway.signal(number)
    wait_until(lambda: not alive(store))
    gateway.stop()


def test_without_the_program_each_counts_alone(
    pair: tuple[Cluster, Gateway], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """6.6: where the store cannot be started the gateway serves, and says what is missing."""
    cluster, _ = pair
    monkeypatch.setenv("SMARTGW_VALKEY_SERVER", str(tmp_path / "none"))
    gateway = cluster.gateway(CHANGES)
    try:
        lines = json.loads(gateway.internal("/readyz")[1])["degraded"]
        assert any("smart-gateway[embedded]" in line for line in lines)
        assert status(gateway)["store"]["kind"] == "memory"
        answer = gateway.ask(cluster.host().hostname)
        assert numbers(answer)[:2] == (100, 99)
    finally:
        gateway.stop()


def settings(**changes: object) -> Settings:
    return Settings.model_validate(
        {
            "cluster": "c1",
            "base_domains": ["a.test"],
            "host_networks": ["127.0.0.0/8"],
            "trust": {"mode": "first-use"},
            **changes,
        }
    )


async def test_a_store_that_is_named_is_the_one() -> None:
    """6.6: where the settings name a store, or one process counts, none is started."""
    named = settings(processes={"workers": 3}, store={"servers": ["valkey://127.0.0.1:1"]})
    for each, kind in ((named, "server"), (settings(), "memory")):
        counting = Counting(each)
        await counting.start()
        assert counting.told(each) is each
        assert counting.status(Counters())["kind"] == kind
        await counting.stop()
    counting = Counting(named)
    counters = Counters()
    counters.store_away = 2
    assert counting.degraded(counters) == ["store: 2 of 4 processes cannot ask it and count alone"]
