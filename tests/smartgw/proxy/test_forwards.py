"""What a request meets on its way between clusters, beyond the table: contract 4.2 to 4.8 and 5."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from smartgw.peers.directory import Mode, View
from smartgw.routing.failover import Failover
from smartgw_hosts.clusters import parse
from smartgw_hosts.owner import epoch
from tests import federation
from tests.forwarders import Forwarder, list_text, write_list
from tests.gateway import wait_until
from tests.policies import PolicyGateway
from tests.upstreams import HANDSHAKE, Connection, Request, accept, each
from tests.wires import Wired, answering_as, arrived

DEADLINE = 2.5
# Less than what more than one of them takes, and than an attempt's share of one.
LATE = 1.5 * DEADLINE
AT_ONCE = 0.35 * DEADLINE
OWN = "gateway.example"
SETTINGS: dict[str, Any] = {
    "hostnames": [OWN],
    "deadlines": {"response_head": DEADLINE},
    "upstream": {"connect_timeout": 0.4, "challenge_timeout": 0.6},
    "rates": {"requests": 1_000_000},
}
OFF = {"app-suspended": {"state": "suspended"}, "app-retired": {"state": "retired"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    folder = tmp_path_factory.mktemp("forwards")
    log = {one: {"log": {"access": str(folder / f"{one}.log")}} for one in ("c1", "c2", "c3")}
    with Wired(folder, settings={**SETTINGS, **log}) as made:
        yield made


@pytest.fixture
def three(made: Wired) -> Iterator[Wired]:
    yield made
    made.follow()
    made.heal()


def peers_of(three: Wired, app: str) -> list[str]:
    """The peers of c1 in the order in which it asks them for an app."""
    clusters = parse(list_text(*(three.entry(one) for one in three.urls)))
    return list(Failover().order(View(Mode.FRESH, "c1", clusters), app))


def logged(three: Wired, cluster: str, target: str) -> dict[str, Any]:
    """The line of a cluster's access log about a target."""
    file = three.folder / f"{cluster}.log"
    wait_until(lambda: f'"target":"{target}"' in file.read_text(), what=f"{target} logged")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return next(line for line in reversed(lines) if line["target"] == target)


# ---- 3.4: apps that are switched off ----


@pytest.fixture(scope="module")
def policed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    """Clusters whose c2 alone has switched two apps off."""

    def gateway(cluster: Any, changes: Any) -> PolicyGateway:
        return PolicyGateway(cluster, OFF if cluster.cluster_id == "c2" else {}, changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "Gateway", gateway)
        made = Wired(tmp_path_factory.mktemp("policed"), ("c1", "c2"), settings=SETTINGS)
    with made:
        yield made


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("state", ["suspended", "retired"])
def test_an_app_that_is_switched_off_is_asked_of_nobody(
    policed: Wired, state: str, method: str
) -> None:
    """3.4, 4.7, 5: 503 with its reason, here and through a forward, and nobody else is asked."""
    app = f"app-{state}"
    here = policed.hosts_of(app, "c1")["c1"]
    there = policed.hosts_of(app, "c2")["c2"]
    owner = parse(list_text(*(policed.entry(one) for one in policed.urls))).owner(app)
    for at in ("c2", "c1") if owner == "c2" else ("c2",):
        answer = policed.ask(at, app, "/off", method)
        assert answer.status == 503
        assert f'"reason": "app_{state}"'.encode() in answer.body
        assert answer.one("x-failover-cluster") == answer.one("x-smartgw-answer") == ""
    assert arrived(here, "/off") == arrived(there, "/off") == 0


@pytest.mark.parametrize("state", ["suspended", "retired"])
def test_switched_off_is_told_apart_from_failed(policed: Wired, state: str) -> None:
    """4.7: suspended and retired are tagged apart."""
    app = f"app-{state}"
    policed.hosts_of(app, "c2")
    with Forwarder(policed.gateways["c2"].public, "c1", "c2").open() as peer:
        value = peer.sealed(peer.mark(app), policed.hostname(app))
        peer.send(value, policed.hostname(app))
        told = peer.client.answer().one("x-smartgw-answer")
    assert told.startswith(f"failed=app_{state}; sent=none")


# ---- 4.2, 4.4: when nobody else is the owner ----


def test_affinity_is_the_directorys_to_switch(three: Wired) -> None:
    """4.2: without affinity each cluster serves what it is asked for, and others in need."""
    app = three.app("c2")
    three.hosts_of(app)
    write_list(three.file, *(three.entry(one) for one in three.urls), affinity=False)
    wait_until(lambda: three.ask("c1", app).one("x-host-of") == "c1", what="affinity off")
    assert three.ask("c1", app).one("x-failover-cluster") == ""
    three.host("c1", three.app("c1"))


def test_failover_is_the_directorys_to_switch(three: Wired) -> None:
    """4.2: without failover the first failure is the answer."""
    app = three.app("c2")
    three.hosts_of(app)
    write_list(three.file, *(three.entry(one) for one in three.urls), failover=False)
    wait_until(lambda: not three.followed(three.gateways["c1"])["failover"], what="failover off")
    three.wires["c2"].set("refuse")
    assert three.ask("c1", app).status == 502


def test_without_clusters_every_app_is_served_here(three: Wired) -> None:
    """4.4: a valid list that is empty: the owner is unknown and the local instance serves."""
    app = three.app("c2")
    three.hosts_of(app)
    write_list(three.file)
    wait_until(lambda: three.ask("c1", app).one("x-host-of") == "c1", what="no owner")
    answer = three.ask("c1", app, "/w", "POST")
    assert (answer.status, answer.one("x-host-of")) == (200, "c1")


def test_a_cluster_that_is_not_listed_writes_nothing(three: Wired) -> None:
    """4.1, 4.5: it owns nothing and nobody takes its forwards; what it has hosts for is read."""
    app = three.app("c1")
    hosts = three.hosts_of(app)
    three.follow("c3")
    # On a link that is still open it would be served as what it is now: a client.
    for wire in three.wires.values():
        wire.set("reset")
        wire.set("pass")
    answer = three.ask("c3", app, "/r")
    assert (answer.status, answer.one("x-failover-cluster")) == (200, "c3")
    answer = three.ask("c3", app, "/w", "POST")
    assert (answer.status, answer.one("x-smartgw-request-sent")) == (502, "none")
    assert [arrived(host, "/w") for host in hosts.values()] == [0, 0, 0]


def test_the_gateways_own_hostnames_are_forwarded_nowhere(three: Wired) -> None:
    """3.1: what belongs to the gateway is answered by it, whichever cluster that is."""
    answer = three.gateways["c1"].ask("127.0.0.1", "/api/v3/discovery/clusters")
    assert answer.one("x-failover-cluster") == ""
    assert three.gateways["c1"].ask("nobody.example").status == 404


# ---- 4.6, 5.3: views that differ ----


@pytest.fixture(scope="module")
def disagreeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    """c2 goes by a list of its own, on which c2 is not."""
    folder = tmp_path_factory.mktemp("views")
    other = folder / "other.json"
    write_list(other)
    settings = {**SETTINGS, "c2": {"peers": {"file": str(other)}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wired, "follow", lambda _: None)
        patch.setattr(Wired, "hosts_of", lambda *_: {})
        made = Wired(folder, settings=settings)
    with made:
        made.write()
        write_list(other, made.entry("c1"), made.entry("c3"))
        for one, clusters in {"c1": 3, "c2": 2, "c3": 3}.items():
            wait_until(
                lambda one=one, clusters=clusters: (  # type: ignore[misc]
                    len(made.followed(made.gateways[one])["clusters"]) == clusters
                ),
                what="the lists in force",
            )
        yield made


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_forward_goes_one_hop_whatever_its_receiver_thinks(
    disagreeing: Wired, method: str
) -> None:
    """4.6, 5.3: epochs differ: the receiver serves all the same, and both sides count it."""
    app = disagreeing.app("c2")
    hosts = disagreeing.hosts_of(app)
    name = "smartgw_epochs_differed_total"
    before = [disagreeing.metric(one, name) for one in ("c1", "c2")]
    answer = disagreeing.ask("c1", app, "/hop", method)
    assert (answer.status, answer.one("x-host-of")) == (200, "c2")
    assert answer.one("x-smartgw-answer") == answer.one("x-failover-cluster") == ""
    assert [arrived(host, "/hop") for host in hosts.values()] == [0, 1, 0]
    assert hosts["c2"].upstream.requests[-1].all("via") == [b"1.1 c1", b"1.1 c2"]
    after = [disagreeing.metric(one, name) for one in ("c1", "c2")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]


def test_a_forward_that_cannot_be_served_is_refused_and_not_sent_on(disagreeing: Wired) -> None:
    """5.3: a marked request is served from the local instance or refused, never sent on."""
    app = disagreeing.app("c2")
    hosts = disagreeing.hosts_of(app, "c1", "c3")
    disagreeing.host("c2", app).upstream.kill()
    answer = disagreeing.ask("c1", app, "/hop")
    assert answer.one("x-host-of") == "c1"
    assert [arrived(host, "/hop") for host in hosts.values()] == [1, 0]


# ---- 4.5: loops ----


def test_a_gateway_that_finds_itself_in_via_answers_508(three: Wired) -> None:
    """4.5: Via carries the cluster id; other ids, and words that only look like it, pass."""
    app = three.app("c1")
    host = three.hosts_of(app, "c1")["c1"]
    for via in ("1.1 c1", "1.0 other, 1.1 c1", "HTTP/1.1 c1 (comment)", "1.1 a,1.1 c1,1.1 b"):
        answer = three.ask("c1", app, "/loop", fields=[f"Via: {via}"])
        assert answer.status == 508
        assert b"loop_detected" in answer.body
    for via in ("1.1 c2", "1.1 c11", "1.1 xc1", "c1", "1.1 C1", ""):
        assert three.ask("c1", app, "/no-loop", fields=[f"Via: {via}"]).status == 200
    assert arrived(host, "/loop") == 0


def test_a_host_that_sends_requests_back_makes_no_loop(three: Wired) -> None:
    """4.5: a loop through a host behind us ends at the first gateway that knows itself."""
    app = three.app("c1")

    def back(connection: Connection, request: Request) -> None:
        fields = [f"Via: {via.decode()}" for via in request.all("via")]
        again = three.ask("c1", app, "/again", fields=fields)
        connection.reply(str(again.status).encode())

    host = three.host("c1", app, each(back))
    assert three.ask("c1", app, "/once").body == b"508"
    assert arrived(host, "/again") == 0


# ---- 4.7: hostnames that are unknown there ----


def test_a_forwards_hostname_is_resolved_by_its_app(three: Wired) -> None:
    """4.7: a hostname that is unknown there is resolved by the forward's app id."""
    app = three.app("c2")
    host = three.hosts_of(app, "c2")["c2"]
    with Forwarder(three.gateways["c2"].public, "c1", "c2").open() as peer:
        for hostname in ("shop.example", three.hostname(app)):
            peer.send(peer.sealed(peer.mark(app), hostname, "/by-app"), hostname, "/by-app")
            assert peer.client.answer().status == 200
        assert host.upstream.requests[-2].one("host") == "shop.example"
        peer.send(peer.sealed(peer.mark("nobody's"), "shop.example"), "shop.example")
        answer = peer.client.answer()
    # Never a 404 that could be taken for the app's.
    assert answer.status == 503
    assert answer.one("x-smartgw-answer").startswith("failed=no_upstream; sent=none")


def test_a_forward_is_never_for_the_gateway_itself(three: Wired) -> None:
    """4.7: an app's hostname elsewhere that is a gateway's own here: the app is served."""
    app = three.app("c2")
    host = three.hosts_of(app, "c2")["c2"]
    assert three.gateways["c2"].ask(OWN, "/healthz").status == 200
    with Forwarder(three.gateways["c2"].public, "c1", "c2").open() as peer:
        peer.send(peer.sealed(peer.mark(app), OWN, "/mine"), OWN, "/mine")
        assert peer.client.answer().one("x-host-of") == "c2"
    assert arrived(host, "/mine") == 1


def test_an_app_that_its_owner_does_not_know_is_served_here(three: Wired) -> None:
    """4.7: the sender counts such a failure as unreachable."""
    app = next(f"late-{n}" for n in range(99) if owner_of(three, f"late-{n}") == "c2")
    three.hosts_of(app, "c1")
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.one("x-failover-cluster")) == (200, "c1")
    assert three.ask("c1", app, "/r", "POST").status == 503


def test_reads_that_no_host_of_the_owner_had_are_no_retries(three: Wired) -> None:
    """5.2: the budget keeps a dead cluster from doubling work, and where nobody worked all reads
    are served elsewhere, however many there are.
    """
    app = three.app("c2")
    three.hosts_of(app, "c1")
    answers = [three.ask("c1", app, f"/{number}") for number in range(300)]
    assert {(answer.status, answer.one("x-failover-cluster")) for answer in answers} == {
        (200, "c1")
    }


def owner_of(three: Wired, app: str) -> str | None:
    return parse(list_text(*(three.entry(one) for one in three.urls))).owner(app)


# ---- 4.8: the 421 of a host's guard ----


def guarding(name: str, owner: str, ids: tuple[str, ...]) -> Any:
    """A host's guard that goes by a list of its own: a 421 for every write."""

    def behaviour(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        if request.method in ("GET", "HEAD", "OPTIONS"):
            connection.reply(name.encode(), "200 OK", f"X-Host-Of: {name}")
        else:
            marked = f"X-Smartgw-Owner: {owner}; epoch={epoch(ids)}"
            connection.reply(b"{}", "421 Misdirected Request", marked)

    return each(behaviour)


def test_a_421_of_a_guard_is_followed_to_the_owner(three: Wired) -> None:
    """4.8: the gateway refreshes its list and sends the request to the owner, once, whole."""
    # c1 owns it on the list without c3, another on the list of all.
    app = three.app("c2")
    while parse(list_text(three.entry("c1"), three.entry("c2"))).owner(app) != "c1":
        app = three.app("c2")
    refusing = three.host("c1", app, guarding("c1", "c2", ("c1", "c2", "c3")))
    owner = three.hosts_of(app, "c2")["c2"]
    three.follow("c3")
    assert three.ask("c1", app, "/r").one("x-host-of") == "c1"
    threading.Timer(0.2, three.write).start()
    answer = three.ask("c1", app, "/w", "POST", body=b"x" * 60_000)
    assert (answer.status, answer.one("x-host-of")) == (200, "c2")
    assert answer.one("x-failover-cluster") == answer.one("x-smartgw-owner") == ""
    assert [arrived(refusing, "/w"), arrived(owner, "/w")] == [1, 1]
    assert owner.upstream.requests[-1].body == b"x" * 60_000


def test_a_421_is_followed_by_a_cluster_that_was_alone(three: Wired) -> None:
    """4.8: a second cluster has just joined, which the host has heard of before its gateway."""
    app = three.app("c2")
    refusing = three.host("c1", app, guarding("c1", "c2", ("c1", "c2", "c3")))
    owner = three.hosts_of(app, "c2")["c2"]
    three.follow("c2", "c3")
    threading.Timer(0.2, three.write).start()
    answer = three.ask("c1", app, "/w", "POST", body=b"x")
    assert (answer.status, answer.one("x-host-of")) == (200, "c2")
    assert [arrived(refusing, "/w"), arrived(owner, "/w")] == [1, 1]


def test_nobody_else_is_asked_while_a_newer_list_is_awaited(three: Wired) -> None:
    """4.8, 5.1: a share of the deadline that ends meanwhile gives the request to nobody."""
    app = three.app("c1")

    def late(connection: Connection, request: Request) -> None:
        time.sleep(DEADLINE * 0.35)
        connection.reply(b"{}", "421 Misdirected Request", f"X-Smartgw-Owner: c2; epoch={'0' * 16}")

    three.host("c1", app, each(late))
    others = three.hosts_of(app, "c2", "c3")
    assert three.ask("c1", app, "/r").status in (503, 504)
    assert [arrived(other, "/r") for other in others.values()] == [0, 0]


def test_a_421_is_followed_within_the_same_deadline(three: Wired) -> None:
    """4.8, 5.1: the owner has what is left of the deadline, and no other."""
    app = three.app("c2")
    while parse(list_text(three.entry("c1"), three.entry("c2"))).owner(app) != "c1":
        app = three.app("c2")

    def late(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        time.sleep(DEADLINE * 0.7)
        marked = f"X-Smartgw-Owner: c2; epoch={epoch(('c1', 'c2', 'c3'))}"
        connection.reply(b"{}", "421 Misdirected Request", marked)

    def silent(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        connection.ended(20)
        raise EOFError

    three.host("c1", app, each(late))
    owner = three.host("c2", app, each(silent))
    three.follow("c3")
    threading.Timer(0.2, three.write).start()
    begun = time.monotonic()
    answer = three.ask("c1", app, "/w", "POST", body=b"x")
    assert answer.status == 504
    assert time.monotonic() - begun < LATE
    assert arrived(owner, "/w") == 1


def test_a_421_that_nothing_follows_from_is_503(three: Wired) -> None:
    """4.8: our list still says that we own it: 503, and nobody else is asked."""
    app = three.app("c1")
    refusing = three.host("c1", app, guarding("c1", "c2", ("c2",)))
    other = three.hosts_of(app, "c2")["c2"]
    answer = three.ask("c1", app, "/w", "POST", body=b"x")
    assert answer.status == 503
    assert b"owner_unclear" in answer.body
    assert answer.one("x-smartgw-owner") == ""
    assert [arrived(refusing, "/w"), arrived(other, "/w")] == [1, 0]


def test_a_421_for_a_body_that_is_gone_is_503(three: Wired) -> None:
    """4.8: only with the body still wholly in memory."""
    app = three.app("c1")
    three.host("c1", app, guarding("c1", "c2", ("c2",)))
    begun = time.monotonic()
    answer = three.ask("c1", app, "/w", "POST", body=b"x" * 200_000)
    assert answer.status == 503
    assert time.monotonic() - begun < 1.6  # to look for another owner takes 2 s


def test_a_forward_that_meets_421_is_503(three: Wired) -> None:
    """4.8: it is not followed a second hop."""
    app = three.app("c2")
    refusing = three.host("c2", app, guarding("c2", "c3", ("c3",)))
    others = three.hosts_of(app, "c1", "c3")
    answer = three.ask("c1", app, "/w", "POST", body=b"x")
    assert answer.status == 503
    assert b"owner_unclear" in answer.body
    assert [arrived(host, "/w") for host in (refusing, *others.values())] == [1, 0, 0]


@pytest.mark.parametrize("field", ["X-Other: 1", "X-Smartgw-Owner: unknown"])
def test_an_apps_own_421_is_its_answer(three: Wired, field: str) -> None:
    """4.8: only a marked one is the guard's."""
    app = three.app("c1")
    three.host("c1", app, answering_as("c1", "421 Misdirected Request", field))
    answer = three.ask("c1", app, "/w", "POST")
    assert (answer.status, answer.body) == (421, b"c1")


# ---- 5.4: whose word it is ----


def test_nobody_else_names_the_cluster(three: Wired) -> None:
    """5.4, 3.5: an app's and a client's own copies of our fields go no further."""
    app = three.app("c2")
    ours = ("X-Failover-Cluster: evil", "X-Smartgw-Answer: failed=no_upstream; sent=none")
    host = three.host("c2", app, answering_as("c2", "200 OK", *ours))
    answer = three.ask("c1", app, "/r", fields=ours)
    assert (answer.status, answer.one("x-host-of")) == (200, "c2")
    assert answer.one("x-failover-cluster") == answer.one("x-smartgw-answer") == ""
    request = host.upstream.requests[-1]
    assert request.one("x-failover-cluster") == request.one("x-smartgw-answer") == ""


# ---- 5.6: what can be sent again ----


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_read_with_a_body_in_memory_fails_over_whole(three: Wired, framing: str) -> None:
    """5.6: the body is still wholly in memory (64 KiB)."""
    app = three.app("c1")
    body = bytes(range(256)) * 250

    def broken(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        connection.reset()
        raise EOFError

    here = three.host("c1", app, each(broken))
    first = peers_of(three, app)[0]
    there = three.hosts_of(app, first)[first]
    hostname = three.hostname(app)
    with three.gateways["c1"].downstream() as client:
        if framing == "length":
            head = f"GET /b HTTP/1.1\r\nHost: {hostname}\r\nContent-Length: {len(body)}\r\n\r\n"
            client.send(head.encode(), body)
        else:
            head = f"GET /b HTTP/1.1\r\nHost: {hostname}\r\nTransfer-Encoding: chunked\r\n"
            client.send(head.encode(), b"Trailer: X-T\r\n\r\n")
            for start in range(0, len(body), 1_000):
                part = body[start : start + 1_000]
                client.send(b"%x\r\n%b\r\n" % (len(part), part))
            client.send(b"0\r\nX-T: 1\r\n\r\n")
        answer = client.answer()
    assert (answer.status, answer.one("x-failover-cluster")) == (200, first)
    assert arrived(here, "/b") == 1
    assert there.upstream.requests[-1].body == body
    if framing == "chunked":
        assert there.upstream.requests[-1].trailers == [(b"X-T", b"1")]


def test_a_read_whose_body_was_let_go_is_not_sent_again(three: Wired) -> None:
    """5.6: more than 64 KiB: the first failure is the answer."""
    app = three.app("c1")

    def broken(connection: Connection, request: Request) -> None:
        connection.read_body(request)
        connection.reset()
        raise EOFError

    three.host("c1", app, each(broken))
    others = three.hosts_of(app, "c2", "c3")
    assert three.ask("c1", app, "/b", body=b"x" * 100_000).status == 502
    assert [arrived(other, "/b") for other in others.values()] == [0, 0]


@pytest.mark.parametrize("then", ["hang", "reset"])
def test_a_read_in_the_middle_of_its_body_is_not_sent_again(three: Wired, then: str) -> None:
    """R22 through peers: the deadline, or the host, ends in the middle of a chunked GET's body:
    504 or 502, and no second attempt.
    """
    app = three.app("c1")

    def script(connection: Connection, request: Request) -> None:
        connection.chunk()
        if then == "hang":
            connection.ended(DEADLINE + 2)
        connection.reset()
        raise EOFError

    three.host("c1", app, each(script))
    others = three.hosts_of(app, "c2", "c3")
    hostname = three.hostname(app)
    begun = time.monotonic()
    with three.gateways["c1"].downstream() as client:
        head = f"GET /b HTTP/1.1\r\nHost: {hostname}\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.send(head.encode(), b"5\r\nhello\r\n")
        answer = client.answer()
    took = time.monotonic() - begun
    assert answer.status == (504 if then == "hang" else 502)
    assert took < LATE
    if then == "hang":
        # Nobody else would be asked, so it was not cut short either.
        assert took > DEADLINE - 0.1
    assert [arrived(other, "/b") for other in others.values()] == [0, 0]


def test_nothing_is_sent_again_after_an_interim_answer(three: Wired) -> None:
    """5.6: nothing is retried after the first response byte."""
    app = three.app("c1")

    def hints(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")
        time.sleep(0.1)
        connection.reset()
        raise EOFError

    three.host("c1", app, each(hints))
    others = three.hosts_of(app, "c2", "c3")
    answer = three.ask("c1", app, "/r")
    assert (answer.status, [one.status for one in answer.interim]) == (502, [103])
    assert [arrived(other, "/r") for other in others.values()] == [0, 0]


def test_an_answer_that_has_begun_is_not_asked_for_again(three: Wired) -> None:
    """5.6: it breaks off, and the client sees that."""
    app = three.app("c2")

    def cut(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        time.sleep(0.1)
        connection.reset()
        raise EOFError

    three.host("c2", app, each(cut))
    others = three.hosts_of(app, "c1", "c3")
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.complete) == (200, False)
    assert [arrived(other, "/r") for other in others.values()] == [0, 0]


def test_a_websocket_fails_over_until_it_is_one(three: Wired) -> None:
    """5.6: an upgrade is a GET like any other before the 101, and never sent again after it."""
    app = three.app("c2")

    def upgraded(connection: Connection) -> None:
        accept(connection, connection.head(), extra=b"\x81\x02hi")
        time.sleep(0.2)

    here = three.host("c1", app, upgraded)
    there = three.host("c2", app, upgraded)
    three.wires["c2"].set("refuse")
    with three.gateways["c1"].downstream() as client:
        client.send(HANDSHAKE.format(hostname=three.hostname(app)).encode())
        answer = client.answer()
        assert (answer.status, answer.one("x-failover-cluster")) == (101, "c1")
        assert client.take(4) == b"\x81\x02hi"
        assert client.closed(5.0)
    assert [arrived(here, "/ws"), arrived(there, "/ws")] == [1, 0]


# ---- R23, R60 and what a client sees of time ----


@pytest.mark.parametrize("mode", ["mute", "hang"])
def test_a_write_ends_at_its_deadline_whenever_its_body_came(three: Wired, mode: str) -> None:
    """5.1: it runs from the last that came of the body, and no failure makes it begin anew."""
    app = three.app("c2")
    three.hosts_of(app)
    three.ask("c1", app, "/warm", "POST")
    three.wires["c2"].set(mode)
    with three.gateways["c1"].downstream() as client:
        head = f"POST /w HTTP/1.1\r\nHost: {three.hostname(app)}\r\nContent-Length: 6\r\n\r\n"
        client.send(head.encode(), b"abc")
        time.sleep(0.3)
        begun = time.monotonic()
        client.send(b"def")
        assert client.answer().status == 504
    assert time.monotonic() - begun < LATE


def test_hosts_whose_syn_is_dropped_leave_time_for_peers(three: Wired) -> None:
    """R23 through peers: three hosts that nobody hears of: the whole stays within the deadline."""
    from tests.upstreams import blackhole

    app = three.app("c1")
    sockets = [sock for _ in range(3) for sock in blackhole(three.host("c1", app).upstream)]
    first = peers_of(three, app)[0]
    three.hosts_of(app, first)
    begun = time.monotonic()
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.one("x-failover-cluster")) == (200, first)
    assert time.monotonic() - begun < DEADLINE
    for sock in sockets:
        sock.close()


def test_past_the_deadline_it_is_504_whatever_failed_before(three: Wired) -> None:
    """5: the deadline passed: 504, though the first failure was another."""

    def silent(connection: Connection, request: Request) -> None:
        connection.ended(5)

    app = three.app("c1")
    three.host("c1", app).upstream.kill()
    for peer in ("c2", "c3"):
        three.host(peer, app, each(silent))
    answers: list[tuple[float, float, int]] = []

    def ask() -> None:
        begun = time.monotonic()
        status = three.ask("c1", app, "/late").status
        answers.append((begun, time.monotonic(), status))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
        time.sleep(0.0137)
    for thread in threads:
        thread.join()
    # One that came only after others had been waited for in vain is told so at once.
    known = min(ended for _, ended, _ in answers) - DEADLINE / 2
    statuses = [status for begun, _, status in answers if begun < known]
    assert statuses
    assert set(statuses) == {504}


def test_a_peer_that_accepts_and_says_nothing_is_set_aside(three: Wired) -> None:
    """R60: attempts are bounded, the breaker opens, nothing piles up."""
    app = three.app("c2")
    three.hosts_of(app)
    three.wires["c2"].set("hang")
    results: list[tuple[int, float]] = []

    def ask(method: str) -> None:
        begun = time.monotonic()
        answer = three.ask("c1", app, "/r", method)
        results.append((answer.status, time.monotonic() - begun))

    for _ in range(2):
        threads = [threading.Thread(target=ask, args=("GET",)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [status for status, _ in results] == [200] * 40
    assert three.metric("c1", "smartgw_peers_set_aside_total") >= 1
    # Those that came when it was aside waited for nothing.
    assert sum(took < AT_ONCE for _, took in results[20:]) >= 18
    results.clear()
    threads = [threading.Thread(target=ask, args=("POST",)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in results} <= {502, 504}
    assert sum(took < AT_ONCE for _, took in results) >= 25
    wait_until(lambda: three.metric("c1", "smartgw_in_flight") == 0, what="nothing pending")


def test_a_client_that_leaves_takes_its_request_from_wherever_it_is(three: Wired) -> None:
    """3.6: it is cancelled at the peer, too, and no peer is set aside for it."""
    app = three.app("c2")
    ended = threading.Event()

    def wait(connection: Connection, request: Request) -> None:
        if connection.ended(2.0):
            ended.set()
        raise EOFError

    three.host("c2", app, each(wait))
    three.hosts_of(app, "c1")
    with three.gateways["c1"].downstream() as client:
        client.send(f"GET /gone HTTP/1.1\r\nHost: {three.hostname(app)}\r\n\r\n".encode())
        time.sleep(0.3)
    assert ended.wait(3.0)


def test_the_log_says_who_answered(three: Wired) -> None:
    """11.3: the cluster that answered, why it was asked, how many were, and who forwarded it."""
    app = three.app("c2")
    three.hosts_of(app)
    three.ask("c1", app, "/log/owner")
    line = logged(three, "c1", "/log/owner")
    assert (line["cluster"], line["forward"], line["attempts"]) == ("c2", "affinity", 1)
    assert (line["host_id"], line["from_cluster"]) == (None, None)
    line = logged(three, "c2", "/log/owner")
    assert (line["cluster"], line["forward"], line["from_cluster"]) == ("c2", None, "c1")
    assert line["client"] == "127.0.0.1"
    assert line["host_id"] is not None
    three.wires["c2"].set("refuse")
    three.ask("c1", app, "/log/local")
    line = logged(three, "c1", "/log/local")
    assert (line["cluster"], line["forward"], line["attempts"]) == ("c1", None, 2)
    three.ask("c1", app, "/log/write", "POST")
    line = logged(three, "c1", "/log/write")
    assert (line["cluster"], line["reason"]) == (None, "peer_unreachable")


def test_forwarded_answers_carry_the_serving_clusters_numbers(three: Wired) -> None:
    """6.2, 6.5: both clusters count a forward, to the original caller; its own numbers once."""
    app = three.app("c2")
    three.hosts_of(app)
    left = [int(three.ask(at, app).one("x-ratelimit-remaining")) for at in ("c2", "c1", "c2")]
    assert left == [999_999, 999_998, 999_997]
    assert len(three.ask("c1", app).all("ratelimit")) == 1
