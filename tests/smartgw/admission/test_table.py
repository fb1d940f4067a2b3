"""Windows of many callers in bounded memory (contract 6.7)."""

from __future__ import annotations

import itertools
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import SHARED, Table
from smartgw.admission.window import Window

MINUTE = Span.of(60)


def charge(table: Table, key: object, now: int, limit: int = 600) -> int:
    return table.find(key, now).charge(now, 1, limit, table.span)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, SECOND, 20 * SECOND, 61 * SECOND])),
        max_size=80,
    )
)
def test_with_room_each_key_has_its_own_window(steps: list[tuple[int, int]]) -> None:
    """6.7: what is dropped was empty, so no caller is handed a fresh window."""
    table, alone, now = Table(MINUTE, 1_000), [Window() for _ in range(10)], 0
    for key, pause in steps:
        now += pause
        table.tidy(now)
        assert charge(table, key, now, 3) == alone[key].charge(now, 1, 3, MINUTE)
    assert table.squeezed == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3 * SECOND)), max_size=200))
def test_without_room_nobody_gets_more_than_the_limit(steps: list[tuple[int, int]]) -> None:
    """6.7: a caller without a window of its own shares one, and never gets more by it."""
    table, now = Table(MINUTE, 5), 0
    admitted: dict[int, list[int]] = {}
    for key, pause in steps:
        now += pause
        if charge(table, key, now, 4) == 0:
            admitted.setdefault(key, []).append(now)
            assert sum(t > now - MINUTE.length for t in admitted[key]) <= 4


def test_a_flood_does_not_free_a_busy_caller() -> None:
    """6.7: eviction never hands a busy caller a fresh window."""
    table = Table(MINUTE, 1_000)
    for _ in range(600):
        assert charge(table, "busy", 0) == 0
    for number in range(100_000):
        charge(table, number, number * 100)
    assert charge(table, "busy", 59 * SECOND) > 0
    assert len(table) <= 1_000 + SHARED


def test_a_flood_lets_newcomers_through() -> None:
    """6.7: newcomers share windows while there is no room, and have their own afterwards."""
    table = Table(MINUTE, 1_000)
    refused = sum(charge(table, number, number) > 0 for number in range(500_000))
    assert refused == 0
    assert table.squeezed > 400_000
    now = 500_000
    for _ in range(3):
        now += 61 * SECOND
        table.tidy(now)
    squeezed = table.squeezed
    assert all(charge(table, f"later {number}", now) == 0 for number in range(900))
    assert table.squeezed == squeezed


def test_memory_is_given_back_in_small_parts() -> None:
    """6.7: callers that are gone are forgotten, a bounded part of them at a time."""
    table, now = Table(MINUTE, 100_000), 0
    for number in range(60_000):
        charge(table, number, now)
    sizes = []
    for _ in range(140):
        now += SECOND
        table.tidy(now)
        sizes.append(len(table))
    assert sizes[-1] == 0
    assert max(a - b for a, b in itertools.pairwise(sizes)) <= 5_000


def test_what_a_caller_of_one_request_costs() -> None:
    """6.7: 200,000 callers at once, the default, take less than 80 MiB."""
    keys = [("app", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(20_000)]
    table = Table(MINUTE, 20_000)
    tracemalloc.start()
    try:
        for key in keys:
            charge(table, key, 10**12)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(keys) < 80 * (1 << 20) / 200_000
