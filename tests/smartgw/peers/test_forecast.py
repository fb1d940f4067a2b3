"""forecast.py: what a change of clusters moves, against counting."""

import math

from hypothesis import given
from hypothesis import strategies as st

from smartgw.peers.forecast import Move, moves, share
from smartgw_hosts.owner import owner

IDS = st.lists(st.sampled_from([f"c{n}" for n in range(9)]), min_size=1, unique=True)


@given(IDS, IDS)
def test_the_share_is_that_of_many_apps(before: list[str], after: list[str]) -> None:
    """4.1: which share of apps would move: exact, so it is what a count of many apps comes to."""
    apps = [f"app-{number}" for number in range(2000)]
    moving = moves(apps, before, after)
    deviation = math.sqrt(0.25 / len(apps))
    assert abs(len(moving) / len(apps) - share(before, after)) < 6 * deviation
    for move in moving:
        assert move.owner == owner(move.app_id, before)
        assert move.next_owner == owner(move.app_id, after)


def test_a_change_of_the_number_moves_most() -> None:
    """4.1: a change of N moves most apps: three quarters when the fourth of four comes."""
    assert share(["c1", "c2", "c3"], ["c1", "c2", "c3", "c4"]) == 0.75
    assert share(["c2", "c1"], ["c1", "c2"]) == 0
    assert share(["a"], ["b"]) == 1
    assert share([f"a{n}" for n in range(256)], [f"b{n}" for n in range(255)]) == 1


def test_what_stays_is_not_named() -> None:
    """4.1: which of the known ones would move, in their order."""
    clusters = ["c1", "c2", "c3"]
    assert moves(["shop", "blog", "a"], clusters, [*clusters, "c4"]) == [
        Move("shop", "c3", "c4"),
        Move("blog", "c1", "c2"),
    ]
    assert moves(["shop"], clusters, reversed(clusters)) == []
