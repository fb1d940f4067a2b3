"""The public API on the gateway's own hostnames: health and hosts in brief (contract 3.3, 10.1).

Owns what anybody may read, and that nobody can have it worked out more often than once a second:
it shares the event loop with traffic. It is served on a Unix socket of the gateway's own, and the
data path carries requests to it as to any app.
"""

import asyncio
import heapq
import json
import time
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter

from aiohttp import web

from smartgw.api.internal import (
    HOSTS_AT_ONCE,
    Gateway,
    answer_errors,
    json_body,
    json_response,
    page_limit,
)

KEPT_SECONDS = 1.0
"""How old a list of hosts may be."""


def build(gateway: Gateway, *, monotonic: Callable[[], float] = time.monotonic) -> web.Application:
    """The application of the gateway's own hostnames."""
    listing = _Listing(gateway, monotonic)

    async def healthz(request: web.Request) -> web.Response:
        return json_response({"status": "alive"})

    async def hosts(request: web.Request) -> web.Response:
        limit = page_limit(request.query.get("limit"))
        return json_body(await listing.page(request.query.get("cursor", ""), limit))

    application = web.Application(middlewares=[answer_errors], client_max_size=64 << 10)
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/api/v3/discovery/hosts", hosts)
    return application


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
