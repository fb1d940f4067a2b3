"""Fixtures of black-box tests: one cluster and one gateway for the whole session, apps and
hosts for each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway import Cluster, Gateway, Host, MakeHost


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with a bus and no gateway yet; all tests share it."""
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def gateway(cluster: Cluster) -> Gateway:
    """The gateway with default deadlines that all tests share."""
    return cluster.gateway()


@pytest.fixture
def make_host(cluster: Cluster) -> Iterator[MakeHost]:
    """`cluster.host(...)` for hosts that leave when the test ends."""
    made: list[Host] = []

    def make(*arguments: Any, **options: Any) -> Host:
        host = cluster.host(*arguments, **options)
        made.append(host)
        return host

    yield make
    for host in made:
        host.stop()
