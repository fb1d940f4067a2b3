"""Charges metered budgets: in the store where there is one, else in memory (contract 6.6, 8.5).

Owns that nothing is given away while the store is away: who cannot be charged is not served. What
a charge is and comes to is budgets.py's.
"""

import asyncio
import time
from collections.abc import Sequence

from smartgw.admission.budgets import (
    Budget,
    Charged,
    MemoryBudgets,
    Refused,
    Unavailable,
    outcome,
)
from smartgw.admission.shared_counters import BROKEN, Check, SharedCounters
from smartgw.admission.span import Span
from smartgw.admission.table import Table
from smartgw.proxy.counters import Counters


class Meter:
    """Attributes: store: the shared counters, None where this process is the only one."""

    def __init__(self, table: Table, counters: Counters) -> None:
        """`table`: where this process has its windows of the most usual span."""
        self.store: SharedCounters | None = None
        self._memory = MemoryBudgets(table)
        self._counters = counters

    async def charge(self, budgets: Sequence[Budget]) -> Charged | Refused | Unavailable:
        """Charge all of these budgets, whose keys differ, or none."""
        store = self.store
        answer: Charged | Refused | Unavailable
        if store is None:
            answer = self._memory.charge(budgets, *_now())
        else:
            told = await self._ask(store, budgets)
            answer = Unavailable() if told is None else outcome(budgets, *told, (store.now, 0))
        if isinstance(answer, Refused):
            self._counters.limited["metered"] += 1
        elif isinstance(answer, Unavailable):
            self._counters.meter_unavailable += 1
        return answer

    def charge_here(self, budgets: Sequence[Budget]) -> Charged | Refused | Unavailable:
        """Charge by what this process knows: for what goes on while the store is away (6.6)."""
        return self._memory.charge(budgets, *_now())

    async def refund(self, budgets: Sequence[Budget], charged: Charged) -> None:
        """Give back what was charged for nothing; what the store cannot be told stays charged."""
        if self.store is None:
            self._memory.refund(budgets, charged, *_now())
        else:
            await self._ask(self.store, budgets, charged.at[0])

    async def _ask(
        self, store: SharedCounters, budgets: Sequence[Budget], refund: int | None = None
    ) -> tuple[int, Sequence[int]] | None:
        """Return the wait and the results of a charge, or of a refund of one made then."""
        checks: list[Check] = []
        for budget in budgets:
            span = 0 if budget.window is None else Span.of(budget.window).length
            limit, units = budget.limit, budget.units
            if refund is not None:
                limit, units = refund, -units
            checks.append((store.prefix + " ".join(budget.key), limit, span, units))
        future: asyncio.Future[tuple[int, Sequence[int]] | None]
        future = asyncio.get_running_loop().create_future()
        return await future if store.ask(checks, _answered, future) else None


def _answered(
    future: "asyncio.Future[tuple[int, Sequence[int]] | None]", wait: int, results: Sequence[int]
) -> None:
    if not future.done():
        future.set_result(None if wait == BROKEN else (wait, results))


def _now() -> tuple[int, int]:
    return time.monotonic_ns() // 1000, time.time_ns() // 1000
