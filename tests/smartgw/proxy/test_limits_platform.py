"""Limits that the platform gives to apps while they are asked (contract 6.1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway import Cluster, wait_until
from tests.servers import Nats
from tests.smartgw.api import issuing
from tests.smartgw.api.services import Service
from tests.smartgw.proxy.test_limits import ask, numbers, statuses


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats, enrolled=4)
    yield cluster
    cluster.stop()
    nats.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_changed_limit_is_in_force_soon_and_forgets_nothing(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, workers: int
) -> None:
    """6.1: per-app limits are in force within 2 s without resetting counts."""
    settings = issuing.settings(tmp_path_factory.mktemp("issuer"))
    gateway = cluster.gateway({**settings, "processes": {"workers": workers}})
    host = cluster.host()
    service = Service(gateway)
    service.put(host.app, limit=10)
    wait_until(lambda: numbers(ask(gateway, host.hostname)[0])[0] == 10, within=2.0)
    ask(gateway, host.hostname, count=4)
    used = 10 - numbers(ask(gateway, host.hostname)[0])[1]
    # Lowered below what was used: refused until enough has left the window.
    service.put(host.app, limit=3)
    wait_until(lambda: statuses(ask(gateway, host.hostname)) == [429], within=2.0)
    assert numbers(ask(gateway, host.hostname)[0])[:2] == (3, 0)
    # Raised: what was used counts on.
    service.put(host.app, limit=100)
    wait_until(lambda: numbers(ask(gateway, host.hostname)[0])[0] == 100, within=2.0)
    limit, left, _ = numbers(ask(gateway, host.hostname)[0])
    assert limit == 100
    assert used < 100 - left <= 20
