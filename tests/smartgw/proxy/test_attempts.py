"""What the end of an attempt says of a peer: the path over a link on which nothing happens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from smartgw.config import Settings
from smartgw.errors import ANSWERS, Reason
from smartgw.peers.directory import Mode, View
from smartgw.proxy.counters import Counters
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.exchange import Exchange, Sent, no_request
from smartgw.proxy.link import Link
from smartgw.proxy.path import Path
from smartgw.proxy.pools import Pools
from smartgw.proxy.upstream import UpstreamConnection
from smartgw.routing.policy import AppPolicy
from smartgw_hosts.clusters import parse
from smartgw_hosts.http1 import Bounds, parse_response
from tests.forwarders import entry, list_text

SETTINGS = {
    "cluster": "c1",
    "base_domains": ["smart-app.example"],
    "host_networks": ["127.0.0.0/8"],
    "trust": {"mode": "first-use"},
}


class Still(Link):
    """A link on which requests wait. `opening`: a connection is being opened meanwhile."""

    opening = False

    def take(self, exchange: Exchange) -> None:
        return None

    def done(self, exchange: Exchange) -> None:
        self.outstanding -= 1

    def is_opening(self) -> bool:
        return self.opening

    def wants_one(self) -> bool:
        return False

    def open_one(self) -> None: ...

    def release(self, connection: UpstreamConnection) -> None: ...

    def lost(self, connection: UpstreamConnection) -> None: ...

    def broke(self, connection: UpstreamConnection) -> None: ...


class Client:
    """The downstream. `status`: what it was answered."""

    deadline, peer, scheme, status = 0.0, "192.0.2.1", b"http", 0

    def await_head(self) -> None: ...

    def respond(self, exchange: Exchange, status: int, *_: object) -> None:
        self.status = status


class Entry:
    """A gateway of c1, whose list has c2 besides; what goes there waits on `link`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        settings = Settings.model_validate(SETTINGS)
        pools = Pools(settings, loop, Deadlines(loop, 1.0), Bounds(), lambda _: None)
        self.path = pools.path = Path(settings, pools, Counters(), None, None)
        self.link = Still(cluster_id="c2")
        peers: Any = SimpleNamespace(link=lambda _: self.link)
        self.path.peers = peers
        clusters = (entry(f"c{n}", f"http://127.0.0.1:{n}") for n in (1, 2))
        listed = parse(list_text(*clusters))
        self.view = View(Mode.FRESH, "c1", listed)
        self.apps = (app for n in range(1_000) if self.view.owner(app := f"app-{n}") == "c2")

    @property
    def aside(self) -> tuple[str, ...]:
        return self.path.forwards.failover.aside()

    def write(self, ago: float = 0.0) -> Exchange:
        """A write for one more app of c2's, on its way there since so many seconds."""
        client: Any = Client()
        request = no_request()
        request.method = b"POST"
        exchange = Exchange(client, request, self.path.pools.loop.time() - ago, 30.0)
        exchange.limits = b"X-RateLimit-Limit: 1"
        route: Any = SimpleNamespace(app_id=next(self.apps), hosts=(), policy=AppPolicy())
        exchange.route = route
        exchange.view = self.view
        exchange.request_done = True
        self.path.forwards.plan(exchange, self.view)
        assert exchange.link is self.link
        return exchange

    def set_aside(self) -> None:
        for _ in range(5):
            self.path.attempt_failed(self.write(), Reason.UPSTREAM_REFUSED)
        assert self.aside == ("c2",)


TOLD = [reason for reason, answer in ANSWERS.items() if answer.status in (502, 503, 504)]


@pytest.mark.parametrize("reason", TOLD)
async def test_a_failure_that_a_peer_tells_of_ends_its_breaker(reason: Reason) -> None:
    """5.2: a gateway that says why it cannot serve is there, whatever the reason."""
    made = Entry()
    made.set_aside()
    exchange = made.write()
    exchange.sent = Sent.FULL
    status = ANSWERS[reason].status
    head = b"HTTP/1.1 %d No\r\nContent-Length: 0\r\nX-Smartgw-Answer: failed=%b; sent=full"
    names = made.path.peer_response_names
    told = parse_response(head % (status, reason.value.encode()), names, Bounds(), b"POST")
    made.path.reply(exchange, told, b"", True)
    assert made.aside == ()
    assert exchange.over
    assert exchange.reason in (reason, Reason.OWNER_UNCLEAR)


@pytest.mark.parametrize(
    ("left", "reason"), [(0.02, Reason.UPSTREAM_TIMEOUT), (5.0, Reason.UPSTREAM_REFUSED)]
)
async def test_a_peer_may_be_the_first_to_know_of_the_deadline(left: float, reason: Reason) -> None:
    """5: past the deadline it is 504, by whose clock ever; before it the first failure is told."""
    made = Entry()
    exchange = made.write(30.0 - left)
    exchange.sent, exchange.failure = Sent.FULL, Reason.UPSTREAM_REFUSED
    head = b"HTTP/1.1 504 No\r\nX-Smartgw-Answer: failed=upstream_timeout; sent=full"
    told = parse_response(head, made.path.peer_response_names, Bounds(), b"POST")
    made.path.reply(exchange, told, b"", True)
    assert exchange.reason is reason


async def test_what_failed_before_an_answer_is_not_why_that_stalled() -> None:
    """5: the first failure is told where there was no answer; else the answer's own."""
    made = Entry()
    exchange = made.write()
    exchange.failure = Reason.UPSTREAM_RESET
    forwards = made.path.forwards
    assert forwards.as_ours(exchange, Reason.UPSTREAM_TIMEOUT) is Reason.UPSTREAM_RESET
    exchange.status = 200
    assert forwards.as_ours(exchange, Reason.UPSTREAM_TIMEOUT) is Reason.PEER_TIMEOUT


@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.NO_UPSTREAM])
async def test_what_is_ours_is_no_failure_of_a_peer(reason: Reason) -> None:
    """5.2: no peer is set aside since we have no room for a connection, or it left the list."""
    made = Entry()
    for _ in range(10):
        made.path.attempt_failed(made.write(), reason)
    assert made.aside == ()


@pytest.mark.parametrize(
    ("ago", "sent", "opening", "aside"),
    [
        (30.0, Sent.FULL, False, True),
        (30.0, Sent.NONE, True, True),
        (30.0, Sent.NONE, False, False),
        (11.0, Sent.FULL, False, False),
        (11.0, Sent.NONE, True, False),
    ],
    ids=["no answer", "no connection", "all in use", "late for an answer", "late to connect"],
)
async def test_who_has_waited_in_vain(ago: float, sent: Sent, opening: bool, aside: bool) -> None:
    """5.2: it is the peer's failure if it had a share of the deadline, and if it was not that all
    connections to it were in use.
    """
    made = Entry()
    made.link.opening = opening
    for _ in range(5):
        exchange = made.write(ago)
        exchange.sent = sent
        made.path.timed_out(exchange, by_client=False)
        assert exchange.reason is Reason.PEER_TIMEOUT
    assert bool(made.aside) is aside
