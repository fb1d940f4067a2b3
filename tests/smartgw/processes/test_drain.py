"""The phases of a drain, by table and by any order of calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.processes.drain import Drain, Phase, Step


def test_the_order_of_sigterm() -> None:
    """11.1: SIGTERM: not ready, wait 10 s, stop accepting, finish what is in flight (20 s)."""
    drain = Drain(10.0, 20.0)
    assert drain.begin(100.0, final=True) == [Step.RETIRE]
    assert drain.phase is Phase.UNREADY
    assert drain.tick(109.9, 5) == []
    assert drain.tick(110.0, 5) == [Step.STOP, Step.RELEASE]
    assert drain.tick(127.9, 5) == []
    assert drain.tick(128.0, 5) == [Step.SEND_AWAY]
    assert drain.tick(129.9, 1) == []
    assert drain.tick(130.0, 1) == [Step.CUT]
    assert drain.tick(200.0, 0) == []
    assert drain.phase.value == "drained"


def test_nobody_is_waited_for() -> None:
    """11.1: a gateway whose last connection has ended is drained at once."""
    drain = Drain(0.0, 20.0)
    assert drain.begin(0.0) == [Step.RETIRE, Step.STOP]
    assert drain.tick(0.1, 0) == []
    assert drain.phase.value == "draining", "a connection may be taken and not yet counted"
    assert drain.tick(0.2, 0) == []
    assert drain.phase.value == "drained"


@pytest.mark.parametrize("at", [0.0, 5.0, 10.0, 29.0, 31.0])
def test_a_drain_can_be_undone(at: float) -> None:
    """11.1: `drain` does the same without exiting, so it can be undone in every phase."""
    drain = Drain(10.0, 20.0)
    drain.begin(0.0)
    for now in (10.0, 28.0, 30.0):
        if now <= at:
            drain.tick(now, 1)
    assert drain.undo() == [Step.RESUME]
    assert drain.phase is Phase.SERVING
    assert drain.undo() == []


def test_an_end_cannot_be_undone() -> None:
    """11.1: a gateway that is told to end, or has handed its sockets over, ends."""
    drain = Drain(10.0, 20.0)
    drain.begin(0.0, final=True)
    assert drain.undo() == []
    assert drain.phase is Phase.UNREADY


def test_a_drain_becomes_final() -> None:
    """11.1: SIGTERM to a gateway that was drained before lets go of its sockets and ends."""
    drain = Drain(0.0, 20.0)
    drain.begin(0.0)
    assert drain.begin(1.0, final=True) == [Step.RELEASE]
    assert drain.begin(2.0, final=True) == []


def test_the_wait_is_cut_short() -> None:
    """11.1: once the next generation serves, the old one stops accepting at once."""
    drain = Drain(10.0, 20.0)
    drain.begin(0.0, final=True)
    assert drain.begin(1.0, wait=False, final=True) == [Step.STOP, Step.RELEASE]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "final", "now", "undo", "tick"]),
            st.floats(0.0, 20.0),
            st.integers(0, 2),
        ),
        max_size=30,
    )
)
def test_any_order_of_calls(calls: list[tuple[str, float, int]]) -> None:
    """11.1: nobody is cut before the time to drain is over, and a final drain ends by itself."""
    drain = Drain(10.0, 20.0)
    now, stopped, released = 0.0, 0.0, False
    for call, seconds, connections in calls:
        now += seconds
        before = drain.phase
        match call:
            case "begin":
                steps = drain.begin(now)
            case "final":
                steps = drain.begin(now, final=True)
            case "now":
                steps = drain.begin(now, wait=False)
            case "undo":
                steps = drain.undo()
            case _:
                steps = drain.tick(now, connections)
        stopped = now if Step.STOP in steps else stopped
        released = released or Step.RELEASE in steps
        if Step.CUT in steps:
            assert now >= stopped + 20.0
        if Step.RESUME in steps:
            assert before is not Phase.SERVING
            assert not released
    drain.begin(now, final=True)
    for _ in range(400):
        now += 0.1
        drain.tick(now, 1)
    assert drain.phase is Phase.DRAINED
