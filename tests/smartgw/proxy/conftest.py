"""Gateways that several files of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway import Cluster, Gateway


@pytest.fixture(scope="session")
def cramped(
    cluster: Cluster, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with 8 connections to a host, a second of patience and an access log."""
    log = tmp_path_factory.mktemp("cramped") / "access.log"
    made = cluster.gateway(
        {
            "upstream": {"connections_per_host": 8},
            "deadlines": {"keepalive": 1.0, "response_body": 1.0},
            "log": {"access": str(log)},
        }
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def access_log(cramped: Gateway) -> Path:
    """The access log of `cramped`."""
    text = cramped.config.read_text()
    return Path(text.partition('access = "')[2].partition('"')[0])
