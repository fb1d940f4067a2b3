"""Fair shares of connections, requests, descriptors and memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.admission.sharing import Pressure, connection_limits, may_have_more


def fill(limit: int, holders: int) -> list[int]:
    """Let holders take in turn until nobody may have more."""
    held = [0] * holders
    taken = True
    while taken:
        taken = False
        for holder in range(holders):
            if may_have_more(limit, sum(held), held[holder]):
                held[holder] += 1
                taken = True
    return held


@pytest.mark.parametrize(
    ("limit", "holders", "each"), [(100, 1, 50), (90, 2, 30), (100, 3, 25), (1000, 9, 100)]
)
def test_greedy_holders_leave_as_much_as_each_has(limit: int, holders: int, each: int) -> None:
    """3.11: one app or one caller cannot take the last of what the others need."""
    assert fill(limit, holders) == [each] * holders


@given(st.integers(1, 300), st.integers(1, 20))
def test_never_more_than_there_is_and_never_nothing(limit: int, holders: int) -> None:
    """3.11: the sum stays within the limit, and a newcomer finds something free."""
    held = fill(limit, holders)
    assert sum(held) <= limit
    assert limit < 2 or may_have_more(limit, sum(held), 0) or sum(held) == limit


@pytest.mark.parametrize(
    ("files", "wished", "limits"),
    [(256, 50_000, (96, 96)), (1_048_576, 50_000, (50_000, 998_512)), (10, 50_000, (1, 1))],
)
def test_descriptors_are_divided(files: int, wished: int, limits: tuple[int, int]) -> None:
    """3.11: clients and hosts each have their part of the descriptors, others a reserve."""
    assert connection_limits(files, wished) == limits


def test_pressure_does_not_flutter() -> None:
    """3.11: connections are refused above 90 % of the memory and taken again below 80 %."""
    pressure = Pressure(1000)
    assert [pressure.look(size) for size in (899, 901, 850, 801, 799, 850)] == [
        *(False, True, True, True, False, False)
    ]
    assert not Pressure(None).look(1 << 60)


def test_requests_are_refused_after_connections() -> None:
    """3.11: above 95 % new requests are refused, too, and taken again below 90 %."""
    pressure = Pressure(1000)
    found = []
    for size in (499, 501, 940, 951, 910, 899, 940):
        pressure.look(size)
        found.append((pressure.near, pressure.high, pressure.higher))
    assert found == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
        (True, True, True),
        (True, True, False),
        (True, True, False),
    ]
