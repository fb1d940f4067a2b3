"""CORS over real sockets: preflights of ours, and what reaches a page of another origin (3.9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Host, MakeHost, wait_until
from tests.policies import PolicyGateway
from tests.raw_http import Answer
from tests.upstreams import HANDSHAKE, Connection, Request, accept, answering, each

PAGE = "https://page.example"
OTHER = "https://other.example"
LISTED, OWN, OWN_LISTED, LIMITED = "cors-listed", "cors-own", "cors-own-listed", "cors-limited"
POLICIES: dict[str, dict[str, Any]] = {
    LISTED: {"origins": [PAGE, "http://localhost:5173"]},
    OWN: {"own_cors": True},
    OWN_LISTED: {"own_cors": True, "origins": [PAGE]},
    LIMITED: {"origins": [PAGE], "limit": 2},
}
ASK = ("Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: authorization, x-a")


@pytest.fixture(scope="module")
def shared(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyGateway]:
    """A gateway that knows the policies of these apps."""
    log = tmp_path_factory.mktemp("cors") / "access.log"
    with PolicyGateway(cluster, POLICIES, {"log": {"access": str(log)}}) as gateway:
        cluster.gateways.append(gateway)
        yield gateway


def fields(answer: Answer) -> dict[str, str]:
    """Every Access-Control-* and Vary field, lower-case name -> value; each stands once."""
    names = {name.decode().lower() for name, _ in answer.fields}
    return {n: answer.one(n) for n in names if n.startswith("access-control-") or n == "vary"}


def answered(gateway: Gateway, host: Host, *lines: str, method: str = "GET") -> Answer:
    """The answer to one request with these field lines."""
    return gateway.ask(host.hostname, "/", method, *lines)


# ---- preflights ----


def test_preflight(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9: a preflight is answered by the gateway; the app does not see it."""
    host = make_host(app=LISTED)
    answer = answered(shared, host, f"Origin: {PAGE}", *ASK, method="OPTIONS")
    assert (answer.status, answer.body, answer.framing) == (204, b"", "none")
    assert fields(answer) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "PUT",
        "access-control-allow-headers": "authorization, x-a",
        "access-control-allow-credentials": "true",
        "access-control-max-age": "600",
        "vary": "Origin",
    }
    assert answer.one("x-request-id")
    assert answer.one("date")
    assert host.upstream.requests == []


@pytest.mark.parametrize("origin", [OTHER, "null", "https://page.example:8443", f"{PAGE}, {PAGE}"])
def test_refused_preflight(shared: PolicyGateway, make_host: MakeHost, origin: str) -> None:
    """3.9: an origin that is not on the list gets 204 without allow headers."""
    host = make_host(app=LISTED)
    answer = answered(shared, host, f"Origin: {origin}", *ASK, method="OPTIONS")
    assert answer.status == 204
    assert fields(answer) == {"access-control-max-age": "600", "vary": "Origin"}
    assert host.upstream.requests == []


def test_two_origins_are_none(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9: several Origin fields name no origin, even when each is listed."""
    host = make_host(app=LISTED)
    lines = (f"Origin: {PAGE}", f"Origin: {PAGE}")
    assert "access-control-allow-origin" not in fields(answered(shared, host, *lines))
    preflight = answered(shared, host, *lines, *ASK, method="OPTIONS")
    assert "access-control-allow-origin" not in fields(preflight)


def test_preflight_of_an_app_without_a_list(gateway: Gateway, make_host: MakeHost) -> None:
    """3.9: by default no origin is allowed, and the gateway is the one that says so."""
    host = make_host()
    answer = answered(gateway, host, f"Origin: {PAGE}", *ASK, method="OPTIONS")
    assert answer.status == 204
    assert fields(answer) == {"access-control-max-age": "600", "vary": "Origin"}
    assert host.upstream.requests == []


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (f"Origin: {PAGE}",),
        ("Access-Control-Request-Method: PUT",),
        (f"Origin: {PAGE}", "Access-Control-Request-Headers: x-a"),
        (f"Origin: {PAGE}", "Access_Control_Request_Method: PUT"),
    ],
)
def test_other_options(shared: PolicyGateway, make_host: MakeHost, lines: tuple[str, ...]) -> None:
    """3.9: OPTIONS that are no preflights go to the app, with their fields."""
    host = make_host(
        answering(b"HTTP/1.1 200 OK\r\nAllow: GET\r\nContent-Length: 0\r\n\r\n"), LISTED
    )
    answer = answered(shared, host, *lines, method="OPTIONS")
    assert (answer.status, answer.one("allow")) == (200, "GET")
    (request,) = host.upstream.requests
    assert [line for line in lines if line.encode() not in request.head] == [
        line for line in lines if "_" in line
    ]


def test_preflight_with_no_host_up(
    shared: PolicyGateway, cluster: Cluster, make_host: MakeHost
) -> None:
    """3.9: a preflight is answered with every upstream down, and so that the page can read why
    its request fails.
    """
    host = make_host(app=LISTED)
    host.upstream.kill()
    preflight = answered(shared, host, f"Origin: {PAGE}", *ASK, method="OPTIONS")
    assert preflight.status == 204
    assert fields(preflight)["access-control-allow-origin"] == PAGE
    answer = answered(shared, host, f"Origin: {PAGE}", method="PUT")
    assert answer.status in (502, 503)
    assert fields(answer)["access-control-allow-origin"] == PAGE
    assert json.loads(answer.body)["error"]["reason"]


def test_preflight_and_the_connection(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9, RFC 9112 9.3: the connection goes on behind a preflight, a body is not read as a
    request.
    """
    host = make_host(app=LISTED)
    head = f"OPTIONS * HTTP/1.1\r\nHost: {host.hostname}\r\nOrigin: {PAGE}\r\n{ASK[0]}\r\n"
    smuggled = f"GET /smuggled HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n"
    with shared.downstream() as client:
        client.send(f"{head}\r\n".encode() * 2)
        assert [client.answer("OPTIONS").status for _ in range(2)] == [204, 204]
        client.send(f"{head}Content-Length: {len(smuggled)}\r\n\r\n{smuggled}".encode())
        assert client.answer("OPTIONS").status == 204
        client.send(f"GET /after HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert client.answer().status == 200
    assert [request.raw_target for request in host.upstream.requests] == [b"/after"]


def test_preflights_are_free(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9, 6.2: preflights carry the limit's fields and cost nothing of it, also when it is used
    up; the 429 can be read by the page.
    """
    host = make_host(app=LIMITED)
    origin = f"Origin: {PAGE}"
    for left, expected in (("2", 200), ("1", 200), ("0", 429)):
        for _ in range(3):
            preflight = answered(shared, host, origin, *ASK, method="OPTIONS")
            assert preflight.status == 204
            assert preflight.one("x-ratelimit-limit") == "2"
            assert preflight.one("x-ratelimit-remaining") == left
        answer = answered(shared, host, origin)
        assert answer.status == expected
        assert fields(answer)["access-control-allow-origin"] == PAGE
    assert answer.one("retry-after")
    assert len(host.upstream.requests) == 2


def test_preflights_are_logged(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9, 11.3: a preflight is a line of the access log, with its app and without a host."""
    host = make_host(app=LISTED)
    log = Path(shared.config.read_text().partition('access = "')[2].partition('"')[0])
    lines = ("X-Request-Id: logged-preflight", "User-Agent: tests", f"Origin: {PAGE}", *ASK)
    answered(shared, host, *lines, method="OPTIONS")
    wait_until(lambda: "logged-preflight" in log.read_text(), what="the line in the log")
    (line,) = [line for line in log.read_text().splitlines() if "logged-preflight" in line]
    entry = json.loads(line)
    assert (entry["method"], entry["status"], entry["app_id"]) == ("OPTIONS", 204, LISTED)
    assert (entry["user_agent"], entry["host_id"], entry["reason"]) == ("tests", None, None)


# ---- answers ----


APP_SAYS = (
    "Access-Control-Allow-Origin: *",
    "access-control-allow-origin: https://evil.example",
    "Access-Control-Allow-Credentials: false",
    "Access-Control-Expose-Headers: X-Secret",
    "Access_Control_Allow_Origin: *",
    "Vary: Accept-Encoding",
)


def says(*lines: str) -> bytes:
    """A 200 with these lines."""
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "Content-Length: 2", "", "ok"]).encode()


def test_r45_one_allow_origin(shared: PolicyGateway, make_host: MakeHost) -> None:
    """R45, 3.9: the app also sets CORS: exactly one Access-Control-Allow-Origin, ours, and
    `Vary: Origin` once.
    """
    host = make_host(answering(says(*APP_SAYS)), LISTED)
    found = fields(answered(shared, host, f"Origin: {PAGE}"))
    exposed = {name.strip() for name in found.pop("access-control-expose-headers").split(",")}
    assert found == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-credentials": "true",
        "vary": "Accept-Encoding, Origin",
    }
    assert {"X-RateLimit-Remaining", "RateLimit", "X-Failover-Cluster", "X-Request-Id"} <= exposed
    assert "X-Secret" not in exposed


@pytest.mark.parametrize("lines", [(), (f"Origin: {OTHER}",), ("Origin: null",), ("Origin:",)])
def test_no_allow_origin_for_others(
    shared: PolicyGateway, make_host: MakeHost, lines: tuple[str, ...]
) -> None:
    """3.9: otherwise none, whatever the app says; always `Vary: Origin`."""
    host = make_host(answering(says(*APP_SAYS)), LISTED)
    assert fields(answered(shared, host, *lines)) == {"vary": "Accept-Encoding, Origin"}
    bare = make_host(answering(says()))
    assert fields(answered(shared, bare, *lines)) == {"vary": "Origin"}


def test_origin_reaches_the_app(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.5: Origin passes byte for byte, in its place."""
    host = make_host(app=LISTED)
    answered(shared, host, "X-A: 1", f"oRIGIN:  {PAGE}", "X-B: 2")
    (request,) = host.upstream.requests
    assert f"X-A: 1\r\noRIGIN:  {PAGE}\r\nX-B: 2".encode() in request.head


def test_interim_and_upgrade(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9: a 103 loses the app's own fields, a 101 has ours."""

    def script(connection: Connection, request: Request) -> None:
        own = b"Access-Control-Allow-Origin: *\r\nVary: Accept\r\n"
        connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n", own, b"\r\n")
        accept(connection, request, fields=own)
        connection.ended(5)
        raise EOFError

    host = make_host(each(script), LISTED)
    with shared.downstream() as client:
        hello = HANDSHAKE.format(hostname=host.hostname).replace(
            "\r\n\r\n", f"\r\nOrigin: {PAGE}\r\n\r\n"
        )
        client.send(hello.encode())
        answer = client.final_head()
    (interim,) = answer.interim
    assert fields(interim) == {"vary": "Accept"}
    assert interim.one("link") == "</a>"
    assert answer.status == 101
    assert fields(answer)["access-control-allow-origin"] == PAGE
    assert fields(answer)["vary"] == "Accept, Origin"


def test_r45_our_own_errors(shared: PolicyGateway, make_host: MakeHost) -> None:
    """R45, 3.9: our own errors carry them too, else browsers hide the reason."""
    host = make_host(answering(b"nonsense\r\n\r\n"), LISTED)
    answer = answered(shared, host, f"Origin: {PAGE}")
    assert answer.status == 502
    found = fields(answer)
    assert found["access-control-allow-origin"] == PAGE
    assert found["access-control-allow-credentials"] == "true"
    assert found["vary"] == "Origin"
    assert "X-Smartgw-Request-Sent" in found["access-control-expose-headers"]
    assert fields(answered(shared, host, f"Origin: {OTHER}")) == {"vary": "Origin"}
    assert fields(shared.ask(f"nobody.{BASE_DOMAIN}", "/", "GET", f"Origin: {PAGE}")) == {
        "vary": "Origin"
    }


# ---- opting out ----


def test_own_cors(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9: an app that does its own CORS gets its preflights, and its answers pass as they are."""
    own = ("Access-Control-Allow-Origin: *", "Vary: Accept", "Access-Control-Max-Age: 5")
    host = make_host(answering(says(*own)), OWN)
    for method, lines in (("OPTIONS", ASK), ("GET", ())):
        answer = answered(shared, host, f"Origin: {PAGE}", *lines, method=method)
        assert (answer.status, answer.body) == (200, b"ok")
        assert fields(answer) == {
            "access-control-allow-origin": "*",
            "vary": "Accept",
            "access-control-max-age": "5",
        }
    preflight, _ = host.upstream.requests
    assert preflight.one("access-control-request-method") == "PUT"
    assert preflight.one("access-control-request-headers") == "authorization, x-a"


def test_our_errors_for_own_cors(shared: PolicyGateway, make_host: MakeHost) -> None:
    """3.9: where the app cannot speak for itself, its list does if it has one."""
    broken = answering(b"nonsense\r\n\r\n")
    for app, allowed in ((OWN, ""), (OWN_LISTED, PAGE)):
        answer = answered(shared, make_host(broken, app), f"Origin: {PAGE}")
        assert answer.status == 502
        assert answer.one("access-control-allow-origin") == allowed
        assert answer.one("vary") == "Origin"
