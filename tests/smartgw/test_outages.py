"""Outages of bus, gateway and clock under load, with leases of under a second.

Each has a cluster of its own; they wait most of the time, so several happen at once.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.drills.outages import FAKETIME, OUTAGES, Scale, sit_out

SHORT = Scale(outage=2.5, stop=2.5, heartbeat=0.3, hosts=6)
AT_ONCE = 4
Outages = dict[str, "Future[str]"]


@pytest.fixture(scope="module")
def outages() -> Iterator[Outages]:
    """All outages, under way."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield {
            name: threads.submit(sit_out, outage, SHORT)
            for name, outage in OUTAGES.items()
            if name != "stepped" or FAKETIME is not None
        }


def test_the_bus_is_killed(outages: Outages) -> None:
    """1.7, R14: Traffic keeps flowing; on return no mass expiry, and verifications are spread."""
    assert "0 of 6 hosts lost" in outages["killed"].result()


def test_the_bus_is_frozen(outages: Outages) -> None:
    """1.7: A bus that stands still for many lease terms costs no host its place."""
    assert "0 of 6 hosts lost" in outages["frozen"].result()


def test_the_bus_is_restarted(outages: Outages) -> None:
    """1.7, R16: After restarts of the bus the subscriptions live again, and no host was lost."""
    assert "0 of 6 hosts lost" in outages["restarted"].result()


def test_a_slow_consumer(outages: Outages) -> None:
    """1.7, R16: Thrown out by the bus, the gateway comes back and is right again."""
    assert "0 of 6 hosts lost" in outages["slow-consumer"].result()


def test_the_gateway_is_stopped(outages: Outages) -> None:
    """1.7, 11.3: A stall of many lease terms demotes nobody, and is told in readiness."""
    assert "0 of 6 hosts lost" in outages["stopped"].result()


@pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime")
def test_the_clock_steps(outages: Outages) -> None:
    """1.7: A wall clock that jumps by an hour either way demotes nobody and fails no request."""
    assert "0 of 6 hosts lost" in outages["stepped"].result()


def test_everything_is_told_anew(outages: Outages) -> None:
    """R09: A full resync of the table under load, with wildcard claims: no request fails."""
    assert "0 of 6 hosts lost" in outages["resynchronised"].result()
