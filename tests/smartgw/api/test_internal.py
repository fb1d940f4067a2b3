"""The internal API: its paths, shapes and errors, on a gateway that is a plain object."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from smartgw.api import operations
from smartgw.api.observed import Observed
from smartgw.processes.drain import Phase
from tests.apis import serving
from tests.smartgw.api.fakes import FakeGateway, FakeHost, FakeReadiness, api_of

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Api:
    """The API on a real port: `get` returns status, headers and the JSON (or text) body."""

    def __init__(
        self, session: ClientSession, address: str, gateway: FakeGateway, token: str
    ) -> None:
        self.session = session
        self.address = address
        self.gateway = gateway
        self.token = token

    async def call(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> tuple[int, Mapping[str, str], Any]:
        address = self.address + path
        fields = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        async with self.session.request(method, address, headers=fields, data=body) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return response.status, response.headers, json.loads(text) if is_json else text

    async def drain(self, body: str = "{}", **headers: str) -> tuple[int, Mapping[str, str], Any]:
        """POST to drain, as JSON."""
        fields = {"Content-Type": "application/json", **headers}
        return await self.call("/api/v3/drain", method="POST", headers=fields, body=body)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(
        Observed.__init__, "__defaults__", (tuple, lambda: 100.0, lambda: 1_700_000_000.0)
    )
    gateway = FakeGateway()
    made, credentials = api_of(gateway)
    credentials.operator.write([tmp_path], "127.0.0.1:9080")
    token = json.loads((tmp_path / "operator.json").read_text())["token"]
    async with serving(made.internal("gw.internal")) as address, ClientSession() as session:
        yield Api(session, f"http://{address}", gateway, token)


async def test_healthz_says_alive(api: Api) -> None:
    """11.3: `/healthz` (alive), ready or not."""
    api.gateway.now_ready = FakeReadiness(False, ("bus",))
    status, headers, body = await api.call("/healthz")
    assert (status, body) == (200, {"status": "alive"})
    assert headers["Cache-Control"] == "no-store"


async def test_readyz_says_what_is_missing_and_what_is_degraded(api: Api) -> None:
    """11.3: `/readyz` (what is missing, what is degraded)."""
    api.gateway.now_ready = FakeReadiness(True, (), ("bus: away for 3 s",))
    assert (await api.call("/readyz"))[::2] == (
        200,
        {"ready": True, "missing": [], "degraded": ["bus: away for 3 s"], "state": None},
    )
    api.gateway.now_ready = FakeReadiness(False, ("table",), ())
    assert (await api.call("/readyz"))[::2] == (
        503,
        {"ready": False, "missing": ["table"], "degraded": [], "state": None},
    )


async def test_metrics_are_prometheus_text(api: Api) -> None:
    """11.3: Prometheus metrics: the gateway's own, its readiness and its hosts by state."""
    api.gateway.all_hosts = [FakeHost("h1"), FakeHost("h2", state="unhealthy")]
    status, headers, text = await api.call("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = text.splitlines()
    assert "smartgw_requests_total 3" in lines
    assert "smartgw_ready 1" in lines
    assert 'smartgw_hosts{state="healthy"} 1' in lines
    assert 'smartgw_hosts{state="provisional"} 0' in lines


async def test_a_host_is_shown_in_full(api: Api) -> None:
    """1.4, 1.5: every state shows its reason and since when; a refused app its reason."""
    api.gateway.all_hosts = [
        FakeHost(
            "h1",
            state="unhealthy",
            reason="verification: timeout",
            detail="no answer within 2 s",
            refused_apps=(("bank", "not enrolled for this app"),),
            pending_address="http://127.0.0.1:9001",
        )
    ]
    _, _, body = await api.call("/api/v3/hosts")
    assert body == {
        "hosts": [
            {
                "host_id": "h1",
                "state": "unhealthy",
                "reason": "verification: timeout",
                "detail": "no answer within 2 s",
                "since": "2023-11-14T22:13:10.000Z",
                "since_seconds": 10.0,
                "verified_at": "2023-11-14T22:13:15.000Z",
                "address": "http://127.0.0.1:9000",
                "pending_address": "http://127.0.0.1:9001",
                "pending_reason": "",
                "apps": ["shop"],
                "refused_apps": [{"app_id": "bank", "reason": "not enrolled for this app"}],
                "key": "ed25519:" + "A" * 43,
                "weight": 100,
                "region": "",
                "version": "1",
                "boot": 1,
            }
        ],
        "next_cursor": None,
    }


async def test_pages_follow_one_another_and_miss_nobody(api: Api) -> None:
    """10.3: pagination where lists grow."""
    api.gateway.all_hosts = [FakeHost(f"h{n:03d}", verified_at=None) for n in reversed(range(25))]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        _, _, body = await api.call(f"/api/v3/hosts?limit=10&cursor={cursor}")
        seen += [host["host_id"] for host in body["hosts"]]
        cursor = body["next_cursor"]
    assert seen == [f"h{n:03d}" for n in range(25)]


async def test_status_counts_hosts_and_apps(api: Api) -> None:
    """11.1, 12.4: status shows the gateway, the bus, hosts by state and apps with theirs."""
    api.gateway.all_hosts = [
        *(FakeHost(f"h{n}") for n in range(600)),
        FakeHost("down", state="unhealthy", apps=("shop", "blog")),
    ]
    status, _, body = await api.call("/api/v3/status")
    assert status == 200
    assert RFC3339.fullmatch(body.pop("time"))
    assert body == {
        "gateway": {"id": "g1", "cluster": "east"},
        "bus": {"connected": True},
        "readiness": {"ready": True, "missing": [], "degraded": [], "state": None},
        "hosts": {"total": 601, "by_state": {"healthy": 600, "unhealthy": 1}},
        "apps": {
            "total": 2,
            "shown": [
                {"app_id": "blog", "hosts": {"unhealthy": 1}},
                {"app_id": "shop", "hosts": {"healthy": 600, "unhealthy": 1}},
            ],
        },
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/readyz", 405, "method_not_allowed"),
        ("GET", "/api/v3/hosts?limit=0", 400, "bad_parameter"),
        ("GET", "/api/v3/hosts?limit=1001", 400, "bad_parameter"),
        ("GET", "/api/v3/hosts?limit=%D9%A1", 400, "bad_parameter"),
    ],
)
async def test_errors_have_one_shape(
    api: Api, method: str, path: str, status: int, reason: str
) -> None:
    """10.3: one error shape, with the request id that stands in the header."""
    got, headers, body = await api.call(path, method=method, headers={"X-Request-Id": "r:1"})
    assert got == status
    assert headers["X-Request-Id"] == "r:1"
    assert set(body) == {"error"}
    assert set(body["error"]) - {"parameter"} == {"status", "reason", "message", "request_id"}
    assert body["error"]["status"] == status
    assert (body["error"]["reason"], body["error"]["request_id"]) == (reason, "r:1")


async def test_a_fault_of_our_own_tells_nothing_but_its_request_id(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """3.10, 10.3: an internal fault is 500 in the same shape; the detail is in the log alone."""
    api.gateway.broken = True
    status, headers, body = await api.call("/api/v3/status", headers={"X-Request-Id": "a b"})
    assert (status, body["error"]["reason"]) == (500, "internal_error")
    assert body["error"]["request_id"] == headers["X-Request-Id"]
    assert re.fullmatch(r"[0-9a-f]{32}", headers["X-Request-Id"])
    assert "secret detail" not in json.dumps(body)
    assert "secret detail" in caplog.text


async def test_drain_and_undo(api: Api) -> None:
    """11.1: drain takes the gateway out of use, undo back in; a final one cannot be undone."""
    assert (await api.drain())[2] == {"phase": "unready"}
    undo = '{"undo": true}'
    assert (await api.drain(undo))[2] == {"phase": "serving"}
    api.gateway.leaving.final = True
    status, _, answer = await api.drain(undo)
    assert (status, answer["error"]["reason"]) == (409, "ending")


async def test_drain_of_a_host(api: Api) -> None:
    """11.1: drain takes one host out of choice; an unknown one is 404."""
    api.gateway.all_hosts = [FakeHost("h1")]
    body = '{"host": "h1"}'
    answer = await api.drain(body)
    assert answer[2] == {"host": "h1", "drained": True}
    status, _, answered = await api.drain('{"host": "h2"}')
    assert (status, answered["error"]["reason"]) == (404, "unknown_host")


@pytest.mark.parametrize("body", ["[]", "{", '{"hosts": "h1"}', '{"undo": 1}', '{"host": 1}'])
async def test_a_drain_that_is_none(api: Api, body: str) -> None:
    """10.3: a body that is not one of the API is 400 and changes nothing."""
    status, _, answer = await api.drain(body)
    assert (status, answer["error"]["reason"]) == (400, "bad_body")
    assert api.gateway.leaving.phase is Phase.SERVING


@pytest.mark.parametrize("path", ["/metrics", "/api/v3/status"])
async def test_numbers_are_of_now(api: Api, path: str) -> None:
    """11.1: status and metrics are whole: all processes are asked first."""
    await api.call(path)
    assert api.gateway.refreshed == 1


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "text/plain; application/json",
    ],
)
async def test_a_form_of_a_web_page_drains_nothing(api: Api, content_type: str) -> None:
    """11.3: what any page can send without asking changes nothing."""
    fields = {"Content-Type": content_type}
    status, _, answer = await api.call("/api/v3/drain", method="POST", headers=fields, body="{}")
    assert (status, answer["error"]["reason"]) == (415, "bad_content_type")
    assert api.gateway.leaving.phase is Phase.SERVING


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9080"])
@pytest.mark.parametrize("path", ["/api/v3/drain", "/api/v3/hosts", "/healthz"])
async def test_no_web_page_is_answered(api: Api, origin: str, path: str) -> None:
    """11.3: the internal listener is for programs; whatever has an Origin comes from a page."""
    fields = {"Content-Type": "application/json", "Origin": origin}
    method = "POST" if path.endswith("drain") else "GET"
    status, _, answer = await api.call(path, method=method, headers=fields)
    assert (status, answer["error"]["reason"]) == (403, "foreign_origin")
    assert api.gateway.leaving.phase is Phase.SERVING


@pytest.mark.parametrize(
    ("hostname", "status"),
    [
        *(("127.0.0.1:9080", 200), ("[::1]:9080", 200), ("[::1]", 200), ("10.0.0.2", 200)),
        *(("localhost:9080", 200), ("LocalHost", 200), ("GW.internal:9080", 200)),
        *(("evil.example", 403), ("evil.example:9080", 403), ("127.0.0.1.evil.example", 403)),
        *(("localhost.evil.example:9080", 403), ("[::1].evil.example", 403), ("", 403)),
    ],
)
async def test_no_name_turned_to_our_address_reaches_us(
    api: Api, hostname: str, status: int
) -> None:
    """11.3: a site that turns its own name to our address (DNS rebinding) reads nothing."""
    got, _, answer = await api.call("/api/v3/status", headers={"Host": hostname})
    assert got == status
    if got != 200:
        assert answer["error"]["reason"] == "foreign_host"


async def test_a_request_id_that_is_no_text(api: Api) -> None:
    """3.5: what does not have the form of a request id is replaced, whatever its bytes are."""
    reader, writer = await asyncio.open_connection(*api.address.removeprefix("http://").split(":"))
    writer.write(b"GET /healthz HTTP/1.0\r\nX-Request-Id: a\xffb\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert re.search(rb"\r\nX-Request-Id: [0-9a-f]{32}\r\n", answer)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 70_000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % (b"x" * 70_000),
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ],
    ids=["target", "field", "nonsense", "tls", "length"],
)
async def test_what_is_no_request(api: Api, head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """10.3: what cannot be read has the same form of error, and fills no log."""
    reader, writer = await asyncio.open_connection(*api.address.removeprefix("http://").split(":"))
    writer.write(head)
    answer = await reader.read()
    writer.close()
    top, _, body = answer.partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] 400 ", top)
    assert b"Content-Type: application/json" in top
    assert json.loads(body)["error"]["reason"] == "bad_request"
    assert caplog.text == ""


@pytest.mark.parametrize("path", ["/healthz", "/api/v3/status", "/api/v3/drain", "/nothing"])
async def test_a_body_that_nobody_reads_is_no_line_of_the_log(
    api: Api, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """10.3: bodies are not decompressed, for anybody could send a bomb, or fill the log with one
    that is broken.
    """
    api.token = "none"
    for method in ("GET", "POST"):
        fields = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        status, _, _ = await api.call(path, method=method, headers=fields, body="no gzip" * 9)
        assert status in (200, 401, 404, 405)
    assert (await api.call("/healthz"))[0] == 200
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize("ends", ["goes", "waits", "lies"])
async def test_a_body_that_never_comes_whole(
    api: Api, ends: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.3: whoever breaks off is no fault of ours, and whoever waits is not waited for."""
    monkeypatch.setattr(operations, "BODY_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection(*api.address.removeprefix("http://").split(":"))
    head = (
        f"POST /api/v3/drain HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"
    )
    writer.write(head.encode())
    await writer.drain()
    await asyncio.sleep(0.05)
    if ends == "lies":
        writer.write(b"    \r\nno number\r\n")
    if ends != "goes":
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await asyncio.sleep(0.05)
    assert (await api.call("/healthz"))[0] == 200
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []
