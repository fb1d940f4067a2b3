"""directory.py: which list is in force, for how long, and whose keys verify."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.peers.directory import Directory, Mode, Reason, View, worries
from smartgw_hosts.clusters import ClusterList, Fault, parse
from smartgw_hosts.identity import Identity, PublicKey

GRACE = 30.0


def key(number: int) -> PublicKey:
    return Identity.from_seed(number.to_bytes(32, "big")).public_key


def listed(*ids: str, **members: Any) -> ClusterList:
    """A list of these clusters; an id may carry its state: `c2:gone`."""
    entries = []
    for number, text in enumerate(ids, 1):
        cluster_id, _, state = text.partition(":")
        entries.append(
            {
                "id": cluster_id,
                "gateways": [f"http://10.0.0.{number}:80"],
                "keys": [key(number).text],
                "state": state or "active",
            }
        )
    return parse(json.dumps({"clusters": entries} | members).encode())


def directory() -> Directory:
    return Directory("c1", GRACE)


def test_nothing_is_known_before_the_first_list() -> None:
    """4.4: without a list the owner is unknown and the local instance serves."""
    view = directory().view
    assert view == View(Mode.UNKNOWN, "c1")
    assert view.owner("shop") is None
    assert view.epoch is None
    assert (view.affinity, view.failover) == (False, False)
    assert view.peers == {}


def test_a_list_gives_owners_peers_and_keys() -> None:
    """4.3: active and draining clusters own apps and are peers; one that is gone is neither."""
    known = directory()
    clusters = listed("c1", "c2:draining", "c3:gone", affinity=False)
    known.take(clusters, 100.0)
    view = known.view
    assert view.mode is Mode.FRESH
    assert view.owner("shop") == clusters.owner("shop")
    assert list(view.peers) == ["c2"]
    assert view.keys == {"c2": (key(2),)}
    assert (view.affinity, view.failover) == (False, True)
    assert view.epoch == clusters.epoch
    assert view.endpoints == {("10.0.0.1", 80), ("10.0.0.2", 80), ("10.0.0.3", 80)}
    assert known.due is None


def test_the_last_good_list_serves_for_the_grace() -> None:
    """4.4: if the list is unreachable, the last good one serves for a grace of 30 s; after that
    the owner is unknown. 4.3: keys last seen keep verifying, also after the grace.
    """
    known = directory()
    known.take(listed("c1", "c2"), 100.0)
    known.failed(104.0)
    assert known.view.mode is Mode.GRACE
    assert known.view.owner("shop") is not None
    assert known.due == 130.0
    known.failed(129.9)
    assert known.view.mode is Mode.GRACE
    known.tick(130.0)
    view = known.view
    assert view.mode is Mode.UNKNOWN
    assert view.owner("shop") is None
    assert view.peers == {}
    assert view.keys == {"c2": (key(2),)}
    assert known.due is None
    known.failed(500.0)
    assert known.view is view
    known.take(listed("c1", "c3"), 600.0)
    assert known.view.mode is Mode.FRESH
    assert known.view.keys == {"c3": (key(2),)}


def test_a_list_that_is_confirmed_again_is_no_change() -> None:
    """4.6: a request keeps the view it started with, and equal lists are one view."""
    known = directory()
    known.take(listed("c1", "c2"), 100.0)
    view = known.view
    known.take(listed("c1", "c2"), 105.0)
    assert known.view is view
    assert known.changes == 1
    known.failed(110.0)
    known.take(listed("c1", "c2"), 111.0)
    assert known.view == view
    assert known.changes == 1


def test_an_old_view_stays_as_it_was() -> None:
    """4.6: a joining or leaving cluster does not change the view that a request started with."""
    known = directory()
    known.take(listed("c1", "c2"), 100.0)
    held = known.view
    owner = held.owner("shop")
    known.take(listed("c1", "c3", "c4"), 101.0)
    assert held.owner("shop") == owner
    assert list(held.peers) == ["c2"]
    assert list(known.view.peers) == ["c3", "c4"]


@pytest.mark.parametrize("clusters", [listed(), listed("c1:gone", "c2:gone")])
def test_an_empty_answer_makes_owners_unknown_at_once(clusters: ClusterList) -> None:
    """4.4: at once when a valid answer is empty, the owner is unknown; 4.3: it is a newer list,
    so it replaces the keys.
    """
    known = directory()
    known.take(listed("c1", "c2"), 100.0)
    known.take(clusters, 101.0)
    assert known.view.mode is Mode.UNKNOWN
    assert known.view.owner("shop") is None
    assert known.view.clusters is not None
    assert known.view.keys == {}
    known.failed(102.0)
    known.tick(131.0)
    assert known.view.clusters is None


def test_a_list_is_as_old_as_its_source_says() -> None:
    """4.4: gateways that ask each other do not keep a list alive beyond its grace."""
    known = directory()
    known.take(listed("c1", "c2"), 100.0, age=20.0)
    modes = []
    for now in (104.0, 110.0):
        known.failed(now)
        modes.append(known.view.mode)
    assert modes == [Mode.GRACE, Mode.UNKNOWN]
    assert known.too_old(GRACE)
    assert not known.too_old(GRACE - 0.1)


def test_a_stalled_gateway_forgets_nothing() -> None:
    """1.7, 4.4: who did not run for a minute has not found the list unreachable."""
    known = directory()
    known.take(listed("c1", "c2"), 100.0)
    known.tick(200.0)
    assert known.view.mode is Mode.FRESH


def test_refusals_are_counted_by_reason() -> None:
    """4.3: refused lists are counted, each fault of a list among the reasons."""
    known = directory()
    for fault in Fault:
        known.refused(Reason(fault.value))
    known.refused(Reason.TIMED_OUT)
    assert {r.value for r, count in known.counters.items() if count} == {*Fault, "timed_out"}
    assert set(known.counters) == set(Reason)


def test_the_grace_is_a_setting() -> None:
    """4.4: the grace is a setting, and a reload changes it."""
    known = directory()
    known.take(listed("c1"), 100.0)
    known.configure(5.0)
    known.failed(105.0)
    assert known.view.mode is Mode.UNKNOWN


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "empty", "failed", "tick"]),
            st.floats(0.1, 20.0),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_modes_are_a_function_of_what_came(steps: list[tuple[str, float, bool]]) -> None:
    """4.4: a list serves from when it came until an empty one, or the grace since it was last
    confirmed, and never longer.
    """
    known, now = directory(), 0.0
    one, other = listed("c1", "c2"), listed("c1", "c2", "c3")
    confirmed, failing, current = float("-inf"), False, None
    for step, later, which in steps:
        now += later
        match step:
            case "take":
                current, confirmed, failing = one if which else other, now, False
                known.take(current, now)
            case "empty":
                current, confirmed, failing = listed(), now, False
                known.take(current, now)
            case "failed":
                failing = True
                known.failed(now)
            case _:
                known.tick(now)
        if failing and now >= confirmed + GRACE:
            current = None
        view = known.view
        assert view.clusters == current
        if current is None or not current.voters:
            assert view.mode is Mode.UNKNOWN
        else:
            assert view.mode is (Mode.GRACE if failing else Mode.FRESH)
            assert view.keys == {c.id: c.keys for c in current.clusters if c.id != "c1"}


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (View(Mode.NONE, "c1"), []),
        (View(Mode.UNKNOWN, "c1"), ["no list of clusters"]),
        (View(Mode.UNKNOWN, "c1", listed()), ["is empty"]),
        (View(Mode.FRESH, "c1", listed("c1", "c2")), []),
        (View(Mode.GRACE, "c1", listed("c1", "c2")), ["last good list"]),
        (View(Mode.FRESH, "c1", listed("c2")), ["does not list this cluster, c1"]),
        (View(Mode.GRACE, "c1", listed("c2")), ["last good", "does not list this cluster"]),
        (View(Mode.FRESH, "c1", listed("c1:gone", "c2")), ["as gone"]),
        (View(Mode.FRESH, "c1", listed("c2", "c1")), [f"does not list our key, {key(1).text}"]),
    ],
    ids=lambda value: f"{value.mode}" if isinstance(value, View) else "",
)
def test_what_is_wrong_is_said(view: View, said: list[str]) -> None:
    """4.4: the mode is shown; a cluster whose key is not listed is told so."""
    lines = worries(view, key(1))
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert line.startswith("peers: ")
        assert part in line
