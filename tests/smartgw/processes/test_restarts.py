"""When a worker is replaced, and when it counts as stuck."""

from smartgw.processes.restarts import (
    MOST_SECONDS,
    SILENT_TICKS,
    STARTING_TICKS,
    Restarts,
    Silence,
)


def test_a_worker_is_replaced_at_once() -> None:
    """11.1: a worker that dies after a good life is replaced without delay."""
    restarts = Restarts()
    assert restarts.died(60.0) == 0.0
    assert restarts.died(60.0) == 0.0
    assert restarts.count == 2


def test_one_that_dies_of_its_start_is_waited_for() -> None:
    """11.1: replaced with back-off, which grows to a bound and is forgotten after a good life."""
    restarts = Restarts()
    delays = [restarts.died(0.1) for _ in range(9)]
    assert delays[:4] == [0.0, 0.25, 0.5, 1.0]
    assert delays[-1] == MOST_SECONDS
    assert restarts.died(60.0) == 0.0


def test_silence_is_counted_in_our_own_ticks() -> None:
    """1.7: a process that did not run itself blames nobody for having said nothing."""
    silence = Silence()
    assert [silence.tick() for _ in range(STARTING_TICKS)] == [False] * STARTING_TICKS
    assert silence.tick()
    silence.heard()
    assert [silence.tick() for _ in range(SILENT_TICKS)] == [False] * SILENT_TICKS
    assert silence.tick()
    silence.heard()
    assert not silence.tick()
    silence.begin()
    assert [silence.tick() for _ in range(STARTING_TICKS)] == [False] * STARTING_TICKS
