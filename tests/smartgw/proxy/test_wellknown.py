"""Nobody can have a host sign through the gateway: the reserved paths end here, and no host
signs what was relayed.
"""

from __future__ import annotations

import time

import pytest

from smartgw_hosts import challenge
from tests.gateway import Gateway, Host, MakeHost
from tests.upstreams import Connection, Request, each

SPELLINGS = (
    "/.well-known/smartgw/challenge",
    "/.well-known/smartgw/challenge?x=1",
    "/.well-known/smartgw/challenge?",
    "/.well-known/smartgw/challenge/",
    "/.well-known/smartgw/challenge/x",
    "/.well-known/smartgw/",
    "/.well-known/smartgw/other",
    "/.well-known/smartgw/challenge;a=b",
    "/%2Ewell-known/smartgw/challenge",
    "/%2ewell-known/smartgw/challenge",
    "/.well%2Dknown/smartgw/challenge",
    "/.well-known/%73martgw/challenge",
    "/.well-known/smartgw/%63hallenge",
    "/.well-known%2Fsmartgw%2Fchallenge",
    "/.well-known%2fsmartgw/challenge",
    "/.well-known/smartgw%2Fchallenge",
    "/%2F.well-known/smartgw/challenge",
    "/%2e%77%65%6c%6c%2d%6b%6e%6f%77%6e/%73%6d%61%72%74%67%77/%63%68%61%6c%6c%65%6e%67%65",
    "/./.well-known/smartgw/challenge",
    "/.well-known/./smartgw/challenge",
    "/.well-known/smartgw/./challenge",
    "/x/../.well-known/smartgw/challenge",
    "/../.well-known/smartgw/challenge",
    "/../../../.well-known/smartgw/challenge",
    "/.well-known/x/../smartgw/challenge",
    "/.well-known/smartgw/x/../challenge",
    "/.well-known/smartgw/challenge/.",
    "/.well-known/smartgw/challenge/x/..",
    "/%2e/.well-known/smartgw/challenge",
    "/x/%2e%2e/.well-known/smartgw/challenge",
    "/x/%2E./.well-known/smartgw/challenge",
    "/x/.%2e/.well-known/smartgw/challenge",
    "/x%2F..%2F.well-known/smartgw/challenge",
    "/a/b/../../.well-known/smartgw/challenge",
    "/a/./b/../.././.well-known/smartgw/challenge",
    "//.well-known/smartgw/challenge",
    "/.well-known//smartgw/challenge",
    "/.well-known/smartgw//challenge",
    "///.well-known///smartgw///challenge",
    "/x/y//../../../.well-known/smartgw/challenge",
    "http://{hostname}/.well-known/smartgw/challenge",
    "http://{hostname}/x/../.well-known/smartgw/challenge",
    "/.well-known/smartgw-challenge/token",
    "/.well-known/%73martgw-challenge/token",
    "/x/../.well-known/smartgw-challenge/token",
)


def challenge_for(host: Host) -> bytes:
    """The body of a challenge that `host` would sign if it came straight to it."""
    asked = challenge.Challenge(
        nonce=bytes(range(32)),
        gateway_id="stranger",
        cluster_id=host.cluster.cluster_id,
        host_id=host.host_id,
        address=host.address,
        key=host.identity.public_key,
        issued_ms=int(time.time() * 1000),
    )
    return challenge.request(asked).partition(b"\r\n\r\n")[2]


@pytest.fixture
def sees_all(make_host: MakeHost) -> Host:
    """A host that would sign a challenge at whatever path it comes."""

    def script(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        status, body = host.responder.answer(
            request.method.encode(), challenge.PATH, request.fields, request.body, time.monotonic(),
            int(time.time() * 1000),
        )  # fmt: skip
        connection.reply(body, f"{status} Answer")

    host = make_host(each(script))
    return host


def test_no_spelling_reaches_a_host(gateway: Gateway, sees_all: Host) -> None:
    """3.1: a challenge to an app's hostname, in any spelling of the path, is 404 and never
    forwarded.
    """
    assert len(SPELLINGS) >= 40
    body = challenge_for(sees_all)
    wrong = []
    before = len(sees_all.upstream.challenges)
    for spelling in SPELLINGS:
        for method in ("POST", "GET"):
            raw_target = spelling.format(hostname=sees_all.hostname)
            answer = gateway.ask(sees_all.hostname, raw_target, method, body=body)
            if answer.status != 404 or not answer.one("proxy-status"):
                wrong.append(f"{method} {spelling}: {answer.status}")
    assert wrong == []
    assert [r.raw_target for r in sees_all.upstream.requests] == []
    assert len(sees_all.upstream.challenges) == before


@pytest.mark.parametrize(
    "raw_target",
    ["/.well-known/smartgwx/challenge", "/x/.well-known/smartgw/challenge",
     "/.well-known/acme-challenge/token", "/?/.well-known/smartgw/challenge", "/.well-known/"],
)  # fmt: skip
def test_neighbours_belong_to_the_app(
    gateway: Gateway, make_host: MakeHost, raw_target: str
) -> None:
    """3.1: everything else on an app's hostname belongs to the app."""
    host = make_host()
    assert gateway.ask(host.hostname, raw_target).status == 200
    assert [r.raw_target.decode() for r in host.upstream.requests] == [raw_target]


@pytest.mark.parametrize(
    "raw_target", ["/healthz", "/readyz", "/metrics", "/api/v3/discovery/hosts"]
)
def test_our_own_paths_belong_to_the_app(
    gateway: Gateway, make_host: MakeHost, raw_target: str
) -> None:
    """3.1: the hostname is looked at before any route of the gateway's own."""
    host = make_host()
    assert gateway.ask(host.hostname, raw_target).status == 200
    assert len(host.upstream.requests) == 1


def test_no_host_signs_what_came_through_a_gateway(gateway: Gateway, sees_all: Host) -> None:
    """2.1: a challenge that a gateway relayed (here to a path that an app rewrites) is not
    signed.
    """
    body = challenge_for(sees_all)
    direct = sees_all.responder.answer(
        b"POST", challenge.PATH, [], body, time.monotonic(), int(time.time() * 1000)
    )
    assert direct[0] == 200
    for fields in ((), ("Connection: Via, Forwarded",), ("Via: 1.0 x", "Connection: via")):
        answer = gateway.ask(sees_all.hostname, "/rewritten", "POST", *fields, body=body)
        assert answer.status == 403, answer.body
    assert len(sees_all.upstream.requests) == 3
