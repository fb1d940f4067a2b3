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
    counted = 0

    def limits(times: int = 8) -> set[int]:
        """The limit that each of so many requests was told, at whichever worker it came to."""
        nonlocal counted
        answers = ask(gateway, host.hostname, count=times)
        counted += statuses(answers).count(200)
        return {numbers(answer)[0] for answer in answers}

    wait_until(lambda: limits(1) == {10})
    limits(4)
    # Lowered below what was used: refused until enough has left the window.
    service.put(host.app, limit=3)
    wait_until(lambda: limits() == {3})
    assert statuses(ask(gateway, host.hostname, count=8)) == [429] * 8
    assert numbers(ask(gateway, host.hostname)[0])[1] == 0
    # Raised: what was used counts on, at each of two workers that count alone what they admitted.
    service.put(host.app, limit=1000)
    wait_until(lambda: limits() == {1000})
    left = numbers(ask(gateway, host.hostname)[0])[1]
    assert 0 < 1000 - left <= counted + 1
