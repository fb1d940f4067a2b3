"""The figures of our own event loop's lag."""

from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.lag import RECENT, Lag


def test_most_and_recent() -> None:
    """1.7: A stall is told for some seconds after it, and its figure is kept."""
    lag = Lag()
    assert lag.recent(0.0) == lag.most == 0.0
    lag.note(12.0, 100.0)
    lag.note(0.01, 100.25)
    assert lag.recent(101.0) == 12.0
    assert lag.recent(100.0 + RECENT + 0.1) == 0.01
    assert lag.recent(200.0) == 0.0
    assert lag.most == 12.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20)), max_size=50))
def test_recent_is_the_most_of_the_last_seconds(notes: list[tuple[float, float]]) -> None:
    """1.7: However the lags came, the figure is the highest of the last ten seconds."""
    lag, now, all_of_them = Lag(), 0.0, []
    for passed, seconds in notes:
        now += passed
        lag.note(seconds, now)
        all_of_them.append((now, seconds))
        assert lag.recent(now) == max(s for at, s in all_of_them if at >= now - RECENT)
        assert len(lag._falling) <= len(all_of_them)
