"""At which addresses the gateways of the directory are, so that none is dialled as a host (2.5).

Owns the resolution of those that are listed by name: again after a while, and the last addresses
of a name that cannot be resolved now. Refuses nothing itself: the dialler does.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from smartgw.peers.directory import View

_AGAIN_SECONDS = 60.0
_PATIENCE = 5.0

Endpoints = frozenset[tuple[str, int]]


class Whereabouts:
    """Make it in the loop that it runs in. `tell` gets all IP addresses and ports that are known,
    whenever they may have changed.
    """

    def __init__(self, tell: Callable[[Endpoints], None]) -> None:
        self._tell = tell
        self._listed: Endpoints = frozenset()
        self._names: dict[tuple[str, int], Endpoints] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, view: View) -> None:
        """Go by another view; those listed by address count from this moment on."""
        self._listed = view.endpoints
        listed = () if view.clusters is None else view.clusters.clusters
        every = {(one.host, one.port) for cluster in listed for one in cluster.gateways}
        known = self._names
        self._names = {name: known.get(name, frozenset()) for name in every - self._listed}
        self._told()
        if self._names and self._task is None:
            self._task = asyncio.create_task(self._resolve_again(), name="whereabouts of gateways")
        self._changed.set()

    async def stop(self) -> None:
        """Resolve nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _told(self) -> None:
        self._tell(self._listed.union(*self._names.values()))

    async def _resolve_again(self) -> None:
        while True:
            self._changed.clear()
            for name in list(self._names):
                found = await self._resolve(*name)
                if found and name in self._names:
                    self._names[name] = found
                    self._told()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_SECONDS):
                    await self._changed.wait()

    async def _resolve(self, host: str, port: int) -> Endpoints:
        """Return where a name is now; nothing when nobody can say."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError):
            return frozenset()
        return frozenset((str(entry[4][0]).partition("%")[0], port) for entry in found)
