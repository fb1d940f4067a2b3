"""Carries a drain out: asks drain.py what is due, has it done, and looks again (11.1).

Owns the loop around the decision, and that steps are done one after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from smartgw.processes.drain import Drain, Phase, Step

TICK_SECONDS = 0.1


class Leaving:
    """`order` does a step, `connections` returns how many clients' connections are open.

    Attributes:
        ended: set when a final drain is over.
    """

    def __init__(
        self,
        unready_wait: float,
        drain: float,
        order: Callable[[Step], Awaitable[None]],
        connections: Callable[[], Awaitable[int]],
    ) -> None:
        self._drain = Drain(unready_wait, drain)
        self._order = order
        self._connections = connections
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()

    @property
    def phase(self) -> Phase:
        """Where the gateway is on its way out."""
        return self._drain.phase

    @property
    def final(self) -> bool:
        """Whether the process ends with it."""
        return self._drain.final

    def configure(self, unready_wait: float, drain: float) -> None:
        """Put other times in force, for a drain that has not begun."""
        if self.phase is Phase.SERVING:
            self._drain = Drain(unready_wait, drain)

    async def begin(self, *, wait: bool = True, final: bool = False) -> None:
        """Begin to leave; see `Drain.begin`. Returns when what is due at once is done."""
        now = asyncio.get_running_loop().time()
        await self._do(self._drain.begin(now, wait=wait, final=final))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tick(), name="drain")

    async def undo(self) -> bool:
        """Serve again; False when it is final."""
        await self._do(self._drain.undo())
        return self.phase is Phase.SERVING

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while self.phase not in (Phase.SERVING, Phase.DRAINED):
            await asyncio.sleep(TICK_SECONDS)
            connections = await self._connections()
            await self._do(self._drain.tick(loop.time(), connections))
        if self.phase is Phase.DRAINED and self.final:
            self.ended.set()

    async def _do(self, steps: Iterable[Step]) -> None:
        async with self._lock:
            for step in steps:
                await self._order(step)
