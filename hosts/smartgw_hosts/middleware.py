"""The SDK on the app's own port, for ASGI and aiohttp: challenges (2.1), and the guard (4.8).

Owns what of a request of these servers is handed to the Responder and to the guard, which alone
decide, and the bounds of a challenge's body in bytes and time. All else belongs to the app.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Protocol

from smartgw_hosts.agent import HostAgent
from smartgw_hosts.challenge import BODY_BYTES, PATH, Responder
from smartgw_hosts.guard import FLAG, Accept, NotOwner
from smartgw_hosts.write_guard import WriteGuard

BODY_TIMEOUT: Final = 2.0
"""Seconds for the body of a challenge: what a gateway waits for its answer (contract 2.1)."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_FLAG_TEXT = tuple(part.decode() for part in FLAG)
_LATE = (408, json.dumps({"error": "the body of the challenge did not come in time"}).encode())


class SmartgwASGI:
    """`app = SmartgwASGI(app, agent)`: an ASGI app that answers challenges, refuses writes for apps
    of other clusters (contract 4.8), and asks `app` for all else.

    `guard`: what judges writes; by default the agent's, and False for none.
    """

    def __init__(
        self, app: ASGIApp, source: HostAgent | Responder, *, guard: WriteGuard | bool = True
    ) -> None:
        self._app = app
        self._responder = _responder(source)
        self._guard = _guard(source, guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _is_challenge(scope):
            await self._challenge(scope, receive, send)
        elif self._guard is None:
            await self._app(scope, receive, send)
        else:
            judged = self._guard.judge(scope["method"], scope["headers"])
            if isinstance(judged, NotOwner):
                await _asgi_answer(send, 421, judged.body, judged.field)
            else:
                flagged = send if judged is Accept.SURE else _flagging(send)
                await self._app(scope, receive, flagged)

    async def _challenge(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        await _asgi_answer(send, status, answer)


async def _asgi_answer(send: Send, status: int, answer: bytes, *more: tuple[bytes, bytes]) -> None:
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(answer)),
        (b"cache-control", b"no-store"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": answer})


def _flagging(send: Send) -> Send:
    """Pass an answer on with the flag that nobody knew whose the write was (contract 4.8)."""

    async def flagging(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event.get("headers", ()), FLAG]}
        await send(event)

    return flagging


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


def aiohttp_middleware(
    source: HostAgent | Responder, *, guard: WriteGuard | bool = True
) -> Middleware:
    """`web.Application(middlewares=[aiohttp_middleware(agent)])`, first in that list.

    Answers challenges, also where the app has no route for them, and refuses writes for apps of
    other clusters (contract 4.8). `guard`: what judges these; by default the agent's, and False
    for none. An answer that the handler streams by itself carries no flag.
    """
    from aiohttp import web  # only an aiohttp app comes here, and it has aiohttp

    responder, judging = _responder(source), _guard(source, guard)

    def answered(status: int, body: bytes, *more: tuple[bytes, bytes]) -> Any:
        fields = {"Cache-Control": "no-store"}
        fields |= {name.decode(): value.decode() for name, value in more}
        return web.Response(
            status=status, body=body, content_type="application/json", headers=fields
        )

    @web.middleware
    async def answer_challenge(request: Any, handler: Any) -> Any:
        if request.raw_path.encode("utf-8", "surrogateescape") == PATH:
            return answered(*await _aiohttp_answer(responder, request))
        judged: Accept | NotOwner = Accept.SURE
        if judging is not None:
            judged = judging.judge(request.method, request.raw_headers)
        if isinstance(judged, NotOwner):
            return answered(421, judged.body, judged.field)
        if judged is Accept.SURE:
            return await handler(request)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.add(*_FLAG_TEXT)
            raise
        if not response.prepared:
            response.headers.add(*_FLAG_TEXT)
        return response

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


def _guard(source: HostAgent | Responder, guard: WriteGuard | bool) -> WriteGuard | None:
    if isinstance(guard, WriteGuard):
        return guard
    return source.guard if guard and isinstance(source, HostAgent) else None


def _answer(
    responder: Responder,
    method: bytes,
    raw_target: bytes,
    fields: Iterable[tuple[bytes, bytes]],
    body: bytes,
) -> tuple[int, bytes]:
    now_ms = time.time_ns() // 1_000_000
    return responder.answer(method, raw_target, fields, body, time.monotonic(), now_ms)
