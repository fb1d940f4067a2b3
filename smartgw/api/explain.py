"""What this gateway would do with a request, and why (contract 10.4).

Owns the operation and what is added for people: who owns the app, whether it is registered, and
why hosts that announce it get no requests. The decisions are the data path's own
(smartgw.proxy.explain), made in a process that carries traffic.
"""

import asyncio
from ipaddress import ip_address
from typing import Any, Final

from smartgw.api import explained, models
from smartgw.api.answers import ApiError
from smartgw.api.gateway import Gateway
from smartgw.api.observed import HOSTS_AT_ONCE
from smartgw.api.operations import Access, Bound, Call, Operation, Outcome, Reply
from smartgw.proxy.explain import Question

MAX_UNROUTED: Final = 20

EXPLAIN = Operation(
    "explain",
    "GET",
    "/api/v3/explain",
    "What would be done with a request, and why",
    "By the same decisions as a request meets, with nothing sent, counted or charged.",
    "gateway",
    Access.SERVICE,
    (
        Outcome(200, "What would be done.", explained.Explained),
        Outcome(503, "No process carries traffic now.", models.Error),
    ),
    query=explained.ExplainOf,
)


class Explain:
    """`bounds` are the operations with what they do."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.bounds: tuple[Bound, ...] = ((EXPLAIN, self._explain),)

    async def _explain(self, call: Call) -> Reply:
        asked: explained.ExplainOf = call.query
        question = Question(
            host=asked.host,
            method=asked.method,
            client=_client(asked.client, call),
            target=asked.path,
            origin=asked.origin,
        )
        found = await self._gateway.explain(question)
        if found is None:
            message = "no worker answers; ask again"
            raise ApiError(503, "not_ready", message, fields={"Retry-After": "1"})
        app_id = found["app_id"]
        local = any(attempt["place"] == "local" for attempt in found["attempts"])
        unrouted = [] if app_id is None or local else await self._unrouted(app_id)
        directory, durable = self._gateway.directory, self._gateway.durable
        registered = owner = None
        if app_id is not None:
            owner = None if directory is None else directory.view.owner(app_id)
            if durable is not None and durable.age is not None:
                registered = durable.desired.app(app_id) is not None
        gateway = self._gateway.status()["gateway"]
        return Reply(
            {
                "gateway": gateway["id"],
                "cluster": gateway["cluster"],
                **found,
                "registered": registered,
                "owner": owner,
                "unrouted": unrouted,
            }
        )

    async def _unrouted(self, app_id: str) -> list[dict[str, Any]]:
        """Hosts that announce the app, and why each gets no requests, whatever else is refused."""
        found: list[dict[str, Any]] = []
        for number, host in enumerate(self._gateway.hosts()):
            refused = dict(host.refused_apps)
            healthy = host.state == "healthy" and app_id not in refused
            if not healthy and (app_id in host.apps or app_id in refused):
                reason = refused.get(app_id) or host.reason
                found.append({"host_id": host.host_id, "state": str(host.state), "reason": reason})
                if len(found) == MAX_UNROUTED:
                    break
            if number % HOSTS_AT_ONCE == HOSTS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return found


def _client(text: str, call: Call) -> str:
    """The client that is meant, by default whoever asks."""
    if not text:
        # On our own hostnames the data path says who that is, and nobody else can.
        told = call.request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
        text = told or call.request.remote or "127.0.0.1"
    try:
        return str(ip_address(text))
    except ValueError:
        message = "client: must be an IP address: 203.0.113.7"
        raise ApiError(400, "bad_parameter", message, parameter="client") from None
