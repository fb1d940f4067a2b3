"""The guard in the sidecar: a write for another cluster's app never reaches the app (4.8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smartgw_hosts import challenge
from smartgw_hosts.owner import epoch, owner
from tests.gateway import wait_until
from tests.hosts.challenges import ask, proves
from tests.hosts.sidecars import Running, sidecar
from tests.raw_http import Answer
from tests.upstreams import Script, Upstream, answering, serve
from tests.validators import LiveValidator, answer, list_text

IDS = ("c1", "c2", "c3")
OURS = next(f"app-{n}" for n in range(100) if owner(f"app-{n}", IDS) == "c1")
THEIRS = next(f"app-{n}" for n in range(100) if owner(f"app-{n}", IDS) == "c2")
MARK = f"c2; epoch={epoch(IDS)}"


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveValidator]:
    """What gives the list of three clusters."""
    running = LiveValidator()
    running.says = answer(list_text(*IDS), 200, "Age: 0")
    yield running
    running.close()


@contextmanager
def front(
    *gateways: LiveValidator, script: Script = serve, raw: bool = False
) -> Iterator[tuple[Upstream, Running]]:
    """An app and the guarded sidecar before it, which has the list if there is one."""
    app = Upstream(script)
    urls = [gateway.url for gateway in gateways]
    try:
        with sidecar(app.port, raw=raw, guarded=((OURS, THEIRS), urls)) as running:
            guard = running.sidecar.guard
            if guard is not None and gateways:
                wait_until(lambda: guard.owner_of(OURS))
            yield app, running
    finally:
        app.close()


def head(app: str, method: str = "POST", *lines: str, length: int = 0) -> bytes:
    """A request head for an app."""
    fields = [f"{method} / HTTP/1.1", f"Host: {app}.smart-app.example", *lines]
    return "\r\n".join([*fields, f"Content-Length: {length}", "", ""]).encode()


def asked(running: Running, *request: bytes, method: str = "POST") -> Answer:
    """The answer to a request on a connection of its own."""
    with running.connect() as client:
        client.send(*request)
        return client.answer(method)


def assert_refused(got: Answer) -> None:
    """It is the guard's 421, whole."""
    assert (got.status, got.one("x-smartgw-owner")) == (421, MARK)
    error = json.loads(got.body)["error"]
    assert (error["status"], error["reason"]) == (421, "not_owner")
    assert (error["owner"], error["epoch"]) == ("c2", epoch(IDS))
    assert got.one("cache-control") == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "MKCOL", "post"])
def test_a_write_is_refused(gateway: LiveValidator, method: str) -> None:
    """4.8: at a non-owner 421 with owner and epoch, marked as the SDK's, nothing done."""
    with front(gateway) as (app, running):
        assert_refused(asked(running, head(THEIRS, method, length=2), b"{}"))
        assert asked(running, head(OURS, method, length=2), b"{}").status == 200
    assert [request.one("host").partition(".")[0] for request in app.requests] == [OURS]
    assert app.accepted == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reads_pass(gateway: LiveValidator, method: str) -> None:
    """4.8: the rule is for writes; reads are done wherever they come, without a flag."""
    with front(gateway) as (app, running):
        got = asked(running, head(THEIRS, method), method=method)
        assert (got.status, got.all("x-smartgw-owner")) == (200, [])
    assert len(app.requests) == 1


def test_the_gateway_names_the_app(gateway: LiveValidator) -> None:
    """4.8: for a hostname that is not the app's label the gateway's X-Smartgw-App counts."""
    with front(gateway) as (app, running):
        assert_refused(asked(running, head("shop", "POST", f"X-Smartgw-App: {THEIRS}")))
        assert asked(running, head(THEIRS, "POST", f"X-Smartgw-App: {OURS}")).status == 200
    assert app.requests[0].one("x-smartgw-app") == OURS


def test_the_connection_goes_on(gateway: LiveValidator) -> None:
    """4.8, RFC 9112 9.3: the body of a refused write is never read as a request."""
    smuggled = head(OURS, "DELETE")
    with front(gateway) as (app, running), running.connect() as client:
        for _ in range(2):
            client.send(head(THEIRS, length=len(smuggled)), smuggled[:10])
            assert_refused(client.answer("POST"))
            client.send(smuggled[10:], head(OURS))
            assert client.answer("POST").status == 200
        client.send(
            head(THEIRS, "POST", "Transfer-Encoding: chunked").replace(
                b"Content-Length: 0\r\n", b""
            )
        )
        assert_refused(client.answer("POST"))
        client.send(b"5\r\nhello\r\n0\r\n\r\n")
        question = ask()
        client.send(challenge.request(question))
        got = client.answer("POST")
        assert proves(question, got.status, got.body)
    assert [request.method for request in app.requests] == ["POST", "POST"]


def test_expect(gateway: LiveValidator) -> None:
    """4.8, RFC 9110 10.1.1: who waits for 100 gets the 421 instead, and sends no body."""
    with front(gateway) as (app, running), running.connect() as client:
        client.send(head(THEIRS, "PUT", "Expect: 100-continue", length=1_000_000))
        got = client.answer("PUT")
        assert_refused(got)
        assert got.interim == []
        assert got.one("connection") == "close"
        assert client.closed(5)
    assert app.requests == []


def test_without_a_list_writes_are_flagged() -> None:
    """4.8: a host without a list accepts and flags."""
    with front() as (app, running):
        got = asked(running, head(THEIRS))
        assert (got.status, got.all("x-smartgw-owner")) == (200, [])
        assert got.one("x-smartgw-owner-unknown") == "yes"
        read = asked(running, head(THEIRS, "GET"), method="GET")
        assert read.all("x-smartgw-owner-unknown") == []
        guard = running.sidecar.guard
        assert guard is not None
        assert guard.counters == {"refused": 0, "unsure": 1}
    assert len(app.requests) == 2


def test_a_flag_beside_other_lines_of_ours() -> None:
    """4.8: the flag stands in an answer that is re-framed, and that ends its connection, too."""
    with front(script=answering(b"HTTP/1.1 200 OK\r\n\r\nok", then_close=True)) as (_, running):
        got = asked(running, head(THEIRS, "POST", "Connection: close"))
        assert (got.body, got.framing, got.one("connection")) == (b"ok", "chunked", "close")
        assert got.one("x-smartgw-owner-unknown") == "yes"


def test_an_app_cannot_set_the_mark(gateway: LiveValidator) -> None:
    """4.8: the mark is the SDK's: an app behind the sidecar that sets it is not believed."""
    forged = b"x-smartgw-owner: c2; epoch=0\r\nX_Smartgw_Owner: c2\r\n"
    forged += b"X-Smartgw-Owner-Unknown: yes\r\n"
    said = b"HTTP/1.1 421 Misdirected\r\n" + forged + b"Content-Length: 0\r\n\r\n"
    with front(gateway, script=answering(said)) as (_, running):
        for method in ("POST", "GET"):
            got = asked(running, head(OURS, method), method=method)
            assert got.status == 421
            assert b"owner" not in got.head.lower()


def test_raw_relays_everything(gateway: LiveValidator) -> None:
    """4.8: with --raw the sidecar refuses nothing: it knows no request."""
    with front(gateway, raw=True) as (app, running):
        got = asked(running, head(THEIRS))
        assert (got.status, got.all("x-smartgw-owner")) == (200, [])
    assert len(app.requests) == 1
