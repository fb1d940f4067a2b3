"""CORS as a real browser enforces it: what a page's script gets from an app of another origin."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Chromium, Page
from tests.gateway import BROWSER_DOMAIN, Cluster, Host, MakeHost, wait_until
from tests.policies import PolicyGateway
from tests.upstreams import Connection, Request, each

PAGE, STRANGER, API, OWN = "cors-page", "cors-stranger", "cors-api", "cors-own-api"
LIMITED, LIMIT = "cors-limited", 3

# A new tab is an empty page at first.
LOADED = "location.protocol == 'http:' && document.readyState == 'complete'"


def api(connection: Connection, request: Request) -> None:
    """Answer as an app that knows nothing of CORS, with a cookie; `/broken` is no HTTP."""
    connection.read_body(request)
    if request.raw_target == b"/broken":
        connection.send(b"nonsense\r\n\r\n")
        return
    seen = {
        "method": request.method,
        "cookie": request.one("cookie"),
        "x_asked": request.one("x-asked"),
    }
    fields = ("Content-Type: application/json", "Set-Cookie: seen=yes; Path=/", "X-Own: 1")
    connection.reply(json.dumps(seen).encode(), "200 OK", *fields)


def own_cors(connection: Connection, request: Request) -> None:
    """Answer as an app that lets everybody read."""
    connection.read_body(request)
    connection.reply(b'"open"', "200 OK", "Access-Control-Allow-Origin: *")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The access log of `shared`."""
    return tmp_path_factory.mktemp("cors") / "access.log"


@pytest.fixture(scope="module")
def shared(cluster: Cluster, log: Path) -> Iterator[PolicyGateway]:
    """A gateway at which the page's origin, and no other, may read the API."""
    made = PolicyGateway(cluster, {}, {"log": {"access": str(log)}})
    origin = f"http://{PAGE}.{BROWSER_DOMAIN}:{made.port}"
    policies: dict[str, dict[str, Any]] = {
        API: {"origins": [origin]},
        OWN: {"own_cors": True},
        LIMITED: {"origins": [origin], "limit": LIMIT},
    }
    made.policies.write_text(json.dumps({"apps": policies, "hostnames": {}}))
    with made as gateway:
        cluster.gateways.append(gateway)
        yield gateway


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """A browser; the test is skipped where none is installed."""
    try:
        browser = Chromium()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with browser:
        yield browser


@pytest.fixture
def host(make_host: MakeHost) -> Host:
    """The host of the API."""
    return make_host(each(api), API)


@pytest.fixture
async def page(
    shared: PolicyGateway, chromium: Chromium, make_host: MakeHost, host: Host
) -> AsyncIterator[Page]:
    """A page of the origin that is allowed."""
    make_host(app=PAGE)
    async with chromium.page(url(shared, PAGE)) as page:
        await page.until(LOADED)
        yield page


def url(gateway: PolicyGateway, app: str, path: str = "/") -> str:
    """Where a browser finds an app."""
    return f"http://{app}.{BROWSER_DOMAIN}:{gateway.port}{path}"


async def fetched(page: Page, address: str, **options: Any) -> Any:
    """What `fetch` gave the page: status, body, and fields that it may read; or the error."""
    return await page.evaluate(
        f"fetch({json.dumps(address)}, {json.dumps(options)}).then(async answer => ({{"
        "status: answer.status, body: await answer.text(), fields: [...answer.headers.keys()]"
        "}), error => ({error: error.name}))"
    )


def logged(log: Path, path: str) -> list[str]:
    """The methods of the requests for this path, in order."""
    entries = map(json.loads, log.read_text().splitlines())
    return [entry["method"] for entry in entries if entry["target"] == path]


async def test_allowed_origin(shared: PolicyGateway, page: Page) -> None:
    """3.9: a page of a listed origin reads the app's answer, and the fields that are exposed."""
    answer = await fetched(page, url(shared, API))
    assert answer["status"] == 200
    assert json.loads(answer["body"])["method"] == "GET"
    assert "x-request-id" in answer["fields"]
    assert "x-own" not in answer["fields"]


async def test_refused_origin(
    shared: PolicyGateway, chromium: Chromium, make_host: MakeHost, host: Host
) -> None:
    """3.9: a page of any other origin reads nothing, and what needs a preflight is never sent."""
    make_host(app=STRANGER)
    async with chromium.page(url(shared, STRANGER)) as page:
        await page.until(LOADED)
        assert await fetched(page, url(shared, API)) == {"error": "TypeError"}
        refused = await fetched(page, url(shared, API, "/refused"), method="DELETE")
        assert refused == {"error": "TypeError"}
    assert [request.raw_target for request in host.upstream.requests] == [b"/"]


async def test_credentials(shared: PolicyGateway, page: Page, host: Host) -> None:
    """3.9: with credentials the app gets its cookie, and the page the answer."""
    first = await fetched(page, url(shared, API), credentials="include")
    again = await fetched(page, url(shared, API), credentials="include")
    without = await fetched(page, url(shared, API))
    cookies = [json.loads(answer["body"])["cookie"] for answer in (first, again, without)]
    assert cookies == ["", "seen=yes", ""]


async def test_preflight_is_cached(
    shared: PolicyGateway, page: Page, host: Host, log: Path
) -> None:
    """3.9: the browser asks once and keeps the answer; the app is never asked."""
    for _ in range(3):
        answer = await fetched(
            *(page, url(shared, API, "/cached")),
            method="PUT",
            headers={"X-Asked": "yes", "Content-Type": "application/json"},
            body="{}",
        )
        assert answer["status"] == 200
        assert json.loads(answer["body"]) == {"method": "PUT", "cookie": "", "x_asked": "yes"}
    assert [request.method for request in host.upstream.requests] == ["PUT"] * 3
    wait_until(lambda: len(logged(log, "/cached")) >= 4, what="the lines in the log")
    assert logged(log, "/cached") == ["OPTIONS", "PUT", "PUT", "PUT"]


async def test_our_error_can_be_read(shared: PolicyGateway, page: Page) -> None:
    """3.9, 3.10: a page reads why the gateway has no answer of the app for it, write or not."""
    for method in ("GET", "POST", "DELETE"):
        answer = await fetched(page, url(shared, API, "/broken"), method=method)
        assert answer["status"] == 502
        assert json.loads(answer["body"])["error"]["reason"] == "upstream_malformed"
        assert ("x-smartgw-request-sent" in answer["fields"]) == (method != "GET")
        assert "proxy-status" in answer["fields"]


async def test_a_limit_can_be_read(shared: PolicyGateway, page: Page, make_host: MakeHost) -> None:
    """3.9, 6.2, 6.3: a page reads what is left to it, and over the limit why and for how long;
    preflights are free.
    """
    host = make_host(each(api), LIMITED)
    read = "answer.headers.get('x-ratelimit-remaining')"
    call = (
        f"fetch({json.dumps(url(shared, LIMITED))}, {{method: 'PUT', headers: {{'X-Asked': 'a'}}}})"
        f".then(async answer => [answer.status, {read}, answer.headers.get('retry-after'),"
        " await answer.text()])"
    )
    for left in reversed(range(LIMIT)):
        status, remaining, *_ = await page.evaluate(call)
        assert (status, remaining) == (200, str(left))
    status, remaining, wait, body = await page.evaluate(call)
    assert (status, remaining) == (429, "0")
    assert 0 < int(wait) <= 60
    assert json.loads(body)["error"]["reason"] == "rate_limited"
    assert [request.method for request in host.upstream.requests] == ["PUT"] * LIMIT


async def test_error_behind_a_preflight_with_no_host(
    shared: PolicyGateway, page: Page, host: Host
) -> None:
    """3.9: with every upstream down the preflight is answered, so that the page reads the 502."""
    host.upstream.kill()
    answer = await fetched(page, url(shared, API, "/down"), method="DELETE")
    assert answer["status"] in (502, 503)
    assert json.loads(answer["body"])["error"]["reason"]


async def test_own_cors(shared: PolicyGateway, page: Page, make_host: MakeHost) -> None:
    """3.9: an app that does its own CORS decides by itself who reads it."""
    make_host(each(own_cors), OWN)
    answer = await fetched(page, url(shared, OWN))
    assert (answer["status"], answer["body"]) == (200, '"open"')
    assert await fetched(page, url(shared, OWN), credentials="include") == {"error": "TypeError"}
