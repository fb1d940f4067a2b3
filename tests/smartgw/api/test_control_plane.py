"""The control plane as its users see it: real gateways of one cluster, a real bus and store."""

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import api_cases
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, wait_until
from tests.servers import Nats
from tests.smartgw.api import issuing
from tests.smartgw.api.services import Service, reason

CLIENT = "127.0.0.1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats)
    yield cluster
    cluster.stop()
    nats.stop()


@pytest.fixture(scope="module")
def gateways(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Gateway]:
    """Two gateways; the second carries traffic with two workers."""
    settings = issuing.settings(tmp_path_factory.mktemp("issuer"))
    return [
        cluster.gateway(settings),
        cluster.gateway({**settings, "processes": {"workers": 2}}),
    ]


@pytest.fixture(params=["one process", "workers"])
def gateway(gateways: list[Gateway], request: pytest.FixtureRequest) -> Gateway:
    return gateways[1 if request.param == "workers" else 0]


def test_a_write_is_in_force_at_all_gateways_soon(
    cluster: Cluster, gateways: list[Gateway]
) -> None:
    """10, 3.4: a state that is written at any gateway is in force at all within 2 s."""
    host = cluster.host()
    for number in range(10):
        service = Service(gateways[number % 2])
        for state, status in (("suspended", 503), ("active", 200)):
            service.put(host.app, state=state)
            for gateway in gateways:
                wait_until(
                    lambda gateway=gateway, status=status: (  # type: ignore[misc]
                        gateway.ask(host.hostname).status == status
                    ),
                    within=2.0,
                    what=f"{state} at all gateways",
                )


def test_a_suspended_or_retired_app_is_refused_and_its_streams_go_on(
    cluster: Cluster, gateways: list[Gateway]
) -> None:
    """3.4: 503 `app_suspended` or `app_retired`, and what is under way ends by itself."""
    host = cluster.host()
    service = Service(gateways[0])
    service.put(host.app)
    for state in ("suspended", "retired"):
        service.put(host.app, state=state)
        wait_until(lambda: gateways[0].ask(host.hostname).status == 503, within=2.0)
        assert reason(gateways[0].ask(host.hostname)) == f"app_{state}"
    assert service.call("DELETE", f"/api/v3/apps/{host.app}").status == 204
    # Announced by a host and registered by nobody: the settings' own policy holds again.
    wait_until(lambda: gateways[0].ask(host.hostname).status == 200, within=2.0)


def test_control_routes_on_an_apps_hostname_are_the_apps(
    cluster: Cluster, gateway: Gateway
) -> None:
    """3.1: on an app's hostname everything is the app's, whatever credential is shown there."""
    host = cluster.host()
    service = Service(gateway)
    for path in ("/api/v3/apps", "/api/v3/explain?host=x", "/healthz", "/api/v3/openapi.json"):
        field = f"Authorization: Bearer {service.token}"
        answer = gateway.ask(host.hostname, path, "GET", field)
        assert answer.status == 200
        assert path.encode() in host.upstream.requests[-1].head
    answer = gateway.ask(host.hostname, "/api/v3/apps/x", "DELETE")
    assert answer.status == 200
    assert service.call("GET", "/api/v3/apps/x").status == 404


def test_both_listeners_answer_the_same_401(gateway: Gateway) -> None:
    """10.1: one body through the data path as well; nothing of our own stands in its header."""
    seen = set()
    for kind, fields in issuing.forged().items():
        lines = [f"Authorization: {field}" for field in fields]
        answer = gateway.ask(issuing.API, "/api/v3/apps", "GET", *lines)
        assert answer.status == 401, kind
        assert not answer.all("X-Smartgw-Caller")
        seen.add(answer.body)
    # Whatever the method, and with a body that nobody takes.
    for method in ("FOO", "get", "PROPFIND"):
        answer = gateway.ask(issuing.API, "/api/v3/apps", method, body=b"some")
        assert answer.status == 401, method
        seen.add(answer.body)
        assert Service(gateway).call(method, "/api/v3/apps").status == 405
    assert len(seen) == 1
    assert Service(gateway).call("GET", "/api/v3/apps").status == 200


def test_an_enrolment_lets_a_host_in_and_out(cluster: Cluster, gateways: list[Gateway]) -> None:
    """1.4: trust comes from an enrolment, and a removed one ends routing within 2 s."""
    host = cluster.host(host_id="stranger", app=cluster.new_app(), wait=False)
    wait_until(lambda: gateways[0].state("stranger") == "provisional")
    service = Service(gateways[1])
    path = f"/api/v3/enrolments/{cluster.cluster_id}/stranger"
    body = {"key": host.identity.public_key.text, "apps": [host.app]}
    assert service.call("PUT", path, body).status == 201
    cluster.wait_healthy(host)
    assert gateways[0].ask(host.hostname).status == 200
    assert service.call("DELETE", path).status == 204
    for gateway in gateways:
        wait_until(lambda gateway=gateway: gateway.ask(host.hostname).status != 200, within=2.0)  # type: ignore[misc]
    host.stop()


def test_concurrent_changes_are_applied_in_full_or_refused(gateways: list[Gateway]) -> None:
    """10.3: each of many conflicting changes at two gateways is whole, or 409 or 412."""
    services = [Service(gateway) for gateway in gateways]

    def change(number: int) -> int:
        labels = {"a": str(number), "b": str(number)}
        service = services[number % 2]
        answer = service.call("PUT", "/api/v3/apps/contended", {"labels": labels})
        return answer.status

    with ThreadPoolExecutor(20) as pool:
        statuses = set(pool.map(change, range(100)))
    assert statuses <= {200, 201, 409, 412}

    def read(service: Service) -> dict[str, str]:
        labels: dict[str, str] = json.loads(service.call("GET", "/api/v3/apps/contended").body)[
            "labels"
        ]
        return labels

    wait_until(lambda: read(services[0]) == read(services[1]), within=2.0)
    assert len(set(read(services[0]).values())) == 1
    digests = {
        json.loads(gateway.internal("/readyz")[1])["state"]["digest"] for gateway in gateways
    }
    assert len(digests) == 1


def audit(gateway: Gateway) -> list[dict[str, Any]]:
    """The lines of the audit log that a gateway writes to."""
    log = gateway.config.read_text().split('audit = "')[1].partition('"')[0]
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


def test_a_gateway_that_lags_loses_no_change(gateways: list[Gateway]) -> None:
    """10.3: what was written at one gateway a moment ago counts at the other, too: to write the
    value of before again is a change, and its ETag is known there.
    """
    one, other = map(Service, gateways)
    one.put("swinging", limit=1)
    for number in range(30):
        one.put("swinging", limit=2)
        etag = other.put("swinging", limit=1)["etag"]
        one, other = other, one
        path, match = "/api/v3/apps/swinging", f'If-Match: "{etag}"'
        answer = other.call("PUT", path, {"limit": 1, "labels": {"n": str(number)}}, match)
        assert answer.status == 200, answer.body
    stored = json.loads(one.call("PUT", "/api/v3/apps/swinging", {"limit": 1}).body)
    assert (stored["limit"], stored["labels"]) == (1, {})
    assert other.call("DELETE", "/api/v3/apps/swinging").status == 204
    assert one.call("DELETE", "/api/v3/apps/swinging").status == 404


def test_the_audit_log_tells_of_each_change(gateways: list[Gateway]) -> None:
    """10.1: one line a change, from whatever gateway it was made at."""
    Service(gateways[0]).put("audited", limit=7)
    lines = audit(gateways[0])
    (found,) = (line for line in lines if line.get("app_id") == "audited")
    assert (found["action"], found["subject"], found["after"]["limit"]) == (
        "app.create",
        "tests",
        7,
    )


def test_a_drain_is_in_the_audit_log(cluster: Cluster, gateways: list[Gateway]) -> None:
    """10.1: taking a host out of use, and back, is a change as well."""
    host = cluster.host()
    service = Service(gateways[0])
    for undo in (False, True):
        assert (
            service.call("POST", "/api/v3/drain", {"host": host.host_id, "undo": undo}).status
            == 200
        )
    lines = [line for line in audit(gateways[0]) if line.get("host_id") == host.host_id]
    assert [line["action"] for line in lines] == ["drain", "drain.undo"]
    assert [line["before"]["state"] for line in lines] == ["healthy", "drained"]


def test_control_is_taken_off_the_public_listener_by_a_reload(
    cluster: Cluster, tmp_path: Path
) -> None:
    """10.2, 11.1: the public listener can be told not to serve control while the gateway runs."""
    settings = issuing.settings(tmp_path)
    gateway = cluster.gateway(settings)
    service = Service(gateway)
    assert service.call("GET", "/api/v3/apps").status == 200
    text = gateway.config.read_text()
    for flag, status in (("false", 404), ("true", 200)):
        gateway.config.write_text(text.replace("[auth]", f"[auth]\ncontrol_on_hostnames = {flag}"))
        gateway.signal(signal.SIGHUP)
        wait_until(lambda status=status: service.call("GET", "/api/v3/apps").status == status)  # type: ignore[misc]
        assert gateway.ask(issuing.API, "/api/v3/discovery/hosts").status == 200
        assert gateway.internal("/api/v3/apps")[0] == 200
    gateway.stop()


def test_generated_requests_find_no_fault(gateways: list[Gateway]) -> None:
    """10.3: schemathesis: no server error, no undocumented status; a short run of api_cases."""
    cases, faults = api_cases.run(gateways[0], 150, seed=1)
    assert faults == 0
    assert cases >= 150


# ---- explain ----


def test_explain_says_what_a_request_then_gets(
    cluster: Cluster, gateway: Gateway, gateways: list[Gateway]
) -> None:
    """10.4: the same answer as the request then gets, for every end that a request can come to."""
    service = Service(gateway)
    host = cluster.host()
    apps = {name: cluster.new_app(name) for name in ("off", "gone", "empty", "own", "few")}
    own = cluster.host(app=apps["own"])
    few = cluster.host(app=apps["few"])
    origin = "https://www.example.com"
    service.put(host.app, hostnames=[f"{host.app}.example.com"], origins=[origin])
    service.put(apps["off"], state="suspended")
    service.put(apps["gone"], state="retired")
    service.put(apps["empty"])
    service.put(apps["own"], own_cors=True)
    service.put(apps["few"], limit=3)
    wait_until(lambda: service.explain(f"{host.app}.example.com")["status"] is None)
    wait_until(lambda: (service.explain(few.hostname)["policy"] or {}).get("limit") == 3)
    named = f"{host.app}.example.com"
    situations = [
        (host.hostname, {}),
        (host.hostname.upper() + ".:8080", {}),
        (named, {"method": "POST"}),
        (host.hostname, {"path": "/.well-known/smartgw/challenge"}),
        (host.hostname, {"method": "TRACE"}),
        (host.hostname, {"origin": origin}),
        (host.hostname, {"origin": "https://evil.example"}),
        (host.hostname, {"method": "OPTIONS", "origin": origin}),
        (host.hostname, {"method": "OPTIONS", "origin": "https://evil.example"}),
        (own.hostname, {"method": "OPTIONS", "origin": origin}),
        (f"{apps['off']}.{BASE_DOMAIN}", {}),
        (f"{apps['gone']}.{BASE_DOMAIN}", {"method": "POST"}),
        (f"{apps['empty']}.{BASE_DOMAIN}", {}),
        (f"nobody.{BASE_DOMAIN}", {}),
        ("nowhere.example.org", {}),
        ("a b", {}),
        ("a..b", {}),
        (f"a.b.{BASE_DOMAIN}", {}),
        (issuing.API, {"path": "/healthz"}),
    ]
    if gateway is not gateways[1]:
        # Workers without a store count apart, so which one is asked matters.
        situations += [(few.hostname, {})] * 5
    ends = {("refused", "rate_limited")} if gateway is gateways[1] else set()
    for hostname, asked in situations:
        found = service.explain(hostname, client=CLIENT, **asked)
        fields = []
        if "origin" in asked:
            fields.append(f"Origin: {asked['origin']}")
            if asked.get("method") == "OPTIONS":
                fields.append("Access-Control-Request-Method: GET")
        got = gateway.ask(hostname, asked.get("path", "/"), asked.get("method", "GET"), *fields)
        told = (found["status"] or 200, found["reason"])
        assert told == (got.status, reason(got)), (hostname, asked, found)
        if found["cors"] is not None:
            allowed = got.all("Access-Control-Allow-Origin") == [origin.encode()]
            assert found["cors"]["allowed"] == allowed, (hostname, asked)
        if found["outcome"] == "served":
            assert found["attempts"][0]["cluster"] == cluster.cluster_id
            assert found["attempts"][0]["hosts"]
        if found["reason"] == "rate_limited":
            seconds = re.compile("[0-9]+ s$")
            detail = json.loads(got.body)["error"]["detail"]
            assert seconds.sub("", found["detail"]) == seconds.sub("", detail)
            assert f"limit: 3 of 3 are used: {found['detail']}" in [
                f"{step['step']}: {step['result']}" for step in found["steps"]
            ]
        # A host that is well is not among those that are not asked.
        assert not found["unrouted"], (hostname, asked)
        ends.add((found["outcome"], found["reason"]))
    assert ends == {
        *(("served", None), ("preflight", None), ("api", None), ("refused", "reserved_path")),
        *(("refused", "method_not_allowed"), ("refused", "app_suspended")),
        *(("refused", "app_retired"), ("refused", "no_upstream"), ("refused", "unknown_host")),
        *(("refused", "bad_request"), ("refused", "bad_hostname"), ("refused", "rate_limited")),
    }


def test_explain_does_nothing(cluster: Cluster, gateway: Gateway) -> None:
    """10.4: without doing it: no request goes to the host, no window and no counter moves."""
    host = cluster.host()
    service = Service(gateway)
    seen = len(host.upstream.requests)
    before = service.explain(host.hostname, client=CLIENT)
    for _ in range(20):
        service.explain(host.hostname, client=CLIENT)
    after = service.explain(host.hostname, client=CLIENT)
    assert len(host.upstream.requests) == seen
    assert after["limit"]["used"] == before["limit"]["used"]
    assert after["attempts"][0]["hosts"][0]["outstanding"] == 0


def test_explain_names_hosts_that_get_no_requests_and_why(
    cluster: Cluster, gateway: Gateway
) -> None:
    """10.4: and why: a host that announces the app and is not routed is told with its reason."""
    host = cluster.host(host_id="nobody-knows", app=cluster.new_app(), wait=False)
    service = Service(gateway)
    service.put(host.app)
    wait_until(lambda: gateway.state("nobody-knows") == "provisional")
    time.sleep(0.1)
    found = service.explain(host.hostname)
    assert (found["status"], found["registered"]) == (503, True)
    assert found["unrouted"] == [
        {"host_id": "nobody-knows", "state": "provisional", "reason": "not_enrolled"}
    ]
    host.stop()
