"""Where the gateway's APIs listen: the internal listener, and a Unix socket for the data path.

Owns that both outlive nothing they should not, and when the operator's token is written. What is
answered is api.py's.
"""

import socket
import tempfile
from pathlib import Path

from aiohttp import web

from smartgw.api.api import Api
from smartgw.api.operator import Operator
from smartgw.api.serving import Runner, serve_on


class Doors:
    """`open_public` and `open_internal` when their time has come, `close` at the end.

    `host` is what the internal listener is called. `state`: folder for the operator's token, None
    for one of our own.
    """

    def __init__(self, api: Api, operator: Operator, host: str, state: Path | None) -> None:
        self._api = api
        self._operator = operator
        self._host = host
        self._state = state
        self._internal: Runner | None = None
        self._public: Runner | None = None
        self._control: bool | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def open_internal(self, sock: socket.socket) -> None:
        """Answer at a bound socket, which stays the caller's."""
        own = Path(self._own_folder())
        folders = [own] if self._state is None else [self._state, own]
        self._operator.write(folders, _address(sock))
        self._internal = await serve_on(self._api.internal(self._host), sock)

    async def close_internal(self) -> None:
        """Accept nobody there any more; whoever is connected gets its answers."""
        self._operator.remove()
        if self._internal is not None:
            for site in list(self._internal.sites):
                await site.stop()

    async def open_public(self, *, control: bool) -> str:
        """Answer on a socket that only we can reach, if not yet so; return its path."""
        path = str(Path(self._own_folder()) / f"api{'-control' if control else ''}.sock")
        if self._control != control:
            before = self._public
            application = self._api.public(control=control)
            self._public = Runner(application)
            await self._public.setup()
            await web.UnixSite(self._public, path).start()
            self._control = control
            if before is not None:
                await before.cleanup()
        return path

    async def close(self) -> None:
        """End both."""
        self._operator.remove()
        for runner in (self._internal, self._public):
            if runner is not None:
                await runner.cleanup()
        if self._folder is not None:
            self._folder.cleanup()

    def _own_folder(self) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="smartgw-")
        return self._folder.name


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
