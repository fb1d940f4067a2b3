"""Control of apps and enrolments: shapes, conditions, names, and what is told of a change."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientSession

from smartgw.api.api import Api
from smartgw.api.audit import Audit
from smartgw.api.credentials import Credentials
from smartgw.api.operator import Operator
from smartgw.state.durable import Conflict, Unavailable
from smartgw.state.records import Record
from tests.apis import serving
from tests.smartgw.api import issuing
from tests.smartgw.api.fakes import FakeGateway
from tests.smartgw.api.stores import MemoryStore

KEY = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
FULL = {
    "label": "shop",
    "hostnames": ["WWW.Shop.example", "faß.example"],
    "state": "suspended",
    "origins": ["HTTPS://app.example:443", "http://localhost:3000"],
    "own_cors": True,
    "limit": 60,
    "labels": {"tier": "gold"},
}


@dataclass(slots=True)
class Answer:
    status: int
    body: Any
    fields: Any

    @property
    def error(self) -> Any:
        return self.body["error"]


@dataclass
class Caller:
    """Calls the API as a service."""

    session: ClientSession
    address: str
    store: MemoryStore
    log: Path
    token: str = field(default_factory=issuing.token)

    async def __call__(
        self, method: str, path: str, body: Any = None, data: bytes | None = None, **fields: str
    ) -> Answer:
        sent = {"Authorization": f"Bearer {self.token}"}
        if body is not None or data is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body).encode() if data is None else data
        sent |= {name.replace("_", "-"): value for name, value in fields.items()}
        url = f"{self.address}{path}"
        async with self.session.request(method, url, data=data, headers=sent) as response:
            text = await response.read()
            return Answer(response.status, json.loads(text) if text else None, response.headers)

    def audit(self) -> list[Any]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Caller]:
    gateway, store = FakeGateway(), MemoryStore()
    gateway.durable = store
    credentials = Credentials(issuing.auth(tmp_path), Operator())
    audit = Audit(str(tmp_path / "audit.jsonl"), "g1", "east")
    credentials.start()
    application = Api(gateway, credentials, audit).public(control=True)
    async with serving(application) as address, ClientSession() as session:
        yield Caller(session, f"http://{address}", store, tmp_path / "audit.jsonl")
    audit.close()
    await credentials.stop()


# ---- apps ----


async def test_an_app_is_registered_read_replaced_and_deleted(call: Caller) -> None:
    """10.1: control of apps: states, CORS and limits, each in one canonical form."""
    made = await call("PUT", "/api/v3/apps/shop", FULL)
    assert made.status == 201
    assert made.body.pop("updated_at").startswith("20")
    etag = made.body.pop("etag")
    assert made.fields["ETag"] == f'"{etag}"'
    assert made.body == {
        "app_id": "shop",
        "label": "shop",
        "hostnames": ["www.shop.example", "xn--fa-hia.example"],
        "state": "suspended",
        "origins": ["http://localhost:3000", "https://app.example"],
        "own_cors": True,
        "limit": 60,
        "labels": {"tier": "gold"},
        "served": ["shop.smart-app.test", "www.shop.example", "xn--fa-hia.example"],
    }
    read = await call("GET", "/api/v3/apps/shop")
    assert (read.status, read.body["etag"], read.fields["Age"]) == (200, etag, "0")
    replaced = await call("PUT", "/api/v3/apps/shop", {})
    assert (replaced.status, replaced.body["state"], replaced.body["hostnames"]) == (
        200,
        "active",
        [],
    )
    assert (await call("DELETE", "/api/v3/apps/shop")).status == 204
    assert (await call("GET", "/api/v3/apps/shop")).error["reason"] == "unknown_app"
    assert (await call("DELETE", "/api/v3/apps/shop")).status == 404


async def test_a_put_that_changes_nothing_writes_nothing(call: Caller) -> None:
    """10.3: idempotent PUT: the same one again is answered the same, and stores nothing."""
    first = await call("PUT", "/api/v3/apps/shop", FULL)
    again = await call("PUT", "/api/v3/apps/shop", FULL)
    assert (again.status, again.body) == (200, first.body)
    assert call.store.writes == 1
    assert len(call.audit()) == 1


@pytest.mark.parametrize(
    "app_id", ["a b", "a/b", "..", ".", "%", "ü", "a?b#c", "x" * 256, "\N{SNOWMAN}", "+", "A~b"]
)
async def test_any_app_id_has_its_path(call: Caller, app_id: str) -> None:
    """Ids: app ids are UTF-8 without control characters, compared exactly as given."""
    # As http.client and curl --path-as-is send it; yarl would take the dots out.
    path = "/api/v3/apps/" + "".join(f"%{byte:02X}" for byte in app_id.encode())
    host, port = call.address.removeprefix("http://").split(":")
    for method, status in (("PUT", 201), ("GET", 200)):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {call.token}\r\nContent-Type: application/json\r\n"
            "Content-Length: 2\r\n\r\n{}".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
        assert json.loads(body)["app_id"] == app_id


@pytest.mark.parametrize("path", ["%00", "%FF", "a%0Ab", "x" * 257, "%C3"])
async def test_what_is_no_app_id(call: Caller, path: str) -> None:
    """Ids: what is no app id is 400 before anything is looked up."""
    for method in ("GET", "DELETE"):
        answer = await call(method, f"/api/v3/apps/{quote(path, safe='%')}")
        assert (answer.status, answer.error["parameter"]) == (400, "app_id")


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        *(("/apps/%zz", "app_id"), ("/apps/a%", "app_id"), ("/apps/a%2", "app_id")),
        *(("/apps/%C3%2", "app_id"), ("/enrolments/%/h", "cluster")),
        *(("/apps?state=%zz", "state"), ("/apps?state=active%", "state"), ("/apps?%zz=1", "%zz")),
        *(("/apps?cursor=%FF", "cursor"), ("/status?%FF", "%FF")),
        *(("/discovery/owner?app=%FF", "app"), ("/discovery/owner?app=%zz", "app")),
    ],
)
async def test_a_value_has_one_spelling(call: Caller, path: str, parameter: str) -> None:
    """10.3: a % that begins no pair, and what is not UTF-8, are 400 and nobody else's value."""
    host, port = call.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /api/v3{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {call.token}\r\n\r\n".encode()
    )
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 "), head
    error = json.loads(body)["error"]
    assert (error["reason"], error.get("parameter")) == ("bad_parameter", parameter)


@pytest.mark.parametrize(
    ("body", "pointer", "said"),
    [
        ({"state": "gone"}, "/state", "'active', 'suspended' or 'retired'"),
        ({"limit": 0}, "/limit", "greater than or equal to 1"),
        ({"limit": "60"}, "/limit", "valid integer"),
        ({"limit": 1.5}, "/limit", "valid integer"),
        ({"limit": True}, "/limit", "valid integer"),
        ({"own_cors": "yes"}, "/own_cors", "valid boolean"),
        ({"origins": "https://a.example"}, "/origins", "valid array"),
        ({"origins": ["https://a.example", "a.example"]}, "/origins/1", "scheme://host"),
        ({"origins": ["https://a.example/x"]}, "/origins/0", "no path"),
        ({"origins": ["*"]}, "/origins/0", "scheme://host"),
        ({"hostnames": ["a.example", "*.b.example"]}, "/hostnames/1", "no wildcards"),
        ({"hostnames": ["shop"]}, "/hostnames/0", "two labels"),
        ({"hostnames": ["10.0.0.1"]}, "/hostnames/0", "ends in a number"),
        ({"label": "a.b"}, "/label", "hyphen"),
        ({"labels": {"a b/~": "x"}}, "/labels/a b~1~0", "letters, digits"),
        ({"labels": {"a": 1}}, "/labels/a", "valid string"),
        ({"color": "red"}, "/color", "extra inputs"),
        ({"v": 1}, "/v", "extra inputs"),
    ],
)
async def test_a_fault_is_told_with_its_place(
    call: Caller, body: Any, pointer: str, said: str
) -> None:
    """10.3: one error shape with a pointer to the field that is wrong."""
    answer = await call("PUT", "/api/v3/apps/shop", body)
    assert (answer.status, answer.error["reason"]) == (400, "bad_body")
    assert answer.error["pointer"] == pointer
    assert said in answer.error["message"]
    assert call.store.writes == 0


async def test_all_faults_are_told_at_once(call: Caller) -> None:
    """10.3: whoever wrote several things wrong hears of all of them."""
    answer = await call("PUT", "/api/v3/apps/shop", {"state": 1, "limit": -1, "x": 1})
    pointers = [fault["pointer"] for fault in answer.error["faults"]]
    assert pointers == ["/state", "/limit", "/x"]
    body = {
        "label": "a.b",
        "hostnames": ["www.a.example", "shop", "*.a.example"],
        "state": "gone",
        "origins": ["*", "https://a.example"],
        "labels": {"a b/~": "x", "[key]": "x", "c": "\u0007", "d": "x"},
    }
    answer = await call("PUT", "/api/v3/apps/shop", body)
    faults = {fault["pointer"]: fault["message"] for fault in answer.error["faults"]}
    assert list(faults) == [
        *("/label", "/hostnames/1", "/hostnames/2", "/state", "/origins/0"),
        *("/labels/a b~1~0", "/labels/[key]", "/labels/c"),
    ]
    assert "no wildcards" in faults["/hostnames/2"]
    assert answer.error["pointer"] == "/label"
    assert answer.error["message"] == f"/label: {faults['/label']}"
    wrong = {"key": "x", "apps": ["a\u0007", "b", ""], "expires": "soon", "y": 1}
    answer = await call("PUT", "/api/v3/enrolments/east/shop-1", wrong)
    assert [fault["pointer"] for fault in answer.error["faults"]] == [
        *("/key", "/apps/0", "/apps/2", "/expires", "/y")
    ]
    many = {"hostnames": ["x"] * 50}
    assert len((await call("PUT", "/api/v3/apps/shop", many)).error["faults"]) == 20
    assert call.store.writes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"limit": 1, "limit": 2}',
        b'{"limit": NaN}',
        b"\xff",
        b'{"a": "\\ud800"}',
    ],
)
async def test_only_strict_json_is_taken(call: Caller, data: bytes) -> None:
    """10.3: what two readers could read in two ways is refused."""
    answer = await call("PUT", "/api/v3/apps/shop", data=data)
    assert (answer.status, answer.error["reason"]) == (400, "bad_body")


async def test_bodies_are_bounded_and_of_one_kind(call: Caller) -> None:
    """10.3: 413 for what is too large, 415 for what is no JSON."""
    large = b'{"labels": {"a": "%s"}}' % (b"x" * 66_000)
    assert (await call("PUT", "/api/v3/apps/shop", data=large)).status == 413
    for kind in ("text/plain", "application/merge-patch+json", "application/json; charset=latin1"):
        answer = await call("PUT", "/api/v3/apps/shop", data=b"{}", Content_Type=kind)
        assert (answer.status, answer.error["reason"]) == (415, "bad_content_type")
    answer = await call("PUT", "/api/v3/apps/shop", data=b"{}", Content_Encoding="gzip")
    assert answer.status in (400, 415)


async def test_one_name_one_app(call: Caller) -> None:
    """3.3, 7.3: a label or hostname that is another app's is 409 with the holder."""
    await call("PUT", "/api/v3/apps/one", {"label": "shop", "hostnames": ["www.shop.example"]})
    answer = await call("PUT", "/api/v3/apps/shop", {})
    assert (answer.status, answer.error["reason"]) == (409, "name_taken")
    assert (answer.error["holder"], answer.error["name"]) == ("one", "shop")
    assert answer.error["pointer"] == "/label"
    body = {"label": "two", "hostnames": ["a.example", "WWW.shop.example"]}
    answer = await call("PUT", "/api/v3/apps/two", body)
    assert (answer.error["pointer"], answer.error["holder"]) == ("/hostnames/1", "one")
    answer = await call("PUT", "/api/v3/apps/verify", {})
    assert (answer.status, "holder" in answer.error) == (409, False)
    await call("DELETE", "/api/v3/apps/one")
    assert (await call("PUT", "/api/v3/apps/shop", {})).status == 201


# ---- conditions ----


async def test_a_change_of_somebody_else_is_not_lost(call: Caller) -> None:
    """10.3: ETag and If-Match: what was changed meanwhile is 412 and stays."""
    first = (await call("PUT", "/api/v3/apps/shop", {"limit": 1})).fields["ETag"]
    second = (await call("PUT", "/api/v3/apps/shop", {"limit": 2}, If_Match=first)).fields["ETag"]
    assert first != second
    for tag in (first, f"W/{second}", '"x"', f'"x", {first}'):
        for method, body in (("PUT", {"limit": 3}), ("DELETE", None)):
            answer = await call(method, "/api/v3/apps/shop", body, If_Match=tag)
            assert (answer.status, answer.error["reason"]) == (412, "precondition_failed")
    assert (await call("GET", "/api/v3/apps/shop")).body["limit"] == 2
    assert (await call("PUT", "/api/v3/apps/none", {}, If_Match="*")).status == 412
    assert (await call("DELETE", "/api/v3/apps/shop", If_Match=f'"x", {second}')).status == 204


async def test_what_must_not_be_there_yet(call: Caller) -> None:
    """10.3: If-None-Match: * registers and never replaces."""
    assert (await call("PUT", "/api/v3/apps/shop", {}, If_None_Match="*")).status == 201
    assert (await call("PUT", "/api/v3/apps/shop", {}, If_None_Match="*")).status == 412


async def test_a_reader_that_has_it_gets_no_body(call: Caller) -> None:
    """10.3: If-None-Match on a read: 304 with the ETag."""
    tag = (await call("PUT", "/api/v3/apps/shop", {})).fields["ETag"]
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = await call("GET", "/api/v3/apps/shop", If_None_Match=given)
        assert (answer.status, answer.body, answer.fields["ETag"]) == (304, None, tag)
    assert (await call("GET", "/api/v3/apps/shop", If_None_Match='"x"')).status == 200


@pytest.mark.parametrize("given", ["5", '"5', "W/5", '"a" "b"', 'w/"5"', '"\\u00e4"x'])
async def test_a_condition_that_is_none(call: Caller, given: str) -> None:
    """10.3: a condition that cannot be read is 400, and not taken for none."""
    await call("PUT", "/api/v3/apps/shop", {})
    answer = await call("PUT", "/api/v3/apps/shop", {"limit": 1}, If_Match=given)
    assert (answer.status, answer.error["parameter"]) == (400, "If-Match")


async def test_writers_at_the_same_time(call: Caller) -> None:
    """10.3: each of many concurrent changes is applied in full, or refused with 409 or 412."""
    tag = (await call("PUT", "/api/v3/apps/shop", {})).fields["ETag"]
    answers = await asyncio.gather(
        *(call("PUT", "/api/v3/apps/shop", {"limit": n}, If_Match=tag) for n in range(1, 40))
    )
    assert sorted(answer.status for answer in answers) == [200] + [412] * 38
    answers = await asyncio.gather(
        *(call("PUT", "/api/v3/apps/shop", {"limit": n}) for n in range(100, 140))
    )
    done = [answer for answer in answers if answer.status == 200]
    assert done
    assert {answer.status for answer in answers} <= {200, 409}
    assert len({answer.body["etag"] for answer in done}) == len(done)
    last = max(call.audit(), key=lambda line: int(line["after"]["etag"].partition("-")[0]))
    assert (await call("GET", "/api/v3/apps/shop")).body == last["after"]


# ---- the store is away ----


async def test_reads_go_on_and_writes_are_refused_while_the_bus_is_away(call: Caller) -> None:
    """10.1, 11.2: a write that cannot be stored is 503 and says so; reads say how old they are."""
    await call("PUT", "/api/v3/apps/shop", {})
    call.store.away, call.store.age = True, 42.7
    for method, body in (("PUT", {"limit": 1}), ("DELETE", None)):
        answer = await call(method, "/api/v3/apps/shop", body)
        assert (answer.status, answer.error["reason"]) == (503, "state_unavailable")
        assert answer.fields["Retry-After"] == "1"
        told = "the bus is away; nothing of it is stored: try again"
        assert answer.error["message"] == told
    read = await call("GET", "/api/v3/apps/shop")
    assert (read.status, read.fields["Age"]) == (200, "42")
    page = await call("GET", "/api/v3/apps")
    assert (page.status, page.body["age_seconds"]) == (200, 42.7)
    call.store.age = None
    for path in ("/api/v3/apps", "/api/v3/apps/shop", "/api/v3/apps/none"):
        assert (await call("GET", path)).error["reason"] == "state_unavailable"
        assert (await call("GET", path)).error["message"].endswith("; ask again")
    for method, body in (("PUT", {"limit": 1}), ("DELETE", None)):
        refused = await call(method, "/api/v3/apps/shop", body)
        assert refused.error["message"].endswith("; nothing of it is stored: try again")


async def test_a_write_whose_answer_was_lost(call: Caller) -> None:
    """10.3: what may be stored all the same is told so, for to repeat it is safe."""

    async def lost(record: Record, expect: int | None = None) -> Any:
        raise Unavailable("the answer was lost", sent=True)

    call.store.write = lost  # type: ignore[method-assign]
    answer = await call("PUT", "/api/v3/apps/shop", {})
    told = "the answer was lost; it may be stored all the same: read it, or send it again"
    assert (answer.status, answer.error["message"]) == (503, told)


async def test_a_conflict_that_does_not_end(call: Caller) -> None:
    """10.3: whoever loses again and again is told, with nothing stored."""

    async def busy(record: Record, expect: int | None = None) -> Any:
        raise Conflict(7)

    call.store.write = busy  # type: ignore[method-assign]
    answer = await call("PUT", "/api/v3/apps/shop", {})
    assert (answer.status, answer.error["reason"]) == (409, "conflict")


# ---- lists ----


async def test_lists_come_in_pages(call: Caller) -> None:
    """10.3: pagination where lists grow, by id, and by state where asked."""
    for number in range(25):
        state = "retired" if number % 5 == 0 else "active"
        await call("PUT", f"/api/v3/apps/app-{number:02d}", {"state": state})
    for query, expected in (("", 25), ("&state=retired", 5), ("&state=suspended", 0)):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await call("GET", f"/api/v3/apps?limit=4{query}&cursor={cursor}")).body
            assert len(page["apps"]) <= 4
            seen += [app["app_id"] for app in page["apps"]]
            cursor = page["next_cursor"]
        assert seen == sorted(seen)
        assert len(seen) == expected


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        *(("limit=0", "limit"), ("limit=1001", "limit"), ("limit=%2B1", "limit")),
        *(("limit=1_0", "limit"), ("limit=1&limit=2", "limit"), ("state=gone", "state")),
        *(("offset=1", "offset"), ("cursor=" + "x" * 2001, "cursor")),
    ],
)
async def test_parameters_are_strict(call: Caller, query: str, parameter: str) -> None:
    """10.3: a parameter that is not known or not of its form is 400 and names itself."""
    answer = await call("GET", f"/api/v3/apps?{query}")
    assert (answer.status, answer.error["reason"]) == (400, "bad_parameter")
    assert answer.error["parameter"] == parameter


# ---- enrolments ----


async def test_an_enrolment_is_made_read_listed_and_deleted(call: Caller) -> None:
    """1.4, 10.1: who may host what is decided through the API."""
    path = "/api/v3/enrolments/east/shop-1"
    body = {"key": KEY, "apps": ["shop", "shop-*"], "expires": "2027-01-31T13:00:00+01:00"}
    made = await call("PUT", path, body)
    assert made.status == 201
    assert made.body["expires"] == "2027-01-31T12:00:00.000Z"
    assert made.body["key_id"]
    assert (await call("PUT", path, body)).status == 200
    assert call.store.writes == 1
    await call("PUT", "/api/v3/enrolments/west/shop-1", {"key": KEY, "apps": []})
    listed = (await call("GET", "/api/v3/enrolments?cluster=east")).body["enrolments"]
    assert listed == [made.body]
    assert len((await call("GET", "/api/v3/enrolments")).body["enrolments"]) == 2
    assert (await call("DELETE", path, If_Match=made.fields["ETag"])).status == 204
    assert (await call("GET", path)).error["reason"] == "unknown_enrolment"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"apps": []}, "/key"),
        ({"key": KEY}, "/apps"),
        ({"key": "ed25519:" + "A" * 43, "apps": []}, "/key"),
        ({"key": "00" * 32, "apps": []}, "/key"),
        ({"key": KEY, "apps": ["a\u0007"]}, "/apps/0"),
        ({"key": KEY, "apps": [], "expires": "2027-01-31T12:00:00"}, "/expires"),
        ({"key": KEY, "apps": [], "expires": "soon"}, "/expires"),
        ({"key": KEY, "apps": [], "expires": 1}, "/expires"),
    ],
)
async def test_an_enrolment_that_is_none(call: Caller, body: Any, pointer: str) -> None:
    """1.4, 2.4: keys of small order and other faults are refused where they are written."""
    answer = await call("PUT", "/api/v3/enrolments/east/shop-1", body)
    assert (answer.status, answer.error["pointer"]) == (400, pointer)


@pytest.mark.parametrize("path", ["a.b/h", "a/h*", "a/h%3E", "a/-h", "x%20y/h"])
async def test_ids_are_checked_before_use(call: Caller, path: str) -> None:
    """Ids: they stand in subjects of the bus, where `*`, `>` or `.` would do harm."""
    answer = await call("PUT", f"/api/v3/enrolments/{path}", {"key": KEY, "apps": []})
    assert (answer.status, answer.error["reason"]) == (400, "bad_parameter")


# ---- the audit log ----


async def test_each_change_is_one_line(call: Caller) -> None:
    """10.1: who, what, before and after."""
    await call("PUT", "/api/v3/apps/shop", {"limit": 1}, X_Request_Id="r1")
    await call("PUT", "/api/v3/apps/shop", {"limit": 2})
    await call("PUT", "/api/v3/apps/shop", {"limit": 2})
    await call("PUT", "/api/v3/apps/shop", {"limit": 0})
    await call("DELETE", "/api/v3/apps/shop")
    lines = call.audit()
    assert [line["action"] for line in lines] == ["app.create", "app.replace", "app.delete"]
    first = lines[0]
    assert (first["issuer"], first["subject"]) == (issuing.NAME, "tests")
    assert (first["gateway"], first["cluster"]) == ("g1", "east")
    assert (first["app_id"], first["request_id"]) == ("shop", "r1")
    assert [line["before"] and line["before"]["limit"] for line in lines] == [None, 1, 2]
    assert [line["after"] and line["after"]["limit"] for line in lines] == [1, 2, None]
    assert call.token not in call.log.read_text()


async def test_an_audit_log_that_cannot_be_written_holds_nothing_up(tmp_path: Path) -> None:
    """10.1: a line that is lost is counted; the change stands."""
    audit = Audit(str(tmp_path / "none" / "audit"), "g1", "east", wall=time.time)
    await audit.note(Operator.caller, "r", "app.create", {"app_id": "a"}, None, {})
    audit.close()
    assert (audit.written, audit.lost) == (0, 1)


async def test_a_line_of_the_audit_log_is_bounded(tmp_path: Path) -> None:
    """10.1: a record that is too large is told without its content."""
    audit = Audit(str(tmp_path / "audit"), "g1", "east")
    await audit.note(Operator.caller, "r", "app.create", {"app_id": "a"}, None, "x" * 70_000)
    audit.close()
    line = json.loads((tmp_path / "audit").read_text())
    assert (line["after"], line["cut"]) == (None, True)
