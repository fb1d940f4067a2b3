"""Where the gateway's APIs listen: the internal listener, and a Unix socket for the data path.

Owns that both outlive nothing they should not. What is answered is internal.py's and public.py's.
"""

import socket
import tempfile
from pathlib import Path

from aiohttp import web

from smartgw.api import internal, public


class Doors:
    """`open_public` and `open_internal` when their time has come, `close` at the end.

    `host` is what the internal listener is called.
    """

    def __init__(self, gateway: internal.Gateway, host: str) -> None:
        self._gateway = gateway
        self._host = host
        self._internal: web.AppRunner | None = None
        self._public: web.AppRunner | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def open_internal(self, sock: socket.socket) -> None:
        """Answer at a bound socket, which stays the caller's."""
        self._internal = await internal.serve_on(
            internal.build(self._gateway, host=self._host), sock
        )

    async def close_internal(self) -> None:
        """Accept nobody there any more; whoever is connected gets its answers."""
        if self._internal is not None:
            for site in list(self._internal.sites):
                await site.stop()

    async def open_public(self) -> str:
        """Answer on a socket that only we can reach, if not yet so; return its path."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="smartgw-")
        path = str(Path(self._folder.name) / "api.sock")
        if self._public is None:
            self._public = web.AppRunner(
                public.build(self._gateway), access_log=None, shutdown_timeout=1.0
            )
            await self._public.setup()
            await web.UnixSite(self._public, path).start()
        return path

    async def close(self) -> None:
        """End both."""
        for runner in (self._internal, self._public):
            if runner is not None:
                await runner.cleanup()
        if self._folder is not None:
            self._folder.cleanup()
