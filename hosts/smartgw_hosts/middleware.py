"""Answers the gateway's challenge on the app's own port (contract 2.1): ASGI and aiohttp.

Owns what of a request of these servers is handed to the Responder, and the bounds of its body
in bytes and time. The Responder alone decides; every other request belongs to the app.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Protocol

from smartgw_hosts.agent import HostAgent
from smartgw_hosts.challenge import BODY_BYTES, PATH, Responder

BODY_TIMEOUT: Final = 2.0
"""Seconds for the body of a challenge: what a gateway waits for its answer (contract 2.1)."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_LATE = (408, json.dumps({"error": "the body of the challenge did not come in time"}).encode())


class SmartgwASGI:
    """`app = SmartgwASGI(app, agent)`: an ASGI app that answers challenges, then asks `app`."""

    def __init__(self, app: ASGIApp, source: HostAgent | Responder) -> None:
        self._app = app
        self._responder = _responder(source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_challenge(scope):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                body = await _asgi_body(receive)
        except TimeoutError:
            status, answer = _LATE
        else:
            if body is None:
                return
            # A query cannot be told from an empty one (`?`) here; neither is ours to sign.
            query = b"?" + scope["query_string"] if scope.get("query_string") else b""
            status, answer = _answer(
                self._responder,
                scope["method"].encode("latin-1"),
                PATH + query,
                scope["headers"],
                body,
            )
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": answer})


def _is_challenge(scope: Scope) -> bool:
    """Whether the path is ours byte for byte: another spelling of it was not asked by a gateway."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        # Decoded, `%63hallenge` looks like ours too; the gateway lets no spelling of it through.
        return bool(scope["path"].encode("utf-8", "surrogateescape") == PATH)
    return raw == PATH


async def _asgi_body(receive: Receive) -> bytes | None:
    """At most one byte more than a challenge may have; None when the client has gone."""
    body = b""
    while len(body) <= BODY_BYTES:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        body += event.get("body", b"")[: BODY_BYTES + 1]
        if not event.get("more_body", False):
            break
    return body


class _Content(Protocol):
    async def read(self, n: int = -1) -> bytes: ...


class _Request(Protocol):
    """What is used of `aiohttp.web.Request`: the light install has no aiohttp to name it by."""

    @property
    def method(self) -> str: ...
    @property
    def raw_path(self) -> str: ...
    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]: ...
    @property
    def content(self) -> _Content: ...


class Middleware(Protocol):
    """As `aiohttp.typedefs.Middleware`: from `aiohttp.web.Request` to `StreamResponse`."""

    def __call__(self, request: Any, handler: Any) -> Awaitable[Any]: ...


def aiohttp_middleware(source: HostAgent | Responder) -> Middleware:
    """`web.Application(middlewares=[aiohttp_middleware(agent)])`, first in that list.

    Runs for unmatched routes too, so the app needs no route for the challenge.
    """
    from aiohttp import web  # only an aiohttp app comes here, and it has aiohttp

    responder = _responder(source)

    @web.middleware
    async def answer_challenge(request: Any, handler: Any) -> Any:
        if request.raw_path.encode("utf-8", "surrogateescape") != PATH:
            return await handler(request)
        status, answer = await _aiohttp_answer(responder, request)
        return web.Response(
            status=status,
            body=answer,
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    return answer_challenge


async def _aiohttp_answer(responder: Responder, request: _Request) -> tuple[int, bytes]:
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while len(body) <= BODY_BYTES:
                piece = await request.content.read(BODY_BYTES + 1 - len(body))
                if not piece:
                    break
                body += piece
    except TimeoutError:
        return _LATE
    return _answer(responder, request.method.encode("latin-1"), PATH, request.raw_headers, body)


def _responder(source: HostAgent | Responder) -> Responder:
    return source.responder if isinstance(source, HostAgent) else source


def _answer(
    responder: Responder,
    method: bytes,
    raw_target: bytes,
    fields: Iterable[tuple[bytes, bytes]],
    body: bytes,
) -> tuple[int, bytes]:
    now_ms = time.time_ns() // 1_000_000
    return responder.answer(method, raw_target, fields, body, time.monotonic(), now_ms)
