"""The guard in the middleware, for ASGI and aiohttp: who may write what (4.8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, web

from smartgw_hosts import challenge
from smartgw_hosts.agent import HostAgent
from smartgw_hosts.guard import NotOwner
from smartgw_hosts.middleware import SmartgwASGI, aiohttp_middleware
from smartgw_hosts.owner import epoch, owner
from smartgw_hosts.write_guard import WriteGuard
from tests.hosts.challenges import ADDRESS, IDENTITY, ask, body_of, proves, responder
from tests.validators import answer, list_text, validator

Event = MutableMapping[str, Any]
IDS = ("c1", "c2", "c3")
OURS = next(f"app-{n}" for n in range(100) if owner(f"app-{n}", IDS) == "c1")
THEIRS = next(f"app-{n}" for n in range(100) if owner(f"app-{n}", IDS) == "c2")
MARK = f"c2; epoch={epoch(IDS)}"


@asynccontextmanager
async def agent(*, listed: bool = True) -> AsyncIterator[HostAgent]:
    """The agent of a host of c1, not on the bus; `listed`: it has the list of clusters."""
    async with validator() as gateway:
        gateway.says = answer(list_text(*IDS), 200, "Age: 0")
        made = HostAgent(
            cluster="c1",
            host_id="h1",
            identity=IDENTITY,
            address=ADDRESS,
            apps=(OURS, THEIRS),
            bus_servers=["nats://127.0.0.1:1"],
            gateways=[gateway.url] if listed else [],
        )
        made.guard.start()
        try:
            async with asyncio.timeout(10):
                while listed and made.owner_of(OURS) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            yield made
        finally:
            await made.guard.stop()


def assert_refused(status: int, mark: str | None, body: bytes) -> None:
    """It is the guard's 421."""
    assert (status, mark) == (421, MARK)
    error = json.loads(body)["error"]
    assert (error["reason"], error["owner"], error["epoch"]) == ("not_owner", "c2", epoch(IDS))


# ---- ASGI ----


class Asgi:
    """An app behind the middleware, and what it was asked."""

    def __init__(self, source: Any, **options: Any) -> None:
        self.seen: list[str] = []
        self._app = SmartgwASGI(self.app, source, **options)

    async def app(self, scope: Event, receive: Any, send: Any) -> None:
        self.seen.append(scope.get("method", scope["type"]))
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"1")]})
            await send({"type": "http.response.body", "body": b"app"})

    async def ask(
        self, app: str, method: str = "POST", path: str = "/", body: bytes = b"", **scope: Any
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, fields and body."""
        sent: list[Event] = []

        async def receive() -> Event:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Event) -> None:
            sent.append(event)

        whole = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", f"{app}.smart-app.example".encode())],
        } | scope
        await self._app(whole, receive, send)
        if not sent:
            return 0, {}, b""
        return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


async def test_asgi_refuses_a_write() -> None:
    """4.8: the SDK does it by default: 421 with owner and epoch, marked, nothing done."""
    async with agent() as source:
        server = Asgi(source)
        status, fields, body = await server.ask(THEIRS)
        assert_refused(status, fields[b"x-smartgw-owner"].decode(), body)
        assert fields[b"content-length"] == b"%d" % len(body)
        assert server.seen == []
        assert (await server.ask(OURS))[:2] == (200, {b"x-a": b"1"})
        assert (await server.ask(THEIRS, "GET"))[:2] == (200, {b"x-a": b"1"})
        named = [(b"host", b"shop.example"), (b"x-smartgw-app", THEIRS.encode())]
        assert (await server.ask("", headers=named))[0] == 421
        await server.ask(THEIRS, type="websocket")  # whatever else such a scope has
        assert server.seen == ["POST", "GET", "POST"]


async def test_asgi_flags_what_nobody_is_sure_of() -> None:
    """4.8: a host without a list accepts and flags."""
    async with agent(listed=False) as source:
        server = Asgi(source)
        assert await server.ask(THEIRS) == (
            200,
            {b"x-a": b"1", b"x-smartgw-owner-unknown": b"yes"},
            b"app",
        )
        assert (await server.ask(THEIRS, "GET"))[1] == {b"x-a": b"1"}


async def test_asgi_still_answers_challenges() -> None:
    """2.1, 4.8: a challenge is a POST, and no write."""
    async with agent() as source:
        asked = ask()
        status, fields, body = await Asgi(source).ask(
            THEIRS, path=challenge.PATH.decode(), body=body_of(asked)
        )
        assert proves(asked, status, body)
        assert b"x-smartgw-owner" not in fields


async def test_whose_guard_it_is() -> None:
    """4.8: the guard can be another one, or none; a Responder alone has none."""
    async with agent() as source:
        assert (await Asgi(source, guard=False).ask(THEIRS))[0] == 200
        assert (await Asgi(responder()).ask(THEIRS))[0] == 200
        assert (await Asgi(responder(), guard=source.guard).ask(THEIRS))[0] == 421
        sure_of_nothing = WriteGuard("c1", tuple)
        assert (
            b"x-smartgw-owner-unknown" in (await Asgi(source, guard=sure_of_nothing).ask(THEIRS))[1]
        )


async def test_as_a_call() -> None:
    """4.8: a function call that comes by another way than HTTP is judged by the same rule."""
    async with agent() as source:
        assert source.owner_of(THEIRS) == "c2"
        assert source.guard.check(OURS)
        with pytest.raises(NotOwner) as refused:
            source.guard.check(THEIRS)
        assert (refused.value.owner, refused.value.epoch) == ("c2", epoch(IDS))
    async with agent(listed=False) as source:
        assert source.owner_of(THEIRS) is None
        assert not source.guard.check(THEIRS)


async def test_apps_that_are_announced_later() -> None:
    """4.8: the guard knows the apps that the host announces now."""
    async with agent() as source:
        source.update(apps=[THEIRS])
        named_by_nothing = [(b"host", b"10.0.0.5:9000")]
        assert (await Asgi(source).ask("", headers=named_by_nothing))[0] == 421


# ---- aiohttp ----


@asynccontextmanager
async def served(source: HostAgent, **options: Any) -> AsyncIterator[tuple[str, list[str]]]:
    """The URL of an aiohttp app behind the middleware, and what it did."""
    done: list[str] = []

    async def hello(request: web.Request) -> web.StreamResponse:
        done.append(request.method)
        if request.path == "/moved":
            raise web.HTTPFound("/")
        if request.path == "/stream":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"app")
            return response
        return web.Response(text="app")

    middleware: Any = aiohttp_middleware(source, **options)
    app = web.Application(middlewares=[middleware])
    app.router.add_route("*", "/{path:.*}", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", done
    finally:
        await runner.cleanup()


async def asked(
    url: str, app: str, method: str = "POST", data: bytes = b"{}"
) -> tuple[int, str | None, bytes]:
    """Status, mark or flag, and body."""
    fields = {"Host": f"{app}.smart-app.example"}
    async with (
        ClientSession() as session,
        session.request(method, url, headers=fields, data=data, allow_redirects=False) as got,
    ):
        mark = got.headers.get("x-smartgw-owner")
        flag = got.headers.get("x-smartgw-owner-unknown")
        return got.status, mark or (flag and f"unknown: {flag}"), await got.read()


async def test_aiohttp_refuses_a_write() -> None:
    """4.8: the SDK does it by default: 421 with owner and epoch, marked, nothing done."""
    async with agent() as source, served(source) as (url, done):
        assert_refused(*await asked(url, THEIRS))
        assert_refused(*await asked(url, THEIRS, "PUT", b"x" * 200_000))
        assert done == []
        assert await asked(url, OURS) == (200, None, b"app")
        assert await asked(url, THEIRS, "GET", b"") == (200, None, b"app")
        assert done == ["POST", "GET"]
    async with agent() as source, served(source, guard=False) as (url, _):
        assert (await asked(url, THEIRS))[0] == 200


async def test_aiohttp_flags_what_nobody_is_sure_of() -> None:
    """4.8: a host without a list accepts and flags, unless the handler has sent the head itself."""
    async with agent(listed=False) as source, served(source) as (url, _):
        assert await asked(url, THEIRS) == (200, "unknown: yes", b"app")
        assert (await asked(f"{url}/moved", THEIRS))[:2] == (302, "unknown: yes")
        assert await asked(f"{url}/stream", THEIRS) == (200, None, b"app")
        assert await asked(url, THEIRS, "GET", b"") == (200, None, b"app")
