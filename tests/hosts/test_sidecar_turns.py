"""What one peer of a sidecar sends in masses never keeps the others waiting.

Counted in steps of work between two turns of the event loop, never in seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from smartgw_hosts import challenge, http1, sidecar_answers, sidecar_app, sidecar_http
from smartgw_hosts.chunked import ChunkedBody, chunk, last_chunk
from smartgw_hosts.http1 import Bounds
from tests.hosts.challenges import ask, proves
from tests.hosts.sidecars import Running, sidecar
from tests.upstreams import Connection, Upstream, each, serve

GET = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n"
TINY = b"1\r\nx\r\n"


class Turns:
    """Which turn of a loop it is, and how much was done in each."""

    def __init__(self, running: Running) -> None:
        self._loop = running.loop
        self._number = 0
        self._over = False
        self.work = Counter[int]()
        running.call(self._turn)

    def _turn(self) -> None:
        self._number += 1
        if not self._over:
            self._loop.call_soon(self._turn)

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose calls are counted."""

        def counted(*args: Any, **named: Any) -> Any:
            self.work[self._number] += 1
            return function(*args, **named)

        return counted

    def end(self) -> None:
        self._over = True


@contextmanager
def watched(app: Upstream) -> Iterator[tuple[Running, Turns]]:
    """A sidecar before the app, and the turns of its loop."""
    try:
        with sidecar(app.port) as running:
            turns = Turns(running)
            yield running, turns
            turns.end()
    finally:
        app.close()


def test_empty_lines() -> None:
    """3.11: one empty line before a request is forgiven, as RFC 9112 2.2 has it; not a flood."""
    app = Upstream(serve)
    with watched(app) as (running, _):
        with running.connect() as client:
            for before in (b"", b"\r\n", b""):
                client.send(before)
                client.send(GET)
                assert client.answer().status == 200
        for parts in ((b"\r\n" * 100_000,), (b"\r\n", b"\r\n")):
            with running.connect() as client:
                for part in parts:
                    client.send(part)
                assert client.answer().status == 400
                assert client.closed(5)


def test_pipelined_challenges(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: of pipelined requests one a turn is answered; each still has its answer, in order."""
    with watched(Upstream(serve)) as (running, turns):
        counted = turns.counting(sidecar_answers.answer_challenge)
        monkeypatch.setattr(sidecar_http, "answer_challenge", counted)
        asked = [ask() for _ in range(200)]
        with running.connect() as client:
            client.send(b"".join(map(challenge.request, asked)))
            for one in asked:
                answer = client.answer("POST")
                assert proves(one, answer.status, answer.body)
    assert turns.work.total() == 200
    assert max(turns.work.values()) == 1


@pytest.mark.parametrize("side", ["request", "answer"])
def test_tiny_chunks(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """3.11: of a body in very many chunks a part a turn is read; it passes unchanged."""
    count = 100_000

    def flood(connection: Connection) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send(TINY * count, last_chunk([]))

    app = Upstream(each(lambda connection, _: flood(connection)) if side == "answer" else serve)
    with watched(app) as (running, turns):
        counted = turns.counting(ChunkedBody.feed_some)
        monkeypatch.setattr(ChunkedBody, "feed_some", lambda *args: counted(*args))
        with running.connect(timeout=60) as client:
            if side == "answer":
                client.send(GET)
                assert client.answer().body == b"x" * count
            else:
                client.send(b"POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n")
                client.send(TINY * count, last_chunk([]))
                assert client.answer("POST").status == 200
                assert app.requests[0].body == b"x" * count
    # One more where new bytes come in the turn that reads the last of those before.
    assert max(turns.work.values()) <= 2
    assert turns.work.total() > 20


def test_many_interim_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11: of an app's interim answers some a turn are read; all of them pass."""
    count = 5_000

    def script(connection: Connection) -> None:
        connection.request()
        connection.send(b"HTTP/1.1 103 Early\r\n\r\n" * count)
        connection.reply(b"ok")

    with watched(Upstream(script)) as (running, turns):
        counted = turns.counting(http1.parse_response)
        monkeypatch.setattr("smartgw_hosts.sidecar_app.parse_response", counted)
        with running.connect(timeout=60) as client:
            client.send(GET)
            answer = client.answer()
            assert (answer.status, answer.body) == (200, b"ok")
            assert len(answer.interim) == count
    assert turns.work.total() == count + 1
    assert max(turns.work.values()) <= sidecar_app.HEADS


def test_flood_that_the_app_ends_with() -> None:
    """3.6: what an app sent before it ended the connection passes whole, however much it is."""

    def script(connection: Connection) -> None:
        connection.request()
        connection.send(b"HTTP/1.1 103 Early\r\n\r\n" * 400)
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send(TINY * 20_000, last_chunk([]))

    with watched(Upstream(script)) as (running, _), running.connect(timeout=60) as client:
        client.send(GET)
        answer = client.answer()
        assert (answer.status, answer.body) == (200, b"x" * 20_000)


@pytest.mark.parametrize("size", [1, 255, 256, 8_192, 100_000])
def test_feed_some(size: int) -> None:
    """3.11: a part of a body is fed at a time, by its number of chunks; all of it in the end."""
    times = max(300_000 // size, 1)
    data = b"HEAD" + chunk(b"x" * size) * times + last_chunk([b"a: b"]) + b"NEXT"
    body = ChunkedBody(Bounds())
    payload, place, steps = b"", 4, 0
    while not body.done:
        before = body.chunks
        part, place = body.feed_some(data, place)
        assert body.chunks - before < 2_500
        payload += part
        steps += 1
    assert payload == b"x" * (size * times)
    assert (data[place:], body.trailers) == (b"NEXT", [b"a: b"])
    assert (steps > 10) == (size == 1)
