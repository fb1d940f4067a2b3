"""TCP servers inside a test's event loop, and how they end without leaving a connection behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server, after what it has accepted so far has become a connection.

    `Server.close` between an accept and the task that it started leaves a transport that nobody
    ends: it is collected, with a warning, in the middle of some later test.
    """
    loop = asyncio.get_running_loop()
    for sock in server.sockets:
        loop.remove_reader(sock.fileno())
    await asyncio.sleep(0)
    server.close()


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A server on the loopback address while the block runs; gives its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_listening(server)
        await server.wait_closed()
