"""table.py: what hosts announce becomes hostnames; a Snapshot answers as a dict would."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy, AppState
from smartgw.routing.snapshot import HostEntry, Route, Snapshot
from smartgw.routing.table import AppUpdate, HostUpdate, RoutingTable
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


def app(
    app_id: str, label: str | None = "", *hostnames: str, state: AppState = AppState.ACTIVE
) -> AppUpdate:
    """A registered app; its label is by default its id."""
    name = app_id if label == "" else label
    policy = DEFAULT_POLICY if state is AppState.ACTIVE else AppPolicy(state)
    exact = tuple(hostname.encode() for hostname in hostnames)
    return AppUpdate(app_id, None if name is None else name.encode(), exact, policy)


def registered(made: RoutingTable, *apps: AppUpdate, gone: tuple[str, ...] = ()) -> Snapshot:
    """Take them in as one change."""
    made.register(apps, gone)
    return made.publish()


def test_a_registered_app_has_its_names() -> None:
    """3.3: its label under each base domain and its exact hostnames, whether or not it is up."""
    made = make()
    snapshot = registered(made, app("A", "shop", "www.shop.example", "other.example"))
    names = {b"shop.apps.test", b"shop.smart-app.example", b"www.shop.example", b"other.example"}
    assert set(snapshot.routes()) == names
    assert {hosts(route) == [] for route in snapshot.routes().values()} == {True}
    snapshot = made.apply([update("h1", "A", "x")], [])
    assert all(hosts(snapshot.lookup(name)) == ["h1"] for name in names)
    assert snapshot.lookup(b"www.shop.example.evil.test") is None
    assert snapshot.lookup(b"x.shop.apps.test") is None
    assert snapshot.route("A") is snapshot.lookup(b"other.example")
    snapshot = registered(made, app("A", None, "other.example", "third.example"))
    assert set(snapshot.routes()) == {
        *(b"other.example", b"third.example", b"x.apps.test", b"x.smart-app.example")
    }
    # It has a host still, so it is an app that was never registered; it has no label of itself.
    assert set(registered(made, gone=("A", "unknown")).routes()) == {
        *(b"x.apps.test", b"x.smart-app.example")
    }
    assert made.snapshot.route("A") is not None
    assert made.apply([], ["h1"]).route("A") is None


def test_a_policy_is_on_every_route_of_its_app() -> None:
    """3.4: suspended and retired apps are known by all their names, with or without hosts."""
    made = make()
    made.apply([update("h1", "shop")], [])
    route = made.snapshot.lookup(b"shop.apps.test")
    assert route is not None
    assert route.policy is DEFAULT_POLICY
    snapshot = registered(made, app("shop", "", "a.example", state=AppState.SUSPENDED))
    for name in (b"shop.apps.test", b"a.example"):
        route = snapshot.lookup(name)
        assert route is not None
        assert (route.policy.state, hosts(route)) == (AppState.SUSPENDED, ["h1"])
    route = made.apply([], ["h1"]).lookup(b"a.example")
    assert route is not None
    assert (route.policy.state, route.hosts) == (AppState.SUSPENDED, ())


def test_a_registered_label_beats_one_that_is_only_announced() -> None:
    """3.3, 5: one label, one app: the registered one."""
    made = make()
    name = b"shop.apps.test"
    made.apply([update("h1", "shop"), update("h2", "other")], [])
    snapshot = registered(made, app("other", "shop"))
    assert hosts(snapshot.lookup(name)) == ["h2"]
    assert snapshot.lookup(b"other.apps.test") is None
    made.apply([update("h3", "shop")], [])
    assert hosts(made.apply([], ["h2"]).lookup(name)) == []
    snapshot = registered(made, app("other", None))
    assert hosts(snapshot.lookup(name)) == ["h1", "h3"]
    # A registered app has the names that it registered, not its id besides.
    snapshot = registered(made, app("shop", "store"))
    assert snapshot.lookup(name) is None
    assert hosts(snapshot.lookup(b"store.apps.test")) == ["h1", "h3"]


def test_names_move_whatever_comes_first() -> None:
    """7.5: a name that one app lets go and another takes is never without one of them."""
    for order in ((0, 1), (1, 0)):
        made = make()
        registered(made, app("a", "shop", "x.example"), app("b", None))
        changes = [app("a", None), app("b", "shop", "x.example")]
        for number in order:
            made.register([changes[number]], ())
            made.apply([update(f"h{number}", "shop", "a")], [])  # hosts come in between
            for name in (b"shop.apps.test", b"x.example"):
                route = made.snapshot.lookup(name)
                assert route is not None
                assert route.app_id == "a"
        snapshot = made.publish()
        for name in (b"shop.apps.test", b"x.example"):
            route = snapshot.lookup(name)
            assert route is not None
            assert route.app_id == "b"


def test_what_was_never_registered() -> None:
    """5: an app hosted but never registered follows the setting `apps`."""
    made = RoutingTable(BASES, (), announced=False)
    made.declare(["mail"], True)
    snapshot = made.apply([update("h1", "shop", "mail")], [])
    assert snapshot.routes() == {}
    assert snapshot.route("shop") is None
    assert hosts(registered(made, app("shop")).lookup(b"shop.apps.test")) == ["h1"]
    assert made.snapshot.lookup(b"mail.apps.test") is None
    assert registered(made, gone=("shop",)).routes() == {}
    snapshot = registered(made, app("shop", "store"))
    assert set(snapshot.routes()) == {b"store.apps.test", b"store.smart-app.example"}
    snapshot = made.admit()
    assert {name.partition(b".")[0] for name in snapshot.routes()} == {b"store", b"mail"}
    assert hosts(snapshot.lookup(b"mail.apps.test")) == ["h1"]
    assert made.admit() is snapshot


def test_the_gateways_own_names_beat_registered_ones() -> None:
    """3.3: the gateway's own hostnames beat both, whatever was stored."""
    made = make("api.apps.test")
    snapshot = registered(made, app("x", "api"), app("y", "verify"), app("z", "z", "z.apps.test"))
    assert {name.partition(b".")[0] for name in snapshot.routes()} == {b"z"}
    snapshot = made.rename(BASES, ())
    assert snapshot.lookup(b"api.apps.test") is snapshot.route("x")
    assert snapshot.lookup(b"verify.apps.test") is None
    snapshot = made.rename((*BASES, "api.apps.test"), ())
    assert snapshot.lookup(b"api.smart-app.example") is None
    assert snapshot.lookup(b"z.api.apps.test") is snapshot.route("z")


# ---- against a dict ----


@dataclass
class Model:
    """What the table should answer, computed anew each time."""

    hosts: dict[str, HostUpdate] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    registered: dict[str, AppUpdate] = field(default_factory=dict)

    def routes(self) -> dict[bytes, tuple[str, AppPolicy, list[tuple[str, str, int]]]]:
        """Hostname -> app, policy, and hosts with address and weight, sorted by id."""
        announced = self.known | {app for host in self.hosts.values() for app in host.apps}
        labels = {app.encode(): app for app in announced - {"B"} - self.registered.keys()}
        exact: dict[bytes, str] = {}
        for app in self.registered.values():
            if app.label is not None:
                labels[app.label] = app.app_id
            exact |= dict.fromkeys(app.hostnames, app.app_id)
        for taken in (b"api", b"verify"):
            labels.pop(taken, None)
        for base in BASES:
            exact |= {label + b"." + base.encode(): app for label, app in labels.items()}
        return {name: self._route(app_id) for name, app_id in exact.items()}

    def _route(self, app_id: str) -> tuple[str, AppPolicy, list[tuple[str, str, int]]]:
        serving = sorted(
            (host.host_id, host.address, host.weight)
            for host in self.hosts.values()
            if host.routed and app_id in host.apps
        )
        app = self.registered.get(app_id)
        return app_id, DEFAULT_POLICY if app is None else app.policy, serving

    def register(self, app: AppUpdate) -> AppUpdate:
        """Register what no other app has; returns what that is."""
        others = [other for other in self.registered.values() if other.app_id != app.app_id]
        label = None if any(app.label == other.label for other in others) else app.label
        taken = {name for other in others for name in other.hostnames}
        free = tuple(name for name in app.hostnames if name not in taken)
        self.registered[app.app_id] = AppUpdate(app.app_id, label, free, app.policy)
        return self.registered[app.app_id]


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
HOST_CHANGES = st.tuples(
    st.lists(UPDATES, max_size=3), st.lists(st.sampled_from(["h1", "h2", "h9"]), max_size=2)
)
REGISTERED = st.builds(
    AppUpdate,
    APPS,
    st.sampled_from([None, b"a", b"b", b"shared", b"api"]),
    st.lists(st.sampled_from([b"x.example", b"y.example", b"z.example"]), unique=True).map(tuple),
    st.sampled_from([DEFAULT_POLICY, AppPolicy(AppState.RETIRED)]),
)
STEPS = HOST_CHANGES | st.sets(APPS, max_size=3) | REGISTERED | APPS


def shown(snapshot: Snapshot) -> dict[bytes, tuple[str, AppPolicy, list[tuple[str, str, int]]]]:
    """The routes of a snapshot in the form of the model."""
    return {
        name: (
            route.app_id,
            route.policy,
            [(entry.host_id, entry.address, entry.weight) for entry in route.hosts],
        )
        for name, route in snapshot.routes().items()
    }


@given(st.lists(STEPS, max_size=12), st.data())
@settings(max_examples=300)
def test_same_as_a_dict(
    steps: list[tuple[list[HostUpdate], list[str]] | set[str] | AppUpdate | str],
    data: st.DataObject,
) -> None:
    """1.9, 3.8: the table answers as a dict would, in how many parts it was told of a change.

    And a Snapshot that was taken before stays what it was.
    """
    made, model = make("api.apps.test"), Model()
    taken: list[tuple[Snapshot, object]] = []
    for step in steps:
        match step:
            case set():
                model.known = step
                made.declare(step, True)
            case AppUpdate():
                made.register([model.register(step)], ())
            case str():
                model.registered.pop(step, None)
                made.register((), [step])
            case (updates, removed):
                for host_id in removed:
                    model.hosts.pop(host_id, None)
                model.hosts.update({host.host_id: host for host in updates})
                made.apply(updates, removed)
        if data.draw(st.booleans()):
            snapshot = made.publish()
            expected = model.routes()
            assert shown(snapshot) == expected
            names = [f"{app}.{base}" for app in "abcdeB" for base in BASES]
            for name in (*map(str.encode, names), b"x.example", b"y.example"):
                route = snapshot.lookup(name)
                assert hosts(route) == (
                    None if name not in expected else [host[0] for host in expected[name][2]]
                )
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
    assert (time.process_time() - begun) / 400 < 0.001
    assert hosts(small.lookup(b"new-399.apps.test")) == ["x399"]
    assert hosts(small.lookup(b"app-9999.smart-app.example")) == ["h09999"]
    gone = made.apply([], [f"h{n:05}" for n in range(10_000)])
    assert len(gone.routes()) == 2 * 400
    assert everyone.hosts[0] == everyone.hosts[0] != HostEntry("h00000", "10.0.0.1:80", KEY, 1)
