"""How a host learns which app a request is for (contract 3.5, 4.8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smartgw_hosts.guard import app_of
from tests.gateway import BASE_DOMAIN, Cluster, MakeHost
from tests.policies import PolicyGateway

APP, ALIAS, CUSTOM = "named-app", f"alias.{BASE_DOMAIN}", "shop.example"


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[PolicyGateway]:
    """A gateway where the app has two hostnames beside its own."""
    own = f"{APP}.{BASE_DOMAIN}"
    with PolicyGateway(cluster, {}, hostnames={ALIAS: own, CUSTOM: own}) as gateway:
        cluster.gateways.append(gateway)
        yield gateway


@pytest.mark.parametrize("hostname", [ALIAS, CUSTOM])
def test_named_by_the_gateway(shared: PolicyGateway, make_host: MakeHost, hostname: str) -> None:
    """4.8: where the hostname's label is not the app id, X-Smartgw-App tells the host the app."""
    host = make_host(app=[APP, "other-app"])
    assert shared.ask(hostname, "/", "POST", "X-Smartgw-App: other-app").status == 200
    (request,) = host.upstream.requests
    assert request.one("x-smartgw-app") == APP
    assert app_of(request.fields, host.apps) == APP


def test_named_by_its_hostname(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.5, 4.8: where the label is the app id nothing is added, and a client's field is gone."""
    host = make_host(app=[APP, "other-app"])
    assert shared.ask(host.hostname.upper(), "/", "POST", "X-Smartgw-App: other-app").status == 200
    (request,) = host.upstream.requests
    assert request.all("x-smartgw-app") == []
    assert app_of(request.fields, host.apps) == APP
