"""The token bucket of what must not be begun all at once."""

from __future__ import annotations

import pytest

from smartgw_hosts.pace import Pace


def test_as_many_as_its_rate() -> None:
    """1.8: a burst may begin at once, whatever follows only so many a second."""
    pace = Pace(100.0, 4.0)
    assert [pace.take(10.0) for _ in range(4)] == [0.0] * 4
    assert pace.take(10.0) == pytest.approx(0.01)
    began, now = 0, 10.0
    while now < 11.0:
        wait = pace.take(now)
        began += wait == 0.0
        now += wait
    assert began == pytest.approx(100, abs=1)


def test_rest_is_not_saved_up() -> None:
    """1.8: however long nothing was begun, the burst is not exceeded."""
    pace = Pace(100.0, 2.0)
    assert pace.take(0.0) == 0.0
    assert [pace.take(1e6) == 0.0 for _ in range(3)] == [True, True, False]


def test_a_clock_that_stands() -> None:
    """A time that was told already, or an earlier one, gives nothing."""
    pace = Pace(10.0, 1.0)
    assert pace.take(5.0) == 0.0
    assert pace.take(5.0) > 0.0
    assert pace.take(4.0) > 0.0
