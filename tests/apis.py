"""An API of the gateway on a real port of its own."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from smartgw.api.serving import serve_on


@asynccontextmanager
async def serving(application: web.Application) -> AsyncIterator[str]:
    """Serve it on loopback; gives `host:port`."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        runner = await serve_on(application, sock)
        try:
            yield f"127.0.0.1:{sock.getsockname()[1]}"
        finally:
            await runner.cleanup()
