"""Where the gateway's APIs listen: the internal listener, and a Unix socket for the data path.

Owns that both outlive nothing they should not, and when the operator's token is written. What is
answered is api.py's.
"""

import asyncio
import socket
import tempfile
from itertools import count
from pathlib import Path

from aiohttp import web

from smartgw.api.api import Api
from smartgw.api.operator import Operator
from smartgw.api.serving import Runner, serve_on

_OLD_SECONDS = 5.0


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
        self._path = ""
        self._numbers = count()
        self._ending: set[asyncio.Task[None]] = set()
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
        if self._control != control:
            if self._public is not None:
                self._ending.add(asyncio.create_task(self._end_later(self._public)))
            self._public = Runner(self._api.public(control=control))
            await self._public.setup()
            # Another path each time: the one before serves until the data path knows of this.
            self._path = str(Path(self._own_folder()) / f"api-{next(self._numbers)}.sock")
            await web.UnixSite(self._public, self._path).start()
            self._control = control
        return self._path

    async def close(self) -> None:
        """End both."""
        self._operator.remove()
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        for runner in (self._internal, self._public):
            if runner is not None:
                await runner.cleanup()
        if self._folder is not None:
            self._folder.cleanup()

    async def _end_later(self, runner: Runner) -> None:
        """End what answered before a reload, when the data path has been told of the new one."""
        try:
            await asyncio.sleep(_OLD_SECONDS)
        finally:
            await runner.cleanup()

    def _own_folder(self) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="smartgw-")
        return self._folder.name


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
