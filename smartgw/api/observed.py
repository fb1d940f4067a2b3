"""What a gateway says of itself and its hosts, and how it is drained (contract 11.1, 11.3, 10.1).

Owns these operations and the JSON of a host. It changes nothing but by `drain`.
"""

import asyncio
import heapq
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from smartgw import metrics
from smartgw.api import models
from smartgw.api.answers import ApiError, json_response, rfc3339
from smartgw.api.audit import Audit
from smartgw.api.gateway import Gateway, Host
from smartgw.api.operations import Access, Bound, Call, Operation, Outcome, Reply
from smartgw.metrics import Family

MAX_APPS_IN_STATUS = 1000
# After this many hosts a walk over all of them lets traffic have its turn.
HOSTS_AT_ONCE = 256

HEALTHZ = Operation(
    "healthz",
    "GET",
    "/healthz",
    "Is the process alive",
    "For a supervisor. Whether traffic may come is `/readyz`'s to say.",
    "health",
    Access.OPEN,
    (Outcome(200, "It is.", models.Alive),),
)
READYZ = Operation(
    "readyz",
    "GET",
    "/readyz",
    "May traffic come",
    "For load balancers: what is missing for traffic, and what works less well than it could.",
    "health",
    Access.OPEN,
    (
        Outcome(200, "Ready.", models.Ready),
        Outcome(503, "Not ready: `missing` says why.", models.Ready),
    ),
)
METRICS = Operation(
    "metrics",
    "GET",
    "/metrics",
    "Metrics",
    "Prometheus text; label values come from closed sets.",
    "health",
    Access.OPEN,
    (Outcome(200, "The metrics."),),
    media_type="text/plain",
)
HOSTS = Operation(
    "list_hosts",
    "GET",
    "/api/v3/hosts",
    "Hosts in full",
    "Every host that this gateway knows, with its state, the reason and since when.",
    "hosts",
    Access.SERVICE,
    (Outcome(200, "A page of hosts, by id.", models.HostFulls),),
    query=models.Page,
)
HOST = Operation(
    "read_host",
    "GET",
    "/api/v3/hosts/{host_id}",
    "One host in full",
    "A host that this gateway knows.",
    "hosts",
    Access.SERVICE,
    (Outcome(200, "The host.", models.HostFull),),
)
STATUS = Operation(
    "status",
    "GET",
    "/api/v3/status",
    "All that `smartgw status` shows",
    "The gateway, its bus, traffic, hosts by state and apps.",
    "gateway",
    Access.SERVICE,
    (Outcome(200, "The status.", models.Status),),
)
DRAIN = Operation(
    "drain",
    "POST",
    "/api/v3/drain",
    "Take this gateway, or a host, out of use and back",
    "Safe to repeat. It is forgotten with a restart, and a host is drained at this gateway only.",
    "gateway",
    Access.SERVICE,
    (
        Outcome(200, "Done, or begun.", models.Drained),
        Outcome(404, "The host is not known.", models.Error),
        Outcome(409, "The gateway is ending, which cannot be undone.", models.Error),
    ),
    body=models.DrainWrite,
)


class Observed:
    """`open` and `control` are the operations with what they do. `more` are further metrics."""

    def __init__(
        self,
        gateway: Gateway,
        audit: Audit,
        more: Callable[[], Iterable[Family]] = tuple,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._gateway = gateway
        self._audit = audit
        self._more = more
        self._monotonic = monotonic
        self._wall = wall
        self.open: tuple[Bound, ...] = ((READYZ, self._readyz), (METRICS, self._metrics))
        self.control: tuple[Bound, ...] = (
            (HOSTS, self._hosts),
            (HOST, self._host),
            (STATUS, self._status),
            (DRAIN, self._drain),
        )

    async def _readyz(self, call: Call) -> Reply:
        readiness = self._readiness()
        return Reply(readiness, 200 if readiness["ready"] else 503)

    async def _metrics(self, call: Call) -> web.Response:
        await self._gateway.refresh()
        families = [*self._common_families(), *self._gateway.metrics(), *self._more()]
        return web.Response(
            body=metrics.render(families).encode("utf-8"),
            headers={"Content-Type": metrics.CONTENT_TYPE},
        )

    async def _hosts(self, call: Call) -> Reply:
        page: models.Page = call.query
        later = (host for host in self._gateway.hosts() if host.host_id > page.cursor)
        found = heapq.nsmallest(page.limit + 1, later, key=lambda host: host.host_id)
        more = len(found) > page.limit
        found = found[: page.limit]
        now = self._monotonic()
        return Reply(
            {
                "hosts": [host_json(host, now, self._wall() - now) for host in found],
                "next_cursor": found[-1].host_id if more else None,
            }
        )

    async def _host(self, call: Call) -> Reply:
        host = self._gateway.host(call.path["host_id"])
        if host is None:
            raise unknown_host(call.path["host_id"])
        now = self._monotonic()
        return Reply(host_json(host, now, self._wall() - now))

    async def _status(self, call: Call) -> web.Response:
        await self._gateway.refresh()
        hosts = self._gateway.hosts()
        states: Counter[str] = Counter()
        apps: dict[str, Counter[str]] = {}
        for number, host in enumerate(hosts):
            states[str(host.state)] += 1
            for app_id in host.apps:
                apps.setdefault(app_id, Counter())[str(host.state)] += 1
            if number % HOSTS_AT_ONCE == HOSTS_AT_ONCE - 1:
                await asyncio.sleep(0)
        shown = heapq.nsmallest(MAX_APPS_IN_STATUS, apps)
        return json_response(
            {
                "time": rfc3339(self._wall()),
                **self._gateway.status(),
                "readiness": self._readiness(),
                "hosts": {"total": len(hosts), "by_state": dict(states)},
                "apps": {
                    "total": len(apps),
                    "shown": [{"app_id": app, "hosts": dict(apps[app])} for app in shown],
                },
            }
        )

    async def _drain(self, call: Call) -> Reply:
        asked: models.DrainWrite = call.body
        gateway = self._gateway
        if asked.host is not None:
            host = gateway.host(asked.host)
            if host is None or not await gateway.drain_host(asked.host, undo=asked.undo):
                raise unknown_host(asked.host)
            before = {"state": str(host.state)}
            done = {"host": asked.host, "drained": not asked.undo}
            subject = {"host_id": asked.host}
        else:
            before = {"phase": gateway.leaving.phase.value}
            if not asked.undo:
                await gateway.leaving.begin()
            elif not await gateway.leaving.undo():
                raise ApiError(409, "ending", "the gateway is ending, which cannot be undone")
            done = {"phase": gateway.leaving.phase.value}
            subject = {}
        action = "drain.undo" if asked.undo else "drain"
        await self._audit.note(call.service, call.request_id, action, subject, before, done)
        return Reply(done)

    def _readiness(self) -> dict[str, Any]:
        readiness = self._gateway.readiness()
        return {
            "ready": readiness.ready,
            "missing": list(readiness.missing),
            "degraded": list(readiness.degraded),
            "state": readiness.state,
        }

    def _common_families(self) -> Iterable[Family]:
        readiness = self._gateway.readiness()
        yield metrics.gauge(
            "smartgw_ready", "1 when the gateway is ready for traffic.", int(readiness.ready)
        )
        yield metrics.gauge(
            "smartgw_degraded", "How many things work less well.", len(readiness.degraded)
        )
        states = {"provisional": 0, "healthy": 0, "unhealthy": 0, "drained": 0}
        for host in self._gateway.hosts():
            states[str(host.state)] += 1
        yield metrics.by_label("smartgw_hosts", "Hosts by state.", "state", states, "gauge")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield Family(
            "process_cpu_seconds_total",
            "CPU time of this process, user and system.",
            "counter",
            {(): usage.ru_utime + usage.ru_stime},
        )
        yield metrics.gauge(
            "process_max_resident_memory_bytes",
            "The most memory this process has held.",
            usage.ru_maxrss * 1024,
        )


async def healthz(call: Call) -> Reply:
    """The process lives."""
    return Reply({"status": "alive"})


def unknown_host(host_id: str) -> ApiError:
    """There is no such host."""
    return ApiError(404, "unknown_host", f"no host {host_id} is known", parameter="host_id")


def host_json(host: Host, now: float, offset: float) -> dict[str, Any]:
    """One host as the API shows it; `offset` makes Unix seconds of monotonic ones."""
    verified = None if host.verified_at is None else rfc3339(host.verified_at + offset)
    return {
        "host_id": host.host_id,
        "state": str(host.state),
        "reason": host.reason,
        "detail": host.detail,
        "since": rfc3339(host.since + offset),
        "since_seconds": round(now - host.since, 3),
        "verified_at": verified,
        "address": host.address,
        "pending_address": host.pending_address,
        "pending_reason": host.pending_reason,
        "apps": list(host.apps),
        "refused_apps": [
            {"app_id": app_id, "reason": reason} for app_id, reason in host.refused_apps
        ],
        "key": host.key.text,
        "weight": host.weight,
        "region": host.region,
        "version": host.version,
        "boot": host.boot,
    }
