"""The sliding window against a brute-force model, and what it costs (contract 6.1)."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.admission.span import SECOND, Span
from smartgw.admission.window import DAY, NEVER, Quota, Window

MINUTE = Span.of(60)
LIMIT = 600
# A Monday, as microseconds since the epoch: what the store's clock says.
EPOCH = 1_700_000_000_123_457


class Model:
    """The same window by brute force: every charge is kept, and counted anew each time."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.charges: list[tuple[int, int]] = []

    def stamp(self, at: int) -> int:
        """Return the stamp that a charge counts with: the last of its cell, rounded up if older."""
        cell = at // self.span.cell
        last = max(t for t, _ in self.charges if t // self.span.cell == cell)
        if cell == max(t for t, _ in self.charges) // self.span.cell:
            return last
        return -(-last // self.span.place) * self.span.place

    def used(self, now: int) -> int:
        """Return what counts, and forget the rest."""
        kept = [(t, u) for t, u in self.charges if self.stamp(t) + self.span.length > now]
        self.charges = kept
        return sum(units for _, units in kept)


def units_within(charges: list[tuple[int, int]], now: int, length: int) -> int:
    """Return the units of (now - length, now], without any merging."""
    return sum(units for at, units in charges if at > now - length)


steps = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, 5),
            st.integers(0, 300_000),
            st.integers(0, 70 * SECOND),
            st.sampled_from([249_999, 250_000, 60 * SECOND, 60 * SECOND - 1]),
        ),
        st.integers(1, 12),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 40), st.sampled_from([60.0, 1.0, 7.3, 3600.0]), st.integers(0, EPOCH))
def test_it_counts_as_the_model_does(
    steps: list[tuple[int, int]], limit: int, seconds: float, start: int
) -> None:
    """6.1: the window counts what brute force counts, after each step and whatever the span."""
    span = Span.of(seconds)
    window, model, now = Window(), Model(span), start
    for pause, units in steps:
        now += pause
        fits = model.used(now) + units <= limit
        wait = window.charge(now, units, limit, span)
        assert (wait == 0) == fits
        if fits:
            model.charges.append((now, units))
        assert window.used == model.used(now)


@given(steps, st.integers(1, 40))
def test_never_more_than_the_limit_in_any_window(steps: list[tuple[int, int]], limit: int) -> None:
    """6.1: never more than 600 admitted in any window; refused at most 250 ms too long."""
    window, now = Window(), 0
    charges: list[tuple[int, int]] = []
    for pause, units in steps:
        now += pause
        if window.charge(now, units, limit, MINUTE) == 0:
            charges.append((now, units))
            assert units_within(charges, now, MINUTE.length) <= limit
        else:
            assert units_within(charges, now, MINUTE.length + MINUTE.cell) + units > limit


@given(steps, st.integers(1, 12), st.integers(12, 40))
def test_a_refused_caller_is_admitted_after_exactly_the_time_it_was_told(
    steps: list[tuple[int, int]], units: int, limit: int
) -> None:
    """6.1: a refused caller is admitted after exactly the time it was told, and not before."""
    window, now = Window(), 0
    for pause, cost in steps:
        now += pause
        window.charge(now, cost, limit, MINUTE)
    now += 1
    wait = window.charge(now, units, limit, MINUTE)
    if wait == 0:
        return
    assert 0 < wait <= 60 * SECOND
    assert window.charge(now + wait - 1, units, limit, MINUTE) == 1
    assert window.charge(now + wait, units, limit, MINUTE) == 0


@given(steps, st.integers(1, 40))
def test_reset_is_when_remaining_next_rises(steps: list[tuple[int, int]], limit: int) -> None:
    """6.2: Reset is the time until Remaining next rises; 0 when nothing is counted."""
    window, now = Window(), 0
    for pause, cost in steps:
        now += pause
        window.charge(now, cost, limit, MINUTE)
    reset, before = window.reset(now, limit, MINUTE), window.used
    if not before:
        assert reset == 0
        return
    assert 0 < reset <= 60 * SECOND
    window.settle(now + reset - 1, MINUTE)
    assert window.used == before
    window.settle(now + reset, MINUTE)
    assert window.used < before


@given(steps, st.integers(1, 20), st.integers(21, 40))
def test_a_lowered_limit_waits_until_something_remains(
    steps: list[tuple[int, int]], lower: int, limit: int
) -> None:
    """6.1: a limit that was lowered counts what was used before, and promises truly."""
    window, now = Window(), 0
    for pause, cost in steps:
        now += pause
        window.charge(now, cost, limit, MINUTE)
    wait = window.charge(now, 1, lower, MINUTE)
    if wait:
        assert wait == window.reset(now, lower, MINUTE)
        window.settle(now + wait - 1, MINUTE)
        assert window.used >= lower
        window.settle(now + wait, MINUTE)
        assert window.used < lower


@given(steps, st.integers(20, 40), st.lists(st.integers(0, 10), max_size=20))
def test_a_refund_is_never_too_early(
    steps: list[tuple[int, int]], limit: int, which: list[int]
) -> None:
    """6.1: after refunds too there are never more than the limit in any window."""
    window, now = Window(), 0
    charges: list[tuple[int, int]] = []
    for number, (pause, units) in enumerate(steps):
        now += pause
        if window.charge(now, units, limit, MINUTE) == 0:
            charges.append((now, units))
            assert units_within(charges, now, MINUTE.length) <= limit
        if which and number % 3 == 2 and charges:
            at, units = charges.pop(max(0, len(charges) - 1 - which[number % len(which)]))
            if at > now - MINUTE.length:
                window.settle(now, MINUTE)
                before = window.used
                window.refund(at, units, MINUTE)
                assert window.used == before - units


def test_a_refund_of_what_was_just_charged_leaves_no_trace() -> None:
    """6.1: a unit that is given back at once counts no more."""
    window = Window()
    for _ in range(3):
        window.charge(EPOCH, 200, LIMIT, MINUTE)
    window.refund(EPOCH, 200, MINUTE)
    assert window.used == 400
    assert window.charge(EPOCH + 1, 200, LIMIT, MINUTE) == 0
    assert window.charge(EPOCH + 2, 1, LIMIT, MINUTE) == 60 * SECOND - 1


def test_600_then_one_more_and_the_promise() -> None:
    """R01, R02, R03: 600 pass, the next is told how long, and passes after exactly that."""
    window = Window()
    left = []
    for _ in range(600):
        assert window.charge(EPOCH, 1, LIMIT, MINUTE) == 0
        left.append(LIMIT - window.used)
    assert left == list(range(599, -1, -1))
    assert window.charge(EPOCH + SECOND, 1, LIMIT, MINUTE) == 59 * SECOND
    assert window.charge(EPOCH + 60 * SECOND - 1, 1, LIMIT, MINUTE) == 1
    assert window.charge(EPOCH + 60 * SECOND, 1, LIMIT, MINUTE) == 0


def test_a_window_slides() -> None:
    """R04: at t=60.1 at most 600 in any 60 s; a fixed window would allow 1,200 in 2 s."""
    window = Window()
    times = [EPOCH + number * SECOND // 600 for number in range(600)]
    assert not any(window.charge(t, 1, LIMIT, MINUTE) for t in times)
    assert window.charge(EPOCH + 59_900_000, 1, LIMIT, MINUTE) > 0
    admitted = list(times)
    for number in range(600):
        now = EPOCH + 60_100_000 + number
        if window.charge(now, 1, LIMIT, MINUTE) == 0:
            admitted.append(now)
        assert sum(t > now - 60 * SECOND for t in admitted) <= LIMIT
    assert len(admitted) <= 600 + 61


def test_599_at_t_59_then_20_a_second() -> None:
    """R48: 599 at t=59 s, then 20 a second: never more than 600 in any 60 s."""
    window = Window()
    admitted = [EPOCH + 59 * SECOND] * 599
    assert not any(window.charge(t, 1, LIMIT, MINUTE) for t in admitted)
    for number in range(20 * 180):
        now = EPOCH + 60 * SECOND + number * SECOND // 20
        if window.charge(now, 1, LIMIT, MINUTE) == 0:
            admitted.append(now)
            assert sum(t > now - 60 * SECOND for t in admitted) <= LIMIT
    # And it is used: after the burst has left, all of 20 a second fits until 600 are reached.
    assert len(admitted) > 599 + 1_100


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    """R14: with 9 units left a batch of 10 takes nothing."""
    window = Window()
    window.charge(EPOCH, 591, LIMIT, MINUTE)
    assert window.charge(EPOCH + 5, 10, LIMIT, MINUTE) == 60 * SECOND - 5
    assert window.used == 591
    assert window.charge(EPOCH + 5, 9, LIMIT, MINUTE) == 0


def test_what_a_window_can_never_hold_is_refused_for_good() -> None:
    """8.5: a batch larger than what a window can ever hold never fits."""
    assert Window().charge(EPOCH, 601, LIMIT, MINUTE) == NEVER
    assert Window().charge(EPOCH, 1, 0, MINUTE) == NEVER


def test_a_clock_that_is_set_back_neither_frees_nor_locks_anybody() -> None:
    """6.6: the store's clock set back by an hour: the window goes on from where it was."""
    window = Window()
    for number in range(600):
        window.charge(EPOCH + number * SECOND // 10, 1, LIMIT, MINUTE)
    now = EPOCH + 59_900_000 - 3600 * SECOND
    wait = window.charge(now, 1, LIMIT, MINUTE)
    assert 0 < wait <= SECOND
    # The two that were merged into one stamp leave together.
    assert [window.charge(now + wait, 1, LIMIT, MINUTE) > 0 for _ in range(3)] == [0, 0, 1]


jumps = st.lists(st.tuples(st.integers(-100 * SECOND, 90 * SECOND), st.integers(1, 9)), max_size=50)


@given(jumps)
def test_a_clock_that_jumps_about_breaks_nothing(steps: list[tuple[int, int]]) -> None:
    """6.6: whatever the store's clock does, used is what is remembered, not above the limit."""
    window, now = Window(), EPOCH
    for pause, units in steps:
        now += pause
        window.charge(now, units, 20, MINUTE)
        assert 0 <= window.used <= 20
        assert window.used == window.count + sum(window.packed[2::3])


def test_a_full_key_takes_little_memory() -> None:
    """6.7: at most 1.3 KiB a key with a limit of 600, however the requests are spread."""
    worst = 0
    for gap in (1_000, 20_000, 100_000, 249_999, 250_000, 250_001, 251_000):
        window = Window()
        randomly = random.Random(gap)
        now = EPOCH
        for _ in range(3_000):
            now += randomly.randint(gap // 2, gap * 3 // 2)
            window.charge(now, 1, LIMIT, MINUTE)
            worst = max(worst, len(window.packed))
    assert worst <= 243 * 3
    window = Window()
    key = ("app", "an-app-with-a-name", "2001:db8:ffff::/48")
    numbers = [window.due, window.newest, window.end, window.used, window.count]
    own = sys.getsizeof(window) + sum(map(sys.getsizeof, numbers)) + 5 * 8
    # A place in a dictionary: an entry of 24 bytes and an index of 4, a third of them free.
    place = sys.getsizeof(key) + sys.getsizeof(key[2]) + 28 * 3 // 2
    assert own + sys.getsizeof(bytes(worst)) + place <= 1331


@pytest.mark.parametrize("seconds", [0.001, 1, 59.9, 60, 86_400])
def test_a_span_is_cut_into_cells_that_a_byte_can_count(seconds: float) -> None:
    """6.1: whatever the span, gaps and places fit into a byte each."""
    span = Span.of(seconds)
    assert span.length // span.cell + 2 <= 255
    assert span.cell // span.place == 250
    assert span.cell <= max(span.length / 240 * 1.02, 250)


def test_a_resolution_of_at_most_250_ms() -> None:
    """6.1: stamps of a window of 60 s are merged within 250 ms."""
    assert MINUTE.cell == 250_000


def test_a_quota_is_a_day_of_utc() -> None:
    """8.5: the daily quota begins anew at midnight UTC, and the wait is until then."""
    quota = Quota()
    now = 3 * DAY + 5 * SECOND
    quota.settle(now)
    assert quota.reset(now) == 0
    assert quota.wait(now, 10, 10) == 0
    quota.used += 4
    assert quota.wait(now, 6, 10) == 0
    assert quota.wait(now, 7, 10) == DAY - 5 * SECOND
    assert quota.wait(now, 11, 10) == NEVER
    assert quota.reset(now) == DAY - 5 * SECOND
    quota.settle(4 * DAY - 1)
    assert quota.used == 4
    quota.settle(4 * DAY)
    assert quota.used == 0
    quota.settle(3 * DAY)
    assert quota.used == 0
    assert quota.day == 4
