"""Several windows and daily quotas that are charged together or not at all (contract 8.5).

Owns what a budget is, what a charge of several says, and how it is done in memory. Who counts
where is meter.py's, how one window counts window.py's; window.lua does the same in the store.
"""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import Table
from smartgw.admission.window import DAY, NEVER, Quota, Window

METERED: Final = frozenset((b"/api/v3/dns/resolve", b"/api/v3/dns/resolve/batch", b"/dns-query"))
"""Paths of the gateway's own hostnames that the API charges, since it knows how many questions are
asked; the data path, exactly as they stand here, does not."""
MOST_QUOTAS: Final = 200_000
"""Daily quotas in memory, 250 bytes each; whoever comes when they are all in use is not served."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One window or quota that a caller is charged in.

    Attributes:
        key: names it among all budgets of the cluster. Its words stand in the store, so none is
            an identity (`identity_key`), and none but the second may hold a space.
        limit: units in any `window` seconds, or on a day (UTC) where that is None.
        units: what this charge costs; 0 only looks.
    """

    key: tuple[str, ...]
    limit: int
    window: float | None
    units: int


@dataclass(frozen=True, slots=True)
class Left:
    """What remains of a budget, and seconds, rounded up, until that next rises (contract 6.2)."""

    limit: int
    remaining: int
    reset: int


@dataclass(frozen=True, slots=True)
class Charged:
    """All budgets were charged; `left` is in their order. `at` says when, for `refund`."""

    left: tuple[Left, ...]
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """None was charged.

    Attributes:
        left: of each budget, in order.
        which: the places of those that it does not fit into now.
        wait: seconds, rounded up, until it fits into all of them; None: it never does.
    """

    left: tuple[Left, ...]
    which: tuple[int, ...]
    wait: int | None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nobody can say what was used; it may have been charged. The answer is 503 (contract 6.6)."""


def identity_key(*parts: str) -> str:
    """Return a word for a key that tells nothing of the identity it stands for."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def outcome(
    budgets: Sequence[Budget], wait: int, results: Sequence[int], at: tuple[int, int]
) -> Charged | Refused:
    """Return what a charge came to.

    Args:
        wait: microseconds, 0 or NEVER.
        results: for each budget the units used and microseconds until that changes.
    """
    used = results[::2]
    left = tuple(
        Left(budget.limit, max(0, budget.limit - units), -(-reset // SECOND))
        for budget, units, reset in zip(budgets, used, results[1::2], strict=True)
    )
    if wait == 0:
        return Charged(left, at)
    which = tuple(
        place
        for place, (budget, units) in enumerate(zip(budgets, used, strict=True))
        if units + budget.units > budget.limit
    )
    return Refused(left, which, None if wait == NEVER else -(-wait // SECOND))


class MemoryBudgets:
    """Budgets of one process. Times are microseconds: `now` rises evenly, `wall` is since the
    epoch.
    """

    def __init__(self, table: Table) -> None:
        """`table`: where windows of its span are; those of others get tables of their own."""
        self._tables = {table.span: table}
        self._capacity = table.capacity
        self._quotas: dict[Hashable, Quota] = {}

    def charge(
        self, budgets: Sequence[Budget], now: int, wall: int
    ) -> Charged | Refused | Unavailable:
        """Charge all of these, whose keys differ, or none."""
        wait = 0
        found: list[tuple[Window, Span] | Quota] = []
        for budget in budgets:
            if budget.window is None:
                quota = self._quota(budget.key, wall)
                if quota is None:
                    return Unavailable()
                found.append(quota)
                more = quota.wait(wall, budget.units, budget.limit)
            else:
                window, span = self._window(budget, now)
                found.append((window, span))
                more = window.wait(now, budget.units, budget.limit, span)
            if more == NEVER or (wait != NEVER and more > wait):
                wait = more
        results: list[int] = []
        for budget, each in zip(budgets, found, strict=True):
            units = 0 if wait else budget.units
            if isinstance(each, Quota):
                each.used += units
                results += (each.used, each.reset(wall))
            else:
                window, span = each
                if units:
                    window.add(max(now, window.newest), units, span)
                results += (window.used, window.reset(now, budget.limit, span))
        return outcome(budgets, wait, results, (now, wall))

    def refund(self, budgets: Sequence[Budget], charged: Charged, now: int, wall: int) -> None:
        """Give back what was charged for nothing."""
        for budget in budgets:
            if budget.window is None:
                quota = self._quota(budget.key, wall)
                if quota is not None and quota.day == charged.at[1] // DAY:
                    quota.used -= min(budget.units, quota.used)
            else:
                window, span = self._window(budget, now)
                window.refund(charged.at[0], budget.units, span)

    def _window(self, budget: Budget, now: int) -> tuple[Window, Span]:
        assert budget.window is not None
        span = Span.of(budget.window)
        table = self._tables.get(span)
        if table is None:
            table = self._tables[span] = Table(span, self._capacity)
        window = table.find(budget.key, now)
        window.settle(now, span)
        return window, span

    def _quota(self, key: Hashable, wall: int) -> Quota | None:
        """Return the quota of a key, settled; None when there is no room for another."""
        quota = self._quotas.get(key)
        if quota is None:
            if len(self._quotas) >= MOST_QUOTAS:
                day = wall // DAY
                self._quotas = {key: q for key, q in self._quotas.items() if q.day >= day}
                if len(self._quotas) >= MOST_QUOTAS:
                    return None
            quota = self._quotas[key] = Quota()
        quota.settle(wall)
        return quota
