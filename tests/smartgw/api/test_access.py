"""Who may call what: every control route with every kind of credential, at both listeners."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientSession

from smartgw.api.operations import Access, Operation
from tests.apis import serving
from tests.smartgw.api import issuing
from tests.smartgw.api.fakes import FakeGateway, FakeHost, api_of
from tests.smartgw.api.stores import MemoryStore

PARAMETERS = {
    **{"app_id": "shop", "host_id": "h1", "cluster": "east"},
    **{"zone": "z", "name": "www.z", "type": "A"},
}
BODIES = {
    "put_app": "{}",
    "put_enrolment": '{"key": "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "apps": []}',
    "drain": '{"host": "h1"}',
    "put_zone": '{"nameservers": ["ns."]}',
    "change_zone": '{"changes": [{"name": "www.z.", "type": "A", "rdata": null}]}',
    "put_rrset": '{"ttl": 300, "rdata": ["192.0.2.1"]}',
    "import_zone": "@ SOA ns. root. 1 2 3 4 5\n",
    "put_app_wildcards": '{"addresses": ["192.0.2.1"]}',
}
QUERIES = {"explain": "?host=shop.smart-app.test"}


@dataclass(frozen=True, slots=True)
class Place:
    """A listener and the operations that it has."""

    address: str
    operations: tuple[Operation, ...]
    store: MemoryStore


@pytest.fixture(params=["internal", "public"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    gateway = FakeGateway(all_hosts=[FakeHost("h1")])
    gateway.durable = store = MemoryStore()
    api, credentials = api_of(gateway, issuing.auth(tmp_path))
    credentials.start()
    internal = request.param == "internal"
    application = api.internal("localhost") if internal else api.public(control=True)
    operations = tuple(operation for operation, _ in api.operations(internal=internal))
    async with serving(application) as address:
        yield Place(f"http://{address}", operations, store)
    await credentials.stop()


def control(place: Place) -> Iterator[Operation]:
    return (each for each in place.operations if each.access is Access.SERVICE)


async def call(
    session: ClientSession, place: Place, operation: Operation, fields: list[str], **more: str
) -> tuple[int, bytes, dict[str, str]]:
    path = operation.path.format(**PARAMETERS) + QUERIES.get(operation.name, "")
    headers = [("Authorization", field) for field in fields] + list(more.items())
    body = BODIES.get(operation.name)
    if body is not None:
        headers.append(("Content-Type", operation.takes or "application/json"))
    async with session.request(
        operation.method, place.address + path, data=body, headers=headers
    ) as response:
        answered = await response.read()
        shown = {
            n: v for n, v in response.headers.items() if n.lower() not in ("date", "x-request-id")
        }
        return response.status, answered, shown


async def test_everybody_but_services_gets_the_same_401(place: Place) -> None:
    """10.1: exactly 401 and one body for everyone else, signed-in sessions included."""
    seen = set()
    async with ClientSession() as session:
        for operation in control(place):
            for kind, fields in issuing.forged().items():
                status, body, shown = await call(session, place, operation, fields)
                assert status == 401, (operation.name, kind)
                seen.add((body, tuple(sorted(shown.items()))))
    assert len(seen) == 1
    ((body, shown_fields),) = seen
    assert body == (
        b'{"error":{"status":401,"reason":"unauthorized",'
        b'"message":"this needs the credential of a service"}}\n'
    )
    assert dict(shown_fields)["WWW-Authenticate"].startswith('Bearer realm="smartgw"')
    assert place.store.writes == 0


async def test_the_request_id_of_a_401_stands_in_its_header(place: Place) -> None:
    """10.1: the request id stands in its header only."""
    async with ClientSession() as session:
        operation = next(control(place))
        fields = {"X-Request-Id": "mine"}
        async with session.get(place.address + operation.path, headers=fields) as response:
            assert response.headers["X-Request-Id"] == "mine"
            assert b"mine" not in await response.read()


async def test_services_are_let_in(place: Place) -> None:
    """10.1: a service is let in everywhere, so a refusal is nobody's accident."""
    async with ClientSession() as session:
        for operation in control(place):
            field = f"Bearer {issuing.token()}"
            status, body, _ = await call(session, place, operation, [field])
            assert status not in (401, 403, 405, 500), (operation.name, body)


async def test_nothing_is_looked_at_before_who_calls(place: Place) -> None:
    """10.1: to strangers a wrong body, address or method is the same 401, and nothing is read."""
    async with ClientSession() as session:
        for path, method, body in (
            ("/api/v3/apps/%FF", "GET", None),
            ("/api/v3/apps/none", "GET", None),
            ("/api/v3/apps?limit=x", "GET", None),
            ("/api/v3/apps/a", "PUT", b"{"),
            ("/api/v3/apps/a", "PUT", b"x" * 200_000),
            ("/api/v3/apps/a", "POST", None),
            ("/api/v3/apps", "DELETE", None),
            ("/api/v3/drain", "GET", None),
            ("/api/v3/dns/zones/a..b", "GET", None),
            ("/api/v3/dns/zones/z/file", "PUT", b"x" * 200_000),
            ("/api/v3/dns/zones/z", "POST", None),
        ):
            async with session.request(method, place.address + path, data=body) as response:
                assert response.status == 401, path
                assert (await response.json())["error"]["reason"] == "unauthorized"
                assert "Allow" not in response.headers


async def test_a_method_that_nobody_knows_is_no_way_around(place: Place) -> None:
    """10.1: exactly 401 with one body for everybody but services, whatever the method is."""
    host, port = place.address.removeprefix("http://").split(":")

    async def ask(path: str, method: str, *fields: str) -> tuple[int, bytes, bytes]:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Length: 4", *fields]
        # It is the last of its connection: what comes behind it is nothing.
        rest = "" if method == "POST" else "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write("\r\n".join([*head, "", f"body{rest}"]).encode())
        top, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(top.split()[1]), body, top

    wrong = (await ask("/api/v3/apps", "POST", "Connection: close"))[:2]
    assert wrong[0] == 401
    service = f"Authorization: Bearer {issuing.token()}"
    for method in ("FOO", "get", "GETX", "x!#$%&'*+.^_`|~-"):
        for operation in control(place):
            path = operation.path.format(**PARAMETERS)
            for fields in ([], ["Authorization: Bearer x"]):
                assert (await ask(path, method, *fields))[:2] == wrong, (method, path)
            status, _, top = await ask(path, method, service)
            assert (status, b"\r\nAllow: " in top) == (405, True), (method, path)
        assert (await ask("/healthz", method))[0] == 405
        assert (await ask("/nowhere", method))[0] == 404
    for method in ("F@O", "FOO\t", "(", "x" * 40):
        assert (await ask("/api/v3/apps", method, service))[0] == 400
    assert place.store.writes == 0


async def test_what_is_public_asks_nobody(place: Place) -> None:
    """10.1: read is public: health and discovery, whatever is shown."""
    async with ClientSession() as session:
        for path in ("/healthz", "/api/v3/discovery/hosts", "/api/v3/openapi.json"):
            for fields in issuing.forged().values():
                headers = [("Authorization", field) for field in fields]
                async with session.get(place.address + path, headers=headers) as response:
                    assert response.status == 200


async def test_a_service_is_one_where_anybody_is_answered(tmp_path: Path) -> None:
    """6.2: services have their own window: at open doors and where nothing is, too; nobody is
    refused there for what he shows, counted as refused, or kept waiting.
    """
    gateway = FakeGateway()
    gateway.rates = gateway.rates.model_copy(update={"services": 4})
    api, credentials = api_of(gateway, issuing.auth(tmp_path))
    credentials.start()
    places = [("/healthz", 200), ("/api/v3/discovery/hosts", 200), ("/nowhere", 404)]
    places.append(("/api/v3/openapi.json?x=1", 400))
    async with serving(api.public(control=False)) as address, ClientSession() as session:

        async def ask(path: str, fields: list[str], status: int) -> str | None:
            headers = [("Authorization", field) for field in fields]
            url = f"http://{address}{path}"
            async with session.get(url, headers=headers) as response:
                assert response.status == status
                return response.headers.get("X-Smartgw-Caller")

        unknown = [f"Bearer {issuing.token(kid='k9')}"]
        for path, status in places:
            for fields in (*issuing.forged().values(), unknown):
                assert await ask(path, fields, status) is None
        assert credentials.refused.total() == 0
        service = [f"Bearer {issuing.token()}"]
        assert [await ask(path, service, status) for path, status in places] == ["service"] * 4
        # Its own window is full: it is anybody, whom the data path counts by address.
        assert await ask("/healthz", service, 200) is None
    async with serving(api.internal("localhost")) as address, ClientSession() as session:
        assert await ask("/healthz", service, 200) is None
    await credentials.stop()


async def test_control_can_be_kept_off_the_public_listener(tmp_path: Path) -> None:
    """10.2: the public listener can be told not to serve control: then it has no such path."""
    api, credentials = api_of(FakeGateway(), issuing.auth(tmp_path))
    credentials.start()
    async with serving(api.public(control=False)) as address, ClientSession() as session:
        headers = {"Authorization": f"Bearer {issuing.token()}"}
        for path in ("/api/v3/apps", "/api/v3/hosts", "/api/v3/status"):
            async with session.get(f"http://{address}{path}", headers=headers) as response:
                assert response.status == 404
        async with session.get(f"http://{address}/api/v3/openapi.json") as response:
            paths = (await response.json())["paths"]
        assert not any(path.startswith("/api/v3/apps") for path in paths)
    await credentials.stop()


async def test_the_operators_token_counts_at_the_internal_listener_alone(tmp_path: Path) -> None:
    """10.1: what the machine's operator has opens nothing on the public listener."""
    api, credentials = api_of(FakeGateway())
    credentials.operator.write([tmp_path], "127.0.0.1:9080")
    header = {"Authorization": f"Bearer {credentials.operator._token}"}
    for application, status in ((api.internal("localhost"), 200), (api.public(control=True), 401)):
        async with serving(application) as address, ClientSession() as session:
            async with session.get(f"http://{address}/api/v3/status", headers=header) as response:
                assert response.status == status
                challenge = response.headers.get("WWW-Authenticate", "")
            assert str(tmp_path) not in challenge


async def test_a_service_has_a_window_of_its_own(tmp_path: Path) -> None:
    """6.2, 10.3: services have their own window: 429 with when, and others are not concerned."""
    gateway = FakeGateway()
    gateway.rates = gateway.rates.model_copy(update={"services": 3})
    api, credentials = api_of(gateway, issuing.auth(tmp_path))
    credentials.start()
    async with serving(api.public(control=True)) as address, ClientSession() as session:

        async def status(**claims: str) -> int:
            field = f"Bearer {issuing.token(**claims)}"
            url = f"http://{address}/api/v3/status"
            async with session.get(url, headers={"Authorization": field}) as response:
                if response.status == 429:
                    assert 0 < int(response.headers["Retry-After"]) <= 60
                    assert (await response.json())["error"]["reason"] == "rate_limited"
                return response.status

        assert [await status() for _ in range(5)] == [200, 200, 200, 429, 429]
        assert await status(sub="other") == 200
        assert await status(exp="x") == 401
        gateway.rates = gateway.rates.model_copy(update={"services": 1})
        headers = {"Authorization": f"Bearer {issuing.token()}"}
        async with session.get(f"http://{address}/api/v3/status", headers=headers) as response:
            told = (await response.json())["error"]["message"]
        assert told == "the limit of one service is 1 request in 60 s"
    await credentials.stop()
