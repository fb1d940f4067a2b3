"""Limits over real sockets: who passes, what every answer says, what a 429 tells (contract 6)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.gateway import BASE_DOMAIN, Cluster, Gateway, wait_until
from tests.generations import metric
from tests.policies import PolicyGateway
from tests.raw_http import Answer
from tests.smartgw.api import issuing
from tests.upstreams import HANDSHAKE, Connection, Request, accept, answering, each

# The window is short, so that a test can wait for its end.
SHORT: dict[str, Any] = {"requests": 20, "unknown": 6, "own": 8, "window": 3}
OWN = f"api.{BASE_DOMAIN}"
BEHIND = {"proxy": {"trusted": ["127.0.0.1/32"]}}
SMALL_APP = "limit-small"


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """A cluster of its own: the other tests' gateways need not see these hosts."""
    cluster = Cluster("limits", enrolled=40)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def usual(place: Cluster) -> Gateway:
    """A gateway with the limits that there are by default."""
    return place.gateway({"rates": {"requests": 600, "unknown": 100, "own": 600}, **BEHIND})


@pytest.fixture(scope="module")
def short(place: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with short windows, its own API, and one app with a limit of its own."""
    keys = tmp_path_factory.mktemp("limits") / "keys.json"
    keys.write_bytes(issuing.key_set("k1"))
    changes = {
        "rates": SHORT,
        "hostnames": [OWN],
        "deadlines": {"response_head": 0.5},
        **BEHIND,
    }
    with PolicyGateway(place, {SMALL_APP: {"limit": 3}}, changes) as gateway:
        text = gateway.config.read_text()
        gateway.config.write_text(
            f'{text}\n[[auth.issuer]]\nissuer = "{issuing.NAME}"\naudience = "{issuing.AUDIENCE}"\n'
            f'jwks_file = "{keys}"\nroles = ["service"]\n'
        )
        gateway.terminate()
        gateway.start()
        place.gateways.append(gateway)
        yield gateway


_callers = iter(range(1, 250))


def new_caller() -> str:
    """The field by which the trusted proxy that we are tells a caller that nobody was yet."""
    return f"X-Forwarded-For: 192.0.2.{next(_callers)}"


def numbers(answer: Answer) -> tuple[int, int, int]:
    """Limit, remaining and reset, which all the fields of 6.2 agree on."""
    limit, left, reset = (
        int(answer.one(f"x-ratelimit-{name}")) for name in ("limit", "remaining", "reset")
    )
    policy = re.fullmatch(r'"([a-z]+)";q=(\d+);w=(\d+)', answer.one("ratelimit-policy"))
    state = re.fullmatch(r'"([a-z]+)";r=(\d+);t=(\d+)', answer.one("ratelimit"))
    assert policy is not None
    assert state is not None
    assert policy[1] == state[1]
    assert int(policy[2]) == limit
    assert (int(state[2]), int(state[3])) == (left, reset)
    assert 0 <= reset <= int(policy[3])
    return limit, left, reset


def ask(gateway: Gateway, hostname: str, *fields: str, count: int = 1) -> list[Answer]:
    """So many GETs on one connection."""
    lines = "".join(f"{field}\r\n" for field in fields)
    request = f"GET / HTTP/1.1\r\nHost: {hostname}\r\n{lines}\r\n".encode()
    answers = []
    with gateway.downstream() as client:
        for _ in range(count):
            client.send(request)
            answers.append(client.answer())
    return answers


def statuses(answers: list[Answer]) -> list[int]:
    return [answer.status for answer in answers]


def test_600_pass_and_the_next_is_told_how_long(place: Cluster, usual: Gateway) -> None:
    """R01, R02: 600 pass while Remaining counts down; then 429, and the app sees nothing."""
    host = place.host()
    caller = new_caller()
    answers = ask(usual, host.hostname, caller, count=600)
    assert statuses(answers) == [200] * 600
    assert [numbers(answer)[:2] for answer in answers] == [(600, n) for n in range(599, -1, -1)]
    (refused,) = ask(usual, host.hostname, caller)
    assert refused.status == 429
    assert numbers(refused)[:2] == (600, 0)
    wait = int(refused.one("retry-after"))
    assert 1 <= wait <= 60
    assert numbers(refused)[2] == wait
    assert len(host.upstream.requests) == 600


def test_the_promise_is_true(place: Cluster, short: Gateway) -> None:
    """R03: refused, then admitted after exactly the time it was told."""
    host = place.host()
    caller = new_caller()
    assert statuses(ask(short, host.hostname, caller, count=20)) == [200] * 20
    (refused,) = ask(short, host.hostname, caller)
    assert refused.status == 429
    wait = int(refused.one("retry-after"))
    assert 1 <= wait <= 3
    time.sleep(wait)
    assert statuses(ask(short, host.hostname, caller)) == [200]


def test_refused_requests_are_not_counted(place: Cluster, short: Gateway) -> None:
    """6.1: whoever keeps trying is let in as soon as whoever does not."""
    host = place.host()
    caller = new_caller()
    start = time.monotonic()
    ask(short, host.hostname, caller, count=20)
    while statuses(ask(short, host.hostname, caller)) == [429]:
        time.sleep(0.02)
    assert 2.9 < time.monotonic() - start < 5.5


def test_a_429_tells_a_program_and_a_person_what_to_do(place: Cluster, short: Gateway) -> None:
    """6.3: the body says which limit it is and how long to wait, as JSON or as a page."""
    host = place.host()
    caller = new_caller()
    ask(short, host.hostname, caller, count=20)
    (refused,) = ask(short, host.hostname, caller)
    error = json.loads(refused.body)["error"]
    wait = int(refused.one("retry-after"))
    assert (error["status"], error["reason"], error["retry_after"]) == (429, "rate_limited", wait)
    assert error["detail"] == (
        f"the limit of this app is 20 requests in 3 s; the next one fits in {wait} s"
    )
    assert error["request_id"] == refused.one("x-request-id")
    (page,) = ask(short, host.hostname, caller, "Accept: text/html")
    assert page.one("content-type").startswith("text/html")
    assert b"the next one fits in" in page.body
    assert page.one("cache-control") == "no-store"


def test_each_app_has_a_window(place: Cluster, short: Gateway) -> None:
    """R05: who has used up one app's window has another's whole."""
    one, other = place.host(), place.host()
    caller = new_caller()
    assert statuses(ask(short, one.hostname, caller, count=21)) == [200] * 20 + [429]
    assert numbers(ask(short, other.hostname, caller)[0])[:2] == (20, 19)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("2001:db8:1::1", "2001:db8:1:ffff::2", True),  # R06
        ("2001:db8:a::1", "2001:db8:b::1", False),
        ("::ffff:198.51.100.1", "198.51.100.1", True),  # R07
        ("64:ff9b::c633:6402", "198.51.100.2", True),
        ("198.51.100.3", "198.51.100.4", False),
    ],
)
def test_who_is_one_caller(
    place: Cluster, usual: Gateway, one: str, other: str, shared: bool
) -> None:
    """6.1: IPv6 per /48; IPv4-mapped and NAT64 addresses count as the IPv4 they hold."""
    host = place.host()
    ask(usual, host.hostname, f"X-Forwarded-For: {one}")
    (answer,) = ask(usual, host.hostname, f"X-Forwarded-For: {other}")
    assert numbers(answer)[1] == (598 if shared else 599)


def test_a_client_cannot_say_that_it_is_another(place: Cluster) -> None:
    """R09: X-Forwarded-For of whoever is no trusted proxy changes nothing."""
    gateway = place.gateway({"rates": SHORT})
    try:
        host = place.host()
        fields = [f"X-Forwarded-For: 203.0.113.{n}" for n in range(21)]
        found = [ask(gateway, host.hostname, field)[0].status for field in fields]
        assert found == [200] * 20 + [429]
    finally:
        gateway.stop()


def test_an_app_has_a_limit_of_its_own(place: Cluster, short: Gateway) -> None:
    """6.1: the platform gives an app another limit."""
    host = place.host(app=SMALL_APP)
    caller = new_caller()
    answers = ask(short, host.hostname, caller, count=4)
    assert statuses(answers) == [200, 200, 200, 429]
    assert numbers(answers[0])[:2] == (3, 2)


# ---- unknown hostnames ----


def test_unknown_hostnames_share_one_window(short: Gateway) -> None:
    """R10: after so many names that no app has, 429, whatever the next name is."""
    caller = new_caller()
    answers = [ask(short, f"no-{n}.{BASE_DOMAIN}", caller)[0] for n in range(8)]
    assert statuses(answers) == [404] * 6 + [429] * 2
    assert [numbers(answer)[:2] for answer in answers[:6]] == [(6, n) for n in range(5, -1, -1)]
    assert "hostnames that no app has" in json.loads(answers[6].body)["error"]["detail"]
    assert answers[6].one("retry-after")


def test_malformed_requests_keep_their_400(short: Gateway) -> None:
    """6.2: they are charged too, and are told what is wrong also when the window is full."""
    caller = new_caller()
    request = f"GET / HTTP/1.1\r\nHost: a b\r\n{caller}\r\n\r\n".encode()
    for left in (5, 4, 3, 2, 1, 0, 0, 0):
        with short.downstream() as client:
            client.send(request)
            answer = client.answer()
        assert answer.status == 400
        # What is no request tells nothing of its client either: the proxy's own window counts.
        assert numbers(answer)[0] == 6
        assert numbers(answer)[1] <= left or left == 0


def test_a_million_names_are_one_window(place: Cluster, short: Gateway) -> None:
    """R11: names of unknown hosts are neither remembered nor a label of a metric."""
    caller = new_caller()
    ask(short, "first.example", caller)
    time.sleep(1.1)  # it is brought up to date once a second
    callers = metric(short, "smartgw_limit_callers")
    with ThreadPoolExecutor(4) as pool:
        names = (f"n{number}.unknown.example" for number in range(400))
        list(pool.map(lambda name: ask(short, name, caller), names))
    time.sleep(1.1)
    assert metric(short, "smartgw_limit_callers") <= callers + 1
    assert b"unknown.example" not in short.internal("/metrics")[1]
    assert metric(short, 'smartgw_limited_total{window="unknown"}') > 0


# ---- every answer ----


def dripping(connection: Connection, request: Request) -> None:
    connection.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for _ in range(3):
        connection.send(b"8\r\ndata: 1\n\r\n")
        time.sleep(0.01)
    connection.send(b"0\r\n\r\n")


ANSWERS = {
    "200": (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), 200),
    "204": (answering(b"HTTP/1.1 204 No Content\r\n\r\n"), 204),
    "304": (answering(b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n'), 304),
    "404": (answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), 404),
    "500": (answering(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), 500),
    "stream": (each(dripping), 200),
    "malformed": (answering(b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n"), 502),
    "late": (each(lambda connection, request: time.sleep(1)), 504),
    "its own": (
        answering(
            b"HTTP/1.1 200 OK\r\nX-RateLimit-Limit: 7\r\nx_ratelimit_remaining: 7\r\n"
            b'RateLimit: "a";r=1;t=1\r\nRateLimit-Policy: "a";q=1;w=1\r\nRatelimit-Reset: 5\r\n'
            b"Content-Length: 0\r\n\r\n"
        ),
        200,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_of_an_app_says_what_is_left(
    place: Cluster, short: Gateway, name: str
) -> None:
    """6.2: each answer carries the fields, ours alone, streams and failures included."""
    script, status = ANSWERS[name]
    host = place.host(script)
    (answer,) = ask(short, host.hostname, new_caller())
    assert answer.status == status
    assert numbers(answer)[:2] == (20, 19)
    assert not answer.all("ratelimit-reset")


def test_an_upgrade_says_what_is_left(place: Cluster, short: Gateway) -> None:
    """6.2: a 101 carries the fields."""

    def upgrade(connection: Connection, request: Request) -> None:
        accept(connection, request)
        connection.more()

    host = place.host(each(upgrade))
    with short.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        answer = client.answer()
    assert answer.status == 101
    assert numbers(answer)[0] == 20


@pytest.mark.parametrize(
    ("request_line", "fields", "status"),
    [
        ("GET /.well-known/smartgw/challenge HTTP/1.1", "", 404),
        ("TRACE / HTTP/1.1", "", 405),
        ("GET / HTTP/3.0", "", 505),
        ("GET / HTTP/1.1", "Expect: nothing\r\n", 417),
        (f"GET /{'a' * 9000} HTTP/1.1", "", 414),
        ("GET / HTTP/1.1", f"X: {'a' * 17000}\r\n", 431),
        ("POST / HTTP/1.1", "Transfer-Encoding: gzip\r\n", 400),
        ("HEAD / HTTP/1.1", "", 503),
    ],
)
def test_every_answer_of_ours_says_what_is_left(
    place: Cluster, short: Gateway, request_line: str, fields: str, status: int
) -> None:
    """6.2: our own errors carry the fields, before an app is known and after."""
    host = place.host()
    host.stop()
    wait_until(lambda: short.state(host.host_id) != "healthy")
    time.sleep(0.1)
    with short.downstream() as client:
        client.send(f"{request_line}\r\nHost: {host.hostname}\r\n{fields}\r\n".encode())
        answer = client.answer(request_line.partition(" ")[0])
    assert answer.status == status
    assert numbers(answer)[0] in (6, 20)


def test_who_sends_no_request_in_time_is_told_too(place: Cluster) -> None:
    """6.2: a 408 carries the fields, and so does the refusal of a connection too many."""
    gateway = place.gateway(
        {
            "rates": SHORT,
            "deadlines": {"head": 0.2},
            "limits": {"connections_per_address": 2},
        }
    )
    try:
        with gateway.downstream() as slow:
            slow.send(b"GET / HT")
            assert numbers(slow.answer())[:2] == (6, 5)
        with gateway.downstream(), gateway.downstream(), gateway.downstream() as shed:
            answer = shed.answer()
            assert answer.status == 503
            assert numbers(answer)[:2] == (6, 5)
    finally:
        gateway.stop()


def test_a_preflight_is_free(place: Cluster, short: Gateway) -> None:
    """6.2: preflights that the gateway answers are free, and say what is left."""
    host = place.host()
    caller = new_caller()
    fields = (caller, "Origin: https://a.example", "Access-Control-Request-Method: PUT")
    ask(short, host.hostname, caller, count=18)
    for _ in range(5):
        answer = short.ask(host.hostname, "/", "OPTIONS", *fields)
        assert answer.status == 204
        assert numbers(answer)[:2] == (20, 2)
    ask(short, host.hostname, caller, count=2)
    assert short.ask(host.hostname, "/", "OPTIONS", *fields).status == 204


def test_reset_is_0_when_nothing_is_counted(place: Cluster, short: Gateway) -> None:
    """6.2: Reset is 0 when nothing is counted."""
    host = place.host()
    fields = (new_caller(), "Origin: https://a.example", "Access-Control-Request-Method: PUT")
    assert numbers(short.ask(host.hostname, "/", "OPTIONS", *fields)) == (20, 20, 0)


def test_many_connections_at_once_take_no_more(place: Cluster, usual: Gateway) -> None:
    """R13: 200 concurrent requests with 100 left: exactly 100 pass."""
    host = place.host()
    caller = new_caller()
    ask(usual, host.hostname, caller, count=500)
    clients = [usual.downstream() for _ in range(200)]
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n{caller}\r\n\r\n".encode()
    for client in clients:
        client.send(request)
    found = [client.answer().status for client in clients]
    for client in clients:
        client.close()
    assert found.count(200) == 100
    assert found.count(429) == 100


# ---- the gateway's own hostnames ----


def own(gateway: Gateway, target: str, *fields: str) -> Answer:
    return gateway.ask(OWN, target, "GET", *fields)


def test_calls_to_our_own_hostnames_share_one_window(short: Gateway) -> None:
    """6.2: calls to our own hostnames, 401s included, share one window per address."""
    caller = new_caller()
    wrong = "Authorization: Bearer none"
    found = [own(short, "/healthz", caller) for _ in range(4)]
    found += [own(short, "/api/v3/hosts", caller, wrong) for _ in range(4)]
    assert statuses(found) == [200] * 4 + [401] * 4
    assert [numbers(answer)[:2] for answer in found] == [(8, n) for n in range(7, -1, -1)]
    assert own(short, "/healthz", caller).status == 429
    assert own(short, "/api/v3/hosts", caller, wrong).status == 429


def test_services_have_a_window_of_their_own(short: Gateway) -> None:
    """6.2: a service passes when its address has used up its window, and does not use it up."""
    caller = new_caller()
    service = f"Authorization: Bearer {issuing.token()}"
    found = [own(short, "/api/v3/hosts", caller, service) for _ in range(10)]
    assert statuses(found) == [200] * 10
    left = [numbers(answer)[1] for answer in found]
    assert left == list(range(left[0], left[0] - 10, -1))
    assert found[0].one("ratelimit-policy").startswith('"service";')
    assert numbers(own(short, "/healthz", caller))[:2] == (8, 7)
    for _ in range(8):
        own(short, "/healthz", caller)
    assert own(short, "/healthz", caller).status == 429
    assert own(short, "/api/v3/hosts", caller, service).status == 200
    for path, status in (("/healthz", 200), ("/nowhere", 404)):
        assert own(short, path, caller, service).status == status
        assert own(short, path, caller, "Authorization: Bearer none").status == 429


def test_credentials_are_not_looked_at_without_end(place: Cluster) -> None:
    """6.2: an address that has used up its window has few more credentials looked at."""
    rates = {**SHORT, "window": 60, "services": 12}
    gateway = place.gateway({"rates": rates, "hostnames": [OWN]})
    try:
        wrong = "Authorization: Bearer none"
        found = [own(gateway, "/api/v3/hosts", wrong) for _ in range(40)]
        assert statuses(found) == [401] * 8 + [429] * 32
        assert metric(gateway, 'smartgw_limited_total{window="gateway"}') == 32
        # The last 20 never got as far as the API, where each would cost a signature.
        assert metric(gateway, "smartgw_upstream_connections_total") < 40
    finally:
        gateway.stop()
