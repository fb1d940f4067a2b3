"""Hosts that are healthy by their last verification and useless by now."""

import time

import pytest

from tests.gateway import Gateway, MakeHost
from tests.upstreams import Connection, serve


class Turncoat:
    """A host that serves until `turned`, then ends each proven connection after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.turned = False

    def __call__(self, connection: Connection) -> None:
        if self.turned:
            time.sleep(self.seconds)
        else:
            serve(connection)


def failures(gateway: Gateway, hostname: str, method: str) -> int:
    """How many of 40 requests did not get the healthy host's answer."""
    return sum(gateway.ask(hostname, "/", method).status != 200 for _ in range(40))


@pytest.mark.parametrize(("seconds", "lost"), [(0.0, 2), (0.003, 4)])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_host_that_ends_proven_connections_is_avoided(
    gateway: Gateway, make_host: MakeHost, seconds: float, lost: int, method: str
) -> None:
    """3.7: a host that will not carry requests is suspect and chosen last; the other serves.

    What was sent and died is not tried again, so the first few may be lost.
    """
    script = Turncoat(seconds)
    host = make_host(script)
    make_host(app=host.app)
    script.turned = True
    host.upstream.kill()
    host.upstream.listen()
    assert failures(gateway, host.hostname, method) <= lost
