"""Limits that the platform gives to apps while they are asked (contract 6.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.gateway import Cluster, wait_until
from tests.servers import Nats
from tests.smartgw.api import issuing
from tests.smartgw.api.services import Service
from tests.smartgw.proxy.test_limits import ask, numbers, statuses

# Two seconds, and what a busy machine adds.
IN_FORCE = 6.0


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
    admitted: Counter[int] = Counter()

    def limits(times: int = 8) -> set[int]:
        """The limits that so many requests were told, at whichever worker each came to."""
        answers = ask(gateway, host.hostname, count=times)
        told = [numbers(answer)[0] for answer in answers]
        pairs = zip(told, statuses(answers), strict=True)
        admitted.update(limit for limit, status in pairs if status == 200)
        return set(told)

    wait_until(lambda: limits(1) == {10}, IN_FORCE)
    limits(4)
    # Lowered below what was used: refused until enough has left the window.
    service.put(host.app, limit=3)
    wait_until(lambda: limits() == {3}, IN_FORCE)
    assert statuses(ask(gateway, host.hostname, count=8)) == [429] * 8
    assert admitted[3] == 0
    before = admitted.total()
    assert before >= 5
    # Raised: what was used counts on.
    service.put(host.app, limit=1000)
    wait_until(lambda: limits() == {1000}, IN_FORCE)
    left = numbers(ask(gateway, host.hostname)[0])[1]
    assert admitted.total() - 2 <= 1000 - left <= admitted.total() + 1
