"""Who gets a place: that no crowd keeps a gateway out."""

import pytest

from smartgw_hosts.places import Places


def test_a_crowd_that_says_nothing_gives_way() -> None:
    """3.11: a connection that has not said what it is gives way to a new one, the oldest first."""
    places: Places[str] = Places(8)
    for number in range(8):
        assert places.enter(f"c{number}", f"a{number}") == (True, None)
    assert places.enter("g", "gateway") == (True, "c0")
    assert places.opened("g", proven=True)
    assert not places.opened("c0", proven=True), "it has gone"
    assert places.enter("d", "b") == (True, "c1")
    assert len(places) == 8
    assert sorted(places.all()) == ["c2", "c3", "c4", "c5", "c6", "c7", "d", "g"]


def test_half_of_the_places_are_for_those_who_open_with_a_challenge() -> None:
    """3.11: connections that do not open with a challenge hold at most half of the places."""
    places: Places[str] = Places(8)
    for number in range(5):
        places.enter(f"c{number}", f"a{number}")
    assert [places.opened(f"c{number}", proven=False) for number in range(5)] == [True] * 4 + [
        False
    ]
    places.leave("c4")
    for number in range(4):
        assert places.enter(f"g{number}", "gateway") == (True, None)
        assert places.opened(f"g{number}", proven=True)
    assert places.enter("one too many", "gateway") == (False, None)
    places.leave("c0")
    assert places.enter("the next", "gateway") == (True, None)
    assert places.opened("the next", proven=False)


def test_an_address_holds_a_quarter() -> None:
    """3.11: of connections that have not opened with a challenge an address holds a quarter."""
    places: Places[str] = Places(8)
    assert places.enter("c0", "a") == (True, None)
    assert places.enter("c1", "a") == (True, None)
    assert places.enter("c2", "a") == (False, None)
    assert places.opened("c0", proven=False)
    assert places.enter("c2", "a") == (False, None)
    assert places.opened("c1", proven=True), "it counts no more"
    assert places.enter("c2", "a") == (True, None)
    places.leave("c0")
    places.leave("c0")
    assert places.enter("c3", "a") == (True, None)
    assert places.enter("c4", "a") == (False, None)


@pytest.mark.parametrize("proven", [True, False])
def test_only_the_opening_counts(proven: bool) -> None:
    """3.11: what a connection opened with holds for its life."""
    places: Places[str] = Places(2)
    places.enter("c", "a")
    assert places.opened("c", proven=proven)
    assert places.opened("c", proven=not proven)
    assert places.enter("d", "a")[0] is proven
