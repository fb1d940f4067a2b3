"""The clusters as anybody may read them: what is told, and what when there is no list."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from smartgw.api.answers import answer_errors
from smartgw.api.clusters import Clusters
from smartgw.api.gateway import Gateway
from smartgw.api.models import Clusters as ClustersModel
from smartgw.api.operations import Guard, mount
from smartgw.peers.directory import Mode, View
from smartgw_hosts.clusters import parse
from tests.validators import entry, list_text

Client = TestClient[web.Request, web.Application]


NONE = View(Mode.NONE, "c1")


@dataclass
class Stub:
    """A directory as the API reads it, and the gateway that has it."""

    view: View = NONE
    confirmed_ago: float | None = None
    started: bool = True

    @property
    def directory(self) -> "Stub | None":
        return self if self.started else None

    def list(self, data: bytes, mode: Mode = Mode.FRESH, age: float = 0.0) -> None:
        self.view, self.confirmed_ago = View(mode, "c1", parse(data)), age


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
async def client(stub: Stub) -> AsyncIterator[Client]:
    application = web.Application(middlewares=[answer_errors])
    bounds = Clusters(cast(Gateway, stub)).bounds
    mount(application, bounds, Guard(cast(Any, None), cast(Any, None), internal=False))
    async with TestClient(TestServer(application)) as running:
        yield running


async def told(client: Client, path: str) -> tuple[int, dict[str, Any]]:
    async with client.get(f"/api/v3/discovery/{path}") as response:
        return response.status, await response.json()


async def test_the_list_is_told_in_the_form_that_gateways_and_hosts_read(
    stub: Stub, client: Client
) -> None:
    """4.3: id, gateway URLs, public keys, state, switches and the epoch, sorted by id."""
    stub.list(list_text("c2", entry("c1", 7, state="draining"), failover=False), age=2.3)
    async with client.get("/api/v3/discovery/clusters") as response:
        data = await response.read()
        assert response.headers["Age"] == "3"
        assert response.content_type == "application/json"
    assert stub.view.clusters is not None
    assert parse(data) == stub.view.clusters
    shown = ClustersModel.model_validate_json(data)
    assert shown.epoch == stub.view.epoch
    assert (shown.affinity, shown.failover) == (True, False)
    assert [(c.id, c.state) for c in shown.clusters] == [("c1", "draining"), ("c2", "active")]
    stub.list(list_text("c2"), Mode.GRACE)
    status, body = await told(client, "clusters")
    assert (status, [c["id"] for c in body["clusters"]]) == (200, ["c2"])


async def test_an_empty_list_is_told_as_one(stub: Stub, client: Client) -> None:
    """4.4: a valid answer may be empty; whoever reads it knows that owners are unknown."""
    stub.list(list_text(), Mode.UNKNOWN)
    status, body = await told(client, "clusters")
    assert (status, body["clusters"]) == (200, [])


async def test_no_list_is_no_empty_list(stub: Stub, client: Client) -> None:
    """4.4: a gateway that knows nothing does not say that there are no clusters: whoever asks
    several validators asks the next.
    """
    stub.view = View(Mode.UNKNOWN, "c1")
    status, body = await told(client, "clusters")
    assert (status, body["error"]["reason"]) == (503, "directory_unknown")
    for stub.started in (True, False):
        stub.view = View(Mode.NONE, "c1")
        status, body = await told(client, "clusters")
        assert (status, body["error"]["reason"]) == (404, "no_directory")


async def test_the_owner_of_an_app_is_told(stub: Stub, client: Client) -> None:
    """10.1: public: discovery (clusters, hosts in brief, owner of an app)."""
    stub.list(list_text("c1", "c2", "c3"))
    assert stub.view.clusters is not None
    for app in ("shop", "ünïcode-app", "a b"):
        async with client.get("/api/v3/discovery/owner", params={"app": app}) as response:
            assert await response.json() == {
                "app_id": app,
                "owner": stub.view.clusters.owner(app),
                "epoch": stub.view.epoch,
                "mode": "fresh",
            }


async def test_an_owner_that_is_unknown_is_null(stub: Stub, client: Client) -> None:
    """4.4: without a list the owner is unknown, which the mode explains."""
    for stub.started, mode in ((True, "unknown"), (False, "none")):
        stub.view = View(Mode.UNKNOWN, "c1")
        status, body = await told(client, "owner?app=shop")
        assert status == 200
        assert body == {"app_id": "shop", "owner": None, "epoch": None, "mode": mode}


@pytest.mark.parametrize("query", ["", "?app=", f"?app={'x' * 257}", "?app=%00", "?App=a", "?app"])
async def test_what_is_no_app_is_refused(client: Client, query: str) -> None:
    """10.3: a parameter that is wrong is 400 and named."""
    status, body = await told(client, f"owner{query}")
    assert status == 400
    assert body["error"]["reason"] == "bad_parameter"
