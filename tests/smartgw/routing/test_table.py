"""table.py: what hosts announce becomes hostnames; a Snapshot answers as a dict would."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartgw.routing import table
from smartgw.routing.table import HostEntry, HostUpdate, Route, RoutingTable, Snapshot
from smartgw_hosts.identity import Identity

BASES = ("smart-app.example", "apps.test")
KEY = Identity.from_seed(bytes(32)).public_key
OTHER_KEY = Identity.from_seed(bytes([1] * 32)).public_key


def update(
    host_id: str, *apps: str, routed: bool = True, address: str = "10.0.0.1:80", weight: int = 100
) -> HostUpdate:
    """A host that may serve these apps."""
    return HostUpdate(host_id, address, KEY, apps, weight, routed)


def make(*own: str) -> RoutingTable:
    """An empty table."""
    return RoutingTable(BASES, own)


def hosts(route: Route | None) -> list[str] | None:
    """The ids of a route's hosts, None for no route."""
    return None if route is None else [entry.host_id for entry in route.hosts]


def test_exactly_one_label() -> None:
    """3.3: `<label>.<base domain>` with exactly one label, under each base domain; R07."""
    snapshot = make().apply([update("h1", "shop")], [])
    for base in BASES:
        assert hosts(snapshot.lookup(f"shop.{base}".encode())) == ["h1"]
        for name in (base, f"a.shop.{base}", f"shopx.{base}", f".{base}", f"shop.{base}.evil.test"):
            assert snapshot.lookup(name.encode()) is None
    assert snapshot.lookup(b"shop") is None
    assert snapshot.lookup(b"shop.") is None
    assert snapshot.lookup(b"xsmart-app.example") is None


@pytest.mark.parametrize(
    "app", ["Shop", "SHOP", "a.b", "a_b", "-a", "a-", "", "x" * 64, "münchen", "a b", "*", "a/b"]
)
def test_no_label(app: str) -> None:
    """Ids: a label is the app id where that is a DNS label; others have none of their own."""
    snapshot = make().apply([update("h1", app, "shop")], [])
    assert [name for name in snapshot.routes() if not name.startswith(b"shop.")] == []
    assert len(snapshot.routes()) == len(BASES)


def test_labels_that_no_app_can_take() -> None:
    """3.3: the gateway's own hostnames beat apps; their labels and `verify` cannot be taken."""
    made = make("api.apps.test", "gw.example", "a.b.apps.test", "gw")
    apps = ("api", "verify", "gw", "b", "verify2")
    for snapshot in (made.apply([update("h1", *apps)], []), made.declare(apps, True)):
        assert snapshot.own == {b"api.apps.test", b"gw.example", b"a.b.apps.test", b"gw"}
        names = {
            label + b"." + base.encode() for label in (b"gw", b"b", b"verify2") for base in BASES
        }
        assert set(snapshot.routes()) == names
    snapshot = made.rename(BASES, ("b.smart-app.example",))
    assert {name.partition(b".")[0] for name in snapshot.routes()} == {b"api", b"gw", b"verify2"}
    assert snapshot.own == {b"b.smart-app.example"}
    assert snapshot.complete


def test_known_app_without_hosts() -> None:
    """3.4: a known app with nothing to serve it has a route without hosts, never no route."""
    made = make()
    name = b"shop.apps.test"
    assert hosts(made.apply([update("h1", "shop", routed=False)], []).lookup(name)) == []
    assert hosts(made.apply([update("h1", "shop")], []).lookup(name)) == ["h1"]
    assert hosts(made.apply([update("h1", "shop", routed=False)], []).lookup(name)) == []
    assert hosts(made.apply([], ["h1"]).lookup(name)) is None
    assert hosts(made.declare(["shop"], False).lookup(name)) == []
    assert hosts(made.apply([update("h1", "shop")], []).lookup(name)) == ["h1"]
    assert hosts(made.apply([], ["h1"]).lookup(name)) == []
    assert hosts(made.declare([], True).lookup(name)) is None
    assert made.snapshot.complete


def test_removed_and_back_in_one_go() -> None:
    """1.5: a host that is removed and comes again in the same batch is routed; no trace is left."""
    made = make()
    made.apply([update("h1", "shop")], [])
    snapshot = made.apply([update("h1", "mail")], ["h1", "unknown"])
    assert hosts(snapshot.lookup(b"shop.apps.test")) is None
    assert hosts(snapshot.lookup(b"mail.apps.test")) == ["h1"]


def test_entries_are_the_same_until_they_change() -> None:
    """3.8: a heartbeat that changes nothing changes no entry, so no connection ends for it."""
    made = make()
    made.apply([update("h1", "shop")], [])
    first = made.entry("h1")
    assert first is not None
    before = made.snapshot.lookup(b"shop.apps.test")
    made.apply([update("h1", "shop")], [])
    assert made.entry("h1") is first
    assert made.snapshot.lookup(b"shop.apps.test") is before
    made.apply([update("h1", "shop", "mail")], [])
    assert made.entry("h1") is first
    for changed in (
        update("h1", "shop", address="10.0.0.2:80"),
        update("h1", "shop", weight=7),
        HostUpdate("h1", "10.0.0.1:80", OTHER_KEY, ("shop",), 7, True),
    ):
        last = made.entry("h1")
        made.apply([changed], [])
        entry = made.entry("h1")
        assert entry is not None
        assert entry is not last
        assert (entry.address, entry.weight, entry.key) == (
            changed.address,
            changed.weight,
            changed.key,
        )
    made.apply([update("h1", "shop", routed=False)], [])
    assert made.entry("h1") is None


def test_shares() -> None:
    """3.7: a route carries what a draw by weight needs, if weights differ, in its hosts' order."""
    weights = {"h3": 5, "h1": 100, "h2": 1}
    snapshot = make().apply([update(h, "shop", weight=w) for h, w in weights.items()], [])
    route = snapshot.lookup(b"shop.apps.test")
    assert route is not None
    assert hosts(route) == ["h1", "h2", "h3"]
    assert route.shares == (100, 101, 106)
    made = make()
    for weight, shares in ((7, ()), (8, (7, 15)), (7, ())):
        made.apply([update("h1", "shop", weight=7), update("h2", "shop", weight=weight)], [])
        route = made.snapshot.lookup(b"shop.apps.test")
        assert route is not None
        assert route.shares == shares


# ---- against a dict ----


@dataclass
class Model:
    """What the table should answer, computed anew each time."""

    hosts: dict[str, HostUpdate] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def routes(self) -> dict[bytes, list[tuple[str, str, int]]]:
        """Hostname -> its hosts with address and weight, sorted by id."""
        apps = self.known | {app for host in self.hosts.values() for app in host.apps}
        found: dict[bytes, list[tuple[str, str, int]]] = {}
        for app in apps - {"api", "verify", "B"}:
            serving = sorted(
                (host.host_id, host.address, host.weight)
                for host in self.hosts.values()
                if host.routed and app in host.apps
            )
            for base in BASES:
                found[f"{app}.{base}".encode()] = serving
        return found


APPS = st.sampled_from(["a", "b", "B", "c", "d", "e", "api", "verify"])
UPDATES = st.builds(
    HostUpdate,
    st.sampled_from(["h1", "h2", "h3", "h4"]),
    st.sampled_from(["10.0.0.1:80", "10.0.0.2:80"]),
    st.just(KEY),
    st.sets(APPS, max_size=4).map(tuple),
    st.sampled_from([1, 100]),
    st.booleans(),
)
CHANGES = st.tuples(
    st.lists(UPDATES, max_size=3), st.lists(st.sampled_from(["h1", "h2", "h9"]), max_size=2)
)


def shown(snapshot: Snapshot) -> dict[bytes, list[tuple[str, str, int]]]:
    """The routes of a snapshot in the form of the model."""
    return {
        name: [(entry.host_id, entry.address, entry.weight) for entry in route.hosts]
        for name, route in snapshot.routes().items()
    }


@given(st.lists(CHANGES | st.sets(APPS, max_size=3), max_size=12), st.sampled_from([0, 2, 7, 1000]))
@settings(max_examples=200)
def test_same_as_a_dict(
    steps: list[tuple[list[HostUpdate], list[str]] | set[str]], limit: int
) -> None:
    """1.9, 3.8: base and overlay together answer as a dict would, however often they are merged.

    And a Snapshot that was taken before stays what it was.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_OVERLAY_LIMIT", limit)
        made, model = make("api.apps.test"), Model()
        taken: list[tuple[Snapshot, object]] = []
        for step in steps:
            if isinstance(step, set):
                model.known = step
                snapshot = made.declare(step, True)
            else:
                updates, removed = step
                for host_id in removed:
                    model.hosts.pop(host_id, None)
                model.hosts.update({host.host_id: host for host in updates})
                snapshot = made.apply(updates, removed)
            expected = model.routes()
            assert shown(snapshot) == expected
            for name in (f"{app}.{base}".encode() for app in "abcdeB" for base in BASES):
                route = snapshot.lookup(name)
                assert hosts(route) == (
                    None if name not in expected else [host[0] for host in expected[name]]
                )
            assert len(snapshot.overlay) <= limit
            taken.append((snapshot, expected))
        assert [shown(snapshot) for snapshot, _ in taken] == [expected for _, expected in taken]


# ---- large ----


def test_ten_thousand_hosts() -> None:
    """1.8: 10,000 hosts with an app each and one that all serve; a change costs the change."""
    made = make()
    updates = [update(f"h{n:05}", f"app-{n}", "all", weight=1 + n % 3) for n in range(10_000)]
    snapshot = made.apply(updates, [])
    assert len(snapshot.routes()) == 2 * 10_001
    assert hosts(snapshot.lookup(b"app-4711.apps.test")) == ["h04711"]
    everyone = snapshot.lookup(b"all.apps.test")
    assert everyone is not None
    assert len(everyone.hosts) == 10_000
    begun = time.process_time()
    for number in range(400):
        small = made.apply([update(f"x{number}", f"new-{number}")], [])
        assert small.base is snapshot.base
        assert len(small.overlay) <= 1_000
    assert (time.process_time() - begun) / 400 < 0.001
    assert hosts(small.lookup(b"new-399.apps.test")) == ["x399"]
    assert hosts(small.lookup(b"app-9999.smart-app.example")) == ["h09999"]
    gone = made.apply([], [f"h{n:05}" for n in range(10_000)])
    assert set(map(len, map(bytes.split, gone.routes()))) == {1}
    assert len(gone.routes()) == 2 * 400
    assert everyone.hosts[0] == everyone.hosts[0] != HostEntry("h00000", "10.0.0.1:80", KEY, 1)
