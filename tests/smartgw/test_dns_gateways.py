"""DNS as its users see it: gateways of two clusters, zones written at one, asked at all (8)."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import dns.flags
import dns.message
import dns.query
import dns.rcode
import pytest

from tests.dns.test_lookup import REPORTS
from tests.dns.zones import NS, SOA
from tests.gateway import Cluster, Gateway, wait_until
from tests.raw_http import Answer
from tests.resolvers import Resolver
from tests.resolvers import address as resolve
from tests.servers import Nats, free_port
from tests.smartgw.api import issuing

ZONES = "/api/v3/dns/zones"
FILE = f"$TTL 300\n{SOA}{NS}www A 192.0.2.1\n"


@pytest.fixture(scope="module")
def resolver() -> Iterator[Resolver]:
    """What the gateways would ask for others."""
    made = Resolver(resolve)
    yield made
    made.close()


@pytest.fixture(scope="module")
def gateways(
    resolver: Resolver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list["Nameserver"]]:
    """Two gateways of one cluster, of which one has workers, and one of another cluster."""
    nats = Nats(jetstream=True).start()
    clusters = [Cluster(name, nats, enrolled=1) for name in ("one", "two")]
    host, port = resolver.address
    settings = issuing.settings(tmp_path_factory.mktemp("issuer"))
    found: list[Nameserver] = []
    try:
        for cluster, workers in ((clusters[0], 1), (clusters[0], 2), (clusters[1], 1)):
            where = free_port()
            served = {"listen": [f"127.0.0.1:{where}"], "rate": 0, "resolvers": [f"{host}:{port}"]}
            changes = {**settings, "dns": served, "processes": {"workers": workers}}
            found.append(Nameserver(cluster.gateway(changes), where))
        yield found
    finally:
        for cluster in clusters:
            cluster.stop()
        nats.stop()


class Nameserver:
    """A gateway that serves zones at a port."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway, self.port = gateway, port

    def call(self, method: str, path: str, body: object = None, *fields: str) -> Answer:
        """Call the API as a service; `body` text: a master file."""
        sent = [f"Authorization: Bearer {issuing.token()}", *fields]
        data = b""
        if isinstance(body, str):
            data = body.encode()
            sent.append("Content-Type: text/dns")
        elif body is not None:
            data = json.dumps(body).encode()
            sent.append("Content-Type: application/json")
        return self.gateway.ask(issuing.API, path, method, *sent, body=data)

    def done(self, method: str, path: str, body: object = None, *fields: str) -> Any:
        """The body of a success."""
        answer = self.call(method, path, body, *fields)
        assert answer.status in (200, 201), answer.body
        return json.loads(answer.body)

    def wire(self, name: str, rdtype: str = "A", *, tcp: bool = False) -> dns.message.Message:
        """Ask over UDP or TCP, for recursion too."""
        send = dns.query.tcp if tcp else dns.query.udp
        return send(dns.message.make_query(name, rdtype), "127.0.0.1", 5, self.port)

    def address(self, name: str) -> str:
        """The first address of a name, or the response code."""
        answer = self.wire(name)
        return str(answer.answer[-1][0]) if answer.answer else rcode(answer)

    def http(self, name: str, rdtype: str = "A", role: str = "session") -> dict[str, Any]:
        """Ask over HTTP."""
        query = urlencode({"name": name, "type": rdtype})
        field = f"Authorization: Bearer {issuing.token(role)}"
        answer = self.gateway.ask(issuing.API, f"/api/v3/dns/resolve?{query}", "GET", field)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = json.loads(answer.body)
        return found


def rcode(answer: dns.message.Message) -> str:
    """The response code by name."""
    return dns.rcode.to_text(answer.rcode())


def test_a_change_is_in_force_everywhere_within_two_seconds(gateways: list[Nameserver]) -> None:
    """8.4, 8.6: written at any gateway, served by all: over the wire and HTTP, in every cluster."""
    gateways[0].done("PUT", f"{ZONES}/soon.test/file", FILE)
    for number in range(6):
        writer = gateways[number % 3]
        address = f"192.0.2.{100 + number}"
        wanted = {"ttl": 60, "rdata": [address]}
        written = writer.done("PUT", f"{ZONES}/soon.test/rrsets/www.soon.test/A", wanted)
        # Whoever has written sees it at once.
        assert writer.address("www.soon.test.") == address
        began = time.monotonic()
        for gateway in gateways:
            wait_until(
                lambda gateway=gateway, address=address: (  # type: ignore[misc]
                    gateway.address("www.soon.test.") == address
                ),
                within=2.0,
            )
            assert gateway.http("www.soon.test")["Answer"][0]["data"] == address
        assert time.monotonic() - began < 2.0
        assert written["serial"] == number + 2
    gateways[1].done("DELETE", f"{ZONES}/soon.test")
    for gateway in gateways:
        wait_until(lambda gateway=gateway: gateway.address("www.soon.test.") == "REFUSED")  # type: ignore[misc]


def test_edits_at_several_gateways_at_once_lose_nothing(gateways: list[Nameserver]) -> None:
    """10.3: with If-Match one of two is refused; without, each is made, one after the other."""
    first = gateways[0].done("PUT", f"{ZONES}/busy.test/file", FILE)
    condition = f'If-Match: "{first["etag"]}"'
    wait_until(lambda: all(g.call("GET", f"{ZONES}/busy.test").status == 200 for g in gateways))

    def conditional(number: int) -> int:
        path = f"{ZONES}/busy.test/rrsets/only.busy.test/A"
        wanted = {"ttl": 60, "rdata": [f"192.0.2.{number}"]}
        return gateways[number % 3].call("PUT", path, wanted, condition).status

    def plain(number: int) -> int:
        path = f"{ZONES}/busy.test/rrsets/h{number}.busy.test/A"
        return gateways[number % 3].call("PUT", path, {"ttl": 1, "rdata": ["192.0.2.1"]}).status

    with ThreadPoolExecutor(12) as pool:
        assert sorted(pool.map(conditional, range(12))) == [201] + [412] * 11
        statuses = list(pool.map(plain, range(24)))
    made = [number for number, status in enumerate(statuses) if status == 201]
    assert set(statuses) <= {201, 409}
    assert len(made) >= 12
    for gateway in gateways:
        wait_until(
            lambda gateway=gateway: (  # type: ignore[misc]
                gateway.done("GET", f"{ZONES}/busy.test")["serial"] == 2 + len(made)
            ),
            within=2.0,
        )
        assert gateway.done("GET", f"{ZONES}/busy.test")["records"] == 4 + len(made)
        for number in made:
            assert gateway.address(f"h{number}.busy.test.") == "192.0.2.1"


def test_off_zone_nobody_is_asked_but_for_services(
    gateways: list[Nameserver], resolver: Resolver
) -> None:
    """8.2, D15: REFUSED, RA off, no packet leaves: on the wire for all, over HTTP for sessions."""
    for gateway in gateways:
        for tcp in (False, True):
            answer = gateway.wire("www.elsewhere.test.", tcp=tcp)
            assert rcode(answer) == "REFUSED"
            assert not answer.flags & (dns.flags.RA | dns.flags.AA)
            assert answer.answer == answer.authority == []
        shown = gateway.http("www.elsewhere.test")
        assert (shown["Status"], shown["RA"], shown["AA"]) == (5, False, False)
        assert not {"Answer", "Authority"} & shown.keys()
    assert resolver.asked == []
    for number, gateway in enumerate(gateways):
        shown = gateway.http(f"h{number}.elsewhere.test", role="service")
        assert (shown["Status"], shown["RA"]) == (0, True)
    assert resolver.asked == [f"h{n}.elsewhere.test. IN A" for n in range(3)]


@pytest.mark.parametrize("report", [name for name in REPORTS if name[:2] in ("D0", "D1")])
def test_reports_from_elsewhere(gateways: list[Nameserver], report: str) -> None:
    """8.3: each real report is answered right over UDP, TCP and HTTP (replay D01 to D15)."""
    text, questions = REPORTS[report]
    gateways[0].done("PUT", f"{ZONES}/z/file", f"$TTL 300\n{SOA}{NS}{text}")
    for question, expected in questions.items():
        name, rdtype = question.split()
        status, *parts = expected.split(" | ")
        authoritative = parts[:1] == ["AA"]
        lines = [part for part in parts[authoritative:] if part[0] not in "^+"]
        if rdtype == "ANY":
            # Over UDP only what does not amplify (RFC 8482).
            messages = [gateways[0].wire(name, rdtype, tcp=True)]
        else:
            messages = [gateways[0].wire(name, rdtype, tcp=tcp) for tcp in (False, True)]
        for message in messages:
            assert rcode(message) == status
            assert bool(message.flags & dns.flags.AA) == authoritative
            shown = [
                f"{rrset.name} {dns.rdatatype.to_text(rrset.rdtype)} {rdata}"
                for rrset in message.answer
                for rdata in rrset
            ]
            assert shown == lines
        answer = gateways[0].http(name, rdtype)
        assert dns.rcode.to_text(dns.rcode.Rcode(answer["Status"])) == status
        assert answer["AA"] == authoritative
        assert [
            f"{one['name']} {dns.rdatatype.to_text(one['type'])} {one['data']}"
            for one in answer.get("Answer", ())
        ] == lines
