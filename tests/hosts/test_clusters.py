"""clusters.py: which lists come into force, and which are refused as a whole."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.clusters import (
    MAX_BYTES,
    MAX_CLUSTERS,
    Cluster,
    ClusterList,
    Fault,
    Gateway,
    ListRefused,
    State,
    parse,
)
from smartgw_hosts.identity import Identity, PublicKey
from smartgw_hosts.owner import epoch, owner


def key(number: int) -> PublicKey:
    return Identity.from_seed(number.to_bytes(32, "big")).public_key


def entry(cluster_id: str, number: int, **members: Any) -> dict[str, Any]:
    return {
        "id": cluster_id,
        "gateways": [f"https://10.0.0.{number}:8443"],
        "keys": [key(number).text],
        "state": "active",
    } | members


def text(*entries: Any, **members: Any) -> bytes:
    return json.dumps({"clusters": list(entries)} | members).encode()


def refused(data: bytes, *, by_hand: bool = False) -> ListRefused:
    with pytest.raises(ListRefused) as caught:
        parse(data, by_hand=by_hand)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isascii()
    return caught.value


def test_a_list_says_all_of_each_cluster() -> None:
    """4.3: id, gateway URLs, public keys (up to two, for rotation), state, switches, epoch."""
    urls = ["http://[2001:DB8::1]:80/", "http://GW.example-1"]
    found = parse(
        text(
            entry("us", 2, gateways=urls, keys=[key(2).text, key(3).value.hex()], state="draining"),
            entry("eu", 1),
            affinity=False,
        )
    )
    assert found.clusters == (
        Cluster(
            "eu",
            (Gateway("https://10.0.0.1:8443", "10.0.0.1", 8443),),
            (key(1),),
            State.ACTIVE,
            plain=False,
        ),
        Cluster(
            "us",
            (
                Gateway("http://[2001:db8::1]:80", "2001:db8::1", 80),
                Gateway("http://gw.example-1:80", "gw.example-1", 80),
            ),
            (key(2), key(3)),
            State.DRAINING,
            plain=True,
        ),
    )
    assert (found.affinity, found.failover) == (False, True)
    assert found.voters == ("eu", "us")
    assert found.get("us") == found.clusters[1]
    gateways = [gateway for cluster in found.clusters for gateway in cluster.gateways]
    assert [gateway.by_address for gateway in gateways] == [True, True, False]
    assert found.get("asia") is None


def test_owners_are_those_of_active_and_draining_clusters() -> None:
    """4.1: S is the ids listed as active or draining; the epoch is over the same ids."""
    found = parse(text(entry("b", 1, state="draining"), entry("c", 2, state="gone"), entry("a", 3)))
    assert found.voters == ("a", "b")
    assert found.epoch == epoch(["a", "b"])
    for number in range(50):
        for _ in range(2):
            assert found.owner(f"app-{number}") == owner(f"app-{number}", ["a", "b"])


def test_an_empty_list_is_valid_and_has_no_owners() -> None:
    """4.4: a valid answer that is empty says that the owner is unknown."""
    gone = {"id": "a", "gateways": [], "keys": [], "state": "gone"}
    for data in (text(), text(gone)):
        found = parse(data)
        assert found.voters == ()
        assert found.owner("shop") is None


LISTS = st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True), unique=True)


@given(LISTS, st.booleans(), st.booleans(), st.randoms())
def test_what_a_gateway_tells_is_read_back(
    ids: list[str], affinity: bool, failover: bool, random: Any
) -> None:
    """4.3: validators and hosts read the very same shape; the order in a file changes nothing."""
    states = list(State)
    entries = [
        entry(cluster_id, number, gateways=[f"http://gw:{number}"], state=random.choice(states))
        for number, cluster_id in enumerate(ids, 1)
    ]
    found = parse(text(*entries, affinity=affinity, failover=failover))
    assert parse(found.text(), by_hand=True) == found
    random.shuffle(entries)
    assert parse(text(*entries, affinity=affinity, failover=failover)).text() == found.text()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.NOT_JSON),
        (b"<html>502</html>", Fault.NOT_JSON),
        (b"[]", Fault.NOT_JSON),
        (b'{"clusters": [], "clusters": []}', Fault.NOT_JSON),
        (b"[" * 100_000, Fault.NOT_JSON),
        (b"{}", Fault.MALFORMED),
        (b'{"clusters": {}}', Fault.MALFORMED),
        (b'{"clusters": [7]}', Fault.MALFORMED),
        (b" " * MAX_BYTES + b"{}", Fault.TOO_LARGE),
        ('{"clusters": [], "note": "é"}'.encode(), Fault.NOT_ASCII),
        (text(*({} for _ in range(MAX_CLUSTERS + 1))), Fault.TOO_LARGE),
        (
            # Written out with its ports it is longer than it came.
            text(
                *(
                    entry(f"c{n}", n, gateways=[f"https://g{n}-{m}" for m in range(64)])
                    for n in range(1, 200)
                )
            ).replace(b" ", b""),
            Fault.TOO_LARGE,
        ),
        (text(entry("a", 1), affinity="yes"), Fault.MALFORMED),
        (text(entry("a", 1), failover=None), Fault.MALFORMED),
        (text(entry("a", 1), epoch="0" * 16), Fault.WRONG_EPOCH),
        (text(entry("a", 1), epoch=7), Fault.WRONG_EPOCH),
        (text(entry("a", 1), entry("a", 2)), Fault.DUPLICATE),
        (text(entry("a", 1), entry("b", 1, keys=[key(2).text])), Fault.DUPLICATE),
        (text(entry("a", 1), entry("b", 2, keys=[key(1).text])), Fault.DUPLICATE),
        (text(entry("a", 1, keys=[key(1).text, key(1).value.hex()])), Fault.DUPLICATE),
        (text(entry("a", 1, gateways=["https://g", "https://G:443/"])), Fault.DUPLICATE),
    ],
    ids=lambda value: str(value) if isinstance(value, Fault) else value[:40].decode("latin-1"),
)
def test_a_list_is_refused_as_a_whole(data: bytes, fault: Fault) -> None:
    """4.3: malformed, duplicate, oversized or non-ASCII lists are refused as a whole."""
    assert refused(data).fault is fault


@pytest.mark.parametrize(
    "members",
    [
        {"id": "a.b"},
        {"id": "a*"},
        {"id": "é"},
        {"id": "x" * 65},
        {"id": None},
        {"id": ""},
        {"state": "down"},
        {"state": None},
        {"state": ["active"]},
        {"keys": []},
        {"keys": "ed25519:x"},
        {"keys": ["ed25519:x"]},
        {"keys": [7]},
        {"keys": [bytes(32).hex()]},
        {"keys": [key(n).text for n in range(1, 4)]},
        {"gateways": []},
        {"gateways": None},
        {"gateways": [f"https://g{n}" for n in range(65)]},
        {"gateways": ["https://a", "http://b"]},
        {"gateways": ["ftp://a"]},
        {"gateways": ["https://a:0"]},
        {"gateways": ["https://a:65536"]},
        {"gateways": ["https://a/path"]},
        {"gateways": ["https://a?x"]},
        {"gateways": ["https://u:p@a"]},
        {"gateways": ["https://a b"]},
        {"gateways": ["https://-a"]},
        {"gateways": ["https://a..b"]},
        {"gateways": ["https://127.1"]},
        {"gateways": ["https://010.0.0.1"]},
        {"gateways": ["https://0x7f000001"]},
        {"gateways": ["https://10.0.0.1."]},
        {"gateways": ["https://gw.1"]},
        {"gateways": ["https://[::1%25lo]"]},
        {"gateways": ["https://[1.2.3.4]"]},
        {"gateways": ["https://\u212b.example"]},
        {"gateways": [""]},
    ],
    ids=str,
)
def test_a_malformed_cluster_refuses_the_list(members: dict[str, Any]) -> None:
    """4.3: the fault is told with its place, and no half of a list comes into force."""
    told = refused(text(entry("good", 1), entry("bad", 2) | members))
    assert told.fault is Fault.MALFORMED
    assert str(told).startswith("clusters[1]")


def test_a_missing_member_refuses_the_list() -> None:
    """4.3: a list in which something is missing is malformed."""
    for name in ("id", "gateways", "keys", "state"):
        less = entry("a", 1)
        del less[name]
        assert refused(text(less)).fault is Fault.MALFORMED


def test_a_person_misspells_and_a_validator_is_later() -> None:
    """4.3: a switch that is misspelt in a file is found; a later version may say more."""
    told = refused(text(entry("a", 1), afinity=False), by_hand=True)
    assert "'afinity': unknown" in str(told)
    told = refused(text(entry("a", 1, weigth=1)), by_hand=True)
    assert str(told).startswith("clusters[0].'weigth': unknown")
    assert parse(text(entry("a", 1, region="fra"), age=3)).voters == ("a",)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    """4.3: garbage is refused, whatever it is."""
    with contextlib.suppress(ListRefused):
        assert isinstance(parse(data), ClusterList)


def test_the_cache_of_owners_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.1: owners are cached for every route, and the cache cannot grow for ever."""
    monkeypatch.setattr("smartgw_hosts.clusters._OWNERS_KEPT", 8)
    found = parse(text(entry("a", 1), entry("b", 2)))
    for number in range(100):
        assert found.owner(f"app-{number}") == owner(f"app-{number}", ["a", "b"])
        assert len(found._owners) <= 8
