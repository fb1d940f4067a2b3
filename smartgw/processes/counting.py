"""Where the processes of one gateway count, and what that means when they cannot (contract 6.6).

Owns whether a store of the gateway's own is needed, and the words for people. The store itself is
own_store.py's, whether it can be asked each process's to find out.
"""

import logging
from typing import Any

from smartgw.config import Settings
from smartgw.processes.own_store import OwnStore, find
from smartgw.proxy.counters import Counters

_log = logging.getLogger(__name__)
_REMEDY = "install smart-gateway[embedded], or name a store in store.servers"


class Counting:
    """Make it with the settings, `start` it before any process counts, `stop` it after all."""

    def __init__(self, settings: Settings) -> None:
        self._workers = settings.processes.workers
        self._kind: str = settings.store.kind if settings.store.servers else "memory"
        self._own: OwnStore | None = None
        self._missing = False

    async def start(self) -> None:
        """Start a store if the workers need one and there is none."""
        if self._kind != "memory" or self._workers == 1:
            return
        program = find()
        if program is None:
            self._missing = True
            _log.warning("each of %d workers counts callers alone: %s", self._workers, _REMEDY)
            return
        store = OwnStore(program)
        try:
            await store.start()
        except (OSError, TimeoutError) as error:
            self._missing = True
            _log.error("each worker counts callers alone: %s does not start: %s", program, error)
            return
        self._own, self._kind = store, "own"

    async def stop(self) -> None:
        """End the store of our own, if there is one."""
        if self._own is not None:
            await self._own.stop()

    def told(self, settings: Settings) -> Settings:
        """Return the settings as those who count are told them: with the store of our own."""
        if self._own is None:
            return settings
        store = settings.store.model_copy(update={"servers": (self._own.url,)})
        return settings.model_copy(update={"store": store})

    def degraded(self, counters: Counters) -> list[str]:
        """Return lines for /readyz; `counters` are those of all processes."""
        if self._missing:
            return [
                f"store: there is none, each of {self._workers} workers counts alone; {_REMEDY}"
            ]
        away = counters.store_away
        if away:
            # Beside the workers there is the control process, which charges at the API.
            processes = 1 if self._workers == 1 else self._workers + 1
            return [f"store: {away} of {processes} processes cannot ask it and count alone"]
        return []

    def status(self, counters: Counters) -> dict[str, Any]:
        """Return the section of the status."""
        return {
            "kind": self._kind,
            "pid": None if self._own is None else self._own.pid,
            "away": counters.store_away,
            "checks": counters.store_checks,
            "round_trips": counters.store_trips,
            "faults": {fault.value: n for fault, n in counters.store_faults.items() if n},
        }
