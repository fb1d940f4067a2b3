"""The HTTP API of the internal listener: health, metrics, hosts and status (contract 11.3, 10.2).

Owns the paths, the JSON shapes, the one form of an error, and that no web page can use it through
a browser on this machine. It knows the gateway by the `Gateway` Protocol below and changes nothing
but by `drain`; who may reach the listener is the network's matter.
"""

import asyncio
import heapq
import json
import logging
import re
import resource
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from smartgw import metrics
from smartgw.metrics import Family
from smartgw.processes.drain import Phase
from smartgw.proxy.headers import is_request_id

_log = logging.getLogger(__name__)

MAX_PAGE = 1000
DEFAULT_PAGE = 100
MAX_APPS_IN_STATUS = 1000
# After this many hosts a walk over all of them lets traffic have its turn.
HOSTS_AT_ONCE = 256

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Readiness(Protocol):
    """Whether traffic may come, what is missing for it, and what works less well than it could."""

    @property
    def ready(self) -> bool: ...
    @property
    def missing(self) -> Sequence[str]: ...
    @property
    def degraded(self) -> Sequence[str]: ...


class Key(Protocol):
    """A host's public key."""

    @property
    def text(self) -> str: ...


class Host(Protocol):
    """One host as the pool knows it (smartgw_hosts.pool.HostRecord); times are monotonic."""

    @property
    def host_id(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def pending_address(self) -> str | None: ...
    @property
    def pending_reason(self) -> str: ...
    @property
    def key(self) -> Key: ...
    @property
    def apps(self) -> Sequence[str]: ...
    @property
    def refused_apps(self) -> Sequence[tuple[str, str]]: ...
    @property
    def weight(self) -> int: ...
    @property
    def region(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def verified_at(self) -> float | None: ...


class Leaving(Protocol):
    """See `smartgw.processes.leaving.Leaving`."""

    @property
    def phase(self) -> Phase: ...

    async def begin(self) -> None: ...

    async def undo(self) -> bool: ...


class Gateway(Protocol):
    """What the internal API reads of the gateway. smartgw.app.Gateway is one."""

    def status(self) -> Mapping[str, Any]:
        """JSON values, by section; a section that is not there is not shown.

        `gateway`: id, cluster, version, pid, started_at (unix seconds), compiled (the data path,
        see smartgw.native), base_domains, http (addresses), internal; `bus`: connected, servers (how many), reconnects, drops;
        `traffic`: requests, in_flight, connections, upstream_connections, by_status {"2xx": n},
        own_errors {reason: n}; `discovery`: messages, refused {reason: n}; `access_log`:
        written, dropped.
        """

    async def refresh(self) -> None:
        """Have what `status` and `metrics` read be of now, in every process."""

    def readiness(self) -> Readiness: ...

    def hosts(self) -> Sequence[Host]: ...

    @property
    def leaving(self) -> Leaving: ...

    async def drain_host(self, host_id: str, *, undo: bool) -> bool:
        """Take a host out of choice for new requests, or back in; False: it is not known."""

    def metrics(self) -> Iterable[Family]:
        """The families of the gateway's own counters; readiness and hosts are added here."""


class ApiError(Exception):
    """An answer that is an error: its status, a reason of a closed set and a sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def build(
    gateway: Gateway,
    *,
    host: str = "localhost",
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> web.Application:
    """The application of the internal listener; `host` is what it is called, if it has a name."""
    api = _Api(gateway, monotonic, wall)
    application = web.Application(
        middlewares=[answer_errors, _no_web_page(host)], client_max_size=64 << 10
    )
    application.router.add_get("/healthz", api.healthz)
    application.router.add_get("/readyz", api.readyz)
    application.router.add_get("/metrics", api.metrics)
    application.router.add_get("/api/v3/discovery/hosts", api.hosts)
    application.router.add_get("/api/v3/status", api.status)
    application.router.add_post("/api/v3/drain", api.drain)
    return application


async def serve_on(application: web.Application, sock: socket.socket) -> web.AppRunner:
    """Listen on a socket that is bound, which stays the caller's; `cleanup()` ends it."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, sock.dup()).start()
    return runner


class _Api:
    def __init__(
        self, gateway: Gateway, monotonic: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._gateway = gateway
        self._monotonic = monotonic
        self._wall = wall

    async def healthz(self, request: web.Request) -> web.Response:
        return json_response({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        readiness = self._readiness()
        return json_response(readiness, status=200 if readiness["ready"] else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        await self._gateway.refresh()
        families = [*self._common_families(), *self._gateway.metrics()]
        return web.Response(
            body=metrics.render(families).encode("utf-8"),
            headers={"Content-Type": metrics.CONTENT_TYPE},
        )

    async def hosts(self, request: web.Request) -> web.Response:
        limit = page_limit(request.query.get("limit"))
        cursor = request.query.get("cursor", "")
        later = (host for host in self._gateway.hosts() if host.host_id > cursor)
        page = heapq.nsmallest(limit + 1, later, key=lambda host: host.host_id)
        more = len(page) > limit
        page = page[:limit]
        return json_response(
            {
                "hosts": [self._host(host) for host in page],
                "next_cursor": page[-1].host_id if more else None,
            }
        )

    async def status(self, request: web.Request) -> web.Response:
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

    async def drain(self, request: web.Request) -> web.Response:
        """Take the gateway or, with `host`, one host out of choice; `undo` takes it back in."""
        if request.content_type != "application/json":
            # A form of any web page can send all that a browser does not ask us about first.
            raise ApiError(415, "bad_content_type", "send Content-Type: application/json")
        host_id, undo = _drain_request(await request.read())
        if host_id is not None:
            if not await self._gateway.drain_host(host_id, undo=undo):
                raise ApiError(404, "unknown_host", f"no host {host_id} is known")
            return json_response({"host": host_id, "drained": not undo})
        if undo:
            if not await self._gateway.leaving.undo():
                raise ApiError(409, "ending", "the gateway is ending, which cannot be undone")
        else:
            await self._gateway.leaving.begin()
        return json_response({"phase": self._gateway.leaving.phase.value})

    def _readiness(self) -> dict[str, Any]:
        readiness = self._gateway.readiness()
        return {
            "ready": readiness.ready,
            "missing": list(readiness.missing),
            "degraded": list(readiness.degraded),
        }

    def _host(self, host: Host) -> dict[str, Any]:
        now = self._monotonic()
        return host_json(host, now, self._wall() - now)

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


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get("X-Request-Id", "")
    request_id = (
        given if is_request_id(given.encode(errors="surrogateescape")) else secrets.token_hex(16)
    )
    response: web.StreamResponse
    try:
        response = await handler(request)
    except ApiError as error:
        response = _error(error.status, error.reason, error.message, request_id)
    except web.HTTPMethodNotAllowed as error:
        allowed = error.headers["Allow"]
        message = f"{request.path} is for {allowed}"
        response = _error(405, "method_not_allowed", message, request_id)
        response.headers["Allow"] = allowed
    except web.HTTPException as error:
        reason = "not_found" if error.status == 404 else "bad_request"
        response = _error(error.status, reason, f"nothing at {request.path}", request_id)
    except Exception:
        _log.exception("internal API: %s %s failed", request.method, request.path)
        message = "the gateway failed to answer; its log says why"
        response = _error(500, "internal_error", message, request_id)
    response.headers["X-Request-Id"] = request_id
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _no_web_page(host: str) -> Middleware:
    """Refuse what a page of another site has a browser send here (CSRF, DNS rebinding).

    Only browsers send `Origin`. A page whose site's name was turned to our address sends that name
    in `Host`; no site can be called by an IP address or localhost.
    """
    names = {"localhost", host.lower()}

    @web.middleware
    async def no_web_page(request: web.Request, handler: Handler) -> web.StreamResponse:
        if "Origin" in request.headers:
            raise ApiError(403, "foreign_origin", "the internal listener is not for web pages")
        for value in request.headers.getall("Host", ()):
            name = _hostname(value)
            if name not in names and not _is_ip(name):
                raise ApiError(
                    403, "foreign_host", "name the internal listener by its IP address or localhost"
                )
        return await handler(request)

    return no_web_page


def _hostname(host: str) -> str:
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::[0-9]*)?", host)
    return bracketed[1] if bracketed else host.partition(":")[0].lower()


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _drain_request(body: bytes) -> tuple[str | None, bool]:
    """Return the host, if one is named, and whether to undo."""
    try:
        asked = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ApiError(400, "bad_body", "the body must be JSON") from None
    if not isinstance(asked, dict) or asked.keys() - {"host", "undo"}:
        raise ApiError(400, "bad_body", 'write {"host": ID, "undo": true}, each as needed')
    host_id, undo = asked.get("host"), asked.get("undo", False)
    if not isinstance(undo, bool) or not isinstance(host_id, str | None):
        raise ApiError(400, "bad_body", "host is an id and undo true or false")
    return host_id, undo


def page_limit(text: str | None) -> int:
    """How many a page has, by the query's `limit`. Raises ApiError."""
    if text is None:
        return DEFAULT_PAGE
    if re.fullmatch(r"[0-9]{1,4}", text) and 1 <= int(text) <= MAX_PAGE:
        return int(text)
    raise ApiError(400, "bad_parameter", f"limit must be a number from 1 to {MAX_PAGE}")


def _error(status: int, reason: str, message: str, request_id: str) -> web.Response:
    error = {"reason": reason, "message": message, "request_id": request_id}
    return json_response({"error": error}, status=status)


def json_response(value: object, *, status: int = 200) -> web.Response:
    return json_body(json.dumps(value, separators=(",", ":")) + "\n", status=status)


def json_body(text: str, *, status: int = 200) -> web.Response:
    """An answer of JSON that is made already, in ASCII."""
    return web.Response(status=status, body=text.encode("ascii"), content_type="application/json")


def rfc3339(unix: float) -> str:
    """Unix seconds as the API writes them: UTC, milliseconds."""
    text = datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"
