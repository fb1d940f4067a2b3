"""What fields arrive on either side: removed, replaced, appended, kept (contract 3.5, 3.10)."""

from __future__ import annotations

import json

import pytest

from tests.gateway import BASE_DOMAIN, Gateway, MakeHost
from tests.raw_http import Answer
from tests.upstreams import HANDSHAKE, Connection, Request, accept, answering, each

REMOVED = (
    "X-Real-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
    "X-Host",
    "X-Original-Host",
    "X-HTTP-Host-Override",
    "X-Smartgw-Forward",
    "X-Smartgw-Anything",
    "X-Failover-Cluster",
    "Keep-Alive",
    "Proxy-Connection",
)


def forwarded(gateway: Gateway, make_host: MakeHost, *fields: str) -> Request:
    """One GET with these fields, as the host saw it."""
    host = make_host()
    assert gateway.ask(host.hostname, "/", "GET", *fields).status == 200
    (request,) = host.upstream.requests
    return request


def answered(gateway: Gateway, make_host: MakeHost, *lines: str) -> Answer:
    """An answer whose head has these lines, as the client saw it."""
    raw = "\r\n".join(["HTTP/1.1 200 OK", *lines, "Content-Length: 2", "", "ok"]).encode("latin1")
    return gateway.ask(make_host(answering(raw)).hostname)


def test_request_fields_that_are_removed(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: names that would be believed and names of ours never arrive, with `_` for `-`
    neither.
    """
    names = [*REMOVED, *(name.replace("-", "_") for name in REMOVED), "X_smartgw-Mixed"]
    request = forwarded(gateway, make_host, *(f"{name}: secret" for name in names), "X-Own: kept")
    assert b"secret" not in request.head
    assert request.one("x-own") == "kept"


def test_forwarding_fields_are_ours(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: a client's own X-Forwarded-* and Forwarded are replaced, in every spelling."""
    forged = [
        *("X-Forwarded-For: 6.6.6.6", "x_forwarded_for: 6.6.6.6", "X-Forwarded_Proto: 6.6.6.6"),
        *("X-Forwarded-Host: 6.6.6.6", "Forwarded: for=6.6.6.6", "X-Forwarded-Proto: 6.6.6.6"),
    ]
    request = forwarded(gateway, make_host, *forged)
    assert b"6.6.6.6" not in request.head
    assert request.one("x-forwarded-for") == "127.0.0.1"
    assert request.one("x-forwarded-proto") == "http"
    assert request.one("x-forwarded-host") == request.one("host")
    assert "for=127.0.0.1" in request.one("forwarded")


def test_via_is_appended(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: Via is appended to, never replaced."""
    request = forwarded(gateway, make_host, "Via: 1.0 fred", "Via: 1.1 p.example")
    values = [part.strip() for value in request.all("via") for part in value.split(b",")]
    assert values[:2] == [b"1.0 fred", b"1.1 p.example"]
    assert len(values) == 3


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc.DEF_1:2-3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("", False)],
)
def test_request_id(gateway: Gateway, make_host: MakeHost, given: str, kept: bool) -> None:
    """3.5: X-Request-Id is kept if it is well-formed, else made; it goes upstream and back."""
    host = make_host(
        answering(b"HTTP/1.1 200 OK\r\nX-Request-Id: app\r\nContent-Length: 0\r\n\r\n")
    )
    answer = gateway.ask(host.hostname, "/", "GET", f"X-Request-Id: {given}")
    (request,) = host.upstream.requests
    assert request.one("x-request-id") == answer.one("x-request-id")
    assert (request.one("x-request-id") == given) == kept


def test_two_request_ids_are_none(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: with two of them neither is taken."""
    request = forwarded(gateway, make_host, "X-Request-Id: one", "X-Request-Id: two")
    assert request.one("x-request-id") not in ("one", "two", "")


def test_answer_fields_that_are_removed(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: the app's copies of our own names are gone, with `_` for `-` too; the rest arrives."""
    names = (
        *("X-Smartgw-Request-Sent", "x_smartgw_any", "X-Failover-Cluster", "X_Failover_Cluster"),
        *("X-RateLimit-Limit", "X-RateLimit-Anything", "RateLimit", "RateLimit-Policy"),
        *("Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Upgrade"),
    )
    answer = answered(gateway, make_host, *(f"{n}: secret" for n in names), "X-Own: kept")
    assert b"secret" not in answer.head
    assert answer.one("x-own") == "kept"


@pytest.mark.parametrize("domain", [BASE_DOMAIN, f".{BASE_DOMAIN}", BASE_DOMAIN.upper(), "test"])
def test_cookie_for_all_apps(gateway: Gateway, make_host: MakeHost, domain: str) -> None:
    """3.5: a Domain that names a base domain or one above it is taken out of Set-Cookie."""
    answer = answered(
        gateway, make_host, f"Set-Cookie: a=1; Domain={domain}; Path=/; HttpOnly",
        f"set-cookie: b=2;domain = {domain}", f"Set-Cookie: c=3; Path=/; Domain=x.{BASE_DOMAIN}",
    )  # fmt: skip
    cookies = [value.decode() for value in answer.all("set-cookie")]
    assert len(cookies) == 3
    for cookie in cookies[:2]:
        assert "domain" not in cookie.lower()
    assert cookies[0].startswith("a=1;")
    assert "HttpOnly" in cookies[0]
    assert cookies[2] == f"c=3; Path=/; Domain=x.{BASE_DOMAIN}"


def test_bytes_of_values_pass(gateway: Gateway, make_host: MakeHost) -> None:
    """3.5: values that are no ASCII pass byte for byte, and so does an odd reason phrase."""
    raw = b"HTTP/1.1 299 Sonder \xe4\r\nX-A: \xe4\xff\r\nContent-Length: 0\r\n\r\n"
    host = make_host(answering(raw))
    answer = gateway.ask(host.hostname, "/", "GET", "X-B: \xe4\xff")
    assert (answer.status, answer.reason) == (299, b"Sonder \xe4")
    assert answer.all("x-a") == [b"\xe4\xff"]
    assert host.upstream.requests[0].all("x-b") == [b"\xe4\xff"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html"),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("", "application/json"),
    ],
)
def test_errors_of_ours(gateway: Gateway, accept: str, kind: str) -> None:
    """3.10: JSON for API clients, a page for browsers; reason, request id, Proxy-Status,
    no-store.
    """
    answer = gateway.ask(f"nobody.{BASE_DOMAIN}", "/<x>", "GET", f"Accept: {accept}")
    assert answer.status == 404
    assert answer.one("content-type").startswith(kind)
    assert answer.one("cache-control") == "no-store"
    assert answer.one("proxy-status").startswith("smartgw")
    request_id = answer.one("x-request-id")
    assert request_id.encode() in answer.body
    assert b"unknown_host" in answer.body
    assert b"<x>" not in answer.body
    if kind == "application/json":
        assert json.loads(answer.body)["error"]["request_id"] == request_id


def test_error_to_head_has_no_body(gateway: Gateway) -> None:
    """RFC 9110 9.3.2: our own answer to HEAD has no body and leaves the connection usable."""
    with gateway.downstream() as client:
        for _ in range(2):
            client.send(f"HEAD / HTTP/1.1\r\nHost: nobody.{BASE_DOMAIN}\r\n\r\n".encode())
            assert client.answer("HEAD").status == 404
            assert not client.buffer


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
)
def test_answers_without_a_body(
    gateway: Gateway, make_host: MakeHost, method: str, head: bytes
) -> None:
    """RFC 9112 6.3: such an answer ends with its head, and both connections go on."""
    host = make_host(answering(head))
    with gateway.downstream() as client:
        for _ in range(3):
            client.send(f"{method} / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            answer = client.answer(method)
            assert answer.status == int(head.split()[1])
            if b"Content-Length" in head:
                assert answer.one("content-length") == "5"
    assert {r.connection for r in host.upstream.requests} != set()
    assert len({r.connection for r in host.upstream.requests}) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_http_1_0_client(gateway: Gateway, make_host: MakeHost, keep: bool) -> None:
    """RFC 9112 9.3: a 1.0 client gets no chunks, and its connection is kept only when it asks."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    host = make_host(answering(raw))
    field = "Connection: keep-alive\r\n" if keep else ""
    with gateway.downstream() as client:
        client.send(f"GET / HTTP/1.0\r\nHost: {host.hostname}\r\n{field}\r\n".encode())
        answer = client.answer()
        assert answer.all("transfer-encoding") == []
        assert (answer.body, answer.complete) == (b"ok", True)
        assert client.closed(1)
    (request,) = host.upstream.requests
    assert request.head.startswith(b"GET / HTTP/1.1")


def test_http_1_0_host(gateway: Gateway, make_host: MakeHost) -> None:
    """RFC 9112 9.3: an answer of a 1.0 host is re-framed for a 1.1 client, whose connection
    stays.
    """

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.0 200 OK\r\n\r\nok")
        raise EOFError

    host = make_host(each(script))
    with gateway.downstream() as client:
        for _ in range(2):
            client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            answer = client.answer()
            assert (answer.status, answer.body, answer.framing) == (200, b"ok", "chunked")


@pytest.mark.parametrize("te", ["trailers", "trailers, deflate;q=0.5", "gzip"])
def test_te_is_not_passed_on(gateway: Gateway, make_host: MakeHost, te: str) -> None:
    """RFC 9110 10.1.4: TE is hop-by-hop; of it only `trailers` may go on, as our own."""
    request = forwarded(gateway, make_host, f"TE: {te}", "Connection: TE")
    assert request.one("te") in ("", "trailers")


def test_wide_cookies_of_interim_answers_and_upgrades(
    gateway: Gateway, make_host: MakeHost
) -> None:
    """3.5: Domain goes from a Set-Cookie that names a base domain, on a 103 and a 101 too."""

    def script(connection: Connection, request: Request) -> None:
        cookie = f"Set-Cookie: a=b; Domain=.{BASE_DOMAIN}; Path=/\r\n".encode()
        connection.send(b"HTTP/1.1 103 Early Hints\r\n", cookie, b"\r\n")
        accept(connection, request, fields=cookie)
        connection.ended(5)
        raise EOFError

    host = make_host(each(script))
    with gateway.downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        answer = client.final_head()
    assert (answer.status, [interim.status for interim in answer.interim]) == (101, [103])
    assert [one.one("set-cookie") for one in (*answer.interim, answer)] == ["a=b; Path=/"] * 2
