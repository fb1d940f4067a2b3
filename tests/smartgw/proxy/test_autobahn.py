"""Autobahn's WebSocket cases through the gateway; all of them run as `python -m tests.autobahn`."""

from __future__ import annotations

import pytest

from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Sidecar


async def test_autobahn_cases(gateway: Gateway, cluster: Cluster) -> None:
    """3.6: no case fails through the gateway that the echo alone passes.

    Framing, pings, fragments, closing; the long UTF-8, size and compression series are left out.
    """
    pytest.importorskip("kosoku")
    from tests import autobahn

    async with autobahn.echo() as port:
        app = cluster.new_app("echo")
        async with Sidecar(cluster, cluster.new_host_id(), [app], port):
            without = ("6.*", "9.*", "12.*", "13.*")
            hostname = f"{app}.{BASE_DOMAIN}"
            compared = await autobahn.compare(gateway.public, hostname, port, ["*"], without)
    assert compared.cases > 90
    assert compared.gateway_only == ()
