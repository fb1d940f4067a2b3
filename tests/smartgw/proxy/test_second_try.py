"""Hosts that are healthy by their last verification and useless by now."""

import time

from tests.gateway import Gateway, MakeHost
from tests.upstreams import Connection


def leave_at_once(connection: Connection) -> None:
    """Prove the connection, then end it before the first request."""


def leave_soon(connection: Connection) -> None:
    """Prove the connection, then end it while the first request is on its way."""
    time.sleep(0.003)


def failures(gateway: Gateway, hostname: str, method: str) -> int:
    """How many of 40 requests did not get the healthy host's answer."""
    return sum(gateway.ask(hostname, "/", method).status != 200 for _ in range(40))


def test_a_host_that_ends_proven_connections_is_avoided(
    gateway: Gateway, make_host: MakeHost
) -> None:
    """3.7: a host that will not carry requests is suspect and chosen last; the other serves."""
    host = make_host(leave_at_once)
    make_host(app=host.app)
    assert failures(gateway, host.hostname, "GET") <= 2
    assert failures(gateway, host.hostname, "POST") <= 2


def test_a_host_that_dies_within_requests_is_avoided(gateway: Gateway, make_host: MakeHost) -> None:
    """3.7: a request that was sent and died is not tried again, but the next go elsewhere."""
    host = make_host(leave_soon)
    make_host(app=host.app)
    assert failures(gateway, host.hostname, "POST") <= 4
