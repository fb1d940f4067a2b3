"""The table of contract 5, each row over three real gateways with real hosts behind wires."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from smartgw.peers.directory import Mode, View
from smartgw.routing.failover import Failover
from smartgw_hosts.clusters import parse
from tests.forwarders import list_text
from tests.upstreams import Connection, Script, each
from tests.wires import Wired, answering_as, arrived

READS = ("GET", "HEAD", "OPTIONS")
WRITES = ("POST", "PUT", "PATCH", "DELETE", "PROPFIND")
DEADLINE = 2.5
# Less than what more than one of them takes.
LATE = 1.5 * DEADLINE
# What each mode of a wire is to a request whose link has to be opened.
AWAY = {"refuse": 502, "reset": 502, "die": 502, "drop": 504, "hang": 504, "mute": 504}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    settings = {
        "deadlines": {"response_head": DEADLINE},
        "upstream": {"connect_timeout": 0.4, "challenge_timeout": 0.6},
        "rates": {"requests": 1_000_000},
    }
    with Wired(tmp_path_factory.mktemp("rows"), settings=settings) as made:
        yield made


@pytest.fixture
def three(made: Wired) -> Iterator[Wired]:
    yield made
    made.heal()


def order(three: Wired, app: str) -> list[str]:
    """The peers of c1 in the order in which it asks them for an app."""
    clusters = parse(list_text(*(three.entry(one) for one in three.urls)))
    return list(Failover().order(View(Mode.FRESH, "c1", clusters), app))


def hang(connection: Connection) -> None:
    """Take a request and never answer."""
    connection.request()
    connection.ended(30)


def reset(connection: Connection) -> None:
    """Take one request and break off."""
    connection.request()
    connection.reset()


# ---- row 1: writes ----


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("mode", ["refuse", "reset", "drop"])
def test_a_write_whose_owner_is_away_goes_nowhere_else(
    three: Wired, mode: str, method: str
) -> None:
    """5, row 1; 5.5: never sent to another cluster: 502 or 504, and nothing of it had left."""
    app = three.app("c2")
    hosts = three.hosts_of(app)
    three.wires["c2"].set(mode)
    answer = three.ask("c1", app, "/w", method, body=b"x" * 100)
    assert answer.status == AWAY[mode]
    assert answer.one("x-smartgw-request-sent") == "none"
    assert answer.one("x-failover-cluster") == ""
    assert [arrived(host, "/w") for host in hosts.values()] == [0, 0, 0]


@pytest.mark.parametrize(("mode", "status"), [("die", 502), ("mute", 504)])
def test_a_write_that_left_and_was_not_answered_goes_nowhere_else(
    three: Wired, mode: str, status: int
) -> None:
    """5, row 1; 5.5: the owner had all of it, and may have done it: once, and the caller knows."""
    app = three.app("c2")
    hosts = three.hosts_of(app)
    assert three.ask("c1", app, "/warm", "POST").status == 200
    three.wires["c2"].set(mode)
    begun = time.monotonic()
    answer = three.ask("c1", app, "/w", "POST", body=b"x" * 100)
    assert answer.status == status
    assert answer.one("x-smartgw-request-sent") == "full"
    assert time.monotonic() - begun < LATE
    assert [arrived(host, "/w") for host in hosts.values()] == [0, 1, 0]


@pytest.mark.parametrize(
    ("method", "script", "status", "sent"),
    [
        *((method, reset, 502, "full") for method in WRITES),
        *((method, None, 502, "none") for method in WRITES),
        ("POST", hang, 504, "full"),
    ],
)
def test_a_write_that_failed_here_goes_nowhere_else(
    three: Wired, method: str, script: Script | None, status: int, sent: str
) -> None:
    """5, row 1: failed here, beyond 3.7: the 502 or 504 is returned."""
    app = three.app("c1")
    host = three.host("c1", app, script or answering_as("c1"))
    others = three.hosts_of(app, "c2", "c3")
    if script is None:
        host.upstream.kill()
    answer = three.ask("c1", app, "/w", method, body=b"x" * 100)
    assert (answer.status, answer.one("x-smartgw-request-sent")) == (status, sent)
    assert arrived(host, "/w") == (script is not None)
    assert [arrived(other, "/w") for other in others.values()] == [0, 0]


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize(
    ("script", "status", "sent"),
    [(reset, 502, "full"), (None, 502, "none")],
    ids=["reset", "refused"],
)
def test_a_write_that_failed_at_the_owners_host_goes_nowhere_else(
    three: Wired, script: Script | None, status: int, sent: str, method: str
) -> None:
    """4.7, 5, row 1; 5.5: the owner's gateway says how much had left for the host."""
    app = three.app("c2")
    host = three.host("c2", app, script or answering_as("c2"))
    others = three.hosts_of(app, "c1", "c3")
    if script is None:
        host.upstream.kill()
    answer = three.ask("c1", app, "/w", method, body=b"x" * 100)
    assert (answer.status, answer.one("x-smartgw-request-sent")) == (status, sent)
    assert answer.one("x-smartgw-answer") == ""
    assert arrived(host, "/w") == (script is not None)
    assert [arrived(other, "/w") for other in others.values()] == [0, 0]


# ---- row 2: reads that nobody serves here ----


@pytest.mark.parametrize("method", READS)
@pytest.mark.parametrize("how", ["left", "refused", "reset", "hanging"])
def test_a_read_that_nobody_serves_here_goes_to_a_peer(three: Wired, how: str, method: str) -> None:
    """5, row 2; 5.4: nothing local, or local hosts unreachable: peers are tried."""
    app = three.app("c1")
    script = {"reset": reset, "hanging": hang}.get(how, answering_as("c1"))
    host = three.host("c1", app, script)
    three.hosts_of(app, "c2", "c3")
    if how == "refused":
        host.upstream.kill()
    elif how == "left":
        host.stop()
        time.sleep(0.2)
    first = order(three, app)[0]
    begun = time.monotonic()
    answer = three.ask("c1", app, "/r", method)
    assert (answer.status, answer.one("x-host-of")) == (200, first)
    assert answer.one("x-failover-cluster") == first
    if how == "hanging":
        assert time.monotonic() - begun < 0.8 * DEADLINE


# ---- row 3: the owner cannot be reached ----


@pytest.mark.parametrize("method", READS)
@pytest.mark.parametrize("mode", AWAY)
def test_a_read_whose_owner_is_away_is_served_here(three: Wired, mode: str, method: str) -> None:
    """5, row 3; 5.4: the local instance first."""
    app = three.app("c2")
    hosts = three.hosts_of(app)
    three.wires["c2"].set(mode)
    answer = three.ask("c1", app, "/r", method)
    assert (answer.status, answer.one("x-host-of")) == (200, "c1")
    assert answer.one("x-failover-cluster") == "c1"
    assert arrived(hosts["c3"], "/r") == 0


@pytest.mark.parametrize("mode", ["die", "mute"])
def test_a_read_that_broke_off_at_the_owner_is_served_here(three: Wired, mode: str) -> None:
    """5, row 3: a link that breaks, or falls silent, under a request."""
    app = three.app("c2")
    three.hosts_of(app)
    assert three.ask("c1", app, "/warm").one("x-host-of") == "c2"
    three.wires["c2"].set(mode)
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.one("x-host-of")) == (200, "c1")


@pytest.mark.parametrize("method", READS)
def test_without_an_instance_here_the_other_peers_serve(three: Wired, method: str) -> None:
    """5, row 3: then the other peers."""
    app = three.app("c2")
    gone = three.host("c1", app)
    three.hosts_of(app, "c3")
    gone.stop()
    time.sleep(0.2)
    three.wires["c2"].set("refuse")
    answer = three.ask("c1", app, "/r", method)
    assert (answer.status, answer.one("x-host-of")) == (200, "c3")
    assert answer.one("x-failover-cluster") == "c3"


@pytest.mark.parametrize("how", ["refused", "reset", "unknown"])
def test_an_owner_without_a_working_host_counts_as_unreachable(three: Wired, how: str) -> None:
    """4.7: failures that a gateway makes itself on a forward are no answers."""
    app = three.app("c2")
    three.hosts_of(app, "c1", "c3")
    if how != "unknown":
        host = three.host("c2", app, reset)
        if how == "refused":
            host.upstream.kill()
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.one("x-host-of")) == (200, "c1")
    assert answer.one("x-failover-cluster") == "c1"


# ---- row 4: answers of peers ----


@pytest.mark.parametrize("status", ["204 No Content", "302 Found", "404 Not Found", "410 Gone"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_the_owner_answers_is_returned_as_it_is(
    three: Wired, status: str, method: str
) -> None:
    """5, row 4: 2xx, 3xx, 4xx; redirects are not followed."""
    app = three.app("c2")
    field = "Location: http://elsewhere.example/"
    three.host(
        "c2",
        app,
        each(
            lambda c, r: c.send(
                f"HTTP/1.1 {status}\r\n{field}\r\n".encode(),
                b"\r\n" if status.startswith("204") else b"Content-Length: 0\r\n\r\n",
            )
        ),
    )
    other = three.hosts_of(app, "c1")["c1"]
    answer = three.ask("c1", app, "/r", method)
    assert answer.head.startswith(f"HTTP/1.1 {status}".encode())
    assert answer.one("location") == "http://elsewhere.example/"
    assert answer.one("x-failover-cluster") == ""
    assert arrived(other, "/r") == 0


@pytest.mark.parametrize("status", ["302 Found", "404 Not Found"])
def test_what_a_failover_peer_answers_is_returned_as_it_is(three: Wired, status: str) -> None:
    """5, row 4: from whichever peer."""
    app = three.app("c1")
    three.host("c1", app).upstream.kill()
    first, second = order(three, app)
    three.host(first, app, answering_as(first, status))
    other = three.hosts_of(app, second)[second]
    answer = three.ask("c1", app, "/r")
    assert answer.head.startswith(f"HTTP/1.1 {status}".encode())
    assert answer.one("x-failover-cluster") == first
    assert arrived(other, "/r") == 0


# ---- rows 5 and 6: 500 and above ----


@pytest.mark.parametrize("status", ["500 Oops", "503 Busy", "599 Odd"])
def test_a_failover_peer_that_answers_500_is_skipped(three: Wired, status: str) -> None:
    """5, row 5: the next one is asked."""
    app = three.app("c1")
    three.host("c1", app).upstream.kill()
    first, second = order(three, app)
    bad = three.host(first, app, answering_as(first, status))
    three.hosts_of(app, second)
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.one("x-host-of")) == (200, second)
    assert answer.one("x-failover-cluster") == second
    assert arrived(bad, "/r") == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", ["500 Oops", "502 Bad", "503 Busy", "504 Late"])
def test_500_of_the_owners_app_is_its_answer(three: Wired, status: str, method: str) -> None:
    """5, row 6: an answer of the app: returned."""
    app = three.app("c2")
    three.host("c2", app, answering_as("c2", status))
    others = three.hosts_of(app, "c1", "c3")
    answer = three.ask("c1", app, "/r", method)
    assert answer.head.startswith(f"HTTP/1.1 {status}".encode())
    assert (answer.body, answer.one("x-failover-cluster")) == (b"c2", "")
    assert [arrived(other, "/r") for other in others.values()] == [0, 0]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_500_of_the_local_app_is_its_answer(three: Wired, method: str) -> None:
    """5, row 6: here as well, as owner and in the owner's place."""
    app = three.app("c1")
    three.host("c1", app, answering_as("c1", "500 Oops"))
    other = three.hosts_of(app, "c2")["c2"]
    answer = three.ask("c1", app, "/r", method)
    assert (answer.status, answer.body) == (500, b"c1")
    assert arrived(other, "/r") == 0
    theirs = three.app("c2")
    three.host("c1", theirs, answering_as("c1", "500 Oops"))
    other = three.hosts_of(theirs, "c3")["c3"]
    answer = three.ask("c1", theirs, "/r")
    assert (answer.status, answer.one("x-failover-cluster")) == (500, "c1")
    assert arrived(other, "/r") == 0


# ---- rows 8 and 9: the end ----


@pytest.mark.parametrize(
    ("script", "status"),
    [(None, 502), (reset, 502), (hang, 504), ("left", 503)],
    ids=["refused", "reset", "hanging", "nothing"],
)
def test_when_nobody_is_left_the_first_failure_is_the_answer(
    three: Wired, script: Script | str | None, status: int
) -> None:
    """5, row 8: nothing to try 503, refused or reset 502, timed out 504."""
    app = three.app("c1")
    host = three.host("c1", app, script if callable(script) else answering_as("c1"))
    if script is None:
        host.upstream.kill()
    elif script == "left":
        host.stop()
        time.sleep(0.2)
    for peer in ("c2", "c3"):
        three.wires[peer].set("refuse")
    answer = three.ask("c1", app, "/r")
    assert answer.status == status
    assert answer.one("x-failover-cluster") == ""


def test_when_every_failover_peer_answers_500_the_first_failure_is_the_answer(
    three: Wired,
) -> None:
    """5, row 8: what was skipped is no answer either."""
    app = three.app("c1")
    three.host("c1", app).upstream.kill()
    for peer in ("c2", "c3"):
        three.host(peer, app, answering_as(peer, "500 Oops"))
    answer = three.ask("c1", app, "/r")
    assert (answer.status, answer.one("x-failover-cluster")) == (502, "")


def test_past_the_deadline_nobody_is_asked(three: Wired) -> None:
    """5, row 9; 5.1: one deadline for all attempts together."""
    app = three.app("c2")
    hosts = {one: three.host(one, app, hang) for one in ("c1", "c2", "c3")}
    begun = time.monotonic()
    answer = three.ask("c1", app, "/r")
    took = time.monotonic() - begun
    assert answer.status == 504
    assert DEADLINE - 0.1 < took < LATE
    # 40 % for the owner, 40 % for our own, the rest for the third.
    assert [arrived(hosts[one], "/r") for one in hosts] == [1, 1, 1]
