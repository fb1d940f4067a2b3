"""Writes are executed once: upstreams that die at every stage of an exchange, and a second host
that may serve.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gateway import Gateway, Host, MakeHost
from tests.raw_http import Answer, BadAnswer
from tests.upstreams import Connection, Request, serve

METHODS = ("POST", "PUT", "PATCH", "DELETE", "PROPPATCH")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
# Stage -> what the host does with a request whose head it has read.
STAGES = (
    "after-head",
    "mid-body",
    "after-body",
    "after-interim",
    "mid-status-line",
    "mid-response-head",
    "before-response-body",
    "mid-response-body",
    "mid-chunk",
    "after-answer",
)
REQUESTS = 1000


def die_at(stage: str, connection: Connection, request: Request) -> None:
    """Go through the exchange up to `stage`; the caller then ends the connection."""
    if stage == "after-head":
        return
    if stage == "mid-body":
        if request.all("transfer-encoding") or int(request.one("content-length") or 0) > 1:
            connection.take(1)
        return
    connection.read_body(request)
    sent = {
        "after-interim": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        "mid-status-line": b"HTTP/1.1 2",
        "mid-response-head": b"HTTP/1.1 200 OK\r\nContent-Le",
        "before-response-body": OK,
        "mid-response-body": OK + b"o",
        "mid-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "after-answer": OK + b"ok",
    }.get(stage)
    if sent:
        connection.send(sent)


def dying(connection: Connection) -> None:
    """`/<stage>/<fin|reset>/<n>`: die there."""
    while True:
        request = connection.head()
        _, stage, how, _ = request.raw_target.decode().split("/")
        die_at(stage, connection, request)
        if how == "reset":
            connection.reset()
        return


def write(gateway: Gateway, hostname: str, number: int, raw_target: str) -> Answer | None:
    """One write with one of four kinds of body; None when the connection ended without an
    answer.
    """
    method = METHODS[number % len(METHODS)]
    kind = number % 4
    head = f"{method} {raw_target} HTTP/1.1\r\nHost: {hostname}\r\n"
    body = b""
    if kind == 0:
        body = b"x" * 10
    elif kind == 1:
        body = b"x" * 200_000
    if kind == 2:
        head += "Transfer-Encoding: chunked\r\n\r\n"
        body = b"5\r\nhello\r\n" * 3 + b"0\r\n\r\n"
    elif kind == 3 and method == "DELETE":
        head += "\r\n"
    else:
        head += f"Content-Length: {len(body)}\r\n\r\n"
    with gateway.downstream() as client:
        # an early answer may come with a reset of what nobody reads
        with contextlib.suppress(OSError):
            client.send(head.encode(), body)
        try:
            return client.answer(method)
        except BadAnswer:
            return None


def arrivals(*hosts: Host) -> Counter[bytes]:
    """How often each raw target arrived, over all hosts."""
    return Counter(r.raw_target for host in hosts for r in host.upstream.requests)


def test_no_write_is_executed_twice(gateway: Gateway, make_host: MakeHost) -> None:
    """3.7, 5: 1,000 writes of all methods, upstreams that die at every stage: each arrives at
    most once.
    """
    first = make_host(dying)
    second = make_host(dying, app=first.app)

    def one(number: int) -> tuple[str, Answer | None]:
        stage = STAGES[number // 2 % len(STAGES)]
        how = ("fin", "reset")[number % 2]
        raw_target = f"/{stage}/{how}/{number}"
        return stage, write(gateway, first.hostname, number // 20, raw_target)

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(one, range(REQUESTS)))
    counts = arrivals(first, second)
    assert [raw for raw, count in counts.items() if count > 1] == []
    assert len(outcomes) == REQUESTS
    # most of them must have reached a host, or nothing was tried
    assert len(counts) > REQUESTS * 0.9, Counter(a.status for _, a in outcomes if a)
    for stage, answer in outcomes:
        if stage == "after-answer" and answer is not None and answer.status == 200:
            assert (answer.status, answer.complete) == (200, True)
        elif answer is not None:
            whole_answer = answer.status == 200 and answer.complete
            assert not whole_answer, stage
            if answer.status == 502:
                assert answer.one("x-smartgw-request-sent") in ("partial", "full", "none"), stage


def accept_then_close(connection: Connection) -> None:
    """Accept and close."""


def accept_then_reset(connection: Connection) -> None:
    """Accept and reset."""
    connection.reset()


def close_after_challenge_came(connection: Connection) -> None:
    """Read a part of the challenge and close."""
    connection.more()


def reset_after_challenge_came(connection: Connection) -> None:
    """Read a part of the challenge and reset."""
    connection.more()
    connection.reset()


@pytest.mark.parametrize(
    "fault",
    [
        None,
        accept_then_close,
        accept_then_reset,
        close_after_challenge_came,
        reset_after_challenge_came,
    ],
)
def test_nothing_sent_and_the_second_host_serves(
    gateway: Gateway, make_host: MakeHost, fault: object
) -> None:
    """3.7: connect refused or challenge failed: no byte of the write was sent, the second host
    serves.
    """
    first = make_host()
    second = make_host(app=first.app)
    for number in range(20):
        if number % 5 == 0:
            # anew: the fault took the host out of choice, and its connections must be new ones
            first.upstream.script = serve
            if fault is None and number:
                first.upstream.listen()
            first.publish()
            first.cluster.wait_healthy(first)
            first.upstream.kill()
            if fault is not None:
                first.upstream.script = fault  # type: ignore[assignment]
                first.upstream.listen()
        answer = write(gateway, first.hostname, number, f"/none/fin/{number}")
        assert answer is not None
        assert answer.status == 200
    assert set(arrivals(first, second).values()) == {1}
    if fault is None:
        first.upstream.listen()


def test_died_after_a_good_challenge(gateway: Gateway, make_host: MakeHost) -> None:
    """3.7: a host that proves itself and dies before it read the write: at most once, never a
    false 200.
    """

    def script(connection: Connection) -> None:
        connection.prove()
        if connection.number % 2:
            connection.reset()

    good = make_host()
    bad = make_host(app=good.app)
    bad.upstream.script = script
    bad.upstream.kill()
    bad.upstream.listen()
    statuses: Counter[int] = Counter()
    for number in range(40):
        answer = write(gateway, good.hostname, number, f"/proved/fin/{number}")
        statuses[answer.status if answer else 0] += 1
    counts = arrivals(good, bad)
    assert max(counts.values()) == 1
    assert set(statuses) <= {200, 502}, statuses
    assert statuses[200] == len(counts)


@pytest.mark.parametrize("how", ["fin", "reset", "read, then reset"])
def test_kept_connection_closed_about_when_the_write_comes(
    gateway: Gateway, make_host: MakeHost, how: str
) -> None:
    """3.7: a kept connection that ends just before, during or after a write: it is executed at
    most once.
    """
    pause = random.Random(1)

    def script(connection: Connection) -> None:
        while True:
            request = connection.request()
            connection.reply(b"ok")
            if not request.raw_target.startswith(b"/warm"):
                continue
            if how == "read, then reset":
                connection.request()
                connection.reset()
                return
            time.sleep(pause.choice((0, 0, 0.0005, 0.001, 0.002)))
            if how == "reset":
                connection.reset()
            return

    host = make_host(script)
    statuses: Counter[int] = Counter()

    def one(number: int) -> None:
        method = METHODS[number % len(METHODS)]
        with gateway.downstream() as client:
            client.send(f"GET /warm HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            assert client.answer().status in (200, 502)
            time.sleep(pause.choice((0, 0.0005, 0.001, 0.01)))
            length = "" if number % 2 else "Content-Length: 1\r\n"
            client.send(
                f"{method} /w/{number} HTTP/1.1\r\nHost: {host.hostname}\r\n{length}\r\n".encode(),
                b"" if number % 2 else b"1",
            )
            answer = client.answer(method)
            statuses[answer.status] += 1
            if answer.status == 502:
                assert answer.one("x-smartgw-request-sent") in ("none", "partial", "full")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(100)))
    counts = {raw: n for raw, n in arrivals(host).items() if raw.startswith(b"/w/")}
    assert [raw for raw, count in counts.items() if count > 1] == []
    assert set(statuses) <= {200, 502}
