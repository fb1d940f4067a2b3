"""Metered budgets: all of them or none, in memory and in a real Valkey; closed without it (8.5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from smartgw.admission.budgets import (
    MOST_QUOTAS,
    Budget,
    Charged,
    Left,
    MemoryBudgets,
    Refused,
    Unavailable,
    identity_key,
)
from smartgw.admission.meter import Meter
from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import Table
from smartgw.admission.window import DAY
from smartgw.proxy.counters import Counters
from tests.servers import Valkey
from tests.smartgw.admission.asking import asking, at, until

ADDRESS = ("gateway", "", "192.0.2.1")
SESSION = ("session", "", identity_key("https://id.example", "sid-1"))
QUOTA = ("quota", "", identity_key("https://id.example", "sid-1"))


def batch(size: int, *, session: int = 120, quota: int = 10_000) -> tuple[Budget, ...]:
    """What a batch of so many queries costs (8.5)."""
    return (
        Budget(ADDRESS, 600, 60.0, size),
        Budget(SESSION, session, 60.0, size),
        Budget(QUOTA, quota, None, size),
    )


def memory_meter() -> Meter:
    return Meter(Table(Span.of(60), 1_000), Counters())


@pytest.fixture(params=["memory", "valkey"])
async def meter(request: pytest.FixtureRequest) -> AsyncIterator[Meter]:
    meter = memory_meter()
    async with AsyncExitStack() as stack:
        if request.param == "valkey":
            server = stack.enter_context(Valkey())
            meter.store = (await stack.enter_async_context(asking(at(server)))).shared
        yield meter


async def test_a_batch_costs_as_many_units_as_queries(meter: Meter) -> None:
    """R16: a batch of 10 costs 10 in each window and in the quota."""
    charged = await meter.charge(batch(10))
    assert isinstance(charged, Charged)
    assert [(left.limit, left.remaining) for left in charged.left] == [
        (600, 590),
        (120, 110),
        (10_000, 9_990),
    ]
    assert [left.reset for left in charged.left[:2]] == [60, 60]
    assert 0 < charged.left[2].reset <= 86_400


async def test_a_batch_that_does_not_fit_takes_nothing(meter: Meter) -> None:
    """R14: with 9 left a batch of 10 takes nothing anywhere; the wait is until all of it fits."""
    assert isinstance(await meter.charge(batch(111)), Charged)
    refused = await meter.charge(batch(10))
    assert isinstance(refused, Refused)
    assert refused.which == (1,)
    assert refused.wait is not None
    assert 59 <= refused.wait <= 60
    assert [left.remaining for left in refused.left] == [489, 9, 9_889]
    assert isinstance(await meter.charge(batch(9)), Charged)


async def test_a_batch_that_never_fits(meter: Meter) -> None:
    """8.5: a batch larger than what a window can ever hold has no wait."""
    refused = await meter.charge(batch(11, session=10))
    assert isinstance(refused, Refused)
    assert refused.wait is None
    assert refused.left[0] == Left(600, 600, 0)


async def test_a_used_up_quota_waits_for_midnight(meter: Meter) -> None:
    """8.5: the daily quota is one of UTC."""
    await meter.charge(batch(1, quota=1))
    refused = await meter.charge(batch(1, quota=1))
    assert isinstance(refused, Refused)
    assert refused.which == (2,)
    left = 86_400 - time.time() % 86_400
    assert refused.wait is not None
    assert abs(refused.wait - left) <= 2


async def test_a_refund_gives_all_back(meter: Meter) -> None:
    """6.6: what was charged for nothing is given back everywhere."""
    before = batch(10)
    charged = await meter.charge(before)
    assert isinstance(charged, Charged)
    await meter.refund(before, charged)
    look = await meter.charge(batch(0))
    assert isinstance(look, Charged)
    assert [left.remaining for left in look.left] == [600, 120, 10_000]


async def test_many_at_once_take_no_more_than_there_is(meter: Meter) -> None:
    """R13: 200 at once with 120 left: exactly 120 are charged."""
    answers = await asyncio.gather(*(meter.charge(batch(1)) for _ in range(200)))
    assert sum(isinstance(answer, Charged) for answer in answers) == 120


async def test_a_store_that_is_away_serves_nobody() -> None:
    """6.6, R46: metered budgets fail closed, at once, and are served again when it is back."""
    meter = memory_meter()
    with Valkey() as server:
        async with asking(at(server)) as asker:
            meter.store = asker.shared
            assert isinstance(await meter.charge(batch(1)), Charged)
            server.kill()
            assert isinstance(await meter.charge(batch(1)), Unavailable)
            start = time.monotonic()
            for _ in range(100):
                assert isinstance(await meter.charge(batch(1)), Unavailable)
            assert time.monotonic() - start < 1
            server.start()
            await until(lambda: asker.up)
            assert isinstance(await meter.charge(batch(1)), Charged)


def test_quotas_in_memory_are_bounded_and_kept() -> None:
    """6.7: a flood of identities is refused rather than have anybody's quota begin anew."""
    memory = MemoryBudgets(Table(Span.of(60), 1_000))
    now = 10 * DAY
    for number in range(MOST_QUOTAS):
        memory.charge([Budget(("quota", "", str(number)), 5, None, 5)], now, now)
    one_more = [Budget(("quota", "", "one more"), 5, None, 1)]
    assert isinstance(memory.charge(one_more, now, now), Unavailable)
    assert isinstance(memory.charge([Budget(("quota", "", "7"), 5, None, 1)], now, now), Refused)
    assert isinstance(memory.charge(one_more, now, now + DAY), Charged)


def test_a_refund_of_yesterday_is_none_today() -> None:
    """8.5: what is given back after midnight was another day's."""
    memory = MemoryBudgets(Table(Span.of(60), 1_000))
    budgets = [Budget(QUOTA, 10, None, 5)]
    late = 10 * DAY - SECOND
    charged = memory.charge(budgets, late, late)
    assert isinstance(charged, Charged)
    memory.charge(budgets, late + 2 * SECOND, late + 2 * SECOND)
    memory.refund(budgets, charged, late + 3 * SECOND, late + 3 * SECOND)
    look = memory.charge([Budget(QUOTA, 10, None, 0)], late, late + 3 * SECOND)
    assert isinstance(look, Charged)
    assert look.left[0].remaining == 5


def test_keys_tell_nothing_of_an_identity() -> None:
    """8.5: numbers only, never a piece of the session; and parts are not run together."""
    assert "sid" not in SESSION[2]
    assert identity_key("a", "bc") != identity_key("ab", "c")
