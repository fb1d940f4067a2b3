"""guard.py: which writes a host may do, by which list, and which app a request is for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.clusters import ClusterList, parse
from smartgw_hosts.guard import GRACE, Accept, Guard, NotOwner, app_line, app_of, is_write
from smartgw_hosts.identity import Identity
from smartgw_hosts.owner import owner

IDS = ("c1", "c2", "c3")
OURS, THEIRS = (
    next(app for app in (f"app-{n}" for n in range(100)) if (owner(app, IDS) == "c1") == ours)
    for ours in (True, False)
)


def listed(*ids: str, affinity: bool = True, gone: tuple[str, ...] = ()) -> ClusterList:
    """A list of these clusters, those in `gone` among them."""
    clusters = [
        {
            "id": name,
            "gateways": [f"http://10.0.0.{n}:80"],
            "keys": [Identity.from_seed(name.encode().ljust(32)).public_key.text],
            "state": "gone" if name in gone else "active",
        }
        for n, name in enumerate(ids, 1)
    ]
    return parse(json.dumps({"affinity": affinity, "clusters": clusters}).encode())


def guarding(clusters: ClusterList | None = None, age: float = 0.0) -> Guard:
    """The guard of a host of c1, with a list from second 100 on."""
    guard = Guard("c1")
    if clusters is not None:
        guard.take(clusters, 100.0, age)
    return guard


def test_our_own_write() -> None:
    """4.8: the owner's host does the write."""
    guard = guarding(listed(*IDS))
    assert guard.judge(OURS, 100.0) is Accept.SURE
    assert guard.owner_of(OURS, 100.0) == "c1"


def test_a_write_for_another_cluster() -> None:
    """4.8: at a non-owner 421 with owner and epoch, marked as the SDK's."""
    clusters = listed(*IDS)
    guard = guarding(clusters)
    refused = guard.judge(THEIRS, 100.0)
    assert isinstance(refused, NotOwner)
    assert (refused.owner, refused.epoch) == (owner(THEIRS, IDS), clusters.epoch)
    assert refused.field == (
        b"x-smartgw-owner",
        f"{refused.owner}; epoch={refused.epoch}".encode(),
    )
    error = json.loads(refused.body)["error"]
    assert (error["status"], error["reason"]) == (421, "not_owner")
    assert (error["owner"], error["epoch"]) == (refused.owner, refused.epoch)
    assert guard.counters == {"refused": 1, "unsure": 0}


@given(st.text(min_size=1, max_size=30), st.integers(1, 7), st.integers(0, 6))
def test_any_app(app: str, count: int, place: int) -> None:
    """4.1, 4.8: a host refuses exactly what the one formula gives to another cluster."""
    ids = [f"c{n}" for n in range(count)]
    own = ids[place % count]
    guard = Guard(own)
    guard.take(listed(*ids), 0.0)
    judged = guard.judge(app, 0.0)
    assert (judged is Accept.SURE) == (owner(app, ids) == own)


def test_without_a_list() -> None:
    """4.8: a host without a list accepts and flags."""
    guard = guarding()
    assert guard.judge(THEIRS, 100.0) is Accept.UNSURE
    assert guard.owner_of(THEIRS, 100.0) is None
    assert guard.counters == {"refused": 0, "unsure": 1}


def test_without_affinity() -> None:
    """4.2, 4.8: where the directory switches affinity off, every cluster may write."""
    assert guarding(listed(*IDS, affinity=False)).judge(THEIRS, 100.0) is Accept.SURE


def test_an_empty_list() -> None:
    """4.4: with an empty list, or with nobody in it who counts, the owner is unknown at once."""
    for clusters in (ClusterList(()), listed("c2", gone=("c2",))):
        guard = guarding(listed(*IDS))
        guard.take(clusters, 101.0)
        assert guard.judge(THEIRS, 101.0) is Accept.UNSURE


def test_a_cluster_that_is_gone_or_not_listed() -> None:
    """4.1, 4.8: its hosts own nothing."""
    for clusters in (listed("c1", "c2", gone=("c1",)), listed("c2")):
        judged = guarding(clusters).judge(OURS, 100.0)
        assert isinstance(judged, NotOwner)
        assert judged.owner == "c2"


def test_grace() -> None:
    """4.4: when no gateway can be asked the last good list serves for 30 s; then the host accepts
    and flags, until there is a list again.
    """
    guard = guarding(listed(*IDS))
    assert isinstance(guard.judge(THEIRS, 1e6), NotOwner)
    guard.failed()
    assert isinstance(guard.judge(THEIRS, 100.0 + GRACE - 0.1), NotOwner)
    assert guard.judge(THEIRS, 100.0 + GRACE) is Accept.UNSURE
    assert guard.owner_of(THEIRS, 100.0 + GRACE) is None
    guard.take(listed(*IDS), 200.0)
    assert isinstance(guard.judge(THEIRS, 200.0), NotOwner)


def test_grace_counts_from_the_origin() -> None:
    """4.4: a list that our gateway has in its own grace serves here no longer than there."""
    guard = guarding(listed(*IDS), age=20.0)
    guard.failed()
    assert isinstance(guard.judge(THEIRS, 109.9), NotOwner)
    assert guard.judge(THEIRS, 110.0) is Accept.UNSURE


def test_as_unsure_as_our_gateway() -> None:
    """4.4, 4.8: once the gateway knows no owners and serves by itself, its hosts write."""
    guard = guarding(listed(*IDS))
    guard.forget()
    assert guard.judge(THEIRS, 100.0) is Accept.UNSURE


def test_the_only_cluster() -> None:
    """4.3: without a directory there are no other clusters, and nothing is flagged."""
    guard = guarding(listed(*IDS))
    guard.alone()
    assert guard.judge(THEIRS, 100.0) is Accept.SURE
    assert guard.owner_of(THEIRS, 100.0) == "c1"
    guard.take(listed(*IDS), 101.0)
    assert isinstance(guard.judge(THEIRS, 101.0), NotOwner)
    guard.alone()
    guard.forget()
    assert guard.judge(THEIRS, 102.0) is Accept.UNSURE


def test_an_app_that_is_none() -> None:
    """4.8: what is no app id has no owner."""
    with pytest.raises(ValueError, match="app id"):
        guarding(listed(*IDS)).owner_of("", 100.0)
    assert guarding(listed(*IDS)).judge(None, 100.0) is Accept.UNSURE


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "MKCOL", "get", "TRACE"])
def test_writes(method: str) -> None:
    """5, 4.8: every method but GET, HEAD and OPTIONS is a write."""
    assert is_write(method)
    assert not any(map(is_write, ("GET", "HEAD", "OPTIONS")))


# ---- which app ----


HOST = (b"host", b"Shop.smart-app.example:8080")


@pytest.mark.parametrize(
    ("fields", "apps", "app"),
    [
        ([HOST], ["shop", "blog"], "shop"),
        ([HOST], ["blog"], "blog"),
        ([HOST], ["blog", "wiki"], None),
        ([HOST], ["shop.smart-app.example", "blog"], None),
        ([], ["blog", "wiki"], None),
        ([HOST, (b"X-Smartgw-App", b"blog")], ["shop", "blog"], "blog"),
        ([HOST, (b"x-smartgw-app", b"A%20b%C3%A4")], ["shop", "A bä"], "A bä"),
        ([HOST, (b"x-smartgw-app", b"blog"), (b"x-smartgw-app", b"shop")], ["shop", "blog"], None),
        ([HOST, (b"x-smartgw-app", b"")], ["shop", "blog"], None),
        ([HOST, (b"x-smartgw-app", b"%ff")], ["shop", "blog"], None),
        ([HOST, (b"x-smartgw-app", b"a%0Ab")], ["shop", "blog"], None),
        ([(b"host", b"shop\xe4.example")], ["shop", "blog"], None),
    ],
)
def test_app_of_a_request(
    fields: list[tuple[bytes, bytes]], apps: list[str], app: str | None
) -> None:
    """4.8: the app is what the gateway names, the only one here, or the hostname's label."""
    assert app_of(fields, apps) == app


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=60))
def test_any_app_id_can_be_named(app: str) -> None:
    """3.5, 4.8: whatever an app is called, its host is told in one plain field."""
    name, _, value = app_line(app).partition(b": ")
    assert value.decode().isprintable()
    assert b" " not in value
    assert app_of([(name, value)], ["other"]) == app
