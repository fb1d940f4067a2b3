"""What anybody may know of this cluster: its verified hosts in brief (contract 10.1).

Owns what of a host is public, and that nobody can have it worked out more often than once a second:
it shares the event loop with traffic.
"""

import asyncio
import heapq
import json
import time
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter

from aiohttp import web

from smartgw.api import models
from smartgw.api.answers import json_body
from smartgw.api.gateway import Gateway
from smartgw.api.observed import HOSTS_AT_ONCE
from smartgw.api.operations import Access, Bound, Call, Operation, Outcome

KEPT_SECONDS = 1.0
"""How old a list of hosts may be."""

HOSTS_IN_BRIEF = Operation(
    "discover_hosts",
    "GET",
    "/api/v3/discovery/hosts",
    "Hosts in brief",
    "The hosts of this cluster that were verified, up to a second old.",
    "discovery",
    Access.OPEN,
    (Outcome(200, "A page of hosts, by id.", models.HostBriefs),),
    query=models.Page,
)


class Discovery:
    """`bounds` are the operations with what they do."""

    def __init__(self, gateway: Gateway, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._listing = _Listing(gateway, monotonic)
        self.bounds: tuple[Bound, ...] = ((HOSTS_IN_BRIEF, self._hosts),)

    async def _hosts(self, call: Call) -> web.Response:
        page: models.Page = call.query
        return json_body(await self._listing.page(page.cursor, page.limit))


class _Listing:
    """The verified hosts as JSON, in the order of their ids.

    Others have proven nothing: anybody who reaches the bus could have named them.
    """

    def __init__(self, gateway: Gateway, monotonic: Callable[[], float]) -> None:
        self._gateway = gateway
        self._monotonic = monotonic
        self._made_at = float("-inf")
        self._made = asyncio.Lock()
        self._hosts: list[tuple[str, str]] = []

    async def page(self, cursor: str, limit: int) -> str:
        """The JSON object of the hosts after `cursor`."""
        async with self._made:
            if self._monotonic() - self._made_at >= KEPT_SECONDS:
                self._hosts = await self._make()
                self._made_at = self._monotonic()
        hosts = self._hosts
        start = bisect_right(hosts, cursor, key=itemgetter(0))
        page = hosts[start : start + limit]
        following = json.dumps(page[-1][0] if start + limit < len(hosts) else None)
        return f'{{"hosts":[{",".join(text for _, text in page)}],"next_cursor":{following}}}\n'

    async def _make(self) -> list[tuple[str, str]]:
        """A walk over all hosts, in which traffic has its turns."""
        known = self._gateway.hosts()
        runs: list[list[tuple[str, str]]] = []
        for start in range(0, len(known), HOSTS_AT_ONCE):
            runs.append(
                sorted(
                    (
                        host.host_id,
                        json.dumps(
                            {
                                "host_id": host.host_id,
                                "state": str(host.state),
                                "region": host.region,
                            },
                            separators=(",", ":"),
                        ),
                    )
                    for host in known[start : start + HOSTS_AT_ONCE]
                    if host.verified_at is not None
                )
            )
            await asyncio.sleep(0)
        made: list[tuple[str, str]] = []
        for entry in heapq.merge(*runs):
            made.append(entry)
            if len(made) % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return made
