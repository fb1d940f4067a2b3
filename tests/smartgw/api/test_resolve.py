"""Questions about DNS at the API: what is answered, to whom, and what it costs (8.1, 8.2, 8.5)."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import pytest
from aiohttp import ClientSession

from smartgw.config_dns import Dns
from smartgw.config_limits import Rates
from smartgw.nameserver import Nameserver
from smartgw_dns.catalog import Catalog
from tests.apis import serving
from tests.dns.zones import zone
from tests.resolvers import Resolver, address
from tests.smartgw.api import issuing
from tests.smartgw.api.fakes import SETTINGS, FakeGateway, api_of

RESOLVE, BATCH, WIRE = "/api/v3/dns/resolve", "/api/v3/dns/resolve/batch", "/dns-query"
ZONE = zone("www A 192.0.2.1\n*.apps 60 A 192.0.2.2\nout CNAME elsewhere.test.\n")
CLIENT = "203.0.113.9"


class Api:
    """The API as the data path reaches it; `gateway` may be changed."""

    def __init__(self, gateway: FakeGateway, session: ClientSession, address: str) -> None:
        self.gateway = gateway
        self.address = address
        self._session = session

    async def call(
        self,
        path: str,
        *,
        role: str | None = "session",
        method: str = "GET",
        client: str = CLIENT,
        sid: str = "s1",
        **options: Any,
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (JSON where it is) and header fields."""
        headers = {"X-Smartgw-Client": client, **options.pop("headers", {})}
        if role is not None:
            headers["Authorization"] = f"Bearer {issuing.token(role, sid=sid)}"
        url = f"http://{self.address}{path}"
        async with self._session.request(method, url, headers=headers, **options) as answer:
            shown = answer.content_type == "application/json"
            body = await (answer.json() if shown else answer.read())
            return answer.status, body, dict(answer.headers)

    async def ask(self, name: str, rdtype: str = "A", **options: Any) -> dict[str, Any]:
        """The answer to one question that is taken."""
        status, body, _ = await self.call(f"{RESOLVE}?name={name}&type={rdtype}", **options)
        assert status == 200, body
        found: dict[str, Any] = body
        return found

    async def batch(self, count: int, **options: Any) -> tuple[int, Any, dict[str, str]]:
        """So many questions at once."""
        queries = [{"name": f"n{number}.apps.z"} for number in range(count)]
        return await self.call(BATCH, method="POST", json={"queries": queries}, **options)

    async def left(self, sid: str = "s1") -> tuple[int, int, int]:
        """What remains of the three budgets after one more query, which is counted as not asked."""
        _, _, fields = await self.call(f"{RESOLVE}?name=www.z", sid=sid)
        names = ("", "-Identity", "-Identity-Quota")
        one, two, three = (int(fields[f"X-RateLimit{name}-Remaining"]) + 1 for name in names)
        return one, two, three


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    """A resolver that answers everything."""
    made = Resolver(address)
    yield made
    made.close()


@pytest.fixture(params=[False], ids=["no recursion"])
async def api(
    request: pytest.FixtureRequest, tmp_path: Path, resolver: Resolver
) -> AsyncIterator[Api]:
    """The API on the gateway's own hostnames; parametrized with True: with recursion."""
    settings = SETTINGS
    if request.param:
        host, port = resolver.address
        settings = settings.model_copy(update={"dns": Dns(resolvers=(f"{host}:{port}",))})
    gateway = FakeGateway(dns=Nameserver(settings, (), None, None))
    gateway.dns.zones.catalog = gateway.dns.responder.catalog = Catalog.of([ZONE])
    made, credentials = api_of(gateway, issuing.auth(tmp_path))
    credentials.start()
    async with serving(made.public(control=True)) as where, ClientSession() as session:
        yield Api(gateway, session, where)
    await credentials.stop()


# ---- what is answered ----


async def test_a_session_is_answered_from_our_zones(api: Api) -> None:
    """8.1: JSON as in Google's and Cloudflare's, for signed-in sessions and for services."""
    for role in ("session", "service"):
        assert await api.ask("Shop.apps.z", role=role) == {
            **{"Status": 0, "AA": True, "TC": False, "RD": True, "RA": False},
            **{"AD": False, "CD": False},
            "Question": [{"name": "Shop.apps.z.", "type": 1}],
            "Answer": [{"name": "Shop.apps.z.", "type": 1, "TTL": 60, "data": "192.0.2.2"}],
            "Authority": [{"name": "z.", "type": 2, "TTL": 600, "data": "ns.elsewhere."}],
        }
    assert (await api.ask("www.z.", "28"))["Authority"][0]["type"] == 6
    assert (await api.ask("no.z", "TYPE65280"))["Status"] == 3
    assert (await api.ask("www.z", "any"))["Answer"][0]["data"] == "192.0.2.1"
    assert (await api.ask("z", "AXFR"))["Status"] == 5
    assert api.gateway.dns.resolved == {"session": 5, "service": 1}


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "name"),
        ("?name=", "name"),
        ("?name=a..z", "name"),
        ("?name=%C3%BC.z", "name"),
        (f"?name={'a' * 64}.z", "name"),
        (f"?name={'a.' * 130}z", "name"),
        ("?name=www.z&type=NOPE", "type"),
        ("?name=www.z&type=0", "type"),
        ("?name=www.z&type=65536", "type"),
        ("?name=www.z&type=-1", "type"),
        ("?name=www.z&name=www.z", "name"),
        ("?name=www.z&random=1", "random"),
        ("?name=www.z&do=yes", "do"),
    ],
)
async def test_what_is_no_question_is_refused(api: Api, query: str, parameter: str) -> None:
    """8.1: 400, with the parameter that is wrong; charged the one request."""
    before = await api.left()
    status, body, fields = await api.call(RESOLVE + query)
    assert (status, body["error"]["parameter"]) == (400, parameter)
    assert int(fields["X-RateLimit-Remaining"]) == before[0] - 2
    assert await api.left() == (before[0] - 2, before[1] - 1, before[2] - 1)


async def test_a_batch_is_answered_in_its_order(api: Api) -> None:
    """8.1: 1 to 10 queries; 0 and 11 are 400 and charged nothing but the one request."""
    queries = [{"name": "www.z", "type": "A"}, {"name": "b.apps.z"}, {"name": "off.test"}]
    status, body, _ = await api.call(BATCH, method="POST", json={"queries": queries})
    assert status == 200
    assert [one["Question"][0]["name"] for one in body["results"]] == [
        *("www.z.", "b.apps.z.", "off.test."),
    ]
    assert [one["Status"] for one in body["results"]] == [0, 0, 5]
    for count in (0, 11):
        before = await api.left()
        status, body, _ = await api.batch(count)
        assert (status, body["error"]["pointer"]) == (400, "/queries")
        assert await api.left() == (before[0] - 2, before[1] - 1, before[2] - 1)
    queries[2]["name"] = "a..test"
    status, body, _ = await api.call(BATCH, method="POST", json={"queries": queries})
    assert (status, body["error"]["pointer"]) == (400, "/queries/2/name")
    queries[0]["type"] = "NONE"
    status, body, _ = await api.call(BATCH, method="POST", json={"queries": queries})
    wrong = [fault["pointer"] for fault in body["error"]["faults"]]
    assert (status, wrong) == (400, ["/queries/0/type", "/queries/2/name"])


async def test_a_message_is_answered_as_over_the_wire(api: Api) -> None:
    """8.1: RFC 8484 wire format at `/dns-query`, GET and POST."""
    query = dns.message.make_query("WWW.z.", "A", id=0, use_edns=True)
    packet = query.to_wire()
    text = base64.urlsafe_b64encode(packet).decode().rstrip("=")
    headers = {"Content-Type": "application/dns-message"}
    for options in (
        {"path": f"{WIRE}?dns={text}"},
        {"path": WIRE, "method": "POST", "data": packet, "headers": headers},
    ):
        status, body, fields = await api.call(**options)
        assert (status, fields["Content-Type"]) == (200, "application/dns-message")
        assert fields["Cache-Control"] == "private, max-age=300"
        answer = dns.message.from_wire(body)
        assert query.is_response(answer)
        assert answer.flags & dns.flags.AA
        assert answer.answer[0].to_text() == "WWW.z. 300 IN A 192.0.2.1"
    off = dns.message.make_query("off.test.", "A").to_wire()
    _, body, fields = await api.call(WIRE, method="POST", data=off, headers=headers)
    answer = dns.message.from_wire(body)
    assert answer.rcode() == dns.rcode.REFUSED
    assert not answer.flags & dns.flags.RA
    assert fields["Cache-Control"] == "no-store"


async def test_what_is_no_message_is_refused(api: Api) -> None:
    """8.1: RFC 8484 4.1, 4.2.1."""
    response = dns.message.make_response(dns.message.make_query("www.z.", "A")).to_wire()
    headers = {"Content-Type": "application/dns-message"}
    for data in (b"", b"garbage", response, bytes(65_536)):
        status, _, _ = await api.call(WIRE, method="POST", data=data, headers=headers)
        assert status == (413 if len(data) > 65_535 else 400)
    status, _, _ = await api.call(WIRE, method="POST", data=b"{}")
    assert status == 415
    for text in ("", "?dns=", "?dns=%3D", "?dns=A", "?dns=AAAA", "?other=AAAA"):
        assert (await api.call(WIRE + text))[0] == 400
    assert (await api.call(WIRE, method="PUT"))[0] == 405
    cut = dns.message.make_query("www.z.", "A").to_wire()[:-3]
    status, body, _ = await api.call(WIRE, method="POST", data=cut, headers=headers)
    assert (status, dns.message.from_wire(body).rcode()) == (200, dns.rcode.FORMERR)


async def test_an_answer_may_be_kept_by_who_asked_as_long_as_its_ttl(api: Api) -> None:
    """8.5: Cache-Control from the TTLs; RFC 8484 5.1."""
    for query, wanted in (
        ("www.z", "private, max-age=300"),
        ("x.apps.z", "private, max-age=60"),
        ("no.z", "private, max-age=60"),
        ("off.test", "no-store"),
    ):
        _, _, fields = await api.call(f"{RESOLVE}?name={query}")
        assert fields["Cache-Control"] == wanted
    _, _, fields = await api.batch(3)
    assert fields["Cache-Control"] == "private, max-age=60"


# ---- to whom ----


async def test_everybody_else_is_refused(api: Api) -> None:
    """8.1: 401 for all others, which their address pays for as for any call (6.2)."""
    for kind, fields in issuing.forged().items():
        if kind in ("session", "twice"):
            continue
        headers = {} if not fields else {"Authorization": fields[0]}
        status, body, answered = await api.call(f"{RESOLVE}?name=www.z", role=None, headers=headers)
        assert (status, set(body["error"])) == (401, {"status", "reason", "message"}), kind
        assert "X-RateLimit-Identity-Limit" not in answered
    left = (await api.left())[0]
    assert (await api.call(WIRE, role=None))[0] == 401
    assert (await api.call(RESOLVE, role=None, method="DELETE"))[0] == 401
    assert (await api.left())[0] == left - 3


async def test_the_address_of_a_client_is_told_by_the_data_path_alone(
    api: Api, tmp_path: Path
) -> None:
    """8.5: at the internal listener nobody has somebody else charged."""
    made, credentials = api_of(api.gateway, issuing.auth(tmp_path))
    credentials.start()
    async with serving(made.internal("localhost")) as where, ClientSession() as session:
        inside = Api(api.gateway, session, where)
        for _ in range(5):
            await inside.ask("www.z")
    await credentials.stop()
    assert (await api.left())[0] == 600


@pytest.mark.parametrize("api", [False, True], ids=["off", "on"], indirect=True)
async def test_off_zone_no_packet_leaves_for_a_session(api: Api, resolver: Resolver) -> None:
    """8.2: off-zone for a session: HTTP 200, REFUSED, RA off; no query leaves the machine."""
    for name in ("off.test", "example.com", "."):
        answer = await api.ask(name)
        assert (answer["Status"], answer["RA"]) == (5, False)
    await api.batch(3)
    packet = dns.message.make_query("off.test.", "A").to_wire()
    headers = {"Content-Type": "application/dns-message"}
    await api.call(WIRE, method="POST", data=packet, headers=headers)
    assert resolver.asked == []


@pytest.mark.parametrize("api", [True], ids=["on"], indirect=True)
async def test_for_services_others_are_asked_when_the_operator_says_so(
    api: Api, resolver: Resolver
) -> None:
    """8.2: recursion is for services only, never about our own names."""
    answer = await api.ask("off.test", role="service")
    assert (answer["Status"], answer["RA"], answer["AA"]) == (0, True, False)
    assert answer["Answer"][0]["data"] == "198.51.100.7"
    packet = dns.message.make_query("wire.test.", "A").to_wire()
    headers = {"Content-Type": "application/dns-message"}
    options: dict[str, Any] = {"method": "POST", "headers": headers, "role": "service"}
    _, body, _ = await api.call(WIRE, data=packet, **options)
    read = dns.message.from_wire(body)
    assert str(read.answer[0][0]) == "198.51.100.7"
    assert read.flags & dns.flags.RA
    assert resolver.asked == ["off.test. IN A", "wire.test. IN A"]
    for name, rdtype in (("www.z", "A"), ("no.z", "A"), ("out.z", "A"), ("z", "AXFR")):
        assert (await api.ask(name, rdtype, role="service"))["RA"]
    ours = dns.message.make_query("www.z.", "A").to_wire()
    _, body, _ = await api.call(WIRE, data=ours, **options)
    assert dns.message.from_wire(body).flags & dns.flags.RA
    assert (await api.ask("off.test", "AXFR", role="service"))["Status"] == 5
    assert len(resolver.asked) == 2


async def test_nobody_is_told_that_a_name_is_not_ours_for_lack_of_knowledge(
    api: Api, tmp_path: Path
) -> None:
    """11.2: 503 until the zones are known."""
    store: Any = object()
    api.gateway.dns = Nameserver(SETTINGS, (), store, None)
    status, body, fields = await api.call(f"{RESOLVE}?name=www.z")
    assert (status, body["error"]["reason"]) == (503, "zones_unknown")
    assert fields["Retry-After"] == "1"


# ---- what it costs ----


async def test_a_query_costs_a_unit_of_each_budget(api: Api) -> None:
    """8.5: one unit per query: of the address, the session and the session's day."""
    _, _, fields = await api.call(f"{RESOLVE}?name=www.z")
    told = {name: value for name, value in fields.items() if "RateLimit" in name}
    assert {name: told[name] for name in told if not name.endswith("Reset")} == {
        "X-RateLimit-Limit": "600",
        "X-RateLimit-Remaining": "599",
        "X-RateLimit-Identity-Limit": "120",
        "X-RateLimit-Identity-Remaining": "119",
        "X-RateLimit-Identity-Quota-Limit": "10000",
        "X-RateLimit-Identity-Quota-Remaining": "9999",
        "RateLimit-Policy": (
            '"gateway";q=600;w=60, "session";q=120;w=60, "session-day";q=10000;w=86400'
        ),
        "RateLimit": told["RateLimit"],
    }
    assert told["X-RateLimit-Reset"] == told["X-RateLimit-Identity-Reset"] == "60"
    assert 0 < int(told["X-RateLimit-Identity-Quota-Reset"]) <= 86_400
    assert told["RateLimit"].startswith('"gateway";r=599;t=60, "session";r=119;t=60, ')
    await api.batch(10)
    assert await api.left() == (589, 109, 9_989)


async def test_with_fifty_left_exactly_fifty_are_answered(api: Api) -> None:
    """8.5: 200 parallel resolves with 50 left: exactly 50."""
    for _ in range(7):
        assert (await api.batch(10))[0] == 200
    answers = await asyncio.gather(*(api.call(f"{RESOLVE}?name=www.z") for _ in range(200)))
    statuses = [status for status, _, _ in answers]
    assert (statuses.count(200), statuses.count(429)) == (50, 150)
    refused = next(answer for answer in answers if answer[0] == 429)
    assert 0 < int(refused[2]["Retry-After"]) <= 60
    assert refused[2]["X-RateLimit-Identity-Remaining"] == "0"
    assert refused[2]["X-RateLimit-Remaining"] == "480"


async def test_a_batch_that_does_not_fit_takes_nothing(api: Api) -> None:
    """8.5: a batch of 10 takes 10 of each budget or none."""
    api.gateway.rates = Rates(queries=25)
    answers = await asyncio.gather(*(api.batch(10) for _ in range(10)))
    assert sorted(status for status, _, _ in answers) == [200, 200] + [429] * 8
    assert await api.left() == (580, 5, 9_980)
    # By another session, of the same address.
    api.gateway.rates = Rates(own=595, queries=25)
    assert await api.left(sid="s2") == (574, 25, 10_000)


async def test_a_batch_that_can_never_fit_is_told_so(api: Api) -> None:
    """8.5: larger than what a window can ever hold is 400, and costs the one request."""
    api.gateway.rates = Rates(queries=9)
    status, body, fields = await api.batch(10)
    assert (status, body["error"]["reason"]) == (400, "too_many_queries")
    assert fields["X-RateLimit-Remaining"] == "599"
    assert (await api.left())[1] == 9


async def test_a_session_is_who_it_is_whatever_token_it_shows(api: Api) -> None:
    """8.5: (issuer, sid or sub), never a token's id; and no piece of it is told."""
    await api.ask("www.z", sid="one")
    await api.ask("www.z", sid="one")
    await api.ask("www.z", sid="two")
    assert (await api.left("one"))[1] == 118
    assert (await api.left("two"))[1] == 119
    _, _, fields = await api.call(f"{RESOLVE}?name=www.z", sid="secretsid")
    assert "secretsid" not in str(fields)


async def test_addresses_and_sessions_are_counted_apart(api: Api) -> None:
    """8.5: another address has a window of its own, and the session's is the same."""
    await api.ask("www.z", client="198.51.100.1")
    _, _, fields = await api.call(f"{RESOLVE}?name=www.z", client="198.51.100.2")
    assert fields["X-RateLimit-Remaining"] == "599"
    assert fields["X-RateLimit-Identity-Remaining"] == "118"


async def test_services_have_windows_of_their_own(api: Api) -> None:
    """6.2, 8.5: a service pays by query from its own window, wherever it calls from."""
    api.gateway.rates = Rates(services=25)
    answers = [await api.batch(10, role="service") for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert answers[1][2]["X-RateLimit-Remaining"] == "5"
    assert (await api.call(f"{RESOLVE}?name=a..z", role="service"))[0] == 400
    _, _, fields = await api.call(f"{RESOLVE}?name=www.z", role="service")
    assert fields["X-RateLimit-Remaining"] == "3"
    assert fields["X-Smartgw-Caller"] == "service"
    assert (await api.left())[0] == 600


async def test_whose_address_has_used_all_up_is_refused_first(api: Api) -> None:
    """6.2: 401s and malformed questions share the window of the address."""
    api.gateway.rates = Rates(own=3)
    for _ in range(3):
        assert (await api.call(RESOLVE, role=None))[0] == 401
    for options in ({"role": None}, {"role": "session"}):
        status, body, _ = await api.call(RESOLVE, **options)
        assert (status, body["error"]["reason"]) == (429, "rate_limited")
    status, body, fields = await api.call(f"{RESOLVE}?name=www.z")
    assert status == 429
    assert "nothing was charged" in body["error"]["message"]
    assert fields["X-RateLimit-Identity-Remaining"] == "120"
