"""300 MiB through a forward, with a stalled reader at its end: neither gateway's memory grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.federation import Federation
from tests.gateway import Host
from tests.smartgw.proxy.test_streaming import (
    BODY,
    GROWTH,
    MIB,
    download,
    settled_growth,
    sink_and_source,
    upload_held,
)


@pytest.fixture(scope="module", params=["plain", "tls"])
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """Two clusters; links to c2 are plain, or over TLS."""
    tls = ("c2",) if request.param == "tls" else ()
    with Federation(tmp_path_factory.mktemp("large"), ("c1", "c2"), tls=tls) as made:
        yield made


@pytest.fixture
def hold() -> threading.Event:
    """Set it, and the host reads what is sent to it."""
    return threading.Event()


@pytest.fixture
def host(clusters: Federation, hold: threading.Event) -> Iterator[Host]:
    """A host of c2, whose app c2 owns."""
    made = clusters.host("c2", clusters.app("c2"), sink_and_source(hold))
    yield made
    made.stop()


def test_300_mib_down_with_a_stalled_reader(clusters: Federation, host: Host) -> None:
    """3.6, 4.5: 300 MiB through a forward to a client that reads nothing for a while."""
    entry, owner = clusters.gateways["c1"], clusters.gateways["c2"]
    for _ in range(3):
        download(entry, host, 32 * MIB, 0.3)
    assert settled_growth(lambda: download(entry, host, BODY, 1.0), entry, owner) < GROWTH


def test_300_mib_up_with_a_stalled_host(
    clusters: Federation, host: Host, hold: threading.Event
) -> None:
    """3.6, 4.5: 300 MiB through a forward to a host that reads nothing for a while."""
    entry, owner = clusters.gateways["c1"], clusters.gateways["c2"]
    for _ in range(3):
        upload_held(entry, host, 32 * MIB, hold, 0.3)
    growth = settled_growth(lambda: upload_held(entry, host, BODY, hold, 1.0), entry, owner)
    assert growth < GROWTH
    time.sleep(0.1)
    assert clusters.metric("c2", "smartgw_in_flight") == 0
