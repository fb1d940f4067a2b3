"""The middleware, driven as a server of its kind drives it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest
from aiohttp import web

from smartgw_hosts import challenge, middleware
from smartgw_hosts.challenge import PATH
from smartgw_hosts.middleware import SmartgwASGI, aiohttp_middleware
from tests.hosts.challenges import ask, body_of, proves, responder

Event = MutableMapping[str, Any]
FIELDS = [(b"host", b"127.0.0.1:9000"), (b"content-type", b"application/json")]


class AsgiServer:
    """What an ASGI server does for one request: gives events, takes the answer."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.sent: list[Event] = []

    async def app(self, scope: Event, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 418, "headers": []})
            await send({"type": "http.response.body", "body": b"app"})

    async def request(
        self, body: list[bytes | None], hang: bool = False, **scope: Any
    ) -> tuple[int, bytes]:
        """Status and body for `body`, given piece by piece; None is a client that goes away."""
        pieces = list(body)

        async def receive() -> Event:
            if not pieces:
                await asyncio.sleep(3600)
            piece = pieces.pop(0)
            if piece is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": piece, "more_body": bool(pieces) or hang}

        async def send(event: Event) -> None:
            self.sent.append(event)

        whole = {
            "type": "http",
            "method": "POST",
            "path": PATH.decode(),
            "raw_path": PATH,
            "query_string": b"",
            "headers": FIELDS,
        } | scope
        await SmartgwASGI(self.app, responder())(whole, receive, send)
        if not self.sent:
            return 0, b""
        return self.sent[0]["status"], b"".join(event["body"] for event in self.sent[1:])


async def test_asgi_signs() -> None:
    """2.1: a challenge is answered on the app's own port, and the app never sees it."""
    asked = ask()
    body = body_of(asked)
    server = AsgiServer()
    status, answer = await server.request([body[:10], body[10:50], body[50:]])
    assert proves(asked, status, answer)
    assert server.seen == []
    fields = dict(server.sent[0]["headers"])
    assert fields[b"content-length"] == b"%d" % len(answer)


@pytest.mark.parametrize(
    "scope",
    [
        {"raw_path": b"/.well-known/smartgw/%63hallenge"},
        {"raw_path": b"/.well-known//smartgw/challenge"},
        {"raw_path": b"/.well-known/smartgw/challenge/"},
        {"raw_path": b"/x/../.well-known/smartgw/challenge"},
        {"raw_path": None, "path": "/.well-known/smartgw/challenge/"},
        {"raw_path": None, "path": "/.well-known/smartgw/challeng\udce9"},
        {"type": "websocket"},
        {"type": "lifespan"},
    ],
)
async def test_asgi_leaves_the_rest_to_the_app(scope: Event) -> None:
    """2.1: another spelling of the path, a WebSocket and lifespan are the app's, untouched."""
    server = AsgiServer()
    await server.request([b""], **scope)
    assert len(server.seen) == 1
    assert server.seen[0]["type"] == scope.get("type", "http")


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({"method": "GET"}, 405),
        ({"query_string": b"x=1"}, 400),
        ({"headers": [*FIELDS, (b"via", b"1.1 c1")]}, 403),
        ({"headers": [*FIELDS, (b"forwarded", b"for=1.2.3.4")]}, 403),
    ],
)
async def test_asgi_does_not_sign_what_is_no_challenge(scope: Event, expected: int) -> None:
    """2.1: only a POST of exactly that raw target without Via or Forwarded is signed."""
    server = AsgiServer()
    status, answer = await server.request([body_of(ask())], **scope)
    assert status == expected
    assert b"signature" not in answer
    assert server.seen == []


async def test_asgi_without_a_raw_path() -> None:
    """2.1: a server that gives no raw target gets an answer for the exact path."""
    asked = ask()
    status, answer = await AsgiServer().request([body_of(asked)], raw_path=None)
    assert proves(asked, status, answer)


async def test_asgi_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.1: neither a long nor a late body, nor a client that goes away, holds anything up."""
    monkeypatch.setattr(middleware, "BODY_TIMEOUT", 0.05)
    assert (await AsgiServer().request([b"x" * 4000] * 1000))[0] == 400
    assert (await AsgiServer().request([b"x" * 10_000_000]))[0] == 400
    assert (await AsgiServer().request([b"{"], hang=True))[0] == 408
    assert await AsgiServer().request([b"{", None]) == (0, b"")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="app")

    app = web.Application(middlewares=[aiohttp_middleware(responder())])
    app.router.add_get("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def exchange(port: int, *parts: bytes, end: bool = False) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if end:
            writer.write_eof()
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        return int(head.split()[1]), await reader.readexactly(length)
    finally:
        writer.close()


async def test_aiohttp_signs(port: int) -> None:
    """2.1: over a real socket, without a route for it; everything else is the app's."""
    asked = ask()
    status, answer = await exchange(port, challenge.request(asked))
    assert proves(asked, status, answer)
    assert await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == (200, b"app")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"smartgw/challenge HTTP", b"smartgw/%63hallenge HTTP", 404),
        (b"smartgw/challenge HTTP", b"smartgw/challenge? HTTP", 404),
        (b"smartgw/challenge HTTP", b"smartgw/./challenge HTTP", 404),
        (b"POST /", b"POST http://127.0.0.1:9000/", 404),
        (b"POST", b"PUT", 405),
        (b"Accept:", b"Via: 1.1 c1\r\nAccept:", 403),
        (b"Accept:", b"Forwarded: for=1.2.3.4\r\nAccept:", 403),
        (b'"c1"', b'"c2"', 403),
    ],
)
async def test_aiohttp_does_not_sign(port: int, old: bytes, new: bytes, expected: int) -> None:
    """2.1: nothing but exactly a challenge of its own is signed."""
    request = challenge.request(ask())
    assert old in request
    status, answer = await exchange(port, request.replace(old, new, 1))
    assert status == expected
    assert b"signature" not in answer


async def test_aiohttp_is_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.1: a long body is not read to its end, and a late one is not waited for."""
    monkeypatch.setattr(middleware, "BODY_TIMEOUT", 0.05)
    head = b"POST " + PATH + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    assert (await exchange(port, head % 1_000_000, b"x" * 20_000))[0] == 400
    assert (await exchange(port, head % 100, b"{"))[0] == 408


def test_light() -> None:
    """12: the SDK for backends needs no aiohttp until an aiohttp app asks for its middleware."""
    code = (
        "import sys; sys.modules['aiohttp'] = None; import smartgw_hosts.middleware,"
        "smartgw_hosts.sidecar"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
