"""The demo app: one host of the demo, an aiohttp server with the SDK in it (contract 12.3).

Owns what the demo's paths answer. The SDK announces the host and answers challenges; which app
of the host's is asked for is read from the hostname. `python -m smartgw.demo.app --help`.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from smartgw.demo.page import CONTENT_SECURITY_POLICY, page
from smartgw_hosts.agent import HEARTBEAT, HostAgent
from smartgw_hosts.keyfile import load
from smartgw_hosts.middleware import aiohttp_middleware

CHUNK = bytes(range(256)) * 256
MAX_BYTES = 1 << 30
MAX_SLOW_MS = 600_000
MAX_MESSAGE = 16 << 20
# Longer than a gateway keeps a connection idle, so that the gateway is the one to close it.
KEEPALIVE = 90.0
# At least what a gateway lets through, so that the app never refuses what the gateway took.
MAX_HEAD = 64 << 10


class Counter:
    """A count that all hosts of a cluster share, without a lock that a frozen host could hold.

    It is the length of a file: an append is atomic, and leaves its own end as the position.
    """

    def __init__(self, folder: Path, cluster: str) -> None:
        self._folder = folder
        self._cluster = cluster

    def _path(self, app_id: str) -> Path:
        name = hashlib.sha256(app_id.encode()).hexdigest()[:16]
        return self._folder / f"{self._cluster}-{name}.count"

    def add(self, app_id: str) -> int:
        """Add one; returns the count with it."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._path(app_id), flags, 0o600)
        try:
            os.write(fd, b"+")
            return os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    def read(self, app_id: str) -> int:
        try:
            return self._path(app_id).stat().st_size
        except FileNotFoundError:
            return 0


class DemoApp:
    """The handlers; `application()` routes to them, behind the SDK's middleware."""

    def __init__(self, cluster: str, host_id: str, apps: tuple[str, ...], counter: Counter) -> None:
        self._cluster = cluster
        self._host_id = host_id
        self._apps = apps
        self._counter = counter

    def application(self, agent: HostAgent) -> web.Application:
        # The SDK does not import aiohttp, so it cannot name aiohttp's type of a middleware.
        answer_challenges: Any = aiohttp_middleware(agent)
        application = web.Application(middlewares=[answer_challenges])
        router = application.router
        router.add_get("/", self.index)
        router.add_route("*", "/echo", self.echo)
        router.add_get("/sse", self.sse, allow_head=False)
        router.add_get("/ws", self.ws, allow_head=False)
        router.add_route("*", "/slow", self.slow)
        router.add_route("*", r"/status/{code:\d{3}}", self.status)
        router.add_get(r"/bytes/{size:\d{1,10}}", self.bytes)
        router.add_get("/counter", self.count)
        router.add_post("/counter", self.add)
        return application

    def _app_id(self, request: web.Request) -> str:
        label = request.host.partition(".")[0].lower()
        return label if label in self._apps else self._apps[0]

    async def index(self, request: web.Request) -> web.Response:
        app_id = self._app_id(request)
        facts = (
            ("App", app_id),
            ("Cluster", self._cluster),
            ("Host", self._host_id),
            ("Your address", request.headers.get("X-Forwarded-For", "not told")),
        )
        return web.Response(
            text=page(app_id, facts, self._counter.read(app_id)),
            content_type="text/html",
            headers={
                "Content-Security-Policy": CONTENT_SECURITY_POLICY,
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
            },
        )

    async def echo(self, request: web.Request) -> web.Response:
        digest = hashlib.sha256()
        length = 0
        async for piece in request.content.iter_any():
            digest.update(piece)
            length += len(piece)
        return _json(
            {
                "method": request.method,
                "target": request.raw_path,
                "headers": [
                    [name.decode("latin-1"), value.decode("latin-1")]
                    for name, value in request.raw_headers
                ],
                "body_length": length,
                "body_sha256": digest.hexdigest(),
                "app_id": self._app_id(request),
                "cluster": self._cluster,
                "host_id": self._host_id,
            }
        )

    async def sse(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        number = 0
        # A client that goes away ends the stream, which is not an error.
        with contextlib.suppress(ConnectionError):
            while True:
                number += 1
                tick = {"time": time.strftime("%H:%M:%S"), "host_id": self._host_id}
                await response.write(f"id: {number}\ndata: {json.dumps(tick)}\n\n".encode())
                await asyncio.sleep(1.0)
        return response

    async def ws(self, request: web.Request) -> web.WebSocketResponse:
        socket_ = web.WebSocketResponse(max_msg_size=MAX_MESSAGE)
        await socket_.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for message in socket_:
                if message.type is WSMsgType.TEXT:
                    await socket_.send_str(message.data)
                elif message.type is WSMsgType.BINARY:
                    await socket_.send_bytes(message.data)
        return socket_

    async def slow(self, request: web.Request) -> web.Response:
        text = request.query.get("ms", "1000")
        if not (text.isascii() and text.isdigit() and int(text[:9]) <= MAX_SLOW_MS):
            return _json({"error": f"ms must be a number up to {MAX_SLOW_MS}"}, 400)
        await asyncio.sleep(int(text[:9]) / 1000)
        return _json({"slept_ms": int(text[:9])})

    async def status(self, request: web.Request) -> web.Response:
        code = int(request.match_info["code"])
        if not 200 <= code <= 599:
            return _json({"error": "a final status is 200 to 599"}, 400)
        if code in (204, 205, 304):
            return web.Response(status=code)
        return _json({"status": code}, code)

    async def bytes(self, request: web.Request) -> web.StreamResponse:
        left = int(request.match_info["size"])
        if left > MAX_BYTES:
            return _json({"error": f"at most {MAX_BYTES} bytes"}, 400)
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = left
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        with contextlib.suppress(ConnectionError):
            while left > 0:
                await response.write(CHUNK[:left])
                left -= len(CHUNK)
        return response

    async def count(self, request: web.Request) -> web.Response:
        return _json({"count": self._counter.read(self._app_id(request))})

    async def add(self, request: web.Request) -> web.Response:
        return _json({"count": self._counter.add(self._app_id(request))})


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        text=json.dumps(value) + "\n",
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


@contextlib.asynccontextmanager
async def host(args: argparse.Namespace) -> AsyncIterator[HostAgent]:
    """Serve on a loopback port and be announced, until the block is left."""
    listening = socket.create_server((args.address, args.port))
    address, port = listening.getsockname()[:2]
    apps = tuple(args.app)
    agent = HostAgent(
        cluster=args.cluster,
        host_id=args.host_id,
        identity=load(args.key),
        address=f"http://{address}:{port}",
        apps=apps,
        bus_servers=args.bus,
        version="demo",
        heartbeat=args.heartbeat,
        gateways=args.gateway,
    )
    demo = DemoApp(args.cluster, args.host_id, apps, Counter(args.state, args.cluster))
    runner = web.AppRunner(
        demo.application(agent),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=0.2,
        keepalive_timeout=KEEPALIVE,
        auto_decompress=False,  # /echo tells the bytes as they came
        max_line_size=MAX_HEAD,
        max_field_size=MAX_HEAD,
        max_headers=1000,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        async with agent:
            yield agent
    finally:
        await runner.cleanup()


async def _serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with host(args):
        await stop.wait()


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m smartgw.demo.app", description=__doc__)
    options.add_argument("--cluster", required=True)
    options.add_argument("--host-id", required=True)
    options.add_argument("--key", required=True, type=Path, help="the host's key file")
    options.add_argument("--bus", required=True, action="append", help="nats:// URL, repeatable")
    options.add_argument(
        "--gateway", default=[], action="append", help="who knows the app's owner, repeatable"
    )
    options.add_argument("--app", required=True, action="append", help="app id, repeatable")
    options.add_argument("--state", required=True, type=Path, help="folder of the counters")
    options.add_argument("--heartbeat", default=HEARTBEAT, type=float, help="seconds")
    options.add_argument("--address", default="127.0.0.1")
    options.add_argument("--port", default=0, type=int, help="0 (the default): any free one")
    return options


if __name__ == "__main__":
    asyncio.run(_serve(parser().parse_args()))
