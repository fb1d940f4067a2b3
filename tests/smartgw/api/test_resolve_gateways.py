"""Questions about DNS over HTTP through real gateways, with a real store of counters (8.1, 8.5)."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from smartgw.state.zone_records import ZoneHead
from smartgw_dns.packed import pack
from tests.dns.zones import zone
from tests.gateway import Cluster, Gateway, wait_until
from tests.generations import metric
from tests.raw_http import Answer
from tests.servers import Nats, Valkey
from tests.smartgw.api import issuing
from tests.stores import put

RESOLVE = "/api/v3/dns/resolve?name=www.z"
LIMITS = {"requests": 600, "unknown": 100, "own": 600, "services": 6_000}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """The store of the counters."""
    with Valkey() as server:
        yield server


@pytest.fixture(scope="module")
def gateways(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """Two gateways of a cluster that count together; the second carries traffic with workers."""
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats, enrolled=1)
    settings: dict[str, Any] = {
        **issuing.settings(tmp_path_factory.mktemp("issuer")),
        "rates": LIMITS,
        "store": {"servers": [valkey.url]},
        "proxy": {"trusted": ["127.0.0.1/32"]},
    }
    try:
        found = [
            cluster.gateway(settings),
            cluster.gateway({**settings, "processes": {"workers": 2}}),
        ]
        made = zone("www A 192.0.2.1\n*.apps A 192.0.2.2\n")
        kept = pack(made)
        put(cluster, ZoneHead(made.origin, made.serial, made.records, kept.size, kept.lead))
        for gateway in found:
            wait_until(lambda gateway=gateway: known(gateway))  # type: ignore[misc]
        yield found
    finally:
        cluster.stop()
        nats.stop()


def known(gateway: Gateway) -> bool:
    """Whether it has the zone."""
    return bool(json.loads(gateway.internal("/api/v3/status")[1])["dns"]["zones"])


class Session:
    """A session at an address of its own; `number` names both."""

    def __init__(self, gateways: list[Gateway], number: int, address: str = "") -> None:
        self.gateways = gateways
        self.client = address or f"203.0.113.{number}"
        self.token = issuing.token("session", sid=f"session-{number}")

    def ask(self, turn: int = 0, path: str = RESOLVE, body: object = None) -> Answer:
        """Ask one of the gateways, in turns."""
        fields = [f"X-Forwarded-For: {self.client}"]
        if self.token:
            fields.append(f"Authorization: Bearer {self.token}")
        data = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            fields.append("Content-Type: application/json")
        method = "GET" if body is None else "POST"
        gateway = self.gateways[turn % len(self.gateways)]
        return gateway.ask(issuing.API, path, method, *fields, body=data)

    def batch(self, turn: int = 0, count: int = 10) -> Answer:
        """Ask for several at once."""
        queries = [{"name": f"n{number}.apps.z"} for number in range(count)]
        return self.ask(turn, "/api/v3/dns/resolve/batch", {"queries": queries})

    def left(self) -> tuple[int, int, int]:
        """What remains of address, session and day, one query more being counted as not asked."""
        answer = self.ask()
        names = ("", "-Identity", "-Identity-Quota")
        one, two, three = (int(answer.one(f"X-RateLimit{n}-Remaining")) + 1 for n in names)
        return one, two, three


def statuses(answers: Iterator[Answer]) -> Counter[int]:
    """How many answers have which status."""
    return Counter(answer.status for answer in answers)


def test_with_fifty_left_exactly_fifty_of_two_hundred(gateways: list[Gateway]) -> None:
    """8.5: 200 parallel resolves at two gateways with 50 left: exactly 50."""
    session = Session(gateways, 1)
    for turn in range(7):
        assert session.batch(turn).status == 200
    with ThreadPoolExecutor(32) as pool:
        assert statuses(pool.map(session.ask, range(200))) == {200: 50, 429: 150}
    answer = session.ask()
    assert answer.one("X-RateLimit-Identity-Remaining") == "0"
    # What is refused costs nothing.
    assert answer.one("X-RateLimit-Remaining") == "480"
    assert answer.one("X-RateLimit-Identity-Quota-Remaining") == "9880"
    assert 0 < int(answer.one("Retry-After")) <= 60


def test_of_the_address_exactly_what_is_left(gateways: list[Gateway]) -> None:
    """6.2, 8.5: all calls of an address share one window, whatever they are, a query a unit."""
    sessions = [Session(gateways, number, "198.51.100.7") for number in range(10, 16)]
    stranger = Session(gateways, 0, "198.51.100.7")
    stranger.token = ""
    for turn in range(20):
        assert stranger.ask(turn, "/api/v3/discovery/hosts").status == 200
        assert stranger.ask(turn).status == 401
        assert stranger.ask(turn, "/api/v3/dns/nothing").status == 404
    for session in sessions[:5]:
        for turn in range(10):
            assert session.batch(turn).status == 200
    with ThreadPoolExecutor(32) as pool:
        assert statuses(pool.map(sessions[5].ask, range(80))) == {200: 40, 429: 40}
    assert stranger.ask().status == 429
    assert stranger.ask(0, "/api/v3/discovery/hosts").status == 429
    assert sessions[5].ask().one("X-RateLimit-Identity-Remaining") == "80"


def test_a_flood_of_strangers_gets_no_further_than_the_data_path(
    gateways: list[Gateway],
) -> None:
    """6.2, 6.3: whose address has used its window up is refused without a credential looked at."""
    stranger = Session(gateways, 0, "198.51.100.9")
    stranger.token = ""
    with ThreadPoolExecutor(16) as pool:
        assert statuses(pool.map(stranger.ask, range(600))) == {401: 600}
        before = [refused_credentials(gateway) for gateway in gateways]
        assert statuses(pool.map(stranger.ask, range(100))) == {429: 100}
    assert [refused_credentials(gateway) for gateway in gateways] == before
    stranger.token = "x.y.z"
    answer = stranger.ask()
    assert (answer.status, json.loads(answer.body)["error"]["reason"]) == (429, "rate_limited")
    assert len(answer.all("X-RateLimit-Limit")) == 1


def refused_credentials(gateway: Gateway) -> float:
    """How many calls without a credential that counts the API has looked at."""
    return metric(gateway, 'smartgw_api_refused_total{reason="missing"}') + metric(
        gateway, 'smartgw_api_refused_total{reason="malformed"}'
    )


def test_one_process_counts_in_memory_as_well(gateways: list[Gateway], tmp_path: Path) -> None:
    """6.6, 8.5: without a store the data path and the API count in one and the same window."""
    settings = issuing.settings(tmp_path)
    rates = {**LIMITS, "own": 12, "queries": 11}
    trusted = {"trusted": ["127.0.0.1/32"]}
    changes = {**settings, "rates": rates, "store": {}, "proxy": trusted}
    gateway = gateways[0].cluster.gateway(changes)
    wait_until(lambda: known(gateway))
    session, stranger = Session([gateway], 1), Session([gateway], 1)
    stranger.token = ""
    assert session.batch().status == 200
    assert session.ask().one("X-RateLimit-Remaining") == "1"
    assert stranger.ask(0, "/api/v3/discovery/hosts").one("X-RateLimit-Remaining") == "0"
    before = refused_credentials(gateway)
    assert stranger.ask().status == 429
    assert refused_credentials(gateway) == before
    answer = session.ask()
    assert answer.status == 429
    assert answer.one("X-RateLimit-Identity-Remaining") == "0"
    assert (
        b"requests of your address in 60 s (12), queries of your session in 60 s (11)"
        in answer.body
    )


def test_batches_at_two_gateways_take_ten_or_none(gateways: list[Gateway]) -> None:
    """8.5: a batch of 10 takes 10 of each budget or none, however many come at once."""
    session = Session(gateways, 2)
    for turn in range(5):
        assert session.ask(turn).status == 200
    with ThreadPoolExecutor(32) as pool:
        assert statuses(pool.map(session.batch, range(40))) == {200: 11, 429: 29}
    assert session.left() == (485, 5, 9_885)
    for count in (0, 11):
        assert session.batch(count=count).status == 400
    assert session.left() == (482, 4, 9_884)


@pytest.mark.parametrize("turn", [0, 1], ids=["one process", "workers"])
def test_each_query_costs_its_address_one_unit(gateways: list[Gateway], turn: int) -> None:
    """8.5: the data path and the API count it once together, and tell its numbers once."""
    session = Session([gateways[turn]], 20 + turn)
    for number in range(3):
        answer = session.ask()
        for name in ("X-RateLimit-Limit", "X-RateLimit-Remaining", "RateLimit", "RateLimit-Policy"):
            assert len(answer.all(name)) == 1
        assert answer.one("X-RateLimit-Remaining") == str(599 - number)
        assert not answer.all("X-Smartgw-Caller")
    answer = session.ask(path="/api/v3/discovery/hosts")
    assert answer.one("X-RateLimit-Remaining") == "596"


def test_spellings_of_a_path_are_not_free(gateways: list[Gateway]) -> None:
    """6.2: whatever a client writes, somebody charges it."""
    session = Session(gateways, 3)
    for path in (
        "/api/v3/dns/%72esolve?name=www.z",
        "/api/v3/dns/resolve/?name=www.z",
        "//dns-query?dns=AA",
        "/x/../dns-query?dns=AA",
        "/dns-query/?dns=AA",
        "/dns-query;x?dns=AA",
        "/dns-query",
        "/dns-query?dns=%00",
    ):
        before = session.left()[0]
        assert session.ask(path=path).status in (400, 404, 200)
        assert session.left()[0] <= before - 2


def test_nothing_is_given_away_while_the_counters_are_away(
    gateways: list[Gateway], valkey: Valkey
) -> None:
    """6.6, 8.5: metered budgets fail closed with 503, other calls go on."""
    session = Session(gateways, 4)
    stranger = Session(gateways, 5)
    stranger.token = ""
    assert session.ask().status == 200
    valkey.kill()
    try:
        wait_until(lambda: session.ask().status == 503)
        for turn in range(2):
            answer = session.ask(turn)
            assert answer.status == 503
            assert json.loads(answer.body)["error"]["reason"] == "counters_unavailable"
            assert b"192.0.2.1" not in answer.body
            assert stranger.ask(turn).status == 401
            assert stranger.ask(turn, "/api/v3/discovery/hosts").status == 200
            started = time.monotonic()
            session.batch(turn)
            assert time.monotonic() - started < 5
        assert session.ask(path="/api/v3/dns/resolve").status == 400
    finally:
        valkey.start()
    wait_until(lambda: {session.ask(turn).status for turn in range(2)} == {200})


def test_a_service_asks_from_a_window_of_its_own(gateways: list[Gateway], tmp_path: Path) -> None:
    """6.2: services have their own, and their address pays nothing."""
    session = Session(gateways, 6)
    service = Session(gateways, 6)
    service.token = issuing.token("service", sub="asking")
    for turn in range(20):
        answer = service.batch(turn)
        assert answer.status == 200
    assert answer.one("RateLimit-Policy") == '"service";q=6000;w=60'
    assert session.left()[0] == 600
