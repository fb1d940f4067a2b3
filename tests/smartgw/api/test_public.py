"""The public API: what anybody may read, and how little of it can be had worked out."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import ClientSession

from smartgw.api import public
from smartgw.api.credentials import Credentials
from smartgw.api.discovery import Discovery
from smartgw.api.gateway import Gateway
from smartgw.api.metering import Metering
from smartgw.api.operations import Guard
from smartgw.api.operator import Operator
from smartgw.api.service_rates import ServiceRates
from smartgw.config_fields import Auth
from smartgw.config_limits import Rates
from tests.apis import serving
from tests.smartgw.api.fakes import memory_meter

HOSTS = "/api/v3/discovery/hosts"


@dataclass(frozen=True, slots=True)
class FakeHost:
    host_id: str
    state: str = "healthy"
    region: str = "fra"
    verified_at: float | None = 1.0


@dataclass(slots=True)
class FakeGateway:
    all_hosts: list[FakeHost] = field(default_factory=list)
    asked: int = 0

    def hosts(self) -> list[FakeHost]:
        self.asked += 1
        return self.all_hosts


class Api:
    """The API, its gateway and its clock."""

    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.now = 100.0

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(f"http://{self.address}{path}") as response:
            return response.status, await response.json()

    session: ClientSession
    address: str


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    discovery = Discovery(cast("Gateway", api.gateway), monotonic=lambda: api.now)
    services = ServiceRates(Rates)
    guard = Guard(Credentials(Auth(), Operator()), services, internal=False)
    metering = Metering(memory_meter, Rates, services)
    application = public.build(discovery.bounds, guard, metering)
    async with serving(application) as api.address, ClientSession() as api.session:
        yield api


async def test_only_hosts_that_were_verified_are_shown_in_brief(api: Api) -> None:
    """10.1: hosts in brief; who has proven nothing is nobody's business, and has no place."""
    api.gateway.all_hosts = [
        FakeHost("h2", state="unhealthy"),
        FakeHost("h1", region='"é'),
        FakeHost("stranger", state="provisional", verified_at=None),
    ]
    assert await api.get(HOSTS) == (
        200,
        {
            "hosts": [
                {"host_id": "h1", "state": "healthy", "region": '"é'},
                {"host_id": "h2", "state": "unhealthy", "region": "fra"},
            ],
            "next_cursor": None,
        },
    )


async def test_the_list_is_made_once_a_second(api: Api) -> None:
    """10.1: nobody can have us walk over all hosts again and again."""
    api.gateway.all_hosts = [FakeHost(f"h{n}") for n in range(1000)]
    answers = await asyncio.gather(*(api.get(HOSTS) for _ in range(20)))
    assert len({str(answer) for answer in answers}) == 1
    assert api.gateway.asked == 1
    api.gateway.all_hosts = []
    api.now += 1.0
    assert (await api.get(HOSTS))[1]["hosts"] == []
    assert api.gateway.asked == 2


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 600])
async def test_pages_follow_one_another_and_miss_nobody(api: Api, count: int) -> None:
    """10.3: pagination where lists grow, as on the internal listener."""
    api.gateway.all_hosts = [FakeHost(f"h{n:03d}") for n in reversed(range(count))]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        _, body = await api.get(f"{HOSTS}?limit=10&cursor={cursor}")
        assert len(body["hosts"]) <= 10
        seen += [host["host_id"] for host in body["hosts"]]
        cursor = body["next_cursor"]
    assert seen == [f"h{n:03d}" for n in range(count)]


async def test_a_page_is_bounded(api: Api) -> None:
    """10.3: a page has 100 entries unless asked otherwise, and never more than 1,000."""
    api.gateway.all_hosts = [FakeHost(f"h{n}") for n in range(300)]
    assert len((await api.get(HOSTS))[1]["hosts"]) == 100
    status, body = await api.get(HOSTS + "?limit=1001")
    assert (status, body["error"]["reason"]) == (400, "bad_parameter")
