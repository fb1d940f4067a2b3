"""Control of zones at the API: what is read and written, and what of it is refused (8.6, 10.3)."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientSession
from multidict import CIMultiDict

from smartgw.api import zone_forms
from smartgw.nameserver import Nameserver
from smartgw.state.desired import Stored
from smartgw.state.records import Record
from smartgw.state.zone_records import ZoneHead
from smartgw_dns.changes import Difference
from smartgw_dns.shown import differences_json
from smartgw_dns.zone import RRset
from tests.apis import serving
from tests.dns.zones import ask, wire
from tests.smartgw.api import issuing
from tests.smartgw.api.fakes import FakeGateway, api_of
from tests.smartgw.api.zone_stores import Store, with_zones

DATA = Path(__file__).parents[2] / "data/dns"
BAD = [json.loads(line) for line in (DATA / "bad_records.jsonl").read_text().splitlines()]
ZONES = "/api/v3/dns/zones"
FILE = """\
$ORIGIN example.com.
$TTL 300
@ 3600 IN SOA ns1 hostmaster 7 7200 900 1209600 300
@ IN NS ns1
ns1 A 192.0.2.53
* A 192.0.2.1
alias CNAME www
"""


GONE = {"name": "a.example.com.", "type": "A", "rdata": None}
RDATA = {"pointer": "/rdata"}
BESIDE, SEVERAL = {"rule": "cname_and_other_data"}, {"rule": "several_records"}


class Api:
    """Calls the API as a service."""

    def __init__(self, store: Store, dns: Nameserver, session: ClientSession, where: str) -> None:
        self.store, self.dns = store, dns
        self._session, self._where = session, where

    async def call(
        self, method: str, path: str, body: object = None, **fields: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body (JSON where it is) and header fields; `body` bytes: a master file,
        unless a field says what.
        """
        headers = {"Authorization": f"Bearer {issuing.token()}", **fields}
        data = None
        if isinstance(body, bytes):
            data = body
            headers.setdefault("Content-Type", "text/dns")
        elif body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        url = f"http://{self._where}{path}"
        async with self._session.request(method, url, data=data, headers=headers) as answer:
            shown = answer.content_type == "application/json" and answer.status != 304
            found = await (answer.json() if shown else answer.read())
            return answer.status, found, CIMultiDict(answer.headers)

    async def done(self, method: str, path: str, body: object = None, **fields: str) -> Any:
        """The body of a success."""
        status, found, _ = await self.call(method, path, body, **fields)
        assert status in (200, 201), found
        return found

    async def refused(
        self, method: str, path: str, body: object = None, **fields: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and error of a refusal."""
        status, found, _ = await self.call(method, path, body, **fields)
        assert status >= 400, found
        error: dict[str, Any] = found["error"]
        return status, error

    def ask(self, question: str) -> str:
        """Answer `NAME TYPE` by the zones in force."""
        return ask(question, *self.dns.zones.catalog)


@pytest.fixture
def gateway() -> FakeGateway:
    """The gateway whose API it is."""
    return FakeGateway()


@pytest.fixture
async def api(gateway: FakeGateway, tmp_path: Path) -> AsyncIterator[Api]:
    """The API of a gateway with a store in memory."""
    store, dns = with_zones()
    gateway.dns, gateway.durable = dns, store
    made, credentials = api_of(gateway, issuing.auth(tmp_path))
    credentials.start()
    async with serving(made.internal("localhost")) as where, ClientSession() as session:
        await asyncio.sleep(0.01)
        yield Api(store, dns, session, where)
    await credentials.stop()
    await dns.stop()


@pytest.fixture
async def example(api: Api) -> Api:
    """The same, with the zone example.com."""
    await api.done("PUT", f"{ZONES}/example.com/file", FILE.encode())
    return api


# ---- zones ----


async def test_a_zone_is_made_read_and_deleted(api: Api) -> None:
    """8.6: zones are managed by services; the serial rises by itself."""
    wanted: dict[str, Any] = {"nameservers": ["ns1.example.com.", "ns2.example.net."]}
    status, made, fields = await api.call("PUT", f"{ZONES}/Example.COM.", wanted)
    assert (status, made["zone"], made["records"], made["changed"]) == (
        201,
        "example.com.",
        3,
        True,
    )
    assert fields["ETag"] == f'"{made["etag"]}"'
    assert api.ask("example.com. NS").startswith("NOERROR | AA | example.com. NS ns1.example.com.")
    shown = await api.done("GET", f"{ZONES}/example.com")
    assert shown == {
        **{"zone": "example.com.", "serial": made["serial"], "records": 3},
        **{"etag": made["etag"], "updated_at": shown["updated_at"]},
        **{"nameservers": wanted["nameservers"], "contact": "hostmaster.example.com."},
        **{"ttl": 3600, "refresh": 7200, "retry": 900, "expire": 1209600, "minimum": 300},
    }
    again = await api.done("PUT", f"{ZONES}/example.com", wanted)
    assert (again["changed"], again["serial"], again["etag"]) == (
        *(False, made["serial"], made["etag"]),
    )
    wanted = {
        "nameservers": ["ns1.example.com."],
        "contact": "dns.admin@example.net",
        "minimum": 60,
    }
    changed = await api.done("PUT", f"{ZONES}/example.com", wanted)
    assert changed["serial"] == made["serial"] + 1
    shown = await api.done("GET", f"{ZONES}/example.com")
    assert (shown["contact"], shown["minimum"]) == (r"dns\.admin.example.net.", 60)
    gone = await api.done("DELETE", f"{ZONES}/example.com")
    assert (gone["serial"], gone["records"]) == (None, 0)
    assert {one["after"]["status"] for one in gone["own"]} == {"REFUSED"}
    assert (await api.refused("GET", f"{ZONES}/example.com"))[1]["reason"] == "unknown_zone"
    assert api.ask("example.com. NS") == "REFUSED"
    later = await api.done("PUT", f"{ZONES}/example.com", wanted)
    assert later["serial"] >= made["serial"]


async def test_a_name_server_counts_once_in_whatever_case(api: Api) -> None:
    """8.6: names are the same without their case, and records that are the same are one."""
    servers = ["ns1.example.net.", "NS1.example.net.", "ns2.example.net.", "ns1.example.net."]
    made = await api.done("PUT", f"{ZONES}/example.com", {"nameservers": servers})
    assert made["records"] == 3
    found = await api.done("GET", f"{ZONES}/example.com")
    assert found["nameservers"] == ["ns1.example.net.", "ns2.example.net."]


async def test_zones_come_in_pages_by_name(api: Api) -> None:
    """10.3: pagination where lists grow."""
    names = [f"{letter}.example." for letter in "dacbe"]
    for name in names:
        await api.done("PUT", f"{ZONES}/{name}", {"nameservers": ["ns."]})
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await api.done("GET", f"{ZONES}?limit=2&cursor={cursor}")
        found += [zone["zone"] for zone in page["zones"]]
        cursor = page["next_cursor"]
    assert found == sorted(names)


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("a..b", {"nameservers": ["ns."]}, 400, {"parameter": "zone"}),
        ("%C3%BC.example", {"nameservers": ["ns."]}, 400, {"parameter": "zone"}),
        ("z", {}, 400, {"pointer": "/nameservers"}),
        ("z", {"nameservers": []}, 400, {"pointer": "/nameservers"}),
        ("z", {"nameservers": ["ns1"]}, 400, {"pointer": "/nameservers/0"}),
        ("z", {"nameservers": ["ns."], "ttl": True}, 400, {"pointer": "/ttl"}),
        ("z", {"nameservers": ["ns."], "ttl": 1 << 31}, 400, {"pointer": "/ttl"}),
        ("z", {"nameservers": ["ns."], "contact": "x"}, 400, {"pointer": "/contact"}),
        ("z", {"nameservers": ["ns."], "serial": 1}, 400, {"pointer": "/serial"}),
    ],
)
async def test_a_zone_that_cannot_be_is_refused(
    api: Api, path: str, body: object, status: int, told: dict[str, str]
) -> None:
    """8.6, 10.3: what was wrong, and where."""
    found, error = await api.refused("PUT", f"{ZONES}/{path}", body)
    assert (found, {name: error.get(name) for name in told}) == (status, told)


# ---- rrsets ----


async def test_an_rrset_is_set_read_and_deleted(example: Api) -> None:
    """8.6: REST over rrsets: name, type, ttl and a list of rdata."""
    path = f"{ZONES}/example.com/rrsets/www.example.com/A"
    wanted = {"ttl": 60, "rdata": ["192.0.2.2", "192.0.2.3", "192.0.2.2"]}
    status, written, fields = await example.call("PUT", path, wanted)
    assert (status, written["serial"]) == (201, 8)
    assert [(one["name"], one["effect"]) for one in written["own"]] == [("www.example.com.", None)]
    assert written["own"][0]["before"]["records"] == ["www.example.com. 300 A 192.0.2.1"]
    assert len(written["own"][0]["after"]["records"]) == 2
    status, shown, read = await example.call("GET", path)
    assert shown == {
        **{"name": "www.example.com.", "type": "A", "ttl": 60},
        "rdata": ["192.0.2.2", "192.0.2.3"],
    }
    assert read["ETag"] == fields["ETag"]
    status, _, _ = await example.call("GET", path, **{"If-None-Match": read["ETag"]})
    assert status == 304
    status, again, _ = await example.call("PUT", path, wanted)
    assert (status, again["changed"], again["serial"]) == (200, False, 8)
    written = await example.done("PUT", path, {"ttl": 61, "rdata": ["192.0.2.2"]})
    assert (written["changed"], written["serial"]) == (True, 9)
    await example.done("DELETE", path)
    assert " 192.0.2.1 " in example.ask("www.example.com. A")
    for method in ("GET", "DELETE"):
        assert (await example.refused(method, path))[1]["reason"] == "unknown_rrset"


async def test_a_write_names_other_names_whose_answers_change(example: Api) -> None:
    """8.6, D04: a write that shadows a wildcard says whose answers change."""
    path = f"{ZONES}/example.com/rrsets/_443._tcp.www.example.com/TLSA"
    wanted = {"ttl": 300, "rdata": ["3 1 1 " + "ab" * 32]}
    told = await example.done("PUT", path, wanted)
    others = {(one["name"], one["type"]): one for one in told["others"]}
    shadowed = others["www.example.com.", "A"]
    assert (shadowed["effect"], shadowed["by"]) == ("wildcard_shadowed", "*.example.com.")
    assert shadowed["message"] == "www.example.com. A is no longer answered by *.example.com."
    assert shadowed["before"]["records"] == ["www.example.com. 300 A 192.0.2.1"]
    assert shadowed["after"] == {"status": "NOERROR", "records": []}
    assert others["alias.example.com.", "A"]["effect"] == "follows"
    cut = {"ttl": 300, "rdata": ["ns.elsewhere.test."]}
    told = await example.done("PUT", f"{ZONES}/example.com/rrsets/ns1.example.com/NS", cut)
    assert ("ns1.example.com.", "A", "occluded") in [
        (one["name"], one["type"], one["effect"]) for one in told["others"]
    ]


async def test_a_dry_run_tells_the_same_and_stores_nothing(example: Api) -> None:
    """8.6: `?dry_run=true` returns the differences."""
    path = f"{ZONES}/example.com/rrsets/_443._tcp.www.example.com/TLSA"
    wanted = {"ttl": 300, "rdata": ["3 1 1 " + "ab" * 32]}
    before, writes = await example.done("GET", f"{ZONES}/example.com"), example.store.writes
    dry = await example.done("PUT", f"{path}?dry_run=true", wanted)
    assert dry["dry_run"]
    assert dry["etag"] == before["etag"]
    for method, where, body in (
        ("DELETE", f"{ZONES}/example.com", None),
        ("PUT", f"{ZONES}/example.com/file", FILE.encode()),
        ("PUT", f"{ZONES}/new.example", {"nameservers": ["ns."]}),
        ("PUT", "/api/v3/dns/app-wildcards", {"addresses": ["192.0.2.1"]}),
    ):
        status, _, _ = await example.call(method, f"{where}?dry_run=1", body)
        assert status == 200
    assert (await example.done("GET", f"{ZONES}/example.com")) == before
    assert example.store.writes == writes
    real = await example.done("PUT", path, wanted)
    assert (real["own"], real["others"], real["serial"]) == (
        *(dry["own"], dry["others"], dry["serial"]),
    )
    status, error = await example.refused("PUT", f"{path}?dry_run=maybe", wanted)
    assert (status, error["parameter"]) == (400, "dry_run")


async def test_changes_are_made_together_or_not_at_all(example: Api) -> None:
    """8.6: an alias takes the place of addresses in one change."""
    www = {"name": "www.example.com.", "type": "A"}
    first = [{**www, "ttl": 60, "rdata": ["192.0.2.2"]}]
    await example.done("PATCH", f"{ZONES}/example.com", {"changes": first})
    alias = {"name": "www.example.com.", "type": "CNAME", "ttl": 60, "rdata": ["elsewhere.test."]}
    for wrong, rule in (([alias], "cname_and_other_data"),):
        status, error = await example.refused("PATCH", f"{ZONES}/example.com", {"changes": wrong})
        assert (status, error["reason"], error["rule"]) == (409, "zone_rule", rule)
        assert error["name"] == "www.example.com."
    told = await example.done(
        "PATCH", f"{ZONES}/example.com", {"changes": [{**www, "rdata": None}, alias]}
    )
    assert told["serial"] == 9
    assert example.ask("www.example.com. A") == (
        "NOERROR | AA | www.example.com. CNAME elsewhere.test."
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("www.example.com/A", {"ttl": 300, "rdata": ["::1"]}, 400, {"pointer": "/rdata/0"}),
        ("www.example.com/A", {"ttl": 300, "rdata": []}, 400, {"pointer": "/rdata"}),
        ("www.example.com/A", {"ttl": 1.0, "rdata": ["192.0.2.1"]}, 400, {"pointer": "/ttl"}),
        ("www.example.com/A", {"ttl": "60", "rdata": ["192.0.2.1"]}, 400, {"pointer": "/ttl"}),
        ("www.example.com/A", {"ttl": -1, "rdata": ["192.0.2.1"]}, 400, {"pointer": "/ttl"}),
        ("www.example.com/AXFR", {"ttl": 1, "rdata": ["x"]}, 400, {"parameter": "type"}),
        ("www.example.com/NOPE", {"ttl": 1, "rdata": ["x"]}, 400, {"parameter": "type"}),
        ("w..example.com/A", {"ttl": 1, "rdata": ["192.0.2.1"]}, 400, {"parameter": "name"}),
        ("x.example.com/MX", {"ttl": 1, "rdata": ["1 mail"]}, 400, {"pointer": "/rdata/0"}),
        ("x.example.com/TXT", {"ttl": 1, "rdata": ["a;b"]}, 400, {"pointer": "/rdata/0"}),
        (
            "x.example.com/CNAME",
            {"ttl": 1, "rdata": ["x.example.com."]},
            400,
            {"pointer": "/rdata"},
        ),
        ("www.example.net/A", {"ttl": 1, "rdata": ["192.0.2.1"]}, 409, {"rule": "out_of_zone"}),
        (
            "alias.example.com/A",
            {"ttl": 1, "rdata": ["192.0.2.1"]},
            409,
            {"rule": "cname_and_other_data"},
        ),
        (
            "x.example.com/CNAME",
            {"ttl": 1, "rdata": ["a.", "b."]},
            409,
            {"rule": "several_records"},
        ),
        ("example.com/CNAME", {"ttl": 1, "rdata": ["a."]}, 409, BESIDE),
    ],
)
async def test_records_that_cannot_be_are_refused(
    example: Api, path: str, body: object, status: int, told: dict[str, str]
) -> None:
    """8.6, 10.3: CNAME-and-other-data and out-of-zone names are refused, with what is wrong."""
    found, error = await example.refused("PUT", f"{ZONES}/example.com/rrsets/{path}", body)
    assert (found, {name: error.get(name) for name in told}) == (status, told)
    assert example.dns.zones.version(wire("example.com.")).zone.serial == 7  # type: ignore[union-attr]


@pytest.mark.parametrize("case", BAD, ids=lambda case: str(case["want"]))
async def test_a_bad_record_is_refused(api: Api, case: dict[str, Any]) -> None:
    """8.6: CNAME-and-other-data, out-of-zone names and whatever is no record are refused."""
    zone = f"{ZONES}/smart-app.test"
    await api.done("PUT", f"{zone}/file", (DATA / "smart-app.test.zone").read_bytes())
    rdata = [case["rdata"]]
    if rdata == ["(second SOA)"]:
        there = await api.done("GET", f"{zone}/rrsets/smart-app.test/SOA")
        rdata = [*there["rdata"], "ns. root. 2 2 3 4 5"]
    # As it stands in the cases: to Python 1e400 is Infinity, which is no JSON.
    body = json.dumps({"ttl": case.get("ttl", 300), "rdata": rdata}).replace("Infinity", "1e400")
    path = f"{zone}/rrsets/{quote(case['name'], safe='')}/{case['type']}"
    fields = {"Content-Type": "application/json"}
    status, _, _ = await api.call("PUT", path, body.encode(), **fields)
    assert ("accepted" if status == 201 else str(status)) in case["want"]


async def test_the_last_ns_or_soa_of_a_zone_stays(example: Api) -> None:
    """8.6: a zone has an SOA and name servers."""
    for rdtype, rule in (("NS", "no_ns"), ("SOA", "no_soa")):
        path = f"{ZONES}/example.com/rrsets/example.com/{rdtype}"
        status, error = await example.refused("DELETE", path)
        assert (status, error["rule"]) == (409, rule)


async def test_rrsets_come_in_pages_in_canonical_order(example: Api) -> None:
    """10.3: pagination where lists grow; by name or type where that is asked for."""
    found: list[tuple[str, str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await example.done("GET", f"{ZONES}/example.com/rrsets?limit=2&cursor={cursor}")
        found += [(one["name"], one["type"]) for one in page["rrsets"]]
        cursor = page["next_cursor"]
    assert found == [
        ("example.com.", "NS"),
        ("example.com.", "SOA"),
        ("*.example.com.", "A"),
        ("alias.example.com.", "CNAME"),
        ("ns1.example.com.", "A"),
    ]
    page = await example.done("GET", f"{ZONES}/example.com/rrsets?type=A&limit=1")
    assert [one["name"] for one in page["rrsets"]] == ["*.example.com."]
    page = await example.done("GET", f"{ZONES}/example.com/rrsets?name=ALIAS.example.com")
    assert page["rrsets"][0]["rdata"] == ["www.example.com."]
    assert page["next_cursor"] is None
    for query in ("cursor=x", "cursor=vv.1", "type=NOPE", "name=a..b"):
        status, _ = await example.refused("GET", f"{ZONES}/example.com/rrsets?{query}")
        assert status == 400


async def test_long_records_come_in_short_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.3: a page is bounded whatever is in it, and what takes long is done beside the loop."""
    threads: list[threading.Thread] = []
    shown = zone_forms.rrset_json

    def counted(owner: bytes, rrset: RRset) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return shown(owner, rrset)

    monkeypatch.setattr(zone_forms, "rrset_json", counted)
    record = " ".join(["x" * 255] * 240)
    text = FILE + "".join(f"big{number} TXT {record}\n" for number in range(6))
    await api.done("PUT", f"{ZONES}/example.com/file", text.encode())
    pages: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await api.done("GET", f"{ZONES}/example.com/rrsets?type=TXT&cursor={cursor}")
        pages.append([one["name"].partition(".")[0] for one in page["rrsets"]])
        cursor = page["next_cursor"]
    assert pages == [["big0", "big1", "big2", "big3"], ["big4", "big5"]]
    await api.done("GET", f"{ZONES}/example.com/rrsets/big0.example.com/TXT")
    assert len(threads) == 7
    assert threading.main_thread() not in threads


async def test_what_becomes_of_long_records_is_told_beside_the_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: a zone of few records that are long keeps no traffic waiting either."""
    threads: list[threading.Thread] = []

    def counted(differences: Iterable[Difference]) -> list[dict[str, Any]]:
        threads.append(threading.current_thread())
        return differences_json(differences)

    monkeypatch.setattr("smartgw.api.zone_writes.differences_json", counted)
    record = " ".join(["x" * 255] * 240)
    text = FILE + "".join(f"big{number} TXT {record}\n" for number in range(6))
    await api.done("PUT", f"{ZONES}/example.com/file", text.encode())
    gone = await api.done("DELETE", f"{ZONES}/example.com")
    assert (len(gone["own"]), gone["complete"]) == (9, False)
    assert threads
    assert threading.main_thread() not in threads


# ---- conditions ----


async def test_a_change_that_another_made_is_not_lost(example: Api) -> None:
    """10.3: ETag and If-Match: 412 for who has not seen the newest version."""
    path = f"{ZONES}/example.com/rrsets/www.example.com/A"
    _, _, first = await example.call("GET", f"{ZONES}/example.com")
    wanted = {"ttl": 60, "rdata": ["192.0.2.2"]}
    _, _, second = await example.call("PUT", path, wanted, **{"If-Match": first["ETag"]})
    for method, where, body in (
        ("PUT", path, {"ttl": 61, "rdata": ["192.0.2.2"]}),
        ("DELETE", path, None),
        (
            "PATCH",
            f"{ZONES}/example.com",
            {"changes": [{"name": "a.example.com.", "type": "A", "rdata": None}]},
        ),
        ("PUT", f"{ZONES}/example.com/file", FILE.encode()),
        ("PUT", f"{ZONES}/example.com", {"nameservers": ["ns."]}),
        ("DELETE", f"{ZONES}/example.com", None),
    ):
        status, error = await example.refused(method, where, body, **{"If-Match": first["ETag"]})
        assert (status, error["reason"]) == (412, "precondition_failed")
    status, _ = await example.refused("PUT", path, wanted, **{"If-None-Match": "*"})
    assert status == 412
    other = f"{ZONES}/example.com/rrsets/other.example.com/A"
    status, _, _ = await example.call("PUT", other, wanted, **{"If-None-Match": "*"})
    assert status == 201
    status, _ = await example.refused(
        "PUT", f"{ZONES}/example.com", {"nameservers": ["ns."]}, **{"If-None-Match": "*"}
    )
    assert status == 412
    await example.done("DELETE", f"{ZONES}/example.com", **{"If-Match": "*"})
    assert second["ETag"] != first["ETag"]


async def test_changes_at_once_are_all_made(example: Api) -> None:
    """8.6: without a condition who comes second changes what the first has made."""
    paths = [f"{ZONES}/example.com/rrsets/h{n}.example.com/A" for n in range(5)]
    wanted = {"ttl": 60, "rdata": ["192.0.2.2"]}
    done = await asyncio.gather(*(example.done("PUT", path, wanted) for path in paths))
    assert sorted(one["serial"] for one in done) == [8, 9, 10, 11, 12]
    for number in range(5):
        assert " 192.0.2.2 " in example.ask(f"h{number}.example.com. A")


async def test_many_changes_at_once_do_not_starve_one_another(
    example: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: writes to one zone at one gateway wait for one another, however many there are."""
    write = example.store.write

    async def slowly(record: Record, expect: int | None = None) -> Stored:
        await asyncio.sleep(0.01)
        return await write(record, expect)

    monkeypatch.setattr(example.store, "write", slowly)
    paths = [f"{ZONES}/example.com/rrsets/h{n}.example.com/A" for n in range(30)]
    wanted = {"ttl": 60, "rdata": ["192.0.2.2"]}
    done = await asyncio.gather(*(example.done("PUT", path, wanted) for path in paths))
    assert sorted(one["serial"] for one in done) == list(range(8, 38))


async def test_what_cannot_be_stored_is_refused(example: Api) -> None:
    """7.5, 10.3: 503 while the bus is away; reads and dry runs go on."""
    example.store.away = True
    path = f"{ZONES}/example.com/rrsets/www.example.com/A"
    wanted = {"ttl": 60, "rdata": ["192.0.2.2"]}
    status, error = await example.refused("PUT", path, wanted)
    assert (status, error["reason"]) == (503, "state_unavailable")
    assert error["message"] == "the bus is away; nothing of it is stored: try again"
    await example.done("GET", f"{ZONES}/example.com")
    await example.done("PUT", f"{path}?dry_run=true", wanted)


# ---- whole files ----


async def test_a_zone_is_exported_as_it_was_imported(example: Api) -> None:
    """8.6: RFC 1035 master-file import and export."""
    status, text, fields = await example.call("GET", f"{ZONES}/example.com/file")
    assert (status, fields["Content-Type"]) == (200, "text/dns")
    assert text.decode().splitlines() == [
        "$ORIGIN example.com.",
        "@ 3600 IN SOA ns1.example.com. hostmaster.example.com. 7 7200 900 1209600 300",
        "@ 300 IN NS ns1.example.com.",
        "* 300 IN A 192.0.2.1",
        "alias 300 IN CNAME www.example.com.",
        "ns1 300 IN A 192.0.2.53",
    ]
    # Some editors put a byte order mark before what they save.
    for data in (text, b"\xef\xbb\xbf" + text):
        again = await example.done("PUT", f"{ZONES}/example.com/file", data)
        assert (again["changed"], again["serial"]) == (False, 7)
    status, _, _ = await example.call(
        "GET", f"{ZONES}/example.com/file", **{"If-None-Match": fields["ETag"]}
    )
    assert status == 304


async def test_an_import_replaces_the_zone_and_tells_what_changes(example: Api) -> None:
    """8.6: serials rise by themselves; the file's counts where it is higher."""
    changed = FILE.replace("* A 192.0.2.1\n", "www A 192.0.2.9\n")
    told = await example.done("PUT", f"{ZONES}/example.com/file", changed.encode())
    assert told["serial"] == 8
    assert {(one["name"], one["type"]) for one in told["own"]} >= {
        *(("*.example.com.", "A"), ("www.example.com.", "A")),
    }
    assert ("alias.example.com.", "A", "follows") in [
        (one["name"], one["type"], one["effect"]) for one in told["others"]
    ]
    higher = changed.replace(" 7 7200", " 100 7200")
    told = await example.done("PUT", f"{ZONES}/example.com/file", higher.encode())
    assert told["serial"] == 100
    advised = changed.replace("www A", "x A")
    told = await example.done("PUT", f"{ZONES}/example.com/file", advised.encode())
    assert [one["advice"] for one in told["advice"]] == ["leads_nowhere"]
    assert told["serial"] == 101


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("alias A 192.0.2.1", "cname_and_other_data"),
        ("www.example.net. A 192.0.2.1", "out_of_zone"),
        ("$INCLUDE /etc/passwd", None),
        ("x A 192.0.2.256", None),
        ("$GENERATE 1-70000 h$ A 192.0.2.1", None),
        ('x TXT "a', None),
    ],
)
async def test_what_is_wrong_in_a_file_is_told_with_its_line(
    example: Api, line: str, rule: str | None
) -> None:
    """8.6: refused with the line number; nothing of the file is stored."""
    text = f"{FILE}\n; a comment\n{line}\n"
    status, error = await example.refused("PUT", f"{ZONES}/example.com/file", text.encode())
    assert (status, error["reason"], error.get("rule")) == (400, "bad_zone_file", rule)
    assert error["line"] == 10
    assert error["message"].startswith("line 10: ")
    assert example.dns.zones.version(wire("example.com.")).zone.serial == 7  # type: ignore[union-attr]


async def test_a_zone_that_cannot_be_read_is_not_written_over(example: Api) -> None:
    """8.6: of what a later version wrote nothing is lost, and the caller is told why."""
    example.dns.zones.faults[wire("example.com.")] = "its head cannot be read by this version"
    writes = example.store.writes
    for method, path, body in (
        ("DELETE", f"{ZONES}/example.com", None),
        ("PUT", f"{ZONES}/example.com/file", FILE.encode()),
        ("PUT", f"{ZONES}/example.com/rrsets/x.example.com/A", {"ttl": 1, "rdata": ["192.0.2.1"]}),
    ):
        status, error = await example.refused(method, path, body)
        assert (status, error["reason"]) == (503, "state_unavailable")
        assert (
            "its head cannot be read by this version; nothing of it is stored" in error["message"]
        )
    assert example.store.writes == writes


async def test_what_may_take_long_is_done_beside_traffic(
    example: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.6: neither a short file that makes many records nor many names at once hold anybody up."""
    aside: list[object] = []
    run = example.dns.aside.run

    async def noted(work: Any, *args: Any, **kwargs: Any) -> Any:
        aside.append(work)
        return await run(work, *args, **kwargs)

    monkeypatch.setattr(example.dns.aside, "run", noted)
    change = {"type": "A", "ttl": 60, "rdata": ["192.0.2.7"]}
    path = f"{ZONES}/example.com"
    many = [{**change, "name": f"h{number}.deep.example.com."} for number in range(30)]
    for text, beside in (
        (FILE, False),
        (FILE + "$Generate 1-3 g$ A 192.0.2.$\n", True),
        (FILE + "".join(f"host{number} A 192.0.2.1\n" for number in range(300)), True),
    ):
        aside.clear()
        await example.done("PUT", f"{path}/file", text.encode())
        assert bool(aside) is beside
    for body, beside in ((many[:3], False), (many, True)):
        aside.clear()
        await example.done("PATCH", path, {"changes": body})
        assert bool(aside) is beside


async def test_a_file_is_of_the_zone_that_the_path_names(api: Api) -> None:
    """8.6: out-of-zone names are refused."""
    status, error = await api.refused("PUT", f"{ZONES}/other.test/file", FILE.encode())
    assert (status, error["rule"]) == (400, "out_of_zone")
    for data, line in ((b"", 0), (b"\xff", 1), (b"@ SOA ns. root. 1 2 3 4 5\n", None)):
        status, error = await api.refused("PUT", f"{ZONES}/z/file", data)
        assert status == 400
        assert line is None or error["line"] == line
    status, _ = await api.refused("PUT", f"{ZONES}/z/file", {"text": FILE})
    assert status == 415


async def test_a_large_zone_is_imported_and_changed(api: Api) -> None:
    """8.6: the number of records does not matter, what is listed is bounded."""
    text = FILE + "".join(f"h{n} A 10.0.{n >> 8}.{n & 255}\n" for n in range(5_000))
    told = await api.done("PUT", f"{ZONES}/example.com/file", text.encode())
    assert (told["records"], len(told["own"]), told["complete"]) == (5_005, 500, False)
    path = f"{ZONES}/example.com/rrsets/h17.example.com/A"
    told = await api.done("PUT", path, {"ttl": 1, "rdata": ["192.0.2.2"]})
    assert (told["records"], len(told["own"]), told["complete"]) == (5_005, 1, True)
    _, exported, _ = await api.call("GET", f"{ZONES}/example.com/file")
    assert exported.count(b"\n") == 5_006
    page = await api.done("GET", f"{ZONES}/example.com/rrsets?limit=1000")
    assert len(page["rrsets"]) == 1000


# ---- apps ----


async def test_the_app_wildcard_leads_to_the_gateways(api: Api) -> None:
    """8.4: the app wildcard record of each base domain, by one call."""
    wanted = {"addresses": ["192.0.2.10", "192.0.2.11", "2001:db8::10"]}
    (told,) = (await api.done("PUT", "/api/v3/dns/app-wildcards", wanted))["zones"]
    assert (told["zone"], told["changed"]) == ("smart-app.test.", True)
    assert api.ask("shop.smart-app.test. A") == (
        "NOERROR | AA | shop.smart-app.test. A 192.0.2.10 | shop.smart-app.test. A 192.0.2.11"
        " | +ns.smart-app.test. A 192.0.2.10 | +ns.smart-app.test. A 192.0.2.11"
        " | +ns.smart-app.test. AAAA 2001:db8::10"
    )
    (again,) = (await api.done("PUT", "/api/v3/dns/app-wildcards", wanted))["zones"]
    assert not again["changed"]
    moved = {"addresses": ["192.0.2.20"]}
    (told,) = (await api.done("PUT", "/api/v3/dns/app-wildcards", moved))["zones"]
    assert "192.0.2.20" in api.ask("x.smart-app.test. A")
    assert api.ask("x.smart-app.test. AAAA").startswith("NOERROR | AA | ^smart-app.test. SOA")
    status, error = await api.refused(
        "PUT", "/api/v3/dns/app-wildcards", {"addresses": ["192.0.2.1", "gateway"]}
    )
    assert (status, error["pointer"]) == (400, "/addresses/1")


@pytest.mark.parametrize(
    ("method", "path", "body", "pointers"),
    [
        (
            *("PUT", f"{ZONES}/a.test"),
            {"nameservers": ["a..b.", "ns.", "x"], "contact": "a..b."},
            ["/nameservers/0", "/nameservers/2", "/contact"],
        ),
        (
            *("PUT", f"{ZONES}/example.com/rrsets/www.example.com/A"),
            {"ttl": 300, "rdata": ["x", "192.0.2.1", "192.0.2.256"]},
            ["/rdata/0", "/rdata/2"],
        ),
        (
            *("PATCH", f"{ZONES}/example.com"),
            {
                "changes": [
                    {"name": "a..b.", "type": "NONE", "rdata": None},
                    {"name": "www.example.com.", "type": "A", "rdata": ["x"]},
                    GONE,
                    {"name": "x", "type": "AAAA", "ttl": 1, "rdata": ["::1", "x"]},
                    {"name": "x", "type": "NONE", "ttl": 1, "rdata": ["x"]},
                ]
            },
            [
                *("/changes/0/name", "/changes/0/type", "/changes/1/ttl", "/changes/1/rdata/0"),
                *("/changes/3/name", "/changes/3/rdata/1", "/changes/4/name", "/changes/4/type"),
            ],
        ),
        (
            *("PUT", "/api/v3/dns/app-wildcards"),
            {"addresses": ["x", "192.0.2.1", "::g"], "nameservers": ["ns", "ns."]},
            ["/addresses/0", "/addresses/2", "/nameservers/0"],
        ),
    ],
)
async def test_all_that_is_wrong_is_told(
    example: Api, method: str, path: str, body: object, pointers: list[str]
) -> None:
    """10.3: whoever wrote several things wrong hears of all of them, each with its place."""
    status, error = await example.refused(method, path, body)
    assert (status, error["reason"]) == (400, "bad_body")
    assert [fault["pointer"] for fault in error["faults"]] == pointers
    assert error["pointer"] == pointers[0]
    assert error["message"] == f"{pointers[0]}: {error['faults'][0]['message']}"


async def test_what_is_done_of_several_zones_is_told(
    api: Api, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.3: a refusal of one zone does not hide that another is changed."""
    gateway.base_domains = ("a.test", "b.test")

    async def once(record: Record, expect: int | None = None) -> Stored:
        stored = await write(record, expect)
        api.store.away = isinstance(record, ZoneHead)
        return stored

    write = api.store.write
    monkeypatch.setattr(api.store, "write", once)
    wanted = {"addresses": ["192.0.2.10"]}
    status, error = await api.refused("PUT", "/api/v3/dns/app-wildcards", wanted)
    assert (status, error["message"]) == (
        503,
        "b.test: the bus is away; nothing of it is stored: try again (a.test. is changed already)",
    )


async def test_the_app_wildcard_goes_into_the_zone_that_has_the_base_domain(api: Api) -> None:
    """8.4: where the zone above is ours, it goes there, and its name servers stay."""
    await api.done("PUT", f"{ZONES}/test", {"nameservers": ["ns1.elsewhere."]})
    wanted = {"addresses": ["192.0.2.10"], "nameservers": ["ns.other."]}
    (told,) = (await api.done("PUT", "/api/v3/dns/app-wildcards", wanted))["zones"]
    assert (told["zone"], told["records"]) == ("test.", 3)
    assert "192.0.2.10" in api.ask("x.smart-app.test. A")
